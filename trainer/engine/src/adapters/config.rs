//! `adapter_config.json`, as PEFT writes it.
//!
//! Which modules are adapted follows PEFT's `check_target_module_exists`, which rank and alpha a module has its
//! `get_pattern_key`.

use std::path::{Path, PathBuf};

use regex::Regex;
use serde_json::Value;

use super::{Module, Target};
use crate::config::ConfigFile;
use crate::error::ModelError;

/// Largest rank.
const MAX_RANK: i64 = 4096;

/// Names of modules.
#[derive(Clone, Debug)]
enum Names {
    /// Every linear layer but the output layer.
    AllLinear,
    /// Paths, or their ends behind a dot.
    List(Vec<String>),
    /// An expression that the whole path must match.
    Pattern(Regex),
}

impl Names {
    fn matches(&self, module: Module) -> bool {
        let path = module.to_string();
        match self {
            Self::AllLinear => module.target != Target::Head,
            Self::List(names) => names.iter().any(|name| {
                path.strip_suffix(name.as_str()).is_some_and(|before| before.is_empty() || before.ends_with('.'))
            }),
            Self::Pattern(pattern) => pattern.is_match(&path),
        }
    }
}

/// How an adapter was made: ranks, scaling, and which modules it changes.
#[derive(Clone, Debug)]
pub struct AdapterConfig {
    path: PathBuf,
    rank: i64,
    alpha: f64,
    rank_stabilised: bool,
    targets: Names,
    excluded: Option<Names>,
    /// Layers that are adapted; all where absent.
    layers: Option<Vec<i64>>,
    ranks: Vec<(Regex, i64)>,
    alphas: Vec<(Regex, f64)>,
}

impl AdapterConfig {
    /// An adapter of every linear layer but the output layer, with `scaling = alpha / rank`.
    pub fn new(rank: i64, alpha: f64) -> Self {
        Self {
            path: PathBuf::from("(in memory)"),
            rank,
            alpha,
            rank_stabilised: false,
            targets: Names::AllLinear,
            excluded: None,
            layers: None,
            ranks: Vec::new(),
            alphas: Vec::new(),
        }
    }

    /// The same with `scaling = alpha / sqrt(rank)`.
    #[must_use]
    pub fn rank_stabilised(self) -> Self {
        Self { rank_stabilised: true, ..self }
    }

    /// The same for modules whose path is, or ends in, one of these names (`q_proj`, `lm_head`, `mlp.up_proj`).
    #[must_use]
    pub fn with_targets(self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { targets: Names::List(names.into_iter().map(Into::into).collect()), ..self }
    }

    /// Reads a file. Keys that would change what the model says, and that the engine does not do, are refused by name.
    pub fn read(path: &Path) -> Result<Self, ModelError> {
        let file = ConfigFile::read(path)?;
        refuse(&file)?;
        let rank = file.integer("r", 1, MAX_RANK)?;
        let alpha = match file.get("lora_alpha") {
            None => 8.0,
            Some(value) => number(value).ok_or_else(|| file.wrong("lora_alpha", "a finite number"))?,
        };
        let Some(targets) = names(&file, "target_modules")? else {
            return Err(file.wrong("target_modules", "a list of names, a pattern or `all-linear`"));
        };
        let whole = |value: &Value| value.as_i64().filter(|n| (1..=MAX_RANK).contains(n));
        Ok(Self {
            path: path.to_owned(),
            rank,
            alpha,
            rank_stabilised: file.flag("use_rslora", false)?,
            targets,
            excluded: names(&file, "exclude_modules")?,
            layers: layers(&file)?,
            ranks: patterns(&file, "rank_pattern", &format!("ranks from 1 to {MAX_RANK}"), whole)?,
            alphas: patterns(&file, "alpha_pattern", "finite numbers", number)?,
        })
    }

    /// Whether a module is adapted.
    pub fn selects(&self, module: Module) -> bool {
        if self.excluded.as_ref().is_some_and(|names| names.matches(module)) || !self.targets.matches(module) {
            return false;
        }
        // As in PEFT, a list's whole paths hold in every layer.
        let whole = matches!(&self.targets, Names::List(names) if names.contains(&module.to_string()));
        whole || self.layers.as_ref().is_none_or(|layers| layers.contains(&module.layer))
    }

    /// The rank of a module's matrices.
    pub fn rank_of(&self, module: Module) -> i64 {
        self.ranks
            .iter()
            .find(|(pattern, _)| pattern.is_match(&module.to_string()))
            .map_or(self.rank, |(_, rank)| *rank)
    }

    /// What a module's product is multiplied with.
    pub fn scaling_of(&self, module: Module) -> f64 {
        let own = self.alphas.iter().find(|(pattern, _)| pattern.is_match(&module.to_string()));
        let (alpha, rank) = (own.map_or(self.alpha, |(_, alpha)| *alpha), self.rank_of(module) as f64);
        alpha / if self.rank_stabilised { rank.sqrt() } else { rank }
    }

