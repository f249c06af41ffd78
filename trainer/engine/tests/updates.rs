//! Weights that change while requests run.

mod tiny;

use espalier_engine::{AdapterError, EngineOptions, LocalEngine, ModelError, Precision, StreamEvent};
use espalier_inference::{EngineError, GenerateRequest, Generation, InferenceEngine};
use futures::future::join_all;
use tch::{Kind, Tensor};
use tiny::lora::{in_memory, model_folder, untied, weights};
use tiny::{engine, greedy, load, options, prompt, request, sampling, tensor, tensors};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::sync::CancellationToken;

fn tuned(tokens: Vec<u32>, max_tokens: u32) -> GenerateRequest {
    GenerateRequest { adapter: Some("tuned".to_owned()), ..request(tokens, greedy(max_tokens)) }
}

async fn answer(engine: &LocalEngine, request: GenerateRequest) -> Generation {
    engine.generate(request).await.unwrap().remove(0)
}

fn same(a: &Generation, b: &Generation) {
    assert_eq!(a.tokens, b.tokens);
    for (x, y) in a.logprobs.iter().zip(&b.logprobs) {
        assert!((x - y).abs() < 1e-4, "{x} and {y}");
    }
}

/// An engine whose adapter `tuned` was loaded from one seed.
fn with_adapter(seed: u64) -> LocalEngine {
    let engine = engine(options());
    engine.load_adapter("tuned", &weights(seed, 4)).unwrap();
    engine
}

/// A request that runs until the test ends it.
struct Running {
    events: UnboundedReceiver<StreamEvent>,
    cancel: CancellationToken,
}

impl Running {
    async fn start(engine: &LocalEngine, request: GenerateRequest) -> Self {
        let cancel = request.cancel.clone();
        Self { events: engine.generate_stream(request).await.unwrap(), cancel }
    }

    /// Waits for the next `count` tokens.
    async fn tokens(&mut self, count: usize) {
        for _ in 0..count {
            match self.events.recv().await.unwrap() {
                StreamEvent::Token { .. } => {}
                StreamEvent::Done(result) => panic!("the request ended early: {result:?}"),
            }
        }
    }

    /// Waits for a token that was sampled after now.
    async fn fresh(&mut self) {
        while self.events.try_recv().is_ok() {}
        self.tokens(1).await;
    }

    async fn end(mut self) -> Generation {
        self.cancel.cancel();
        loop {
            if let StreamEvent::Done(result) = self.events.recv().await.unwrap() {
                return result.unwrap().remove(0);
            }
        }
    }
}

/// As [`same`], as far as the shorter of the two goes.
fn begin_alike(a: &Generation, b: &Generation, count: usize) {
    let count = count.min(a.tokens.len()).min(b.tokens.len());
    assert_eq!(a.tokens[..count], b.tokens[..count]);
}

/// More tokens than any test waits for.
const LONG: u32 = 30_000;

/// An engine for requests of [`LONG`] tokens whose adapter `tuned` was loaded from a seed.
fn patient(seed: u64) -> LocalEngine {
    let engine = load(model_folder(&tensors(1)).path(), EngineOptions { kv_cache_mb: Some(256), ..options() }).unwrap();
    engine.load_adapter("tuned", &weights(seed, 4)).unwrap();
    engine
}

#[tokio::test]
async fn an_update_drops_nothing_and_every_token_says_its_version() {
    let engine = patient(1);
    let mut all = Vec::new();
    for i in 0..4 {
        all.push(Running::start(&engine, tuned(prompt(i, 30), LONG)).await);
    }
    let mut base = Running::start(&engine, request(prompt(9, 30), greedy(LONG))).await;
    for (seed, rank) in [(2, 9), (3, 2)] {
        for running in &mut all {
            running.tokens(5).await;
        }
        assert_eq!(engine.update_adapter("tuned", &weights(seed, rank)).unwrap(), seed);
        for running in &mut all {
            running.fresh().await;
        }
    }
    base.fresh().await;
    for (i, running) in all.into_iter().enumerate() {
        let done = running.end().await;
        let [(0, 1), (second, 2), (third, 3)] = done.versions[..] else { panic!("{:?}", done.versions) };
        assert!(second >= 5 && third > second && done.tokens.len() > third as usize, "{:?}", done.versions);
        // Up to the first change it is what the first weights say, and then something else.
        let before = answer(&with_adapter(1), tuned(prompt(i, 30), 400)).await;
        begin_alike(&done, &before, second as usize);
        if second < 300 {
            assert_ne!(done.tokens[..400.min(done.tokens.len())], before.tokens[..400.min(done.tokens.len())]);
        }
    }
    assert_eq!(base.end().await.versions, [(0, 0)]);
    assert_eq!((engine.adapters(), engine.stats().weight_updates), (vec![("tuned".to_owned(), 3)], 2));
}

