//! Adapters: what they answer, beside merged weights and beside each other, and what is refused.

mod tiny;

use espalier_engine::adapters::{Module, Target};
use espalier_engine::{AdapterConfig, AdapterError, AdapterWeights, EngineOptions, LocalEngine, Precision};
use espalier_inference::{EngineError, GenerateRequest, Generation, InferenceEngine, SamplingParams};
use futures::future::join_all;
use serde_json::{Value, json};
use tiny::lora::{
    adapter, everywhere, in_memory, merged, model_folder, modules, peft_config, peft_folder, tiny_shape, untied,
    weights,
};
use tiny::{Tensors, engine, greedy, load, options, prompt, request, sampling, tensors};

fn of(adapter: &str, tokens: Vec<u32>, sampling: SamplingParams) -> GenerateRequest {
    let adapter = (adapter != "base").then(|| adapter.to_owned());
    GenerateRequest { adapter, ..request(tokens, sampling) }
}

async fn answer(engine: &LocalEngine, request: GenerateRequest) -> Generation {
    engine.generate(request).await.unwrap().remove(0)
}

fn same(a: &Generation, b: &Generation) {
    assert_eq!(a.tokens, b.tokens);
    let worst = a.logprobs.iter().zip(&b.logprobs).map(|(x, y)| (x - y).abs()).fold(0f32, f32::max);
    assert!(a.logprobs.len() == b.logprobs.len() && worst < 1e-4, "log-probabilities differ by up to {worst}");
}

/// The answers of an adapter beside those of a model into which it was merged.
async fn check_merged(model: Tensors, config: &Value, adapter: &Tensors, scaling: impl Fn(&str) -> f32) {
    let (plain, peft) = (model_folder(&model), peft_folder(config, adapter));
    let whole = model_folder(&merged(model, adapter, scaling));
    let adapted = load(plain.path(), options()).unwrap();
    let read = AdapterWeights::read(peft.path(), &adapted.config().decoder).unwrap();
    adapted.load_adapter("tuned", &read).unwrap();
    let whole = load(whole.path(), options()).unwrap();
    for i in 0..4 {
        let tokens = prompt(i, 20 + 30 * i);
        let by_adapter = answer(&adapted, of("tuned", tokens.clone(), greedy(40))).await;
        same(&by_adapter, &answer(&whole, request(tokens.clone(), greedy(40))).await);
        let by_base = answer(&adapted, request(tokens, greedy(40))).await;
        assert_ne!(by_base.tokens, by_adapter.tokens, "the adapter changes nothing: the test shows nothing");
    }
}

#[tokio::test]
async fn an_adapter_of_every_linear_layer_answers_as_merged_weights_do() {
    let all = adapter(7, |_| Some(6));
    let mut names: Vec<&str> =
        modules().iter().map(|m| m.0.rsplit('.').next().unwrap().to_owned().leak() as &str).collect();
    names.sort_unstable();
    names.dedup();
    check_merged(untied(), &peft_config(6, 12.0, json!(names)), &all, |_| 2.0).await;
}

#[tokio::test]
async fn each_kind_of_module_alone_answers_as_merged_weights_do() {
    for target in Target::OF_A_LAYER.into_iter().chain([Target::Head]) {
        let end = target.path();
        let alone = adapter(11, |path| path.ends_with(end).then_some(5));
        check_merged(untied(), &peft_config(5, 25.0, json!([end])), &alone, |_| 5.0).await;
    }
}

#[tokio::test]
async fn ranks_and_scalings_by_pattern_are_those_of_peft() {
    let rank = |path: &str| match path {
        "model.layers.1.self_attn.q_proj" => 16,
        p if p.ends_with("down_proj") => 1,
        _ => 4,
    };
    let all = adapter(5, |path| (path != "lm_head").then(|| rank(path)));
    let mut config = peft_config(4, 6.0, json!("all-linear"));
    config["use_rslora"] = json!(true);
    config["rank_pattern"] = json!({r"layers\.1\.self_attn.q_proj": 16, "down_proj": 1});
    config["alpha_pattern"] = json!({"(gate|up)_proj": 3.5, "^model.layers.0.self_attn.o_proj": 9});
    let alpha = |path: &str| match path {
        "model.layers.0.self_attn.o_proj" => 9.0,
        p if p.ends_with("gate_proj") || p.ends_with("up_proj") => 3.5,
        _ => 6.0,
    };
    check_merged(tensors(1), &config, &all, |path| alpha(path) / (rank(path) as f32).sqrt()).await;
}

