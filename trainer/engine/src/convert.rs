//! GGUF to the Hugging Face layout: `model.safetensors`, `config.json`, `tokenizer.json`, `tokenizer_config.json`,
//! `generation_config.json`.
//!
//! Knows the `llama` architecture with a `gpt2` byte-level tokenizer of the `smollm` kind. Two traps are handled: GGUF
//! keeps the rows of query and key weights permuted for interleaved rotation, and the tokenizer splits digits one by one,
//! which GGUF only hints at by the pre-tokenizer's name. Everything is written to a folder beside the destination and
//! renamed at the end: a half-written model never has the final name.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use half::bf16;
use safetensors::{Dtype, View};
use serde_json::{Map, Value, json};

use crate::error::ModelError;
use crate::gguf::{Gguf, GgufError, TensorInfo, Value as GgufValue};

/// The element type of the written weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightType {
    /// 32-bit floats.
    F32,
    /// Brain floats, rounded to nearest even.
    #[default]
    Bf16,
}

/// Converts a GGUF file to a model folder. The folder must not exist yet.
pub fn convert_gguf(source: &Path, destination: &Path, weights: WeightType) -> Result<(), ModelError> {
    let gguf = Gguf::open(source)?;
    if destination.exists() {
        return Err(ModelError::Exists { path: destination.to_owned() });
    }
    let config = config(&gguf, weights)?;
    let tensors = tensors(&gguf)?;
    let tokenizer = tokenizer(&gguf)?;
    let tokenizer_config = tokenizer_config(&gguf)?;
    let generation = json!({
        "bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"], "pad_token_id": config["pad_token_id"],
    });

    let name = destination.file_name().ok_or_else(|| ModelError::Exists { path: destination.to_owned() })?;
    let mut partial = name.to_owned();
    partial.push(format!(".partial-{}", std::process::id()));
    let partial = Partial(destination.with_file_name(partial));
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| ModelError::Io { action: "write", path, source }
    };
    std::fs::create_dir_all(&partial.0).map_err(io(&partial.0))?;
    let files = [
        ("config.json", config),
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", tokenizer_config),
        ("generation_config.json", generation),
    ];
    for (file, value) in files {
        let path = partial.0.join(file);
        std::fs::write(&path, format!("{value:#}\n")).map_err(io(&path))?;
    }
    let path = partial.0.join("model.safetensors");
    let views: Vec<(String, Converted)> = tensors
        .into_iter()
        .map(|(name, tensor, heads)| {
            let values = gguf.read_f32(tensor)?;
            let values = match heads {
                Some(heads) => unpermute(&values, heads, tensor.shape.last().copied().unwrap_or(1)),
                None => values,
            };
            let bytes = match weights {
                WeightType::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
                WeightType::Bf16 => values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
            };
            Ok((name, Converted { weights, shape: tensor.shape.clone(), bytes }))
        })
        .collect::<Result<_, GgufError>>()?;
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize_to_file(views, Some(metadata), &path).map_err(|e| ModelError::Io {
        action: "write",
        path: path.clone(),
        source: std::io::Error::other(e.to_string()),
    })?;
    std::fs::rename(&partial.0, destination).map_err(io(destination))
}

