//! AdamW, learning-rate schedules, clipping.
//!
//! The update is torch's (Loshchilov and Hutter, <https://arxiv.org/abs/1711.05101>, algorithm 2, as
//! `torch.optim.AdamW` computes it), element by element over each unit's shard:
//!
//! ```text
//! p <- p (1 - lr wd)      m <- b1 m + (1 - b1) g      v <- b2 v + (1 - b2) g^2
//! p <- p - lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)
//! ```

use std::time::Instant;

use espalier_engine::fused::{self, AdamWStep};
use espalier_engine::shim::ShimError;
use regex::Regex;
use serde::{Deserialize, Serialize};
use tch::Tensor;

use crate::error::TrainError;
use crate::layout::Flat;
use crate::model::{TrainModel, scatter};

/// How the learning rate goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// Rises over the warm-up, then stays.
    #[default]
    ConstantWithWarmup,
    /// Rises over the warm-up, then falls to 0 at the last step in a straight line.
    Linear,
    /// Rises over the warm-up, then falls to 0 at the last step along half a cosine.
    Cosine,
}

/// Parameters that are treated differently from the rest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParameterGroup {
    /// A regular expression that is searched in parameter names; the first group that fits counts.
    pub pattern: String,
    /// Instead of the common weight decay.
    #[serde(default)]
    pub weight_decay: Option<f64>,
    /// Factor of the learning rate.
    #[serde(default = "one")]
    pub lr_scale: f64,
}

fn one() -> f64 {
    1.0
}

/// `optimizer_config`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerConfig {
    /// Learning rate after warm-up.
    pub lr: f64,
    /// Decay of the two moments.
    pub adam_betas: [f64; 2],
    /// Added to the denominator.
    pub eps: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Gradients are scaled down to this L2 norm; 0 leaves them.
    pub max_grad_norm: f64,
    /// Steps over which the learning rate rises.
    pub num_warmup_steps: u64,
    /// How it goes then.
    pub scheduler: Schedule,
    /// Parameters that are treated differently.
    pub groups: Vec<ParameterGroup>,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self {
            lr: 1e-6,
            adam_betas: [0.9, 0.999],
            eps: 1e-8,
            weight_decay: 0.01,
            max_grad_norm: 1.0,
            num_warmup_steps: 0,
            scheduler: Schedule::ConstantWithWarmup,
            groups: Vec::new(),
        }
    }
}

impl OptimizerConfig {
    /// Checks ranges.
    pub fn validate(&self, key: &str) -> Result<(), TrainError> {
        let wrong = |name: &str, expected: &str, found: String| {
            Err(TrainError::Config { key: format!("{key}.{name}"), expected: expected.to_owned(), found })
        };
        if !(self.lr.is_finite() && self.lr >= 0.0) {
            return wrong("lr", "a number of at least 0", self.lr.to_string());
        }
        if let Some(beta) = self.adam_betas.iter().find(|b| !(0.0..1.0).contains(*b)) {
            return wrong("adam_betas", "two numbers from 0, below 1", beta.to_string());
        }
        for (name, value) in
            [("eps", self.eps), ("weight_decay", self.weight_decay), ("max_grad_norm", self.max_grad_norm)]
        {
            if !(value.is_finite() && value >= 0.0) {
                return wrong(name, "a number of at least 0", value.to_string());
            }
        }
        for group in &self.groups {
            if let Err(error) = Regex::new(&group.pattern) {
                return wrong("groups.pattern", "a regular expression", format!("`{}`: {error}", group.pattern));
            }
        }
        Ok(())
    }

    /// Learning rate of the step after `done` finished ones, of `total` in all, as `transformers`' schedulers give it.
    pub fn lr_at(&self, done: u64, total: u64) -> f64 {
        let (done, warmup, total) = (done as f64, self.num_warmup_steps as f64, total as f64);
        if done < warmup {
            return self.lr * done / warmup.max(1.0);
        }
        let progress = (done - warmup) / (total - warmup).max(1.0);
        self.lr
            * match self.scheduler {
                Schedule::ConstantWithWarmup => 1.0,
                Schedule::Linear => (1.0 - progress).max(0.0),
                Schedule::Cosine => (0.5 * (1.0 + (std::f64::consts::PI * progress).cos())).max(0.0),
            }
    }
}

/// What an optimiser step did.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepReport {
    /// L2 norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Learning rate that was used, or would have been.
    pub lr: f64,
    /// Whether the step was left out because the norm is not finite.
    pub skipped: bool,
}