#[test]
fn modules_are_chosen_as_peft_chooses_them() {
    let chosen = |change: &dyn Fn(&mut Value)| {
        let mut config = peft_config(4, 8.0, json!(["q_proj", "v_proj"]));
        change(&mut config);
        let folder = peft_folder(&config, &Vec::new());
        let config = AdapterConfig::read(&folder.path().join("adapter_config.json")).unwrap();
        let model = tiny_shape();
        let all = Module::all(&model).filter(|m| config.selects(*m)).map(|m| m.to_string());
        all.map(|m| m.replace("model.layers.", "").replace("self_attn.", "").replace("mlp.", "")).collect::<Vec<_>>()
    };
    assert_eq!(chosen(&|_| {}), ["0.q_proj", "0.v_proj", "1.q_proj", "1.v_proj"]);
    assert_eq!(chosen(&|c| c["layers_to_transform"] = json!(1)), ["1.q_proj", "1.v_proj"]);
    assert_eq!(chosen(&|c| c["exclude_modules"] = json!(["v_proj"])), ["0.q_proj", "1.q_proj"]);
    assert_eq!(chosen(&|c| c["exclude_modules"] = json!(r".*\.0\..*")), ["1.q_proj", "1.v_proj"]);
    assert_eq!(chosen(&|c| c["target_modules"] = json!(r".*\.1\.mlp\.(up|down)_proj")), ["1.up_proj", "1.down_proj"]);
    assert_eq!(chosen(&|c| c["target_modules"] = json!("all-linear")).len(), 14);
    // A whole path is meant whatever the layers.
    let whole = json!(["model.layers.0.self_attn.o_proj", "lm_head", "k_proj"]);
    let with_layers = |c: &mut Value| {
        c["target_modules"] = whole.clone();
        c["layers_to_transform"] = json!([1]);
    };
    assert_eq!(chosen(&with_layers), ["0.o_proj", "1.k_proj", "lm_head"]);
    // `proj` is no end of a path behind a dot.
    assert_eq!(chosen(&|c| c["target_modules"] = json!(["proj", "up_proj"])), ["0.up_proj", "1.up_proj"]);
}

/// Requests to the base model and to three adapters, with prompts that begin alike.
fn mixed() -> Vec<GenerateRequest> {
    (0..24)
        .map(|i| {
            let mut tokens = prompt(40, 40);
            tokens.extend(prompt(i, 1 + (i * 13) % 50));
            let params = if i % 3 == 0 { greedy(20 + i as u32) } else { sampling(i as u64, 30) };
            let mut one = of(["base", "small", "middle", "large"][i % 4], tokens, params);
            one.n = 1 + u32::from(i % 5 == 0);
            one
        })
        .collect()
}

