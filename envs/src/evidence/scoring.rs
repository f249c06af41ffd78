//! Passages against the evidence of a row, by the characters that they cover in the papers.
//!
//! Invariants: a passage that is in no paper counts as predicted and as wrong, so padding costs; a passage that is in
//! several papers counts where it covers evidence, else in the first; what is counted are characters, once each. The
//! same passage said again is one passage, found or not; of different ones the first [`MOST_PASSAGES`] are looked for.

use std::collections::BTreeMap;

use espalier_sandbox::Value;
use serde_json::json;

use super::answer;
use super::intervals::{Counts, Interval, Score, merged};
use super::locate::{MOST_PASSAGES, distinct, locate};
use super::papers::{Evidence, Paper, handed, papers};
use crate::env::Metrics;
use crate::rlm::ChildOutcome;

/// Where passages stand in papers.
#[derive(Clone, Debug, Default)]
pub struct Marked {
    /// By paper, in characters.
    pub by_paper: BTreeMap<usize, Vec<Interval>>,
    /// Characters of passages that are in no paper.
    pub lost: u64,
    /// How many passages were found.
    pub found: usize,
}

/// The truth, as it lies in the papers.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    /// By paper, in characters.
    pub by_paper: BTreeMap<usize, Vec<Interval>>,
    /// Selections that are in no paper; they can be neither found nor missed.
    pub lost: usize,
}