/// A stretch of a shard with one rule.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stretch {
    from: i64,
    len: i64,
    /// The group's own; else the common one, as it is at the step.
    weight_decay: Option<f64>,
    lr_scale: f64,
}

struct Moments {
    first: Tensor,
    second: Tensor,
}

/// The arithmetic of one step, element by element, in place.
#[derive(Clone, Copy, Debug)]
pub struct Update {
    lr: f64,
    betas: [f64; 2],
    eps: f64,
    /// `1 - b1^t` and `sqrt(1 - b2^t)`.
    corrections: [f64; 2],
}

impl Update {
    /// The `step`-th step, counted from 1.
    pub fn new(config: &OptimizerConfig, lr: f64, step: u64) -> Self {
        let [b1, b2] = config.adam_betas;
        let corrections = [1.0 - b1.powf(step as f64), (1.0 - b2.powf(step as f64)).sqrt()];
        Self { lr, betas: config.adam_betas, eps: config.eps, corrections }
    }

    /// Parameters and moments take a step, all equally long, in one pass over them. The gradient counts `clip` times;
    /// `narrow` gets the parameters as bfloat16.
    pub fn apply(
        &self,
        parameters: &mut Tensor,
        moments: (&mut Tensor, &mut Tensor),
        gradient: &Tensor,
        narrow: Option<&mut Tensor>,
        clip: f64,
        (weight_decay, lr_scale): (f64, f64),
    ) -> Result<(), ShimError> {
        let lr = self.lr * lr_scale;
        let step = AdamWStep {
            betas: self.betas,
            clip,
            decay: 1.0 - lr * weight_decay,
            rate: lr / self.corrections[0],
            correction: self.corrections[1],
            eps: self.eps,
        };
        fused::adamw(parameters, moments, gradient, narrow, step)
    }
}

/// Gives both moments of a parameter by name and shape.
pub type FindMoments<'a> = dyn FnMut(&str, &[i64]) -> Result<(Tensor, Tensor), TrainError> + 'a;

/// AdamW over a model's shards. Moments are made at the first step.
pub struct AdamW {
    config: OptimizerConfig,
    /// For each unit.
    stretches: Vec<Vec<Stretch>>,
    moments: Vec<Option<Moments>>,
    steps: u64,
    skipped: u64,
}

impl AdamW {
    /// An optimiser for a model.
    pub fn new(config: OptimizerConfig, model: &TrainModel) -> Result<Self, TrainError> {
        config.validate("optimizer_config")?;
        let patterns: Vec<Regex> = config.groups.iter().filter_map(|g| Regex::new(&g.pattern).ok()).collect();
        let world = model.group().world_size() as i64;
        let rank = model.group().rank() as i64;
        let stretches =
            model.units.iter().map(|unit| stretches(&unit.layout.trained, &config, &patterns, rank, world)).collect();
        Ok(Self { config, stretches, moments: model.units.iter().map(|_| None).collect(), steps: 0, skipped: 0 })
    }

    /// What it was made with.
    pub fn config(&self) -> &OptimizerConfig {
        &self.config
    }

    /// Finished steps, without those left out.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Steps left out because a gradient was not finite.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Changes the learning rate's end point and the rest of the settings between steps.
    pub fn set_config(&mut self, config: OptimizerConfig) -> Result<(), TrainError> {
        config.validate("optimizer_config")?;
        self.config = OptimizerConfig { groups: self.config.groups.clone(), ..config };
        Ok(())
    }

    /// Bytes of the moments on this process.
    pub fn resident_bytes(&self) -> usize {
        let size = |t: &Tensor| t.numel() * t.kind().elt_size_in_bytes();
        self.moments.iter().flatten().map(|m| size(&m.first) + size(&m.second)).sum()
    }

