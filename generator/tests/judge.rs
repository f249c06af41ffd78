//! The judge as a service of the tree, and evidence tasks played by coordinators and readers.

#[allow(dead_code, reason = "every test file uses a part")]
#[path = "it/support.rs"]
mod support;

use std::path::Path;
use std::sync::Arc;

use espalier_envs::{EnvContext, EnvRow, JudgeRequest, Registry, SubCallError};
use espalier_generator::episode::LoopOptions;
use espalier_generator::output::{OutputOptions, RunWriter, read_trees};
use espalier_generator::source::RowSource;
use espalier_generator::suite::{Mode, StandardEngines, SuiteConfig, SuiteOptions, run_suite};
use espalier_generator::trajectory::CallKind;
use espalier_generator::{
    Player, Players, RolloutStop, TrajectoryId, Tree, TreeLimits, TreeOptions, TreeTask, play_tree,
};
use espalier_inference::{Message, ScriptedEngine};
use espalier_sandbox::Value as Python;
use serde_json::{Map, json};
use support::{Scripted, Source, done, options, player, replies, say, task};
use tokio_util::sync::CancellationToken;

const VERDICT: &str = r#"{"reasoning": "fine", "score": 1}"#;

fn question(text: &str) -> JudgeRequest {
    JudgeRequest { messages: vec![Message::system("judge"), Message::user(text)], schema: None, max_tokens: 50 }
}

async fn play_row(env: &str, params: serde_json::Value, row: &EnvRow, players: Players, options: TreeOptions) -> Tree {
    let prepared = Registry::standard().prepare(env, params.as_object().unwrap()).unwrap();
    let task = TreeTask {
        id: TrajectoryId { instance_id: "1".to_owned(), repetition_id: 0 },
        seed: 1,
        prompt: row.prompt.clone(),
        source: Arc::new(RowSource::new(prepared, row.clone())),
    };
    play_tree(task, players, options, &CancellationToken::new()).await
}

#[tokio::test]
async fn judge_calls_are_recorded_apart_and_cost_the_policy_nothing() {
    let policy = replies(&["Paris"]);
    let judge = replies(&[VERDICT]);
    let players = Players::policy(player(&policy)).with_judge(player(&judge));
    // As many tokens as the policy's own turn needs: prompt, answer and end of turn.
    let row = EnvRow::ask("Capital of France?").with_truth("Paris");
    let tree = play_row("llm_judge", json!({}), &row, players, TreeOptions::default()).await;
    assert_eq!((tree.root.stop, tree.root.reward), (RolloutStop::Completed, 1.0), "{:?}", tree.root.error);
    let [call] = &tree.root.calls[..] else { panic!("{:?}", tree.root.calls) };
    assert_eq!((call.kind, call.response.as_deref()), (CallKind::Judge, Some(VERDICT)));
    assert!(call.prompt.contains("Paris") && call.prompt_tokens > 100 && call.sampled_tokens > 10);
    assert_eq!(tree.root.usage.sampled_tokens, 6, "the policy's five letters and its end of turn");
    assert_eq!(tree.root.trained_tokens(), 6);
    assert_eq!(tree.root.env_metrics["judge_attempts"], json!(1));

    // The mark of a call lasts through both formats.
    for (jsonl, parquet) in [(true, false), (false, true)] {
        let folder = tempfile::tempdir().unwrap();
        let options = OutputOptions { jsonl, parquet, ..OutputOptions::default() };
        let mut writer = RunWriter::create(folder.path(), options).unwrap();
        writer.write(&tree).unwrap();
        writer.finish().unwrap();
        assert_eq!(read_trees(folder.path()).unwrap().0, std::slice::from_ref(&tree));
    }
}

