//! Checkpoints: folders `global_step_N` that are whole or not there, and lead to the same next step.
//!
//! ```text
//! latest_ckpt_global_step.txt     the step that was saved last, written last
//! run.lock                        locked while a process trains here
//! global_step_N/
//!   manifest.json                 size and SHA-256 of every other file; of adapters, which base they belong to
//!   trainer_state.json            step, optimiser steps, dropout position, and what the loop keeps
//!   policy/trained.safetensors    trained parameters by name, in the master's type
//!   policy/moments.safetensors    `exp_avg.NAME` and `exp_avg_sq.NAME`
//!   policy/adapter/               the same adapter in PEFT's layout, where there is one
//!   critic/                       the critic's two files, where there is one
//! ```
//!
//! Parameters lie under their names, not in shards, so any number of processes resumes what any other number saved.

use std::fs;
use std::path::{Path, PathBuf};

use espalier_distributed::Reduction;
use espalier_generator::output::{OutputError, RunLock};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tch::Tensor;

use crate::error::TrainError;
use crate::files::{self, PendingFolder, SafetensorsReader, SafetensorsWriter, read_json, write_json};
use crate::manifest::{self, Manifest};
use crate::model::{TrainModel, Visit};
use crate::optimizer::AdamW;
use crate::peft;

const LATEST: &str = "latest_ckpt_global_step.txt";
const PREFIX: &str = "global_step_";

/// What a model and its optimiser have counted.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Counts {
    optimizer_steps: u64,
    skipped_steps: u64,
    passes: u64,
    parameters: i64,
}

#[derive(Serialize, Deserialize)]
struct State {
    global_step: u64,
    #[serde(flatten)]
    policy: Counts,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    critic: Option<Counts>,
    /// What the loop keeps.
    state: Value,
}

/// A model and its optimiser, to be saved.
#[derive(Clone, Copy)]
pub struct Saved<'a> {
    /// The model.
    pub model: &'a TrainModel,
    /// Its optimiser.
    pub optimizer: &'a AdamW,
}

impl Saved<'_> {
    fn counts(self) -> Counts {
        Counts {
            optimizer_steps: self.optimizer.steps(),
            skipped_steps: self.optimizer.skipped(),
            passes: self.model.passes(),
            parameters: self.model.parameters().0,
        }
    }
}

/// A folder of checkpoints.
#[derive(Clone, Debug)]
pub struct CheckpointStore {
    root: PathBuf,
    keep: Option<usize>,
}

impl CheckpointStore {
    /// Checkpoints in `root`, of which the newest `keep` stay.
    pub fn new(root: impl Into<PathBuf>, keep: Option<usize>) -> Self {
        Self { root: root.into(), keep }
    }

    /// Where a step's checkpoint lies.
    pub fn path(&self, step: u64) -> PathBuf {
        self.root.join(format!("{PREFIX}{step}"))
    }

    /// Saves a step with what the loop keeps, then removes the oldest beyond those to keep. What fails leaves the
    /// checkpoints before it as they were. All processes must call this together; the first one writes.
    pub fn save(
        &self,
        step: u64,
        model: &TrainModel,
        optimizer: &AdamW,
        state: &Value,
        base: &str,
    ) -> Result<PathBuf, TrainError> {
        self.save_with(step, Saved { model, optimizer }, None, state, base)
    }

    /// The same with a critic beside the policy.
    pub fn save_with(
        &self,
        step: u64,
        policy: Saved<'_>,
        critic: Option<Saved<'_>>,
        state: &Value,
        base: &str,
    ) -> Result<PathBuf, TrainError> {
        let target = self.path(step);
        let written = self.write(step, policy, critic, state, base);
        // Every process learns whether the first one could write.
        let mut whole = Tensor::f_from_slice(&[i64::from(written.is_ok())])?;
        policy.model.group().all_reduce(&mut whole, Reduction::Min)?;
        written?;
        if whole.f_int64_value(&[0])? == 0 {
            let reason = "the first process could not write it; its own error says why".to_owned();
            return Err(TrainError::File { path: target, reason });
        }
        Ok(target)
    }

