//! What the official SDK sent to another server, and what it was content with.
//!
//! `tests/transcripts.jsonl` holds exchanges between `tinker` 0.38.0 and a stand-in whose numbers mean nothing; formats are
//! what is taken from it.

use std::collections::HashMap;
use std::time::Duration;

use espalier_tinker::operation::{ForwardBackward, Kind, Operation};
use espalier_tinker::proto::{ForwardBackwardOutput, ForwardBackwardRequest, SampleResponse};
use espalier_tinker::{ServerOptions, tensor, wire};
use prost::Message as _;
use serde_json::{Value, json};

use crate::harness::{Running, optim};

fn transcripts() -> Vec<Value> {
    let file = include_str!("../transcripts.jsonl");
    file.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn unhex(text: &Value) -> Vec<u8> {
    let text = text.as_str().unwrap();
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
}

/// The body of a `forward_backward`, decompressed.
fn batch(exchange: &Value) -> Vec<u8> {
    let bytes = unhex(&exchange["request_hex"]);
    if exchange["encoding"] == "zstd" { zstd::decode_all(bytes.as_slice()).unwrap() } else { bytes }
}

fn path(exchange: &Value) -> String {
    exchange["path"].as_str().unwrap().trim_start_matches("/api/v1/").to_owned()
}

#[test]
fn every_batch_is_read_as_the_sdk_wrote_it() {
    let mut read = 0;
    for exchange in transcripts().iter().filter(|exchange| !exchange["request_hex"].is_null()) {
        let bytes = batch(exchange);
        let message = ForwardBackwardRequest::decode(bytes.as_slice()).unwrap();
        let said = &exchange["request"];
        assert_eq!(
            (json!(message.model_id), json!(message.seq_id)),
            (said["model_id"].clone(), said["seq_id"].clone())
        );
        assert_eq!(message.encoded_len(), bytes.len(), "every field is known");
        let request = ForwardBackward::read(&bytes).unwrap();
        assert_eq!(
            (json!(request.loss_fn), request.forward_only),
            (said["loss_fn"].clone(), said["forward_only"] == true)
        );
        assert_eq!(request.data.len(), said["data"].as_array().unwrap().len());
        for (datum, said) in request.data.iter().zip(said["data"].as_array().unwrap()) {
            for (name, said) in said["loss_fn_inputs"].as_object().unwrap() {
                let tensor = &datum.loss_inputs[name];
                assert_eq!(json!(tensor.shape), said["shape"], "{name}");
                if !said["dense_decoded"].is_null() {
                    let numbers = match &tensor.numbers {
                        tensor::Numbers::F32(numbers) => json!(numbers),
                        tensor::Numbers::I64(numbers) => json!(numbers),
                    };
                    assert_eq!(numbers, said["dense_decoded"], "{name}");
                }
            }
        }
        read += 1;
    }
    assert!(read > 10);
}

#[test]
fn every_protobuf_result_is_known_whole() {
    let mut known = 0;
    for exchange in transcripts().iter().filter(|exchange| !exchange["response_hex"].is_null()) {
        let bytes = unhex(&exchange["response_hex"]);
        let body = &exchange["response"];
        if body["sequences"].is_array() {
            let message = SampleResponse::decode(bytes.as_slice()).unwrap();
            assert_eq!(message.sequences.len(), body["sequences"].as_array().unwrap().len());
            assert_eq!(message.encoded_len(), bytes.len());
        } else {
            let message = ForwardBackwardOutput::decode(bytes.as_slice()).unwrap();
            // The last digit is lost on the way through JSON.
            for (name, number) in &message.metrics {
                assert!((number - body["metrics"][name].as_f64().unwrap()).abs() < 1e-9, "{name}");
            }
            assert_eq!(message.metrics.len(), body["metrics"].as_object().unwrap().len());
            assert_eq!(message.encoded_len(), bytes.len());
        }
        known += 1;
    }
    assert!(known > 10);
}

#[test]
fn every_json_request_is_read() {
    use wire::{sampling, session};
    fn reads<T: wire::Checked>(body: &[u8]) -> Result<(), String> {
        wire::read::<T>(body).map(|_| ()).map_err(|error| error.detail)
    }
    let operation = |kind: Kind, body: &[u8]| Operation::read(kind, body).map(|_| ()).map_err(|error| error.detail);
    let mut read = 0;
    for exchange in
        transcripts().iter().filter(|exchange| exchange["method"] == "POST" && exchange["request_hex"].is_null())
    {
        let body = exchange["request"].to_string();
        let body = body.as_bytes();
        let outcome = match path(exchange).as_str() {
            "create_session" => reads::<session::CreateSession>(body),
            "session_heartbeat" => reads::<session::Heartbeat>(body),
            "create_sampling_session" => reads::<session::CreateSamplingSession>(body),
            "get_info" => reads::<session::GetInfo>(body),
            "retrieve_future" => reads::<session::RetrieveFuture>(body),
            "retrieve_futures" => reads::<session::RetrieveFutures>(body),
            "cancel_future" => reads::<session::CancelFuture>(body),
            "asample" => reads::<sampling::Sample>(body),
            path if path.ends_with("/finish") => reads::<session::Finish>(body),
            path => match Kind::of(path) {
                Some(kind) => operation(kind, body),
                None => continue,
            },
        };
        assert_eq!(outcome, Ok(()), "{exchange}");
        read += 1;
    }
    assert!(read > 60, "{read}");
}

/// What the SDK takes out of an answer, by path.
fn needed(path: &str, request: &Value) -> &'static [&'static str] {
    match path {
        "create_session" => &["session_id"],
        "create_model"
        | "forward_backward"
        | "optim_step"
        | "save_weights"
        | "save_weights_for_sampler"
        | "save_weights_external"
        | "load_weights" => &["request_id"],
        "asample" => &["request_id", "sample_sequence_ids"],
        "create_sampling_session" => &["sampling_session_id"],
        "get_info" => &["model_id", "model_data"],
        "telemetry" => &["status"],
        "retrieve_futures" => &["completions", "cursor"],
        "get_server_capabilities" => &["supported_models"],
        _ if path.starts_with("samplers/") => &["sampler_id", "base_model"],
        _ if path.starts_with("sessions/") && request.is_null() => &["training_run_ids", "sampler_ids"],
        _ if path.starts_with("sessions?") => &["sessions"],
        "weights_info" => &["base_model", "is_lora", "lora_rank", "train_attn", "train_mlp", "train_unembed"],
        _ if path.ends_with("external_weights_urls") => &["urls", "expires"],
        _ if path.starts_with("checkpoints") => &["checkpoints", "cursor"],
        _ if path.ends_with("/checkpoints") => &["checkpoints"],
        _ if path.starts_with("training_runs?") => &["training_runs", "cursor"],
        _ => &[],
    }
}

