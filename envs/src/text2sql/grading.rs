//! Whether the solution's result is the gold query's.

use std::time::Duration;

use espalier_sql::compare::{self, Side};
use espalier_sql::order::{self, Gold};
use espalier_sql::statement::Statement;
use espalier_sql::{Database, LeftOut, Limits, Overflow, Request, SqlError};

use super::{ID, skyrl};
use crate::env::EnvError;

/// What became of a solution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) correct: bool,
    pub(super) timed_out: bool,
    /// Why it is wrong, or `correct`.
    pub(super) reason: String,
}

impl Verdict {
    fn wrong(reason: impl Into<String>) -> Self {
        Self { correct: false, timed_out: false, reason: reason.into() }
    }
}

/// Rows and bytes that a gold result may have.
fn request(time: Duration) -> Request {
    let limits = Limits { time, instructions: 20_000_000_000, rows: 1_000_000, bytes: 256 << 20, ..Limits::default() };
    Request { limits, overflow: Overflow::Refuse, ..Request::default() }
}

/// Grades a solution by this project's rule: any of the row's gold results, with multiplicity and, where the gold query
/// orders, in order. Blocks.
///
/// # Errors
///
/// A gold query that does not run, and a database that cannot be read.
pub(super) fn grade(
    database: &Database,
    solution: &str,
    row: &str,
    gold: &[String],
    run: &Request,
) -> Result<Verdict, EnvError> {
    let statement = Statement::read(solution);
    if statement.is_empty() {
        return Ok(Verdict::wrong("the solution is empty"));
    }
    if !statement.is_query() {
        return Ok(Verdict::wrong("the solution is no SELECT"));
    }
    let limits = request(run.limits.time);
    let full = Request { cancel: run.cancel.clone(), ..limits };
    let mut results = Vec::with_capacity(gold.len());
    for sql in gold {
        results.push(order::gold(database, sql, &full).map_err(|error| EnvError::Grader {
            env: ID.to_owned(),
            reason: format!("`reward_spec.ground_truth` of row `{row}` failed: {error}: `{}`", on_one_line(sql)),
        })?);
    }
    // One row more than any gold result has is wrong already.
    let most = results.iter().map(|gold| gold.table.rows.len()).max().unwrap_or(0);
    let mut limited = Request { overflow: Overflow::Count, ..full };
    limited.limits.rows = most;
    limited.limits.counted = 1;
    let table = match database.query(solution, &limited) {
        Ok(table) => table,
        Err(error) if error.is_fault() => {
            return Err(EnvError::Grader { env: ID.to_owned(), reason: error.to_string() });
        }
        Err(error) => return Ok(failed(&error)),
    };
    if table.left_out != LeftOut::None {
        return Ok(Verdict::wrong(format!("more than {most} rows")));
    }
    let answer = Side { columns: table.columns.len(), rows: &table.rows };
    let mut reason = String::new();
    for Gold { table: gold, ties } in &results {
        let gold = Side { columns: gold.columns.len(), rows: &gold.rows };
        match compare::equal(gold, answer, ties.as_deref()) {
            Ok(()) => return Ok(Verdict { correct: true, timed_out: false, reason: "correct".to_owned() }),
            Err(difference) => reason = difference.to_string(),
        }
    }
    Ok(Verdict::wrong(reason))
}

/// The start of a query, for a message.
fn on_one_line(sql: &str) -> String {
    const SHOWN: usize = 200;
    let words: Vec<&str> = sql.split_whitespace().collect();
    let line = words.join(" ");
    match line.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

fn failed(error: &SqlError) -> Verdict {
    Verdict { timed_out: error.is_timeout(), ..Verdict::wrong(error.to_string()) }
}

/// Grades a solution as skyrl-gym does: equal sets of rows, whatever the statement is; anything that fails is wrong.
/// Blocks.
pub(super) fn grade_original(database: &Database, solution: &str, gold: &[String], run: &Request) -> Verdict {
    let answer = match skyrl::rows(database, solution, run) {
        Ok(rows) => rows,
        Err((error, _)) => return failed(&error),
    };
    let Some(gold) = gold.first() else { return Verdict::wrong("there is no gold query") };
    match skyrl::rows(database, gold, run) {
        Ok(gold) if compare::same_set(&gold, &answer) => {
            Verdict { correct: true, timed_out: false, reason: "correct".to_owned() }
        }
        Ok(_) => Verdict::wrong("other values"),
        Err((error, _)) => Verdict::wrong(format!("the gold query failed: {error}")),
    }
}
