//! What a model learns, keeps and answers, over a tiny model.

mod common;

use common::{CONTEXT, Client, VOCAB, backend, backend_with, datum, numbers, sample, tokens};
use espalier_tinker::operation::Kind;
use espalier_tinker::tensor::{Numbers, Sparsity, Tensor};
use espalier_tinker::{Backend, Category, OperationError};
use espalier_tinker_engine::LearnerOptions;
use serde_json::json;

fn near(a: f64, b: f64, tolerance: f64) {
    assert!((a - b).abs() <= tolerance * b.abs().max(1.0), "{a} is not {b}");
}

fn user(error: &OperationError, text: &str) {
    assert!(error.category == Category::User && error.message.contains(text), "{error:?}");
}

#[tokio::test]
async fn a_model_learns_what_it_is_shown_and_samples_it() {
    let folder = tempfile::tempdir().unwrap();
    let backend = backend(folder.path());
    let mut client = Client::create(&backend, 0, json!({"rank": 8, "seed": 1})).await;
    let shown: Vec<u32> = (0..12).map(|i| 40 + 3 * i).collect();
    let first = client.train(vec![datum(&shown, &[])]).await;
    assert_eq!(first.logprobs[0].values.len(), 11);
    near(first.metrics["loss:sum"], -first.logprobs[0].values.iter().map(|x| f64::from(*x)).sum::<f64>(), 1e-5);
    client.step(json!({"learning_rate": 0.005})).await.unwrap();
    for _ in 0..300 {
        client.train(vec![datum(&shown, &[])]).await;
        client.step(json!({"learning_rate": 0.005})).await.unwrap();
    }
    let last = client.train(vec![datum(&shown, &[])]).await;
    assert!(last.metrics["loss:sum"] < first.metrics["loss:sum"] / 10.0, "{first:?} {last:?}");
    let path = client.save(Kind::SaveWeightsForSampler, "taught").await.unwrap();
    let taught = sample(&backend, Some(&path), &shown[..4], json!({})).await.unwrap();
    assert_eq!(taught.sequences[0].tokens, shown[4..]);
    // The base did not learn it, and another model neither.
    let base = sample(&backend, None, &shown[..4], json!({})).await.unwrap();
    assert_ne!(base.sequences[0].tokens, shown[4..]);
    let mut other = Client::create(&backend, 1, json!({"rank": 8, "seed": 1})).await;
    assert_eq!(other.logprobs(vec![datum(&shown, &[])]).await, first.logprobs[0].values);
}

#[tokio::test]
async fn the_sampler_and_the_trainer_agree_on_log_probabilities() {
    let folder = tempfile::tempdir().unwrap();
    let backend = backend(folder.path());
    let mut client = Client::create(&backend, 0, json!({"rank": 4, "seed": 1})).await;
    for number in 0..3 {
        client.train(vec![datum(&tokens(number, 9), &[])]).await;
        client.step(json!({"learning_rate": 0.02})).await.unwrap();
    }
    let path = client.save(Kind::SaveWeights, "now").await.unwrap();
    let prompt = tokens(7, 10);
    let asked = json!({"prompt_logprobs": true, "sampling_params": {"max_tokens": 6, "seed": 3, "stop": []}});
    let sampled = sample(&backend, Some(&path), &prompt, asked).await.unwrap();
    let whole: Vec<u32> = prompt.iter().chain(&sampled.sequences[0].tokens).copied().collect();
    let trained = client.logprobs(vec![datum(&whole, &[])]).await;
    let said = sampled.prompt_logprobs.unwrap();
    assert_eq!((said.len(), said[0]), (10, None));
    let said: Vec<f32> = said[1..].iter().map(|x| x.unwrap()).chain(sampled.sequences[0].logprobs.clone()).collect();
    for (a, b) in said.iter().zip(&trained) {
        near(f64::from(*a), f64::from(*b), 1e-4);
    }
}

/// A loss, its numbers, and what it must sum to.
type Case<'a> = (&'a str, &'a [(&'a str, f64)], f64);

