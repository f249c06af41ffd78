//! The texts of skyrl-gym's SQL tool, and what its queries may cost here.
//!
//! Its tool runs a statement in a transaction that it rolls back, and shows the set of rows. Here a statement that
//! would write is compiled and not run, and shows no rows; the rows of a set are shown in the query's order, where
//! Python's order differs from run to run.

use std::path::Path;
use std::time::Duration;

use espalier_sql::statement::Statement;
use espalier_sql::{Database, Limits, Overflow, Request, Row, SqlError, Writes, compare, pandas};

/// What stands in for a query that was not there.
const NO_QUERY: &str =
    "Your previous action is invalid. Follow the format of outputting thinking process and sql tool, and try again.";

/// Limits beyond what skyrl-gym's tool shows of real databases.
pub(super) fn request(time: Duration) -> Request {
    Request {
        limits: Limits {
            time,
            instructions: u64::MAX,
            rows: 200_000,
            counted: 1,
            bytes: 256 << 20,
            value_bytes: 16 << 20,
            columns: 2_000,
            sql_bytes: 1 << 20,
            nesting: 250,
            selects: 500,
            expanded: 2_000,
        },
        overflow: Overflow::Count,
        writes: Writes::Pretend,
        ..Request::default()
    }
}

/// A statement's rows as Python's sqlite3 gives them inside a transaction; an error is Python's text.
pub(super) fn rows(database: &Database, sql: &str, request: &Request) -> Result<Vec<Row>, (SqlError, String)> {
    let statement = Statement::read(sql);
    let invalid = |message: &str| {
        let message = message.to_owned();
        Err((SqlError::Invalid { message: message.clone() }, message))
    };
    match statement.keyword().as_str() {
        "BEGIN" => return invalid("cannot start a transaction within a transaction"),
        "VACUUM" => return invalid("cannot VACUUM from within a transaction"),
        "COMMIT" | "END" | "ROLLBACK" | "SAVEPOINT" => return Ok(Vec::new()),
        _ => {}
    }
    match database.query(sql, request) {
        Ok(table) => Ok(table.rows),
        Err(SqlError::Empty) => Ok(Vec::new()),
        Err(error) => {
            let text = match &error {
                SqlError::SeveralStatements => "You can only execute one statement at a time.".to_owned(),
                SqlError::Parameters { count } => format!(
                    "Incorrect number of bindings supplied. The current statement uses {count}, and there are 0 supplied."
                ),
                SqlError::Syntax { message } | SqlError::Invalid { message } => message.clone(),
                SqlError::ValueTooLarge { .. } => "string or blob too big".to_owned(),
                SqlError::Denied { .. } => "not authorized".to_owned(),
                other => other.to_string(),
            };
            Err((error, text))
        }
    }
}

/// What the tool shows of a query.
pub(super) fn result(sql: &str, path: &Path, rows: &Result<Vec<Row>, (SqlError, String)>) -> String {
    match rows {
        Ok(rows) => pandas::observation(&compare::distinct(rows)),
        Err((error, _)) if error.is_timeout() => format!("SQL Timeout:\n{sql}"),
        Err((_, text)) => format!("Error executing SQL: {text}, db file: {}", path.display()),
    }
}

/// The observation's message.
pub(super) fn observation(result: Option<&str>, turns_left: u32) -> String {
    let result = result.unwrap_or(NO_QUERY);
    format!(
        "\n\n<observation>{result}\n<reminder>You have {turns_left} turns left to complete the task.</reminder></observation>\n\n"
    )
}
