//! A model's tokenizer, read from its folder.
//!
//! | module | what lives there |
//! |---|---|
//! | this one | [`Tokenizer`]: loading, encoding, the special tokens |
//! | `files` | the JSON files of a model folder |
//! | `segments` | ids of long pieces of text that come again |
//! | `specials` | where special tokens stand in a text, and which of them count |
//! | `decode` | ids to text, whole or as they come |
//!
//! Trust: text comes from a template, which may write special tokens (`<|im_end|>`), and from messages, which may
//! not: an observation that contains `<|im_end|>` must not end a turn. [`Tokenizer::encode`] recognises special tokens
//! and is for trusted text only; [`Tokenizer::encode_untrusted`] recognises none; [`Tokenizer::encode_rendered`] takes
//! a rendered conversation, which knows which of its special tokens came from the template
//! ([`Rendered`]). Added tokens that are not special (`<think>`, `<tool_call>`) are words
//! that models write themselves; they are recognised everywhere.
//!
//! Invariants: encoding adds no token of its own (no beginning of text); truncation and padding that a file asks for
//! are switched off; no id that untrusted text encodes to is a special token's.

mod decode;
pub(crate) mod files;
mod segments;
pub(crate) mod specials;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use thiserror::Error;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;

pub use self::decode::DecodeStream;
use self::decode::Decoding;
use self::files::ModelFolder;
use self::segments::Segments;
use self::specials::{Special, Specials};
use crate::TokenId;
use crate::template::Rendered;

/// Why a tokenizer could not be loaded or used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum TokenizerError {
    /// A file could not be read.
    #[error("cannot read `{}`: {reason}", file.display())]
    Read {
        /// Which file.
        file: PathBuf,
        /// The system's words.
        reason: String,
    },
    /// A file does not hold what it should.
    #[error("`{}` {reason}", file.display())]
    Malformed {
        /// Which file.
        file: PathBuf,
        /// What was expected and what came.
        reason: String,
    },
    /// A text could not be encoded.
    #[error("the tokenizer `{tokenizer}` cannot encode a text of {bytes} bytes: {reason}")]
    Encode {
        /// Which tokenizer.
        tokenizer: String,
        /// How long the text is.
        bytes: usize,
        /// What happened.
        reason: String,
    },
}

/// A model's tokenizer. Cheap to clone.
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>);

struct Inner {
    name: String,
    /// Recognises no special token: where these stand is found by `specials`, which knows whom to trust.
    plain: tokenizers::Tokenizer,
    /// As `plain`, for a text that does not stand at the beginning; only for vocabularies that mark it, made when first
    /// needed.
    inside: OnceLock<tokenizers::Tokenizer>,
    marks_beginning: bool,
    specials: Specials,
    segments: Segments,
    special_ids: HashSet<TokenId>,
    decoding: Decoding,
    variables: BTreeMap<String, String>,
    eos_ids: Vec<TokenId>,
    size: usize,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("name", &self.0.name)
            .field("vocab_size", &self.0.size)
            .field("eos_ids", &self.0.eos_ids)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads a model folder: `tokenizer.json`, and where they exist `tokenizer_config.json`,
    /// `special_tokens_map.json`, `generation_config.json` and `config.json` (for the tokens that end a turn).
    pub fn from_dir(dir: impl AsRef<Path>) -> Result<Self, TokenizerError> {
        let folder = ModelFolder::open(dir.as_ref())?;
        let file = folder.path("tokenizer.json");
        let json = folder.bytes("tokenizer.json")?;
        Self::build(&folder.name(), &file, &json, folder.special_tokens()?, &folder.eos_ids()?)
    }

    /// Makes a tokenizer from the text of a `tokenizer.json`. `special_tokens` are those that templates know by name
    /// (`eos_token`, ...); `eos_ids` end a turn, besides `eos_token`.
    pub fn from_json(
        name: &str,
        json: &[u8],
        special_tokens: BTreeMap<String, String>,
        eos_ids: &[TokenId],
    ) -> Result<Self, TokenizerError> {
        Self::build(name, Path::new(name), json, special_tokens, eos_ids)
    }

    /// A tokenizer that needs no file: one token per byte (ids 0 to 255), and ChatML's `<|endoftext|>` (256),
    /// `<|im_start|>` (257) and `<|im_end|>` (258, ends a turn).
    pub fn bytes() -> Self {
        static BYTES: OnceLock<Tokenizer> = OnceLock::new();
        BYTES.get_or_init(byte_tokenizer).clone()
    }