/// Marks the evidence: in the paper that it names, else wherever it stands first.
pub fn truth(papers: &[Paper<'_>], evidence: &[Evidence]) -> Truth {
    let mut out = Truth::default();
    let mut open: Vec<&Evidence> = Vec::new();
    for (index, paper) in papers.iter().enumerate() {
        let own: Vec<&Evidence> = evidence.iter().filter(|it| !paper.id.is_empty() && it.paper == paper.id).collect();
        let texts: Vec<&str> = own.iter().map(|it| it.text.as_str()).collect();
        let places = characters(&paper.text, locate(&paper.text, &texts));
        for (it, place) in own.into_iter().zip(places) {
            match place {
                Some(place) => out.by_paper.entry(index).or_default().push(place),
                None => open.push(it),
            }
        }
    }
    open.extend(evidence.iter().filter(|it| !papers.iter().any(|paper| !paper.id.is_empty() && paper.id == it.paper)));
    for (index, paper) in papers.iter().enumerate() {
        let texts: Vec<&str> = open.iter().map(|it| it.text.as_str()).collect();
        let places = characters(&paper.text, locate(&paper.text, &texts));
        let mut left = Vec::new();
        for (it, place) in open.into_iter().zip(places) {
            match place {
                Some(place) => out.by_paper.entry(index).or_default().push(place),
                None => left.push(it),
            }
        }
        open = left;
    }
    out.lost = open.len();
    out
}

/// Marks predicted passages, each once however often it is said.
pub fn mark(papers: &[Paper<'_>], passages: &[String], truth: &Truth) -> Marked {
    let (texts, which) = distinct(passages.iter().map(String::as_str));
    // By passage: the paper, the place, and whether it covers evidence.
    let mut chosen: Vec<Option<(usize, Interval, bool)>> = vec![None; texts.len()];
    for (index, paper) in papers.iter().enumerate() {
        let open: Vec<usize> =
            (0..texts.len().min(MOST_PASSAGES)).filter(|at| chosen[*at].is_none_or(|(.., covers)| !covers)).collect();
        let wanted: Vec<&str> = open.iter().map(|at| texts[*at]).collect();
        let none = Vec::new();
        let wanted_truth = truth.by_paper.get(&index).unwrap_or(&none);
        for (at, place) in open.into_iter().zip(characters(&paper.text, locate(&paper.text, &wanted))) {
            let Some(place) = place else { continue };
            let covers = Counts::of(&[place], wanted_truth).shared > 0;
            if covers || chosen[at].is_none() {
                chosen[at] = Some((index, place, covers));
            }
        }
    }
    // Repetitions are among those found, as they are among those given.
    let found = which.iter().filter(|index| chosen[**index].is_some()).count();
    let mut out = Marked { found, ..Marked::default() };
    for (text, place) in texts.iter().zip(chosen) {
        match place {
            Some((paper, place, _)) => out.by_paper.entry(paper).or_default().push(place),
            None => out.lost += text.chars().count() as u64,
        }
    }
    out
}

/// Byte ranges as intervals of characters, in one pass over the text.
fn characters(text: &str, places: Vec<Option<std::ops::Range<usize>>>) -> Vec<Option<Interval>> {
    let mut bounds: Vec<usize> = places.iter().flatten().flat_map(|place| [place.start, place.end]).collect();
    bounds.sort_unstable();
    bounds.dedup();
    let (mut count, mut before) = (0_u64, 0);
    let mut at = BTreeMap::new();
    for bound in bounds {
        count += text.get(before..bound).map_or(0, |part| part.chars().count() as u64);
        before = bound;
        at.insert(bound, count);
    }
    let interval =
        |place: std::ops::Range<usize>| Some(Interval { start: *at.get(&place.start)?, end: *at.get(&place.end)? });
    places.into_iter().map(|place| place.and_then(interval)).collect()
}

/// Scores over all papers together, and of each by itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MultiScore {
    /// All characters of all papers as one text.
    pub micro: Score,
    /// The mean F1 over the papers that hold evidence or were named.
    pub macro_f1: f64,
    /// By paper.
    pub by_paper: BTreeMap<usize, Score>,
}

/// Scores predicted passages.
pub fn multi(predicted: &Marked, truth: &Truth) -> MultiScore {
    let mut total = Counts { predicted: predicted.lost, ..Counts::default() };
    let mut by_paper = BTreeMap::new();
    let none = Vec::new();
    for index in predicted.by_paper.keys().chain(truth.by_paper.keys()) {
        if by_paper.contains_key(index) {
            continue;
        }
        let counts =
            Counts::of(predicted.by_paper.get(index).unwrap_or(&none), truth.by_paper.get(index).unwrap_or(&none));
        total = total.plus(counts);
        by_paper.insert(*index, counts.score());
    }
    let macro_f1 = if by_paper.is_empty() {
        total.score().f1
    } else {
        by_paper.values().map(|score| score.f1).sum::<f64>() / by_paper.len() as f64
    };
    MultiScore { micro: total.score(), macro_f1, by_paper }
}

/// What there is to say of the children: how many answered, whether they were given the right papers, and what all
/// their answers together cover.
pub fn children(papers: &[Paper<'_>], truth: &Truth, outcomes: &[ChildOutcome]) -> Metrics {
    let mut metrics = Metrics::new();
    metrics.insert("child/count".to_owned(), json!(outcomes.len()));
    if outcomes.is_empty() {
        return metrics;
    }
    let answered = outcomes.iter().filter(|child| child.answer.is_some()).count();
    metrics.insert("child/submission_rate".to_owned(), json!(answered as f64 / outcomes.len() as f64));
    let mut chosen: Vec<usize> = outcomes
        .iter()
        .filter_map(|child| child.context.as_ref())
        .flat_map(|context| handed(papers, context.value()))
        .collect();
    chosen.sort_unstable();
    chosen.dedup();
    let single = |index: usize| Interval { start: index as u64, end: index as u64 + 1 };
    let (chosen, right): (Vec<_>, Vec<_>) =
        (chosen.into_iter().map(single).collect(), truth.by_paper.keys().copied().map(single).collect());
    put(&mut metrics, "child/paper_selection", Counts::of(&chosen, &right).score());
    let passages: Vec<String> =
        outcomes.iter().filter_map(|child| child.answer.as_ref()).flat_map(answer::passages).collect();
    put(&mut metrics, "child/evidence", multi(&mark(papers, &passages, truth), truth).micro);
    metrics
}

/// A score as three metrics.
pub fn put(metrics: &mut Metrics, name: &str, score: Score) {
    for (part, value) in [("precision", score.precision), ("recall", score.recall), ("f1", score.f1)] {
        metrics.insert(format!("{name}_{part}"), json!(value));
    }
}

/// Everything that is scored without a judge. Bounded work, but work: not for a thread that others wait for.
pub fn report(
    context: &Value,
    evidence: &[Evidence],
    passages: &[String],
    outcomes: &[ChildOutcome],
) -> (MultiScore, usize, Metrics) {
    let papers = papers(context);
    let truth = truth(&papers, evidence);
    let predicted = mark(&papers, passages, &truth);
    let scores = multi(&predicted, &truth);
    let mut metrics = children(&papers, &truth, outcomes);
    put(&mut metrics, "evidence", scores.micro);
    for (name, value) in [
        ("evidence_macro_f1", json!(scores.macro_f1)),
        ("passages", json!(passages.len())),
        ("passages_located", json!(predicted.found)),
        ("evidence_unlocated", json!(truth.lost)),
    ] {
        metrics.insert(name.to_owned(), value);
    }
    let located = truth.by_paper.values().map(|places| merged(places).len()).sum();
    (scores, located, metrics)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passage_that_is_said_again_is_one() {
        let papers = [Paper { id: String::new(), text: "the fox and the dog".into() }];
        let mut passages = vec!["the fox".to_owned(); MOST_PASSAGES + 100];
        passages.extend([" the dog ", "zebra", "zebra "].map(str::to_owned));
        let marked = mark(&papers, &passages, &Truth::default());
        assert_eq!((marked.found, marked.lost), (MOST_PASSAGES + 101, 5));
        assert_eq!(marked.by_paper[&0], [Interval { start: 0, end: 7 }, Interval { start: 12, end: 19 }]);
    }
}
