//! `espalier train`, `espalier sft`, `espalier export`.
//!
//! With `--nproc N` this process only starts N copies of itself and waits; a copy finds its place in the variables that
//! `torchrun` would set, and so does a copy that another launcher started.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use espalier_distributed::{Group, LaunchError, spawn_local};
use espalier_engine::{EngineOptions, LocalEngine, Precision};
use espalier_envs::Registry;
use espalier_generator::player::ModelTemplate;
use espalier_inference::{ChatTemplate, Tokenizer};
use espalier_trackers::{ConsoleOptions, Loggers, RunSpec, Tracker as _, Trackers};
use espalier_trainer::checkpoint::{Checkpoint, CheckpointStore};
use espalier_trainer::critic::Critic;
use espalier_trainer::lora::LoraConfig;
use espalier_trainer::optimizer::AdamW;
use espalier_trainer::rl::config::TrainConfig;
use espalier_trainer::rl::engine::LocalSampler;
use espalier_trainer::rl::prompts::Prompts;
use espalier_trainer::rl::{TrainReport, TrainRun};
use espalier_trainer::sft::config::{Resume, SftConfig};
use espalier_trainer::sft::data::{DataSet, ReadOptions, load};
use espalier_trainer::sft::examples::ChatEncoder;
use espalier_trainer::sft::{Numbers, SftReport, SftRun, Watch};
use espalier_trainer::update::{Policy, needs_critic, needs_reference};
use espalier_trainer::{ModelOptions, TrainError, TrainModel, TrainPrecision, export, peft};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::arguments::{ExportArguments, SftArguments, TrainArguments};
use crate::failure::Failure;
use crate::output::{outln, say};
use crate::{interrupt, settings};

impl From<TrainError> for Failure {
    fn from(error: TrainError) -> Self {
        let text = error.to_string();
        match error {
            TrainError::Config { .. } | TrainError::Settings(_) => Self::Configuration(text),
            TrainError::Exists { .. }
            | TrainError::Io { action: "create" | "write" | "sync" | "rename" | "remove", .. } => Self::Output(text),
            TrainError::Model(_) | TrainError::Io { .. } | TrainError::File { .. } | TrainError::Tensor { .. } => {
                Self::Data(text)
            }
            TrainError::Sampling { .. } => Self::Engine(text),
            TrainError::Row { .. } | TrainError::NonFinite { .. } | TrainError::Group(_) | TrainError::Torch(_) => {
                Self::Internal(text)
            }
        }
    }
}

/// Reads a configuration: a file's table with overrides, unknown keys refused with the nearest valid name.
fn read<T: DeserializeOwned>(what: &str, file: Option<&Path>, overrides: &[String]) -> Result<T, Failure> {
    let mut table = match file {
        Some(file) => settings::read_toml(file)?,
        None => Map::new(),
    };
    settings::apply("the override", &mut table, overrides)?;
    let place = file.map_or_else(|| what.to_owned(), |file| format!("`{}`", file.display()));
    espalier_envs::params::read(what, &table).map_err(|error| Failure::from(error).within(&place))
}

/// Starts copies of this command, one a process of the job, and waits for them.
fn launch(processes: usize) -> Result<(), Failure> {
    let program = std::env::current_exe().map_err(|e| Failure::Internal(format!("this program's own path: {e}")))?;
    let mut arguments: Vec<OsString> = Vec::new();
    let mut all = std::env::args_os().skip(1);
    while let Some(argument) = all.next() {
        if argument == "--nproc" {
            all.next();
        } else if !argument.to_string_lossy().starts_with("--nproc=") {
            arguments.push(argument);
        }
    }
    let none: [(&str, &str); 0] = [];
    spawn_local(processes, &program, arguments, none).map_err(|error| match error {
        LaunchError::Interrupted { killed: false, .. } => Failure::Stopped,
        LaunchError::Interrupted { killed: true, .. } => {
            Failure::Interrupted("a second signal ended all processes at once; checkpoints before are kept".to_owned())
        }
        other => Failure::Internal(other.to_string()),
    })
}

