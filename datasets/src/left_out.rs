//! Rows that were left out on purpose: how many, which, and why. None is left out in silence.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::source::Rows;
use crate::{DataError, Row};

/// Ids that are kept of the rows left out for one reason.
pub const IDS: usize = 20;

/// Rows left out for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reason {
    /// How many.
    pub rows: u64,
    /// The first ids, at most [`IDS`].
    pub ids: Vec<String>,
    /// How many of each set: the row's `data_source`, or what the source is called.
    pub sets: BTreeMap<String, u64>,
}

/// What was left out so far, by reason. Clones share one account.
#[derive(Clone, Debug, Default)]
pub struct LeftOut(Arc<Mutex<BTreeMap<String, Reason>>>);

impl LeftOut {
    pub(crate) fn note(&self, reason: &str, id: &str, set: &str) {
        let mut reasons = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = reasons.entry(reason.to_owned()).or_default();
        entry.rows += 1;
        if entry.ids.len() < IDS {
            entry.ids.push(id.to_owned());
        }
        *entry.sets.entry(set.to_owned()).or_default() += 1;
    }

    /// Why rows were left out, and which.
    pub fn reasons(&self) -> BTreeMap<String, Reason> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A sentence for each reason.
    pub fn sentences(&self) -> Vec<String> {
        let sentence = |(reason, of): (String, Reason)| {
            let sets: Vec<String> = of.sets.iter().map(|(set, rows)| format!("{rows} of `{set}`")).collect();
            let more = if of.rows > of.ids.len() as u64 { ", ..." } else { "" };
            let rows = if of.rows == 1 { "1 row was".to_owned() } else { format!("{} rows were", of.rows) };
            format!("{rows} left out: {reason} ({}; ids {}{more})", sets.join(", "), of.ids.join(", "))
        };
        self.reasons().into_iter().map(sentence).collect()
    }
}

/// The set that a row says it is from.
pub(crate) fn set_of<'a>(row: &'a Row, otherwise: &'a str) -> &'a str {
    row.columns.get("data_source").and_then(serde_json::Value::as_str).unwrap_or(otherwise)
}

/// Rows that say on their end, in the log, what was left out: also where nobody reads on.
pub(crate) struct Announced {
    rows: Rows,
    left_out: LeftOut,
}

impl Announced {
    pub(crate) fn new(rows: Rows, left_out: LeftOut) -> Self {
        Self { rows, left_out }
    }
}

impl Iterator for Announced {
    type Item = Result<Row, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.rows.next()
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        for sentence in self.left_out.sentences() {
            tracing::warn!("{sentence}");
        }
    }
}
