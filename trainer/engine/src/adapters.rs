//! LoRA adapters: what they are, how a PEFT folder is read, how they are laid out for a step.
//!
//! | item | what it is |
//! |---|---|
//! | [`AdapterWeights`] | the matrices of one adapter, checked against a model's shape |
//! | [`Module`], [`Target`] | which linear layer of the model a pair of matrices belongs to |
//! | [`AdapterConfig`] | `adapter_config.json`: ranks, scaling, which layers are adapted |
//! | `packed` | an adapter as the engine runs it |
//!
//! An adapter changes a linear layer from `W x` to `W x + s B (A x)`, with `A` of shape (rank, inputs), `B` of shape
//! (outputs, rank) and `s = alpha / rank`, or `alpha / sqrt(rank)` where `use_rslora` is set
//! (LoRA: <https://arxiv.org/abs/2106.09685>, eq. 3; rank-stabilised: <https://arxiv.org/abs/2312.03732>). Files and keys
//! are PEFT's. What PEFT can and the engine does not (DoRA, biases, `modules_to_save`, adapted embeddings, initialisations
//! that change the base model) is refused by name: leaving it out would change what the model says.

mod config;
mod packed;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use tch::{Device, Kind, Tensor};
use thiserror::Error;

pub use self::config::AdapterConfig;
pub(crate) use self::packed::{PackedAdapter, Site};
use crate::config::DecoderConfig;
use crate::error::ModelError;
use crate::models::decoder::Precision;
use crate::shim::ShimError;
use crate::weights::Weights;

/// Why an adapter cannot be read, loaded or found.
#[derive(Debug, Error)]
pub enum AdapterError {
    /// A file of the adapter's folder cannot be used.
    #[error(transparent)]
    File(#[from] ModelError),
    /// A tensor has another shape than the model and the configuration ask for.
    #[error("{origin}: tensor `{tensor}`: expected shape {expected:?}, found {found:?}")]
    Shape {
        /// The file, or what else the tensors came from.
        origin: String,
        /// The tensor.
        tensor: String,
        /// What the model and the configuration ask for.
        expected: Vec<i64>,
        /// What came.
        found: Vec<i64>,
    },
    /// A tensor that the engine does not know, or cannot use.
    #[error("{origin}: tensor `{tensor}`: expected {expected}, found {found}")]
    Tensor {
        /// The file, or what else the tensors came from.
        origin: String,
        /// The tensor.
        tensor: String,
        /// What was expected.
        expected: String,
        /// What came.
        found: String,
    },
    /// A tensor that `target_modules` asks for is not there.
    #[error("{origin}: no tensor `{tensor}`, which `target_modules` asks for")]
    Missing {
        /// The file, or what else the tensors came from.
        origin: String,
        /// The tensor.
        tensor: String,
    },
    /// A name that an adapter cannot have.
    #[error("an adapter's name: expected {expected}, got `{name}`")]
    Name {
        /// The name.
        name: String,
        /// What was expected.
        expected: String,
    },
    /// An adapter of this name is loaded already.
    #[error("an adapter `{name}` is loaded already; update it, or remove it first")]
    Exists {
        /// The name.
        name: String,
    },
    /// No adapter has this name.
    #[error("no adapter `{name}`; loaded are: {}", if known.is_empty() { "none".to_owned() } else { known.join(", ") })]
    Unknown {
        /// The name.
        name: String,
        /// The names of those that are loaded.
        known: Vec<String>,
    },
    /// libtorch failed.
    #[error("libtorch: {0}")]
    Torch(#[from] ShimError),
    /// The engine's thread has ended.
    #[error("the engine's thread has ended")]
    Ended,
}

impl From<tch::TchError> for AdapterError {
    fn from(error: tch::TchError) -> Self {
        Self::Torch(error.into())
    }
}

/// A kind of linear layer that adapters change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// `self_attn.q_proj`
    Query,
    /// `self_attn.k_proj`
    Key,
    /// `self_attn.v_proj`
    Value,
    /// `self_attn.o_proj`
    Output,
    /// `mlp.gate_proj`
    Gate,
    /// `mlp.up_proj`
    Up,
    /// `mlp.down_proj`
    Down,
    /// `lm_head`
    Head,
}

impl Target {
    /// The kinds that every layer has.
    pub const OF_A_LAYER: [Self; 7] =
        [Self::Query, Self::Key, Self::Value, Self::Output, Self::Gate, Self::Up, Self::Down];