/// Whether this is one process of a job that another program started.
fn is_rank() -> bool {
    let set = |name: &str| std::env::var_os(name).is_some();
    set("RANK") || set("SLURM_PROCID") && set("SLURM_NTASKS")
}

/// Says what is said once, not by every process of a job.
fn warn(warnings: &[String]) {
    for warning in warnings.iter().filter(|_| !is_rank()) {
        say!("warning: {warning}");
    }
}

/// Says where `latest` has nothing to go on from.
fn say_fresh(resume: &Resume, root: Option<&Path>) -> Result<(), Failure> {
    if let (Resume::Latest, Some(root), false) = (resume, root, is_rank())
        && CheckpointStore::new(root, None).steps()?.is_empty()
    {
        say!("`{}` holds no checkpoint: this run begins at the beginning", root.display());
    }
    Ok(())
}

/// Says how many steps changed nothing.
fn say_skipped(skipped: u64) {
    if skipped > 0 {
        say!("warning: {skipped} optimiser steps were left out, as their gradients were not finite");
    }
}

/// This process's place among those of the job.
fn group() -> Result<Group, Failure> {
    if is_rank() {
        return Group::from_env().map_err(|error| Failure::Configuration(error.to_string()));
    }
    Ok(Group::single())
}

/// Sends numbers to trackers and hears of Ctrl-C.
struct Reporter {
    trackers: Option<Trackers>,
    stop: Arc<AtomicBool>,
    quiet: bool,
}

impl Watch for Reporter {
    fn log(&mut self, step: u64, numbers: &Numbers) {
        if let Some(trackers) = &mut self.trackers {
            // A backend that fails has said so and is gone.
            let _ = trackers.log(step, numbers);
        }
    }

    fn saved(&mut self, step: u64, path: &Path) {
        if !self.quiet {
            say!("step {step}: checkpoint `{}`", path.display());
        }
    }

    fn stop(&mut self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// What a console shows of a step; the other trackers get everything.
const SHOWN: [&str; 15] = [
    "train/loss",
    "train/grad_norm",
    "train/lr",
    "train/tokens_per_second",
    "reward/",
    "policy/final_loss",
    "policy/grad_norm",
    "policy/policy_entropy",
    "policy/rollout_train_logprobs_abs_diff_mean",
    "critic/critic_loss",
    "distillation/reverse_kl_mean",
    "async/staleness_m",
    "eval/all/avg_score",
    "eval/all/pass_at",
    "timing/step",
];

/// The same of `sft`, whose evaluations have one figure each.
const SHOWN_OF_SFT: [&str; 6] =
    ["train/loss", "train/grad_norm", "train/lr", "train/tokens_per_second", "eval/", "timing/step"];

/// What a reporter needs to know of a run.
struct Reported<'a> {
    /// The key of `logger`, and what it says.
    logger: (&'a str, &'a Value),
    /// Project and run.
    names: (&'a str, &'a str),
    /// Where files go.
    folder: &'a Path,
    /// The whole configuration.
    config: Value,
    /// What a console shows.
    shown: &'a [&'a str],
}

/// Where a run's numbers go; the first process alone reports.
fn reporter(first: bool, of: Reported<'_>, stop: Arc<AtomicBool>, quiet: bool) -> Result<Reporter, Failure> {
    if !first {
        return Ok(Reporter { trackers: None, stop, quiet: true });
    }
    let (key, logger) = of.logger;
    let loggers: Loggers =
        serde_json::from_value(logger.clone()).map_err(|error| Failure::Configuration(format!("`{key}`: {error}")))?;
    let prefixes = of.shown.iter().map(|&name| name.to_owned()).collect();
    let spec = RunSpec {
        logger: loggers,
        project_name: of.names.0.to_owned(),
        run_name: of.names.1.to_owned(),
        directory: of.folder.to_owned(),
        config: of.config,
        console: ConsoleOptions { prefixes, ..ConsoleOptions::default() },
        ..RunSpec::default()
    };
    let trackers = Trackers::open(&spec).map_err(|error| Failure::Configuration(error.to_string()))?;
    Ok(Reporter { trackers: Some(trackers), stop, quiet })
}

