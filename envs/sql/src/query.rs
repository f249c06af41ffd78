//! One query within limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::{Duration, Instant};

use rusqlite::ErrorCode;
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;

use crate::database::{Database, Guarded, reason_of};
use crate::error::SqlError;
use crate::statement::Statement;
use crate::value::{LeftOut, Row, Table, Value};

/// Instructions between two looks at the clock.
const STRIDE: u16 = 1000;

/// Rows between two looks at the clock: a row may cost less than a stride, and copying it is our own time.
const ROW_STRIDE: u64 = 256;

/// What a query may cost. Every limit is finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Time from the start to the last row, compiling included.
    pub time: Duration,
    /// Instructions of SQLite's virtual machine; counted in steps of 1,000.
    pub instructions: u64,
    /// Rows that are kept.
    pub rows: usize,
    /// Rows that are counted beyond those kept, under [`Overflow::Count`].
    pub counted: u64,
    /// Bytes of the rows kept.
    pub bytes: usize,
    /// Bytes of one value, and of one row inside SQLite. It also bounds what a single call of `replace`, `instr` or
    /// `LIKE` can cost, which cannot be interrupted.
    pub value_bytes: usize,
    /// Columns of a result and of anything inside it.
    pub columns: usize,
    /// Bytes of the query's text.
    pub sql_bytes: usize,
    /// Parentheses in parentheses; an expression may be four times as deep.
    pub nesting: usize,
    /// How often `SELECT` may come.
    pub selects: usize,
    /// How many selects the query may have once every common table expression stands where it is used. SQLite writes
    /// them out while it compiles, which nothing interrupts.
    pub expanded: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            time: Duration::from_secs(5),
            instructions: 2_000_000_000,
            rows: 1_000,
            counted: 1_000_000,
            bytes: 16 << 20,
            value_bytes: 256 << 10,
            columns: 2_000,
            sql_bytes: 64 << 10,
            nesting: 100,
            selects: 100,
            expanded: 1_000,
        }
    }
}

/// What becomes of rows beyond the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// They are counted, not kept.
    #[default]
    Count,
    /// The query fails.
    Refuse,
}

/// What becomes of a statement that would write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Writes {
    /// It is refused.
    #[default]
    Refuse,
    /// It is compiled and never run, and gives no rows: what a tool that runs it and rolls back would show.
    Pretend,
}

/// How a query is run.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// What it may cost.
    pub limits: Limits,
    /// What becomes of rows beyond the limit.
    pub overflow: Overflow,
    /// What becomes of a statement that would write.
    pub writes: Writes,
    /// Set it to end the query from another thread.
    pub cancel: Arc<AtomicBool>,
}

/// Why the progress handler stopped a query.
const RUNS: u8 = 0;
const LATE: u8 = 1;
const SPENT: u8 = 2;
const CANCELLED: u8 = 3;

/// The clock of one query, shared with the progress handler.
#[derive(Clone)]
struct Clock {
    deadline: Instant,
    cancel: Arc<AtomicBool>,
    ended: Arc<AtomicU8>,
}

impl Clock {
    fn stop(&self, spent: bool) -> bool {
        let why = if self.cancel.load(Ordering::Relaxed) {
            CANCELLED
        } else if spent {
            SPENT
        } else if Instant::now() >= self.deadline {
            LATE
        } else {
            return false;
        };
        self.ended.store(why, Ordering::Relaxed);
        true
    }
}

impl Database {
    /// Runs one query. Blocks the thread for at most the time limit and what one instruction of SQLite takes.
    ///
    /// # Errors
    ///
    /// Everything in [`SqlError`] but a wrong name.
    pub fn query(&self, sql: &str, request: &Request) -> Result<Table, SqlError> {
        let limits = &request.limits;
        let statement = Statement::read(sql);
        check(sql, &statement, limits)?;
        let clock = Clock {
            deadline: Instant::now() + limits.time,
            cancel: Arc::clone(&request.cancel),
            ended: Arc::default(),
        };
        let guarded = self.take()?;
        let result = self.run(&guarded, &statement, sql, request, &clock);
        // Only a connection that is as it was goes back.
        let clean = guarded.connection.progress_handler(0, None::<fn() -> bool>).is_ok();
        if clean && guarded.connection.is_autocommit() && !matches!(result, Err(SqlError::Storage { .. })) {
            self.give_back(guarded);
        }
        result
    }