#[tokio::test]
async fn a_judge_is_asked_at_temperature_0_under_its_own_seed_and_bound() {
    let engine = ScriptedEngine::replies(["a", "b"]).recording().build();
    let policy = replies(&["go"]);
    let mut judge = player(&policy);
    judge.engine = Arc::new(engine.clone());
    judge.sampling.temperature = 1.5;
    judge.sampling.top_p = 0.5;
    let source = Source::new(|_, _, context: EnvContext| async move {
        assert!(context.services.has_judge());
        for said in ["a", "b"] {
            // The second asks in a session of its own, and plays its script from the start.
            let answer = context.services.judge(question(said), context.cancel.child_token()).await;
            assert_eq!(answer, Ok("a".to_owned()));
        }
        let spent = context.services.judge(question("c"), context.cancel.child_token()).await;
        assert_eq!(spent, Err(SubCallError::Budget { budget: "judge calls", limit: 2 }));
        Ok(done(1.0))
    });
    let limits = TreeLimits { judge_calls: 2, sub_calls: 0, ..TreeLimits::default() };
    let options = TreeOptions { limits, ..options(LoopOptions::default()) };
    let players = Players::policy(player(&policy)).with_judge(judge);
    let tree = play_tree(task("1", "hi", source), players, options, &CancellationToken::new()).await;
    assert_eq!(tree.root.stop, RolloutStop::Completed, "{:?}", tree.root.error);
    assert_eq!(tree.root.calls.len(), 3, "the refused one is recorded as well");
    let requests = engine.requests();
    let [first, second] = &requests[..] else { panic!("{requests:?}") };
    for request in &requests {
        let sampling = &request.sampling;
        assert_eq!((sampling.temperature, sampling.top_p, sampling.max_tokens), (0.0, 1.0, 50));
    }
    assert_ne!(first.sampling.seed, second.sampling.seed);
}

#[tokio::test]
async fn a_judge_that_fails_leaves_no_reward() {
    let judge = replies(&["I will not say."]);
    let players = Players::policy(player(&replies(&["Paris"]))).with_judge(player(&judge));
    let row = EnvRow::ask("Capital of France?").with_truth("Paris");
    let tree = play_row("llm_judge", json!({"attempts": 2}), &row, players, TreeOptions::default()).await;
    assert_eq!(tree.root.stop, RolloutStop::EnvError);
    assert!(tree.root.error.as_deref().unwrap().contains("the grader failed: the judge gave no verdict in 2 tries"));
    assert_eq!(tree.root.trained_tokens(), 0);
    assert_eq!(tree.root.calls.len(), 2);
    let alone = Players::policy(player(&replies(&["Paris"])));
    let tree = play_row("llm_judge", json!({}), &row, alone, TreeOptions::default()).await;
    assert_eq!((tree.root.stop, tree.root.turns.len()), (RolloutStop::EnvError, 0), "nothing was sampled");
}

const PAPERS: [(&str, &str); 3] = [
    (
        "a1",
        "### PAPER: Warmth\n<abstract>\nOn warm-up.\n</abstract>\nWithout warm-up the loss diverges. Else it does not.",
    ),
    ("b2", "### PAPER: Kernels\n<abstract>\nOn kernels.\n</abstract>\nKernels are fast. Memory bounds them."),
    (
        "c3",
        "### PAPER: Loss\n<abstract>\nOn losses.\n</abstract>\nWe saw the loss diverge at a rate of 0.1. It was late.",
    ),
];

fn evidence_row() -> EnvRow {
    let context = PAPERS.iter().map(|(id, text)| (Python::from(*id), Python::from(*text))).collect();
    let mut row = EnvRow::ask("When does the loss diverge?").with_context(Python::Dict(context));
    row.reward_spec.insert(
        "evidence".to_owned(),
        json!([
            {"paperId": "a1", "selections": [{"text": "Without warm-up the loss diverges."}]},
            {"paperId": "c3", "selections": [{"text": "We saw the loss diverge at a rate of 0.1."}]},
        ]),
    );
    row
}

