//! Checkpoints: saved, listed, loaded, sampled from, changed, downloaded, and gone again.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use espalier_tinker::path::TinkerPath;
use espalier_tinker::store::checkpoints::Change;
use espalier_tinker::store::now;
use espalier_tinker::{Keys, ScriptedBackend, ServerOptions, Store};
use serde_json::{Value, json};

use crate::harness::{INLINE, MODEL, Running, create_model, optim, sample, text};

const ANN: &str = "tml-0123456789-ann";
const BEN: &str = "tml-0123456789-ben";
/// The owner where there are no keys.
const EVERYBODY: &str = "everybody";

fn keys() -> Keys {
    Keys::parse(&format!("{}\n{}", Keys::line("ann", ANN), Keys::line("ben", BEN))).unwrap()
}

/// A server that looks every 200 ms for what has to go.
async fn quick() -> Running {
    let keep_results = Duration::from_millis(1600);
    Running::start(ServerOptions { keep_results, ..ServerOptions::default() }).await
}

/// A model that is there.
async fn model(server: &Running) -> String {
    let session = server.session().await;
    let (model, created) = server.model(&session, 0).await;
    assert_eq!(server.result(&created).await.0, 200);
    model
}

fn save(model: &str, seq: i64, name: &str) -> Value {
    json!({"model_id": model, "seq_id": seq, "path": name, "overwrite": false, "type": "save_weights"})
}

fn nameless(model: &str, seq: i64) -> Value {
    json!({"model_id": model, "seq_id": seq, "sampling_session_seq_id": seq, "kind": "snapshot"})
}

fn with(mut body: Value, key: &str, value: Value) -> Value {
    body[key] = value;
    body
}

fn load(model: &str, number: u32, path: &str) -> Value {
    let session = model.split(':').next().unwrap();
    json!({"session_id": session, "model_seq_id": number, "path": path, "optimizer": true, "type": "load_weights"})
}

fn of_path(model: &str, number: u32, path: &str) -> Value {
    let session = model.split(':').next().unwrap();
    json!({"session_id": session, "sampling_session_seq_id": number, "model_path": path})
}

/// The address of a checkpoint.
fn at(path: &str) -> String {
    let rest = path.strip_prefix("tinker://").unwrap();
    let (model, checkpoint) = rest.split_once('/').unwrap();
    format!("training_runs/{model}/checkpoints/{checkpoint}")
}

fn folder(server: &Running, path: &str) -> Option<PathBuf> {
    use espalier_tinker::Backend as _;
    server.backend.checkpoint_folder(&path.parse().unwrap())
}

async fn listed(server: &Running) -> Vec<String> {
    let (status, answer) = server.get("checkpoints?limit=100&offset=0").await;
    assert_eq!(status, 200, "{answer}");
    answer["checkpoints"].as_array().unwrap().iter().map(|one| text(&one["tinker_path"])).collect()
}

/// Waits for something that other tasks do.
async fn eventually(holds: impl AsyncFn() -> bool) {
    for _ in 0..1000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it did not happen within 10 s");
}

#[track_caller]
fn failed(result: &Value, words: &[&str]) {
    assert_eq!(result["category"], "user", "{result}");
    let error = text(&result["error"]);
    assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
}

