//! One training row: a prompt, a response, and everything that is known about each response token.
//!
//! | item | what it is |
//! |---|---|
//! | [`Row`] | the finished row; its only constructor refuses unequal lengths |
//! | [`RowParts`] | what a row is made of, for readers and exporters |
//! | [`RowBuilder`] | grows a row turn by turn, as the agent loop plays |
//!
//! Invariants: mask, log-probabilities and rewards are as long as the response; the mask is set exactly on tokens that
//! the policy being trained sampled; a reward never sits before the first token; versions cover sampled tokens only.

use espalier_inference::TokenId;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Consecutive sampled tokens that came from one version of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionRun {
    /// First token, counted from the start of the response.
    pub start: u32,
    /// How many tokens.
    pub len: u32,
    /// The policy's version.
    pub version: u64,
}

/// What a row is made of. Only [`Row::new`] makes a row of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowParts {
    /// What the policy was first shown.
    pub prompt_ids: Vec<TokenId>,
    /// What followed: sampled tokens and, between them, what the environment added.
    pub response_ids: Vec<TokenId>,
    /// 1 on tokens sampled by the policy being trained, else 0.
    pub mask: Vec<u8>,
    /// Log-probability of each token, 0 where it was not sampled; absent where the engine gave none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<f32>>,
    /// Reward of each token.
    pub rewards: Vec<f32>,
    /// Which version sampled which tokens, in order.
    #[serde(default)]
    pub versions: Vec<VersionRun>,
}

/// Why parts do not make a row.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum RowError {
    /// A column is not as long as the response.
    #[error("`{column}` has {found} entries, the response has {expected} tokens")]
    Length {
        /// The column.
        column: &'static str,
        /// Tokens of the response.
        expected: usize,
        /// Entries of the column.
        found: usize,
    },
    /// A mask entry that is neither 0 nor 1.
    #[error("`mask` entry {index} is {value}, expected 0 or 1")]
    Mask {
        /// Where.
        index: usize,
        /// What stands there.
        value: u8,
    },
    /// A reward or log-probability that is not finite.
    #[error("`{column}` entry {index} is {value}, expected a finite number")]
    NotFinite {
        /// The column.
        column: &'static str,
        /// Where.
        index: usize,
        /// What stands there.
        value: f32,
    },
    /// Version runs that overlap, go backwards or leave the response.
    #[error("`versions` run {index} does not lie behind the run before it and within the response")]
    Versions {
        /// Which run.
        index: usize,
    },
    /// More log-probabilities, or version runs, than sampled tokens.
    #[error("a generation of {tokens} tokens came with {found} entries of `{column}`")]
    Generation {
        /// The column.
        column: &'static str,
        /// Tokens sampled.
        tokens: usize,
        /// Entries that came.
        found: usize,
    },
}

/// One training row. See the module for what always holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "RowParts", into = "RowParts")]
pub struct Row {
    parts: RowParts,
}

impl Row {
    /// Checks the parts against each other.
    pub fn new(parts: RowParts) -> Result<Self, RowError> {
        let expected = parts.response_ids.len();
        let same = |column, found| {
            if found == expected { Ok(()) } else { Err(RowError::Length { column, expected, found }) }
        };
        same("mask", parts.mask.len())?;
        same("rewards", parts.rewards.len())?;
        if let Some(logprobs) = &parts.logprobs {
            same("logprobs", logprobs.len())?;
            finite("logprobs", logprobs)?;
        }
        finite("rewards", &parts.rewards)?;
        if let Some(index) = parts.mask.iter().position(|&value| value > 1) {
            return Err(RowError::Mask { index, value: parts.mask[index] });
        }
        let mut end = 0_u64;
        for (index, run) in parts.versions.iter().enumerate() {
            let run_end = u64::from(run.start) + u64::from(run.len);
            if u64::from(run.start) < end || run.len == 0 || run_end > expected as u64 {
                return Err(RowError::Versions { index });
            }
            end = run_end;
        }
        Ok(Self { parts })
    }

