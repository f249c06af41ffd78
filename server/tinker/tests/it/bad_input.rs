//! Requests that are wrong: every refusal names its field, and none is the server's failure.

use espalier_tinker::ServerOptions;
use espalier_tinker::proto;
use prost::Message as _;
use serde_json::{Value, json};

use crate::harness::{MODEL, Running, create_model, optim, sample, text};

fn with(mut body: Value, pointer: &str, value: Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    body.pointer_mut(parent).unwrap()[key] = value;
    body
}

fn without(mut body: Value, pointer: &str) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    body.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(key);
    body
}

#[tokio::test]
async fn every_wrong_field_is_named() {
    let server = Running::start(ServerOptions::default()).await;
    let session = server.session().await;
    let sampler = server.sampler(&session, 0).await;
    let (model, created) = server.model(&session, 0).await;
    server.result(&created).await;
    let ask = sample(&sampler, 0, &[10]);
    let step = optim(&model, 1);
    let make = create_model(&session, 5);
    let save = json!({"model_id": model, "seq_id": 1, "path": "name", "type": "save_weights"});
    let load =
        json!({"model_id": model, "seq_id": 1, "path": format!("tinker://{model}/weights/a"), "optimizer": true});
    let cases = [
        ("create_session", json!({"tags": "x"}), "tags"),
        ("create_session", json!({"user_metadata": {"x": "y".repeat(70_000)}}), "user_metadata"),
        ("session_heartbeat", json!({}), "session_id"),
        ("session_heartbeat", json!({"session_id": "../x"}), "session_id"),
        ("create_sampling_session", json!({"session_id": session, "sampling_session_seq_id": 9}), "base_model"),
        (
            "create_sampling_session",
            json!({"session_id": session, "sampling_session_seq_id": -1, "base_model": MODEL}),
            "sampling_session_seq_id",
        ),
        (
            "create_sampling_session",
            json!({"session_id": session, "sampling_session_seq_id": 9, "base_model": "no"}),
            "base_model",
        ),
        (
            "create_sampling_session",
            json!({"session_id": session, "sampling_session_seq_id": 9, "model_path": "tinker://../../x"}),
            "model_path",
        ),
        ("create_model", with(make.clone(), "/base_model", json!("no")), "base_model"),
        ("create_model", with(make.clone(), "/lora_config/rank", json!(0)), "lora_config.rank"),
        ("create_model", with(make.clone(), "/lora_config/rank", json!(24)), "lora_config.rank"),
        ("create_model", with(make.clone(), "/lora_config/alpha", json!(32)), "lora_config.alpha"),
        (
            "create_model",
            with(
                make.clone(),
                "/lora_config",
                json!({"train_mlp": false, "train_attn": false, "train_unembed": false}),
            ),
            "lora_config",
        ),
        ("create_model", with(make.clone(), "/optimizer_config/type", json!("sgd")), "optimizer_config"),
        ("create_model", without(make, "/session_id"), "session_id"),
        ("optim_step", with(step.clone(), "/model_id", json!("model")), "model_id"),
        ("optim_step", with(step.clone(), "/seq_id", json!(0)), "seq_id"),
        ("optim_step", with(step.clone(), "/seq_id", json!(3_000_000_000u32)), "seq_id"),
        ("optim_step", with(step.clone(), "/adam_params/eps", json!("x")), "adam_params.eps"),
        ("optim_step", with(step.clone(), "/adam_params/lr", json!(1)), "adam_params.lr"),
        ("optim_step", without(step, "/adam_params"), "adam_params"),
        ("save_weights", with(save.clone(), "/path", json!("../../etc")), "path"),
        ("save_weights", with(save.clone(), "/path", json!("")), "path"),
        ("save_weights", with(save.clone(), "/ttl_seconds", json!(5)), "ttl_seconds"),
        ("save_weights_for_sampler", json!({"model_id": model, "seq_id": 1}), "path"),
        ("save_weights_for_sampler", with(save.clone(), "/kind", json!("odd")), "kind"),
        (
            "save_weights_external",
            with(save, "/age_encryption_recipients", json!(["age1"])),
            "age_encryption_recipients",
        ),
        ("load_weights", with(load.clone(), "/path", json!("tinker://x/weights/../../y")), "path"),
        ("load_weights", without(load, "/seq_id"), "seq_id"),
        ("get_info", json!({"model_id": "x:train:-1"}), "model_id"),
        ("asample", with(ask.clone(), "/num_samples", json!(0)), "num_samples"),
        ("asample", with(ask.clone(), "/seq_id", json!(-1)), "seq_id"),
        ("asample", with(ask.clone(), "/sampling_session_id", json!("x")), "sampling_session_id"),
        ("asample", without(ask.clone(), "/sampling_session_id"), "sampling_session_id"),
        ("asample", with(ask.clone(), "/prompt/chunks", json!([])), "prompt.chunks"),
        (
            "asample",
            with(ask.clone(), "/prompt/chunks", json!([{"type": "encoded_text", "tokens": [-1]}])),
            "prompt.chunks[0]",
        ),
        (
            "asample",
            with(ask.clone(), "/prompt/chunks", json!([{"type": "image", "data": "", "format": "png"}])),
            "prompt.chunks[0]",
        ),
        ("asample", with(ask.clone(), "/prompt/chunks", json!([{"type": "odd"}])), "prompt.chunks[0]"),
        ("asample", with(ask.clone(), "/sampling_params/temperature", json!(-1)), "sampling_params.temperature"),
        ("asample", with(ask.clone(), "/sampling_params/top_p", json!(0)), "sampling_params.top_p"),
        ("asample", with(ask.clone(), "/sampling_params/top_k", json!(-7)), "sampling_params.top_k"),
        ("asample", with(ask.clone(), "/sampling_params/max_tokens", json!(0)), "sampling_params.max_tokens"),
        ("asample", with(ask.clone(), "/sampling_params/stop", json!([""])), "sampling_params.stop"),
        ("asample", with(ask.clone(), "/sampling_params/stop", json!([1, "x"])), "sampling_params.stop"),
        ("asample", with(ask.clone(), "/sampling_params/seed", json!(1.5)), "sampling_params.seed"),
        ("asample", with(ask, "/sampling_params/frequency_penalty", json!(1)), "sampling_params.frequency_penalty"),
        ("retrieve_future", json!({"request_id": 5}), "request_id"),
        ("retrieve_futures", json!({"target": {"type": "odd"}}), "target"),
        ("cancel_future", json!({}), "request_id"),
    ];
    for (path, body, field) in cases {
        let (status, answer) = server.post(path, &body).await;
        let detail = text(&answer["detail"]);
        assert_eq!(status, 400, "{path} {body}: {answer}");
        let named = detail.contains(&format!("`{field}")) || detail.contains(field.rsplit('.').next().unwrap());
        assert!(named && detail.len() > 10, "{path} {body}: {detail}");
    }
    let (status, answer) = server
        .post("asample", &with(sample(&sampler, 9, &[10; 4000]), "/sampling_params/max_tokens", json!(200)))
        .await;
    let expected = "Prompt length plus max_tokens exceeds the model's context window: 4000 + 200 > 4096";
    assert_eq!((status, &answer["detail"]), (400, &json!(expected)));
}