#[tokio::test]
async fn what_was_saved_is_listed_newest_first() {
    let server = Running::start(ServerOptions::default()).await;
    let model = model(&server).await;
    let before = now();
    let training = with(save(&model, 1, "step-1"), "ttl_seconds", json!(7200));
    let training = with(training, "user_metadata", json!({"a": "b", "n": 1}));
    let training = text(&server.done("save_weights", &training).await["path"]);
    assert_eq!(training, format!("tinker://{model}/weights/step-1"));
    let sampler = text(&server.done("save_weights_for_sampler", &save(&model, 2, "samp")).await["path"]);
    let external = text(&server.done("save_weights_external", &save(&model, 3, "ext")).await["path"]);
    // One that nobody named is nobody's to see.
    assert!(server.done("save_weights_for_sampler", &nameless(&model, 4)).await["path"].is_null());

    let (_, answer) = server.get("checkpoints?limit=100&offset=0").await;
    assert_eq!(answer["cursor"], json!({"offset": 0, "limit": 100, "total_count": 3}));
    assert_eq!(listed(&server).await, [external.clone(), sampler.clone(), training.clone()]);
    let all = answer["checkpoints"].as_array().unwrap().clone();
    let (_, page) = server.get("checkpoints?limit=1&offset=1").await;
    assert_eq!((&page["checkpoints"], &page["cursor"]["total_count"]), (&json!([all[1]]), &json!(3)));
    assert_eq!(server.get(&format!("training_runs/{model}/checkpoints")).await.1["checkpoints"], json!(all));

    let one = &all[2];
    let size: u64 =
        std::fs::metadata(folder(&server, &training).unwrap().join("adapter_config.json")).unwrap().len() + 100_000;
    assert_eq!(
        json!([one["checkpoint_id"], one["checkpoint_type"], one["size_bytes"], one["public"], one["user_metadata"]]),
        json!(["weights/step-1", "training", size, false, {"a": "b", "n": "1"}])
    );
    let moment = |value: &Value| chrono::DateTime::parse_from_rfc3339(&text(value)).unwrap().timestamp_millis();
    assert!((before..=now()).contains(&moment(&one["time"])), "{one}");
    assert_eq!(moment(&one["expires_at"]) - moment(&one["time"]), 7_200_000);
    assert_eq!(json!([all[0]["checkpoint_type"], all[1]["checkpoint_type"]]), json!(["external", "sampler"]));
    assert!(all[1]["expires_at"].is_null() && all[1]["user_metadata"].is_null());

    let (_, run) = server.get(&format!("training_runs/{model}")).await;
    assert_eq!((&run["last_checkpoint"], &run["last_sampler_checkpoint"]), (one, &all[1]));
    assert_eq!(server.get("training_runs").await.1["training_runs"], json!([run]));
    assert_eq!(
        server.ok("weights_info", &json!({"tinker_path": training})).await,
        json!({"base_model": MODEL, "is_lora": true, "lora_rank": 8, "train_attn": true, "train_mlp": true,
               "train_unembed": false})
    );
}

#[tokio::test]
async fn a_name_is_taken_once_unless_it_is_written_over() {
    let server = Running::start(ServerOptions::default()).await;
    let model = model(&server).await;
    let first = with(save(&model, 1, "x"), "user_metadata", json!({"which": "first"}));
    let path = text(&server.done("save_weights", &first).await["path"]);
    assert_eq!(server.call("POST", &format!("{}/publish", at(&path)), &Value::Null).await, (204, Value::Null));
    let begun = server.backend.log().len();
    failed(&server.done("save_weights", &save(&model, 2, "x")).await, &["`path`: expected", "got `x`", "overwrite"]);
    assert_eq!(server.backend.log().len(), begun, "the engine was asked");
    assert_eq!(server.get("checkpoints").await.1["checkpoints"][0]["user_metadata"]["which"], "first");

    let over = with(save(&model, 3, "x"), "overwrite", json!(true));
    assert_eq!(text(&server.done("save_weights", &over).await["path"]), path);
    let (_, answer) = server.get("checkpoints").await;
    let one = &answer["checkpoints"][0];
    assert_eq!(answer["cursor"]["total_count"], 1);
    assert_eq!(json!([one["user_metadata"], one["public"]]), json!([null, false]));

    // The others know no `overwrite`; each kind has names of its own.
    for (seq, kind) in [(4, "save_weights_for_sampler"), (6, "save_weights_external")] {
        assert!(server.done(kind, &save(&model, seq, "x")).await["error"].is_null());
        let again = with(save(&model, seq + 1, "x"), "overwrite", json!(true));
        failed(&server.done(kind, &again).await, &["`path`: expected", "got `x`"]);
    }
    // What fails holds up nothing.
    assert!(server.done("optim_step", &optim(&model, 8)).await["metrics"].is_object());
    assert_eq!(server.post("save_weights_for_sampler", &save(&model, 9, "ephemeral-4")).await.0, 400);
}

#[tokio::test]
async fn a_model_made_of_a_checkpoint_is_what_the_checkpoint_is() {
    let server = Running::start(ServerOptions::default()).await;
    let first = model(&server).await;
    let path = text(&server.done("save_weights", &save(&first, 1, "x")).await["path"]);
    // What it is, is known at once.
    server.backend.hold();
    let id = text(&server.ok("load_weights", &load(&first, 1, &path)).await["request_id"]);
    let second = first.replace(":train:0", ":train:1");
    let info = server.ok("get_info", &json!({"model_id": second})).await;
    assert_eq!((&info["model_data"]["model_name"], &info["lora_rank"]), (&json!(MODEL), &json!(8)));
    server.backend.release();
    assert_eq!(server.result(&id).await.1["model_id"], json!(second));
    let saved = text(&server.done("save_weights", &save(&second, 1, "y")).await["path"]);
    let info = |path: String| {
        let server = &server;
        async move { server.ok("weights_info", &json!({"tinker_path": path})).await }
    };
    assert_eq!(info(saved.clone()).await, info(path.clone()).await);
    // In place, too.
    let place = json!({"model_id": second, "seq_id": 2, "path": saved, "optimizer": false});
    let loaded = server.done("load_weights", &place).await;
    assert_eq!((&loaded["path"], &loaded["model_id"]), (&json!(saved), &json!(second)));
}

