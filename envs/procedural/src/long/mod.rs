//! Questions over long texts: the text has an exact size, and its answer is exact.
//!
//! | module | what lives there |
//! |---|---|
//! | [`filler`] | seeded prose of any length |
//! | `needles` | one code in prose, or several |
//! | `lines` | counting labelled lines, lines that share a ticket, pairs of users by their lines |
//! | [`topics`] | lines about something that no label names |
//! | [`code`] | questions over a generated repository of Python modules |
//! | [`verify`] | the answer found again by an independent scan of the text |
//!
//! Invariants: a text is ASCII and has exactly the size that was asked for; memory is a small multiple of it.

pub mod code;
pub mod filler;
mod lines;
mod needles;
pub mod topics;
pub mod verify;

use serde_json::Value;

use crate::draw::Draw;

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
    /// Several sentences in prose hold parts of the answer.
    MultiNeedle,
    /// Lines carry users and labels; pairs of users whose labels go together are listed or counted.
    UserPairs,
    /// A repository of Python modules: callers, importers, constants through re-exports, results across files.
    Code,
    /// Lines are about something that only the meaning of their words tells; one topic's lines are counted.
    Topics,
}

impl LongTask {
    /// Every task.
    pub const ALL: [Self; 7] =
        [Self::Needle, Self::Count, Self::Pairs, Self::MultiNeedle, Self::UserPairs, Self::Code, Self::Topics];

    /// The name of its data set.
    pub fn name(self) -> &'static str {
        match self {
            Self::Needle => "long_needle",
            Self::Count => "long_count",
            Self::Pairs => "long_pairs",
            Self::MultiNeedle => "long_multi_needle",
            Self::UserPairs => "long_user_pairs",
            Self::Code => "long_code",
            Self::Topics => "long_topics",
        }
    }

    /// A source of draws for a row of the task's data set.
    pub fn draw(self, seed: u64, index: u64) -> Draw {
        let stream = match self {
            // The first three tasks share the streams below 2^63, as they always have.
            Self::Needle | Self::Count | Self::Pairs => index.wrapping_mul(4).wrapping_add(self as u64),
            _ => (1 << 63) | index.wrapping_mul(8).wrapping_add(self as u64),
        };
        Draw::new(seed, stream)
    }
}

/// What a text is made to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Its characters, from [`MIN_SIZE`] to [`MAX_SIZE`].
    pub size: usize,
    /// Codes that [`LongTask::MultiNeedle`] asks for, as many as the text has room for.
    pub needles: usize,
    /// Sentences like the needles that answer other questions, as many as the text has room for.
    pub distractors: usize,
}

/// A generated question.
#[derive(Clone, Debug, PartialEq)]
pub struct Made {
    /// The text.
    pub text: String,
    /// What is asked of it.
    pub question: String,
    /// The answer.
    pub truth: Value,
    /// The order of the answer's items does not count.
    pub unordered: bool,
}

/// Makes a text and a question. A size out of bounds is brought within them.
pub fn make(task: LongTask, shape: Shape, draw: &mut Draw) -> Made {
    let size = shape.size.clamp(MIN_SIZE, MAX_SIZE);
    // Subjects are 144.
    let (needles, distractors) = (shape.needles.min(32), shape.distractors.min(100));
    match task {
        LongTask::Needle => needles::needle(size, distractors, draw),
        LongTask::Count => lines::count(size, draw),
        LongTask::Pairs => lines::pairs(size, draw),
        LongTask::MultiNeedle => needles::multi_needle(size, needles, distractors, draw),
        LongTask::UserPairs => lines::user_pairs(size, draw),
        LongTask::Code => code::make(size, draw),
        LongTask::Topics => topics::topics(size, draw),
    }
}