    /// The module's path inside its layer; of the output layer, inside the model.
    pub fn path(self) -> &'static str {
        match self {
            Self::Query => "self_attn.q_proj",
            Self::Key => "self_attn.k_proj",
            Self::Value => "self_attn.v_proj",
            Self::Output => "self_attn.o_proj",
            Self::Gate => "mlp.gate_proj",
            Self::Up => "mlp.up_proj",
            Self::Down => "mlp.down_proj",
            Self::Head => "lm_head",
        }
    }

    /// Inputs and outputs of the layer in a model.
    pub fn shape(self, model: &DecoderConfig) -> (i64, i64) {
        let (q, kv) = (model.heads * model.head_dim, model.kv_heads * model.head_dim);
        match self {
            Self::Query => (model.hidden, q),
            Self::Key | Self::Value => (model.hidden, kv),
            Self::Output => (q, model.hidden),
            Self::Gate | Self::Up => (model.hidden, model.intermediate),
            Self::Down => (model.intermediate, model.hidden),
            Self::Head => (model.hidden, model.vocab),
        }
    }
}

/// One linear layer of a model, shown as `transformers` names it: `model.layers.3.self_attn.q_proj`, `lm_head`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Module {
    /// The layer's number; 0 for [`Target::Head`].
    pub layer: i64,
    /// Which of its linear layers.
    pub target: Target,
}

impl Module {
    /// Every module of a model that an adapter can change.
    pub fn all(model: &DecoderConfig) -> impl Iterator<Item = Self> {
        let layers = (0..model.layers)
            .flat_map(|layer| Target::OF_A_LAYER.into_iter().map(move |target| Self { layer, target }));
        layers.chain([Self { layer: 0, target: Target::Head }])
    }

    /// Reads a path as `transformers` writes it.
    pub fn parse(path: &str) -> Option<Self> {
        if path == Target::Head.path() {
            return Some(Self { layer: 0, target: Target::Head });
        }
        let (number, rest) = path.strip_prefix("model.layers.")?.split_once('.')?;
        let layer = number.parse().ok()?;
        let target = Target::OF_A_LAYER.into_iter().find(|target| target.path() == rest)?;
        // One spelling a module: `007` is no number of a layer.
        let module = Self { layer, target };
        (module.to_string() == path).then_some(module)
    }
}

impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.target {
            Target::Head => f.write_str(Target::Head.path()),
            target => write!(f, "model.layers.{}.{}", self.layer, target.path()),
        }
    }
}

/// What an adapter adds to one linear layer: `scaling * b (a x)`.
#[derive(Debug)]
pub struct LoraPair {
    /// (rank, inputs), contiguous 32-bit floats on the CPU.
    pub a: Tensor,
    /// (outputs, rank), contiguous 32-bit floats on the CPU.
    pub b: Tensor,
    /// `alpha / rank`, or `alpha / sqrt(rank)`.
    pub scaling: f64,
}

/// The matrices of one adapter. Ranks may differ between modules.
///
/// Invariant: every shape fits the model that it was made for, every value is finite.
#[derive(Debug)]
pub struct AdapterWeights {
    pairs: BTreeMap<Module, LoraPair>,
}

impl AdapterWeights {
    /// Reads a PEFT folder, `adapter_config.json` and `adapter_model.safetensors`, for a model of this shape.
    pub fn read(folder: &Path, model: &DecoderConfig) -> Result<Self, AdapterError> {
        let config = AdapterConfig::read(&folder.join("adapter_config.json"))?;
        let file = folder.join("adapter_model.safetensors");
        let weights = Weights::open_file(&file, Precision::F32)?;
        let origin = format!("`{}`", file.display());
        let mut tensors = Vec::new();
        for name in weights.names() {
            let tensor = weights.float(name, &weights.shape(name)?).map_err(|error| match error {
                ModelError::Dtype { tensor, found } => {
                    let (origin, expected) = (origin.clone(), "F32, F16 or BF16".to_owned());
                    AdapterError::Tensor { origin, tensor, expected, found }
                }
                other => other.into(),
            })?;
            tensors.push((name.to_owned(), tensor));
        }
        Self::gather(&config, model, &origin, tensors)
    }

    /// Takes tensors from memory, named as in a PEFT file; the prefix `base_model.model.` may be left out. They are copied:
    /// what a trainer does to them afterwards changes nothing here.
    pub fn from_tensors(
        config: &AdapterConfig,
        model: &DecoderConfig,
        tensors: impl IntoIterator<Item = (String, Tensor)>,
    ) -> Result<Self, AdapterError> {
        let tensors = tensors.into_iter().map(|(name, tensor)| -> Result<(String, Tensor), tch::TchError> {
            let _guard = tch::no_grad_guard();
            let copied = tensor.f_to_device(Device::Cpu)?.f_contiguous()?.f_to_dtype(Kind::Float, false, true)?;
            Ok((name, copied))
        });
        Self::gather(config, model, "the tensors given", tensors.collect::<Result<_, _>>()?)
    }