    fn write(
        &self,
        step: u64,
        policy: Saved<'_>,
        critic: Option<Saved<'_>>,
        state: &Value,
        base: &str,
    ) -> Result<(), TrainError> {
        let mut pending = None;
        let mut failed = None;
        if policy.model.group().rank() == 0 {
            match self.begin(step, critic.is_some()) {
                Ok(folder) => pending = Some(folder),
                Err(error) => failed = Some(error),
            }
        }
        let folder = pending.as_ref().map(|p| p.path().join("policy"));
        // The others gather whatever happens to the first one's disk.
        let mut note = |result: Result<(), TrainError>| {
            if let Err(error) = result {
                failed.get_or_insert(error);
            }
        };
        note(save_trained(policy.model, folder.as_deref()));
        note(save_moments(policy, folder.as_deref()));
        if let Some(critic) = critic {
            let folder = pending.as_ref().map(|p| p.path().join("critic"));
            note(save_trained(critic.model, folder.as_deref()));
            note(save_moments(critic, folder.as_deref()));
        }
        let model = policy.model;
        if model.targets().is_some() {
            let adapter = folder.as_ref().map(|f| f.join("adapter"));
            if let Some(adapter) = &adapter {
                note(fs::create_dir_all(adapter).map_err(TrainError::io("create", adapter)));
            }
            note(peft::save_into(model, adapter.as_deref(), base));
        }
        if let Some(error) = failed {
            return Err(error);
        }
        let Some(pending) = pending else { return Ok(()) };
        let state = State {
            global_step: step,
            policy: policy.counts(),
            critic: critic.map(Saved::counts),
            state: state.clone(),
        };
        write_json(&pending.path().join("trainer_state.json"), &state)?;
        Manifest::seal(pending.path(), base_of(model))?;
        pending.finish()?;
        let latest = self.root.join(format!("{LATEST}.partial"));
        files::write(&latest, step.to_string().as_bytes())?;
        fs::rename(&latest, self.root.join(LATEST)).map_err(TrainError::io("rename", &latest))?;
        files::sync_folder(&self.root)?;
        self.prune(step)
    }

    fn begin(&self, step: u64, critic: bool) -> Result<PendingFolder, TrainError> {
        fs::create_dir_all(&self.root).map_err(TrainError::io("create", &self.root))?;
        let pending = PendingFolder::begin(&self.path(step))?;
        for name in ["policy", "critic"].into_iter().take(if critic { 2 } else { 1 }) {
            let folder = pending.path().join(name);
            fs::create_dir_all(&folder).map_err(TrainError::io("create", &folder))?;
        }
        Ok(pending)
    }

    /// The steps of which there are checkpoints, in their order.
    pub fn steps(&self) -> Result<Vec<u64>, TrainError> {
        let entries = match fs::read_dir(&self.root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(TrainError::io("read", &self.root)(error)),
        };
        let names = entries.flatten().map(|entry| entry.file_name());
        let mut steps: Vec<u64> = names.filter_map(|name| name.to_str()?.strip_prefix(PREFIX)?.parse().ok()).collect();
        steps.sort_unstable();
        Ok(steps)
    }

    /// Removes the oldest up to the step that was saved last, which stays. Later ones are not this run's.
    fn prune(&self, last: u64) -> Result<(), TrainError> {
        let Some(keep) = self.keep else { return Ok(()) };
        let mut steps = self.steps()?;
        steps.retain(|step| *step <= last);
        for step in &steps[..steps.len().saturating_sub(keep.max(1))] {
            let path = self.path(*step);
            fs::remove_dir_all(&path).map_err(TrainError::io("remove", &path))?;
        }
        Ok(())
    }

    /// The checkpoint that was saved last, if there is one.
    pub fn latest(&self) -> Result<Option<Checkpoint>, TrainError> {
        match self.latest_step()? {
            Some(step) => Checkpoint::open(&self.path(step)).map(Some),
            None => Ok(None),
        }
    }

