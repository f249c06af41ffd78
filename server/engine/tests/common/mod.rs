//! A backend over a tiny random model, and its operations in few words.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use espalier_distributed::Group;
use espalier_engine::models::read_config;
use espalier_engine::{EngineOptions, LocalEngine, Precision};
use espalier_inference::{ChatTemplate, Tokenizer};
use espalier_tinker::datum::{Datum, Piece};
use espalier_tinker::operation::{ForwardBackward, Kind, Losses, Sample, Sampled};
use espalier_tinker::path::TinkerPath;
use espalier_tinker::proto::ConfigValue;
use espalier_tinker::tensor::{Numbers, Tensor};
use espalier_tinker::{Backend, Operation, OperationError, Outcome, wire};
use espalier_tinker_engine::{LearnerOptions, LocalBackend, LocalOptions};
use espalier_trainer::{Kind as Number, ModelOptions, TrainModel, TrainPrecision, export};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

pub(crate) const CONTEXT: usize = 256;
pub(crate) const VOCAB: u32 = 320;

/// A folder with a tiny model of random weights.
pub(crate) fn model(folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB, "hidden_size": 32,
        "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 16, "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": true,
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let options = ModelOptions { precision: TrainPrecision::F32, seed: 5, ..ModelOptions::default() };
    let shape = read_config(folder).unwrap().decoder;
    let policy = TrainModel::random(&shape, options, Group::single()).unwrap();
    export::save_weights(&policy, Some(folder), Number::Float, 1 << 30).unwrap();
}

pub(crate) fn backend_with(folder: &Path, learner: LearnerOptions, samplers: usize) -> LocalBackend {
    let base = folder.join("model");
    if !base.exists() {
        model(&base);
    }
    let options = EngineOptions {
        precision: Precision::F32,
        kv_cache_mb: Some(32),
        threads: Some(1),
        ..EngineOptions::default()
    };
    let engine = LocalEngine::with_tokenizer(&base, Tokenizer::bytes(), Some(ChatTemplate::chatml()), options).unwrap();
    let local = LocalOptions {
        name: "tiny".to_owned(),
        folder: folder.join("state"),
        learner,
        samplers,
        limit: Duration::from_mins(1),
    };
    LocalBackend::start(Arc::new(engine), &base, local).unwrap()
}

pub(crate) fn backend(folder: &Path) -> LocalBackend {
    backend_with(folder, LearnerOptions::default(), 8)
}

/// One of a session's models, with its place in its order.
pub(crate) struct Client<'a> {
    backend: &'a dyn Backend,
    pub(crate) model: u32,
    seq: i64,
}

impl<'a> Client<'a> {
    pub(crate) fn id(&self) -> String {
        format!("s:train:{}", self.model)
    }

    async fn run(&self, operation: Operation) -> Result<Outcome, OperationError> {
        self.backend.execute(operation, CancellationToken::new()).await
    }

    async fn ask(&mut self, kind: Kind, mut body: Value) -> Result<Outcome, OperationError> {
        self.seq += 1;
        body["model_id"] = json!(self.id());
        body["seq_id"] = json!(self.seq);
        self.run(Operation::read(kind, body.to_string().as_bytes()).unwrap()).await
    }

