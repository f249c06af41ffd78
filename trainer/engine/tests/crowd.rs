//! A crowd of requests that come, go and are cancelled leaves nothing behind.

mod tiny;

use std::time::Duration;

use espalier_engine::EngineOptions;
use espalier_inference::{InferenceEngine, SamplingParams};
use futures::future::join_all;
use tiny::{engine, greedy, options, prompt, request, sampling, values};

/// A number below `most` that follows from the request's number.
fn pick(number: usize, what: &str, most: usize) -> usize {
    (f32::midpoint(values(&format!("{what} {number}"), 7, 3)[2], 1.0) * most as f32) as usize % most
}

#[tokio::test]
async fn a_crowd_under_a_tiny_cache_leaves_nothing_behind() {
    let engine = engine(EngineOptions { kv_cache_mb: Some(1), max_batch: 12, prefill_chunk: 40, ..options() });
    let work = (0..150).map(|i| {
        let engine = &engine;
        async move {
            // Prompts have common beginnings, so that blocks are shared, copied and replaced.
            let mut tokens = prompt(pick(i, "family", 5), 20 + pick(i, "shared", 150));
            tokens.extend(prompt(i, pick(i, "own", 60)));
            let params = SamplingParams { temperature: 1.5, ..sampling(i as u64, 1 + pick(i, "new", 120) as u32) };
            let mut request = request(tokens, params);
            request.n = 1 + pick(i, "samples", 4) as u32;
            request.session = Some(format!("session {}", pick(i, "session", 9)));
            let cancel = request.cancel.clone();
            let answer = engine.generate(request);
            match pick(i, "end", 4) {
                0 => {
                    let after = Duration::from_millis(pick(i, "after", 300) as u64);
                    let (answer, ()) = tokio::join!(answer, async {
                        tokio::time::sleep(after).await;
                        cancel.cancel();
                    });
                    drop(answer);
                }
                1 => drop(tokio::time::timeout(Duration::from_millis(pick(i, "dropped", 300) as u64), answer).await),
                _ => assert!(answer.await.is_ok()),
            }
        }
    });
    join_all(work).await;
    // Every block can be had again: three sequences of the whole context fit side by side without making room.
    let before = engine.stats();
    assert!(before.evictions > 0, "the cache was never short: {before:?}");
    let large = (0..3).map(|i| engine.generate(request(prompt(50 + i, 480), greedy(30))));
    for answer in join_all(large).await {
        assert_eq!(answer.unwrap()[0].tokens.len(), 30);
    }
    let after = engine.stats();
    assert_eq!((after.preemptions, after.running, after.waiting), (before.preemptions, 0, 0));
    assert_eq!(after.requests, 153);
}