    /// What the file beside the checkpoints names. A process that was killed before it could write that file has left a
    /// later checkpoint that is newer than the file; without the file the latest step counts.
    fn latest_step(&self) -> Result<Option<u64>, TrainError> {
        let steps = self.steps()?;
        let file = self.root.join(LATEST);
        let named = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse::<u64>().ok());
        let Some(named) = named.filter(|step| steps.contains(step)) else { return Ok(steps.last().copied()) };
        let written = |path: &Path| fs::metadata(path).and_then(|m| m.modified()).ok();
        let since = written(&file);
        let newer = |step: &u64| *step > named && written(&self.path(*step).join("manifest.json")) > since;
        Ok(Some(steps.iter().copied().rfind(newer).unwrap_or(named)))
    }

    /// Refuses a folder whose checkpoints a run that goes on after `step` would meet: they are another run's. `resume` is the
    /// key that says where a run goes on from.
    pub fn expect_none_after(&self, step: u64, resume: &str) -> Result<(), TrainError> {
        let mut steps = self.steps()?;
        steps.retain(|other| *other > step);
        let names: Vec<String> = steps.iter().map(|step| format!("`{PREFIX}{step}`")).collect();
        let found = match names.as_slice() {
            [] => return Ok(()),
            [one] => one.clone(),
            [first, .., last] => format!("{first} to {last}"),
        };
        let reason = if step == 0 {
            format!(
                "it holds checkpoints ({found}), and this run would start afresh; go on from them with \
                 `{resume} = \"latest\"`, or choose another folder"
            )
        } else {
            format!(
                "it holds checkpoints of later steps ({found}) than step {step}, from which this run would go on; go on from \
                 them, move them away, or choose another folder"
            )
        };
        Err(TrainError::Exists { path: self.root.clone(), reason })
    }

    /// Keeps other processes from training in this folder for as long as the lock lives.
    pub fn lock(&self) -> Result<RunLock, TrainError> {
        fs::create_dir_all(&self.root).map_err(TrainError::io("create", &self.root))?;
        RunLock::take(&self.root).map_err(|error| TrainError::Exists {
            path: self.root.clone(),
            reason: match error {
                OutputError::Busy(_) => {
                    "another process trains here; wait for its end, or choose another folder".to_owned()
                }
                other => other.to_string(),
            },
        })
    }
}

/// The base that a model's adapters belong to.
fn base_of(model: &TrainModel) -> Option<String> {
    model.targets().and_then(|_| model.base()).map(str::to_owned)
}

fn save_trained(model: &TrainModel, folder: Option<&Path>) -> Result<(), TrainError> {
    let kind = model.options().precision.master();
    let tensors: Vec<_> = model.trained_parts().map(|p| (p.name.clone(), p.shape.clone())).collect();
    let mut out = folder
        .map(|folder| SafetensorsWriter::create(&folder.join("trained.safetensors"), &tensors, kind, None))
        .transpose()?;
    model.visit(Visit::Trained, &mut |name, value| out.as_mut().map_or(Ok(()), |out| out.put(name, &value)))?;
    out.map_or(Ok(()), SafetensorsWriter::finish)
}

pub(crate) fn moment(which: usize, name: &str) -> String {
    format!("{}.{name}", ["exp_avg", "exp_avg_sq"][which])
}

pub(crate) fn save_moments(Saved { model, optimizer }: Saved<'_>, folder: Option<&Path>) -> Result<(), TrainError> {
    if optimizer.steps() == 0 {
        return Ok(());
    }
    let kind = model.options().precision.master();
    let parts = model.trained_parts();
    let tensors: Vec<_> = parts.flat_map(|p| [0, 1].map(|i| (moment(i, &p.name), p.shape.clone()))).collect();
    let mut out = folder
        .map(|folder| SafetensorsWriter::create(&folder.join("moments.safetensors"), &tensors, kind, None))
        .transpose()?;
    optimizer.visit(model, &mut |name, first, second| {
        let Some(out) = &mut out else { return Ok(()) };
        out.put(&moment(0, name), &first)?;
        out.put(&moment(1, name), &second)
    })?;
    out.map_or(Ok(()), SafetensorsWriter::finish)
}

/// A whole checkpoint.
pub struct Checkpoint {
    path: PathBuf,
    base: Option<String>,
    state: State,
}

