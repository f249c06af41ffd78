//! OpenAI-compatible endpoints, well-behaved and broken, over real sockets.

mod server;

use std::time::Duration;

use espalier_inference::engine::{EngineError, Fidelity, GenerateRequest, Generation, InferenceEngine, Prompt, Usage};
use espalier_inference::openai::{Api, Dialect, EndpointConfig, EndpointError, EndpointLimits, OpenAiEngine};
use espalier_inference::{ChatTemplate, Message, SamplingParams, StopReason, Tokenizer};
use serde_json::{Value, json};
use server::{Answer, Server, chat, raw, serve};
use tokio::time::Instant;

/// Changes one parameter.
type Change = fn(&mut SamplingParams);

/// A variable that every test has; what it holds serves as a key.
const KEY_VARIABLE: &str = "CARGO_MANIFEST_DIR";

fn config(base_url: &str) -> EndpointConfig {
    let limits = EndpointLimits { first_backoff_ms: 1, longest_backoff_ms: 2, retries: 3, ..EndpointLimits::default() };
    EndpointConfig { limits, ..EndpointConfig::new(base_url, "m") }
}

fn tokens_config(base_url: &str, api: Api) -> EndpointConfig {
    EndpointConfig { api, dialect: Dialect::Vllm, ..config(base_url) }
}

fn request(prompt: Prompt) -> GenerateRequest {
    let mut request = GenerateRequest::new(prompt, SamplingParams::default());
    request.deadline = Instant::now() + Duration::from_secs(30);
    request
}

fn hi() -> GenerateRequest {
    request(Prompt::Messages(vec![Message::user("Hi")]))
}

async fn ask(config: EndpointConfig) -> Result<Generation, EngineError> {
    OpenAiEngine::new(config).unwrap().generate(hi()).await.map(|mut all| all.remove(0))
}

async fn ask_tokens(config: EndpointConfig, ids: &[u32]) -> Result<Generation, EngineError> {
    let engine = OpenAiEngine::with_vocabulary(config, Tokenizer::bytes(), ChatTemplate::chatml()).unwrap();
    engine.generate(request(Prompt::Tokens(ids.to_vec()))).await.map(|mut all| all.remove(0))
}

fn reason(error: &EngineError) -> String {
    error.to_string()
}

#[tokio::test]
async fn chat_sends_what_was_asked_and_reads_what_came() {
    let server = serve([Answer::Json(chat("Hello"))]).await;
    let mut config = config(&server.base_url);
    config.api_key_env = Some(KEY_VARIABLE.to_owned());
    config.headers.insert("x-title".to_owned(), "test".to_owned());
    config.extra_body.insert("provider".to_owned(), json!({"order": ["a"]}));
    let engine = OpenAiEngine::new(config).unwrap();
    let mut asked = hi();
    asked.sampling = SamplingParams {
        temperature: 0.7,
        max_tokens: 77,
        stop: vec!["END".to_owned()],
        seed: Some(u64::MAX),
        ..SamplingParams::default()
    };
    let generation = engine.generate(asked).await.unwrap().remove(0);
    let usage = Usage { prompt_tokens: 7, cached_tokens: 4, completion_tokens: 3 };
    let expected = Generation {
        text: "Hello".to_owned(),
        tokens: vec![],
        logprobs: vec![],
        stop: StopReason::EndOfTurn,
        versions: vec![(0, 0)],
        fidelity: Fidelity::Text,
        usage,
    };
    assert_eq!(generation, expected);
    let seen = server.seen().remove(0);
    assert_eq!(seen.path, "/v1/chat/completions");
    assert_eq!(seen.headers["authorization"], format!("Bearer {}", env!("CARGO_MANIFEST_DIR")));
    assert_eq!(seen.headers["x-title"], "test");
    let expected = json!({
        "provider": {"order": ["a"]}, "model": "m", "stream": false,
        "messages": [{"role": "user", "content": "Hi"}],
        "temperature": 0.7, "top_p": 1.0, "max_tokens": 77, "seed": i64::MAX, "stop": ["END"],
    });
    assert_eq!(seen.body, expected);
}