/// A flag that Ctrl-C sets; what was done is kept.
fn stop_flag(cancel: &CancellationToken) -> (Arc<AtomicBool>, tokio::task::JoinHandle<()>) {
    let flag = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&flag);
    let cancelled = cancel.clone();
    let task = tokio::spawn(interrupt::stop_and_keep(cancel.clone()));
    tokio::spawn(async move {
        cancelled.cancelled().await;
        set.store(true, Ordering::Relaxed);
    });
    (flag, task)
}

/// Runs work that blocks on this thread, the process's first: its tensors lie in the heap that keeps what is freed, and
/// are not given back to the system after every step only to be asked for again.
fn blocking<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    espalier_engine::fused::keep_memory();
    tokio::task::block_in_place(work)
}

pub(crate) fn sft(arguments: SftArguments) -> Result<(), Failure> {
    let mut overrides = Vec::new();
    if let Some(model) = &arguments.model {
        overrides.push(format!("model.path={}", json!(settings::model_folder(model))));
    }
    overrides.extend(arguments.overrides.iter().cloned());
    let mut config: SftConfig = read("sft", arguments.config.as_deref(), &overrides)?;
    for path in &arguments.data {
        let mut spec = espalier_trainer::sft::data::DataSpec::new(path.clone());
        spec.filter.clone_from(&arguments.filter);
        config.train_datasets.push(espalier_trainer::sft::config::DataEntry::Spec(spec));
    }
    config.model.path = settings::model_folder(&config.model.path);
    warn(&config.validate()?);
    config.check_places()?;
    say_fresh(&config.resume_from, config.ckpt_path.as_deref())?;
    if let Some(processes) = arguments.nproc.filter(|n| n.get() > 1) {
        return tokio::task::block_in_place(|| launch(processes.get()));
    }
    let cancel = CancellationToken::new();
    let (stop, task) = stop_flag(&cancel);
    let (json, kept) = (arguments.json, config.ckpt_path.is_some());
    let report = blocking(|| run_sft(config, stop, json));
    task.abort();
    let (report, first) = report?;
    if first {
        say_skipped(report.skipped);
        if json {
            let p = report.position;
            outln!(
                "{}",
                json!({
                    "steps": p.step,
                    "examples": p.examples,
                    "loss": report.last_loss,
                    "skipped_steps": report.skipped,
                    "finished": report.finished,
                })
            )?;
        } else if report.taken == 0 && report.finished {
            outln!("nothing left to do: all {} steps were done before", report.position.step)?;
        } else {
            outln!(
                "{} steps, {} examples, last loss {:.4}",
                report.position.step,
                report.position.examples,
                report.last_loss
            )?;
        }
    }
    finished(report.finished, kept, "resume_from")
}

fn finished(whole: bool, kept: bool, resume: &str) -> Result<(), Failure> {
    if whole {
        return Ok(());
    }
    Err(Failure::Interrupted(if kept {
        format!("the last checkpoint is kept; the same command with `{resume}=latest` goes on")
    } else {
        "nothing is kept, as there is no `ckpt_path`".to_owned()
    }))
}

