//! The tables at the end: of a suite, modes side by side with one line per figure; of a comparison, what the report
//! says. Where the terminal is narrower than a table, its cells stand below one another.

use std::fmt::Write as _;

use espalier_generator::suite::compare::comparison_report;
use espalier_generator::suite::report::score;
use espalier_generator::suite::{CellResult, Comparison, Mode, SuiteResult};

const MODES: [Mode; 3] = [Mode::Alone, Mode::Repl, Mode::Recursive];

/// A suite's result in at most `columns` columns, as far as words allow.
pub(super) fn result(result: &SuiteResult, columns: Option<usize>) -> String {
    fitting(side_by_side(result), columns, |columns| {
        let mut out = String::new();
        for cell in &result.cells {
            let mut figures = FIGURES.iter().map(|(figure, show)| format!("{figure}: {}", show(cell)));
            let head = format!("{}, {}, {}", cell.task, cell.engine, cell.mode.title());
            let score = figures.next().unwrap_or_default();
            let rest = figures.filter(|_| !cell.never_fits());
            out.push_str(&stacked(&head, std::iter::once(score).chain(rest), columns));
        }
        out
    })
}

/// Comparisons in at most `columns` columns, as far as words allow.
pub(super) fn comparisons(comparisons: &[Comparison], columns: Option<usize>) -> String {
    fitting(comparison_report(comparisons), columns, |columns| {
        let mut out = String::new();
        for it in comparisons {
            let difference = it.difference;
            let parts = [
                format!("B - A: {:+.3} [{:+.3}, {:+.3}]", difference.mean, difference.low, difference.high),
                if it.is_clear() { "clear" } else { "not clear" }.to_owned(),
                format!("A: {:.3} ({})", it.a, it.engine_a),
                format!("B: {:.3} ({})", it.b, it.engine_b),
                format!("rows: {}", it.rows),
            ];
            out.push_str(&stacked(&format!("{}, {}", it.task, it.mode.title()), parts.into_iter(), columns));
        }
        out
    })
}

/// The wide form where it fits, else the narrow one.
fn fitting(wide: String, columns: Option<usize>, narrow: impl FnOnce(usize) -> String) -> String {
    match columns {
        Some(columns) if wide.lines().any(|line| line.chars().count() > columns) => narrow(columns),
        _ => wide,
    }
}

/// A heading with parts below it, as many on a line as fit.
fn stacked(head: &str, parts: impl Iterator<Item = String>, columns: usize) -> String {
    const MARGIN: &str = "    ";
    let mut out = format!("{head}\n");
    let mut line = String::new();
    for part in parts {
        if !line.is_empty() && MARGIN.len() + line.chars().count() + 2 + part.chars().count() > columns {
            let _ = writeln!(out, "{MARGIN}{line}");
            line.clear();
        }
        if !line.is_empty() {
            line.push_str("; ");
        }
        line.push_str(&part);
    }
    let _ = writeln!(out, "{MARGIN}{line}");
    out
}

/// One block of lines per task and model, one column per mode that the suite plays.
fn side_by_side(result: &SuiteResult) -> String {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cell(mode: &str) -> serde_json::Value {
        json!({"task": "needle", "engine": "small", "mode": mode, "rollouts": 8, "failed": 0, "does_not_fit": 2,
               "score": {"mean": 0.5, "low": 0.25, "high": 0.75}, "pass_at_k": {}, "valid_blocks": 0.8,
               "final_given": 0.5, "turns": 3.0, "sub_calls": 1.0, "children": 2.0, "prompt_tokens": 12345.0,
               "sampled_tokens": 678.0, "seconds": 4.0, "stops": {}, "metrics": {}, "rewards": {}})
    }

    fn suite() -> SuiteResult {
        let cells = ["alone", "repl", "recursive"].map(cell);
        serde_json::from_value(json!({"name": "suite", "seed": 1, "cells": cells})).unwrap()
    }

    fn comparison() -> Comparison {
        serde_json::from_value(json!({"task": "needle", "mode": "repl", "engine_a": "a model with a long name",
            "engine_b": "another model with a long name", "rows": 8, "a": 0.25, "b": 0.5,
            "difference": {"mean": 0.25, "low": 0.125, "high": 0.375}}))
        .unwrap()
    }

    fn widest(text: &str) -> usize {
        text.lines().map(|line| line.chars().count()).max().unwrap_or_default()
    }

    #[test]
    fn piped_tables_stay_wide() {
        assert!(widest(&result(&suite(), None)) > 100);
        assert_eq!(result(&suite(), None), result(&suite(), Some(400)));
        assert_eq!(comparisons(&[comparison()], None), comparison_report(&[comparison()]));
    }

    #[test]
    fn a_narrow_terminal_gets_everything_in_its_width() {
        let shown = result(&suite(), Some(80));
        assert!(widest(&shown) <= 80, "{shown}");
        for said in ["with REPL and recursion", "0.500 [0.250, 0.750], 2 of 8 do not fit", "12345 in, 678 out", "4.0 s"]
        {
            assert!(shown.contains(said), "{said} in {shown}");
        }
        let shown = comparisons(&[comparison()], Some(80));
        assert!(widest(&shown) <= 80 && shown.contains("+0.250 [+0.125, +0.375]; clear"), "{shown}");
    }
}
