//! Body of `asample`.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::{Checked, within};
use crate::ids::SamplerId;

/// Most samples of one request.
const MOST_SAMPLES: u32 = 1024;
/// Most stops of one request.
const MOST_STOPS: usize = 256;

/// Body of `asample`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// How many samples.
    #[serde(default = "one")]
    pub num_samples: u32,
    /// What they continue.
    pub prompt: Prompt,
    /// How.
    pub sampling_params: SamplingParams,
    /// Whose sampler.
    pub sampling_session_id: SamplerId,
    /// Which of its requests; in no order.
    pub seq_id: i64,
    /// The prompt's own log-probabilities are wanted.
    #[serde(default)]
    pub prompt_logprobs: Option<bool>,
    /// Most probable tokens at the prompt's positions that are wanted.
    #[serde(default)]
    pub topk_prompt_logprobs: u32,
    /// Most probable tokens at the sample's positions that are wanted.
    #[serde(default)]
    pub topk_sample_logprobs: u32,
    /// Alternatives in the prompt that are wanted.
    #[serde(default)]
    pub prompt_alt_tokens_k: u32,
    /// What `stable_reinforce` needs is wanted.
    #[serde(default)]
    pub record_stability_info: Option<bool>,
    /// Log-probabilities of these tokens in the prompt are wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_prompt_logprobs: Option<Value>,
    /// Only for so many of the prompt's last tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs_last_n: Option<u32>,
}

fn one() -> u32 {
    1
}

/// What is continued: all chunks, end to end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prompt {
    /// Pieces; there may be many, also empty ones.
    pub chunks: Vec<Chunk>,
}

/// A piece of a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Chunk {
    /// Tokens.
    EncodedText {
        /// Which.
        tokens: Vec<u32>,
    },
    /// An image.
    Image {},
    /// An image that lies elsewhere.
    ImageAssetPointer {},
    /// Audio.
    Dmel {},
}

impl Chunk {
    fn kind(&self) -> &'static str {
        match self {
            Self::EncodedText { .. } => "encoded_text",
            Self::Image {} => "image",
            Self::ImageAssetPointer {} => "image_asset_pointer",
            Self::Dmel {} => "dmel",
        }
    }
}

impl Prompt {
    /// All tokens.
    pub fn tokens(&self) -> Vec<u32> {
        let mut all = Vec::new();
        for chunk in &self.chunks {
            if let Chunk::EncodedText { tokens } = chunk {
                all.extend_from_slice(tokens);
            }
        }
        all
    }
}

/// How tokens are drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplingParams {
    /// Most tokens; to the end of the context where absent.
    #[serde(default)]
    pub max_tokens: Option<u32>,
    /// Same seed, same tokens.
    #[serde(default, deserialize_with = "seed")]
    pub seed: Option<u64>,
    /// What ends a sample.
    #[serde(default, deserialize_with = "stop")]
    pub stop: Option<Stop>,
    /// Divides the logits; 0 is greedy.
    #[serde(default = "unit")]
    pub temperature: f32,
    /// Keep this many most probable tokens; -1 keeps all.
    #[serde(default = "all")]
    pub top_k: i64,
    /// Keep the smallest set of tokens whose probability reaches this.
    #[serde(default = "unit")]
    pub top_p: f32,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self { max_tokens: None, seed: None, stop: None, temperature: 1.0, top_k: -1, top_p: 1.0 }
    }
}

fn unit() -> f32 {
    1.0
}

fn all() -> i64 {
    -1
}

/// What ends a sample besides the model's own end of turn. An empty list of tokens is what the SDK writes for "nothing, not
/// even that".
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Stop {
    /// Texts.
    Texts(Vec<String>),
    /// Tokens.
    Tokens(Vec<u32>),
}

