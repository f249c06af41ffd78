//! Bounded staleness by admission.
//!
//! Groups of rollouts are played while the trainer computes, so a group may be older than the policy that trains on it. A
//! group that starts while version `v` is the newest trains at most `S` versions later if the update of version `v + S`
//! takes it: that is its deadline. Nothing that was sampled is thrown away for its age; the bound is kept by what may start
//! and by what trains first. A group that is dropped for another reason leaves room for one that starts later, so it harms
//! no deadline. With batches of `B` groups:
//!
//! - **Admission.** While a version is the newest, at most `B (S + 1)` groups are started and not yet trained on: the
//!   capacity of SkyRL's fully asynchronous trainer and of AReaL (arXiv:2505.24298, sec. 5.1).
//! - **Choice.** A step takes the finished groups with the earliest deadlines. It waits for those that are still played
//!   only where the bound could not be kept without them: among the groups that are left, no more than `k B` may have a
//!   deadline within the next `k` steps. So fast groups overtake a slow one, and never for longer than `S` versions.
//!
//! With `S = 0` the groups of a batch start together and a step takes them all, which is what a synchronous run does.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// A group that was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Started {
    /// The newest version when it started.
    pub version: u64,
    /// Its place in the stream of prompts.
    pub place: u64,
}

/// What may start, and what trains next. See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Groups of a step.
    pub batch: usize,
    /// How many versions old a group may be when it trains.
    pub max_staleness: u64,
    /// Whether a step takes the next groups of the stream, whatever finished first: the same batches as a synchronous run.
    pub in_order: bool,
}

impl Admission {
    /// How many groups may have been started in all, once `trained` of them have been trained on and their version is
    /// the newest.
    pub fn limit(&self, trained: u64) -> u64 {
        trained.saturating_add((self.max_staleness.saturating_add(1)).saturating_mul(self.batch as u64))
    }

    /// Which of the finished groups the update of `version` takes, as indices in the order of their places; none where it
    /// has to wait.
    pub fn choose(&self, version: u64, finished: &[Started], running: &[Started]) -> Option<Vec<usize>> {
        if finished.len() < self.batch {
            return None;
        }
        let mut order: Vec<usize> = (0..finished.len()).collect();
        if self.in_order {
            order.sort_by_key(|i| finished[*i].place);
            let last = order.get(self.batch.saturating_sub(1)).map(|i| finished[*i].place);
            let earlier = running.iter().any(|group| last.is_some_and(|last| group.place < last));
            order.truncate(self.batch);
            return (!earlier).then_some(order);
        }
        order.sort_by_key(|i| finished[*i]);
        let left = order.split_off(self.batch);
        let mut deadlines: Vec<u64> =
            left.iter().map(|i| &finished[*i]).chain(running).map(|group| group.version + self.max_staleness).collect();
        deadlines.sort_unstable();
        // The `n`-th of those that are left trains in the `n / B`-th step from the next one on, if deadlines come first.
        let in_time = (1..)
            .zip(deadlines)
            .all(|(n, deadline)| n <= deadline.saturating_sub(version).saturating_mul(self.batch as u64));
        order.sort_by_key(|i| finished[*i].place);
        in_time.then_some(order)
    }
}

/// Which prompts of the endless stream were used: all before `drawn` but those that are outstanding. Groups that were in
/// flight when a run stopped are outstanding, and are played again before anything new.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Every place from here on is new.
    pub drawn: u64,
    /// Places before it that were not used.
    #[serde(default)]
    pub outstanding: BTreeSet<u64>,
}

impl Position {
    /// How many were used.
    pub fn used(&self) -> u64 {
        self.drawn.saturating_sub(self.outstanding.len() as u64)
    }

    /// The places to use next: outstanding ones, then new ones.
    pub fn upcoming(&self) -> impl Iterator<Item = u64> + use<> {
        self.outstanding.clone().into_iter().chain(self.drawn..)
    }

    /// Places were used.
    pub fn take(&mut self, places: impl IntoIterator<Item = u64>) {
        for place in places {
            if place < self.drawn {
                self.outstanding.remove(&place);
            } else {
                self.outstanding.extend(self.drawn..place);
                self.drawn = place + 1;
            }
        }
    }
}