/// Plays a client's requests in their order, with the names that this server gives, and looks at every answer.
async fn replay(scenario: &str, served: impl Fn(&Value) -> bool) -> usize {
    let server = Running::start(ServerOptions { poll: Duration::from_millis(500), ..ServerOptions::default() }).await;
    let mut names: HashMap<String, String> = HashMap::new();
    let mut next: HashMap<String, i64> = HashMap::new();
    let (mut played, mut later) = (0, Vec::new());
    let exchanges = transcripts();
    for exchange in exchanges.iter().filter(|exchange| exchange["scenario"] == scenario && served(exchange)) {
        let renamed =
            |text: &str| names.iter().fold(text.to_owned(), |text, (theirs, ours)| text.replace(theirs, ours));
        let path = renamed(&path(exchange));
        let request: Value = serde_json::from_str(&renamed(&exchange["request"].to_string())).unwrap();
        if path == "retrieve_future" && !names.contains_key(exchange["request"]["request_id"].as_str().unwrap()) {
            continue;
        }
        // One batch of the transcripts is not whole: its place is filled.
        if let (Some(model), Some(seq), true) =
            (request["model_id"].as_str(), request["seq_id"].as_i64(), scenario == "A")
        {
            let next = next.entry(model.to_owned()).or_insert(1);
            while *next < seq {
                server.ok("optim_step", &optim(model, *next)).await;
                *next += 1;
            }
            *next = seq + 1;
        }
        let (status, answer) = if exchange["request_hex"].is_null() {
            server.call(exchange["method"].as_str().unwrap(), &path, &request).await
        } else {
            let mut message = ForwardBackwardRequest::decode(batch(exchange).as_slice()).unwrap();
            message.model_id = renamed(&message.model_id);
            server.raw(&path, message.encode_to_vec()).await
        };
        if path == "retrieve_future" && status == 408 {
            // Others of its model have to come first; it is asked for again at the end.
            later.push(request);
            continue;
        }
        // A result that is protobuf only.
        let result = path == "retrieve_future" && exchange["response"]["loss_fn_outputs"].is_array();
        let expected = if result { 406 } else { exchange["status"].as_u64().unwrap() };
        assert_eq!(u64::from(status), expected, "{path} {request}: {answer}");
        for key in needed(&path, &request) {
            assert!(!answer[key].is_null(), "{path}: `{key}` of {answer}");
        }
        for key in ["session_id", "request_id"] {
            if let (Some(theirs), Some(ours)) = (exchange["response"][key].as_str(), answer[key].as_str()) {
                names.insert(theirs.to_owned(), ours.to_owned());
            }
        }
        if path == "asample" {
            assert_eq!(
                answer["sample_sequence_ids"].as_array().unwrap().len() as u64,
                request["num_samples"].as_u64().unwrap()
            );
        }
        if path == "retrieve_future" && !result {
            assert!(answer["error"].is_null(), "{path} {request}: {answer}");
            for key in ["model_id", "path", "sampling_session_id", "metrics"] {
                let (theirs, ours) = (&exchange["response"][key], &answer[key]);
                assert!(theirs.is_null() || !ours.is_null(), "`{key}` of {answer}");
            }
        }
        played += 1;
    }
    for request in later {
        let (status, answer) = server.post("retrieve_future", &request).await;
        assert!([200, 406].contains(&status) && answer["error"].is_null(), "{request}: {status} {answer}");
    }
    played
}

/// Whether an exchange is one that this server plays.
fn is_served(exchange: &Value) -> bool {
    let path = path(exchange);
    let others = ["copy_weights", "trace_export", "auth/", "join_sampling", "search", "/project"];
    !others.iter().any(|part| path.contains(part)) && exchange["method"] != "HEAD"
}

#[tokio::test]
async fn the_whole_session_of_the_sdk_plays_here() {
    let played = replay("A", is_served).await;
    assert!(played > 65, "{played}");
}

#[tokio::test]
async fn the_session_with_all_flags_plays_here() {
    let played = replay("B", is_served).await;
    assert!(played > 25, "{played}");
}