/// A text, a list of texts, or a list of tokens.
fn stop<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Stop>, D::Error> {
    let wrong = |found: &Value| {
        let mut shown = found.to_string();
        if let Some((end, _)) = shown.char_indices().nth(80) {
            shown.truncate(end);
        }
        serde::de::Error::custom(format!("expected a text, a list of texts or a list of tokens, got {shown}"))
    };
    let value = Value::deserialize(deserializer)?;
    match &value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(Stop::Texts(vec![text.clone()]))),
        Value::Array(items) if items.first().is_some_and(Value::is_string) => {
            let texts = items.iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(|| wrong(&value)));
            Ok(Some(Stop::Texts(texts.collect::<Result<_, _>>()?)))
        }
        Value::Array(items) => {
            let token = |item: &Value| item.as_u64().and_then(|token| u32::try_from(token).ok());
            let tokens = items.iter().map(|item| token(item).ok_or_else(|| wrong(&value)));
            Ok(Some(Stop::Tokens(tokens.collect::<Result<_, _>>()?)))
        }
        _ => Err(wrong(&value)),
    }
}

/// An integer of up to 64 bits, with a sign or without.
fn seed<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let given = Option::<serde_json::Number>::deserialize(deserializer)?;
    given
        .map(|number| {
            let bits = number.as_u64().or_else(|| number.as_i64().map(i64::cast_unsigned));
            bits.ok_or_else(|| serde::de::Error::custom(format!("expected an integer of 64 bits, got {number}")))
        })
        .transpose()
}

impl Checked for Sample {
    fn check(&self) -> Result<(), String> {
        let number = self.num_samples;
        within("num_samples", "1 to 1024", (1..=MOST_SAMPLES).contains(&number), number)?;
        within("seq_id", "0 or more", self.seq_id >= 0, self.seq_id)?;
        for (index, chunk) in self.prompt.chunks.iter().enumerate() {
            if !matches!(chunk, Chunk::EncodedText { .. }) {
                let kind = chunk.kind();
                return Err(format!(
                    "`prompt.chunks[{index}]`: expected `encoded_text`, got `{kind}`: only text is served"
                ));
            }
        }
        let empty = self.prompt.tokens().is_empty();
        within("prompt.chunks", "at least one token", !empty, "none")?;
        if let Some(last) = self.prompt_logprobs_last_n {
            let wanted = self.prompt_logprobs == Some(true);
            within("prompt_logprobs_last_n", "nothing, as `prompt_logprobs` is not true", wanted, last)?;
            let most = self.prompt.tokens().len();
            let sound = (1..=most).contains(&(last as usize));
            within("prompt_logprobs_last_n", &format!("1 to {most}, the prompt's tokens"), sound, last)?;
        }
        self.sampling_params.check()
    }
}

impl SamplingParams {
    fn check(&self) -> Result<(), String> {
        let heat = self.temperature;
        within("sampling_params.temperature", "a number from 0", heat >= 0.0 && heat.is_finite(), heat)?;
        let mass = self.top_p;
        within("sampling_params.top_p", "a number above 0, up to 1", mass > 0.0 && mass <= 1.0, mass)?;
        let kept = self.top_k;
        let some = kept == -1 || (0..=i64::from(u32::MAX)).contains(&kept);
        within("sampling_params.top_k", "-1 (all) or 1 and more", some, kept)?;
        if self.max_tokens == Some(0) {
            return Err("`sampling_params.max_tokens`: expected 1 or more, got 0".to_owned());
        }
        let stops = match &self.stop {
            None => 0,
            Some(Stop::Tokens(tokens)) => tokens.len(),
            Some(Stop::Texts(texts)) => {
                if texts.iter().any(String::is_empty) {
                    return Err(
                        "`sampling_params.stop`: expected texts that are not empty, got an empty one".to_owned()
                    );
                }
                texts.len()
            }
        };
        within("sampling_params.stop", "at most 256", stops <= MOST_STOPS, stops)
    }
}

impl<'de> Deserialize<'de> for Stop {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        stop(deserializer)?.ok_or_else(|| serde::de::Error::custom("expected a stop, got null"))
    }
}