#[tokio::test]
async fn after_an_update_nothing_that_older_weights_computed_is_used_again() {
    let engine = patient(1);
    let first = answer(&engine, tuned(prompt(1, 70), 10)).await;
    let again = answer(&engine, tuned(prompt(1, 70), 10)).await;
    assert_eq!((first.usage.cached_tokens, again.usage.cached_tokens), (0, 69));
    // A sequence that runs across the change holds keys and values of both: they are nobody else's either.
    let mut running = Running::start(&engine, tuned(prompt(2, 70), LONG)).await;
    running.tokens(3).await;
    engine.update_adapter("tuned", &weights(2, 4)).unwrap();
    running.fresh().await;
    let mut across = running.end().await.tokens;
    across.truncate(100);
    for tokens in [prompt(1, 70), prompt(2, 70), [prompt(2, 70), across].concat()] {
        let updated = answer(&engine, tuned(tokens.clone(), 10)).await;
        same(&updated, &answer(&with_adapter(2), tuned(tokens.clone(), 10)).await);
        assert!(updated.usage.cached_tokens <= 70, "{:?}", updated.usage);
    }
    let counted = engine.stats().cached_tokens;
    // 69 from the second request, 70 of the last prompt that the one before it had computed under the new weights.
    assert_eq!(counted, 69 + 70);
    let again = answer(&engine, tuned(prompt(1, 70), 10)).await;
    assert_eq!(again.usage.cached_tokens, 69);
}

#[tokio::test]
async fn an_update_with_the_same_weights_changes_no_token() {
    let engine = patient(1);
    let mut running = Running::start(&engine, tuned(prompt(3, 40), LONG)).await;
    running.tokens(10).await;
    engine.update_adapter("tuned", &weights(1, 4)).unwrap();
    running.fresh().await;
    let done = running.end().await;
    begin_alike(&done, &answer(&with_adapter(1), tuned(prompt(3, 40), 400)).await, 400);
    assert_eq!(done.versions.iter().map(|v| v.1).collect::<Vec<_>>(), [1, 2]);
}

#[tokio::test]
async fn a_removed_adapter_answers_what_it_has_and_its_name_starts_anew() {
    let engine = patient(1);
    let expected = answer(&with_adapter(1), tuned(prompt(1, 70), 400)).await;
    let mut running = Running::start(&engine, tuned(prompt(1, 70), LONG)).await;
    running.tokens(3).await;
    engine.remove_adapter("tuned").unwrap();
    let refused = engine.generate(tuned(prompt(1, 70), 5)).await;
    assert!(matches!(refused, Err(EngineError::UnknownAdapter { known, .. }) if known.is_empty()));
    assert_eq!(engine.load_adapter("tuned", &weights(2, 4)).unwrap(), 2);
    // The same name with other weights: the prefix is not the old one's, which still runs.
    for cached in [0, 69] {
        let new = answer(&engine, tuned(prompt(1, 70), 20)).await;
        assert_eq!((new.usage.cached_tokens, new.versions.clone()), (cached, vec![(0, 2)]));
        same(&new, &answer(&with_adapter(2), tuned(prompt(1, 70), 20)).await);
    }
    running.fresh().await;
    let old = running.end().await;
    begin_alike(&old, &expected, 400);
    assert_eq!(old.versions, [(0, 1)]);
    engine.remove_adapter("tuned").unwrap();
    assert!(matches!(engine.remove_adapter("tuned"), Err(AdapterError::Unknown { .. })));
    answer(&engine, request(prompt(1, 5), greedy(1))).await;
    assert_eq!(engine.stats().adapters, 0);
}

