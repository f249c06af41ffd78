//! How long an engine was at work: the time in which at least one request was under way.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use espalier_generator::tree::Service;
use espalier_generator::{Player, Players};
use espalier_inference::{EngineError, EngineInfo, GenerateRequest, Generation, InferenceEngine, SamplingParams};

use super::engine::{Sampler, Weights};
use crate::error::TrainError;

#[derive(Debug, Default)]
struct State {
    running: usize,
    since: Option<Instant>,
    total: Duration,
}

/// The clock.
#[derive(Debug, Default)]
pub struct Meter(Mutex<State>);

impl Meter {
    /// Time so far, up to this moment.
    pub fn total(&self) -> Duration {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.total + state.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// A request is under way for as long as the result lives.
    fn request(self: &Arc<Self>) -> Running {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.running += 1;
        state.since.get_or_insert_with(Instant::now);
        Running(Arc::clone(self))
    }
}

/// One request; one that is dropped is over, too.
struct Running(Arc<Meter>);

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.running -= 1;
        if state.running == 0 {
            let spent = state.since.take().map_or(Duration::ZERO, |since| since.elapsed());
            state.total += spent;
        }
    }
}

/// A sampler whose engines' time is taken.
pub struct Metered {
    sampler: Arc<dyn Sampler>,
    meter: Arc<Meter>,
}

impl Metered {
    /// Takes the time of a sampler's engines.
    pub fn new(sampler: Arc<dyn Sampler>, meter: Arc<Meter>) -> Self {
        Self { sampler, meter }
    }

    fn player(&self, player: Player) -> Player {
        let engine = MeteredEngine { engine: player.engine, meter: Arc::clone(&self.meter) };
        Player { engine: Arc::new(engine), ..player }
    }
}

impl Sampler for Metered {
    fn players(&self, sampling: SamplingParams) -> Players {
        let Players { policy, children, calls, judge } = self.sampler.players(sampling);
        let service = |service: Service| match service {
            Service::Frozen(player) => Service::Frozen(self.player(player)),
            other => other,
        };
        Players {
            policy: self.player(policy),
            children: service(children),
            calls: service(calls),
            judge: service(judge),
        }
    }

    fn wants_adapters(&self) -> bool {
        self.sampler.wants_adapters()
    }

    fn publish(&self, weights: Weights, version: u64) -> Result<(), TrainError> {
        self.sampler.publish(weights, version)
    }
}

struct MeteredEngine {
    engine: Arc<dyn InferenceEngine>,
    meter: Arc<Meter>,
}

#[async_trait]
impl InferenceEngine for MeteredEngine {
    fn info(&self) -> &EngineInfo {
        self.engine.info()
    }

    async fn generate(&self, request: GenerateRequest) -> Result<Vec<Generation>, EngineError> {
        let _running = self.meter.request();
        self.engine.generate(request).await
    }

    fn finish_session(&self, session: &str) {
        self.engine.finish_session(session);
    }
}
