//! Batching, sharing and eviction change speed, not results.

mod tiny;

use espalier_engine::{EngineOptions, LocalEngine, StreamEvent};
use espalier_inference::{Generation, InferenceEngine, SamplingParams};
use futures::future::join_all;
use tiny::{engine, greedy, options, prompt, request, sampling};

async fn one(engine: &LocalEngine, tokens: Vec<u32>, sampling: SamplingParams) -> Generation {
    engine.generate(request(tokens, sampling)).await.unwrap().remove(0)
}

fn same(a: &Generation, b: &Generation) {
    assert_eq!(a.tokens, b.tokens);
    assert_eq!((a.stop, &a.text), (b.stop, &b.text));
    for (x, y) in a.logprobs.iter().zip(&b.logprobs) {
        assert!((x - y).abs() < 1e-4, "{x} and {y}");
    }
}

/// Requests of different lengths and parameters.
fn mixed() -> Vec<(Vec<u32>, SamplingParams)> {
    (0..24)
        .map(|i| {
            let params = match i % 4 {
                0 => greedy(20 + i as u32),
                1 => sampling(i as u64, 30),
                2 => SamplingParams { temperature: 0.7, top_p: 0.9, ..sampling(i as u64, 10 + i as u32) },
                _ => SamplingParams { top_k: 5, min_p: 0.01, ..sampling(i as u64, 40) },
            };
            (prompt(i, 1 + (i * 13) % 90), params)
        })
        .collect()
}

async fn alone() -> Vec<Generation> {
    let mut all = Vec::new();
    for (tokens, params) in mixed() {
        all.push(one(&engine(options()), tokens, params).await);
    }
    all
}

async fn together(engine: &LocalEngine) -> Vec<Generation> {
    join_all(mixed().into_iter().map(|(tokens, params)| one(engine, tokens, params))).await
}

#[tokio::test]
async fn a_batch_gives_the_same_tokens_as_each_request_alone() {
    let engine = engine(options());
    for (a, b) in together(&engine).await.iter().zip(&alone().await) {
        same(a, b);
    }
    assert!(engine.stats().steps < 200, "requests ran one after the other: {:?}", engine.stats());
}

#[tokio::test]
async fn small_chunks_and_small_batches_change_nothing() {
    let engine = engine(EngineOptions { prefill_chunk: 3, max_batch: 5, ..options() });
    for (a, b) in together(&engine).await.iter().zip(&alone().await) {
        same(a, b);
    }
}

#[tokio::test]
async fn a_tiny_cache_preempts_and_evicts_and_changes_nothing() {
    // 16 KiB a block: 1 MiB holds 64 blocks, fewer than the requests want together.
    let long = |i: usize| (prompt(i, 100 + i), if i.is_multiple_of(2) { greedy(150) } else { sampling(i as u64, 150) });
    let small = engine(EngineOptions { kv_cache_mb: Some(1), ..options() });
    assert!(small.stats().blocks <= 64, "{:?}", small.stats());
    let large = engine(options());
    let run = |engine: &'static LocalEngine| join_all((0..16).map(move |i| one(engine, long(i).0, long(i).1)));
    let (small, large): (&'static LocalEngine, &'static LocalEngine) =
        (Box::leak(Box::new(small)), Box::leak(Box::new(large)));
    let (a, b) = (run(small).await, run(large).await);
    for (a, b) in a.iter().zip(&b) {
        same(a, b);
    }
    let stats = small.stats();
    assert!(stats.preemptions > 0 && stats.evictions > 0 && stats.recomputed_tokens > 0, "{stats:?}");
    assert_eq!(large.stats().preemptions, 0);
}

#[tokio::test]
async fn samples_of_one_prompt_share_its_prefill() {
    let engine = engine(options());
    let mut many = request(prompt(3, 75), sampling(100, 20));
    many.n = 6;
    let samples = engine.generate(many).await.unwrap();
    let stats = engine.stats();
    assert_eq!((samples.len(), stats.prefilled_tokens), (6, 75), "{stats:?}");
    for (i, sample) in samples.iter().enumerate() {
        same(sample, &one(&tiny::engine(options()), prompt(3, 75), sampling(100 + i as u64, 20)).await);
    }
    assert!(samples.windows(2).any(|pair| pair[0].tokens != pair[1].tokens));
}

#[tokio::test]
async fn more_samples_than_places_come_one_after_the_other() {
    let engine = engine(EngineOptions { max_batch: 2, ..options() });
    let mut many = request(prompt(3, 40), sampling(5, 12));
    many.n = 7;
    let samples = engine.generate(many).await.unwrap();
    for (i, sample) in samples.iter().enumerate() {
        same(sample, &one(&tiny::engine(options()), prompt(3, 40), sampling(5 + i as u64, 12)).await);
    }
}

#[tokio::test]
async fn a_growing_conversation_prefills_nothing_twice() {
    let engine = engine(options());
    let mut tokens = prompt(1, 50);
    let mut computed = 0;
    for turn in 0..6 {
        let mut next = request(tokens.clone(), sampling(turn, 13));
        next.session = Some("conversation".to_owned());
        let answer = engine.generate(next).await.unwrap().remove(0);
        assert_eq!(answer.usage.cached_tokens as usize, computed, "turn {turn}");
        tokens.extend(&answer.tokens);
        computed = tokens.len() - 1;
        tokens.extend(prompt(20 + turn as usize, 9));
    }
    assert_eq!(engine.stats().reprefilled_tokens, 0);
}

#[tokio::test]
async fn a_prompt_sent_again_is_read_from_the_cache() {
    let engine = engine(options());
    let first = one(&engine, prompt(2, 70), greedy(10)).await;
    let again = one(&engine, prompt(2, 70), greedy(10)).await;
    assert_eq!((first.usage.cached_tokens, again.usage.cached_tokens), (0, 69));
    same(&first, &again);
}

#[tokio::test]
async fn a_stream_says_what_the_answer_says() {
    let engine = engine(options());
    let mut events = engine.generate_stream(request(prompt(4, 20), sampling(9, 25))).await.unwrap();
    let (mut ids, mut texts, mut done) = (Vec::new(), String::new(), None);
    while let Some(event) = events.recv().await {
        match event {
            StreamEvent::Token { id, text, .. } => {
                ids.push(id);
                texts.push_str(&text);
            }
            StreamEvent::Done(result) => done = Some(result.unwrap().remove(0)),
        }
    }
    let done = done.unwrap();
    assert_eq!((&ids, &texts), (&done.tokens, &done.text));
    same(&done, &one(&engine, prompt(4, 20), sampling(9, 25)).await);
}

#[tokio::test]
async fn seeds_decide_and_nothing_else() {
    let engine = engine(options());
    let a = one(&engine, prompt(5, 30), sampling(1, 30)).await;
    assert_eq!(a.tokens, one(&engine, prompt(5, 30), sampling(1, 30)).await.tokens);
    assert_ne!(a.tokens, one(&engine, prompt(5, 30), sampling(2, 30)).await.tokens);
}

#[tokio::test]
async fn sixteen_bit_weights_stay_close_to_thirty_two() {
    let half = engine(EngineOptions { precision: espalier_engine::Precision::Bf16, ..options() });
    let full = engine(options());
    let (a, b) = (one(&half, prompt(6, 40), greedy(1)).await, one(&full, prompt(6, 40), greedy(1)).await);
    assert_eq!(a.tokens, b.tokens);
    assert!((a.logprobs[0] - b.logprobs[0]).abs() < 2e-2);
}