    fn run(
        &self,
        guarded: &Guarded,
        statement: &Statement<'_>,
        sql: &str,
        request: &Request,
        clock: &Clock,
    ) -> Result<Table, SqlError> {
        let limits = &request.limits;
        let connection = &guarded.connection;
        let told = |error: rusqlite::Error| self.explain(error, guarded, clock, limits);
        for (limit, value) in [
            (Limit::SQLITE_LIMIT_LENGTH, limits.value_bytes.max(limits.sql_bytes)),
            (Limit::SQLITE_LIMIT_SQL_LENGTH, limits.sql_bytes),
            (Limit::SQLITE_LIMIT_COLUMN, limits.columns),
            (Limit::SQLITE_LIMIT_EXPR_DEPTH, 4 * limits.nesting),
            (Limit::SQLITE_LIMIT_COMPOUND_SELECT, limits.selects),
            (Limit::SQLITE_LIMIT_VDBE_OP, 250_000),
            (Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 500),
            (Limit::SQLITE_LIMIT_ATTACHED, 0),
            (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
        ] {
            connection.set_limit(limit, i32::try_from(value).unwrap_or(i32::MAX)).map_err(told)?;
        }
        let (handler, mut left) = (clock.clone(), limits.instructions);
        let progress = move || {
            let spent = left < u64::from(STRIDE);
            left = left.saturating_sub(u64::from(STRIDE));
            handler.stop(spent)
        };
        connection.progress_handler(i32::from(STRIDE), Some(progress)).map_err(told)?;
        guarded.guard.set(request.writes);

        // What is wrong with the first statement is said first.
        let mut prepared = match connection.prepare(&sql[..statement.end]) {
            Err(rusqlite::Error::MultipleStatement) => return Err(SqlError::SeveralStatements),
            prepared => prepared.map_err(told)?,
        };
        if statement.several {
            return Err(SqlError::SeveralStatements);
        }
        let columns: Vec<String> = prepared.column_names().into_iter().map(str::to_owned).collect();
        if prepared.parameter_count() > 0 {
            return Err(SqlError::Parameters { count: prepared.parameter_count() });
        }
        if !prepared.readonly() {
            return match request.writes {
                Writes::Pretend => Ok(Table::default()),
                Writes::Refuse => Err(SqlError::NotReadOnly { what: statement.keyword() }),
            };
        }
        let keyword = statement.keyword();
        if !["SELECT", "WITH", "VALUES", "EXPLAIN", "PRAGMA"].contains(&keyword.as_str()) {
            return match request.writes {
                Writes::Pretend => Ok(Table::default()),
                Writes::Refuse => Err(SqlError::NotReadOnly { what: keyword }),
            };
        }
        let width = columns.len();
        let mut table = Table { columns, ..Table::default() };
        let (mut bytes, mut more, mut seen) = (0, 0_u64, 0_u64);
        let mut rows = prepared.raw_query();
        while let Some(row) = rows.next().map_err(told)? {
            seen += 1;
            if seen.is_multiple_of(ROW_STRIDE) && clock.stop(false) {
                return Err(stopped(clock, limits));
            }
            let full = table.rows.len() >= limits.rows || bytes > limits.bytes;
            if !full {
                let mut values = Row::with_capacity(width);
                for index in 0..width {
                    let value = value_of(row.get_ref(index).map_err(told)?);
                    bytes += value.size();
                    values.push(value);
                }
                if bytes <= limits.bytes {
                    table.rows.push(values);
                    continue;
                }
            }
            if request.overflow == Overflow::Refuse {
                return Err(if bytes > limits.bytes {
                    SqlError::TooManyBytes { limit: limits.bytes }
                } else {
                    SqlError::TooManyRows { limit: limits.rows }
                });
            }
            more += 1;
            if more >= limits.counted {
                table.left_out = LeftOut::AtLeast(more);
                return Ok(table);
            }
        }
        if more > 0 {
            table.left_out = LeftOut::Exactly(more);
        }
        Ok(table)
    }

    fn explain(&self, error: rusqlite::Error, guarded: &Guarded, clock: &Clock, limits: &Limits) -> SqlError {
        let code = error.sqlite_error_code();
        let message = reason_of(error);
        let storage = |message: String| SqlError::Storage { path: self.path().to_owned(), reason: message };
        match code {
            Some(ErrorCode::OperationInterrupted) => stopped(clock, limits),
            Some(ErrorCode::AuthorizationForStatementDenied) => match guarded.guard.refused() {
                Some(refused) => refused,
                None => SqlError::Denied { what: message },
            },
            Some(ErrorCode::TooBig) => SqlError::ValueTooLarge { limit: limits.value_bytes },
            Some(ErrorCode::OutOfMemory) => SqlError::OutOfMemory,
            Some(ErrorCode::ReadOnly) => SqlError::NotReadOnly { what: "writing".to_owned() },
            Some(
                ErrorCode::DatabaseCorrupt
                | ErrorCode::NotADatabase
                | ErrorCode::CannotOpen
                | ErrorCode::SystemIoFailure
                | ErrorCode::DiskFull
                | ErrorCode::PermissionDenied
                | ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::FileLockingProtocolFailed,
            ) => storage(message),
            _ if clock.ended.load(Ordering::Relaxed) != RUNS => stopped(clock, limits),
            // An authoriser's refusal inside a table-valued function comes as an ordinary error.
            _ if message.contains("not authorized") => guarded.guard.refused().unwrap_or(SqlError::Invalid { message }),
            _ if message.contains("syntax error") || message.contains("incomplete input") => {
                SqlError::Syntax { message }
            }
            _ => SqlError::Invalid { message },
        }
    }
}

fn stopped(clock: &Clock, limits: &Limits) -> SqlError {
    match clock.ended.load(Ordering::Relaxed) {
        CANCELLED => SqlError::Cancelled,
        SPENT => SqlError::TooManyInstructions { limit: limits.instructions },
        _ => SqlError::Timeout { milliseconds: u64::try_from(limits.time.as_millis()).unwrap_or(u64::MAX) },
    }
}

fn check(sql: &str, statement: &Statement<'_>, limits: &Limits) -> Result<(), SqlError> {
    for (what, got, limit) in [
        ("bytes", sql.len(), limits.sql_bytes),
        ("levels of parentheses", statement.nesting, limits.nesting),
        ("times SELECT", statement.selects, limits.selects),
        ("selects when common table expressions are written out", statement.expanded(limits.expanded), limits.expanded),
    ] {
        if got > limit {
            return Err(SqlError::TooLarge { what, got, limit });
        }
    }
    if sql.contains('\0') {
        return Err(SqlError::Invalid { message: "the query contains a null character".to_owned() });
    }
    if statement.is_empty() {
        return Err(SqlError::Empty);
    }
    Ok(())
}

fn value_of(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(integer) => Value::Integer(integer),
        ValueRef::Real(real) => Value::Real(real),
        ValueRef::Text(bytes) => Value::Text(String::from_utf8_lossy(bytes).into_owned()),
        ValueRef::Blob(bytes) => Value::Blob(bytes.to_vec()),
    }
}
