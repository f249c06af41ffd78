//! Examples of a training request: what the wire holds to what a loss can use.

use std::collections::BTreeMap;

use crate::proto;
use crate::tensor::{self, Numbers, Tensor};

/// One example whose parts fit together.
#[derive(Clone, Debug, PartialEq)]
pub struct Datum {
    /// What the model reads, in pieces.
    pub input: Vec<Piece>,
    /// What the loss reads, by name. `target_tokens` is always there; each has as many rows as the input has tokens, where
    /// that is known.
    pub loss_inputs: BTreeMap<String, Tensor>,
}

/// A piece of what the model reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Tokens.
    Tokens(Vec<u32>),
    /// An image.
    Image {
        /// The file.
        data: Vec<u8>,
        /// `png` or `jpeg`.
        format: String,
        /// How many tokens the client expects it to be.
        expected_tokens: Option<u32>,
    },
    /// Audio.
    Audio(Vec<u8>),
}

impl Datum {
    /// Tokens of the input; `None` where that depends on the model.
    pub fn tokens(&self) -> Option<usize> {
        self.input.iter().try_fold(0, |sum, piece| match piece {
            Piece::Tokens(tokens) => Some(sum + tokens.len()),
            Piece::Image { expected_tokens, .. } => expected_tokens.map(|tokens| sum + tokens as usize),
            Piece::Audio(_) => None,
        })
    }
}

/// Inputs of losses that are known, and whether they are floats.
const INPUTS: [(&str, bool); 7] = [
    ("advantages", true),
    ("clip_high_threshold", true),
    ("clip_low_threshold", true),
    ("logprobs", true),
    ("sequence_ratio_mask", true),
    ("target_tokens", false),
    ("weights", true),
];

/// Reads the examples of a request. What is wrong is said with its place, as in `` `data[3].model_input[0].tokens` ``.
pub fn read(data: &[proto::Datum]) -> Result<Vec<Datum>, String> {
    if data.is_empty() {
        return Err("`data`: expected at least one example, got none".to_owned());
    }
    let read = |(index, datum)| datum_of(datum).map_err(|(place, reason)| format!("`data[{index}].{place}`: {reason}"));
    data.iter().enumerate().map(read).collect()
}

/// A place inside an example, and what is wrong there.
type Wrong = (String, String);

fn datum_of(given: &proto::Datum) -> Result<Datum, Wrong> {
    let mut input = Vec::with_capacity(given.model_input.len());
    for (index, chunk) in given.model_input.iter().enumerate() {
        input.push(piece(chunk).map_err(|(part, reason)| (format!("model_input[{index}]{part}"), reason))?);
    }
    let mut loss_inputs = BTreeMap::new();
    for (name, given) in &given.loss_fn_inputs {
        let place = || format!("loss_fn_inputs.{}", shown(name));
        let Some((_, float)) = INPUTS.iter().find(|(known, _)| known == name) else {
            let known: Vec<_> = INPUTS.iter().map(|(known, _)| format!("`{known}`")).collect();
            return Err((place(), format!("no loss reads that; expected one of {}", known.join(", "))));
        };
        let tensor = Tensor::read(given).map_err(|error| (place(), error.to_string()))?;
        check_numbers(&tensor, *float).map_err(|reason| (place(), reason))?;
        loss_inputs.insert(name.clone(), tensor);
    }
    let datum = Datum { input, loss_inputs };
    if datum.tokens() == Some(0) {
        return Err(("model_input".to_owned(), "expected at least one token, got none".to_owned()));
    }
    if !datum.loss_inputs.contains_key("target_tokens") {
        return Err(("loss_fn_inputs.target_tokens".to_owned(), "is missing".to_owned()));
    }
    if let Some(tokens) = datum.tokens() {
        for (name, tensor) in &datum.loss_inputs {
            if tensor.shape[0] != tokens {
                let reason =
                    format!("expected {tokens} rows, as many as the input has tokens, got {}", tensor.shape[0]);
                return Err((format!("loss_fn_inputs.{name}"), reason));
            }
        }
    }
    Ok(datum)
}

fn piece(chunk: &proto::Chunk) -> Result<Piece, (&'static str, String)> {
    match &chunk.kind {
        None => Err(("", "expected `encoded_text`, `image` or `dmel`, got none of them".to_owned())),
        Some(proto::ChunkKind::EncodedText(text)) => {
            tensor::tokens(&text.tokens).map(Piece::Tokens).map_err(|error| (".encoded_text", error.to_string()))
        }
        Some(proto::ChunkKind::Image(image)) => {
            let expected_tokens = image.expected_tokens.map(u32::try_from).transpose().map_err(|_| {
                (".image.expected_tokens", format!("expected 0 or more, got {:?}", image.expected_tokens.unwrap_or(0)))
            })?;
            Ok(Piece::Image { data: image.data.clone(), format: image.format.clone(), expected_tokens })
        }
        Some(proto::ChunkKind::Dmel(audio)) => Ok(Piece::Audio(audio.dmel.clone())),
    }
}

fn check_numbers(tensor: &Tensor, float: bool) -> Result<(), String> {
    match &tensor.numbers {
        Numbers::F32(numbers) if float => match numbers.iter().position(|number| !number.is_finite()) {
            Some(at) => Err(format!("expected finite numbers, got {} at {at}", numbers[at])),
            None => Ok(()),
        },
        Numbers::I64(numbers) if !float => match numbers.iter().position(|number| u32::try_from(*number).is_err()) {
            Some(at) => Err(format!("expected tokens, got {} at {at}", numbers[at])),
            None => Ok(()),
        },
        _ => Err(format!("expected {}", if float { "float32" } else { "int64" })),
    }
}

/// A name that came, cut where it is long.
fn shown(name: &str) -> String {
    name.chars().take(64).collect()
}