fn run_sft(config: SftConfig, stop: Arc<AtomicBool>, quiet: bool) -> Result<(SftReport, bool), Failure> {
    let group = group()?;
    let first = group.rank() == 0;
    let base = config.model.path.clone();
    let tokenizer = Tokenizer::from_dir(&base).map_err(|e| Failure::Data(e.to_string()))?;
    let template = ChatTemplate::from_dir(&base).map_err(|e| Failure::Data(e.to_string()))?;
    let cache = config.cache_dir.clone().or_else(|| settings::cache_folder().map(|c| c.join("sft")));
    let options = ReadOptions {
        encoder: ChatEncoder {
            tokenizer,
            template,
            train_on: config.train_on_what,
            kwargs: config.chat_template_kwargs.clone(),
        },
        columns: config.columns(),
        max_length: config.max_length,
        overlong: config.overlong,
        cache: cache.filter(|_| !config.disable_cache),
        vocab: u64::try_from(espalier_engine::models::read_config(&base)?.decoder.vocab).ok(),
        vocabulary: vocabulary(&base),
    };
    let read = |entries: &[espalier_trainer::sft::config::DataEntry]| -> Result<Vec<DataSet>, Failure> {
        let sets: Result<Vec<DataSet>, TrainError> =
            entries.iter().map(|entry| load(&entry.spec(), &options)).collect();
        let sets = sets?;
        for set in sets.iter().filter(|set| first && set.overlong + set.empty > 0) {
            say!(
                "`{}`: {} rows; {} longer than max_length, {} with nothing to learn",
                set.name,
                set.examples.len(),
                set.overlong,
                set.empty
            );
        }
        Ok(sets)
    };
    let (train, eval) = (read(&config.train_datasets)?, read(&config.eval_datasets)?);
    let model_options = ModelOptions {
        precision: config.precision,
        lora: config.model.lora.clone(),
        gradient_checkpointing: config.gradient_checkpointing,
        seed: config.seed,
    };
    let model = TrainModel::load(&base, model_options, group)?;
    let folder = config.ckpt_path.clone().unwrap_or_else(|| PathBuf::from("runs").join(&config.run_name));
    let names = (config.project_name.clone(), config.run_name.clone());
    let as_json = serde_json::to_value(&config).unwrap_or_default();
    let reported = Reported {
        logger: ("logger", &config.logger),
        names: (&names.0, &names.1),
        folder: &folder,
        config: as_json,
        shown: &SHOWN_OF_SFT,
    };
    let mut watch = reporter(first, reported, stop, quiet)?;
    let export_path = config.export_path.clone();
    let run = SftRun { config, model, train, eval };
    let outcome = run.run(&mut watch);
    if let Some(trackers) = &mut watch.trackers {
        let _ = trackers.finish(i32::from(outcome.is_err()));
    }
    let (report, model) = outcome?;
    if let Some(path) = export_path.filter(|_| report.finished) {
        write_model(&model, &path, &base)?;
    }
    Ok((report, first))
}

/// An adapter in PEFT's layout, or a whole model.
fn write_model(model: &TrainModel, to: &Path, base: &Path) -> Result<(), Failure> {
    if let Some(parent) = to.parent().filter(|p| !p.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent)
            .map_err(|e| Failure::Output(format!("cannot create `{}`: {e}", parent.display())))?;
    }
    if model.targets().is_some() {
        return Ok(peft::save(model, to, &base.to_string_lossy())?);
    }
    Ok(export::save_hf(model, to, base, tch_kind(model.options().precision))?)
}

/// The type that a whole model is written in.
fn tch_kind(precision: TrainPrecision) -> espalier_trainer::Kind {
    match precision {
        TrainPrecision::Bf16 => espalier_trainer::Kind::BFloat16,
        other => other.compute(),
    }
}

/// Names the tokenizer and template of a folder by content.
fn vocabulary(folder: &Path) -> String {
    let mut text = String::new();
    for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        text.push_str(&std::fs::read_to_string(folder.join(name)).unwrap_or_default());
    }
    espalier_trainer::files::sha256(text.as_bytes())
}

