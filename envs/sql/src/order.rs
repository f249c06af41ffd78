//! Which rows of an ordered result tie.
//!
//! A query that ends in `ORDER BY` fixes the order of rows that differ in what it orders by, and of no others. [`gold`]
//! runs the gold query and finds the groups of rows that tie. A term of the `ORDER BY` that is a column of the result
//! is read there; any other term is computed beside the result, by a second run of the query with the terms as extra
//! columns. Where that is not possible (`DISTINCT`, a compound select, a term that only means something in `ORDER BY`),
//! the order is required by the terms before it only; without any, it is free. Nothing that a correct answer could
//! violate is ever required.
//!
//! `LIMIT` is taken as the gold query took it: of rows that tie at the cut, the gold query's are the right ones.

use crate::compare::values_equal;
use crate::database::Database;
use crate::error::SqlError;
use crate::query::{Overflow, Request};
use crate::statement::{Kind, Statement, Token};
use crate::value::{LeftOut, Row, Table, Value};

/// A gold query's result.
#[derive(Clone, Debug, PartialEq)]
pub struct Gold {
    /// The result.
    pub table: Table,
    /// Sizes of the groups of rows that tie, in order; none where the order is free.
    pub ties: Option<Vec<usize>>,
}

/// One term of an `ORDER BY`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    /// Its expression, tokens joined by spaces.
    text: String,
    /// `ORDER BY 2`
    position: Option<usize>,
    /// `ORDER BY name`
    name: Option<String>,
    collation: Collation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Collation {
    Binary,
    NoCase,
    Rtrim,
    Other,
}

/// The `ORDER BY` of a statement's result.
#[derive(Clone, Debug)]
struct OrderBy {
    terms: Vec<Term>,
    /// Where further result columns can be written, if they can.
    room: Option<usize>,
}

/// Whether the statement orders its result.
pub fn is_ordered(sql: &str) -> bool {
    read(&Statement::read(sql)).is_some()
}

/// Runs a gold query; its rows and which of them tie.
///
/// # Errors
///
/// As [`Database::query`]; rows beyond the limits are an error too.
pub fn gold(database: &Database, sql: &str, request: &Request) -> Result<Gold, SqlError> {
    let request = Request { overflow: Overflow::Refuse, ..request.clone() };
    let statement = Statement::read(sql);
    let table = database.query(sql, &request)?;
    let Some(order) = read(&statement) else { return Ok(Gold { table, ties: None }) };
    let keys = keys(database, sql, &request, &order, &table);
    let ties = if keys.is_empty() { None } else { Some(groups(&keys, table.rows.len())) };
    Ok(Gold { table, ties })
}

/// Columns of values to order by, with how texts compare in each; as many leading terms as are known.
fn keys(
    database: &Database,
    sql: &str,
    request: &Request,
    order: &OrderBy,
    table: &Table,
) -> Vec<(Vec<Value>, Collation)> {
    let visible = |term: &Term| match (term.position, &term.name) {
        (Some(position), _) => position.checked_sub(1).filter(|index| *index < table.columns.len()),
        (None, Some(name)) => table.columns.iter().position(|column| column.eq_ignore_ascii_case(name)),
        (None, None) => None,
    };
    let column = |table: &Table, index: usize| table.rows.iter().map(|row| row[index].clone()).collect::<Vec<_>>();
    let hidden: Vec<&Term> = order.terms.iter().filter(|term| visible(term).is_none()).collect();
    let beside = match order.room {
        Some(room) if !hidden.is_empty() => {
            let mut wider = sql[..room].to_owned();
            for term in &hidden {
                wider.push_str(", (");
                wider.push_str(&term.text);
                wider.push_str(") ");
            }
            wider.push_str(&sql[room..]);
            database.query(&wider, request).ok().filter(|wider| begins_with(wider, table, hidden.len()))
        }
        _ => None,
    };
    let mut keys = Vec::new();
    let mut passed = 0;
    for term in &order.terms {
        if term.collation == Collation::Other {
            break;
        }
        let values = if let Some(index) = visible(term) {
            column(table, index)
        } else {
            let Some(beside) = &beside else { break };
            passed += 1;
            column(beside, table.columns.len() + passed - 1)
        };
        keys.push((values, term.collation));
    }
    keys
}

/// Whether the wider result is the result with columns added: another plan may order ties, or cut them, differently.
fn begins_with(wider: &Table, table: &Table, added: usize) -> bool {
    let width = table.columns.len();
    let same = |wider: &Row, row: &Row| wider.len() == width + added && wider[..width] == row[..];
    wider.left_out == LeftOut::None
        && wider.rows.len() == table.rows.len()
        && wider.rows.iter().zip(&table.rows).all(|(wider, row)| same(wider, row))
}

