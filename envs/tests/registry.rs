//! Environments by id, with typed parameters.

use std::sync::Arc;

use espalier_envs::registry::{EnvKind, EnvSpec, Registry};
use espalier_envs::{Env, EnvError, EnvRow, Metrics, metrics};
use serde::Deserialize;
use serde_json::{Map, Value, json};

fn params(value: Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

fn message(result: Result<espalier_envs::Prepared, EnvError>) -> String {
    result.map(|prepared| prepared.id().to_owned()).unwrap_err().to_string()
}

#[test]
fn the_standard_registry_has_every_environment() {
    let registry = Registry::standard();
    let ids: Vec<&str> = registry.ids().filter(|id| !id.contains('/')).collect();
    let expected = [
        "aime",
        "code",
        "evidence_rlm",
        "gsm8k",
        "gsm8k_multi_turn",
        "lcb",
        "llm_judge",
        "long",
        "math",
        "multipaper_evidence_rlm",
        "rlm",
        "search",
        "searchcode",
        "text2sql",
        "tool_use",
    ];
    assert_eq!(ids, expected);
    // Twelve families and their mixture; seven tasks.
    assert_eq!(registry.ids().filter(|id| id.starts_with("reasoning/")).count(), 13);
    assert_eq!(registry.ids().filter(|id| id.starts_with("long/")).count(), 7);
    for id in registry.ids() {
        // Some need to be told where their data lies; none may fail otherwise.
        let prepared = registry.prepare(id, &Map::new());
        assert!(matches!(prepared, Ok(_) | Err(EnvError::Invalid { .. })), "{id}: {prepared:?}");
    }
}

#[test]
fn an_unknown_id_gets_the_nearest_one() {
    let registry = Registry::standard();
    assert_eq!(message(registry.prepare("gsm8", &Map::new())), "no environment `gsm8`; did you mean `gsm8k`?");
    let said = message(registry.prepare("poker", &Map::new()));
    assert!(said.starts_with("no environment `poker`; there is `aime`, `code`, "), "{said}");
}

#[test]
fn parameter_errors_name_the_key_and_what_was_expected() {
    let registry = Registry::standard();
    let error = |value| message(registry.prepare("rlm", &params(value)));
    assert_eq!(error(json!({"promt": "full"})), "`rlm`: `promt` is no parameter; did you mean `prompt`?");
    assert_eq!(error(json!({"limits": {"blok": 1}})), "`rlm`: `limits.blok` is no parameter; did you mean `block`?");
    assert_eq!(
        error(json!({"output_chars": "many"})),
        "`rlm`: `output_chars` is wrong: invalid type: string \"many\", expected usize"
    );
    assert!(error(json!({"reward": "exat"})).starts_with("`rlm`: `reward` is wrong: unknown variant `exat`, expected"));
    assert_eq!(error(json!({"max_turns": 0})), "`rlm`: `max_turns` must be at least 1, got 0");
    assert_eq!(
        error(json!({"tools": [{"name": "context", "source": "context = 1"}]})),
        "`rlm`: `tools[0].name` `context` is reserved: it is the REPL's own"
    );
    assert!(error(json!({"limits": {"block": -1.0}})).contains("expected a positive number of seconds, got -1"));
}

/// Every field that serde knows is described, and nothing else is.
#[test]
fn descriptions_match_the_parameters() {
    let registry = Registry::standard();
    for id in registry.ids() {
        let error = message(registry.prepare(id, &params(json!({"~": 1}))));
        let spec = registry.spec(id).unwrap();
        for param in &spec.params {
            assert!(
                error.contains(&format!("`{}`", param.name)),
                "{id}: {} is described, not read: {error}",
                param.name
            );
        }
        // The id, the key and every valid name.
        assert_eq!(error.matches('`').count() / 2, spec.params.len() + 2, "{error}");
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct NoParams {}

struct Other;

impl EnvKind for Other {
    type Params = NoParams;

    fn spec(&self) -> EnvSpec {
        EnvSpec { id: "other".to_owned(), summary: String::new(), params: vec![], columns: vec![] }
    }

    fn make(&self, _params: &Arc<NoParams>, _row: &EnvRow) -> Result<Box<dyn Env>, EnvError> {
        Err(EnvError::Failed { env: "other".to_owned(), reason: "it is made for this test".to_owned() })
    }

    fn aggregate(&self, episodes: &[Metrics]) -> Metrics {
        Metrics::from([("episodes".to_owned(), json!(episodes.len()))])
    }
}

#[test]
fn an_id_is_registered_once_and_can_be_removed() {
    let mut registry = Registry::standard();
    registry.register(Other).unwrap();
    assert_eq!(registry.register(Other), Err(EnvError::Duplicate { id: "other".to_owned() }));
    let prepared = registry.prepare("other", &Map::new()).unwrap();
    assert_eq!(prepared.aggregate(&[Metrics::new(), Metrics::new()])["episodes"], json!(2));
    registry.deregister("other").unwrap();
    assert!(matches!(registry.deregister("other"), Err(EnvError::Unknown { .. })));
}

#[test]
fn metrics_are_averaged_over_the_episodes_that_carry_them() {
    let episode = |value: Value| params(value).into_iter().collect::<Metrics>();
    let mean = metrics::mean(&[
        episode(json!({"steps": 2, "correct": true, "answer": "x"})),
        episode(json!({"steps": 3, "correct": false})),
        episode(json!({"correct": false, "late": 1.5, "nothing": null})),
    ]);
    assert_eq!(Value::Object(mean.into_iter().collect()), json!({"correct": 1.0 / 3.0, "late": 1.5, "steps": 2.5}));
}

#[test]
fn a_row_that_cannot_be_graded_is_refused_before_it_is_played() {
    for id in ["gsm8k", "rlm", "long"] {
        let error = espalier_envs::make(id, &Map::new(), &EnvRow::ask("?")).err().unwrap().to_string();
        assert!(error.contains("`reward_spec.ground_truth` is missing in row `0`"), "{error}");
    }
    espalier_envs::make("rlm", &params(json!({"reward": "non_empty"})), &EnvRow::ask("?")).unwrap();
    espalier_envs::make("rlm", &params(json!({"compat": "skyrl"})), &EnvRow::ask("?")).unwrap();
    let error = espalier_envs::make("gsm8k", &Map::new(), &EnvRow::ask("?").with_truth("forty")).err().unwrap();
    assert!(error.to_string().contains("must be a number, got `forty`"), "{error}");
}