    /// A prompt that nothing follows.
    pub fn empty(prompt_ids: Vec<TokenId>) -> Self {
        Self { parts: RowParts { prompt_ids, ..RowParts::default() } }
    }

    /// What the policy was first shown.
    pub fn prompt_ids(&self) -> &[TokenId] {
        &self.parts.prompt_ids
    }

    /// What followed.
    pub fn response_ids(&self) -> &[TokenId] {
        &self.parts.response_ids
    }

    /// 1 on tokens sampled by the policy being trained.
    pub fn mask(&self) -> &[u8] {
        &self.parts.mask
    }

    /// Log-probabilities, where the engine gave them.
    pub fn logprobs(&self) -> Option<&[f32]> {
        self.parts.logprobs.as_deref()
    }

    /// Reward of each token.
    pub fn rewards(&self) -> &[f32] {
        &self.parts.rewards
    }

    /// Which version sampled which tokens.
    pub fn versions(&self) -> &[VersionRun] {
        &self.parts.versions
    }

    /// Tokens of the response.
    pub fn len(&self) -> usize {
        self.parts.response_ids.len()
    }

    /// Whether nothing follows the prompt.
    pub fn is_empty(&self) -> bool {
        self.parts.response_ids.is_empty()
    }

    /// Tokens whose mask is set.
    pub fn trained_tokens(&self) -> usize {
        self.parts.mask.iter().map(|&value| usize::from(value)).sum()
    }

    /// Sum of the rewards.
    pub fn reward(&self) -> f64 {
        self.parts.rewards.iter().map(|&reward| f64::from(reward)).sum::<f64>() + 0.0
    }

    /// The parts.
    pub fn into_parts(self) -> RowParts {
        self.parts
    }

    /// The parts.
    pub fn parts(&self) -> &RowParts {
        &self.parts
    }

    /// Clears the mask: nothing of this row trains.
    pub fn clear_mask(&mut self) {
        self.parts.mask.fill(0);
    }

    /// Sets every reward to 0.
    pub fn clear_rewards(&mut self) {
        self.parts.rewards.fill(0.0);
    }

    /// Adds a reward at a token. Answers whether there is such a token and the sum is finite; else nothing changes.
    pub fn add_reward(&mut self, token: usize, reward: f32) -> bool {
        match self.parts.rewards.get_mut(token) {
            Some(slot) if (*slot + reward).is_finite() => {
                *slot += reward;
                true
            }
            _ => false,
        }
    }
}

fn finite(column: &'static str, values: &[f32]) -> Result<(), RowError> {
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(RowError::NotFinite { column, index, value: values[index] }),
        None => Ok(()),
    }
}

impl TryFrom<RowParts> for Row {
    type Error = RowError;

    fn try_from(parts: RowParts) -> Result<Self, RowError> {
        Self::new(parts)
    }
}

impl From<Row> for RowParts {
    fn from(row: Row) -> Self {
        row.parts
    }
}

/// What an engine sampled in one turn.
#[derive(Clone, Copy, Debug)]
pub struct Sampled<'a> {
    /// The tokens.
    pub tokens: &'a [TokenId],
    /// Their log-probabilities; empty where the engine gave none.
    pub logprobs: &'a [f32],
    /// The policy's version from each first token on, as engines report it.
    pub versions: &'a [(u32, u64)],
    /// Whether the policy being trained sampled them.
    pub trained: bool,
}

/// Grows a row turn by turn.
#[derive(Clone, Debug)]
pub struct RowBuilder {
    parts: RowParts,
    logprobs: Vec<f32>,
    has_logprobs: Option<bool>,
    end: usize,
}

impl RowBuilder {
    /// Starts with what the policy is shown.
    pub fn new(prompt_ids: Vec<TokenId>) -> Self {
        Self { parts: RowParts { prompt_ids, ..RowParts::default() }, logprobs: Vec::new(), has_logprobs: None, end: 0 }
    }