#[tokio::test]
async fn a_sub_call_goes_out_as_one_message() {
    let server = serve([Answer::Json(chat("Hello"))]).await;
    let preset = EndpointConfig::open_router("vendor/model");
    assert_eq!(preset.base_url, "https://openrouter.ai/api/v1");
    assert_eq!(preset.api_key_env.as_deref(), Some("OPENROUTER_API_KEY"));
    let config =
        EndpointConfig { base_url: server.base_url.clone(), api_key_env: Some(KEY_VARIABLE.to_owned()), ..preset };
    let mut asked = request(Prompt::Text("<|im_start|>user\nWhat?".to_owned()));
    asked.sampling = SamplingParams { max_tokens: 9, top_k: 5, min_p: 0.1, ..SamplingParams::default() };
    OpenAiEngine::new(config).unwrap().generate(asked).await.unwrap();
    let body = server.seen().remove(0).body;
    assert_eq!(body["messages"], json!([{"role": "user", "content": "<|im_start|>user\nWhat?"}]));
    assert_eq!((&body["max_tokens"], &body["top_k"], &body["min_p"]), (&json!(9), &json!(5), &json!(0.1)));
}

#[tokio::test]
async fn an_adapter_goes_out_as_the_model() {
    for (api, answer) in [
        (Api::Chat, chat("Hello")),
        (Api::Generate, json!({"choices": [{"token_ids": [72], "finish_reason": "stop"}]})),
    ] {
        let server = serve([Answer::Json(answer)]).await;
        let config = tokens_config(&server.base_url, api);
        let engine = OpenAiEngine::with_vocabulary(config, Tokenizer::bytes(), ChatTemplate::chatml()).unwrap();
        engine.generate(GenerateRequest { adapter: Some("tuned".to_owned()), ..hi() }).await.unwrap();
        assert_eq!(server.seen().remove(0).body["model"], "tuned");
    }
    let server = serve([]).await;
    let dialect = Dialect::OpenRouter;
    let engine = OpenAiEngine::new(EndpointConfig { dialect, ..config(&server.base_url) }).unwrap();
    let refused = engine.generate(GenerateRequest { adapter: Some("tuned".to_owned()), ..hi() }).await.unwrap_err();
    assert!(matches!(&refused, EngineError::Invalid { reason, .. } if reason.contains("`adapter`")), "{refused}");
    assert_eq!(server.seen().len(), 0);
}

