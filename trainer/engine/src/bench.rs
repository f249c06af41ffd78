//! Decoding speed, as figures that a command or a script can print.

use std::path::Path;
use std::time::{Duration, Instant};

use espalier_inference::{GenerateRequest, InferenceEngine, Prompt, SamplingParams, TokenId};
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};

use crate::local::{EngineOptions, LocalEngine};
use crate::sampling::mix;

/// What is decoded side by side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecodeCase {
    /// The case's name: `b1`, `b8`, `b32`, `ragged32`.
    pub name: String,
    /// Prompt tokens and new tokens of each request.
    pub rows: Vec<(usize, usize)>,
}

impl DecodeCase {
    /// `count` requests of `prompt` tokens and `new` new ones each.
    pub fn even(name: &str, count: usize, prompt: usize, new: usize) -> Self {
        Self { name: name.to_owned(), rows: vec![(prompt, new); count] }
    }

    /// Requests of very different lengths: prompts of 16 to 256 tokens, 16 to 256 new ones, the same for every run.
    pub fn ragged(name: &str, count: usize) -> Self {
        let pick = |i: usize, salt: u64| 16 + (mix(i as u64 ^ salt) % 241) as usize;
        Self { name: name.to_owned(), rows: (0..count).map(|i| (pick(i, 1 << 32), pick(i, 2 << 32))).collect() }
    }

    /// The four cases that the project reports.
    pub fn standard() -> Vec<Self> {
        vec![
            Self::even("b1", 1, 128, 128),
            Self::even("b8", 8, 128, 128),
            Self::even("b32", 32, 128, 128),
            Self::ragged("ragged32", 32),
        ]
    }

    /// The prompts' tokens: the same for every run and every engine.
    pub fn prompts(&self, vocab: u64) -> Vec<Vec<TokenId>> {
        let token = |row: usize, i: usize| 32 + (mix(((row as u64) << 32) | i as u64) % (vocab - 64)) as TokenId;
        self.rows.iter().enumerate().map(|(row, (len, _))| (0..*len).map(|i| token(row, i)).collect()).collect()
    }
}

/// One measured case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecodeFigure {
    /// The case's name.
    pub name: String,
    /// New tokens of all requests.
    pub tokens: usize,
    /// From the first request to the last answer, prefill included; the best of the repetitions.
    pub seconds: f64,
    /// `tokens / seconds`.
    pub tokens_per_second: f64,
}

/// Runs each case `repeat` times on a model folder, greedily, past every end of turn, and keeps the best time.
pub async fn decode(
    folder: &Path,
    options: EngineOptions,
    cases: &[DecodeCase],
    repeat: usize,
) -> Result<Vec<DecodeFigure>, Box<dyn std::error::Error + Send + Sync>> {
    let engine = LocalEngine::load(folder, options)?;
    let vocab = engine.config().decoder.vocab as u64;
    let mut figures = Vec::new();
    for case in cases {
        let mut best = Duration::MAX;
        for round in 0..repeat.max(1) {
            let requests = case.prompts(vocab).into_iter().zip(&case.rows).map(|(mut prompt, (_, new))| {
                // Another first token each round: the prefix cache must not help.
                prompt[0] = 32 + (mix(round as u64 ^ u64::from(prompt[0])) % (vocab - 64)) as TokenId;
                let sampling = SamplingParams {
                    temperature: 0.0,
                    max_tokens: *new as u32,
                    ignore_eos: true,
                    logprobs: false,
                    ..SamplingParams::default()
                };
                engine.generate(GenerateRequest::new(Prompt::Tokens(prompt), sampling))
            });
            let start = Instant::now();
            try_join_all(requests).await?;
            best = best.min(start.elapsed());
        }
        let tokens = case.rows.iter().map(|(_, new)| new).sum();
        let seconds = best.as_secs_f64();
        figures.push(DecodeFigure {
            name: case.name.clone(),
            tokens,
            seconds,
            tokens_per_second: tokens as f64 / seconds,
        });
    }
    Ok(figures)
}

/// Tokens of a conversation of `turns` turns that the engine prefilled although it had computed them before.
pub async fn reprefilled(
    folder: &Path,
    options: EngineOptions,
    turns: u32,
) -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
    let engine = LocalEngine::load(folder, options)?;
    let vocab = engine.config().decoder.vocab as u64;
    let prompt =
        |turn: u64, length: u64| (0..length).map(move |i| (32 + mix(turn << 32 | i) % (vocab - 64)) as TokenId);
    let mut tokens: Vec<TokenId> = prompt(0, 128).collect();
    for turn in 1..=turns {
        let sampling =
            SamplingParams { temperature: 0.0, max_tokens: 32, ignore_eos: true, ..SamplingParams::default() };
        let mut request = GenerateRequest::new(Prompt::Tokens(tokens.clone()), sampling);
        request.session = Some("growing".to_owned());
        let answer = engine.generate(request).await?.pop().ok_or("the engine answered nothing")?;
        tokens.extend(answer.tokens);
        tokens.extend(prompt(u64::from(turn), 40));
    }
    Ok(engine.stats().reprefilled_tokens)
}