#[tokio::test]
async fn updates_in_a_crowd_drop_nothing_and_lose_no_block() {
    // 64 blocks, as many as four requests want at their end: sequences make room for each other however slowly they come.
    const LENGTH: u32 = 150;
    let engine = engine(EngineOptions { kv_cache_mb: Some(1), max_batch: 12, ..options() });
    for name in ["a", "b"] {
        engine.load_adapter(name, &weights(1, 4)).unwrap();
    }
    let work = (0..40).map(|i| {
        let adapter = [None, Some("a"), Some("b")][i % 3].map(str::to_owned);
        let mut one = GenerateRequest { adapter, ..request(prompt(i % 7, 90 + i), sampling(i as u64, LENGTH)) };
        one.n = 1 + u32::from(i % 4 == 0);
        one.session = Some(format!("session {}", i % 5));
        engine.generate(one)
    });
    let updates = async {
        for seed in 0..30 {
            engine.update_adapter(["a", "b"][seed % 2], &weights(seed as u64, 1 + seed % 5)).unwrap();
            if seed % 10 == 9 {
                engine.update_base(in_memory(&tensors(1))).unwrap();
            }
            tokio::task::yield_now().await;
        }
    };
    let (answers, ()) = tokio::join!(join_all(work), updates);
    for generation in answers.into_iter().flat_map(Result::unwrap) {
        assert_eq!((generation.tokens.len(), generation.logprobs.len()), (LENGTH as usize, LENGTH as usize));
        let (first, versions): (Vec<u32>, Vec<u64>) = generation.versions.iter().copied().unzip();
        assert!(first[0] == 0 && first.is_sorted() && first.last() < Some(&LENGTH), "{first:?}");
        assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
    }
    let before = engine.stats();
    assert!(before.preemptions > 0, "{before:?}");
    // Every block can be had again.
    let large = (0..3).map(|i| engine.generate(request(prompt(50 + i, 480), greedy(30))));
    assert!(join_all(large).await.iter().all(Result::is_ok));
    assert_eq!(engine.stats().preemptions, before.preemptions);
}

#[tokio::test]
async fn the_base_model_takes_new_weights_and_all_policies_count() {
    for precision in [Precision::F32, Precision::Bf16] {
        let engine =
            load(model_folder(&untied()).path(), EngineOptions { precision, kv_cache_mb: Some(256), ..options() })
                .unwrap();
        let new: tiny::Tensors = untied().iter().map(|(name, shape, _)| tensor(name, shape, 77)).collect();
        let expected = load(model_folder(&new).path(), EngineOptions { precision, ..options() }).unwrap();
        let mut running = Running::start(&engine, request(prompt(1, 70), greedy(LONG))).await;
        running.tokens(3).await;
        assert_eq!(engine.update_base(in_memory(&new)).unwrap(), 1);
        running.fresh().await;
        let versions = running.end().await.versions;
        assert_eq!(versions.iter().map(|v| v.1).collect::<Vec<_>>(), [0, 1]);
        for cached in [0, 69] {
            let answered = answer(&engine, request(prompt(1, 70), greedy(30))).await;
            assert_eq!((answered.usage.cached_tokens, &answered.versions[..]), (cached, &[(0, 1)][..]));
            same(&answered, &answer(&expected, request(prompt(1, 70), greedy(30))).await);
        }
    }
    let engine = with_adapter(1);
    answer(&engine, tuned(prompt(1, 70), 5)).await;
    engine.update_base(in_memory(&tensors(5))).unwrap();
    let after = answer(&engine, tuned(prompt(1, 70), 5)).await;
    assert_eq!((after.usage.cached_tokens, &after.versions[..]), (0, &[(0, 2)][..]));
    assert_eq!(engine.adapters(), [("tuned".to_owned(), 2)]);
}