/// Every loss against its formula, written out number by number.
#[tokio::test]
async fn losses_are_the_sums_that_their_formulas_say() {
    let folder = tempfile::tempdir().unwrap();
    let backend = backend(folder.path());
    let mut client = Client::create(&backend, 0, json!({"rank": 4, "seed": 1})).await;
    let rows = [tokens(1, 7), tokens(2, 5)];
    let plain: Vec<_> = rows.iter().map(|row| datum(row, &[])).collect();
    let l = client.logprobs(plain).await;
    let columns = |row: usize| {
        let (from, count) = if row == 0 { (0, 6) } else { (6, 4) };
        let value = |i: usize, salt: usize| ((i * 37 + salt * 11) % 17) as f32 / 17.0 - 0.5;
        let q: Vec<f32> = (0..count).map(|i| l[from + i] + value(i + from, 1)).collect();
        let a: Vec<f32> = (0..count).map(|i| if i == 0 { 0.0 } else { 4.0 * value(i + from, 2) }).collect();
        let mask: Vec<f32> = (0..count).map(|i| if i == 0 { 0.0 } else { 1.0 }).collect();
        (q, a, mask)
    };
    let data = |mask: bool| -> Vec<_> {
        let row = |row: usize| {
            let (mut q, a, m) = columns(row);
            // What an advantage of 0 leaves out may be anything.
            q[0] = -1e30;
            let mut all = vec![("logprobs", q), ("advantages", a)];
            if mask {
                all.push(("sequence_ratio_mask", m));
            }
            datum(&rows[row], &all)
        };
        vec![row(0), row(1)]
    };
    // (l, q, A, mean difference of the sequence)
    let mut terms = Vec::new();
    for (row, from) in [(0, 0), (1, 6)] {
        let (q, a, _) = columns(row);
        let differences: Vec<f64> = (1..q.len()).map(|i| f64::from(l[from + i]) - f64::from(q[i])).collect();
        let mean = differences.iter().sum::<f64>() / differences.len() as f64;
        terms.extend((1..q.len()).map(|i| (f64::from(l[from + i]), f64::from(q[i]), f64::from(a[i]), mean)));
    }
    let sum = |term: &dyn Fn(f64, f64, f64, f64) -> f64| -> f64 {
        -terms.iter().map(|t| term(t.0, t.1, t.2, t.3)).sum::<f64>()
    };
    let clamp = |x: f64, low: f64, high: f64| x.max(low).min(high);
    let cases: [Case<'_>; 5] = [
        ("importance_sampling", &[], sum(&|l, q, a, _| (l - q).exp() * a)),
        ("ppo", &[], sum(&|l, q, a, _| ((l - q).exp() * a).min(clamp((l - q).exp(), 0.8, 1.2) * a))),
        (
            "ppo",
            &[("clip_low_threshold", 0.9), ("clip_high_threshold", 1.05)],
            sum(&|l, q, a, _| ((l - q).exp() * a).min(clamp((l - q).exp(), 0.9, 1.05) * a)),
        ),
        ("cispo", &[("clip_high_threshold", 1.1)], sum(&|l, q, a, _| clamp((l - q).exp(), 0.0, 1.1) * a * l)),
        ("gspo", &[], sum(&|_, _, a, s: f64| (s.exp() * a).min(clamp(s.exp(), 0.8, 1.2) * a))),
    ];
    for (name, config, expected) in cases {
        let given = || data(name == "gspo");
        let found = client.pass(given(), name, config, true).await.unwrap();
        near(found.metrics["loss:sum"], expected, 1e-4);
        let trained = client.pass(given(), name, config, false).await.unwrap();
        near(trained.metrics["loss:sum"], expected, 1e-4);
        assert_eq!(found.logprobs[1].values, l[6..], "{name}");
    }
    // The pull of `dro` counts everywhere.
    let rows: Vec<_> =
        (0..2).map(|row| datum(&rows[row], &[("logprobs", columns(row).0), ("advantages", columns(row).1)])).collect();
    let found = client.pass(rows, "dro", &[("beta", 0.3)], false).await.unwrap();
    let mut expected = 0.0;
    for (row, from) in [(0, 0), (1, 6)] {
        let (q, a, _) = columns(row);
        for (i, (q, a)) in q.iter().zip(&a).enumerate() {
            let (l, q, a) = (f64::from(l[from + i]), f64::from(*q), f64::from(*a));
            expected -= a * l - 0.15 * (l - q).powi(2);
        }
    }
    near(found.metrics["loss:sum"], expected, 1e-4);
}

