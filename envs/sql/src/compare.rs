//! Whether two results are the same.
//!
//! [`equal`] is the rule of this project. Two results are equal when
//!
//! - they have as many columns (their names do not count, their order does) and as many rows;
//! - there is a one-to-one pairing of their rows in which every value equals its partner; and
//! - where the gold query orders its result: the first group of rows that tie under the ordering pairs with the first
//!   so many rows of the answer, the second group with the next, and so on. Within a group any order is right.
//!
//! Values are equal when both are NULL; when they are the same text or the same bytes; when they are the same integer;
//! or when they are numbers of which one is real, and differ by no more than [`RELATIVE`] of the larger or
//! [`ABSOLUTE`]. A text never equals a number.
//!
//! [`same_set`] is skyrl-gym's rule: sets of rows, numbers compared exactly by value.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashSet, VecDeque};

use crate::value::{Row, Value};

/// Reals that differ by at most this part of the larger one are equal.
pub const RELATIVE: f64 = 1e-9;

/// Reals that differ by at most this are equal: what is left of a sum that should be 0.
pub const ABSOLUTE: f64 = 1e-12;

/// Comparisons of rows that one group of rows may cost beyond sorting; what needs more counts as different.
const WORK: usize = 4_000_000;

/// How two results differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Difference {
    /// They have different numbers of columns.
    Columns {
        /// Of the gold result.
        gold: usize,
        /// Of the answer.
        answer: usize,
    },
    /// They have different numbers of rows.
    Rows {
        /// Of the gold result.
        gold: usize,
        /// Of the answer.
        answer: usize,
    },
    /// Some row has no partner.
    Values,
    /// The same rows in an order that the gold query does not allow.
    Order,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Columns { gold, answer } => write!(f, "{answer} columns instead of {gold}"),
            Self::Rows { gold, answer } => write!(f, "{answer} rows instead of {gold}"),
            Self::Values => write!(f, "other values"),
            Self::Order => write!(f, "another order"),
        }
    }
}

/// A result as far as the comparison sees it.
#[derive(Clone, Copy, Debug)]
pub struct Side<'a> {
    /// How many columns it has.
    pub columns: usize,
    /// Its rows.
    pub rows: &'a [Row],
}

/// Compares an answer with the gold result by this project's rule. `ties` holds the sizes of the gold result's groups
/// of tied rows, in order (see [`crate::order`]); none where the order is free.
pub fn equal(gold: Side<'_>, answer: Side<'_>, ties: Option<&[usize]>) -> Result<(), Difference> {
    if gold.columns != answer.columns {
        return Err(Difference::Columns { gold: gold.columns, answer: answer.columns });
    }
    if gold.rows.len() != answer.rows.len() {
        return Err(Difference::Rows { gold: gold.rows.len(), answer: answer.rows.len() });
    }
    // The usual case costs nothing more.
    if gold.rows.iter().zip(answer.rows).all(|(gold, answer)| rows_equal(gold, answer)) {
        return Ok(());
    }
    let Some(ties) = ties else {
        return if multisets_equal(gold.rows, answer.rows) { Ok(()) } else { Err(Difference::Values) };
    };
    let mut from = 0;
    for size in ties {
        let to = (from + size).min(gold.rows.len());
        if !multisets_equal(&gold.rows[from..to], &answer.rows[from..to]) {
            let same = multisets_equal(gold.rows, answer.rows);
            return Err(if same { Difference::Order } else { Difference::Values });
        }
        from = to;
    }
    // Sizes that do not add up to the rows leave a rest whose order is free.
    if multisets_equal(&gold.rows[from..], &answer.rows[from..]) { Ok(()) } else { Err(Difference::Values) }
}

/// Whether two values are equal by this project's rule.
pub fn values_equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Integer(left), Value::Integer(right)) => left == right,
        (Value::Integer(_) | Value::Real(_), Value::Integer(_) | Value::Real(_)) => {
            let (left, right) = (number(left), number(right));
            let most = (RELATIVE * left.abs().max(right.abs())).max(ABSOLUTE);
            left == right || (left.is_finite() && right.is_finite() && (left - right).abs() <= most)
        }
        _ => left == right,
    }
}

fn number(value: &Value) -> f64 {
    match value {
        Value::Integer(integer) => *integer as f64,
        Value::Real(real) => *real,
        _ => f64::NAN,
    }
}

fn rows_equal(left: &[Value], right: &[Value]) -> bool {
    left.len() == right.len() && left.iter().zip(right).all(|(left, right)| values_equal(left, right))
}

/// Everything of a row that must be the same bit by bit: its values with the numbers left open.
fn fixed(row: &Row) -> Vec<u8> {
    let mut key = Vec::new();
    for value in row {
        match value {
            Value::Null => key.push(0),
            Value::Integer(_) | Value::Real(_) => key.push(1),
            Value::Text(text) => {
                key.push(2);
                key.extend((text.len() as u64).to_be_bytes());
                key.extend(text.as_bytes());
            }
            Value::Blob(bytes) => {
                key.push(3);
                key.extend((bytes.len() as u64).to_be_bytes());
                key.extend(bytes);
            }
        }
    }
    key
}

