//! `evidence_rlm` and `multipaper_evidence_rlm`: passages of papers that answer a question, word for word.
//!
//! | module | what lives there |
//! |---|---|
//! | this one | [`EvidenceRlm`], both kinds |
//! | [`params`] | their parameters, beside those of `rlm` |
//! | [`papers`] | papers of a context, evidence of a row |
//! | [`answer`] | the passages of an answer |
//! | [`locate`] | where passages stand in a text |
//! | [`intervals`], [`scoring`] | scores by the characters that passages cover |
//! | `judge` | the judge's reward |
//! | `prompts`, `tools`, `task` | what the model is told, what its REPL has, and how both are used |
//!
//! A row holds `reward_spec.evidence`, a list of `{paperId, selections: [{text}]}`, and papers as its context: one text,
//! or a dict from id to text. In `multipaper_evidence_rlm` the root coordinates and its children read; a child is not
//! graded, and what the children did is reported with the root's metrics.
//!
//! Invariants: everything is graded over the host's own copy of the papers; a judge that fails is an error and never 0
//! (but under compat); nothing is fetched from anywhere.

pub mod answer;
pub mod intervals;
mod judge;
pub mod locate;
pub mod papers;
pub mod params;
mod prompts;
pub mod scoring;
mod task;
mod tools;

use std::sync::Arc;

pub use params::{EvidenceParams, EvidenceReward};

use crate::env::{Env, EnvError, Metrics};
use crate::metrics;
use crate::registry::{ColumnSpec, EnvKind, EnvSpec};
use crate::rlm::Rlm;
use crate::row::EnvRow;

/// The kinds that play evidence tasks.
#[derive(Clone, Copy, Debug)]
pub struct EvidenceRlm {
    multi: bool,
}

impl EvidenceRlm {
    /// `evidence_rlm`: whoever is asked reads.
    pub fn single() -> Self {
        Self { multi: false }
    }

    /// `multipaper_evidence_rlm`: the root hands papers to children.
    pub fn multi() -> Self {
        Self { multi: true }
    }

    fn id(self) -> &'static str {
        if self.multi { "multipaper_evidence_rlm" } else { "evidence_rlm" }
    }

    fn summary(self) -> &'static str {
        if self.multi {
            "Passages of many papers that answer a question: a coordinator and its readers, in REPLs."
        } else {
            "Passages of a paper that answer a question, found in a REPL."
        }
    }

    fn rlm(self, params: &Arc<EvidenceParams>) -> Rlm {
        let task = task::EvidenceTask { id: self.id(), params: Arc::clone(params), multi: self.multi };
        Rlm::new(self.id(), self.summary(), task)
    }
}

const COLUMNS: [ColumnSpec; 5] = [
    ColumnSpec { name: "prompt", required: true, doc: "what to look for" },
    ColumnSpec {
        name: "extra_info.context_text",
        required: true,
        doc: "the papers: one text, or an object (or JSON text of one) from id to text",
    },
    ColumnSpec { name: "reward_spec.evidence", required: true, doc: "list of {paperId, selections: [{text}]}" },
    ColumnSpec { name: "max_turns", required: false, doc: "most turns" },
    ColumnSpec { name: "repl_timeout", required: false, doc: "execution time of a block, seconds" },
];

impl EnvKind for EvidenceRlm {
    type Params = EvidenceParams;

    fn spec(&self) -> EnvSpec {
        EnvSpec {
            id: self.id().to_owned(),
            summary: self.summary().to_owned(),
            params: params::PARAMS.clone(),
            columns: COLUMNS.to_vec(),
        }
    }

    fn check(&self, params: &EvidenceParams) -> Result<(), EnvError> {
        params.check().map_err(|(key, reason)| EnvError::Invalid {
            env: self.id().to_owned(),
            key: key.to_owned(),
            reason,
        })?;
        self.rlm(&Arc::new(params.clone())).check(&params.rlm)
    }

    fn make(&self, params: &Arc<EvidenceParams>, row: &EnvRow) -> Result<Box<dyn Env>, EnvError> {
        if row.graded && row.context.is_none() {
            return Err(EnvError::Invalid {
                env: self.id().to_owned(),
                key: "extra_info.context_text".to_owned(),
                reason: format!("is missing in row `{}`: there are no papers to look in", row.id),
            });
        }
        self.rlm(params).make(&params.rlm, row)
    }

    /// Of several papers, under `parent/` what the roots report and under `child/` what there is of children.
    fn aggregate(&self, episodes: &[Metrics]) -> Metrics {
        if !self.multi {
            return metrics::mean(episodes);
        }
        let of = |episode: &Metrics, child: bool| {
            let is_child = episode.get("depth").and_then(serde_json::Value::as_u64).unwrap_or(0) > 0;
            is_child == child
        };
        let mut out = Metrics::new();
        for (child, prefix) in [(true, "child/"), (false, "parent/")] {
            let some: Vec<Metrics> = episodes.iter().filter(|episode| of(episode, child)).cloned().collect();
            for (key, value) in metrics::mean(&some) {
                let key = if key.starts_with("child/") { key } else { format!("{prefix}{key}") };
                out.insert(key, value);
            }
        }
        out
    }

    fn pools_children(&self) -> bool {
        self.multi
    }
}
