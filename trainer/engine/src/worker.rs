//! The engine's thread: admission, steps, preemption, answers.
//!
//! A step takes the next token of every running sequence and, up to `prefill_chunk` rows, prompt tokens of those that
//! are not ready yet. New requests join between steps. When no cache block is left, the sequence that was admitted last
//! gives its blocks back and waits; what it had is computed again later (or found in the cache, if still there), and as
//! its noise depends on position only, it goes on as if nothing had happened.
//!
//! Weights change between steps: new ones of an adapter or of the base model take the place of the old, and what runs goes
//! on with them and with the keys and values that it has; what it samples says under which version. A sequence that has to
//! make room after a change is computed again under the new weights. An adapter that is removed stays for the requests
//! that it has.
//!
//! Invariants: the sequence admitted first is never preempted, so the engine always makes progress; every request gets
//! exactly one answer; a prefill never reuses what other weights computed; logits that are not finite end the requests
//! that they belong to and no other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc as sync_mpsc};

use espalier_inference::{EngineError, Generation, SamplingParams, StopReason, TokenId, Tokenizer};
use tch::Tensor;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::adapters::PackedAdapter;
use crate::kv::PrefixCache;
use crate::local::{EngineStats, StreamEvent};
use crate::models::decoder::{AdapterRows, Decoder};
use crate::models::update::BaseChange;
use crate::sampling;
use crate::sequence::{Group, Sequence};
use crate::shim::{self, BLOCK, KvPool, RowStats, Segment, ShimError};

/// How many sessions' last turns are remembered, for the count of tokens prefilled again.
const MAX_SESSIONS: usize = 1024;

/// The base model's number among the policies.
pub(crate) const BASE: u64 = 0;

/// What the thread is told.
pub(crate) enum Message {
    /// A request.
    Request(Submission),
    /// New weights for an adapter, or a new adapter. Answered when they are in place.
    Adapter { policy: u64, version: u64, weights: PackedAdapter, applied: sync_mpsc::Sender<()> },
    /// No new request will name this adapter.
    Remove { policy: u64 },
    /// New weights for the base model: its version and every adapter's count one up. Answered when they are in place.
    Base { change: BaseChange, applied: sync_mpsc::Sender<Result<(), ShimError>> },
}

/// Whose weights answer: the base model's alone, or an adapter's on top of them.
pub(crate) struct Policy {
    /// Nothing for the base model.
    weights: Option<PackedAdapter>,
    /// What generations say.
    version: u64,
    /// A number of these weights that no others have, before or after: the root of their prefixes.
    state: u64,
    /// Whether it goes when its last request has ended.
    removed: bool,
}

/// A checked request.
pub(crate) struct Submission {
    pub(crate) policy: u64,
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) params: SamplingParams,
    pub(crate) seed: u64,
    pub(crate) n: u32,
    pub(crate) session: Option<String>,
    pub(crate) deadline: Instant,
    pub(crate) cancel: CancellationToken,
    pub(crate) answer: Option<oneshot::Sender<Result<Vec<Generation>, EngineError>>>,
    pub(crate) stream: Option<mpsc::UnboundedSender<StreamEvent>>,
}

/// What the thread is told at its start.
pub(crate) struct WorkerOptions {
    pub(crate) name: String,
    pub(crate) context: usize,
    pub(crate) blocks: usize,
    pub(crate) max_batch: usize,
    pub(crate) prefill_chunk: usize,
    pub(crate) eos: BTreeSet<TokenId>,
}

/// The engine's thread.
pub(crate) struct Worker {
    options: WorkerOptions,
    decoder: Decoder,
    tokenizer: Tokenizer,
    incoming: sync_mpsc::Receiver<Message>,
    pool: KvPool,
    cache: PrefixCache,
    /// By number; [`BASE`] is always there.
    policies: BTreeMap<u64, Policy>,
    next_state: u64,
    groups: BTreeMap<u64, Group>,
    waiting: VecDeque<Sequence>,
    /// In the order of admission.
    running: Vec<Sequence>,
    sessions: BTreeMap<String, LastTurn>,
    next_group: u64,
    stats: EngineStats,
    shared_stats: Arc<Mutex<EngineStats>>,
    stopping: Arc<AtomicBool>,
    open: Arc<AtomicUsize>,
}