#[tokio::test]
async fn bodies_that_are_no_requests_are_refused() {
    let options = ServerOptions { max_body_bytes: 100_000, ..ServerOptions::default() };
    let server = Running::start(options).await;
    for path in ["asample", "optim_step", "forward_backward", "create_session", "retrieve_future", "sessions/x/finish"]
    {
        for body in ["", "{", "[]", "null", "\u{1}\u{2}\u{3}", "{}{}", "\"x\""] {
            let (status, answer) = server.raw(path, body).await;
            assert!((400..500).contains(&status), "{path} {body:?}: {status}");
            assert!(!text(&answer["detail"]).is_empty());
        }
        assert_eq!(server.raw(path, "x".repeat(200_000)).await.0, 413, "{path}");
    }
    assert_eq!(server.post("no_such_path", &json!({})).await.0, 404);
    assert_eq!(server.get("asample").await.0, 405);
    assert_eq!(server.post("retrieve_future", &json!({"request_id": "req-none"})).await.0, 404);
    // Compressed: once good, once a bomb, once neither.
    let zstd = async |bytes: Vec<u8>| {
        let request = server.request("optim_step").header("Content-Encoding", "zstd").body(bytes);
        server.send(request).await.status().as_u16()
    };
    assert_eq!(zstd(zstd::encode_all(&b"{\"model_id\": 1}"[..], 0).unwrap()).await, 400);
    assert_eq!(zstd(zstd::encode_all(&vec![b' '; 50_000_000][..], 0).unwrap()).await, 413);
    assert_eq!(zstd(b"no zstd".to_vec()).await, 400);
    let other = server.request("optim_step").header("Content-Encoding", "br").body("{}");
    assert_eq!(server.send(other).await.status().as_u16(), 415);
}

fn dense(numbers: Vec<u8>, dtype: proto::DType, shape: &[i64]) -> proto::Tensor {
    let data = Some(proto::TensorData::Dense(numbers));
    proto::Tensor { data, dtype: dtype as i32, shape: shape.to_vec() }
}