    fn gather(
        config: &AdapterConfig,
        model: &DecoderConfig,
        origin: &str,
        tensors: Vec<(String, Tensor)>,
    ) -> Result<Self, AdapterError> {
        let wrong = |tensor: &str, expected: String, found: &str| AdapterError::Tensor {
            origin: origin.to_owned(),
            tensor: tensor.to_owned(),
            expected,
            found: found.to_owned(),
        };
        let mut halves: [BTreeMap<Module, Tensor>; 2] = [BTreeMap::new(), BTreeMap::new()];
        for (name, tensor) in tensors {
            let Some((module, half)) = place(&name).filter(|(m, _)| m.layer < model.layers) else {
                let expected = format!(
                    "`base_model.model.MODULE.lora_A.weight` or `...lora_B.weight` of a linear layer of a model with {} \
                     layers",
                    model.layers
                );
                return Err(wrong(&name, expected, "another name"));
            };
            if !config.selects(module) {
                return Err(wrong(&name, "a module that `target_modules` names".to_owned(), "another"));
            }
            let (inputs, outputs) = module.target.shape(model);
            let rank = config.rank_of(module);
            let (expected, found) = (if half == 0 { [rank, inputs] } else { [outputs, rank] }, tensor.size());
            if found != expected {
                let (origin, expected) = (origin.to_owned(), expected.to_vec());
                return Err(AdapterError::Shape { origin, tensor: name, expected, found });
            }
            // A NaN anywhere is the maximum.
            let largest = tensor.f_abs()?.f_max()?.f_double_value(&[])?;
            if !largest.is_finite() {
                return Err(wrong(&name, "finite values".to_owned(), &largest.to_string()));
            }
            if halves[half].insert(module, tensor).is_some() {
                return Err(wrong(&name, "each module once".to_owned(), "it twice, with and without a prefix"));
            }
        }
        let [mut first, mut second] = halves;
        let mut pairs = BTreeMap::new();
        for module in Module::all(model).filter(|module| config.selects(*module)) {
            let missing = |half: &str| AdapterError::Missing {
                origin: origin.to_owned(),
                tensor: format!("base_model.model.{module}.{half}.weight"),
            };
            let a = first.remove(&module).ok_or_else(|| missing("lora_A"))?;
            let b = second.remove(&module).ok_or_else(|| missing("lora_B"))?;
            pairs.insert(module, LoraPair { a, b, scaling: config.scaling_of(module) });
        }
        if pairs.is_empty() {
            return Err(config.selects_nothing(origin).into());
        }
        Ok(Self { pairs })
    }

    /// Checks that every pair has a place in a model: an adapter may have been made for another one.
    pub fn check(&self, model: &DecoderConfig) -> Result<(), AdapterError> {
        let origin = "the adapter, made for another model".to_owned();
        for (module, pair) in &self.pairs {
            if module.layer >= model.layers {
                let (expected, found) = (format!("one of {} layers", model.layers), "another".to_owned());
                return Err(AdapterError::Tensor { origin, tensor: module.to_string(), expected, found });
            }
            let (inputs, outputs) = module.target.shape(model);
            let rank = pair.a.size()[0];
            for (half, tensor, expected) in [("lora_A", &pair.a, [rank, inputs]), ("lora_B", &pair.b, [outputs, rank])]
            {
                let found = tensor.size();
                if found != expected {
                    let (tensor, expected) = (format!("{module}.{half}.weight"), expected.to_vec());
                    return Err(AdapterError::Shape { origin, tensor, expected, found });
                }
            }
        }
        Ok(())
    }

    /// The highest rank.
    pub fn rank(&self) -> i64 {
        self.pairs.values().filter_map(|pair| pair.a.size().first().copied()).max().unwrap_or(0)
    }

    /// The pairs by module, in the model's order.
    pub fn pairs(&self) -> impl Iterator<Item = (Module, &LoraPair)> {
        self.pairs.iter().map(|(module, pair)| (*module, pair))
    }

    /// What the adapter adds to one module.
    pub fn pair(&self, module: Module) -> Option<&LoraPair> {
        self.pairs.get(&module)
    }
}

/// The module that a tensor's name belongs to, and whether it is the first (0) or the second (1) of its matrices.
fn place(name: &str) -> Option<(Module, usize)> {
    let path = name.strip_prefix("base_model.model.").unwrap_or(name);
    let (path, half) = match path.strip_suffix(".lora_A.weight") {
        Some(path) => (path, 0),
        None => (path.strip_suffix(".lora_B.weight")?, 1),
    };
    Some((Module::parse(path)?, half))
}