    /// The same model, asked of another backend over the same folder: what it lacks is done again, as the server does.
    pub(crate) async fn moved<'b>(&self, backend: &'b dyn Backend, done: &[Operation]) -> Client<'b> {
        let client = Client { backend, model: self.model, seq: self.seq };
        let reached = backend.progress(&self.id().parse().unwrap()).map_or(-1, |progress| progress.reached);
        for operation in done.iter().filter(|operation| operation.seq() > reached && operation.changes_model()) {
            client.run(operation.clone()).await.unwrap();
        }
        client
    }

    pub(crate) async fn create(backend: &'a dyn Backend, model: u32, lora: Value) -> Self {
        let client = Self { backend, model, seq: 0 };
        let body = json!({"session_id": "s", "model_seq_id": model, "base_model": "tiny", "lora_config": lora});
        let made = client.run(Operation::read(Kind::CreateModel, body.to_string().as_bytes()).unwrap()).await.unwrap();
        assert_eq!(made, Outcome::ModelCreated);
        client
    }

    /// A new model from a checkpoint.
    pub(crate) async fn from(
        backend: &'a dyn Backend,
        model: u32,
        path: &TinkerPath,
        optimizer: bool,
    ) -> Result<Self, OperationError> {
        let client = Self { backend, model, seq: 0 };
        let body = json!({"session_id": "s", "model_seq_id": model, "path": path, "optimizer": optimizer});
        client.run(Operation::read(Kind::LoadWeights, body.to_string().as_bytes()).unwrap()).await?;
        Ok(client)
    }

    pub(crate) async fn pass(
        &mut self,
        data: Vec<Datum>,
        loss: &str,
        config: &[(&str, f64)],
        forward_only: bool,
    ) -> Result<Losses, OperationError> {
        self.seq += 1;
        let config: BTreeMap<String, ConfigValue> =
            config.iter().map(|(name, number)| ((*name).to_owned(), ConfigValue::Number(*number))).collect();
        let operation = ForwardBackward {
            model_id: self.id().parse().unwrap(),
            seq_id: self.seq,
            data,
            loss_fn: loss.to_owned(),
            config,
            forward_only,
        };
        match self.run(Operation::ForwardBackward(operation)).await? {
            Outcome::ForwardBackward(losses) => Ok(losses),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn train(&mut self, data: Vec<Datum>) -> Losses {
        self.pass(data, "cross_entropy", &[], false).await.unwrap()
    }

    pub(crate) async fn logprobs(&mut self, data: Vec<Datum>) -> Vec<f32> {
        let losses = self.pass(data, "cross_entropy", &[], true).await.unwrap();
        losses.logprobs.into_iter().flat_map(|datum| datum.values).collect()
    }

    pub(crate) async fn step(&mut self, adam: Value) -> Result<BTreeMap<String, f64>, OperationError> {
        match self.ask(Kind::OptimStep, json!({"adam_params": adam})).await? {
            Outcome::OptimStep(metrics) => Ok(metrics),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn save(&mut self, kind: Kind, name: &str) -> Result<TinkerPath, OperationError> {
        match self.ask(kind, json!({"path": name})).await? {
            Outcome::Saved { path, size } => {
                assert!(size.is_some_and(|size| size > 0));
                Ok(path)
            }
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn load(&mut self, path: &TinkerPath, optimizer: bool) -> Result<(), OperationError> {
        let loaded = self.ask(Kind::LoadWeights, json!({"path": path, "optimizer": optimizer})).await?;
        assert_eq!(loaded, Outcome::Loaded);
        Ok(())
    }
}

/// Samples a prompt.
pub(crate) async fn sample(
    backend: &dyn Backend,
    weights: Option<&TinkerPath>,
    prompt: &[u32],
    more: Value,
) -> Result<Sampled, OperationError> {
    let mut body = json!({"num_samples": 1, "prompt": {"chunks": [{"type": "encoded_text", "tokens": prompt}]},
                          "sampling_params": {"max_tokens": 8, "temperature": 0.0, "stop": []},
                          "sampling_session_id": "s:sample:0", "seq_id": 0});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let request = wire::read(body.to_string().as_bytes()).unwrap();
    let sample = Sample { request, base_model: "tiny".to_owned(), weights: weights.cloned() };
    match backend.execute(Operation::Sample(sample), CancellationToken::new()).await? {
        Outcome::Sampled(sampled) => Ok(sampled),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn numbers(values: &[f32]) -> Tensor {
    Tensor { numbers: Numbers::F32(values.to_vec()), shape: vec![values.len()], sparsity: None }
}

/// Tokens, their successors as targets, and columns.
pub(crate) fn datum(tokens: &[u32], columns: &[(&str, Vec<f32>)]) -> Datum {
    let (input, targets) = (&tokens[..tokens.len() - 1], &tokens[1..]);
    let targets = Numbers::I64(targets.iter().map(|token| i64::from(*token)).collect());
    let mut loss_inputs: BTreeMap<String, Tensor> =
        columns.iter().map(|(name, values)| ((*name).to_owned(), numbers(values))).collect();
    loss_inputs
        .insert("target_tokens".to_owned(), Tensor { numbers: targets, shape: vec![input.len()], sparsity: None });
    Datum { input: vec![Piece::Tokens(input.to_vec())], loss_inputs }
}

/// Tokens that follow from a number.
pub(crate) fn tokens(number: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| 32 + (number * 31 + i * 7 + i * i * number) % 90).collect()
}