#[tokio::test]
async fn only_weights_that_are_there_are_loaded() {
    let server = Running::start(ServerOptions::default()).await;
    let first = model(&server).await;
    let path = text(&server.done("save_weights", &save(&first, 1, "x")).await["path"]);
    let sampler = text(&server.done("save_weights_for_sampler", &save(&first, 2, "x")).await["path"]);
    let none = format!("tinker://{first}/weights/none");
    let begun = server.backend.log().len();
    for (number, path, words) in
        [(1, &none, ["`path`", "no checkpoint"]), (2, &sampler, ["`path`", "`sampler_weights`"])]
    {
        failed(&server.done("load_weights", &load(&first, number, path)).await, &words);
        let made = first.replace(":train:0", &format!(":train:{number}"));
        let (status, answer) = server.post("get_info", &json!({"model_id": made})).await;
        assert_eq!((status, text(&answer["detail"]).contains(words[1])), (400, true), "{answer}");
        let place = json!({"model_id": first, "seq_id": 2 + number, "path": path, "optimizer": false});
        failed(&server.done("load_weights", &place).await, &words);
    }
    let other = with(load(&first, 3, &path), "base_model", json!("another"));
    failed(&server.done("load_weights", &other).await, &["`base_model`", MODEL, "another"]);
    assert_eq!(server.backend.log().len(), begun, "the engine was asked");
    let place = json!({"model_id": first, "seq_id": 5, "path": path, "optimizer": false});
    assert_eq!(server.done("load_weights", &place).await["path"], json!(path));
}

#[tokio::test]
async fn checkpoints_are_sampled_from_while_they_are_there() {
    let server = Running::start(ServerOptions::default()).await;
    let model = model(&server).await;
    let training = text(&server.done("save_weights", &save(&model, 1, "x")).await["path"]);
    let sampling = text(&server.done("save_weights_for_sampler", &save(&model, 2, "x")).await["path"]);
    let external = text(&server.done("save_weights_external", &save(&model, 3, "x")).await["path"]);
    let none = format!("tinker://{model}/weights/none");
    for (number, path, expected) in [(0, &training, 200), (1, &sampling, 200), (2, &external, 400), (3, &none, 404)] {
        let (status, answer) = server.post("create_sampling_session", &of_path(&model, number, path)).await;
        assert_eq!(status, expected, "{path}: {answer}");
        assert!(status == 200 || text(&answer["detail"]).contains("`model_path`"), "{answer}");
    }
    let other = with(of_path(&model, 4, &training), "base_model", json!("another"));
    assert_eq!(server.post("create_sampling_session", &other).await.0, 400);
    let sampler = model.replace(":train:0", ":sample:1");
    assert_eq!(
        server.get(&format!("samplers/{sampler}")).await.1,
        json!({"sampler_id": sampler, "base_model": MODEL, "model_path": sampling})
    );
    assert_eq!(
        server.done("asample", &sample(&sampler, 0, &[10])).await["sequences"][0]["tokens"],
        json!([11, 12, 13])
    );
    assert_eq!(server.call("DELETE", &at(&sampling), &Value::Null).await.0, 204);
    failed(&server.done("asample", &sample(&sampler, 1, &[10])).await, &["no checkpoint", &sampling]);
    assert_eq!(server.post("create_sampling_session", &of_path(&model, 5, &sampling)).await.0, 404);
}