    /// Clips, updates, forgets the gradients. `total` is the planned number of steps, for the schedule. A gradient that
    /// is not finite leaves parameters, moments and schedule as they are and is counted.
    pub fn step(&mut self, model: &mut TrainModel, total: u64) -> Result<StepReport, TrainError> {
        let _guard = tch::no_grad_guard();
        let begun = Instant::now();
        let lr = self.config.lr_at(self.steps, total);
        let grad_norm = model.gradient_norm()?;
        if !grad_norm.is_finite() {
            model.zero_gradients();
            self.skipped += 1;
            return Ok(StepReport { grad_norm, lr, skipped: true });
        }
        // torch.nn.utils.clip_grad_norm_
        let clip = self.config.max_grad_norm;
        let factor = if clip > 0.0 { (clip / (grad_norm + 1e-6)).min(1.0) } else { 1.0 };
        self.steps += 1;
        let update = Update::new(&self.config, lr, self.steps);
        for (index, unit) in model.units.iter_mut().enumerate() {
            let Some(gradient) = unit.gradient.take() else { continue };
            if self.moments[index].is_none() {
                self.moments[index] =
                    Some(Moments { first: unit.master.f_zeros_like()?, second: unit.master.f_zeros_like()? });
            }
            let Some(moments) = &mut self.moments[index] else { continue };
            for s in &self.stretches[index] {
                let part = |t: &Tensor| t.f_narrow(0, s.from, s.len);
                let (mut first, mut second) = (part(&moments.first)?, part(&moments.second)?);
                let mut narrow = unit.compute.as_ref().map(part).transpose()?;
                let (parameters, gradient) = (&mut part(&unit.master)?, &part(&gradient)?);
                let rule = (s.weight_decay.unwrap_or(self.config.weight_decay), s.lr_scale);
                update.apply(parameters, (&mut first, &mut second), gradient, narrow.as_mut(), factor, rule)?;
            }
        }
        model.busy_since(begun);
        Ok(StepReport { grad_norm, lr, skipped: false })
    }

    /// Whole moments by parameter name: `each` gets the name, the first and the second moment. Nothing before the first
    /// step. All processes must call this together.
    pub fn visit(
        &self,
        model: &TrainModel,
        each: &mut dyn FnMut(&str, Tensor, Tensor) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        let _guard = tch::no_grad_guard();
        for (unit, moments) in model.units.iter().zip(&self.moments) {
            let Some(moments) = moments else { continue };
            let (first, second) = (model.whole(&moments.first)?, model.whole(&moments.second)?);
            for (offset, part) in unit.layout.trained.parts() {
                let own = |t: &Tensor| t.f_narrow(0, offset, part.numel())?.f_view(part.shape.as_slice());
                each(&part.name, own(&first)?, own(&second)?)?;
            }
        }
        Ok(())
    }

    /// Goes on after `steps` finished and `skipped` left-out steps; `find` gives both moments by name and shape.
    pub fn restore(
        &mut self,
        model: &TrainModel,
        steps: u64,
        skipped: u64,
        find: &mut FindMoments<'_>,
    ) -> Result<(), TrainError> {
        let world = model.group().world_size() as i64;
        let rank = model.group().rank() as i64;
        for (unit, own) in model.units.iter().zip(&mut self.moments) {
            let flat = &unit.layout.trained;
            if flat.numel() == 0 || steps == 0 {
                *own = None;
                continue;
            }
            let (mut first, mut second) = (unit.master.f_zeros_like()?, unit.master.f_zeros_like()?);
            let len = flat.shard_len(world);
            scatter(flat, &mut first, rank * len, len, &mut |name, shape| Ok(find(name, shape)?.0))?;
            scatter(flat, &mut second, rank * len, len, &mut |name, shape| Ok(find(name, shape)?.1))?;
            *own = Some(Moments { first, second });
        }
        self.steps = steps;
        self.skipped = skipped;
        Ok(())
    }
}

/// Stretches of this process's shard, neighbours with the same rule joined.
fn stretches(flat: &Flat, config: &OptimizerConfig, patterns: &[Regex], rank: i64, world: i64) -> Vec<Stretch> {
    let len = flat.shard_len(world);
    let (start, end) = (rank * len, (rank + 1) * len);
    let mut all: Vec<Stretch> = Vec::new();
    for (offset, part) in flat.parts() {
        let (from, to) = (offset.max(start), (offset + part.numel()).min(end));
        if from >= to {
            continue;
        }
        let group = patterns.iter().position(|p| p.is_match(&part.name)).map(|i| &config.groups[i]);
        let next = Stretch {
            from: from - start,
            len: to - from,
            weight_decay: group.and_then(|g| g.weight_decay),
            lr_scale: group.map_or(1.0, |g| g.lr_scale),
        };
        match all.last_mut() {
            Some(last)
                if last.from + last.len == next.from
                    && last.weight_decay == next.weight_decay
                    && last.lr_scale == next.lr_scale =>
            {
                last.len += next.len;
            }
            _ => all.push(next),
        }
    }
    all
}
