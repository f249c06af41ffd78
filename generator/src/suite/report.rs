//! Results as Markdown.

use std::fmt::Write;

use super::config::Mode;
use super::results::{CellResult, SuiteResult};

/// A report: per model the modes side by side, then every cell with its costs.
pub fn report(result: &SuiteResult) -> String {
    let mut out =
        format!("# {}\n\nSeed {}. Scores are mean rewards with 95 % bootstrap intervals.\n", result.name, result.seed);
    let mut engines: Vec<&str> = Vec::new();
    for cell in &result.cells {
        if !engines.contains(&cell.engine.as_str()) {
            engines.push(&cell.engine);
        }
    }
    for engine in engines {
        let _ = write!(out, "\n## {engine}\n\n{}", side_by_side(result, engine));
    }
    let _ = write!(out, "\n## Every cell\n\n{}", cells(&result.cells));
    out
}

/// Tasks as rows, modes as columns.
pub fn side_by_side(result: &SuiteResult, engine: &str) -> String {
    let of_engine: Vec<&CellResult> = result.cells.iter().filter(|cell| cell.engine == engine).collect();
    let modes: Vec<Mode> = [Mode::Alone, Mode::Repl, Mode::Recursive]
        .into_iter()
        .filter(|mode| of_engine.iter().any(|cell| cell.mode == *mode))
        .collect();
    let mut tasks: Vec<&str> = Vec::new();
    for cell in &of_engine {
        if !tasks.contains(&cell.task.as_str()) {
            tasks.push(&cell.task);
        }
    }
    let mut head = vec!["task".to_owned()];
    head.extend(modes.iter().map(|mode| mode.title().to_owned()));
    let rows = tasks.into_iter().map(|task| {
        let mut row = vec![task.to_owned()];
        row.extend(modes.iter().map(|mode| {
            let cell = of_engine.iter().find(|cell| cell.task == task && cell.mode == *mode);
            cell.map_or_else(|| "-".to_owned(), |cell| score(cell))
        }));
        row
    });
    table(&head, rows.collect())
}

/// Every cell with its costs.
pub fn cells(cells: &[CellResult]) -> String {
    let mut ks: Vec<u32> = cells.iter().flat_map(|cell| cell.pass_at_k.keys().copied()).collect();
    ks.sort_unstable();
    ks.dedup();
    let mut head: Vec<String> = ["task", "model", "mode", "score"].map(str::to_owned).to_vec();
    head.extend(ks.iter().map(|k| format!("pass@{k}")));
    head.extend(
        ["valid blocks %", "FINAL given %", "turns", "sub-calls", "children", "tokens in", "tokens out", "s", "failed"]
            .map(str::to_owned),
    );
    let rows = cells.iter().map(|cell| {
        let mut row = vec![cell.task.clone(), cell.engine.clone(), cell.mode.name().to_owned(), score(cell)];
        row.extend(ks.iter().map(|k| cell.pass_at_k.get(k).map_or_else(dash, |value| format!("{value:.3}"))));
        row.push(percent(cell.valid_blocks));
        row.push(percent(cell.final_given));
        for (mean, digits) in [
            (cell.turns, 1),
            (cell.sub_calls, 1),
            (cell.children, 1),
            (cell.prompt_tokens, 0),
            (cell.sampled_tokens, 0),
            (cell.seconds, 2),
        ] {
            // Where every rollout failed there is nothing to average.
            row.push(if cell.failed < cell.rollouts { format!("{mean:.digits$}") } else { dash() });
        }
        row.push(format!("{} of {}", cell.failed, cell.rollouts));
        row
    });
    table(&head, rows.collect())
}

fn dash() -> String {
    "-".to_owned()
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(dash, |share| format!("{:.0}", share * 100.0))
}

/// The score in words: its interval, or why there is none.
pub fn score(cell: &CellResult) -> String {
    if cell.never_fits() {
        return "does not fit".to_owned();
    }
    let Some(score) = cell.score else {
        return if cell.rollouts == 0 { dash() } else { "failed".to_owned() };
    };
    let mut text = format!("{:.3} [{:.3}, {:.3}]", score.mean, score.low, score.high);
    if cell.does_not_fit > 0 {
        let _ = write!(text, ", {} of {} do not fit", cell.does_not_fit, cell.rollouts);
    }
    text
}

/// A Markdown table whose columns line up.
pub fn table(head: &[String], rows: Vec<Vec<String>>) -> String {
    let escape = |text: &String| text.replace('|', "\\|").replace('\n', " ");
    let head: Vec<String> = head.iter().map(escape).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(escape).collect()).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).chain(head.get(column));
        cells.map(|text| text.chars().count()).max().unwrap_or_default().max(3)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut out = String::new();
    let mut line = |cells: &[String]| {
        for (cell, width) in cells.iter().zip(&widths) {
            let _ = write!(out, "| {cell:<width$} ");
        }
        out.push_str("|\n");
    };
    line(&head);
    line(&widths.iter().map(|&width| "-".repeat(width)).collect::<Vec<_>>());
    for row in &rows {
        line(row);
    }
    out
}