#[tokio::test]
async fn what_is_deleted_is_gone_with_its_files_and_its_name_is_free() {
    let server = Running::start(ServerOptions::default()).await;
    let model = model(&server).await;
    let path = text(&server.done("save_weights", &save(&model, 1, "x")).await["path"]);
    let kept = text(&server.done("save_weights", &save(&model, 2, "y")).await["path"]);
    assert!(folder(&server, &path).is_some());
    assert_eq!(server.call("DELETE", &at(&path), &Value::Null).await, (204, Value::Null));
    assert_eq!((folder(&server, &path), listed(&server).await), (None, vec![kept.clone()]));
    assert!(folder(&server, &kept).is_some());
    for (method, act) in [("DELETE", ""), ("POST", "/publish"), ("DELETE", "/publish"), ("GET", "/archive")] {
        let (status, answer) = server.call(method, &format!("{}{act}", at(&path)), &Value::Null).await;
        assert_eq!((status, text(&answer["detail"]).contains(&path)), (404, true), "{method} {act}: {answer}");
    }
    assert_eq!(server.post("weights_info", &json!({"tinker_path": path})).await.0, 404);
    assert!(server.done("save_weights", &save(&model, 3, "x")).await["error"].is_null());
    assert_eq!(listed(&server).await, [path, kept]);
}

#[tokio::test]
async fn what_is_being_written_is_not_deleted() {
    let server = Running::start(ServerOptions::default()).await;
    let model = model(&server).await;
    let path = text(&server.done("save_weights", &save(&model, 1, "x")).await["path"]);
    let begun = server.backend.log().len();
    server.backend.hold();
    let over = with(save(&model, 2, "x"), "overwrite", json!(true));
    let id = text(&server.ok("save_weights", &over).await["request_id"]);
    eventually(async || server.backend.log().len() > begun).await;
    assert_eq!(server.call("DELETE", &at(&path), &Value::Null).await.0, 409);
    server.backend.release();
    assert!(server.result(&id).await.1["error"].is_null());
    assert_eq!((listed(&server).await, folder(&server, &path).is_some()), (vec![path.clone()], true));
    assert_eq!(server.call("DELETE", &at(&path), &Value::Null).await.0, 204);
}

#[tokio::test]
async fn a_life_is_set_and_taken_away_and_its_end_is_the_end() {
    let server = quick().await;
    let model = model(&server).await;
    let mut paths = Vec::new();
    for (seq, name) in [(1, "over"), (2, "kept"), (3, "again")] {
        paths.push(text(&server.done("save_weights", &save(&model, seq, name)).await["path"]));
    }
    let ttl = format!("{}/ttl", at(&paths[1]));
    let life = async || server.get("checkpoints").await.1["checkpoints"][1]["expires_at"].clone();
    assert_eq!(server.call("PUT", &ttl, &json!({"ttl_seconds": 7200})).await, (204, Value::Null));
    let ends = chrono::DateTime::parse_from_rfc3339(&text(&life().await)).unwrap().timestamp_millis();
    assert!((7_100_000..=7_200_000).contains(&(ends - now())), "{ends}");
    for wrong in [json!({"ttl_seconds": 60}), json!({"ttl_seconds": "x"}), json!({})] {
        let (status, answer) = server.call("PUT", &ttl, &wrong).await;
        assert_eq!((status, text(&answer["detail"]).contains("ttl_seconds")), (400, true), "{wrong}: {answer}");
    }
    assert_eq!(server.call("PUT", &ttl, &json!({"ttl_seconds": null})).await.0, 204);
    assert!(life().await.is_null());

    for path in [&paths[0], &paths[2]] {
        let path: TinkerPath = path.parse().unwrap();
        assert!(server.store.change_checkpoint(EVERYBODY, &path, Change::Expire(Some(now() - 1))).await.unwrap());
    }
    // It is over at once, whoever comes first; the files follow.
    assert_eq!(listed(&server).await, [paths[1].clone()]);
    failed(&server.done("load_weights", &load(&model, 1, &paths[0])).await, &["no checkpoint"]);
    assert!(server.done("save_weights", &save(&model, 4, "again")).await["error"].is_null());
    eventually(async || folder(&server, &paths[0]).is_none()).await;
    eventually(async || server.store.checkpoint(&paths[0].parse().unwrap()).await.unwrap().is_none()).await;
    assert_eq!(listed(&server).await, [paths[2].clone(), paths[1].clone()]);
    assert!(paths[1..].iter().all(|path| folder(&server, path).is_some()));
}