    /// The error where no module of the model is adapted.
    pub(super) fn selects_nothing(&self, origin: &str) -> ModelError {
        ModelError::Config {
            path: self.path.clone(),
            key: "target_modules".to_owned(),
            expected: "names of linear layers of the model, as `q_proj` or `mlp.up_proj`".to_owned(),
            found: format!("none that it has (adapter tensors: {origin})"),
        }
    }
}

/// Refuses what the engine does not do.
fn refuse(file: &ConfigFile) -> Result<(), ModelError> {
    if file.get("peft_type").is_none_or(|kind| kind != "LORA") {
        return Err(file.wrong("peft_type", "`LORA`"));
    }
    file.only("bias", &["none".into()])?;
    for key in ["use_dora", "use_qalora", "lora_bias", "fan_in_fan_out"] {
        file.only(key, &[false.into()])?;
    }
    for key in [
        "modules_to_save",
        "trainable_token_indices",
        "layer_replication",
        "target_parameters",
        "alora_invocation_tokens",
        "megatron_config",
    ] {
        let nothing = |value: &Value| match value {
            Value::Array(list) => list.is_empty(),
            Value::Object(map) => map.is_empty(),
            _ => false,
        };
        if file.get(key).is_some_and(|value| !nothing(value)) {
            return Err(file.wrong(key, "null (the engine does nothing of it)"));
        }
    }
    // Other initialisations (PiSSA, OLoRA, LoftQ, ...) take their start away from the base model's weights.
    file.only("init_lora_weights", &[true.into(), false.into(), "gaussian".into(), "eva".into(), "orthogonal".into()])
}

fn number(value: &Value) -> Option<f64> {
    value.as_f64().filter(|x| x.is_finite())
}

/// Modules named by a list, by a pattern or as `all-linear`; nothing where the key is absent.
fn names(file: &ConfigFile, key: &str) -> Result<Option<Names>, ModelError> {
    let expected = "a list of names, a pattern or `all-linear`";
    Ok(match file.get(key) {
        None => None,
        Some(Value::String(all)) if all == "all-linear" => Some(Names::AllLinear),
        Some(Value::String(pattern)) => Some(Names::Pattern(whole(file, key, pattern)?)),
        Some(Value::Array(list)) => {
            let names = list.iter().map(|name| name.as_str().map(str::to_owned));
            let names: Option<Vec<_>> = names.collect();
            let names = names.ok_or_else(|| file.wrong(key, expected))?;
            (!names.is_empty()).then_some(Names::List(names))
        }
        Some(_) => return Err(file.wrong(key, expected)),
    })
}

/// A pattern that the whole of a path must match.
fn whole(file: &ConfigFile, key: &str, pattern: &str) -> Result<Regex, ModelError> {
    Regex::new(&format!("^(?:{pattern})$")).map_err(|error| {
        file.wrong(key, format!("a regular expression without look-around and back-references ({error})"))
    })
}

/// `rank_pattern` and `alpha_pattern`: an end of a path, or a pattern for it, and its value. The first that fits counts.
fn patterns<T>(
    file: &ConfigFile,
    key: &str,
    expected: &str,
    value: impl Fn(&Value) -> Option<T>,
) -> Result<Vec<(Regex, T)>, ModelError> {
    match file.get(key) {
        None => Ok(Vec::new()),
        Some(Value::Object(map)) => map
            .iter()
            .map(|(name, given)| {
                let pattern = whole(file, key, &format!(r"(?:.*\.)?(?:{name})"))?;
                let value = value(given).ok_or_else(|| file.wrong(key, expected))?;
                Ok((pattern, value))
            })
            .collect(),
        Some(_) => Err(file.wrong(key, "an object of patterns and values")),
    }
}

/// `layers_to_transform`, for models whose layers are `layers`.
fn layers(file: &ConfigFile) -> Result<Option<Vec<i64>>, ModelError> {
    let key = "layers_to_transform";
    let layers = match file.get(key) {
        None => return Ok(None),
        Some(Value::Array(list)) if list.is_empty() => return Ok(None),
        Some(_) if file.get("target_modules").is_some_and(Value::is_string) => {
            return Err(file.wrong(key, "null where `target_modules` is a pattern or `all-linear`"));
        }
        Some(Value::Array(list)) => list.iter().map(Value::as_i64).collect::<Option<Vec<_>>>(),
        Some(value) => value.as_i64().map(|layer| vec![layer]),
    };
    let named = match file.get("layers_pattern") {
        None => true,
        Some(Value::String(name)) => name == "layers" || name.is_empty(),
        Some(Value::Array(list)) => list.is_empty() || list.iter().any(|name| name == "layers"),
        Some(_) => false,
    };
    if !named {
        return Err(file.wrong("layers_pattern", "`layers`, as the models that the engine knows call them"));
    }
    layers.map(Some).ok_or_else(|| file.wrong(key, "a layer's number or a list of them"))
}