#[tokio::test]
async fn several_targets_of_a_token_have_a_log_probability_each() {
    let folder = tempfile::tempdir().unwrap();
    let backend = backend(folder.path());
    let mut client = Client::create(&backend, 0, json!({"rank": 4, "seed": 1})).await;
    let row = tokens(1, 4);
    let one = client.logprobs(vec![datum(&row, &[])]).await;
    let mut dense = datum(&row, &[]);
    let targets = vec![i64::from(row[1]), 40, i64::from(row[2]), 41, i64::from(row[3]), 42];
    let weights = vec![1.0, 0.0, 0.5, 0.0, 2.0, 0.0];
    let matrix = |numbers: Numbers| Tensor { numbers, shape: vec![3, 2], sparsity: None };
    dense.loss_inputs.insert("target_tokens".to_owned(), matrix(Numbers::I64(targets)));
    dense.loss_inputs.insert("weights".to_owned(), matrix(Numbers::F32(weights)));
    let found = client.pass(vec![dense], "cross_entropy", &[], false).await.unwrap();
    assert_eq!((found.logprobs[0].targets, found.logprobs[0].values.len()), (2, 6));
    let (l, expected) =
        (&found.logprobs[0].values, f64::from(one[0]) + 0.5 * f64::from(one[1]) + 2.0 * f64::from(one[2]));
    near(found.metrics["loss:sum"], -expected, 1e-5);
    near(f64::from(l[0]), f64::from(one[0]), 1e-5);
    // The same given sparsely: what is not named is 0.
    let sparse = |numbers: Numbers| Tensor {
        numbers,
        shape: vec![3, 2],
        sparsity: Some(Sparsity { rows: vec![0, 1, 2, 3], columns: vec![0, 0, 0] }),
    };
    let mut given = datum(&row, &[]);
    given
        .loss_inputs
        .insert("target_tokens".to_owned(), sparse(Numbers::I64(row[1..].iter().map(|t| i64::from(*t)).collect())));
    given.loss_inputs.insert("weights".to_owned(), sparse(Numbers::F32(vec![1.0, 0.5, 2.0])));
    let found = client.pass(vec![given], "cross_entropy", &[], false).await.unwrap();
    near(found.metrics["loss:sum"], -expected, 1e-5);
    assert_eq!(found.logprobs[0].values[1], 0.0);
    near(f64::from(found.logprobs[0].values[4]), f64::from(one[2]), 1e-5);
}

#[tokio::test]
async fn a_request_that_is_wrong_names_the_datum_and_takes_nothing_along() {
    let folder = tempfile::tempdir().unwrap();
    let backend = backend(folder.path());
    let mut client = Client::create(&backend, 0, json!({"rank": 4, "seed": 1})).await;
    let mut alone = Client::create(&backend, 1, json!({"rank": 4, "seed": 1})).await;
    let good = || datum(&tokens(1, 6), &[]);
    client.train(vec![good()]).await;
    alone.train(vec![good()]).await;
    let huge = datum(&tokens(1, 6), &[("logprobs", vec![-1e30; 5]), ("advantages", vec![1.0; 5])]);
    let fine = datum(&tokens(2, 6), &[("logprobs", vec![-3.0; 5]), ("advantages", vec![1.0; 5])]);
    let error = client.pass(vec![fine.clone(), huge], "importance_sampling", &[], false).await.unwrap_err();
    user(&error, "data[1]");
    let mut outside = good();
    outside.loss_inputs.insert("target_tokens".to_owned(), {
        let numbers = Numbers::I64(vec![1, 2, 3, 4, i64::from(VOCAB)]);
        Tensor { numbers, shape: vec![5], sparsity: None }
    });
    let long = datum(&vec![40; CONTEXT + 2], &[]);
    let missing = datum(&tokens(2, 6), &[("logprobs", vec![-3.0; 5])]);
    let mut odd = good();
    odd.loss_inputs.insert("advantages".to_owned(), numbers(&[1.0; 5]));
    for (data, loss, config, text) in [
        (
            vec![good(), outside],
            "cross_entropy",
            &[][..],
            "`data[1].loss_fn_inputs.target_tokens`: expected tokens below 320",
        ),
        (vec![long], "cross_entropy", &[], "`data[0].model_input`: expected at most 256 tokens, got 257"),
        (vec![missing], "ppo", &[], "`data[0].loss_fn_inputs.advantages`: is missing"),
        (vec![odd], "cross_entropy", &[], "`data[0].loss_fn_inputs.advantages`: this loss does not read it"),
        (vec![good()], "stable_reinforce", &[], "not published"),
        (vec![good()], "no_such", &[], "expected one of cross_entropy, importance_sampling, ppo, cispo, dro, gspo"),
        (vec![fine.clone()], "ppo", &[("clip_low", 0.5)], "`loss_fn_config.clip_low`"),
        (vec![fine.clone()], "ppo", &[("clip_low_threshold", 2.0)], "clip_high_threshold"),
        (vec![fine], "dro", &[("beta", -1.0)], "`loss_fn_config.beta`"),
    ] {
        user(&client.pass(data, loss, config, false).await.unwrap_err(), text);
    }
    // As if nothing of that had been asked.
    assert_eq!(client.step(json!({})).await.unwrap(), alone.step(json!({})).await.unwrap());
    assert_eq!(client.logprobs(vec![good()]).await, alone.logprobs(vec![good()]).await);
}

