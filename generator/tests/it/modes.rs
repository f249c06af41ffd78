//! The three ways to play a task, with an environment that reports what it was given.

use std::sync::Arc;

use async_trait::async_trait;
use espalier_envs::{
    Action, ChildRequest, Env, EnvContext, EnvError, EnvKind, EnvRow, EnvSpec, Metrics, Registry, Step,
};
use espalier_envs::{Services, SubQuery};
use espalier_generator::suite::report::{report, side_by_side};
use espalier_generator::suite::{
    BuiltEngine, EngineFactory, EngineSpec, Mode, SuiteConfig, SuiteError, SuiteOptions, run_suite,
};
use espalier_inference::{InferenceEngine, Message};
use tokio_util::sync::CancellationToken;

use crate::support::{Scripted, player, say};

/// An environment that uses whatever its rollout serves. A child answers at once.
struct Asking {
    id: &'static str,
}

struct AskingEnv {
    context: Option<EnvContext>,
}

impl EnvKind for Asking {
    type Params = std::collections::BTreeMap<String, serde_json::Value>;

    fn spec(&self) -> EnvSpec {
        EnvSpec { id: self.id.to_owned(), summary: String::new(), params: vec![], columns: vec![] }
    }

    fn make(&self, _: &Arc<Self::Params>, _: &EnvRow) -> Result<Box<dyn Env>, EnvError> {
        Ok(Box::new(AskingEnv { context: None }))
    }
}

#[async_trait]
impl Env for AskingEnv {
    async fn init(&mut self, prompt: Vec<Message>, context: EnvContext) -> Result<Vec<Message>, EnvError> {
        self.context = Some(context);
        Ok(prompt)
    }

    async fn step(&mut self, _: Action) -> Result<Step, EnvError> {
        let context = self.context.clone().unwrap();
        let services: &dyn Services = &*context.services;
        let mut reward = 0.25;
        if context.depth == 0 && services.has_llm() {
            let query = SubQuery { prompt: "q".to_owned(), model: None };
            reward += services.llm_query(vec![query], context.cancel.child_token()).await.iter().flatten().count()
                as f64
                / 4.0;
        }
        if context.depth == 0 && services.has_children() {
            let child = ChildRequest { prompt: "c".to_owned(), context: None };
            reward += services.rlm_query(vec![child], context.cancel.child_token()).await.iter().flatten().count()
                as f64
                / 2.0;
        }
        Ok(Step { reward, terminated: true, ..Step::default() })
    }

    fn metrics(&self) -> Metrics {
        [("blocks", 4.into()), ("valid_blocks", 3.into()), ("final_value_set", true.into())]
            .map(|(key, value): (&str, serde_json::Value)| (key.to_owned(), value))
            .into()
    }
}

/// Makes one scripted engine per name.
struct Engines;

#[async_trait]
impl EngineFactory for Engines {
    fn kinds(&self) -> Vec<&'static str> {
        vec!["test"]
    }

    async fn make(&self, spec: &EngineSpec) -> Result<BuiltEngine, SuiteError> {
        let engine = Arc::new(Scripted::new(|_, _| say("x")));
        let template = player(&engine).template;
        let engine: Arc<dyn InferenceEngine> = engine;
        assert_eq!(spec.kind, "test");
        Ok(BuiltEngine { engine, template })
    }
}

#[tokio::test]
async fn the_modes_differ_in_what_the_rollout_serves() {
    let directory = tempfile::tempdir().unwrap();
    let rows = directory.path().join("rows.jsonl");
    std::fs::write(&rows, "{\"prompt\": \"one\"}\n{\"prompt\": \"two\"}\n").unwrap();
    let text = format!(
        r#"
        engine = [{{ name = "a", kind = "test" }}, {{ name = "b", kind = "test" }}]
        calls = "b"
        [[task]]
        name = "t"
        env = "short"
        modes = ["alone", "repl", "recursive"]
        data = {{ path = "{}" }}
        "#,
        rows.display()
    );
    let config = SuiteConfig::from_value(&toml::from_str(&text).unwrap()).unwrap();
    let mut registry = Registry::new();
    registry.register(Asking { id: "short" }).unwrap();
    registry.register(Asking { id: "rlm" }).unwrap();
    let options = SuiteOptions { directory: directory.path().join("out"), resume: false, registry, events: None };
    let done = run_suite(&config, &Engines, options, &CancellationToken::new()).await.unwrap();
    let told: Vec<_> = done
        .result
        .cells
        .iter()
        .map(|cell| (cell.engine.as_str(), cell.mode, cell.score.unwrap().mean, cell.sub_calls, cell.children))
        .collect();
    let expected = |engine| {
        [
            (engine, Mode::Alone, 0.25, 0.0, 0.0),
            (engine, Mode::Repl, 0.5, 1.0, 0.0),
            (engine, Mode::Recursive, 1.0, 1.0, 1.0),
        ]
    };
    assert_eq!(told, [expected("a"), expected("b")].concat());
    assert_eq!(done.result.cells[1].valid_blocks, Some(0.75));
    assert_eq!(done.result.cells[1].final_given, Some(1.0));
    let table = side_by_side(&done.result, "a");
    assert!(table.starts_with("| task | model alone"), "{table}");
    assert!(table.contains("1.000 [1.000, 1.000]"), "{table}");
    assert!(report(&done.result).contains("| t    | a     | repl"), "{}", report(&done.result));
}