impl Checkpoint {
    /// Opens a checkpoint folder and checks every file against the manifest.
    pub fn open(path: &Path) -> Result<Self, TrainError> {
        let broken = |reason: String| TrainError::File {
            path: path.to_owned(),
            reason: format!("{reason}; resume from another checkpoint"),
        };
        if !path.is_dir() {
            return Err(TrainError::File {
                path: path.to_owned(),
                reason: "expected a checkpoint folder (`global_step_N`), found nothing of that name".to_owned(),
            });
        }
        if !path.join(manifest::FILE).exists() {
            let steps = CheckpointStore::new(path, None).steps()?;
            if !steps.is_empty() {
                let names: Vec<String> = steps.iter().map(|step| format!("`{PREFIX}{step}`")).collect();
                let reason = format!("expected one checkpoint, found a folder of them; name one: {}", names.join(", "));
                return Err(TrainError::File { path: path.to_owned(), reason });
            }
            return Err(broken(
                "expected a checkpoint with a `manifest.json`, found none: it is half-written".to_owned(),
            ));
        }
        let manifest = Manifest::verify(path)?.map_err(broken)?;
        Ok(Self { path: path.to_owned(), base: manifest.base, state: read_json(&path.join("trainer_state.json"))? })
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The step after which it was saved.
    pub fn step(&self) -> u64 {
        self.state.global_step
    }

    /// What the loop kept.
    pub fn state(&self) -> &Value {
        &self.state.state
    }

    /// Brings a policy to where it was.
    pub fn restore_weights(&self, model: &mut TrainModel) -> Result<(), TrainError> {
        self.weights("policy", self.state.policy, model)
    }

    /// Brings a policy and its optimiser to where they were. They must have been built with the same settings.
    pub fn restore(&self, model: &mut TrainModel, optimizer: &mut AdamW) -> Result<(), TrainError> {
        self.bring("policy", self.state.policy, model, optimizer)
    }

    /// Brings a critic and its optimiser to where they were.
    pub fn restore_critic(&self, model: &mut TrainModel, optimizer: &mut AdamW) -> Result<(), TrainError> {
        let Some(counts) = self.state.critic else {
            let reason =
                "it holds no critic, and this run has one: resume with the same `advantage_estimator`".to_owned();
            return Err(TrainError::File { path: self.path.clone(), reason });
        };
        self.bring("critic", counts, model, optimizer)
    }

    /// Adapters mean something only on the base that they were trained on, at the scaling that they were trained with.
    fn fits(&self, model: &TrainModel) -> Result<(), TrainError> {
        let wrong = |reason: String| Err(TrainError::File { path: self.path.clone(), reason });
        let adapter = self.path.join("policy/adapter");
        if model.targets().is_none() || !adapter.exists() {
            return Ok(());
        }
        match (&self.base, model.base()) {
            (Some(expected), Some(found)) if expected != found => {
                return wrong(format!(
                    "its adapter belongs to another base model: expected one with digest `{expected}`, found `{found}`; \
                     give the model that it was trained on"
                ));
            }
            (None, Some(_)) => tracing::warn!(
                "`{}` does not say which base model its adapter belongs to (an older version wrote it): that it is this one \
                 was not checked",
                self.path.display()
            ),
            _ => {}
        }
        let (saved, own) = (peft::read_config(&adapter)?, &model.options().lora);
        for (key, expected, found) in [
            ("rank", saved.rank.to_string(), own.rank.to_string()),
            ("alpha", saved.alpha.to_string(), own.alpha.to_string()),
            ("use_rslora", saved.use_rslora.to_string(), own.use_rslora.to_string()),
        ] {
            if expected != found {
                return wrong(format!(
                    "`lora.{key}`: its adapter was trained with {expected}, this run has {found}: resume with the same settings"
                ));
            }
        }
        Ok(())
    }

    fn weights(&self, folder: &str, counts: Counts, model: &mut TrainModel) -> Result<(), TrainError> {
        if folder == "policy" {
            self.fits(model)?;
        }
        let trained = SafetensorsReader::open(&self.path.join(folder).join("trained.safetensors"))?;
        model.set_trained(&mut |name, shape| trained.get(name, shape))?;
        model.set_passes(counts.passes);
        Ok(())
    }

    fn bring(
        &self,
        folder: &str,
        counts: Counts,
        model: &mut TrainModel,
        optimizer: &mut AdamW,
    ) -> Result<(), TrainError> {
        self.weights(folder, counts, model)?;
        let found = model.parameters().0;
        if found != counts.parameters {
            return Err(TrainError::File {
                path: self.path.clone(),
                reason: format!(
                    "its {folder} trains {} parameters, this run {found}: resume with the same settings",
                    counts.parameters
                ),
            });
        }
        let moments = if counts.optimizer_steps > 0 {
            Some(SafetensorsReader::open(&self.path.join(folder).join("moments.safetensors"))?)
        } else {
            None
        };
        optimizer.restore(model, counts.optimizer_steps, counts.skipped_steps, &mut |name, shape| {
            let Some(file) = &moments else { unreachable!("moments are asked for after the first step only") };
            Ok((file.get(&moment(0, name), shape)?, file.get(&moment(1, name), shape)?))
        })
    }
}
