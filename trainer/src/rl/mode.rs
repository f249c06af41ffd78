//! Whether sampling and training take turns or go on side by side.

use espalier_algorithms::config::{AlgorithmConfig, CispoAnchor, PolicyLossKind};
use serde::{Deserialize, Serialize};

use super::staleness::Admission;
use crate::error::TrainError;

/// `trainer.mode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// A batch is sampled, then trained on.
    #[default]
    Sync,
    /// The next batch is sampled while one trains; batches are those of `sync`.
    OneStepOff,
    /// Groups are sampled all the time; a step trains on those that are ready, within `fully_async.max_staleness_steps`.
    FullyAsync,
}

/// `trainer.fully_async`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FullyAsyncSection {
    /// SkyRL's switch: true is `trainer.mode = "fully_async"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// How many versions old a group of rollouts may be when it trains, counted from the version under which it started.
    pub max_staleness_steps: u64,
    /// Groups that are played at once; as many as the bound admits where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_parallel_generation_workers: Option<usize>,
}

impl Default for FullyAsyncSection {
    fn default() -> Self {
        Self { enabled: None, max_staleness_steps: 4, num_parallel_generation_workers: None }
    }
}

/// How groups are played in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Background {
    /// What may start, and what trains next.
    pub admission: Admission,
    /// Groups that are played at once.
    pub workers: usize,
}

impl Background {
    /// What a mode asks for; none where sampling and training take turns.
    pub fn new(mode: Mode, section: &FullyAsyncSection, batch: usize) -> Option<Self> {
        let (max_staleness, in_order) = match mode {
            Mode::Sync => return None,
            Mode::OneStepOff => (1, true),
            Mode::FullyAsync => (section.max_staleness_steps, false),
        };
        let admission = Admission { batch, max_staleness, in_order };
        let most = usize::try_from(admission.limit(0)).unwrap_or(usize::MAX);
        let workers = section.num_parallel_generation_workers.unwrap_or(most).min(most);
        Some(Self { admission, workers })
    }
}

/// Reads SkyRL's switch into the mode, and checks what goes together. Returns warnings.
pub(crate) fn check(
    mode: &mut Mode,
    section: &mut FullyAsyncSection,
    batch: usize,
    algorithm: &AlgorithmConfig,
) -> Result<Vec<String>, TrainError> {
    let wrong = |key: &str, expected: String, found: String| {
        Err(TrainError::Config { key: format!("trainer.{key}"), expected, found })
    };
    match (section.enabled.take(), *mode) {
        (Some(true), Mode::OneStepOff) => {
            let expected = "false or nothing, as `trainer.mode` is `one_step_off`".to_owned();
            return wrong("fully_async.enabled", expected, "true".to_owned());
        }
        (Some(false), Mode::FullyAsync) => {
            let expected = "true or nothing, as `trainer.mode` is `fully_async`".to_owned();
            return wrong("fully_async.enabled", expected, "false".to_owned());
        }
        (Some(true), _) => *mode = Mode::FullyAsync,
        _ => {}
    }
    let Some(background) = Background::new(*mode, section, batch) else { return Ok(Vec::new()) };
    if section.max_staleness_steps > 1000 {
        let expected = "0 (each batch from the newest weights) to 1000".to_owned();
        return wrong("fully_async.max_staleness_steps", expected, section.max_staleness_steps.to_string());
    }
    let most = background.admission.limit(0);
    if let Some(workers) = section.num_parallel_generation_workers
        && (workers == 0 || workers as u64 > most)
    {
        let expected = format!(
            "1 to {most}: at most `trainer.train_batch_size` x (staleness + 1) groups can be in flight, more would only wait"
        );
        return wrong("fully_async.num_parallel_generation_workers", expected, workers.to_string());
    }
    let corrected = algorithm.off_policy_correction.is_active()
        || matches!(
            algorithm.policy_loss_type,
            PolicyLossKind::RolloutIs | PolicyLossKind::Dppo | PolicyLossKind::Custom(_)
        )
        || (algorithm.policy_loss_type == PolicyLossKind::Cispo && algorithm.cispo.anchor == CispoAnchor::Rollout);
    if corrected || background.admission.max_staleness == 0 {
        return Ok(Vec::new());
    }
    Ok(vec![format!(
        "rollouts may be {} versions old and nothing corrects for it; set \
         `trainer.algorithm.off_policy_correction.tis_ratio_type = \"token\"`, or a loss against the sampler \
         (`rollout_is`, `dppo`)",
        background.admission.max_staleness
    )])
}