fn three() -> [(&'static str, AdapterWeights); 3] {
    [("small", weights(1, 1)), ("middle", weights(2, 8)), ("large", weights(3, 33))]
}

#[tokio::test]
async fn a_mixed_batch_gives_each_request_what_it_gets_alone() {
    for options in [options(), EngineOptions { prefill_chunk: 7, max_batch: 5, kv_cache_mb: Some(1), ..options() }] {
        let together = engine(options);
        for (name, weights) in &three() {
            together.load_adapter(name, weights).unwrap();
        }
        let answers = join_all(mixed().into_iter().map(|r| together.generate(r))).await;
        assert!(together.stats().steps < 600, "requests ran one after the other: {:?}", together.stats());
        for (answers, request) in answers.into_iter().zip(mixed()) {
            let alone = engine(tiny::options());
            if let Some(name) = &request.adapter {
                let (_, weights) = three().into_iter().find(|(n, _)| n == name).unwrap();
                alone.load_adapter(name, &weights).unwrap();
            }
            for (a, b) in answers.unwrap().iter().zip(&alone.generate(request).await.unwrap()) {
                same(a, b);
            }
        }
    }
}

#[tokio::test]
async fn a_prefix_is_never_taken_from_another_adapter() {
    let engine = engine(options());
    for (name, weights) in &three() {
        engine.load_adapter(name, weights).unwrap();
    }
    let tokens = prompt(4, 70);
    for name in ["base", "small", "middle", "large"] {
        let first = answer(&engine, of(name, tokens.clone(), greedy(10))).await;
        let again = answer(&engine, of(name, tokens.clone(), greedy(10))).await;
        assert_eq!((first.usage.cached_tokens, again.usage.cached_tokens), (0, 69), "{name}");
        same(&first, &again);
    }
}

#[tokio::test]
async fn sixteen_bit_weights_of_an_adapter_stay_close_to_thirty_two() {
    // The smallest values lie far below what a half can hold.
    for size in [1.0, 1e-6] {
        let half = engine(EngineOptions { precision: Precision::Bf16, ..options() });
        let full = engine(options());
        let scaled = |mut tensors: Tensors| {
            tensors.iter_mut().filter(|t| t.0.contains("lora_B")).for_each(|t| t.2.iter_mut().for_each(|x| *x *= size));
            tensors
        };
        let config = AdapterConfig::new(8, 16.0 / f64::from(size));
        let both = AdapterWeights::from_tensors(&config, &tiny_shape(), in_memory(&scaled(everywhere(2, 8)))).unwrap();
        let mut answers = Vec::new();
        for engine in [&half, &full] {
            engine.load_adapter("tuned", &both).unwrap();
            answers.push(answer(engine, of("tuned", prompt(6, 40), greedy(1))).await);
        }
        assert_eq!(answers[0].tokens, answers[1].tokens);
        assert!((answers[0].logprobs[0] - answers[1].logprobs[0]).abs() < 2e-2);
    }
}

#[tokio::test]
async fn an_unknown_adapter_is_refused_with_the_known_ones() {
    let engine = engine(EngineOptions { name: Some("tiny".to_owned()), max_requests: 1, ..options() });
    let refused = async || engine.generate(of("nobody", prompt(1, 5), greedy(1))).await.unwrap_err();
    assert_eq!(refused().await.to_string(), "tiny: `adapter`: expected none, as no adapter is loaded, got `nobody`");
    for (name, weights) in &three() {
        engine.load_adapter(name, weights).unwrap();
    }
    let known = ["large", "middle", "small"].map(str::to_owned).to_vec();
    // Twice: a refusal leaves its place free.
    for _ in 0..2 {
        let expected = EngineError::UnknownAdapter {
            model: "tiny".to_owned(),
            adapter: "nobody".to_owned(),
            known: known.clone(),
        };
        assert_eq!(refused().await, expected);
    }
    match engine.update_adapter("nobody", &weights(1, 1)) {
        Err(AdapterError::Unknown { name, known: found }) => assert_eq!((name.as_str(), found), ("nobody", known)),
        other => panic!("{other:?}"),
    }
    assert!(matches!(engine.remove_adapter("nobody"), Err(AdapterError::Unknown { .. })));
    assert!(
        matches!(engine.load_adapter("small", &weights(1, 1)), Err(AdapterError::Exists { name }) if name == "small")
    );
    for name in ["", "tiny"] {
        assert!(matches!(engine.load_adapter(name, &weights(1, 1)), Err(AdapterError::Name { .. })), "{name}");
    }
}

#[tokio::test]
async fn an_adapter_for_another_model_is_refused() {
    let engine = engine(options());
    let mut deeper = tiny_shape();
    deeper.layers = 3;
    let mut tensors = everywhere(1, 2);
    let third = tensors.iter().filter(|t| t.0.contains(".1.")).cloned().map(|mut t| {
        t.0 = t.0.replace(".1.", ".2.");
        t
    });
    tensors.extend(third.collect::<Vec<_>>());
    let config = AdapterConfig::new(2, 4.0);
    let deeper = AdapterWeights::from_tensors(&config, &deeper, in_memory(&tensors)).unwrap();
    let refused = engine.load_adapter("tuned", &deeper).unwrap_err().to_string();
    assert!(refused.contains("`model.layers.2.self_attn.q_proj`: expected one of 2 layers"), "{refused}");
    let mut wider = tiny_shape();
    wider.intermediate = 128;
    let tensors = adapter(1, |path| path.ends_with("up_proj").then_some(2)).into_iter().map(|(name, shape, _)| {
        let shape = shape.into_iter().map(|d| if d == 96 { 128 } else { d }).collect::<Vec<_>>();
        let values = vec![0.0; shape.iter().product()];
        (name, shape, values)
    });
    let config = config.with_targets(["up_proj"]);
    let wider = AdapterWeights::from_tensors(&config, &wider, in_memory(&tensors.collect())).unwrap();
    let refused = engine.load_adapter("tuned", &wider).unwrap_err().to_string();
    assert!(refused.ends_with("up_proj.lora_B.weight`: expected shape [96, 2], found [128, 2]"), "{refused}");
}

fn read(config: &Value, tensors: &Tensors) -> Result<AdapterWeights, AdapterError> {
    AdapterWeights::read(peft_folder(config, tensors).path(), &tiny_shape())
}

#[test]
fn what_the_engine_does_not_do_is_refused_by_file_and_key() {
    let cases = [
        ("peft_type", json!("IA3")),
        ("peft_type", json!(null)),
        ("r", json!(0)),
        ("r", json!("eight")),
        ("lora_alpha", json!("much")),
        ("use_rslora", json!("yes")),
        ("use_dora", json!(true)),
        ("bias", json!("lora_only")),
        ("lora_bias", json!(true)),
        ("fan_in_fan_out", json!(true)),
        ("modules_to_save", json!(["embed_tokens"])),
        ("layer_replication", json!([[0, 1], [0, 2]])),
        ("trainable_token_indices", json!([1])),
        ("target_parameters", json!(["experts.gate"])),
        ("init_lora_weights", json!("pissa")),
        ("target_modules", json!(null)),
        ("target_modules", json!([1])),
        ("target_modules", json!("(?<=q)_proj")),
        ("target_modules", json!(["c_attn"])),
        ("rank_pattern", json!({"q_proj": 0})),
        ("rank_pattern", json!({"(": 4})),
        ("alpha_pattern", json!([])),
        ("layers_to_transform", json!("all")),
    ];
    for (key, value) in cases {
        let mut config = peft_config(4, 8.0, json!(["q_proj"]));
        config[key] = value.clone();
        match read(&config, &Vec::new()) {
            Err(AdapterError::File(espalier_engine::ModelError::Config { path, key: found, .. })) => {
                assert_eq!(found, key, "{value}");
                assert!(key == "target_modules" || path.ends_with("adapter_config.json"), "{}", path.display());
            }
            other => panic!("{key} = {value}: {other:?}"),
        }
    }
}

#[test]
fn a_bad_tensor_is_named_with_its_file_and_with_what_was_expected() {
    let config = peft_config(4, 8.0, json!(["q_proj", "down_proj"]));
    let all = adapter(1, |path| (path.ends_with("q_proj") || path.ends_with("down_proj")).then_some(4));
    let name = |half: &str| format!("base_model.model.model.layers.1.mlp.down_proj.{half}.weight");
    let said = |change: &dyn Fn(&mut Tensors)| {
        let mut tensors = all.clone();
        change(&mut tensors);
        read(&config, &tensors).unwrap_err().to_string()
    };
    let find = |tensors: &mut Tensors, half: &str| tensors.iter().position(|t| t.0 == name(half)).unwrap();

    let shape = said(&|tensors| {
        let at = find(tensors, "lora_B");
        tensors[at].1 = vec![4, 64];
    });
    assert!(
        shape.contains("adapter_model.safetensors`: tensor `base_model.model.model.layers.1.mlp.down_proj.lora_B"),
        "{shape}"
    );
    assert!(shape.ends_with("expected shape [64, 4], found [4, 64]"), "{shape}");
    let missing = said(&|tensors| {
        let at = find(tensors, "lora_A");
        tensors.remove(at);
    });
    assert!(missing.contains(&format!("no tensor `{}`", name("lora_A"))), "{missing}");
    let not_finite = said(&|tensors| {
        let at = find(tensors, "lora_A");
        tensors[at].2[3] = f32::NAN;
    });
    assert!(not_finite.contains("down_proj.lora_A.weight`: expected values up to") && not_finite.contains("found NaN"));
    let surplus = [
        "base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight",
        "base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.00.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector",
        "base_model.model.model.embed_tokens.lora_embedding_A",
        "base_model.model.model.embed_tokens.weight",
    ];
    for name in surplus {
        let said = said(&|tensors| tensors.push((name.to_owned(), vec![4, 64], vec![0.0; 256])));
        assert!(said.contains(&format!("tensor `{name}`: expected ")), "{said}");
    }
    let twice = said(&|tensors| {
        let at = find(tensors, "lora_A");
        let mut again = tensors[at].clone();
        again.0 = again.0.replace("base_model.model.model", "model");
        tensors.push(again);
    });
    assert!(twice.contains("expected each module once"), "{twice}");
}

#[test]
fn a_folder_without_its_files_is_refused_by_name() {
    let config = peft_config(4, 8.0, json!(["q_proj"]));
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        let folder = peft_folder(&config, &Vec::new());
        std::fs::remove_file(folder.path().join(file)).unwrap();
        let said = AdapterWeights::read(folder.path(), &tiny_shape()).unwrap_err().to_string();
        assert!(said.contains(file), "{said}");
    }
}