#[tokio::test]
async fn weights_that_are_not_given_stay() {
    // One of three matrices that are packed together, one of a pair, one alone, a norm, and the embedding of a tied model.
    let changed = [
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.1.mlp.up_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.1.input_layernorm.weight",
        "model.embed_tokens.weight",
    ];
    for precision in [Precision::F32, Precision::Bf16] {
        let engine = load(tiny::folder().path(), EngineOptions { precision, ..options() }).unwrap();
        let mut now = tensors(1);
        for name in changed {
            let at = now.iter().position(|t| t.0 == name).unwrap();
            now[at] = tensor(name, &now[at].1.clone(), 77);
            engine.update_base(in_memory(&vec![now[at].clone()])).unwrap();
            let expected = load(model_folder(&now).path(), EngineOptions { precision, ..options() }).unwrap();
            let answered = answer(&engine, request(prompt(1, 40), greedy(30))).await;
            same(&answered, &answer(&expected, request(prompt(1, 40), greedy(30))).await);
        }
    }
}

#[tokio::test]
async fn a_bad_base_update_is_refused_by_name_and_changes_nothing() {
    let engine = engine(EngineOptions { precision: Precision::Bf16, ..options() });
    let before = answer(&engine, request(prompt(1, 40), greedy(20))).await;
    let up = "model.layers.0.mlp.up_proj.weight";
    let refused = |name: &str, tensor: Tensor| {
        let good = ("model.norm.weight".to_owned(), Tensor::zeros([64], (Kind::Float, tch::Device::Cpu)));
        engine.update_base([good, (name.to_owned(), tensor)]).unwrap_err()
    };
    let zeros = |shape: &[i64]| Tensor::zeros(shape, (Kind::Float, tch::Device::Cpu));
    assert!(matches!(refused("model.layers.2.mlp.up_proj.weight", zeros(&[96, 64])), ModelError::UnknownTensor { .. }));
    let said = refused(up, zeros(&[64, 96])).to_string();
    assert_eq!(said, format!("tensor `{up}`: expected shape [96, 64], found [64, 96]"));
    assert!(matches!(refused(up, zeros(&[96, 64]).to_kind(Kind::Int64)), ModelError::Dtype { .. }));
    for value in [f64::NAN, 70_000.0] {
        assert!(matches!(refused(up, zeros(&[96, 64]).fill_(value)), ModelError::Value { .. }), "{value}");
    }
    assert!(matches!(refused("lm_head.weight", zeros(&[259, 64])), ModelError::MissingTensor { tensor, .. }
        if tensor == "model.embed_tokens.weight"));
    let after = answer(&engine, request(prompt(1, 40), greedy(20))).await;
    same(&before, &after);
    assert_eq!((after.versions, after.usage.cached_tokens), (vec![(0, 0)], 39));
}

#[tokio::test]
async fn what_the_caller_does_to_its_tensors_afterwards_changes_nothing() {
    let engine = with_adapter(1);
    let mut given = in_memory(&tensors(2));
    engine.update_base(given.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone()))).unwrap();
    let before = answer(&engine, request(prompt(1, 40), greedy(20))).await;
    for (_, tensor) in &mut given {
        let _ = tensor.fill_(0.0);
    }
    same(&before, &answer(&engine, request(prompt(1, 40), greedy(20))).await);
}

#[tokio::test]
async fn an_adapter_whose_logits_are_not_finite_ends_its_own_requests_only() {
    let engine = with_adapter(1);
    let broken = {
        let mut tensors = tiny::lora::everywhere(2, 4);
        for tensor in &mut tensors {
            tensor.2.iter_mut().for_each(|x| *x *= 1e30);
        }
        let config = espalier_engine::AdapterConfig::new(4, 1e30);
        espalier_engine::AdapterWeights::from_tensors(&config, &tiny::lora::tiny_shape(), in_memory(&tensors)).unwrap()
    };
    engine.load_adapter("broken", &broken).unwrap();
    let to_broken = |n: u32| {
        let mut one = GenerateRequest { adapter: Some("broken".to_owned()), ..request(prompt(2, 40), greedy(20)) };
        one.n = n;
        engine.generate(one)
    };
    let (sound, one, many) = tokio::join!(engine.generate(tuned(prompt(1, 40), 60)), to_broken(1), to_broken(3));
    same(&sound.unwrap().remove(0), &answer(&with_adapter(1), tuned(prompt(1, 40), 60)).await);
    for broken in [one, many] {
        assert!(matches!(broken, Err(EngineError::Failed { reason, .. }) if reason.contains("not finite")));
    }
    assert_eq!((engine.stats().running, engine.stats().waiting), (0, 0));
}
