//! Questions over lines: how many carry a label, which share a ticket, which users' lines go together.

use std::collections::BTreeSet;

use serde_json::json;

use super::{Made, filler};
use crate::draw::Draw;

/// Fills a text of exactly `size` bytes with lines; `head` begins line `n` (from 1). The last line takes what is left.
fn lines(size: usize, draw: &mut Draw, mut head: impl FnMut(usize, &mut Draw) -> String) -> (String, usize) {
    // A line's head and one sentence are shorter than this.
    const LINE: usize = 320;
    let mut text = String::with_capacity(size);
    let mut number = 1;
    loop {
        let start = head(number, draw);
        text.push_str(&start);
        if size - text.len() < 2 * LINE {
            let left = size - text.len();
            let end = filler::prose(left, draw);
            text.push_str(&end);
            return (text, number);
        }
        filler::sentence(&mut text, draw);
        text.push('\n');
        number += 1;
    }
}

const LABELS: [&str; 8] = ["birch", "cedar", "hazel", "juniper", "larch", "poplar", "rowan", "willow"];

/// How many lines carry a label.
pub(super) fn count(size: usize, draw: &mut Draw) -> Made {
    // Labels differ in how frequent they are, so that a guess by chance is a bad one.
    let weights: Vec<usize> = LABELS.iter().map(|_| 1 + draw.below(6)).collect();
    let mut counts = [0_usize; LABELS.len()];
    let (text, last) = lines(size, draw, |number, draw| {
        let label = draw.weighted(&weights);
        counts[label] += 1;
        format!("{number} [{}] ", LABELS[label])
    });
    let present: Vec<usize> = (0..LABELS.len()).filter(|label| counts[*label] > 0).collect();
    let label = if last > 0 { *draw.pick(&present) } else { 0 };
    Made {
        text,
        question: format!(
            "Every line of the text starts with its number and a label in square brackets. How many lines have the \
             label [{}]?",
            LABELS[label]
        ),
        truth: json!(counts[label]),
        unordered: false,
    }
}

/// Which lines share a ticket.
pub(super) fn pairs(size: usize, draw: &mut Draw) -> Made {
    // How many lines there will be is known only when they are there: write them with blanks first.
    const BLANK: &str = "000000";
    let (mut text, last) = lines(size, draw, |number, _| format!("{number} | ticket {BLANK} | "));
    let wanted = (last / 3).clamp(1, 5).min(last / 2);
    let count = if wanted == 0 { 0 } else { 1 + draw.below(wanted) };
    let mut members = draw.distinct(2 * count, last);
    draw.shuffle(&mut members);
    let mut tickets: Vec<usize> = draw.distinct(last, 900_000).into_iter().map(|ticket| 100_000 + ticket).collect();
    draw.shuffle(&mut tickets);
    let mut truth: Vec<(usize, usize)> = Vec::with_capacity(count);
    for pair in members.chunks_exact(2) {
        tickets[pair[1]] = tickets[pair[0]];
        truth.push((1 + pair[0].min(pair[1]), 1 + pair[0].max(pair[1])));
    }
    truth.sort_unstable();
    let blanks: Vec<usize> = text.match_indices(BLANK).map(|(at, _)| at).take(last).collect();
    for (at, ticket) in blanks.into_iter().zip(&tickets) {
        text.replace_range(at..at + BLANK.len(), &ticket.to_string());
    }
    Made {
        text,
        question: "Every line of the text starts with its number and a ticket. Some tickets stand on two lines. Which \
                   lines share a ticket? Answer with a list of pairs of line numbers, the smaller number first in each \
                   pair, such as [[3, 9], [4, 6]]."
            .to_owned(),
        truth: json!(truth.into_iter().map(|(left, right)| [left, right]).collect::<Vec<_>>()),
        unordered: true,
    }
}

/// The most pairs that an answer lists; where there are more, they are counted.
const LISTED: usize = 40;

/// Which pairs of users, or how many, have lines whose labels go together.
pub(super) fn user_pairs(size: usize, draw: &mut Draw) -> Made {
    // Few users in a short text, so that each has several lines; every user has labels of their own.
    let users = (size / 1500).clamp(4, 24);
    let ids: Vec<usize> = draw.distinct(users, 900).into_iter().map(|id| 100 + id).collect();
    let labels: Vec<Vec<usize>> = (0..users)
        .map(|_| {
            let count = 1 + draw.below(3);
            draw.distinct(count, LABELS.len())
        })
        .collect();
    let mut seen: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); users];
    let (text, _) = lines(size, draw, |number, draw| {
        let user = draw.below(users);
        let label = *draw.pick(&labels[user]);
        seen[user].insert(label);
        format!("{number} | user {} | [{}] ", ids[user], LABELS[label])
    });
    let mut pairs = Vec::new();
    let mut property = String::new();
    // Another property where no pair has this one.
    for _ in 0..20 {
        let chosen = draw.distinct(2, LABELS.len());
        let (one, other) = (chosen[0], chosen[1]);
        let kind = draw.below(3);
        property = match kind {
            0 => format!("both have a line labelled [{}]", LABELS[one]),
            1 => format!(
                "have a line labelled [{}] by one of the two and a line labelled [{}] by the other",
                LABELS[one], LABELS[other]
            ),
            _ => "have at least one label in common".to_owned(),
        };
        let fits = |left: &BTreeSet<usize>, right: &BTreeSet<usize>| match kind {
            0 => left.contains(&one) && right.contains(&one),
            1 => (left.contains(&one) && right.contains(&other)) || (left.contains(&other) && right.contains(&one)),
            _ => !left.is_disjoint(right),
        };
        pairs.clear();
        for left in 0..users {
            for right in left + 1..users {
                if fits(&seen[left], &seen[right]) {
                    pairs.push([ids[left], ids[right]]);
                }
            }
        }
        if !pairs.is_empty() {
            break;
        }
    }
    let start = "Every line of the text starts with its number, a user and a label in square brackets.";
    if pairs.len() > LISTED {
        let question = format!("{start} How many pairs of two different users {property}?");
        return Made { text, question, truth: json!(pairs.len()), unordered: false };
    }
    let question = format!(
        "{start} Which pairs of two different users {property}? Answer with a list of pairs of user numbers, the \
         smaller number first in each pair, such as [[103, 209], [114, 206]]."
    );
    Made { text, question, truth: json!(pairs), unordered: true }
}