#[tokio::test]
async fn what_may_pass_is_tried_again() {
    for passing in [
        Answer::Status(500, "oops"),
        Answer::Status(503, ""),
        Answer::Status(408, ""),
        Answer::Status(429, ""),
        Answer::Status(200, "<html>busy</html>"),
        Answer::Status(200, r#"{"error": {"code": 429, "message": "rate limited"}}"#),
    ] {
        let server = serve([passing.clone(), passing, Answer::Json(chat("Hello"))]).await;
        assert_eq!(ask(config(&server.base_url)).await.unwrap().text, "Hello");
        assert_eq!(server.seen().len(), 3);
    }
}

#[tokio::test]
async fn what_cannot_pass_is_not() {
    for (lasting, word) in [
        (Answer::Status(400, "no such parameter"), "no such parameter"),
        (Answer::Status(404, "no such model"), "no such model"),
        (Answer::Status(302, "elsewhere"), "302"),
        (Answer::Status(200, r#"{"error": {"code": 400, "message": "bad"}}"#), "bad"),
    ] {
        let server = serve([lasting]).await;
        let error = ask(config(&server.base_url)).await.unwrap_err();
        assert!(matches!(&error, EngineError::Invalid { reason, .. } if reason.contains(word)), "{error}");
        assert_eq!(server.seen().len(), 1);
    }
}

#[tokio::test]
async fn the_endpoints_own_wait_is_kept() {
    let server = serve([Answer::RetryAfter(429, "0"), Answer::Json(chat("Hello"))]).await;
    let mut patient = config(&server.base_url);
    // By its own count the client would come back too late.
    patient.limits.first_backoff_ms = 3_600_000;
    patient.limits.longest_backoff_ms = 3_600_000;
    assert_eq!(ask(patient).await.unwrap().text, "Hello");
    let server = serve([Answer::RetryAfter(503, "3600")]).await;
    let error = ask(config(&server.base_url)).await.unwrap_err();
    assert!(matches!(&error, EngineError::Failed { .. }), "{error}");
    assert!(reason(&error).contains("3600.0 s") && reason(&error).contains("deadline"), "{error}");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn when_all_tries_fail_the_last_answer_is_quoted_in_part_and_without_the_key() {
    let long: &'static str =
        Box::leak(format!("{}\n{}", env!("CARGO_MANIFEST_DIR"), "x".repeat(10_000)).into_boxed_str());
    let server = serve([Answer::Status(500, long)]).await;
    let config = EndpointConfig { api_key_env: Some(KEY_VARIABLE.to_owned()), ..config(&server.base_url) };
    let engine = OpenAiEngine::new(config).unwrap();
    let error = engine.generate(hi()).await.unwrap_err();
    let text = reason(&error);
    assert!(text.contains("after 4 tries: 500 Internal Server Error: `*** xxx"), "{text}");
    assert!(text.len() < 600 && !text.contains(env!("CARGO_MANIFEST_DIR")), "{text}");
    assert!(!format!("{engine:?}").contains(env!("CARGO_MANIFEST_DIR")));
}

#[tokio::test]
async fn a_refused_key_is_named_by_its_variable() {
    let server = serve([Answer::Status(401, "who are you")]).await;
    let config = EndpointConfig { api_key_env: Some(KEY_VARIABLE.to_owned()), ..config(&server.base_url) };
    let error = ask(config).await.unwrap_err();
    assert!(reason(&error).contains(KEY_VARIABLE), "{error}");
}

#[tokio::test]
async fn a_prompt_that_is_too_long_is_an_overflow() {
    let words =
        "{\"message\": \"This model's maximum context length is 4096 tokens. However, you requested 5000 tokens\"}";
    let server = serve([Answer::Status(400, words)]).await;
    let error = ask(config(&server.base_url)).await.unwrap_err();
    assert_eq!(error, EngineError::ContextOverflow { model: "m".into(), prompt_tokens: 5000, context_tokens: 4096 });
}

#[tokio::test]
async fn a_stall_ends_by_the_deadline_and_closes_the_connection() {
    let mut server = serve([Answer::Stall]).await;
    let engine = OpenAiEngine::new(config(&server.base_url)).unwrap();
    let mut asked = hi();
    asked.deadline = Instant::now() + Duration::from_millis(1500);
    assert_eq!(engine.generate(asked).await, Err(EngineError::Deadline { model: "m".into() }));
    server.client_gone().await;
}

#[tokio::test]
async fn cancellation_closes_the_connection() {
    let mut server = serve([Answer::Stall]).await;
    let engine = OpenAiEngine::new(config(&server.base_url)).unwrap();
    let asked = hi();
    let cancel = asked.cancel.clone();
    let arrived = async {
        while server.seen().is_empty() {
            tokio::task::yield_now().await;
        }
        cancel.cancel();
    };
    let (answer, ()) = tokio::join!(engine.generate(asked), arrived);
    assert_eq!(answer, Err(EngineError::Cancelled));
    server.client_gone().await;
}

#[tokio::test]
async fn dropping_a_request_closes_the_connection() {
    let mut server = serve([Answer::Stall]).await;
    let engine = OpenAiEngine::new(config(&server.base_url)).unwrap();
    tokio::select! {
        _ = engine.generate(hi()) => panic!("a stall answered"),
        () = async { while server.seen().is_empty() { tokio::task::yield_now().await; } } => {}
    }
    server.client_gone().await;
}

#[tokio::test]
async fn one_try_that_takes_too_long_is_followed_by_another() {
    let server = serve([Answer::Stall, Answer::Json(chat("Hello"))]).await;
    let mut config = config(&server.base_url);
    config.limits.attempt_timeout_ms = 500;
    assert_eq!(ask(config).await.unwrap().text, "Hello");
}

#[tokio::test]
async fn half_answers_and_closed_sockets_are_tried_again() {
    let body = chat("Hello").to_string();
    let whole = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
    let half = whole[..whole.len() - 30].to_owned();
    let base_url = raw(vec![half.clone(), String::new(), "garbage\r\n\r\n".to_owned(), whole]).await;
    assert_eq!(ask(config(&base_url)).await.unwrap().text, "Hello");
    let base_url = raw(vec![half]).await;
    let mut once = config(&base_url);
    once.limits.retries = 0;
    let error = ask(once).await.unwrap_err();
    assert!(reason(&error).contains("after 1 try: the answer broke off"), "{error}");
}

#[tokio::test]
async fn nobody_listening_is_a_failure_that_says_so() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let base_url = format!("http://{}/v1", listener.local_addr().unwrap());
    drop(listener);
    let error = ask(config(&base_url)).await.unwrap_err();
    assert!(matches!(&error, EngineError::Failed { .. }), "{error}");
    assert!(reason(&error).to_lowercase().contains("connection refused"), "{error}");
}

#[tokio::test]
async fn an_answer_beyond_the_bound_is_refused() {
    let server = serve([Answer::Json(chat(&"x".repeat(5000)))]).await;
    let mut config = config(&server.base_url);
    config.limits.response_bytes = 1000;
    let error = ask(config).await.unwrap_err();
    assert!(reason(&error).contains("response_bytes"), "{error}");
}

#[tokio::test]
async fn answers_of_another_shape_say_what_is_missing() {
    for (answer, word) in [
        (json!({}), "choices"),
        (json!({"choices": []}), "0 came"),
        (json!({"choices": [{"finish_reason": "stop"}]}), "message"),
        (json!({"choices": [{"message": {"content": 3}, "finish_reason": "stop"}]}), "content"),
        (json!({"choices": [{"message": {"content": "x"}}]}), "finish_reason"),
        (json!({"choices": [{"message": {"content": "x"}, "finish_reason": "content_filter"}]}), "content_filter"),
    ] {
        let server = serve([Answer::Json(answer)]).await;
        let error = ask(config(&server.base_url)).await.unwrap_err();
        assert!(matches!(&error, EngineError::Failed { reason, .. } if reason.contains(word)), "{error}");
    }
}

#[tokio::test]
async fn finish_reasons_become_stop_reasons() {
    let with = |finish: &str, stop: Value, tokens: u32| {
        json!({"choices": [{"message": {"content": "say"}, "finish_reason": finish, "stop_reason": stop}],
            "usage": {"completion_tokens": tokens}})
    };
    for (answer, expected) in [
        (with("stop", Value::Null, 1), (StopReason::EndOfTurn, "say")),
        (with("stop", json!(7), 1), (StopReason::EndOfTurn, "say")),
        (with("stop", json!(" END"), 1), (StopReason::StopString, "say END")),
        (with("length", Value::Null, 1024), (StopReason::MaxTokens, "say")),
        (with("length", Value::Null, 12), (StopReason::ContextOverflow, "say")),
    ] {
        let server = serve([Answer::Json(answer)]).await;
        let generation = ask(config(&server.base_url)).await.unwrap();
        assert_eq!((generation.stop, generation.text.as_str()), expected);
    }
}

fn completion(text: &str, prompt: Value, ids: Value, logprobs: Value) -> Answer {
    Answer::Json(
        json!({"choices": [{"text": text, "finish_reason": "stop", "token_ids": ids, "prompt_token_ids": prompt,
        "logprobs": {"token_logprobs": logprobs}}]}),
    )
}

#[tokio::test]
async fn completions_are_exact_where_the_endpoint_gives_ids() {
    let answer = completion("Hi", json!([257, 65]), json!([72, 105, 258]), json!([-0.5, -1.25, 1e-7]));
    let server = serve([answer]).await;
    let generation = ask_tokens(tokens_config(&server.base_url, Api::Completions), &[257, 65]).await.unwrap();
    assert_eq!((generation.fidelity, generation.tokens), (Fidelity::Tokens, vec![72, 105, 258]));
    assert_eq!((generation.text.as_str(), generation.logprobs), ("Hi", vec![-0.5, -1.25, 0.0]));
    let seen = server.seen().remove(0);
    assert_eq!(seen.path, "/v1/completions");
    assert_eq!(seen.body["prompt"], json!([257, 65]));
    assert_eq!((&seen.body["return_token_ids"], &seen.body["logprobs"]), (&json!(true), &json!(1)));
}

#[tokio::test]
async fn completions_without_ids_are_text() {
    for answer in [
        completion("Hi", Value::Null, Value::Null, json!([-1.0])),
        completion("Hi", Value::Null, json!([72, 105]), json!([-1.0, -1.0])),
    ] {
        let server = serve([answer]).await;
        let generation = ask_tokens(tokens_config(&server.base_url, Api::Completions), &[65]).await.unwrap();
        assert_eq!((generation.fidelity, generation.tokens.len(), generation.logprobs.len()), (Fidelity::Text, 0, 0));
        assert_eq!(generation.text, "Hi");
    }
}

#[tokio::test]
async fn an_endpoint_that_encodes_the_prompt_again_is_caught() {
    let server = serve([completion("Hi", json!([257, 3]), json!([72]), json!([-1.0]))]).await;
    let config = tokens_config(&server.base_url, Api::Completions);
    let error = ask_tokens(config, &[257, 1, 2]).await.unwrap_err();
    assert!(reason(&error).contains("2 tokens in place of 3, the first difference at 1"), "{error}");
}

fn generated(ids: Value, logprobs: Value) -> Answer {
    Answer::Json(json!({"choices": [{"token_ids": ids, "finish_reason": "stop", "logprobs": logprobs}]}))
}

#[tokio::test]
async fn the_token_level_endpoint_speaks_in_ids() {
    let logprobs = json!({"content": [{"logprob": -0.5}, {"logprob": -0.25}]});
    let server = serve([generated(json!([72, 258]), logprobs)]).await;
    let engine = OpenAiEngine::with_vocabulary(
        tokens_config(&server.base_url, Api::Generate),
        Tokenizer::bytes(),
        ChatTemplate::chatml(),
    )
    .unwrap();
    let mut asked = hi();
    asked.session = Some("s-1".to_owned());
    asked.sampling = SamplingParams { top_k: 3, stop: vec!["x".to_owned()], ..SamplingParams::default() };
    let generation = engine.generate(asked).await.unwrap().remove(0);
    assert_eq!((generation.text.as_str(), generation.tokens), ("H", vec![72, 258]));
    assert_eq!((generation.fidelity, generation.logprobs), (Fidelity::Tokens, vec![-0.5, -0.25]));
    let seen = server.seen().remove(0);
    assert_eq!(
        (seen.path.as_str(), &seen.headers["x-session-id"]),
        ("/inference/v1/generate", &"s-1".parse().unwrap())
    );
    let prompt = Tokenizer::bytes().encode("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n").unwrap();
    assert_eq!(seen.body["token_ids"], json!(prompt));
    let expected = json!({"temperature": 1.0, "top_p": 1.0, "max_tokens": 1024, "stop": ["x"], "top_k": 3,
        "skip_special_tokens": true, "include_stop_str_in_output": true, "logprobs": 1});
    assert_eq!(seen.body["sampling_params"], expected);
}

#[tokio::test]
async fn log_probabilities_that_are_none_are_refused() {
    let content = |first: Value| json!({"content": [{"logprob": first}]});
    for (answer, word) in [
        (generated(json!([72]), content(Value::Null)), "token 0 has no finite"),
        (generated(json!([72]), content(json!(-9999.0))), "-9999"),
        (generated(json!([72]), content(json!(0.5))), "0.5"),
        (generated(json!([72, 73]), content(json!(-0.5))), "2 token ids came with 1"),
        (generated(json!([72]), json!({})), "neither"),
        (generated(json!([72, -1]), Value::Null), "token_ids"),
        (generated(Value::Null, Value::Null), "token_ids"),
        (
            Answer::Status(200, r#"{"choices": [{"token_ids": [72], "logprobs": {"content": [{"logprob": NaN}]}}]}"#),
            "not JSON",
        ),
    ] {
        let server = serve([answer]).await;
        let error = ask_tokens(tokens_config(&server.base_url, Api::Generate), &[65]).await.unwrap_err();
        assert!(matches!(&error, EngineError::Failed { reason, .. } if reason.contains(word)), "{error}");
    }
}

#[tokio::test]
async fn samples_are_requests_with_seeds_of_their_own() {
    let server = serve(["a", "b", "c"].map(|text| Answer::Json(chat(text)))).await;
    let mut config = config(&server.base_url);
    config.limits.concurrency = 1;
    let mut asked = hi();
    asked.n = 3;
    asked.sampling.seed = Some(5);
    let all = OpenAiEngine::new(config).unwrap().generate(asked).await.unwrap();
    let texts: Vec<_> = all.iter().map(|one| one.text.as_str()).collect();
    assert_eq!(texts, ["a", "b", "c"]);
    let seeds: Vec<_> = server.seen().iter().map(|seen| seen.body["seed"].clone()).collect();
    assert_eq!(seeds, [5, 6, 7]);
}

#[tokio::test]
async fn no_more_requests_than_allowed_are_under_way() {
    let server = serve([Answer::Slow(chat("Hello"))]).await;
    let mut config = config(&server.base_url);
    config.limits.concurrency = 2;
    let mut asked = hi();
    asked.n = 12;
    let all = OpenAiEngine::new(config).unwrap().generate(asked).await.unwrap();
    assert_eq!(all.len(), 12);
    assert!(server.most_at_once() <= 2, "{} requests at once", server.most_at_once());
}

#[tokio::test]
async fn parameters_that_the_endpoint_does_not_know_are_refused() {
    let server: Server = serve([Answer::Json(chat("Hello"))]).await;
    let engine = OpenAiEngine::new(config(&server.base_url)).unwrap();
    let changes: [(&str, Change); 4] = [
        ("top_k", |s| s.top_k = 1),
        ("min_p", |s| s.min_p = 0.5),
        ("stop_token_ids", |s| s.stop_token_ids = vec![1]),
        ("ignore_eos", |s| s.ignore_eos = true),
    ];
    for (name, change) in changes {
        let mut asked = hi();
        change(&mut asked.sampling);
        let error = engine.generate(asked).await.unwrap_err();
        assert!(matches!(&error, EngineError::Invalid { reason, .. } if reason.contains(name)), "{error}");
    }
    let error = engine.generate(request(Prompt::Tokens(vec![1]))).await.unwrap_err();
    assert!(matches!(&error, EngineError::Invalid { reason, .. } if reason.contains("token ids")), "{error}");
    let engine = OpenAiEngine::new(tokens_config(&server.base_url, Api::Completions)).unwrap();
    let error = engine.generate(hi()).await.unwrap_err();
    assert!(
        matches!(&error, EngineError::Invalid { reason, .. } if reason.contains("tokenizer and template")),
        "{error}"
    );
    assert!(server.seen().is_empty());
}

#[test]
fn an_endpoint_is_configured_in_toml() {
    let text = "base_url = \"http://localhost:8000/v1\"\nmodel = \"m\"\napi = \"completions\"\ndialect = \"vllm\"\nlogprobs = \"raw\"\n[limits]\nretries = 1\n[headers]\nx-a = \"b\"\n[extra_body.provider]\nsort = \"price\"\n";
    let config: EndpointConfig = toml::from_str(text).unwrap();
    assert_eq!((config.api, config.dialect, config.limits.retries), (Api::Completions, Dialect::Vllm, 1));
    assert_eq!(config.limits.concurrency, EndpointLimits::default().concurrency);
    assert_eq!(config.extra_body["provider"], json!({"sort": "price"}));
    assert_eq!(toml::from_str::<EndpointConfig>(&toml::to_string(&config).unwrap()).unwrap(), config);
    let error = toml::from_str::<EndpointConfig>("base_url = \"x\"\nmodel = \"m\"\nmodle = 1").unwrap_err();
    assert!(error.to_string().contains("modle"), "{error}");
    let error = toml::from_str::<EndpointConfig>("base_url = \"x\"").unwrap_err();
    assert!(error.to_string().contains("model"), "{error}");
}

#[test]
fn configurations_that_cannot_work_are_refused_by_field() {
    let good = EndpointConfig::new("http://localhost/v1", "m");
    let field = |change: fn(&mut EndpointConfig)| {
        let mut config = good.clone();
        change(&mut config);
        match OpenAiEngine::new(config) {
            Err(EndpointError::Field { field, .. }) => field,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(field(|c| c.base_url = "localhost".into()), "base_url");
    assert_eq!(field(|c| c.base_url = "ftp://localhost".into()), "base_url");
    assert_eq!(field(|c| c.base_url = "http://me:secret@localhost".into()), "base_url");
    assert_eq!(field(|c| c.model.clear()), "model");
    assert_eq!(field(|c| c.limits.concurrency = 0), "limits.concurrency");
    assert_eq!(field(|c| c.max_tokens_field = "tokens".into()), "max_tokens_field");
    assert_eq!(field(|c| c.extra_body = Some(("seed".to_owned(), json!(1))).into_iter().collect()), "extra_body");
    assert_eq!(field(|c| c.headers = [("Authorization".to_owned(), "x".to_owned())].into()), "headers.Authorization");
    let generate = EndpointConfig { api: Api::Generate, ..good.clone() };
    assert_eq!(OpenAiEngine::new(generate).unwrap_err(), EndpointError::NeedsTokenizer { model: "m".into() });
    let keyless = EndpointConfig { api_key_env: Some("NO_SUCH_VARIABLE_IS_SET".to_owned()), ..good };
    let error = OpenAiEngine::new(keyless).unwrap_err();
    assert!(error.to_string().contains("NO_SUCH_VARIABLE_IS_SET"), "{error}");
}