fn by_numbers(left: &Row, right: &Row) -> Ordering {
    for (left, right) in left.iter().zip(right) {
        let order = match (left, right) {
            (Value::Integer(left), Value::Integer(right)) => left.cmp(right),
            (Value::Integer(_) | Value::Real(_), Value::Integer(_) | Value::Real(_)) => {
                number(left).total_cmp(&number(right))
            }
            _ => Ordering::Equal,
        };
        if order != Ordering::Equal {
            return order;
        }
    }
    Ordering::Equal
}

/// Whether the rows can be paired one to one.
fn multisets_equal(gold: &[Row], answer: &[Row]) -> bool {
    if gold.len() != answer.len() {
        return false;
    }
    let mut groups: BTreeMap<Vec<u8>, (Vec<&Row>, Vec<&Row>)> = BTreeMap::new();
    for row in gold {
        groups.entry(fixed(row)).or_default().0.push(row);
    }
    for row in answer {
        match groups.get_mut(&fixed(row)) {
            Some(group) => group.1.push(row),
            None => return false,
        }
    }
    groups.into_values().all(|(mut gold, mut answer)| {
        if gold.len() != answer.len() {
            return false;
        }
        gold.sort_by(|left, right| by_numbers(left, right));
        answer.sort_by(|left, right| by_numbers(left, right));
        gold.iter().zip(&answer).all(|(gold, answer)| rows_equal(gold, answer)) || paired(&gold, &answer)
    })
}

/// Whether there is a perfect pairing, where the sorted order is none: rows whose first numbers differ by rounding only
/// may be sorted differently on the two sides. Augmenting paths over the rows that are near each other.
fn paired(gold: &[&Row], answer: &[&Row]) -> bool {
    let mut work = WORK;
    let mut near: Vec<Vec<usize>> = Vec::with_capacity(gold.len());
    let first = |row: &Row| row.iter().map(number).find(|number| !number.is_nan());
    let mut low = 0;
    for row in gold {
        let mut candidates = Vec::new();
        if let Some(wanted) = first(row) {
            let slack = (2.0 * RELATIVE * wanted.abs()).max(ABSOLUTE);
            while low < answer.len() && first(answer[low]).is_some_and(|number| number < wanted - slack) {
                low += 1;
            }
            for (index, other) in answer.iter().enumerate().skip(low) {
                if work == 0 || first(other).is_none_or(|number| number > wanted + slack) {
                    break;
                }
                work -= 1;
                if rows_equal(row, other) {
                    candidates.push(index);
                }
            }
        }
        if candidates.is_empty() || work == 0 {
            return false;
        }
        near.push(candidates);
    }
    // Who is paired with whom, both ways.
    let mut partner: Vec<Option<usize>> = vec![None; answer.len()];
    let mut mate: Vec<Option<usize>> = vec![None; gold.len()];
    for start in 0..gold.len() {
        let mut came_from: BTreeMap<usize, usize> = BTreeMap::new();
        let mut queue = VecDeque::from([start]);
        let mut free = None;
        'search: while let Some(row) = queue.pop_front() {
            for &candidate in &near[row] {
                if work == 0 {
                    return false;
                }
                work -= 1;
                if came_from.contains_key(&candidate) {
                    continue;
                }
                came_from.insert(candidate, row);
                let Some(other) = partner[candidate] else {
                    free = Some(candidate);
                    break 'search;
                };
                queue.push_back(other);
            }
        }
        // Every pair on the path moves on by one.
        let mut next = free;
        while let Some(at) = next {
            let Some(&row) = came_from.get(&at) else { break };
            next = mate[row].replace(at);
            partner[at] = Some(row);
        }
        if free.is_none() {
            return false;
        }
    }
    true
}

/// A value as Python's sets see it: 1 and 1.0 are one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Exact<'a> {
    Null,
    Integer(i64),
    Real(u64),
    Text(&'a str),
    Blob(&'a [u8]),
}

fn exact(value: &Value) -> Exact<'_> {
    match value {
        Value::Null => Exact::Null,
        Value::Integer(integer) => Exact::Integer(*integer),
        // 2^63 itself is no i64.
        Value::Real(real) if real.fract() == 0.0 && (-(2_f64.powi(63))..2_f64.powi(63)).contains(real) => {
            Exact::Integer(*real as i64)
        }
        Value::Real(real) => Exact::Real(real.to_bits()),
        Value::Text(text) => Exact::Text(text),
        Value::Blob(bytes) => Exact::Blob(bytes),
    }
}

fn exact_row(row: &Row) -> Vec<Exact<'_>> {
    row.iter().map(exact).collect()
}

/// Whether the two are the same set of rows.
pub fn same_set(gold: &[Row], answer: &[Row]) -> bool {
    let gold: HashSet<_> = gold.iter().map(exact_row).collect();
    let answer: HashSet<_> = answer.iter().map(exact_row).collect();
    gold == answer
}

/// The rows as a set, each where it came first.
pub fn distinct(rows: &[Row]) -> Vec<&Row> {
    let mut seen = HashSet::new();
    rows.iter().filter(|row| seen.insert(exact_row(row))).collect()
}