/// What a session's last turn left in the cache.
struct LastTurn {
    /// The step at which it ended.
    step: u64,
    /// The weights that computed it.
    state: Option<u64>,
    tokens: Vec<TokenId>,
}

/// What one sequence does in a step.
struct Part {
    sequence: usize,
    rows: usize,
}

impl Worker {
    pub(crate) fn new(
        options: WorkerOptions,
        decoder: Decoder,
        tokenizer: Tokenizer,
        incoming: sync_mpsc::Receiver<Message>,
        shared_stats: Arc<Mutex<EngineStats>>,
        stopping: Arc<AtomicBool>,
        open: Arc<AtomicUsize>,
    ) -> Result<Self, ShimError> {
        Ok(Self {
            pool: decoder.new_pool()?,
            cache: PrefixCache::new(options.blocks),
            stats: EngineStats { blocks: options.blocks as u64, ..EngineStats::default() },
            options,
            decoder,
            tokenizer,
            incoming,
            policies: BTreeMap::from([(BASE, Policy { weights: None, version: 0, state: 0, removed: false })]),
            next_state: 1,
            groups: BTreeMap::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            sessions: BTreeMap::new(),
            next_group: 0,
            shared_stats,
            stopping,
            open,
        })
    }

    /// Works until the engine is dropped.
    pub(crate) fn run(mut self) {
        loop {
            if self.groups.is_empty() {
                match self.incoming.recv() {
                    Ok(message) => self.take(message),
                    Err(_) => return,
                }
            }
            while let Ok(message) = self.incoming.try_recv() {
                self.take(message);
            }
            if self.stopping.load(Ordering::Relaxed) {
                self.end_all(&EngineError::Cancelled);
                return;
            }
            self.drop_ended();
            self.admit();
            if let Err(error) = self.step() {
                tracing::error!(model = %self.options.name, %error, "a step failed; all open requests end");
                let reason = error.to_string();
                self.end_all(&EngineError::Failed { model: self.options.name.clone(), reason });
            }
            self.publish_stats();
        }
    }