#[tokio::test]
async fn what_nobody_named_goes_with_its_session() {
    let server = quick().await;
    let (one, other) = (model(&server).await, model(&server).await);
    let named = text(&server.done("save_weights_for_sampler", &save(&one, 1, "x")).await["path"]);
    let mut samplers = Vec::new();
    for (model, seq) in [(&one, 2), (&other, 1)] {
        let saved = server.done("save_weights_for_sampler", &nameless(model, seq)).await;
        samplers.push(text(&saved["sampling_session_id"]));
    }
    let mut paths = Vec::new();
    for sampler in &samplers {
        paths.push(text(&server.get(&format!("samplers/{sampler}")).await.1["model_path"]));
        assert!(server.done("asample", &sample(sampler, 0, &[10])).await["sequences"].is_array());
    }
    // Its owner does nothing to it by hand.
    assert_eq!(server.call("DELETE", &at(&paths[0]), &Value::Null).await.0, 404);
    let session = one.split(':').next().unwrap();
    let reason = json!({"reason": {"type": "success"}, "detail": null});
    assert_eq!(server.post(&format!("sessions/{session}/finish"), &reason).await.0, 200);
    eventually(async || folder(&server, &paths[0]).is_none()).await;
    assert!(folder(&server, &paths[1]).is_some() && folder(&server, &named).is_some());
    assert_eq!(listed(&server).await, [named]);
}

#[tokio::test]
async fn what_was_saved_after_its_session_ended_leaves_no_files() {
    let state = tempfile::tempdir().unwrap();
    let backend = ScriptedBackend::new(MODEL).checkpoints_in(state.path().join("checkpoints")).deaf();
    let server = Running::over(state.path(), backend, ServerOptions::default()).await;
    let model = model(&server).await;
    server.backend.hold();
    let begun = server.backend.log().len();
    server.ok("save_weights", &save(&model, 1, "x")).await;
    eventually(async || server.backend.log().len() > begun).await;
    let session = model.split(':').next().unwrap();
    let reason = json!({"reason": {"type": "success"}, "detail": null});
    assert_eq!(server.post(&format!("sessions/{session}/finish"), &reason).await.0, 200);
    server.backend.release();
    // What runs is finished before the server ends. The folder of its kind shows that it was written.
    assert_eq!(server.stop().await, 0);
    let place = state.path().join("checkpoints").join(&model).join("weights");
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
}

#[tokio::test]
async fn a_checkpoint_is_its_owners_and_when_it_is_public_everybody_reads_it() {
    let mut server = Running::start(ServerOptions { keys: keys(), ..ServerOptions::default() }).await;
    server.key = Some(ANN.to_owned());
    let anns = model(&server).await;
    let path = text(&server.done("save_weights", &save(&anns, 1, "x")).await["path"]);
    server.key = Some(BEN.to_owned());
    let bens = model(&server).await;
    let publish = format!("{}/publish", at(&path));
    let changes = [
        ("DELETE", at(&path), Value::Null),
        ("POST", publish.clone(), Value::Null),
        ("DELETE", publish.clone(), Value::Null),
        ("PUT", format!("{}/ttl", at(&path)), json!({"ttl_seconds": null})),
    ];
    for (method, place, body) in &changes {
        assert_eq!(server.call(method, place, body).await.0, 404, "{method} {place}");
    }
    assert_eq!(server.get(&format!("training_runs/{anns}/checkpoints")).await.0, 404);
    assert_eq!(server.get(&format!("{}/archive", at(&path))).await.0, 404);
    assert_eq!(server.post("weights_info", &json!({"tinker_path": path})).await.0, 404);
    assert_eq!(server.post("create_sampling_session", &of_path(&bens, 0, &path)).await.0, 404);
    failed(&server.done("load_weights", &load(&bens, 1, &path)).await, &["no checkpoint"]);

    server.key = Some(ANN.to_owned());
    assert_eq!(server.call("POST", &publish, &Value::Null).await.0, 204);
    assert_eq!(server.get("checkpoints").await.1["checkpoints"][0]["public"], true);
    server.key = Some(BEN.to_owned());
    assert_eq!(server.ok("weights_info", &json!({"tinker_path": path})).await["lora_rank"], 8);
    assert_eq!(server.post("create_sampling_session", &of_path(&bens, 0, &path)).await.0, 200);
    assert!(server.done("load_weights", &load(&bens, 2, &path)).await["error"].is_null());
    let sampler = bens.replace(":train:0", ":sample:0");
    assert!(server.done("asample", &sample(&sampler, 0, &[10])).await["sequences"].is_array());
    // To read it is not to own it.
    assert!(listed(&server).await.is_empty());
    for (method, place, body) in &changes {
        assert_eq!(server.call(method, place, body).await.0, 403, "{method} {place}");
    }

    server.key = Some(ANN.to_owned());
    assert_eq!(server.call("DELETE", &publish, &Value::Null).await.0, 204);
    server.key = Some(BEN.to_owned());
    assert_eq!(server.post("weights_info", &json!({"tinker_path": path})).await.0, 404);
    failed(&server.done("asample", &sample(&sampler, 1, &[10])).await, &["no checkpoint"]);
}

