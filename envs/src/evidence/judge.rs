//! The judge's reward: how precise and how complete the passages are, each from 1 to 10.

use std::fmt::Write as _;

use super::papers::Evidence;
use crate::llm_judge::{Field, FieldKind, Form, JudgeError, Judged, Patience, Question, ask};
use crate::rlm::Grading;

/// Characters of a list that the judge sees.
const SHOWN: usize = 60_000;

const FORM: Form = Form {
    name: "evidence_verdict",
    fields: &[
        Field {
            name: "reasoning",
            kind: FieldKind::Text,
            doc: "which passages of one list are in the other, and which are not, in a few sentences",
        },
        Field {
            name: "precision_score",
            kind: FieldKind::Integer { least: 1, most: 10 },
            doc: "10 if every passage found is in the reference or says the same, 1 if none is",
        },
        Field {
            name: "recall_score",
            kind: FieldKind::Integer { least: 1, most: 10 },
            doc: "10 if every passage of the reference was found, 1 if none was",
        },
    ],
};

const INSTRUCTIONS: &str = "\
Somebody was asked for the passages of scientific papers that answer a question. Compare the passages that were found with \
the reference, which holds the passages that a reader marked. Passages match when they cover the same statement of the same \
paper; a few words more or less at the edges do not count. Judge precision and recall as the fields below say, each by \
itself: padding costs precision and not recall, gaps cost recall and not precision.";

/// The two scores, from 0.1 to 1.
pub(super) struct Scores {
    pub(super) precision: f64,
    pub(super) recall: f64,
    pub(super) attempts: u32,
}

impl Scores {
    pub(super) fn reward(&self) -> f64 {
        f64::midpoint(self.precision, self.recall)
    }
}

/// Asks the judge.
pub(super) async fn scores(
    by: Grading<'_>,
    evidence: &[Evidence],
    passages: &[String],
    patience: Patience,
) -> Result<Scores, JudgeError> {
    let reference = numbered(evidence.iter().map(|it| (it.paper.as_str(), it.text.as_str())));
    let found = numbered(passages.iter().map(|text| ("", text.as_str())));
    let question = Question {
        instructions: INSTRUCTIONS.to_owned(),
        parts: vec![("question", by.question), ("reference", &reference), ("found", &found)],
        form: FORM,
    };
    let episode = by.episode;
    let Judged { verdict, attempts } =
        ask(episode.services.as_ref(), &question, patience, episode.seed, episode.deadline, &episode.cancel).await?;
    // The form has both.
    let score = |name| verdict.integer(name).map_or(0.0, |score| score as f64 / 10.0);
    Ok(Scores { precision: score("precision_score"), recall: score("recall_score"), attempts })
}

fn numbered<'a>(passages: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    let mut text = String::new();
    for (index, (paper, passage)) in passages.enumerate() {
        let from = if paper.is_empty() { String::new() } else { format!(" from paper {paper}") };
        let _ = writeln!(text, "({}{from}) {}", index + 1, passage.trim());
    }
    if text.is_empty() {
        return "(no passage)".to_owned();
    }
    match text.char_indices().nth(SHOWN) {
        None => text,
        Some((at, _)) => {
            text.truncate(at);
            text.push_str("\n... (the rest is left out)");
            text
        }
    }
}
