//! Rows to micro-batches: which rows go together, and how they lie in one.

use espalier_inference::TokenId;
use tch::{Device, TchError, Tensor};

use crate::decoder::Run;

/// A row as the model sees it: tokens, and which of them are to be predicted from those before.
#[derive(Clone, Copy, Debug)]
pub struct PackRow<'a> {
    /// All tokens.
    pub tokens: &'a [TokenId],
    /// First token that is predicted, at least 1; all behind it are.
    pub predict_from: usize,
}

impl<'a> PackRow<'a> {
    /// Which of its tokens predict what.
    fn asked(self) -> impl Iterator<Item = (usize, TokenId)> + 'a {
        (self.predict_from.max(1)..self.tokens.len()).map(move |target| (target - 1, self.tokens[target]))
    }

    /// How many tokens are predicted.
    pub fn predicted(&self) -> usize {
        self.tokens.len().saturating_sub(self.predict_from)
    }
}

/// A row that is asked for tokens of its own choice: which of its tokens predict what. A token may be asked several times.
#[derive(Clone, Copy, Debug)]
pub struct AskedRow<'a> {
    /// All tokens.
    pub tokens: &'a [TokenId],
    /// Index of a token, and what comes behind it.
    pub asked: &'a [(usize, TokenId)],
}

/// Rows that go through the model at once.
#[derive(Debug)]
pub struct MicroBatch {
    /// Token ids, (tokens).
    pub ids: Tensor,
    /// Position of each token in its sequence.
    pub positions: Vec<i64>,
    /// Sequences.
    pub runs: Vec<Run>,
    /// Which tokens' hidden states predict something, (predictions).
    pub select: Tensor,
    /// What they should predict, (predictions).
    pub targets: Tensor,
    /// Indices of the rows in the batch they came from, in the order in which they lie here.
    pub rows: Vec<usize>,
    /// Where each row's predictions begin, and the end: `rows.len() + 1` numbers.
    pub offsets: Vec<i64>,
}

impl MicroBatch {
    /// Lays rows one behind the other without padding, equally long ones side by side.
    pub fn packed(rows: &[PackRow<'_>], chosen: &[usize]) -> Result<Self, TchError> {
        Self::lay(chosen, None, |i| rows[i].tokens, |i| rows[i].asked())
    }

    /// Lays rows out padded at their end to the longest of all rows, chosen or not, as frameworks without packing pad a
    /// batch. What is padded costs time and changes nothing: attention is causal, and no prediction is asked of padding.
    pub fn padded(rows: &[PackRow<'_>], chosen: &[usize]) -> Result<Self, TchError> {
        let longest = rows.iter().map(|row| row.tokens.len()).max();
        Self::lay(chosen, longest, |i| rows[i].tokens, |i| rows[i].asked())
    }

    /// The same as [`MicroBatch::packed`] for rows that are asked for tokens of their own choice.
    pub fn asked(rows: &[AskedRow<'_>], chosen: &[usize]) -> Result<Self, TchError> {
        Self::lay(chosen, None, |i| rows[i].tokens, |i| rows[i].asked.iter().copied())
    }

    /// `tokens` and `asked` say of a row what it holds and which of its tokens predict what.
    fn lay<'a, A: Iterator<Item = (usize, TokenId)>>(
        chosen: &[usize],
        pad_to: Option<usize>,
        tokens: impl Fn(usize) -> &'a [TokenId],
        asked: impl Fn(usize) -> A,
    ) -> Result<Self, TchError> {
        let mut order = chosen.to_vec();
        order.sort_by_key(|i| (tokens(*i).len(), *i));
        let (mut ids, mut positions, mut select, mut targets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut runs, mut offsets): (Vec<Run>, Vec<i64>) = (Vec::new(), vec![0]);
        for index in &order {
            let row = tokens(*index);
            let start = ids.len() as i64;
            let len = pad_to.unwrap_or(row.len());
            ids.extend(row.iter().map(|t| i64::from(*t)));
            ids.resize(start as usize + len, 0);
            positions.extend(0..len as i64);
            for (token, target) in asked(*index) {
                select.push(start + token as i64);
                targets.push(i64::from(target));
            }
            offsets.push(select.len() as i64);
            match runs.last_mut() {
                Some(run) if run.len == len as i64 => run.count += 1,
                _ => runs.push(Run { start, count: 1, len: len as i64 }),
            }
        }
        if ids.is_empty() {
            // A process without rows takes part in every exchange with one token that predicts nothing.
            ids.push(0);
            positions.push(0);
            runs.push(Run { start: 0, count: 1, len: 1 });
        }
        let column = |values: &[i64]| Tensor::f_from_slice(values)?.f_to_device(Device::Cpu);
        Ok(Self {
            ids: column(&ids)?,
            positions,
            runs,
            select: column(&select)?,
            targets: column(&targets)?,
            rows: order,
            offsets,
        })
    }

    /// Tokens that go through the model, padding included.
    pub fn tokens(&self) -> usize {
        self.positions.len()
    }

    /// Tokens that are predicted.
    pub fn predictions(&self) -> i64 {
        self.offsets.last().copied().unwrap_or(0)
    }
}

/// Divides rows into groups of at most `max_tokens` tokens each, with sums as equal as the greedy rule makes them
/// (longest row first, into the emptiest group). A row longer than `max_tokens` is a group of its own. With `world`
/// processes the groups are dealt out so that each process gets as many; some may be empty. Returns the groups of each
/// process; the same input gives the same groups everywhere.
pub fn plan(lengths: &[usize], max_tokens: usize, world: usize) -> Vec<Vec<Vec<usize>>> {
    let world = world.max(1);
    let cap = max_tokens.max(1);
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|i| (std::cmp::Reverse(lengths[*i]), *i));
    let total: usize = lengths.iter().sum();
    let mut count = total.div_ceil(cap).max(1).next_multiple_of(world);
    let groups = loop {
        let mut groups = vec![(0_usize, Vec::new()); count];
        let fits = order.iter().all(|&row| {
            let smallest = groups.iter().enumerate().min_by_key(|(i, (sum, _))| (*sum, *i)).map_or(0, |(i, _)| i);
            let (sum, rows) = &mut groups[smallest];
            let fits = rows.is_empty() || *sum + lengths[row] <= cap;
            *sum += lengths[row];
            rows.push(row);
            fits
        });
        if fits {
            break groups;
        }
        count += world;
    };
    // Heaviest groups first, dealt back and forth, so that the processes' sums are close.
    let mut groups: Vec<(usize, Vec<usize>)> = groups;
    groups.sort_by_key(|(sum, rows)| (std::cmp::Reverse(*sum), rows.first().copied()));
    let mut dealt: Vec<Vec<Vec<usize>>> = vec![Vec::new(); world];
    for (i, (_, rows)) in groups.into_iter().enumerate() {
        let (round, place) = (i / world, i % world);
        dealt[if round % 2 == 0 { place } else { world - 1 - place }].push(rows);
    }
    dealt
}
