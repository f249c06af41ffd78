//! The tasks: what is hidden in a text, what is asked, and the answer.

use espalier_datasets::{Prompt, Row};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::draw::Draw;
use super::filler;

/// Smallest text, characters.
pub const MIN_SIZE: usize = 1 << 10;
/// Largest text, characters.
pub const MAX_SIZE: usize = 1 << 24;

/// Which task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LongTask {
    /// One sentence in prose holds the answer; others like it do not.
    Needle,
    /// Lines carry labels; one label's lines are counted.
    Count,
    /// Lines carry tickets; the pairs of lines that share one are listed.
    Pairs,
}

impl LongTask {
    /// Every task.
    pub const ALL: [Self; 3] = [Self::Needle, Self::Count, Self::Pairs];

    /// The name of its data set.
    pub fn name(self) -> &'static str {
        match self {
            Self::Needle => "long_needle",
            Self::Count => "long_count",
            Self::Pairs => "long_pairs",
        }
    }
}

/// The parameters of a data set.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LongParams {
    /// How many rows.
    pub rows: u64,
    /// Characters of a text.
    pub size: usize,
    /// Sizes that rows take in turn, instead of `size`.
    pub sizes: Vec<usize>,
    /// The seed.
    pub seed: u64,
    /// Sentences like the needle that answer other questions.
    pub distractors: usize,
}

impl Default for LongParams {
    fn default() -> Self {
        Self { rows: 16, size: 1 << 13, sizes: Vec::new(), seed: 0, distractors: 3 }
    }
}

impl LongParams {
    /// Refuses sizes that no text can have: the parameter and why.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        for size in self.sizes.iter().chain([&self.size]) {
            if !(MIN_SIZE..=MAX_SIZE).contains(size) {
                return Err((
                    if self.sizes.is_empty() { "size" } else { "sizes" },
                    format!("must be from {MIN_SIZE} to {MAX_SIZE} characters, got {size}"),
                ));
            }
        }
        // A tenth of the smallest text at most is not prose.
        let most = 100;
        if self.distractors > most {
            return Err(("distractors", format!("must be at most {most}, got {}", self.distractors)));
        }
        Ok(())
    }

    /// The size of a row's text.
    fn size_of(&self, index: u64) -> usize {
        match self.sizes.len() as u64 {
            0 => self.size,
            count => self.sizes.get((index % count) as usize).copied().unwrap_or(self.size),
        }
    }
}

/// A generated question.
struct Made {
    text: String,
    question: String,
    truth: Value,
    unordered: bool,
}

/// Row `index` of a task's data set.
pub fn row(task: LongTask, params: &LongParams, index: u64) -> Row {
    let size = params.size_of(index);
    let mut draw = Draw::new(params.seed, index * 4 + task as u64);
    let made = match task {
        LongTask::Needle => needle(size, params.distractors, &mut draw),
        LongTask::Count => count(size, &mut draw),
        LongTask::Pairs => pairs(size, &mut draw),
    };
    let name = task.name();
    let mut columns = Map::new();
    columns.insert("data_source".to_owned(), json!(format!("espalier/{name}")));
    columns.insert(
        "reward_spec".to_owned(),
        json!({"method": "exact", "ground_truth": made.truth, "unordered": made.unordered}),
    );
    let mut extra = Map::new();
    extra.insert("task".to_owned(), json!(name));
    extra.insert("size".to_owned(), json!(size));
    extra.insert("seed".to_owned(), json!(params.seed));
    extra.insert("index".to_owned(), json!(index));
    extra.insert("question".to_owned(), json!(made.question));
    extra.insert("context_text".to_owned(), Value::String(made.text));
    columns.insert("extra_info".to_owned(), Value::Object(extra));
    Row {
        id: format!("{name}-{}-{size}-{index}", params.seed),
        prompt: Prompt::Text(made.question),
        env: None,
        columns,
    }
}

const COLOURS: [&str; 12] = [
    "crimson",
    "turquoise",
    "ivory",
    "violet",
    "scarlet",
    "emerald",
    "golden",
    "indigo",
    "orange",
    "purple",
    "maroon",
    "teal",
];

const DOORS: [&str; 12] = [
    "vault",
    "elevator",
    "cabinet",
    "submarine",
    "freezer",
    "archive",
    "turbine",
    "hangar",
    "laboratory",
    "bunker",
    "locker",
    "airlock",
];

/// The sentence that holds a code.
fn code_sentence(subject: &str, code: i64) -> String {
    format!("The code of the {subject} is {code}.")
}

fn needle(size: usize, distractors: usize, draw: &mut Draw) -> Made {
    // A small text takes as many sentences as leave most of it to the prose.
    let planted = 1 + distractors.min(size / 256);
    let subjects: Vec<String> = draw
        .distinct(planted, COLOURS.len() * DOORS.len())
        .into_iter()
        .map(|number| format!("{} {}", COLOURS[number % COLOURS.len()], DOORS[number / COLOURS.len()]))
        .collect();
    let mut order: Vec<usize> = (0..subjects.len()).collect();
    draw.shuffle(&mut order);
    let mut codes: Vec<i64> = draw.distinct(planted, 90_000).into_iter().map(|code| 10_000 + code as i64).collect();
    draw.shuffle(&mut codes);
    let mut sentences: Vec<String> =
        order.iter().zip(&codes).map(|(subject, code)| code_sentence(&subjects[*subject], *code)).collect();
    let (subject, truth) = (subjects[order[0]].clone(), codes[0]);
    draw.shuffle(&mut sentences);

    // Every planted sentence takes a space too.
    let taken: usize = sentences.iter().map(|sentence| sentence.len() + 1).sum();
    let prose = filler::prose(size - taken, draw);
    let gaps: Vec<usize> = prose.match_indices(". ").map(|(at, _)| at + 2).chain([0]).collect();
    let mut text = String::with_capacity(size);
    let mut places: Vec<usize> = draw.distinct(sentences.len(), gaps.len()).into_iter().map(|gap| gaps[gap]).collect();
    places.resize(sentences.len(), 0);
    places.sort_unstable();
    let mut from = 0;
    for (place, sentence) in places.into_iter().zip(&sentences) {
        text.push_str(&prose[from..place]);
        text.push_str(sentence);
        text.push(' ');
        from = place;
    }
    text.push_str(&prose[from..]);
    Made { text, question: format!("What is the code of the {subject}?"), truth: json!(truth), unordered: false }
}

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

fn count(size: usize, draw: &mut Draw) -> Made {
    // Labels differ in how frequent they are, so that a guess by chance is a bad one.
    let weights: Vec<usize> = LABELS.iter().map(|_| 1 + draw.below(6)).collect();
    let total: usize = weights.iter().sum();
    let mut counts = [0_usize; LABELS.len()];
    let (text, last) = lines(size, draw, |number, draw| {
        let mut left = draw.below(total);
        let mut label = 0;
        while left >= weights[label] {
            left -= weights[label];
            label += 1;
        }
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

fn pairs(size: usize, draw: &mut Draw) -> Made {
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