    /// Tokens so far, prompt included.
    pub fn total_tokens(&self) -> usize {
        self.parts.prompt_ids.len() + self.parts.response_ids.len()
    }

    /// Appends a turn's sampled tokens; answers their span in the response.
    ///
    /// Log-probabilities that are not finite are floored to -9999, as SkyRL's endpoint does: such a token is
    /// impossible under the distribution that the number belongs to, and the loss must see a number.
    pub fn push_sampled(&mut self, turn: Sampled<'_>) -> Result<(u32, u32), RowError> {
        let (start, count) = (self.parts.response_ids.len(), turn.tokens.len());
        if !turn.logprobs.is_empty() && turn.logprobs.len() != count {
            return Err(RowError::Generation { column: "logprobs", tokens: count, found: turn.logprobs.len() });
        }
        for (index, &(first, _)) in turn.versions.iter().enumerate() {
            let behind = turn.versions.get(index + 1).is_none_or(|&(next, _)| next > first);
            if (first as usize >= count && count > 0) || !behind || (index == 0 && first != 0) {
                return Err(RowError::Generation { column: "versions", tokens: count, found: turn.versions.len() });
            }
        }
        self.parts.response_ids.extend_from_slice(turn.tokens);
        self.parts.mask.extend(std::iter::repeat_n(u8::from(turn.trained), count));
        self.parts.rewards.extend(std::iter::repeat_n(0.0, count));
        if count > 0 {
            let given = !turn.logprobs.is_empty();
            self.has_logprobs = Some(self.has_logprobs.unwrap_or(true) && given);
            if given {
                self.logprobs.extend(turn.logprobs.iter().map(|&p| if p.is_finite() { p } else { -9999.0 }));
            } else {
                self.logprobs.extend(std::iter::repeat_n(0.0, count));
            }
            for (index, &(first, version)) in turn.versions.iter().enumerate() {
                let next = turn.versions.get(index + 1).map_or(count, |&(next, _)| next as usize);
                self.push_version((start + first as usize) as u32, (next - first as usize) as u32, version);
            }
            self.end = start + count;
        }
        Ok((start as u32, (start + count) as u32))
    }

    /// Appends tokens that nobody sampled: a missing end of turn, observations, the next generation prompt.
    pub fn push_given(&mut self, tokens: &[TokenId]) {
        let count = tokens.len();
        self.parts.response_ids.extend_from_slice(tokens);
        self.parts.mask.extend(std::iter::repeat_n(0, count));
        self.parts.rewards.extend(std::iter::repeat_n(0.0, count));
        self.logprobs.extend(std::iter::repeat_n(0.0, count));
    }

    /// Adds a reward at the last sampled token. Answers false where nothing was sampled yet or the sum would not be
    /// finite; then nothing changes.
    pub fn add_reward(&mut self, reward: f32) -> bool {
        match self.end.checked_sub(1).and_then(|last| self.parts.rewards.get_mut(last)) {
            Some(slot) if (*slot + reward).is_finite() => {
                *slot += reward;
                true
            }
            _ => false,
        }
    }

    /// The row, without what follows the last sampled token.
    pub fn finish(mut self) -> Row {
        let end = self.end;
        self.parts.response_ids.truncate(end);
        self.parts.mask.truncate(end);
        self.parts.rewards.truncate(end);
        self.logprobs.truncate(end);
        self.parts.logprobs = (self.has_logprobs == Some(true)).then_some(self.logprobs);
        Row { parts: self.parts }
    }

    fn push_version(&mut self, start: u32, len: u32, version: u64) {
        match self.parts.versions.last_mut() {
            Some(last) if last.version == version && last.start + last.len == start => last.len += len,
            _ => self.parts.versions.push(VersionRun { start, len, version }),
        }
    }
}