#[tokio::test]
async fn external_weights_are_downloaded_through_links_that_need_no_key() {
    let mut server = Running::start(ServerOptions { keys: keys(), ..ServerOptions::default() }).await;
    server.key = Some(ANN.to_owned());
    let model = model(&server).await;
    let path = text(&server.done("save_weights_external", &save(&model, 1, "x")).await["path"]);
    let training = text(&server.done("save_weights", &save(&model, 2, "x")).await["path"]);
    let place = folder(&server, &path).unwrap();
    std::fs::write(place.join("a b%2F?é.txt"), "odd").unwrap();
    // What leads out of the folder is not one of its files.
    #[cfg(unix)]
    std::os::unix::fs::symlink("/etc/passwd", place.join("leads-out")).unwrap();
    let asked = format!("{}/external_weights_urls", at(&path));
    let (status, answer) = server.get(&asked).await;
    assert_eq!(status, 200, "{answer}");
    let ends = chrono::DateTime::parse_from_rfc3339(&text(&answer["expires"])).unwrap().timestamp_millis();
    assert!((3_500_000..=3_600_000).contains(&(ends - now())), "{answer}");
    let urls: BTreeMap<String, String> = serde_json::from_value(answer["urls"].clone()).unwrap();
    let names: Vec<&str> = urls.keys().map(String::as_str).collect();
    assert_eq!(names, ["a b%2F?é.txt", "adapter_config.json", "weights/adapter_model.safetensors"]);
    for (name, url) in &urls {
        let response = server.client.get(url).send().await.unwrap();
        assert_eq!((response.status().as_u16(), response.content_length().is_some()), (200, true), "{url}");
        let length = response.headers()["content-length"].to_str().unwrap().parse::<usize>().unwrap();
        let bytes = response.bytes().await.unwrap();
        assert_eq!((bytes.len(), bytes.to_vec()), (length, std::fs::read(place.join(name)).unwrap()), "{name}");
    }

    // A link is to one file, until one moment, of one server.
    let link = &urls["adapter_config.json"];
    let parts: Vec<&str> = link.split('/').collect();
    let (times, signature) = (parts[6], parts[7]);
    let (ends, saved) = times.split_once('-').unwrap();
    let mut forged = vec![
        link.replace("adapter_config.json", "weights/adapter_model.safetensors"),
        link.replace("adapter_config.json", "..%2f..%2f..%2f..%2ftinker.db"),
        link.replace("adapter_config.json", "leads-out"),
        link.replace(ends, &(ends.parse::<i64>().unwrap() + 1).to_string()),
        link.replace(saved, &(saved.parse::<i64>().unwrap() + 1).to_string()),
        link.replace(times, "x"),
        link.replace("external_weights", "weights"),
        link.replace(signature, &"0".repeat(64)),
        link.replace(signature, "x"),
        link.replace("/files/", "/archives/").replace("/adapter_config.json", ""),
    ];
    forged.extend(["tinker.db", "../x"].map(|name| link.replace("adapter_config.json", name)));
    for url in forged {
        let status = server.client.get(&url).send().await.unwrap().status().as_u16();
        assert!([403, 404].contains(&status), "{status}: {url}");
    }
    assert_eq!(server.get(&format!("{}/external_weights_urls", at(&training))).await.0, 400);
    server.key = Some(BEN.to_owned());
    assert_eq!(server.get(&asked).await.0, 404);
    server.key = None;
    assert_eq!(server.get(&asked).await.0, 401);
    // What is gone is gone for those who have a link, too.
    server.key = Some(ANN.to_owned());
    assert_eq!(server.call("DELETE", &at(&path), &Value::Null).await.0, 204);
    assert_eq!(server.client.get(link).send().await.unwrap().status().as_u16(), 404);
}

#[tokio::test]
async fn a_link_ends() {
    let link_life = Duration::from_secs(3);
    let server = Running::start(ServerOptions { link_life, ..ServerOptions::default() }).await;
    let model = model(&server).await;
    let path = text(&server.done("save_weights_external", &save(&model, 1, "x")).await["path"]);
    let (_, answer) = server.get(&format!("{}/external_weights_urls", at(&path))).await;
    let link = text(&answer["urls"]["adapter_config.json"]);
    let status = async || server.client.get(&link).send().await.unwrap().status().as_u16();
    assert_eq!(status().await, 200);
    eventually(async || status().await == 403).await;
    let ends = chrono::DateTime::parse_from_rfc3339(&text(&answer["expires"])).unwrap().timestamp_millis();
    assert!(ends <= now(), "it ended early");
}

