//! Evaluations by source, what is kept of them, and callbacks.

mod common;

use std::path::Path;
use std::sync::{Arc, Mutex};

use common::close;
use common::world::{Seen, Stub, StubOptions, World};
use espalier_distributed::Group;
use espalier_generator::Tree;
use espalier_trainer::rl::TrainReport;
use espalier_trainer::rl::callbacks::{Callback, Control};
use espalier_trainer::rl::rows::RolloutRow;
use espalier_trainer::sft::Numbers;
use serde_json::{Value, json};

fn rows(world: &World) {
    let row = |uid: &str, source: &Value| {
        let mut row = json!({"uid": uid, "prompt": format!("say {uid}")});
        if !source.is_null() {
            row["data_source"] = source.clone();
        }
        row.to_string()
    };
    let lines = [
        row("a", &json!("open/maths")),
        row("b", &json!("open/maths")),
        row("broken", &json!("all")),
        row("d", &Value::Null),
    ];
    std::fs::write(world.path().join("rows.jsonl"), lines.join("\n")).unwrap();
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_source_has_its_numbers_and_what_was_said_is_kept() {
    let world = World::new();
    rows(&world);
    let mut seen = Seen::default();
    let config = world.config_with(0, 1, &json!({"dump_eval_results": true}));
    world.run_stub(config, Stub::new(StubOptions::default()), &mut seen);
    let numbers = &seen.steps[0].1;
    let of = |source: &str| numbers[&format!("eval/{source}/avg_score")];
    // Slashes do not nest, a source that is called `all` is not everything, a row without one is `unknown`.
    close("all", of("all"), (2.0 * of("open_maths") + of("_all") + of("unknown")) / 4.0, 1e-12);
    assert_eq!((of("_all"), numbers["eval/_all/pass_at_8"]), (0.0, 0.0));
    assert_eq!((numbers["eval/open_maths/pass_at_8"], numbers["eval/all/pass_at_8"]), (1.0, 0.75));
    assert_eq!(numbers["eval/open_maths/mean_positive_reward"], of("open_maths"));

    let folder = world.path().join("checkpoints/dumped_evals");
    for step in [0, 1] {
        let own = folder.join(format!("global_step_{step}_evals"));
        let said = lines(&own.join("open_maths.jsonl"));
        assert_eq!(said.len(), 16);
        let mean = said.iter().map(|line| line["score"].as_f64().unwrap()).sum::<f64>() / 16.0;
        close("score", mean, seen.steps[usize::from(step > 0)].1["eval/open_maths/avg_score"], 1e-6);
        assert_eq!(said[0]["data_source"], "open/maths");
        assert_eq!(said[0]["stop_reason"], "max_tokens");
        assert_eq!(said[0]["input_prompt"][0]["content"], "say a");
        assert_eq!(said[0]["output_response"][0]["role"], "assistant");
        let failed = lines(&own.join("_all.jsonl"));
        assert!(failed.iter().all(|line| line["stop_reason"] == "env_error" && line["score"] == 0.0));
        assert_eq!(lines(&own.join("unknown.jsonl")).len(), 8);
        let all = lines(&own.join("aggregated_results.jsonl"));
        assert!(all[0]["eval/all/avg_score"].is_number());
    }
}

/// Writes down what it hears, and asks for an evaluation and a checkpoint after the second step.
#[derive(Clone, Default)]
struct Diary(Arc<Mutex<Vec<String>>>);

impl Diary {
    fn note(&self, text: String) {
        self.0.lock().unwrap().push(text);
    }
}

impl Callback for Diary {
    fn on_train_start(&mut self, step: u64) {
        self.note(format!("start {step}"));
    }

    fn on_step_begin(&mut self, step: u64) {
        self.note(format!("begin {step}"));
    }

    fn on_rollouts(&mut self, step: u64, rows: &[RolloutRow]) {
        self.note(format!("rollouts {step}: {}", rows.len()));
    }

    fn on_step_end(&mut self, step: u64, numbers: &Numbers) -> Control {
        self.note(format!("end {step}: {}", numbers.contains_key("policy/grad_norm")));
        Control { should_save: step == 2, should_evaluate: step == 2 }
    }

    fn on_eval_begin(&mut self, step: u64) {
        self.note(format!("eval {step}"));
    }

    fn on_eval(&mut self, step: u64, numbers: &Numbers, trees: &[Tree]) {
        self.note(format!("eval {step}: {} trees, {}", trees.len(), numbers.contains_key("eval/all/avg_score")));
    }

    fn on_save(&mut self, step: u64, path: &Path) {
        self.note(format!("save {step}: {}", path.join("manifest.json").exists()));
    }

    fn on_log(&mut self, step: u64, numbers: &Numbers) {
        self.note(format!("log {step}: {}", numbers.contains_key("timing/step")));
    }

    fn on_train_end(&mut self, report: &TrainReport) {
        self.note(format!("done {}", report.steps));
    }
}

#[test]
fn callbacks_hear_of_everything_in_order_and_what_they_ask_for_is_done() {
    let world = World::new();
    world.rows(&["a", "b"]);
    let trainer = json!({"eval_before_train": false, "eval_interval": 0, "ckpt_interval": 0});
    let diary = Diary::default();
    let stub = Arc::new(Stub::new(StubOptions::default()));
    let mut run = world.parts(world.config_with(0, 3, &trainer), Some(stub), Group::single());
    run.callbacks.push(Box::new(diary.clone()));
    run.run(&mut Seen::default()).unwrap();
    let heard = diary.0.lock().unwrap().join("\n");
    let expected = "start 0
begin 1
rollouts 1: 16
end 1: true
log 1: true
begin 2
rollouts 2: 16
end 2: true
eval 2
eval 2: 16 trees, true
log 2: true
save 2: true
begin 3
rollouts 3: 16
end 3: true
log 3: true
save 3: true
done 3";
    assert_eq!(heard, expected);
}