/// A coordinator that lists, hands out all papers and gathers; readers that cut out the sentence with `diverge`.
fn crew() -> Arc<Scripted> {
    Arc::new(Scripted::new(|prompt, _| {
        let turn = prompt.matches("<|im_start|>assistant").count();
        let reads = prompt.contains("You find the passages in a scientific paper");
        say(match (reads, turn) {
            (false, 1) => {
                "I list them.\n```repl\ntitles = list_papers(context)\nhits = search(context, 'diverge')\n```"
            }
            (false, 2) => {
                "I hand them out.\n```repl\nids = list(context)\ntasks = ['Find when the loss diverges.\\n' + \
                 get_paper_abstract(context, i) for i in ids]\nfound = rlm_query_batched(tasks, context_list=[context[i] \
                 for i in ids])\npassages = [p for a in found if isinstance(a, list) for p in a]\nprint(passages)\n```"
            }
            (false, _) => "All there.\nFINAL_VAR(passages)",
            (true, 1) => {
                "I search.\n```repl\nhits = search(context, 'diverge', window=40)\npassages = [x.strip() + '.' for s in hits \
                 for x in s.split('.') if 'diverge' in x]\n```"
            }
            (true, _) => "FINAL_VAR(passages)",
        })
    }))
}

/// A player whose turns may hold whole blocks.
fn roomy(engine: &Arc<Scripted>) -> Player {
    let mut player = player(engine);
    player.sampling.max_tokens = 2000;
    player
}

async fn episode(players: Players, params: serde_json::Value) -> Tree {
    let mut options = TreeOptions::default();
    options.root.max_turns = 6;
    play_row("multipaper_evidence_rlm", params, &evidence_row(), players, options).await
}