#[tokio::test]
async fn a_link_leads_to_what_was_saved_when_it_was_made_and_to_nothing_later() {
    let server = Running::start(ServerOptions::default()).await;
    let model = model(&server).await;
    let path = text(&server.done("save_weights", &save(&model, 1, "x")).await["path"]);
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let asked = client.get(server.url(&format!("{}/archive", at(&path)))).send().await.unwrap();
    let link = asked.headers()["location"].to_str().unwrap().to_owned();
    let status = async || client.get(&link).send().await.unwrap().status().as_u16();
    assert_eq!(status().await, 200);
    server.done("save_weights", &with(save(&model, 2, "x"), "overwrite", json!(true))).await;
    assert_eq!(status().await, 404);
}

#[tokio::test]
async fn a_samplers_number_belongs_to_one_save() {
    let server = Running::start(ServerOptions::default()).await;
    let session = server.session().await;
    let (first, made) = server.model(&session, 0).await;
    let (second, also) = server.model(&session, 1).await;
    for made in [made, also] {
        assert_eq!(server.result(&made).await.0, 200);
    }
    let sampler = text(&server.done("save_weights_for_sampler", &nameless(&first, 1)).await["sampling_session_id"]);
    failed(
        &server.done("save_weights_for_sampler", &nameless(&second, 1)).await,
        &["`sampling_session_seq_id`", "1 of"],
    );
    // Nor to a sampler of the base.
    let base = json!({"session_id": session, "sampling_session_seq_id": 2, "base_model": MODEL});
    server.ok("create_sampling_session", &base).await;
    failed(
        &server.done("save_weights_for_sampler", &nameless(&second, 2)).await,
        &["`sampling_session_seq_id`", "2 of"],
    );
    // The first is what it was.
    let (_, found) = server.get(&format!("samplers/{sampler}")).await;
    assert!(text(&found["model_path"]).contains(&first), "{found}");
}

#[tokio::test]
async fn an_archive_holds_every_file() {
    let server = Running::start(ServerOptions::default()).await;
    let model = model(&server).await;
    let path = text(&server.done("save_weights", &save(&model, 1, "x")).await["path"]);
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let asked = client.get(server.url(&format!("{}/archive", at(&path)))).send().await.unwrap();
    assert_eq!(asked.status().as_u16(), 302);
    let link = asked.headers()["location"].to_str().unwrap();
    let response = client.get(link).send().await.unwrap();
    assert_eq!(response.status().as_u16(), 200);
    let bytes = response.bytes().await.unwrap();
    let mut archive = tar::Archive::new(&bytes[..]);
    let mut found = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        found.insert(entry.path().unwrap().to_string_lossy().into_owned(), bytes);
    }
    let place = folder(&server, &path).unwrap();
    let names = ["adapter_config.json", "weights/adapter_model.safetensors"];
    let expected = names.map(|name| (name.to_owned(), std::fs::read(place.join(name)).unwrap()));
    assert!(found == BTreeMap::from(expected), "{:?}", found.keys());
}

/// A server over a folder that outlives it.
async fn over(state: &Path) -> Running {
    let backend = ScriptedBackend::new(MODEL).checkpoints_in(state.join("checkpoints"));
    Running::over(state, backend, ServerOptions::default()).await
}

#[tokio::test]
async fn checkpoints_and_links_outlive_the_process() {
    let state = tempfile::tempdir().unwrap();
    let server = over(state.path()).await;
    let first = model(&server).await;
    let path = text(&server.done("save_weights", &save(&first, 1, "x")).await["path"]);
    let external = text(&server.done("save_weights_external", &save(&first, 2, "x")).await["path"]);
    let (_, urls) = server.get(&format!("{}/external_weights_urls", at(&external))).await;
    let link = text(&urls["urls"]["adapter_config.json"]);
    let address = server.address.to_string();
    server.stop().await;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let key = std::fs::metadata(state.path().join("links.key")).unwrap();
        assert_eq!((key.permissions().mode() & 0o777, key.len()), (0o600, 32));
    }
    eventually(async || Store::open(state.path(), INLINE).await.is_ok()).await;
    let server = over(state.path()).await;
    assert_eq!(listed(&server).await, [external, path.clone()]);
    let link = link.replace(&address, &server.address.to_string());
    assert_eq!(server.client.get(link).send().await.unwrap().status().as_u16(), 200);
    assert!(server.done("save_weights", &save(&first, 3, "y")).await["error"].is_null());
    let made = server.done("load_weights", &load(&first, 1, &path)).await;
    assert_eq!(made["model_id"], json!(first.replace(":train:0", ":train:1")));
}