/// One step of AdamW on one number of the adapter, against the formula: through the loss, whose gradient is measured.
#[tokio::test]
async fn every_parameter_of_adam_counts() {
    let folder = tempfile::tempdir().unwrap();
    let backend = backend(folder.path());
    let row = || vec![datum(&tokens(4, 8), &[])];
    let after = async |number: u32, adam: serde_json::Value| {
        let mut client = Client::create(&backend, number, json!({"rank": 4, "seed": 9})).await;
        let mut norms = Vec::new();
        for _ in 0..3 {
            client.train(row()).await;
            norms.push(client.step(adam.clone()).await.unwrap()["grad_norm:mean"]);
        }
        (client.logprobs(row()).await, norms)
    };
    let plain = after(0, json!({"learning_rate": 0.01})).await;
    assert_eq!(plain, after(1, json!({"learning_rate": 0.01})).await);
    let mut number = 2;
    for other in [
        json!({"learning_rate": 0.02}),
        json!({"learning_rate": 0.01, "beta1": 0.5}),
        json!({"learning_rate": 0.01, "beta2": 0.5}),
        json!({"learning_rate": 0.01, "eps": 0.1}),
        json!({"learning_rate": 0.01, "weight_decay": 10.0}),
        // So small that the denominator feels it.
        json!({"learning_rate": 0.01, "eps": 1e-4, "grad_clip_norm": 1e-4}),
    ] {
        assert_ne!(plain.0, after(number, other.clone()).await.0, "{other}");
        number += 1;
    }
    // A rate of 0 changes nothing, and the norm is that before clipping.
    let still = after(number, json!({"learning_rate": 0.0, "grad_clip_norm": 1e-3})).await;
    assert_eq!((still.1[0], still.1[1]), (plain.1[0], plain.1[0]));
    // Without gradients nothing happens.
    let mut client = Client::create(&backend, number + 1, json!({"rank": 4, "seed": 9})).await;
    let before = client.logprobs(row()).await;
    assert_eq!(client.step(json!({"learning_rate": 1.0})).await.unwrap()["grad_norm:mean"], 0.0);
    assert_eq!(client.logprobs(row()).await, before);
}

#[tokio::test]
async fn requests_add_up_to_what_one_request_would_have_given() {
    let folder = tempfile::tempdir().unwrap();
    let learner = LearnerOptions { micro_batch_tokens: 8, ..LearnerOptions::default() };
    let backend = backend_with(folder.path(), learner, 8);
    let data: Vec<_> = (0..5).map(|i| datum(&tokens(i, 5 + i), &[])).collect();
    let mut whole = Client::create(&backend, 0, json!({"rank": 4, "seed": 2})).await;
    let mut parts = Client::create(&backend, 1, json!({"rank": 4, "seed": 2})).await;
    whole.train(data.clone()).await;
    for datum in data.clone() {
        parts.train(vec![datum]).await;
        // Looking on takes and leaves nothing.
        parts.logprobs(data.clone()).await;
    }
    let (a, b) = (whole.step(json!({})).await.unwrap(), parts.step(json!({})).await.unwrap());
    near(a["grad_norm:mean"], b["grad_norm:mean"], 1e-5);
}