/// A folder that is removed unless it was renamed.
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Converted {
    weights: WeightType,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl View for Converted {
    fn dtype(&self) -> Dtype {
        match self.weights {
            WeightType::F32 => Dtype::F32,
            WeightType::Bf16 => Dtype::BF16,
        }
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }
    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

fn unconvertible(gguf: &Gguf, reason: impl Into<String>) -> ModelError {
    ModelError::Unconvertible { path: gguf.path().to_owned(), reason: reason.into() }
}

/// A 32-bit float as the shortest decimal that names it: 1e-5, not 9.999999747378752e-6.
fn shortest(x: f64) -> Value {
    (x as f32).to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

fn config(gguf: &Gguf, weights: WeightType) -> Result<Value, ModelError> {
    match gguf.text("general.architecture")? {
        "llama" => {}
        other => return Err(unconvertible(gguf, format!("expected architecture `llama`, found `{other}`"))),
    }
    if let Some(GgufValue::Text(kind)) = gguf.get("llama.rope.scaling.type")
        && kind != "none"
    {
        return Err(unconvertible(gguf, format!("`llama.rope.scaling.type`: expected `none`, found `{kind}`")));
    }
    let number = |key: &str| gguf.u32(&format!("llama.{key}"));
    let (hidden, heads) = (number("embedding_length")?, number("attention.head_count")?);
    if heads == 0 || !hidden.is_multiple_of(heads) {
        return Err(gguf
            .bad_key("llama.attention.head_count", &format!("a divisor of {hidden}"), heads.to_string())
            .into());
    }
    let rotated = number("rope.dimension_count")?;
    if rotated != hidden / heads {
        let expected = format!("the head dimension {}", hidden / heads);
        return Err(gguf.bad_key("llama.rope.dimension_count", &expected, rotated.to_string()).into());
    }
    let vocab = number("vocab_size")?;
    let token = |key: &str| {
        let key = format!("tokenizer.ggml.{key}_token_id");
        match gguf.get(&key) {
            None => Ok(Value::Null),
            Some(_) => gguf.u32(&key).map(Value::from),
        }
    };
    Ok(json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": number("feed_forward_length")?,
        "num_hidden_layers": number("block_count")?,
        "num_attention_heads": heads,
        "num_key_value_heads": number("attention.head_count_kv")?,
        "max_position_embeddings": number("context_length")?,
        "rope_theta": shortest(gguf.float("llama.rope.freq_base")?),
        "rms_norm_eps": shortest(gguf.float("llama.attention.layer_norm_rms_epsilon")?),
        "vocab_size": vocab,
        "tie_word_embeddings": !gguf.tensors().iter().any(|t| t.name == "output.weight"),
        "attention_bias": false,
        "mlp_bias": false,
        "bos_token_id": token("bos")?,
        "eos_token_id": token("eos")?,
        "pad_token_id": token("padding")?,
        "torch_dtype": match weights { WeightType::F32 => "float32", WeightType::Bf16 => "bfloat16" },
    }))
}

/// A tensor's name in the Hugging Face layout, where it lies, and for query and key weights their number of heads.
type Planned<'a> = (String, &'a TensorInfo, Option<usize>);

/// Names every tensor.
fn tensors(gguf: &Gguf) -> Result<Vec<Planned<'_>>, ModelError> {
    let heads = gguf.u32("llama.attention.head_count")? as usize;
    let kv_heads = gguf.u32("llama.attention.head_count_kv")? as usize;
    let mut planned = Vec::new();
    for tensor in gguf.tensors() {
        let unknown = || unconvertible(gguf, format!("unknown tensor `{}`", tensor.name));
        let mut permuted = None;
        let name = match tensor.name.as_str() {
            "token_embd.weight" => "model.embed_tokens.weight".to_owned(),
            "output_norm.weight" => "model.norm.weight".to_owned(),
            "output.weight" => "lm_head.weight".to_owned(),
            other => {
                let (layer, part) =
                    other.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).ok_or_else(unknown)?;
                let part = match part.strip_suffix(".weight").ok_or_else(unknown)? {
                    "attn_norm" => "input_layernorm",
                    "ffn_norm" => "post_attention_layernorm",
                    "ffn_gate" => "mlp.gate_proj",
                    "ffn_up" => "mlp.up_proj",
                    "ffn_down" => "mlp.down_proj",
                    "attn_q" => {
                        permuted = Some(heads);
                        "self_attn.q_proj"
                    }
                    "attn_k" => {
                        permuted = Some(kv_heads);
                        "self_attn.k_proj"
                    }
                    "attn_v" => "self_attn.v_proj",
                    "attn_output" => "self_attn.o_proj",
                    _ => return Err(unknown()),
                };
                let layer: u32 = layer.parse().map_err(|_| unknown())?;
                format!("model.layers.{layer}.{part}.weight")
            }
        };
        if let Some(heads) = permuted
            && (tensor.shape.len() != 2 || heads == 0 || !tensor.shape[0].is_multiple_of(2 * heads))
        {
            return Err(ModelError::Shape {
                tensor: tensor.name.clone(),
                expected: vec![2 * heads as i64, -1],
                found: tensor.shape.iter().map(|d| *d as i64).collect(),
            });
        }
        planned.push((name, tensor, permuted));
    }
    Ok(planned)
}