fn targets(tokens: &[i64]) -> proto::Tensor {
    let bytes = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    dense(bytes, proto::DType::Int64, &[tokens.len() as i64])
}

fn floats(numbers: &[f32]) -> proto::Tensor {
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    dense(bytes, proto::DType::Float32, &[numbers.len() as i64])
}

fn batch(model: &str, seq: i32) -> proto::ForwardBackwardRequest {
    let tokens = [10i32, 11, 12].iter().flat_map(|token| token.to_le_bytes()).collect();
    let chunk = proto::Chunk { kind: Some(proto::ChunkKind::EncodedText(proto::EncodedTextChunk { tokens })) };
    let inputs =
        [("target_tokens".to_owned(), targets(&[11, 12, 13])), ("weights".to_owned(), floats(&[0.0, 1.0, 1.0]))];
    let datum = proto::Datum { model_input: vec![chunk], loss_fn_inputs: inputs.into(), ..proto::Datum::default() };
    proto::ForwardBackwardRequest {
        model_id: model.to_owned(),
        seq_id: seq,
        data: vec![datum],
        loss_fn: "cross_entropy".to_owned(),
        ..proto::ForwardBackwardRequest::default()
    }
}

/// What makes a batch wrong.
type Change = fn(&mut proto::ForwardBackwardRequest);

#[tokio::test]
async fn every_wrong_part_of_a_batch_is_named_and_uses_up_its_place() {
    let server = Running::start(ServerOptions::default()).await;
    let (model, _) = server.model(&server.session().await, 0).await;
    let cases: [(&str, Change); 14] = [
        ("`loss_fn`", |r| r.loss_fn.clear()),
        ("`data`", |r| r.data.clear()),
        ("`data[0].model_input`", |r| r.data[0].model_input.clear()),
        ("`data[0].model_input[0]`", |r| r.data[0].model_input[0].kind = None),
        ("`data[0].model_input[0].encoded_text`", |r| {
            let tokens = vec![1, 2, 3];
            r.data[0].model_input[0].kind = Some(proto::ChunkKind::EncodedText(proto::EncodedTextChunk { tokens }));
        }),
        ("`data[0].loss_fn_inputs.target_tokens`: is missing", |r| {
            drop(r.data[0].loss_fn_inputs.remove("target_tokens"));
        }),
        ("`data[0].loss_fn_inputs.mask`", |r| drop(r.data[0].loss_fn_inputs.insert("mask".to_owned(), floats(&[1.0])))),
        ("expected 3 rows", |r| drop(r.data[0].loss_fn_inputs.insert("weights".to_owned(), floats(&[1.0])))),
        ("finite", |r| drop(r.data[0].loss_fn_inputs.insert("logprobs".to_owned(), floats(&[f32::NAN, 0.0, 0.0])))),
        ("float32", |r| drop(r.data[0].loss_fn_inputs.insert("advantages".to_owned(), targets(&[1, 2, 3])))),
        ("tokens, got -1", |r| drop(r.data[0].loss_fn_inputs.insert("target_tokens".to_owned(), targets(&[1, -1, 3])))),
        ("`shape`", |r| {
            let wrong = dense(vec![0; 12], proto::DType::Float32, &[2, 2]);
            r.data[0].loss_fn_inputs.insert("weights".to_owned(), wrong);
        }),
        ("`dtype`", |r| {
            let wrong = dense(vec![0; 12], proto::DType::Int32, &[3]);
            r.data[0].loss_fn_inputs.insert("weights".to_owned(), wrong);
        }),
        ("`loss_fn_config.beta`", |r| {
            r.loss_fn_config.insert("beta".to_owned(), f64::NAN);
        }),
    ];
    let mut seq = 0;
    for (named, change) in cases {
        seq += 1;
        let mut wrong = batch(&model, seq);
        change(&mut wrong);
        let (status, answer) = server.raw("forward_backward", wrong.encode_to_vec()).await;
        assert_eq!(status, 400, "{named}: {answer}");
        assert!(text(&answer["detail"]).contains(named), "{named}: {answer}");
    }
    // All of those places are used up, so the next one runs.
    let taken = server.raw("forward_backward", batch(&model, seq + 1).encode_to_vec()).await;
    let asked = server.request("retrieve_future").header("Accept", "application/x-protobuf");
    let answer = server.send(asked.body(json!({"request_id": taken.1["request_id"]}).to_string())).await;
    let output = proto::ForwardBackwardOutput::decode(answer.bytes().await.unwrap()).unwrap();
    assert_eq!((output.loss_fn_outputs[0].num_datums, output.metrics.len()), (1, 1));
    // It has no other form.
    assert_eq!(server.result(&text(&taken.1["request_id"])).await.0, 406);
}
