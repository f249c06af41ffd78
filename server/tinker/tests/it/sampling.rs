//! Samples, from the request to the result.

use espalier_tinker::ServerOptions;
use espalier_tinker::proto::SampleResponse;
use prost::Message as _;
use serde_json::json;

use crate::harness::{Running, sample, text};

#[tokio::test]
async fn a_sample_comes_back_as_protobuf_and_as_json() {
    let server = Running::start(ServerOptions::default()).await;
    let sampler = server.sampler(&server.session().await, 0).await;
    let taken = server.ok("asample", &sample(&sampler, 0, &[10, 11])).await;
    assert_eq!(taken["sample_sequence_ids"], json!([format!("{sampler}:0:0"), format!("{sampler}:0:1")]));
    let id = text(&taken["request_id"]);

    let asked = server.request("retrieve_future").header("Accept", "application/x-protobuf");
    let answer = server.send(asked.body(json!({"request_id": id}).to_string())).await;
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["content-type"]),
        (200, &"application/x-protobuf".parse().unwrap())
    );
    let message = SampleResponse::decode(answer.bytes().await.unwrap()).unwrap();
    assert_eq!(message.sequences.len(), 2);
    assert_eq!(message.sequences[1].tokens, [13u32, 14, 15].map(u32::to_le_bytes).concat());
    assert_eq!(message.sequences[0].stop_reason, 1);

    let (status, json) = server.result(&id).await;
    assert_eq!((status, &json["sequences"][0]["tokens"]), (200, &json!([12, 13, 14])));
    assert_eq!(json["sequences"][0]["stop_reason"], "length");
    assert_eq!(json["sequences"][0]["logprobs"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn the_same_request_is_done_once_and_another_in_its_place_is_refused() {
    let server = Running::start(ServerOptions::default()).await;
    let sampler = server.sampler(&server.session().await, 0).await;
    let body = sample(&sampler, 7, &[10]);
    let first = server.ok("asample", &body).await;
    let (_, result) = server.result(&text(&first["request_id"])).await;
    // Again after it was done, and with a field more that says nothing.
    let mut again = body.clone();
    again["unknown_to_us"] = json!(1);
    assert_eq!(server.ok("asample", &again).await, first);
    assert_eq!(server.result(&text(&first["request_id"])).await.1, result);
    assert_eq!(server.backend.log().len(), 1);

    let (status, answer) = server.post("asample", &sample(&sampler, 7, &[11])).await;
    assert_eq!(status, 400);
    assert!(text(&answer["detail"]).starts_with("`seq_id`: 7"), "{answer}");
}

#[tokio::test]
async fn every_form_of_stop_is_read() {
    let server = Running::start(ServerOptions::default()).await;
    let sampler = server.sampler(&server.session().await, 0).await;
    let stops = [json!([12, 13]), json!([]), json!("w9"), json!(["w20", "</s>"]), json!(null)];
    for (seq, stop) in (0..).zip(stops) {
        let mut body = sample(&sampler, seq, &[10, 11]);
        body["sampling_params"]["stop"] = stop.clone();
        let result = server.done("asample", &body).await;
        let expected = if stop == json!([12, 13]) { ("stop", json!([12])) } else { ("length", json!([12, 13, 14])) };
        let sequence = &result["sequences"][0];
        assert_eq!((&sequence["stop_reason"], &sequence["tokens"]), (&json!(expected.0), &expected.1), "{stop}");
    }
}

#[tokio::test]
async fn a_prompt_of_many_chunks_is_one_prompt() {
    let server = Running::start(ServerOptions::default()).await;
    let sampler = server.sampler(&server.session().await, 0).await;
    let mut body = sample(&sampler, 0, &[]);
    let chunk = |tokens: &[u32]| json!({"type": "encoded_text", "tokens": tokens});
    body["prompt"]["chunks"] = json!([chunk(&[10]), chunk(&[]), chunk(&[11, 12]), chunk(&[20])]);
    body["prompt_logprobs"] = json!(true);
    let result = server.done("asample", &body).await;
    assert_eq!(result["sequences"][0]["tokens"], json!([21, 22, 23]));
    // The first token has none, and JSON has no NaN.
    assert_eq!((result["prompt_logprobs"].as_array().unwrap().len(), &result["prompt_logprobs"][0]), (4, &json!(null)));
}

#[tokio::test]
async fn an_engine_that_fails_or_panics_fails_one_request() {
    let server = Running::start(ServerOptions::default()).await;
    let sampler = server.sampler(&server.session().await, 0).await;
    let failed = server.done("asample", &sample(&sampler, 0, &[13])).await;
    assert_eq!((&failed["category"], text(&failed["error"]).contains("`prompt`")), (&json!("user"), true));
    let panicked = server.done("asample", &sample(&sampler, 1, &[14])).await;
    assert_eq!(panicked["category"], "server");
    assert!(server.done("asample", &sample(&sampler, 2, &[15])).await["sequences"].is_array());
}

#[tokio::test]
async fn many_samples_at_once_all_come_back() {
    let server = Running::start(ServerOptions { max_samples: 64, ..ServerOptions::default() }).await;
    let sampler = server.sampler(&server.session().await, 0).await;
    let all = (0..400).map(|seq| {
        let (server, body) = (&server, sample(&sampler, seq, &[20 + seq as u32]));
        async move { (seq, server.done("asample", &body).await) }
    });
    for (seq, result) in futures::future::join_all(all).await {
        assert_eq!(result["sequences"][0]["tokens"][0], json!(21 + seq), "{result}");
    }
    assert_eq!((server.backend.log().len(), server.store.unfinished()), (400, 0));
}

#[tokio::test]
async fn more_than_may_wait_is_asked_to_come_again() {
    let server = Running::start(ServerOptions { max_unfinished: 2, ..ServerOptions::default() }).await;
    let sampler = server.sampler(&server.session().await, 0).await;
    server.backend.hold();
    for seq in 0..2 {
        server.ok("asample", &sample(&sampler, seq, &[10])).await;
    }
    let body = sample(&sampler, 2, &[10]).to_string();
    let refused = server.send(server.request("asample").body(body.clone())).await;
    assert_eq!((refused.status().as_u16(), &refused.headers()["retry-after"]), (429, &"1".parse().unwrap()));
    // What was taken in before is known, full or not.
    server.ok("asample", &sample(&sampler, 1, &[10])).await;
    server.backend.release();
    while server.store.unfinished() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(server.raw("asample", body).await.0, 200);
}

#[tokio::test]
async fn a_cancelled_sample_ends_at_once() {
    let server = Running::start(ServerOptions::default()).await;
    let sampler = server.sampler(&server.session().await, 0).await;
    server.backend.hold();
    let id = text(&server.ok("asample", &sample(&sampler, 0, &[10])).await["request_id"]);
    let waiting = server.result(&id);
    let body = json!({"request_id": id});
    let cancelled = server.ok("cancel_future", &body);
    let ((status, result), _) = futures::future::join(waiting, cancelled).await;
    assert_eq!((status, &result["error"]), (200, &json!("the request was cancelled")));
    assert_eq!(server.post("cancel_future", &json!({"request_id": "req-none"})).await.0, 404);
}