pub(crate) fn train(arguments: TrainArguments) -> Result<(), Failure> {
    let mut config: TrainConfig = read("train", Some(&arguments.config), &arguments.overrides)?;
    let path = settings::model_folder(&config.trainer.policy.model.path);
    config.trainer.policy.model.path = path;
    warn(&config.validate()?);
    config.check_places()?;
    say_fresh(&config.trainer.resume_mode, config.trainer.ckpt_path.as_deref())?;
    if let Some(processes) = arguments.nproc.filter(|n| n.get() > 1) {
        return tokio::task::block_in_place(|| launch(processes.get()));
    }
    let cancel = CancellationToken::new();
    let (stop, task) = stop_flag(&cancel);
    let runtime = tokio::runtime::Handle::current();
    let (json, kept) = (arguments.json, config.trainer.ckpt_path.is_some());
    let report = blocking(|| run_train(config, runtime, cancel, stop, json));
    task.abort();
    let (report, first) = report?;
    if first {
        say_skipped(report.skipped);
        if json {
            outln!(
                "{}",
                json!({
                    "steps": report.steps,
                    "reward": report.last_reward,
                    "eval": report.last_eval,
                    "skipped_steps": report.skipped,
                    "finished": report.finished,
                })
            )?;
        } else if report.taken == 0 && report.finished {
            outln!("nothing left to do: all {} steps were done before", report.steps)?;
        } else {
            let eval = report.last_eval.map(|e| format!(", evaluation {e:.3}")).unwrap_or_default();
            outln!("{} steps, last mean reward {:.3}{eval}", report.steps, report.last_reward)?;
        }
    }
    finished(report.finished, kept, "trainer.resume_mode")
}

fn run_train(
    config: TrainConfig,
    runtime: tokio::runtime::Handle,
    cancel: CancellationToken,
    stop: Arc<AtomicBool>,
    quiet: bool,
) -> Result<(TrainReport, bool), Failure> {
    let group = group()?;
    let first = group.rank() == 0;
    let (t, g) = (&config.trainer, &config.generator);
    let base = t.policy.model.path.clone();
    let registry = Registry::standard();
    let env = &config.environment;
    let prompts = |sources: &[espalier_datasets::Source], key: &str| {
        Prompts::read(sources, &env.env_class, &env.params, &registry, key)
    };
    let train = prompts(&config.data.train_data, "data.train_data")?;
    let eval = prompts(&config.data.val_data, "data.val_data")?;
    let options = |lora: LoraConfig| ModelOptions {
        precision: t.precision,
        lora,
        gradient_checkpointing: t.gradient_checkpointing,
        seed: t.seed,
    };
    let model = TrainModel::load(&base, options(t.policy.model.lora.clone()), group)?;
    let frozen = |path: &Path| TrainModel::load_frozen(path, options(LoraConfig::default()), model.shared_group());
    // With adapters the base without them is the reference, unless another model is named.
    let own = Some(&t.reference.model.path).filter(|path| !path.as_os_str().is_empty()).map(settings::model_folder);
    let reference = match own.filter(|path| !same_folder(path, &base)) {
        _ if !needs_reference(&t.algorithm) => None,
        Some(path) => {
            same_tokenizer("trainer.ref.model.path", &base, &path)?;
            Some(frozen(&path)?)
        }
        None if model.targets().is_none() => Some(frozen(&base)?),
        None => None,
    };
    let teacher = match &t.algorithm.distillation {
        None => None,
        Some(_) => {
            let path = settings::model_folder(&t.teacher.model.path);
            same_tokenizer("trainer.teacher.model.path", &base, &path)?;
            Some(frozen(&path)?)
        }
    };
    let critic = if needs_critic(&t.algorithm) {
        let section = &t.critic;
        let (path, prefix) = (settings::model_folder(&section.model.path), &t.algorithm.value_head_prefix);
        let model = TrainModel::load_critic(&path, options(section.model.lora.clone()), prefix, model.shared_group())?;
        let optimizer = AdamW::new(section.optimizer_config.clone(), &model)?;
        Some(Critic::new(model, optimizer, &t.algorithm)?)
    } else {
        None
    };
    let optimizer = AdamW::new(t.policy.optimizer_config.clone(), &model)?;
    let sampler: Option<Arc<dyn espalier_trainer::rl::engine::Sampler>> = if first {
        let precision = if t.precision == TrainPrecision::Bf16 { Precision::Bf16 } else { Precision::F32 };
        let engine = EngineOptions {
            precision,
            kv_cache_mb: g.kv_cache_mb,
            max_batch: g.max_num_seqs,
            seed: t.seed,
            ..EngineOptions::default()
        };
        let engine = Arc::new(LocalEngine::load(&base, engine).map_err(|e| Failure::Data(e.to_string()))?);
        let Some(template) = engine.template().cloned() else {
            return Err(Failure::Data(format!("`{}` has no chat template", base.display())));
        };
        let template = Arc::new(ModelTemplate::new(engine.tokenizer().clone(), template));
        Some(Arc::new(LocalSampler::new(engine, template)))
    } else {
        None
    };
    let policy = Policy::new(model, optimizer, reference, t.algorithm.clone(), None)?;
    let folder = t.ckpt_path.clone().unwrap_or_else(|| PathBuf::from("runs").join(&t.run_name));
    let as_json = serde_json::to_value(&config).unwrap_or_default();
    let reported = Reported {
        logger: ("trainer.logger", &t.logger),
        names: (&t.project_name, &t.run_name),
        folder: &folder,
        config: as_json,
        shown: &SHOWN,
    };
    let mut watch = reporter(first, reported, stop, quiet)?;
    let export_path = t.export_path.clone();
    let run = TrainRun::new(config, policy, sampler, train, runtime);
    let run = TrainRun { critic, teacher, eval, cancel, ..run };
    let outcome = run.run(&mut watch);
    if let Some(trackers) = &mut watch.trackers {
        let _ = trackers.finish(i32::from(outcome.is_err()));
    }
    let (report, policy) = outcome?;
    if let Some(path) = export_path.filter(|_| report.finished) {
        write_model(&policy.model, &path, &base)?;
    }
    Ok((report, first))
}