    fn publish_stats(&mut self) {
        self.stats.adapters = self.policies.len() as u64 - 1;
        self.stats.evictions = self.cache.evictions();
        self.stats.blocks_in_use = self.cache.in_use() as u64;
        self.stats.running = self.running.len() as u64;
        self.stats.waiting = self.waiting.len() as u64;
        *self.shared_stats.lock().unwrap_or_else(PoisonError::into_inner) = self.stats;
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Request(submission) => self.accept(submission),
            Message::Adapter { policy, version, weights, applied } => {
                self.change(policy, version, Some(weights));
                // Whoever waits for the answer may look at the counts.
                self.publish_stats();
                let _ = applied.send(());
            }
            Message::Remove { policy } => {
                if let Some(policy) = self.policies.get_mut(&policy) {
                    policy.removed = true;
                }
                self.forget_removed(policy);
                self.publish_stats();
            }
            Message::Base { change, applied } => {
                let result = self.decoder.apply_change(change);
                // A change that did not happen counts too: versions only say that weights may differ.
                let all: Vec<(u64, u64)> = self.policies.iter().map(|(id, policy)| (*id, policy.version)).collect();
                for (policy, version) in all {
                    let weights = self.policies.get_mut(&policy).and_then(|p| p.weights.take());
                    self.change(policy, version + 1, weights);
                }
                self.publish_stats();
                let _ = applied.send(result);
            }
        }
    }

    /// Puts weights in a policy's place, under a new version.
    fn change(&mut self, id: u64, version: u64, weights: Option<PackedAdapter>) {
        let state = self.next_state;
        self.next_state += 1;
        let removed = self.policies.get(&id).is_some_and(|policy| policy.removed);
        if let Some(old) = self.policies.insert(id, Policy { weights, version, state, removed }) {
            self.cache.forget(old.state);
            self.stats.weight_updates += 1;
        }
        for sequence in &mut self.running {
            if self.groups.get(&sequence.group).is_some_and(|group| group.policy == id) {
                // It keeps what it has computed; nobody else may.
                sequence.state = (sequence.computed == 0).then_some(state);
            }
        }
    }

    /// Lets a removed adapter go when no request has it any more.
    fn forget_removed(&mut self, id: u64) {
        if self.policies.get(&id).is_some_and(|policy| policy.removed)
            && !self.groups.values().any(|group| group.policy == id)
            && let Some(policy) = self.policies.remove(&id)
        {
            self.cache.forget(policy.state);
        }
    }

    /// The policy of a request. Requests come with one that is there, and it stays while they run.
    fn policy(&self, group: u64) -> Option<&Policy> {
        self.policies.get(&self.groups.get(&group)?.policy)
    }

    fn accept(&mut self, submission: Submission) {
        let s = submission;
        let version = self.policies.get(&s.policy).map_or(0, |policy| policy.version);
        let mut ends: BTreeSet<TokenId> = s.params.stop_token_ids.iter().copied().collect();
        if !s.params.ignore_eos {
            ends.extend(&self.options.eos);
        }
        let group = Group {
            policy: s.policy,
            version,
            longest_stop: s.params.stop.iter().map(String::len).max().unwrap_or(0),
            params: s.params,
            seed: s.seed,
            session: s.session,
            deadline: s.deadline,
            cancel: s.cancel,
            prompt_tokens: s.tokens.len(),
            cached_tokens: 0,
            done: vec![None; s.n as usize],
            answer: s.answer,
            stream: s.stream,
            ends,
        };
        let id = self.next_group;
        self.next_group += 1;
        self.stats.prompt_tokens += s.tokens.len() as u64;
        self.groups.insert(id, group);
        let mut sequence = Sequence::new(id, 0, s.tokens, self.tokenizer.stream(true));
        sequence.siblings = s.n - 1;
        self.waiting.push_back(sequence);
    }

    /// Ends requests that were cancelled, whose caller is gone, or whose deadline has passed.
    fn drop_ended(&mut self) {
        let now = Instant::now();
        let ended: Vec<u64> = self
            .groups
            .iter()
            .filter(|(_, g)| {
                g.cancel.is_cancelled()
                    || g.deadline <= now
                    || g.stream.as_ref().is_some_and(mpsc::UnboundedSender::is_closed)
            })
            .map(|(id, _)| *id)
            .collect();
        for id in ended {
            let mut unfinished: Vec<Sequence> = Vec::new();
            unfinished.extend(self.running.extract_if(.., |s| s.group == id));
            let (ended, kept): (Vec<_>, Vec<_>) = self.waiting.drain(..).partition(|s| s.group == id);
            self.waiting.extend(kept);
            unfinished.extend(ended);
            for sequence in &mut unfinished {
                self.give_back(sequence);
            }
            let Some(mut group) = self.groups.remove(&id) else { continue };
            for mut sequence in unfinished {
                let index = sequence.index as usize;
                group.done[index] = Some(sequence.generation(StopReason::Cancelled, &group));
            }
            let sampled = group.done.iter().flatten().any(|g| !g.tokens.is_empty());
            let result = if sampled {
                // Samples that had not branched off yet have nothing.
                let decoder = self.tokenizer.stream(true);
                let mut empty = Sequence::new(id, 0, Vec::new(), decoder);
                let done = std::mem::take(&mut group.done);
                Ok(done
                    .into_iter()
                    .map(|g| g.unwrap_or_else(|| empty.generation(StopReason::Cancelled, &group)))
                    .collect())
            } else if group.cancel.is_cancelled() {
                Err(EngineError::Cancelled)
            } else {
                Err(EngineError::Deadline { model: self.options.name.clone() })
            };
            self.finish_group(group, result);
        }
    }

    fn end_all(&mut self, error: &EngineError) {
        let mut sequences: Vec<Sequence> = self.running.drain(..).collect();
        sequences.extend(self.waiting.drain(..));
        for sequence in &mut sequences {
            // A failed step may have left these blocks half-written: they are not remembered.
            sequence.computed = 0;
            self.give_back(sequence);
        }
        while let Some((_, group)) = self.groups.pop_first() {
            self.finish_group(group, Err(error.clone()));
        }
    }

    fn finish_group(&mut self, mut group: Group, result: Result<Vec<Generation>, EngineError>) {
        self.stats.requests += 1;
        self.forget_removed(group.policy);
        self.open.fetch_sub(1, Ordering::Relaxed);
        self.publish_stats();
        group.answer(result);
    }

    /// Remembers what a sequence has computed and gives its blocks back.
    fn give_back(&mut self, sequence: &mut Sequence) {
        if sequence.computed > 0
            && let Some(state) = sequence.state
        {
            self.cache.insert(state, &sequence.tokens[..sequence.computed], &mut sequence.blocks);
        }
        for block in sequence.blocks.drain(..) {
            self.cache.release(block);
        }
        sequence.reached = sequence.reached.max(sequence.computed);
        sequence.computed = 0;
    }

    /// Lets waiting sequences in, in order, while there is room.
    fn admit(&mut self) {
        while self.running.len() < self.options.max_batch
            && let Some(mut sequence) = self.waiting.pop_front()
        {
            // At least one token must go through the model to have logits.
            let usable = sequence.tokens.len() - 1;
            let Some(state) = self.policy(sequence.group).map(|policy| policy.state) else { continue };
            let found = self.cache.lookup(state, &sequence.tokens[..usable]);
            let needed = sequence.tokens.len().div_ceil(BLOCK) - found.blocks.len();
            // Running sequences will want a block each sooner or later.
            let room = self.cache.available() >= needed + self.running.len();
            sequence.blocks = found.blocks;
            if !room && !self.running.is_empty() {
                if let Some((tail, _)) = found.tail {
                    self.cache.release(tail);
                }
                sequence.blocks.drain(..).for_each(|b| self.cache.release(b));
                self.waiting.push_front(sequence);
                return;
            }
            sequence.state = Some(state);
            sequence.computed = sequence.blocks.len() * BLOCK;
            if let Some((tail, count)) = found.tail {
                let own = self.own_block();
                if let Some(own) = own
                    && self.pool.copy(tail, own).is_ok()
                {
                    sequence.blocks.push(own);
                    sequence.computed += count;
                } else if let Some(own) = own {
                    self.cache.release(own);
                }
                self.cache.release(tail);
            }
            self.count_admission(&sequence);
            self.running.push(sequence);
        }
    }

    fn count_admission(&mut self, sequence: &Sequence) {
        self.stats.recomputed_tokens += sequence.reached.saturating_sub(sequence.computed) as u64;
        let Some(group) = self.groups.get_mut(&sequence.group) else { return };
        if sequence.index > 0 || sequence.sampled() > 0 || sequence.reached > 0 {
            return;
        }
        group.cached_tokens = sequence.computed;
        self.stats.cached_tokens += sequence.computed as u64;
        if let Some(before) = group.session.as_ref().and_then(|s| self.sessions.get(s))
            && before.state == sequence.state
        {
            let usable = sequence.tokens.len() - 1;
            let known = before.tokens.iter().zip(&sequence.tokens[..usable]).take_while(|(a, b)| a == b).count();
            self.stats.reprefilled_tokens += known.saturating_sub(sequence.computed) as u64;
        }
    }

    /// A block of one's own with memory behind it.
    fn own_block(&mut self) -> Option<i64> {
        let block = self.cache.allocate()?;
        if self.pool.allocate(block).is_err() {
            self.cache.release(block);
            return None;
        }
        Some(block)
    }

    /// Chooses what each running sequence does in this step and sees to its blocks.
    fn plan(&mut self) -> Vec<Part> {
        let mut budget = self.options.prefill_chunk;
        let mut parts = Vec::new();
        let mut i = 0;
        while i < self.running.len() {
            let sequence = &self.running[i];
            let pending = sequence.tokens.len() - sequence.computed;
            let rows = if pending == 1 { 1 } else { pending.min(budget) };
            if pending > 1 {
                budget -= rows;
            }
            if rows > 0 {
                let blocks = (sequence.computed + rows).div_ceil(BLOCK);
                while self.running.len() > i && self.running[i].blocks.len() < blocks {
                    if let Some(block) = self.own_block() {
                        self.running[i].blocks.push(block);
                    } else if let Some(mut victim) = self.running.pop() {
                        // The youngest makes room; that may be this one, but never the oldest while others run.
                        self.stats.preemptions += 1;
                        self.give_back(&mut victim);
                        self.waiting.push_front(victim);
                    }
                }
                if self.running.len() <= i {
                    break;
                }
                parts.push(Part { sequence: i, rows });
            }
            i += 1;
        }
        parts
    }

    fn step(&mut self) -> Result<(), ShimError> {
        let mut parts = self.plan();
        // The rows of each adapter stand together, those of the base model first.
        parts.sort_by_key(|part| self.groups.get(&self.running[part.sequence].group).map_or(BASE, |g| g.policy));
        if parts.is_empty() {
            if self.groups.is_empty() {
                return Ok(());
            }
            // One sequence alone cannot get a block: memory itself is short, as the context is bounded by the cache.
            return Err(ShimError("no memory for a single sequence's cache; lower `kv_cache_mb`".to_owned()));
        }
        let (mut ids, mut rows_of_logits, mut ready) = (Vec::new(), Vec::new(), Vec::new());
        let mut segments = Vec::with_capacity(parts.len());
        let mut adapters: Vec<AdapterRows<'_>> = Vec::new();
        let mut last = BASE;
        for part in &parts {
            let sequence = &self.running[part.sequence];
            let id = self.groups.get(&sequence.group).map_or(BASE, |group| group.policy);
            if id != last
                && let Some(adapter) = self.policies.get(&id).and_then(|policy| policy.weights.as_ref())
            {
                let (rows, logit_rows) = (ids.len()..ids.len(), rows_of_logits.len()..rows_of_logits.len());
                adapters.push(AdapterRows { adapter, rows, logit_rows });
            }
            last = id;
            segments.push(Segment {
                first_row: ids.len(),
                rows: part.rows,
                first_position: sequence.computed,
                blocks: &sequence.blocks,
            });
            ids.extend(sequence.tokens[sequence.computed..][..part.rows].iter().map(|t| i64::from(*t)));
            if sequence.computed + part.rows == sequence.tokens.len() {
                rows_of_logits.push(ids.len() as i64 - 1);
                ready.push(part.sequence);
            }
            if id != BASE
                && let Some(open) = adapters.last_mut()
            {
                (open.rows.end, open.logit_rows.end) = (ids.len(), rows_of_logits.len());
            }
        }
        let prefilled = parts
            .iter()
            .filter(|p| p.rows > 1 || self.running[p.sequence].sampled() == 0)
            .map(|p| p.rows)
            .sum::<usize>();
        let logits = self.decoder.forward(&ids, &segments, &adapters, &rows_of_logits, &mut self.pool)?;
        self.stats.steps += 1;
        self.stats.prefilled_tokens += prefilled as u64;
        for part in &parts {
            self.running[part.sequence].computed += part.rows;
        }
        if !ready.is_empty() {
            self.sample(&logits, &ready)?;
        }
        Ok(())
    }

    /// Samples the next token of each sequence in `ready`, whose logits are the rows of `logits`.
    fn sample(&mut self, logits: &Tensor, ready: &[usize]) -> Result<(), ShimError> {
        let temperature = |s: &Sequence| self.groups.get(&s.group).map_or(0.0, |g| g.params.temperature);
        let temperatures: Vec<f32> = ready.iter().map(|i| temperature(&self.running[*i])).collect();
        let scales: Vec<f32> =
            temperatures.iter().map(|t| if *t > 0.0 { t.recip().min(f32::MAX) } else { 1.0 }).collect();
        let probs = if temperatures.iter().any(|t| *t > 0.0) { Some(logits.f_empty_like()?) } else { None };
        let stats = shim::row_stats(logits, &scales, probs.as_ref())?;
        // One adapter's broken weights are no reason to end the others' requests.
        let broken = ready.iter().zip(&stats).filter(|(_, s)| !s.log_sum_exp.is_finite());
        let broken: BTreeSet<u64> = broken.map(|(i, _)| self.running[*i].group).collect();
        let vocab = logits.size2()?.1 as usize;
        let mut weights = vec![0f32; if probs.is_some() { vocab } else { 0 }];
        let mut values = vec![0f32; vocab];
        let mut finished: Vec<usize> = Vec::new();
        let mut branches: Vec<Sequence> = Vec::new();
        for (row, &i) in ready.iter().enumerate() {
            if broken.contains(&self.running[i].group) {
                continue;
            }
            let greedy = temperatures[row] == 0.0;
            if !greedy && let Some(probs) = &probs {
                probs.f_get(row as i64)?.f_copy_data(&mut weights, vocab)?;
                logits.f_get(row as i64)?.f_copy_data(&mut values, vocab)?;
            }
            let source = Row { stats: stats[row], weights: &weights, values: &values, scale: scales[row], greedy };
            let siblings = std::mem::take(&mut self.running[i].siblings);
            if self.running[i].sampled() == 0 {
                // The prompt is done: others may use it from now on.
                let sequence = &mut self.running[i];
                if let Some(state) = sequence.state {
                    self.cache.insert(state, &sequence.tokens[..sequence.computed], &mut sequence.blocks);
                }
            }
            for index in 1..=siblings {
                branches.extend(self.branch(i, index, &source));
            }
            let Some(group) = self.groups.get(&self.running[i].group) else { continue };
            let version = self.policies.get(&group.policy).map_or(0, |policy| policy.version);
            let sequence = &mut self.running[i];
            let picked = source.pick(group, sequence.index, sequence.sampled());
            self.stats.sampled_tokens += 1;
            if let Some(stop) = sequence.push(picked, version, group, self.options.context) {
                let generation = sequence.generation(stop, group);
                finished.push(i);
                self.complete(i, generation);
            }
        }
        finished.sort_unstable();
        for i in finished.into_iter().rev() {
            let mut sequence = self.running.remove(i);
            self.give_back(&mut sequence);
            self.close_if_done(sequence.group);
        }
        for id in broken {
            self.end_broken(id);
        }
        for sequence in branches {
            if self.running.len() < self.options.max_batch && !sequence.blocks.is_empty() {
                self.running.push(sequence);
            } else {
                let mut sequence = sequence;
                self.give_back(&mut sequence);
                self.waiting.push_back(sequence);
            }
        }
        Ok(())
    }

    /// Ends a request whose logits were not finite.
    fn end_broken(&mut self, id: u64) {
        let mut sequences: Vec<Sequence> = self.running.extract_if(.., |s| s.group == id).collect();
        let (ended, kept): (Vec<_>, Vec<_>) = self.waiting.drain(..).partition(|s| s.group == id);
        self.waiting.extend(kept);
        sequences.extend(ended);
        for sequence in &mut sequences {
            // What such weights computed is worth nothing to others.
            sequence.state = None;
            self.give_back(sequence);
        }
        if let Some(group) = self.groups.remove(&id) {
            let reason = "the model's logits are not finite: are its weights, or its adapter's, sound?".to_owned();
            self.finish_group(group, Err(EngineError::Failed { model: self.options.name.clone(), reason }));
        }
    }

    /// Makes sample `index` of the request whose prompt sequence `i` has just computed: full blocks are shared, the last
    /// one is copied. Without room it starts without blocks, and waits. `None` if its first token already ended it.
    fn branch(&mut self, i: usize, index: u32, source: &Row<'_>) -> Option<Sequence> {
        let origin = &self.running[i];
        let (id, prompt, computed, state) = (origin.group, origin.tokens.clone(), origin.computed, origin.state);
        let origin_blocks = origin.blocks.clone();
        let group = self.groups.get(&id)?;
        let mut sequence = Sequence::new(id, index, prompt, self.tokenizer.stream(true));
        let version = self.policies.get(&group.policy).map_or(0, |policy| policy.version);
        self.stats.sampled_tokens += 1;
        if let Some(stop) = sequence.push(source.pick(group, index, 0), version, group, self.options.context) {
            let generation = sequence.generation(stop, group);
            if let Some(group) = self.groups.get_mut(&id) {
                group.done[index as usize] = Some(generation);
            }
            return None;
        }
        let full = computed / BLOCK;
        let tail = if computed % BLOCK > 0 { self.own_block() } else { None };
        if let Some(own) = tail
            && self.pool.copy(origin_blocks[full], own).is_err()
        {
            self.cache.release(own);
            return Some(sequence);
        }
        if computed % BLOCK > 0 && tail.is_none() {
            return Some(sequence);
        }
        for block in &origin_blocks[..full] {
            self.cache.share(*block);
            sequence.blocks.push(*block);
        }
        sequence.blocks.extend(tail);
        (sequence.computed, sequence.state) = (computed, state);
        Some(sequence)
    }

    fn complete(&mut self, i: usize, generation: Generation) {
        let sequence = &self.running[i];
        let Some(group) = self.groups.get_mut(&sequence.group) else { return };
        group.done[sequence.index as usize] = Some(generation);
        if let Some(session) = group.session.clone() {
            let (step, state) = (self.stats.steps, sequence.state);
            let tokens = sequence.tokens[..sequence.computed].to_vec();
            self.sessions.insert(session, LastTurn { step, state, tokens });
            if self.sessions.len() > MAX_SESSIONS
                && let Some(oldest) =
                    self.sessions.iter().min_by_key(|(_, turn)| turn.step).map(|(name, _)| name.clone())
            {
                self.sessions.remove(&oldest);
            }
        }
    }

    fn close_if_done(&mut self, id: u64) {
        if self.groups.get(&id).is_some_and(|g| g.done.iter().all(Option::is_some))
            && let Some(mut group) = self.groups.remove(&id)
        {
            let done = std::mem::take(&mut group.done).into_iter().flatten().collect();
            self.finish_group(group, Ok(done));
        }
    }
}

/// One row of logits, ready to be drawn from.
struct Row<'a> {
    stats: RowStats,
    weights: &'a [f32],
    values: &'a [f32],
    scale: f32,
    greedy: bool,
}

impl Row<'_> {
    /// A token and its log-probability. Sample `index` has seed `seed + index`.
    fn pick(&self, group: &Group, index: u32, position: usize) -> (TokenId, f32) {
        if self.greedy {
            return (self.stats.argmax as TokenId, self.stats.largest - self.stats.log_sum_exp);
        }
        let uniform = sampling::noise(group.seed.wrapping_add(u64::from(index)), position as u64);
        let token = sampling::draw(self.weights, &group.params, uniform);
        (token as TokenId, self.values[token] * self.scale - self.stats.log_sum_exp)
    }
}