/// Undoes the permutation of query and key rows: within each head, GGUF has rows 0, half, 1, half + 1, ...
fn unpermute(values: &[f32], heads: usize, width: usize) -> Vec<f32> {
    let dim = values.len() / width / heads;
    let row = |head: usize, i: usize| {
        let from = if i < dim / 2 { 2 * i } else { 2 * (i - dim / 2) + 1 };
        let start = (head * dim + from) * width;
        &values[start..start + width]
    };
    (0..heads).flat_map(|head| (0..dim).map(move |i| (head, i))).flat_map(|(head, i)| row(head, i)).copied().collect()
}

/// Token types of GGUF that become added tokens.
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

fn tokenizer(gguf: &Gguf) -> Result<Value, ModelError> {
    let expect = |key: &str, wanted: &str| match gguf.text(key)? {
        found if found == wanted => Ok(()),
        found => Err(unconvertible(gguf, format!("`{key}`: expected `{wanted}`, found `{found}`"))),
    };
    expect("tokenizer.ggml.model", "gpt2")?;
    expect("tokenizer.ggml.pre", "smollm")?;
    let tokens = gguf.texts("tokenizer.ggml.tokens")?;
    let kinds = gguf.ints("tokenizer.ggml.token_type")?;
    if kinds.len() != tokens.len() {
        let expected = format!("{} entries, as `tokenizer.ggml.tokens` has", tokens.len());
        return Err(gguf.bad_key("tokenizer.ggml.token_type", &expected, kinds.len().to_string()).into());
    }
    let mut vocab = Map::new();
    for (id, token) in tokens.iter().enumerate() {
        if vocab.insert(token.clone(), id.into()).is_some() {
            return Err(gguf.bad_key("tokenizer.ggml.tokens", "each token once", format!("`{token}` again")).into());
        }
    }
    let mut merges = Vec::new();
    for merge in gguf.texts("tokenizer.ggml.merges")? {
        let (left, right) = merge.split_once(' ').ok_or_else(|| {
            gguf.bad_key("tokenizer.ggml.merges", "two parts with a space between", format!("`{merge}`"))
        })?;
        merges.push(json!([left, right]));
    }
    let added: Vec<Value> = tokens
        .iter()
        .zip(kinds)
        .enumerate()
        .filter(|(_, (_, kind))| matches!(**kind, CONTROL | USER_DEFINED))
        .map(|(id, (token, kind))| {
            json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": *kind == CONTROL})
        })
        .collect();
    let byte_level = |prefix: bool| json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": true});
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true}, byte_level(false)]},
        "post_processor": null,
        "decoder": byte_level(true),
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": merges,
        },
    }))
}

fn tokenizer_config(gguf: &Gguf) -> Result<Value, ModelError> {
    let tokens = gguf.texts("tokenizer.ggml.tokens")?;
    let mut config = Map::new();
    if gguf.get("tokenizer.chat_template").is_some() {
        config.insert("chat_template".to_owned(), gguf.text("tokenizer.chat_template")?.into());
    }
    for (key, name) in [("bos", "bos_token"), ("eos", "eos_token"), ("unknown", "unk_token"), ("padding", "pad_token")]
    {
        let key = format!("tokenizer.ggml.{key}_token_id");
        if gguf.get(&key).is_some() {
            let id = gguf.u32(&key)?;
            let token = tokens
                .get(id as usize)
                .ok_or_else(|| gguf.bad_key(&key, &format!("an id below {}", tokens.len()), id.to_string()))?;
            config.insert(name.to_owned(), token.as_str().into());
        }
    }
    config.insert("model_max_length".to_owned(), gguf.u32("llama.context_length")?.into());
    config.insert("tokenizer_class".to_owned(), "GPT2Tokenizer".into());
    config.insert("add_prefix_space".to_owned(), false.into());
    Ok(Value::Object(config))
}