#[tokio::test]
async fn a_coordinator_and_its_readers_find_the_evidence() {
    let tree = episode(Players::policy(roomy(&crew())), json!({})).await;
    assert_eq!(tree.root.stop, RolloutStop::Completed, "{:?} {:#?}", tree.root.error, tree.root.messages);
    assert_eq!(tree.descendants.len(), 3);
    for child in &tree.descendants {
        assert_eq!((child.stop, child.reward, child.depth), (RolloutStop::Completed, 0.0, 1), "{:?}", child.error);
        assert_eq!(child.env_metrics["depth"], json!(1));
    }
    let metrics = &tree.root.env_metrics;
    assert!(tree.root.reward > 0.9, "{metrics:#?} {:#?}", tree.root.answer);
    assert_eq!((&metrics["depth"], &metrics["children"], &metrics["child/count"]), (&json!(0), &json!(3), &json!(3)));
    assert_eq!(metrics["child/submission_rate"], json!(1.0));
    assert_eq!(metrics["child/paper_selection_recall"], json!(1.0));
    assert!((metrics["child/paper_selection_precision"].as_f64().unwrap() - 2.0 / 3.0).abs() < 1e-9);
    assert_eq!(metrics["child/evidence_f1"], metrics["evidence_f1"], "the coordinator took all that came");
    // The same tree again, but for its clocks.
    let again = episode(Players::policy(roomy(&crew())), json!({})).await;
    let story = |tree: &Tree| {
        tree.nodes()
            .map(|node| {
                (
                    node.rollout_id.clone(),
                    node.messages.clone(),
                    node.reward,
                    node.env_metrics.clone(),
                    node.rows.clone(),
                )
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(story(&tree), story(&again));
}

#[tokio::test]
async fn a_judge_may_grade_the_coordinator() {
    let judge = replies(&[r#"{"reasoning": "all", "precision_score": 9, "recall_score": 10}"#]);
    let players = Players::policy(roomy(&crew())).with_judge(player(&judge));
    let tree = episode(players, json!({"reward": "judge"})).await;
    assert_eq!(tree.root.stop, RolloutStop::Completed, "{:?}", tree.root.error);
    assert!((tree.root.reward - 0.95).abs() < 1e-6);
    assert_eq!(tree.root.calls.len(), 1);
    assert!(tree.descendants.iter().all(|child| child.calls.is_empty()), "readers are not graded");
}

/// A suite in which one model answers, another plays nothing and judges.
fn suite(folder: &Path, judge: &str) -> Result<SuiteConfig, String> {
    let script = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, format!("{}\n", serde_json::to_string(text).unwrap())).unwrap();
        path
    };
    let rows = folder.join("rows.jsonl");
    std::fs::write(
        &rows,
        "{\"uid\": \"a\", \"prompt\": \"Capital of France?\", \"reward_spec\": {\"ground_truth\": \"Paris\"}}\n",
    )
    .unwrap();
    let value = json!({
        "name": "judged",
        "judge": judge,
        "engine": [
            {"name": "small", "kind": "scripted", "options": {"script": script("policy.jsonl", "Paris"), "cycle": true}},
            {"name": "wise", "kind": "scripted", "plays": false, "options": {"script": script("judge.jsonl", VERDICT), "cycle": true}},
        ],
        "task": [{"name": "capitals", "env": "llm_judge", "data": {"path": rows}}],
    });
    SuiteConfig::from_value(value.as_object().unwrap()).map_err(|error| error.to_string())
}

#[tokio::test]
async fn a_suite_names_its_judge() {
    let folder = tempfile::tempdir().unwrap();
    let error = suite(folder.path(), "wize").unwrap_err();
    assert!(error.contains("`judge` names no engine of this suite: `wize`; did you mean `wise`?"), "{error}");
    let config = suite(folder.path(), "wise").unwrap();
    let options = SuiteOptions {
        directory: folder.path().join("out"),
        resume: false,
        registry: Registry::standard(),
        events: None,
    };
    let done = run_suite(&config, &StandardEngines, options, &CancellationToken::new()).await.unwrap();
    let [cell] = &done.result.cells[..] else { panic!("only one model plays: {:?}", done.result) };
    assert_eq!(
        (cell.engine.as_str(), cell.mode, cell.score.unwrap().mean),
        ("small", Mode::Alone, 1.0),
        "{:?}",
        cell.stops
    );
    assert_eq!(cell.metrics["tree/avg_judge_calls"], 1.0);
    assert_eq!(cell.metrics["tree/avg_sub_calls"], 0.0);
    let mut nobody = json!({"name": "x", "engine": [{"name": "wise", "kind": "scripted", "plays": false}], "task": []});
    let error = SuiteConfig::from_value(nobody.as_object_mut().unwrap()).unwrap_err().to_string();
    assert!(error.contains("all have `plays = false`"), "{error}");
}

#[tokio::test]
async fn an_rlm_mode_may_play_an_environment_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script.jsonl");
    let lines = [
        json!("```repl\nprint(len(rlm_query_batched(['find'], context_list=[context['a1']])))\n```"),
        json!("FINAL(['Without warm-up the loss diverges.'])"),
    ];
    // Readers say the same as their coordinator, whose first turn then falls back to asking a model.
    std::fs::write(&script, lines.map(|line| format!("{line}\n")).concat()).unwrap();
    let rows = folder.path().join("rows.jsonl");
    let row = evidence_row();
    let context: Map<_, _> = PAPERS.iter().map(|(id, text)| ((*id).to_owned(), json!(text))).collect();
    let row =
        json!({"uid": "a", "prompt": "When?", "reward_spec": row.reward_spec, "extra_info": {"context_text": context}});
    std::fs::write(&rows, format!("{row}\n")).unwrap();
    let value = json!({
        "name": "papers",
        "limits": {"depth": 1},
        "engine": [{"name": "small", "kind": "scripted", "options": {"script": script, "cycle": true}}],
        "task": [{
            "name": "papers", "env": "multipaper_evidence_rlm", "rlm_env": "multipaper_evidence_rlm",
            "modes": ["recursive"], "data": {"path": rows},
        }],
    });
    let config = SuiteConfig::from_value(value.as_object().unwrap()).unwrap();
    let options = SuiteOptions {
        directory: folder.path().join("out"),
        resume: false,
        registry: Registry::standard(),
        events: None,
    };
    let done = run_suite(&config, &StandardEngines, options, &CancellationToken::new()).await.unwrap();
    let cell = &done.result.cells[0];
    assert_eq!(cell.failed, 0, "{:?}", cell.stops);
    assert_eq!(cell.metrics["environment/child/count"], 1.0);
    assert_eq!((cell.metrics["environment/parent/depth"], cell.metrics["environment/child/depth"]), (0.0, 1.0));
}
