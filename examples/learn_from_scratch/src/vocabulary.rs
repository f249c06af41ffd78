//! A byte-pair tokenizer, learned from the texts that the model will see (Sennrich, Haddow, Birch 2016).
//!
//! Pairs merge across spaces, up to the last word of a sentence or the end of a line, so a phrase that comes again and
//! again is one token (Liu et al. 2025 call it SuperBPE): a line of the task has seven tokens instead of twenty, and a
//! block of code some twenty instead of seventy.

use std::path::Path;

use espalier_procedural::long::{LongTask, Shape, make};
use serde_json::json;
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, SplitDelimiterBehavior,
    TokenizerBuilder,
};

use crate::{Failure, teacher};

/// Tokens of the vocabulary, the special ones included.
pub const SIZE: usize = 2048;

/// ChatML's special tokens: the last one ends a turn.
pub const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

const TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + \
                        '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Texts like those that the model will read and write.
fn corpus(seed: u64) -> Vec<String> {
    let mut texts = Vec::new();
    for index in 0..600 {
        let made = make(
            LongTask::Topics,
            Shape { size: 2048, needles: 2, distractors: 0 },
            &mut LongTask::Topics.draw(seed, index),
        );
        texts.push(format!("Task: {}", made.question));
        texts.push(format!("assistant\nuser\nsystem\n{}", crate::SYSTEM));
        texts.push("`rlm_query(question, context=text)` asks a helper about a text.\n".to_owned());
        texts.push(format!("Output:\n{}\n\nWrite FINAL(answer), or another block.", made.text));
        texts.extend(teacher::everything_said(&made.question));
    }
    texts
}

/// Learns the vocabulary and writes `tokenizer.json` and `tokenizer_config.json`.
pub fn write(folder: &Path, seed: u64) -> Result<(), Failure> {
    let bytes = || ByteLevel::new(false, true, false);
    let sentences = SplitPattern::Regex("[^.?\\n]+(?= [^ .?\\n]+[.?])|[^.?\\n]+|[.?\\n]+".to_owned());
    let sentences = Split::new(sentences, SplitDelimiterBehavior::Isolated, false)?;
    let pieces = Sequence::new(vec![sentences.into(), bytes().into()]);
    let mut tokenizer =
        TokenizerBuilder::<BPE, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>::new()
            .with_model(BPE::default())
            .with_normalizer(None)
            .with_pre_tokenizer(Some(pieces.into()))
            .with_post_processor(None)
            .with_decoder(Some(bytes().into()))
            .build()?;
    let mut trainer = BpeTrainerBuilder::new()
        .show_progress(false)
        .vocab_size(SIZE)
        .special_tokens(SPECIAL.map(|token| AddedToken::from(token, true)).to_vec())
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    tokenizer.train(&mut trainer, corpus(seed).into_iter())?;
    tokenizer.save(folder.join("tokenizer.json"), false)?;
    let config = json!({"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": TEMPLATE});
    std::fs::write(folder.join("tokenizer_config.json"), format!("{config:#}\n"))?;
    Ok(())
}