fn groups(keys: &[(Vec<Value>, Collation)], rows: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = Vec::new();
    for row in 0..rows {
        let ties = row > 0 && keys.iter().all(|(values, collation)| tie(&values[row - 1], &values[row], *collation));
        match sizes.last_mut() {
            Some(size) if ties => *size += 1,
            _ => sizes.push(1),
        }
    }
    sizes
}

fn tie(left: &Value, right: &Value, collation: Collation) -> bool {
    match (left, right, collation) {
        (Value::Text(left), Value::Text(right), Collation::NoCase) => left.eq_ignore_ascii_case(right),
        (Value::Text(left), Value::Text(right), Collation::Rtrim) => {
            left.trim_end_matches(' ') == right.trim_end_matches(' ')
        }
        // Numbers that differ by rounding only may come in either order.
        _ => values_equal(left, right),
    }
}

fn read(statement: &Statement<'_>) -> Option<OrderBy> {
    let tokens = statement.tokens();
    let top = |index: usize, keyword: &str| tokens[index].depth == 0 && statement.is(&tokens[index], keyword);
    let order = (0..tokens.len().saturating_sub(1)).rev().find(|&at| top(at, "order") && top(at + 1, "by"))?;
    let end = (order + 2..tokens.len()).find(|&at| top(at, "limit")).unwrap_or(tokens.len());
    let mut terms = Vec::new();
    let mut from = order + 2;
    for at in order + 2..=end {
        if at == end || (tokens[at].depth == 0 && statement.text(&tokens[at]) == ",") {
            terms.push(term(statement, &tokens[from..at])?);
            from = at + 1;
        }
    }
    let compound = (0..order).any(|at| top(at, "union") || top(at, "intersect") || top(at, "except"));
    let select = (0..order).rev().find(|&at| top(at, "select"));
    let room = select.filter(|&at| !compound && !statement.is(&tokens[at + 1], "distinct")).map(|at| {
        let clause = ["from", "where", "group", "having", "window", "order"];
        let next = (at..=order).find(|&at| clause.iter().any(|keyword| top(at, keyword))).unwrap_or(order);
        tokens[next].at.start
    });
    Some(OrderBy { terms, room })
}

fn term(statement: &Statement<'_>, tokens: &[Token]) -> Option<Term> {
    let mut rest = tokens;
    if let [before @ .., nulls, place] = rest
        && statement.is(nulls, "nulls")
        && (statement.is(place, "first") || statement.is(place, "last"))
    {
        rest = before;
    }
    if let [before @ .., direction] = rest
        && (statement.is(direction, "asc") || statement.is(direction, "desc"))
    {
        rest = before;
    }
    let mut collation = Collation::Binary;
    if let [before @ .., collate, name] = rest
        && statement.is(collate, "collate")
    {
        collation = match unquoted(statement.text(name)).to_ascii_lowercase().as_str() {
            "binary" => Collation::Binary,
            "nocase" => Collation::NoCase,
            "rtrim" => Collation::Rtrim,
            _ => Collation::Other,
        };
        rest = before;
    }
    if rest.is_empty() {
        return None;
    }
    let text = rest.iter().map(|token| statement.text(token)).collect::<Vec<_>>();
    let (position, name) = match rest {
        [one] if one.kind == Kind::Number => (text[0].parse().ok(), None),
        [one] if matches!(one.kind, Kind::Word | Kind::Quoted) => (None, Some(unquoted(text[0]))),
        _ => (None, None),
    };
    Some(Term { text: spaced(rest, &text), position, name, collation })
}

/// The tokens' texts with a space wherever something stood between them.
fn spaced(tokens: &[Token], texts: &[&str]) -> String {
    let mut joined = String::new();
    for (index, text) in texts.iter().enumerate() {
        if index > 0 && tokens[index - 1].at.end != tokens[index].at.start {
            joined.push(' ');
        }
        joined.push_str(text);
    }
    joined
}

fn unquoted(name: &str) -> String {
    let inner = |quote: char| name.strip_prefix(quote).and_then(|name| name.strip_suffix(quote));
    if let Some(inner) = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        return inner.to_owned();
    }
    for (quote, doubled) in [('"', "\"\""), ('`', "``")] {
        if let Some(inner) = inner(quote) {
            return inner.replace(doubled, &quote.to_string());
        }
    }
    name.to_owned()
}