    fn build(
        name: &str,
        file: &Path,
        json: &[u8],
        variables: BTreeMap<String, String>,
        eos_ids: &[TokenId],
    ) -> Result<Self, TokenizerError> {
        let malformed = |reason: String| TokenizerError::Malformed { file: file.to_owned(), reason };
        let mut plain = tokenizers::Tokenizer::from_bytes(json)
            .map_err(|error| malformed(format!("is not a tokenizer that this program knows: {error}")))?;
        plain.with_padding(None);
        plain
            .with_truncation(None)
            .map_err(|error| malformed(format!("asks for a truncation that cannot be switched off: {error}")))?;
        plain.set_encode_special_tokens(true);

        let mut specials = Vec::new();
        let mut last = 0;
        for (id, token) in plain.get_added_tokens_decoder() {
            last = last.max(id);
            if token.special && !token.content.is_empty() {
                specials.push(Special {
                    id,
                    text: token.content,
                    single_word: token.single_word,
                    lstrip: token.lstrip,
                    rstrip: token.rstrip,
                });
            }
        }
        let size = plain.get_vocab(true).into_values().max().map_or(0, |id| id.max(last) as usize + 1);

        let mut ends = Vec::new();
        if let Some(eos) = variables.get("eos_token") {
            let id = plain
                .token_to_id(eos)
                .ok_or_else(|| malformed(format!("has no token `{eos}`, which is named as `eos_token`")))?;
            ends.push(id);
        }
        for &id in eos_ids {
            if plain.id_to_token(id).is_none() {
                return Err(malformed(format!("has no token {id}, which is named as `eos_token_id`")));
            }
            if !ends.contains(&id) {
                ends.push(id);
            }
        }

        let marks_beginning = matches!(
            plain.get_pre_tokenizer(),
            Some(PreTokenizerWrapper::Metaspace(space)) if space.prepend_scheme == PrependScheme::First
        );
        let decoding = match plain.get_decoder() {
            Some(DecoderWrapper::ByteLevel(_)) => Decoding::byte_level(&plain, size),
            _ => Decoding::Generic,
        };
        let unknown = variables.get("unk_token");
        let special_ids =
            specials.iter().filter(|special| Some(&special.text) != unknown).map(|special| special.id).collect();
        Ok(Self(Arc::new(Inner {
            name: name.to_owned(),
            inside: OnceLock::new(),
            marks_beginning,
            segments: Segments::default(),
            specials: Specials::new(specials),
            special_ids,
            decoding,
            variables,
            eos_ids: ends,
            size,
            plain,
        })))
    }

    /// The model folder's name, for messages.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Encodes trusted text: special tokens in it are recognised. Adds no token of its own.
    pub fn encode(&self, text: &str) -> Result<Vec<TokenId>, TokenizerError> {
        self.encode_parts(text, &[], true)
    }

    /// Encodes text that may come from anywhere: special tokens in it are ordinary text.
    pub fn encode_untrusted(&self, text: &str) -> Result<Vec<TokenId>, TokenizerError> {
        self.plain(text, true)
    }

    /// Encodes a rendered conversation: special tokens that its template wrote are recognised, those that stood in
    /// messages are ordinary text.
    pub fn encode_rendered(&self, rendered: &Rendered) -> Result<Vec<TokenId>, TokenizerError> {
        self.encode_at(rendered, true)
    }

    /// As [`Tokenizer::encode_rendered`], for text that goes on from other tokens.
    pub(crate) fn encode_inside(&self, rendered: &Rendered) -> Result<Vec<TokenId>, TokenizerError> {
        self.encode_at(rendered, false)
    }

    fn encode_at(&self, rendered: &Rendered, beginning: bool) -> Result<Vec<TokenId>, TokenizerError> {
        self.encode_parts(rendered.text(), rendered.breaks(), beginning)
    }

