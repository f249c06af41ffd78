//! What a whole tree may spend, and who counts it.
//!
//! | item | what it is |
//! |---|---|
//! | [`TreeLimits`] | the limits, every one finite by default |
//! | [`TreeBudget`] | the counters of one tree |
//! | [`Reservation`] | something set aside before it is spent, so that concurrent spends cannot overshoot |
//!
//! Invariants: what is spent never exceeds a limit, whatever runs side by side; what is spent is never given back
//! (only what was set aside and not used is); no counter is held while waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use espalier_envs::SubCallError;
use serde::{Deserialize, Serialize};

/// What one tree may spend. Children share their root's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TreeLimits {
    /// Deepest node; the root is 0. Where it is reached `rlm_query` falls back to `llm_query`.
    pub depth: u32,
    /// Children in the whole tree.
    pub children: u64,
    /// `llm_query` calls in the whole tree.
    pub sub_calls: u64,
    /// Questions to the judge in the whole tree. They take nothing of the other budgets.
    pub judge_calls: u64,
    /// Tokens in the whole tree: sampled ones, and prompt tokens that are new to their conversation.
    pub tokens: u64,
    /// Wall time of the tree, seconds.
    pub wall_s: f64,
    /// Sum of the memory limits of the REPLs that live at once, MiB. Not resident memory: that is far less.
    pub repl_memory_mb: u64,
    /// What one REPL counts for, MiB, without three times its context.
    pub repl_mb: u64,
    /// `llm_query` requests of one tree that are with the engine at once.
    pub concurrent_calls: u32,
}

impl Default for TreeLimits {
    fn default() -> Self {
        Self {
            depth: 3,
            children: 32,
            sub_calls: 1000,
            judge_calls: 64,
            tokens: 1_000_000,
            wall_s: 1800.0,
            repl_memory_mb: 16 << 10,
            repl_mb: 256,
            concurrent_calls: 16,
        }
    }
}

impl TreeLimits {
    /// Refuses limits that no rollout can begin under, or that say nothing: the key and why.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let least = [("tokens", self.tokens), ("concurrent_calls", self.concurrent_calls.into())];
        if let Some((key, _)) = least.into_iter().find(|(_, limit)| *limit == 0) {
            return Err((key, "must be at least 1, got 0".to_owned()));
        }
        if self.repl_memory_mb < self.repl_mb {
            let (all, one) = (self.repl_memory_mb, self.repl_mb);
            return Err(("repl_memory_mb", format!("must hold one REPL, `repl_mb` = {one}, got {all}")));
        }
        check_seconds("wall_s", self.wall_s)
    }

    /// Wall time. What is not a positive number of seconds below a hundred years counts as none.
    pub fn wall(&self) -> Duration {
        seconds(self.wall_s)
    }
}

/// The first number of seconds that is too long to wait: a hundred years.
const TOO_LONG_S: f64 = 3.2e9;

/// Seconds of a configuration; what is not a positive number below a hundred years counts as none.
pub(crate) fn seconds(value: f64) -> Duration {
    if value > 0.0 && value < TOO_LONG_S { Duration::from_secs_f64(value) } else { Duration::ZERO }
}

/// Refuses what [`seconds`] would count as none.
pub(crate) fn check_seconds(key: &'static str, value: f64) -> Result<(), (&'static str, String)> {
    if value > 0.0 && value < TOO_LONG_S {
        return Ok(());
    }
    Err((key, format!("must be a number of seconds above 0 and below a hundred years ({TOO_LONG_S:e}), got {value}")))
}

/// Which budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Children spawned.
    Children,
    /// `llm_query` calls made.
    SubCalls,
    /// Tokens.
    Tokens,
    /// Memory limits of live REPLs, bytes.
    Memory,
    /// Questions to the judge.
    JudgeCalls,
}