/// Whether two paths lead to the same folder.
fn same_folder(a: &Path, b: &Path) -> bool {
    a == b || a.canonicalize().ok().zip(b.canonicalize().ok()).is_some_and(|(a, b)| a == b)
}

/// A teacher or a reference judges the tokens that the policy sampled: they must mean the same to it. `key` names it.
fn same_tokenizer(key: &str, policy: &Path, other: &Path) -> Result<(), Failure> {
    let tokens = |folder: &Path| Tokenizer::from_dir(folder).map_err(|e| Failure::Data(e.to_string()));
    let (own, others) = (tokens(policy)?, tokens(other)?);
    if (0..own.vocab_size() as u32).all(|id| own.token(id) == others.token(id)) {
        return Ok(());
    }
    Err(Failure::Configuration(format!(
        "`{key}`: expected a model of the policy's tokenizer, found one whose tokens differ (`{}`); choose one of the policy's \
         family",
        other.display()
    )))
}

pub(crate) fn export(arguments: ExportArguments) -> Result<(), Failure> {
    let base = settings::model_folder(&arguments.base);
    if arguments.out.exists() {
        return Err(Failure::Output(format!(
            "`{}`: it exists already; remove it or choose another place",
            arguments.out.display()
        )));
    }
    let checkpoint = Checkpoint::open(&arguments.checkpoint)?;
    let adapter = checkpoint.path().join("policy/adapter");
    let lora = if adapter.exists() { peft::read_config(&adapter)? } else { LoraConfig::default() };
    let adapted = lora.rank > 0;
    let options = ModelOptions { precision: TrainPrecision::F32, lora, ..ModelOptions::default() };
    let mut model = TrainModel::load(&base, options, Group::single())?;
    checkpoint.restore_weights(&mut model)?;
    if adapted && !arguments.merge {
        peft::save(&model, &arguments.out, &base.to_string_lossy())?;
    } else {
        let kind = match arguments.dtype.as_str() {
            "f32" => espalier_trainer::Kind::Float,
            _ => espalier_trainer::Kind::BFloat16,
        };
        export::save_hf(&model, &arguments.out, &base, kind)?;
    }
    outln!("`{}`: step {} of `{}`", arguments.out.display(), checkpoint.step(), checkpoint.path().display())
}
