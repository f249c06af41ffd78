//! Adapters beside PEFT: `fixtures/adapters.json` was made by `fixtures/make_adapters.py`.

mod tiny;

use espalier_engine::AdapterWeights;
use espalier_inference::InferenceEngine;
use serde::Deserialize;
use serde_json::Value;
use tiny::lora::{model_folder, peft_folder, untied};
use tiny::{Tensors, load, options, request, values};

#[derive(Deserialize)]
struct Case {
    name: String,
    config: Value,
    tensors: Vec<(String, Vec<usize>)>,
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
}

#[tokio::test]
async fn each_adapter_answers_as_it_does_under_peft() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("fixtures/adapters.json")).unwrap();
    let model = model_folder(&untied());
    // All of them in one engine, as they would be served.
    let engine = load(model.path(), options()).unwrap();
    for case in &cases {
        let tensor = |(name, shape): &(String, Vec<usize>)| {
            let scale = if name.contains("lora_A") { 0.5 } else { 0.2 };
            let raw = values(name, 1, shape.iter().product());
            (name.clone(), shape.clone(), raw.iter().map(|x| x * scale).collect())
        };
        let tensors: Tensors = case.tensors.iter().map(tensor).collect();
        let folder = peft_folder(&case.config, &tensors);
        engine
            .load_adapter(&case.name, &AdapterWeights::read(folder.path(), &engine.config().decoder).unwrap())
            .unwrap();
    }
    let answers = cases.iter().map(|case| {
        let mut asked = request(case.prompt.clone(), tiny::greedy(24));
        asked.adapter = Some(case.name.clone());
        engine.generate(asked)
    });
    for (case, answer) in cases.iter().zip(futures::future::join_all(answers).await) {
        let answer = answer.unwrap().remove(0);
        assert_eq!(answer.tokens, case.tokens, "{}", case.name);
        let worst = answer.logprobs.iter().zip(&case.logprobs).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(worst < 1e-4, "{}: log-probabilities differ by up to {worst}", case.name);
    }
}