    /// Encodes special tokens outside `breaks` as such, and what lies between them as ordinary text.
    fn encode_parts(&self, text: &str, breaks: &[usize], beginning: bool) -> Result<Vec<TokenId>, TokenizerError> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        let mut done = 0;
        for found in self.0.specials.live(text, breaks) {
            if found.start > done {
                self.part(&text[done..found.start], beginning && done == 0, &mut ids)?;
            }
            ids.push(found.id);
            done = found.end;
        }
        if done < text.len() {
            self.part(&text[done..], beginning && done == 0, &mut ids)?;
        }
        Ok(ids)
    }

    /// Appends the ids of ordinary text, from memory where it was seen before.
    fn part(&self, text: &str, beginning: bool, ids: &mut Vec<TokenId>) -> Result<(), TokenizerError> {
        let marked = beginning && self.0.marks_beginning;
        if self.0.segments.append(text, marked, ids) {
            return Ok(());
        }
        let new = self.plain(text, beginning)?;
        self.0.segments.keep(text, marked, &new);
        ids.extend(new);
        Ok(())
    }

    /// The text of `ids`, special tokens left out. An id outside the vocabulary has no text.
    pub fn decode(&self, ids: &[TokenId]) -> String {
        self.text_of(ids, true)
    }

    /// The text of `ids`, special tokens written out.
    pub fn decode_with_special(&self, ids: &[TokenId]) -> String {
        self.text_of(ids, false)
    }

    /// Decodes ids as they come, without ever cutting a character in two. `skip_special` leaves special tokens out.
    pub fn stream(&self, skip_special: bool) -> DecodeStream {
        DecodeStream::new(self.clone(), skip_special)
    }

    /// Tokens that end a turn; the tokenizer's own `eos_token` first. Empty where the model's files name none.
    pub fn eos_ids(&self) -> &[TokenId] {
        &self.0.eos_ids
    }

    /// One more than the largest id. (A model's embedding may be larger: it is often padded.)
    pub fn vocab_size(&self) -> usize {
        self.0.size
    }

    /// How the vocabulary writes a token (byte-level vocabularies write a space as `Ġ`); `None` outside it.
    pub fn token(&self, id: TokenId) -> Option<String> {
        self.0.plain.id_to_token(id)
    }

    /// The id of a token as the vocabulary writes it.
    pub fn id(&self, token: &str) -> Option<TokenId> {
        self.0.plain.token_to_id(token)
    }

    /// Whether a token is special: never text, always structure.
    pub fn is_special(&self, id: TokenId) -> bool {
        self.0.specials.has_id(id)
    }

    /// Special tokens that templates know by name (`bos_token`, `eos_token`, ...).
    pub fn special_tokens(&self) -> &BTreeMap<String, String> {
        &self.0.variables
    }

    pub(crate) fn specials(&self) -> &Specials {
        &self.0.specials
    }

    fn run(&self, tokenizer: &tokenizers::Tokenizer, text: &str) -> Result<Vec<TokenId>, TokenizerError> {
        match tokenizer.encode_fast(text, false) {
            Ok(encoding) => Ok(encoding.get_ids().to_vec()),
            Err(error) => Err(TokenizerError::Encode {
                tokenizer: self.0.name.clone(),
                bytes: text.len(),
                reason: error.to_string(),
            }),
        }
    }

    fn plain(&self, text: &str, beginning: bool) -> Result<Vec<TokenId>, TokenizerError> {
        let tokenizer = self.plain_tokenizer(beginning);
        let ids = self.run(tokenizer, text)?;
        if !ids.iter().any(|id| self.0.special_ids.contains(id)) {
            return Ok(ids);
        }
        // Some vocabularies (word level, unigram) hold their special tokens as ordinary entries too. Taken character by
        // character, no entry of more than one can match.
        let mut ids = Vec::with_capacity(text.len());
        for (at, character) in text.char_indices() {
            let mut buffer = [0; 4];
            ids.extend(self.run(self.plain_tokenizer(beginning && at == 0), character.encode_utf8(&mut buffer))?);
        }
        if let Some(id) = ids.iter().find(|id| self.0.special_ids.contains(id)) {
            return Err(TokenizerError::Encode {
                tokenizer: self.0.name.clone(),
                bytes: text.len(),
                reason: format!(
                    "it holds the special token `{}`, which this vocabulary cannot write as ordinary text",
                    self.token(*id).unwrap_or_default()
                ),
            });
        }
        Ok(ids)
    }

    fn plain_tokenizer(&self, beginning: bool) -> &tokenizers::Tokenizer {
        if beginning || !self.0.marks_beginning {
            return &self.0.plain;
        }
        self.0.inside.get_or_init(|| {
            let mut inside = self.0.plain.clone();
            if let Some(PreTokenizerWrapper::Metaspace(space)) = inside.get_pre_tokenizer() {
                let mut space = space.clone();
                space.set_prepend_scheme(PrependScheme::Never);
                inside.with_pre_tokenizer(Some(space));
            }
            inside
        })
    }

    fn text_of(&self, ids: &[TokenId], skip_special: bool) -> String {
        let keep = |id: &TokenId| !(skip_special && self.is_special(*id));
        match &self.0.decoding {
            Decoding::ByteLevel(table) => {
                let mut bytes = Vec::with_capacity(ids.len() * 4);
                for id in ids.iter().filter(|id| keep(id)) {
                    bytes.extend_from_slice(table.bytes(*id));
                }
                match String::from_utf8(bytes) {
                    Ok(text) => text,
                    Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
                }
            }
            Decoding::Generic => match self.0.plain.decode(ids, skip_special) {
                Ok(text) => text,
                Err(error) => {
                    tracing::warn!(tokenizer = %self.0.name, %error, "the decoder failed; tokens are joined as they stand");
                    ids.iter().filter(|id| keep(id)).filter_map(|&id| self.token(id)).collect()
                }
            },
        }
    }

    fn decoding(&self) -> &Decoding {
        &self.0.decoding
    }
}

fn byte_tokenizer() -> Tokenizer {
    let mut vocabulary = serde_json::Map::new();
    for byte in 0..=255_u8 {
        vocabulary.insert(decode::character_of(byte).to_string(), byte.into());
    }
    let special = |id: u32, content: &str| {
        serde_json::json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    let byte_level =
        serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [special(256, "<|endoftext|>"), special(257, "<|im_start|>"), special(258, "<|im_end|>")],
        "pre_tokenizer": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary, "merges": []},
    });
    let names = [("bos_token", "<|im_start|>"), ("eos_token", "<|im_end|>"), ("pad_token", "<|endoftext|>")]
        .map(|(name, token)| (name.to_owned(), token.to_owned()));
    #[expect(clippy::expect_used, reason = "the JSON above is fixed; every test of this crate runs through it")]
    Tokenizer::from_json("bytes", json.to_string().as_bytes(), names.into(), &[]).expect("the built-in tokenizer loads")
}