#[tokio::test]
async fn a_model_is_not_brought_back_with_other_weights_than_it_had() {
    let state = tempfile::tempdir().unwrap();
    let server = over(state.path()).await;
    let first = model(&server).await;
    let mut made = Vec::new();
    for (number, name) in [(1, "over"), (2, "deleted"), (3, "kept")] {
        let path = text(&server.done("save_weights", &save(&first, i64::from(number), name)).await["path"]);
        assert!(server.done("load_weights", &load(&first, number, &path)).await["error"].is_null());
        made.push((first.replace(":train:0", &format!(":train:{number}")), path));
    }
    // Later than the load, also where a clock counts milliseconds.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let over_it = with(save(&first, 4, "over"), "overwrite", json!(true));
    assert!(server.done("save_weights", &over_it).await["error"].is_null());
    assert_eq!(server.call("DELETE", &at(&made[1].1), &Value::Null).await.0, 204);
    server.stop().await;

    eventually(async || Store::open(state.path(), INLINE).await.is_ok()).await;
    let server = over(state.path()).await;
    for ((model, path), why) in made.iter().zip(["was written over since", "is not there any more"]) {
        let result = server.done("optim_step", &optim(model, 1)).await;
        assert_eq!(result["category"], "server", "{result}");
        let error = text(&result["error"]);
        assert!([path.as_str(), why].iter().all(|words| error.contains(words)), "{error}");
    }
    assert!(server.done("optim_step", &optim(&made[2].0, 1)).await["metrics"].is_object());
}

#[tokio::test]
async fn a_database_from_before_there_were_checkpoints_is_brought_up() {
    use sqlx::Connection as _;
    let state = tempfile::tempdir().unwrap();
    let server = over(state.path()).await;
    let (session, first) = {
        let session = server.session().await;
        let answer = server.ok("create_model", &create_model(&session, 0)).await;
        (session, text(&answer["model_id"]))
    };
    server.stop().await;
    // What the first version of the schema was.
    let file = format!("sqlite://{}", state.path().join("tinker.db").display());
    let mut connection = sqlx::SqliteConnection::connect(&file).await.unwrap();
    let older = "DROP TABLE checkpoints; ALTER TABLE models DROP COLUMN train_attn; ALTER TABLE models DROP COLUMN train_mlp; \
                 ALTER TABLE models DROP COLUMN train_unembed; DELETE FROM schema_version WHERE version = 2;";
    sqlx::raw_sql(older).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();

    let server = over(state.path()).await;
    assert_eq!(server.get(&format!("training_runs/{first}")).await.1["lora_rank"], 8);
    assert!(listed(&server).await.is_empty());
    let (second, _) = server.model(&session, 1).await;
    let path = text(&server.done("save_weights", &save(&second, 1, "x")).await["path"]);
    assert_eq!(listed(&server).await, [path]);
}

#[tokio::test]
async fn what_is_no_checkpoint_is_not_served() {
    let server = Running::start(ServerOptions::default()).await;
    let model = model(&server).await;
    let path = text(&server.done("save_weights", &save(&model, 1, "x")).await["path"]);
    for (method, tail, expected) in [
        ("DELETE", "weights/none", 404),
        ("DELETE", "weights", 404),
        ("DELETE", "else/x", 404),
        ("DELETE", "weights/.x", 404),
        ("DELETE", "weights/x/publish/more", 404),
        ("DELETE", "weights/x/other", 404),
        ("GET", "weights/x", 405),
        ("POST", "weights/x/ttl", 405),
        ("GET", "weights/x/publish", 405),
        // Also with its slash escaped it is the same one.
        ("POST", "weights%2Fx/publish", 204),
    ] {
        let (status, _) = server.call(method, &format!("training_runs/{model}/checkpoints/{tail}"), &Value::Null).await;
        assert_eq!(status, expected, "{method} {tail}");
    }
    assert_eq!(server.call("DELETE", "training_runs/x/checkpoints/weights/x", &Value::Null).await.0, 404);
    assert_eq!(server.post("weights_info", &json!({"tinker_path": "tinker://x"})).await.0, 400);
    assert_eq!(listed(&server).await, [path]);
}