#[tokio::test]
async fn a_checkpoint_goes_on_where_it_was_with_or_without_its_optimiser() {
    let folder = tempfile::tempdir().unwrap();
    let backend = backend(folder.path());
    let row = |i: u32| vec![datum(&tokens(i, 8), &[])];
    let lora = json!({"rank": 4, "seed": 2, "train_mlp": false, "train_unembed": false});
    let mut client = Client::create(&backend, 0, lora.clone()).await;
    for i in 0..3 {
        client.train(row(i)).await;
        client.step(json!({"learning_rate": 0.01})).await.unwrap();
    }
    let path = client.save(Kind::SaveWeights, "middle").await.unwrap();
    let mut resumed = Client::from(&backend, 1, &path, true).await.unwrap();
    let mut fresh = Client::from(&backend, 2, &path, false).await.unwrap();
    let middle = client.logprobs(row(9)).await;
    assert_eq!(resumed.logprobs(row(9)).await, middle);
    assert_eq!(fresh.logprobs(row(9)).await, middle);
    for client in [&mut client, &mut resumed, &mut fresh] {
        client.train(row(5)).await;
        client.step(json!({"learning_rate": 0.01})).await.unwrap();
    }
    let end = client.logprobs(row(9)).await;
    assert_eq!(resumed.logprobs(row(9)).await, end);
    assert_ne!(fresh.logprobs(row(9)).await, end);
    // In place: gradients that were not applied are gone, too.
    client.train(row(6)).await;
    client.load(&path, true).await.unwrap();
    assert_eq!(client.logprobs(row(9)).await, middle);
    assert_eq!(client.step(json!({})).await.unwrap()["grad_norm:mean"], 0.0);
    // Into a model of another shape it does not fit; what has no moments is not to train on.
    let mut other = Client::create(&backend, 3, json!({"rank": 8, "seed": 2})).await;
    user(&other.load(&path, true).await.unwrap_err(), "rank 4");
    let sampler = client.save(Kind::SaveWeightsForSampler, "s").await.unwrap();
    let error = Client::from(&backend, 4, &sampler, false).await.map(|_| ()).unwrap_err();
    user(&error, "expected a checkpoint to train on");
    // A damaged file is found.
    let weights = folder.path().join("state/checkpoints/s:train:0/weights/middle/adapter_model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&weights, bytes).unwrap();
    let error = Client::from(&backend, 5, &path, true).await.map(|_| ()).unwrap_err();
    assert!(error.message.contains("adapter_model.safetensors") && error.message.contains("SHA-256"), "{error:?}");
}

#[tokio::test]
async fn adapters_that_do_not_fit_wait_on_the_disk_and_lose_nothing() {
    let (roomy, tight) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let here = backend(roomy.path());
    let there = backend_with(tight.path(), LearnerOptions { memory: 1, ..LearnerOptions::default() }, 1);
    let mut seen = Vec::new();
    for backend in [&here as &dyn Backend, &there] {
        let mut clients = Vec::new();
        for number in 0..3 {
            clients.push(Client::create(backend, number, json!({"rank": 2 << number, "seed": number})).await);
        }
        // Gradients add up across the others' turns.
        for round in 0..3 {
            for client in &mut clients {
                client.train(vec![datum(&tokens(round + client.model, 7), &[])]).await;
            }
            for client in &mut clients {
                client.train(vec![datum(&tokens(round + 9, 5), &[])]).await;
            }
            for client in &mut clients {
                client.step(json!({"learning_rate": 0.01})).await.unwrap();
            }
        }
        let mut found = Vec::new();
        for client in &mut clients {
            found.push(client.logprobs(vec![datum(&tokens(1, 9), &[])]).await);
        }
        // And so do checkpoints that are sampled from.
        let mut paths = Vec::new();
        for client in &mut clients {
            paths.push(client.save(Kind::SaveWeightsForSampler, "s").await.unwrap());
        }
        let mut sampled = Vec::new();
        for path in paths.iter().chain(&paths) {
            // Last digits depend on what the cache had.
            let mut found = sample(backend, Some(path), &tokens(1, 5), json!({})).await.unwrap().sequences;
            sampled.push(found.remove(0).tokens);
        }
        assert_eq!(sampled[..3], sampled[3..]);
        seen.push((found, sampled));
    }
    assert_eq!(seen[0], seen[1]);
    assert!(tight.path().join("state/parked/s:train:0/manifest.json").exists());
    there.end_session(&"s".parse().unwrap());
    // The thread does one thing after the other: when the next is done, so is that.
    Client::create(&there, 9, json!({"rank": 2})).await;
    assert!(!tight.path().join("state/parked/s:train:0").exists());
}

#[tokio::test]
async fn adapters_of_many_ranks_sample_side_by_side() {
    let folder = tempfile::tempdir().unwrap();
    let backend = backend(folder.path());
    let mut paths = Vec::new();
    for number in 0..4 {
        let mut client = Client::create(&backend, number, json!({"rank": 1 << number, "seed": number})).await;
        client.train(vec![datum(&tokens(number, 7), &[])]).await;
        client.step(json!({"learning_rate": 0.05})).await.unwrap();
        paths.push(client.save(Kind::SaveWeightsForSampler, "s").await.unwrap());
    }
    let prompt = tokens(5, 6);
    let mut alone = Vec::new();
    for path in &paths {
        alone.push(sample(&backend, Some(path), &prompt, json!({})).await.unwrap().sequences);
    }
    let together =
        futures::future::join_all(paths.iter().map(|path| sample(&backend, Some(path), &prompt, json!({})))).await;
    for (a, b) in alone.iter().zip(together) {
        assert_eq!(a[0].tokens, b.unwrap().sequences[0].tokens);
    }
}

#[tokio::test]
async fn numbers_that_are_too_large_fail_where_they_come_in() {
    let folder = tempfile::tempdir().unwrap();
    let backend = backend(folder.path());
    let mut client = Client::create(&backend, 0, json!({"rank": 4, "seed": 1})).await;
    let mut alone = Client::create(&backend, 1, json!({"rank": 4, "seed": 1})).await;
    let good = || vec![datum(&tokens(1, 6), &[])];
    client.train(good()).await;
    alone.train(good()).await;
    // A loss that is finite, and gradients whose norm is not.
    let large = datum(&tokens(1, 6), &[("weights", vec![1e30; 5])]);
    user(&client.pass(vec![large], "cross_entropy", &[], false).await.unwrap_err(), "its numbers are too large");
    assert_eq!(client.step(json!({})).await.unwrap(), alone.step(json!({})).await.unwrap());
    // A step that ruins the weights: they are not to be kept as if they were some.
    client.train(good()).await;
    client.step(json!({"learning_rate": 1e38})).await.unwrap();
    for kind in [Kind::SaveWeights, Kind::SaveWeightsForSampler, Kind::SaveWeightsExternal] {
        user(&client.save(kind, "ruins").await.unwrap_err(), "expected weights up to 65504");
    }
}

#[tokio::test]
async fn a_few_bytes_do_not_ask_for_gigabytes() {
    let folder = tempfile::tempdir().unwrap();
    let backend = backend(folder.path());
    let mut client = Client::create(&backend, 0, json!({"rank": 4, "seed": 1})).await;
    let sparse = |width: usize, numbers: Numbers| Tensor {
        numbers,
        shape: vec![3, width],
        sparsity: Some(Sparsity { rows: vec![0, 1, 1, 1], columns: vec![0] }),
    };
    let wide = |width: usize| {
        let mut datum = datum(&tokens(1, 4), &[]);
        datum.loss_inputs.insert("target_tokens".to_owned(), sparse(width, Numbers::I64(vec![40])));
        datum.loss_inputs.insert("weights".to_owned(), sparse(width, Numbers::F32(vec![1.0])));
        datum
    };
    let error = client.pass(vec![wide(1 << 29)], "cross_entropy", &[], false).await.unwrap_err();
    user(&error, "`data[0].loss_fn_inputs.target_tokens`: expected at most 320 targets of a token");
    let many: Vec<_> = (0..1200).map(|_| wide(300)).collect();
    let error = client.pass(many, "cross_entropy", &[], true).await.unwrap_err();
    user(&error, "expected at most 1048576 targets in a request");
    assert_eq!(client.pass(vec![wide(300)], "cross_entropy", &[], false).await.unwrap().logprobs[0].values.len(), 900);
}

#[tokio::test]
async fn log_probabilities_of_the_prompt_can_be_those_of_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let backend = backend(folder.path());
    let prompt = tokens(7, 6);
    let all = json!({"prompt_logprobs": true});
    let last = json!({"prompt_logprobs": true, "prompt_logprobs_last_n": 2});
    let all = sample(&backend, None, &prompt, all).await.unwrap().prompt_logprobs.unwrap();
    let last = sample(&backend, None, &prompt, last).await.unwrap().prompt_logprobs.unwrap();
    assert_eq!((last.len(), &last[..4], &last[4..]), (6, &[None; 4][..], &all[4..]));
}
