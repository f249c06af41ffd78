//! Decoding speed, and what adapters cost, as figures that a command or a script can print.

use std::path::Path;
use std::time::{Duration, Instant};

use espalier_inference::{GenerateRequest, InferenceEngine, Prompt, SamplingParams, TokenId};
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};
use tch::Tensor;

use crate::adapters::{AdapterConfig, AdapterError, AdapterWeights, Module, Target};
use crate::config::DecoderConfig;
use crate::local::{EngineOptions, LocalEngine, StreamEvent};
use crate::sampling::mix;

/// Why something could not be measured.
type Failed = Box<dyn std::error::Error + Send + Sync>;

/// What is decoded side by side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DecodeCase {
    /// The case's name: `b1`, `b8`, `b32`, `ragged32`, `prefill4k`.
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

    /// One prompt is read, and one token answered: what is counted is the prompt's tokens.
    pub fn prefill(name: &str, prompt: usize) -> Self {
        Self::even(name, 1, prompt, 1)
    }

    /// The tokens that a rate counts: new ones, or those of the prompts where hardly any are new.
    fn counted(&self) -> usize {
        let (prompt, new) = self.rows.iter().fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
        if new == self.rows.len() { prompt } else { new }
    }

    /// The five cases that the project reports.
    pub fn standard() -> Vec<Self> {
        vec![
            Self::even("b1", 1, 128, 128),
            Self::even("b8", 8, 128, 128),
            Self::even("b32", 32, 128, 128),
            Self::ragged("ragged32", 32),
            Self::prefill("prefill4k", 4096),
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
    /// New tokens of all requests; of their prompts, where prefill is measured.
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
) -> Result<Vec<DecodeFigure>, Failed> {
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
        let tokens = case.counted();
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
pub async fn reprefilled(folder: &Path, options: EngineOptions, turns: u32) -> Result<u64, Failed> {
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

/// Adapters in one batch, beside which the same batch under one adapter is timed.
const ADAPTERS: usize = 8;

/// An adapter of every linear layer but the output layer, with numbers that depend on the seed only.
fn adapter(model: &DecoderConfig, rank: i64, seed: u64) -> Result<AdapterWeights, AdapterError> {
    let tensor = |name: &str, shape: [i64; 2]| -> Result<(String, Tensor), AdapterError> {
        let salt = name.bytes().fold(seed, |salt, byte| mix(salt ^ u64::from(byte)));
        let numbers: Vec<f32> = (0..shape[0] * shape[1])
            .map(|i| (mix(salt ^ i as u64) >> 40) as f32 / (1u64 << 28) as f32 - 0.03)
            .collect();
        Ok((name.to_owned(), Tensor::f_from_slice(&numbers)?.f_view(shape)?))
    };
    let mut tensors = Vec::new();
    for module in Module::all(model).filter(|module| module.target != Target::Head) {
        let (inputs, outputs) = module.target.shape(model);
        tensors.push(tensor(&format!("{module}.lora_A.weight"), [rank, inputs])?);
        tensors.push(tensor(&format!("{module}.lora_B.weight"), [outputs, rank])?);
    }
    AdapterWeights::from_tensors(&AdapterConfig::new(rank, rank as f64), model, tensors)
}

fn adapter_name(number: usize) -> String {
    format!("adapter {number}")
}

/// Request `row` of a batch that decodes for a while.
fn decoding(vocab: u64, row: usize, new: u32, adapter: usize) -> GenerateRequest {
    let token = |i: u64| 32 + (mix((row as u64) << 32 | i) % (vocab - 64)) as TokenId;
    let prompt = Prompt::Tokens((0..8).map(token).collect());
    let sampling = SamplingParams {
        temperature: 0.0,
        max_tokens: new,
        ignore_eos: true,
        logprobs: false,
        ..SamplingParams::default()
    };
    GenerateRequest { adapter: Some(adapter_name(adapter)), ..GenerateRequest::new(prompt, sampling) }
}

/// How much longer a batch decodes whose rows belong to eight adapters than the same batch under one: every request is the
/// same, prompts are short, so that what is timed is decoding. The two take turns, `repeat` times, so that what else the
/// machine does meets both; the best of each counts.
pub async fn adapters_ratio(
    folder: &Path,
    options: EngineOptions,
    rank: i64,
    batch: usize,
    repeat: usize,
) -> Result<f64, Failed> {
    let engine = LocalEngine::load(folder, options)?;
    let model = engine.config().decoder.clone();
    for number in 0..ADAPTERS {
        engine.load_adapter(&adapter_name(number), &adapter(&model, rank, number as u64)?)?;
    }
    let mut best = [Duration::MAX; 2];
    for _ in 0..repeat.max(1) {
        for (adapters, best) in [1, ADAPTERS].into_iter().zip(&mut best) {
            let requests = (0..batch).map(|row| engine.generate(decoding(model.vocab as u64, row, 64, row % adapters)));
            let start = Instant::now();
            try_join_all(requests).await?;
            *best = start.elapsed().min(*best);
        }
    }
    Ok(best[1].as_secs_f64() / best[0].as_secs_f64())
}

/// Seconds from a trainer's call until an adapter's new weights are in place under a request that decodes: tensors are
/// checked and packed, and the step that runs has to end. The median of `repeat` updates.
pub async fn weight_update(folder: &Path, options: EngineOptions, rank: i64, repeat: usize) -> Result<f64, Failed> {
    let engine = LocalEngine::load(folder, options)?;
    let model = engine.config().decoder.clone();
    let versions = [adapter(&model, rank, 1)?, adapter(&model, rank, 2)?];
    let name = adapter_name(0);
    engine.load_adapter(&name, &versions[0])?;
    let mut running = engine.generate_stream(decoding(model.vocab as u64, 0, u32::MAX, 0)).await?;
    let mut times = Vec::new();
    for round in 0..repeat.max(1) {
        while running.try_recv().is_ok() {}
        if let Some(StreamEvent::Done(ended)) = running.recv().await {
            return Err(format!("the request ended before its weights were updated: {ended:?}").into());
        }
        let start = Instant::now();
        engine.update_adapter(&name, &versions[(round + 1) % 2])?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
