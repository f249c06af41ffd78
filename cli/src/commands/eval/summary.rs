//! The table at the end: modes side by side, one line per figure.

use espalier_generator::suite::report::score;
use espalier_generator::suite::{CellResult, Mode, SuiteResult};

const MODES: [Mode; 3] = [Mode::Alone, Mode::Repl, Mode::Recursive];

/// One block of lines per task and model, one column per mode that the suite plays.
pub(super) fn side_by_side(result: &SuiteResult) -> String {
    let modes: Vec<Mode> =
        MODES.into_iter().filter(|mode| result.cells.iter().any(|cell| cell.mode == *mode)).collect();
    let mut groups: Vec<(&str, &str)> = Vec::new();
    for cell in &result.cells {
        if !groups.contains(&(&cell.task, &cell.engine)) {
            groups.push((&cell.task, &cell.engine));
        }
    }
    let several_engines = groups.iter().any(|(_, engine)| *engine != groups[0].1);

    let mut lines: Vec<Vec<String>> = Vec::new();
    let mut head = vec!["task".to_owned(), String::new()];
    head.extend(modes.iter().map(|mode| mode.title().to_owned()));
    lines.push(head);
    for (task, engine) in groups {
        let cells: Vec<Option<&CellResult>> = modes
            .iter()
            .map(|mode| {
                result.cells.iter().find(|cell| cell.task == task && cell.engine == engine && cell.mode == *mode)
            })
            .collect();
        let name = if several_engines { format!("{task} ({engine})") } else { task.to_owned() };
        for (index, (figure, show)) in FIGURES.iter().enumerate() {
            let mut line = vec![if index == 0 { name.clone() } else { String::new() }, (*figure).to_owned()];
            line.extend(cells.iter().map(|cell| match cell {
                None => "-".to_owned(),
                Some(cell) if index > 0 && cell.never_fits() => "-".to_owned(),
                Some(cell) => show(cell),
            }));
            lines.push(line);
        }
    }
    align(&lines)
}

type Show = fn(&CellResult) -> String;

const FIGURES: [(&str, Show); 7] = [
    ("score", score),
    ("valid blocks %", |cell| percent(cell.valid_blocks)),
    ("FINAL given %", |cell| percent(cell.final_given)),
    ("turns", |cell| format!("{:.1}", cell.turns)),
    ("sub-calls", |cell| format!("{:.1} (+{:.1} children)", cell.sub_calls, cell.children)),
    ("tokens", |cell| format!("{:.0} in, {:.0} out", cell.prompt_tokens, cell.sampled_tokens)),
    ("time", |cell| format!("{:.1} s", cell.seconds)),
];

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.0}", share * 100.0))
}

/// Columns as wide as their widest cell.
fn align(lines: &[Vec<String>]) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    let mut out = String::new();
    for line in lines {
        let mut text = String::new();
        for (cell, width) in line.iter().zip(&widths) {
            text.push_str(cell);
            text.extend(std::iter::repeat_n(' ', width - cell.chars().count() + 2));
        }
        out.push_str(text.trim_end());
        out.push('\n');
    }
    out
}