impl Resource {
    /// The name a block is shown.
    pub fn name(self) -> &'static str {
        match self {
            Self::Children => "children",
            Self::SubCalls => "sub-calls",
            Self::Tokens => "tokens",
            Self::Memory => "memory",
            Self::JudgeCalls => "judge calls",
        }
    }
}

#[derive(Debug)]
struct Counter {
    limit: u64,
    used: AtomicU64,
}

impl Counter {
    fn new(limit: u64) -> Self {
        Self { limit, used: AtomicU64::new(0) }
    }

    /// Sets aside between `least` and `most`; `None` where even `least` is not there.
    fn take(&self, least: u64, most: u64) -> Option<u64> {
        let mut taken = 0;
        let outcome = self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
            let left = self.limit.saturating_sub(used);
            if left < least {
                return None;
            }
            taken = left.min(most);
            Some(used + taken)
        });
        outcome.ok().map(|_| taken)
    }

    fn give_back(&self, amount: u64) {
        self.used.fetch_sub(amount, Ordering::AcqRel);
    }
}

/// The counters of one tree.
#[derive(Debug)]
pub struct TreeBudget {
    /// In the order of [`Resource`].
    counters: [Counter; 5],
}

impl TreeBudget {
    /// Nothing spent yet.
    pub fn new(limits: &TreeLimits) -> Arc<Self> {
        Arc::new(Self {
            counters: [
                Counter::new(limits.children),
                Counter::new(limits.sub_calls),
                Counter::new(limits.tokens),
                Counter::new(limits.repl_memory_mb.saturating_mul(1 << 20)),
                Counter::new(limits.judge_calls),
            ],
        })
    }

    fn counter(&self, resource: Resource) -> &Counter {
        &self.counters[resource as usize]
    }

    /// Spent and set aside.
    pub fn used(&self, resource: Resource) -> u64 {
        self.counter(resource).used.load(Ordering::Acquire)
    }

    /// The limit.
    pub fn limit(&self, resource: Resource) -> u64 {
        self.counter(resource).limit
    }

    /// What is neither spent nor set aside.
    pub fn left(&self, resource: Resource) -> u64 {
        self.limit(resource).saturating_sub(self.used(resource))
    }

    /// Sets `amount` aside.
    pub fn reserve(self: &Arc<Self>, resource: Resource, amount: u64) -> Result<Reservation, SubCallError> {
        self.reserve_between(resource, amount, amount)
    }

    /// Sets aside as much as there is, between `least` and `most`.
    pub fn reserve_between(
        self: &Arc<Self>,
        resource: Resource,
        least: u64,
        most: u64,
    ) -> Result<Reservation, SubCallError> {
        let counter = self.counter(resource);
        let amount = counter.take(least, most.max(least)).ok_or_else(|| self.spent(resource))?;
        Ok(Reservation { budget: Arc::clone(self), resource, amount })
    }

    /// The error of a budget that is spent.
    pub fn spent(&self, resource: Resource) -> SubCallError {
        let counter = self.counter(resource);
        let limit = if resource == Resource::Memory { counter.limit >> 20 } else { counter.limit };
        SubCallError::Budget { budget: resource.name(), limit }
    }
}

/// Something set aside. Dropping it gives all of it back; [`Reservation::spend`] keeps what was used.
#[derive(Debug)]
#[must_use = "dropping a reservation gives it back"]
pub struct Reservation {
    budget: Arc<TreeBudget>,
    resource: Resource,
    amount: u64,
}

impl Reservation {
    /// How much is set aside.
    pub fn amount(&self) -> u64 {
        self.amount
    }

    /// Spends `used` of it for good and gives the rest back. More than was set aside counts as all of it: whoever
    /// spends more broke its own bound.
    pub fn spend(mut self, used: u64) {
        let kept = used.min(self.amount);
        self.amount -= kept;
    }

    /// Spends all of it.
    pub fn spend_all(self) {
        let amount = self.amount;
        self.spend(amount);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.amount > 0 {
            self.budget.counter(self.resource).give_back(self.amount);
        }
    }
}
