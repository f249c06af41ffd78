//! The `rlm` environment, played through a real REPL.

#[allow(dead_code, reason = "every test file uses a part")]
mod support;

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use espalier_datasets::Builtins as _;
use espalier_envs::builtin::Builtin;
use espalier_envs::rlm::{Params, Rlm, RlmTask};
use espalier_envs::{
    Action, ChildAnswer, ChildRequest, Env, EnvError, EnvRow, History, Registry, Services, Step, SubCallError,
    SubQuery, make,
};
use espalier_inference::{Message, Role, StopReason};
use espalier_procedural::reasoning::Family;
use espalier_sandbox::{FinalAnswer, Value as Python};
use serde_json::{Map, Value, json};
use support::{alone, context, says};
use tokio_util::sync::CancellationToken;

/// An episode of a question about a text.
async fn start(params: Value, row: &EnvRow, services: Option<Arc<dyn Services>>) -> (Box<dyn Env>, Vec<Message>) {
    let params = params.as_object().cloned().unwrap();
    let mut env = make("rlm", &params, row).unwrap();
    let context = services.map_or_else(|| alone(10), |services| context(services, 10));
    let messages = env.init(row.prompt.clone(), context).await.unwrap();
    (env, messages)
}

fn row() -> EnvRow {
    EnvRow::ask("How many lines hold `a`?").with_context("a 1\nb 2\na 3").with_truth(2)
}

fn block(code: &str) -> String {
    format!("I run this.\n```repl\n{code}\n```")
}

async fn run(env: &mut dyn Env, code: &str) -> Step {
    env.step(says(&block(code))).await.unwrap()
}

fn seen(step: &Step) -> &str {
    assert!(!step.terminated && !step.truncated, "{step:?}");
    &step.observations[0].content
}

#[tokio::test]
async fn an_episode_from_question_to_reward() {
    let (mut env, messages) = start(json!({}), &row(), None).await;
    assert_eq!(messages.iter().map(|message| message.role).collect::<Vec<_>>(), [Role::System, Role::User]);
    assert!(messages[1].content.contains("Your context is a str with 11 total characters"));
    assert!(messages[1].content.contains("How many lines hold `a`?"));
    let first = run(env.as_mut(), "hits = [l for l in context.split('\\n') if l.startswith('a')]\nprint(hits)").await;
    assert!(seen(&first).contains("REPL output:\n['a 1', 'a 3']\nREPL variables: hits (list, 2)"), "{}", seen(&first));
    assert_eq!(first.history, History::Append);
    let last = run(env.as_mut(), "n = len(hits)\nFINAL_VAR('n')").await;
    assert!(last.terminated && last.observations.is_empty());
    assert_eq!(last.reward, 1.0);
    assert_eq!(env.answer().unwrap().value, Python::Int(2));
    let metrics = env.metrics();
    assert_eq!(metrics["turns_used"], json!(2));
    assert_eq!(metrics["valid_blocks"], json!(2));
    assert_eq!(metrics["final_value_set"], json!(true));
    assert_eq!(metrics["reward"], json!(1.0));
}

#[tokio::test]
async fn answers_in_text_are_read_as_python_reads_them() {
    for (response, reward) in [
        ("FINAL(2)", 1.0),
        ("FINAL(2)<|im_end|>", 1.0),
        ("The answer:\nFINAL(2.0) since (it is)", 1.0),
        ("FINAL(3)\nFINAL(2)", 1.0),
        ("<think>FINAL(2)</think>\nFINAL(3)", 0.0),
    ] {
        let (mut env, _) = start(json!({}), &row(), None).await;
        let step = env.step(says(response)).await.unwrap();
        assert!(step.terminated, "{response}");
        assert_eq!(step.reward, reward, "{response}");
    }
}

#[tokio::test]
async fn an_answer_in_code_beats_one_in_text() {
    let (mut env, _) = start(json!({}), &row(), None).await;
    let step = env.step(says(&format!("{}\nFINAL(3)", block("x = 2\nFINAL_VAR('x')")))).await.unwrap();
    assert_eq!(step.reward, 1.0);
}

#[tokio::test]
async fn a_variable_named_in_text_is_looked_up_with_its_type() {
    let row = EnvRow::ask("list").with_context("x").with_truth(json!(["a", "b"]));
    let (mut env, _) = start(json!({}), &row, None).await;
    let missing = env.step(says("FINAL_VAR(answer)")).await.unwrap();
    assert!(seen(&missing).contains("there is no variable `answer`"), "{}", seen(&missing));
    let step = env.step(says(&format!("{}\nFINAL_VAR(answer)", block("answer = ('a', 'b')")))).await.unwrap();
    assert_eq!(step.reward, 1.0);
    assert!(matches!(env.answer().unwrap().value, Python::Tuple(_)));
}

#[tokio::test]
async fn an_error_is_shown_and_what_ran_before_it_stays() {
    let (mut env, _) = start(json!({}), &row(), None).await;
    let raised = run(env.as_mut(), "y = 1\nprint('before')\n1 / 0").await;
    assert!(seen(&raised).contains("before") && seen(&raised).contains("ZeroDivisionError"), "{}", seen(&raised));
    let next = run(env.as_mut(), "print(y)").await;
    assert!(seen(&next).contains("REPL output:\n1"), "{}", seen(&next));
    assert_eq!(env.metrics()["valid_blocks"], json!(1));
    assert_eq!(env.metrics()["blocks"], json!(2));
}

#[tokio::test]
async fn a_response_without_a_block_is_told_so() {
    let (mut env, _) = start(json!({}), &row(), None).await;
    let step = env.step(says("I wonder.")).await.unwrap();
    assert!(seen(&step).contains("no code block to run and no answer"));
    let cut = Action { stop: StopReason::MaxTokens, ..says("```repl\nprint(") };
    let step = env.step(cut).await.unwrap();
    assert!(seen(&step).contains("cut off at its length limit"));
}

#[tokio::test]
async fn a_block_that_runs_too_long_is_stopped_and_keeps_its_state() {
    let params = json!({"repl_timeout": 0.3, "abort_after_timeouts": 2});
    let (mut env, _) = start(params, &row(), None).await;
    let stopped = run(env.as_mut(), "kept = 5\nwhile True:\n    pass").await;
    assert!(seen(&stopped).contains("ran longer than its time limit (0.3 s"), "{}", seen(&stopped));
    let next = run(env.as_mut(), "print(kept)").await;
    assert!(seen(&next).contains('5'), "{}", seen(&next));
    let aborted = run(env.as_mut(), "while True:\n    pass").await;
    assert!(aborted.truncated && aborted.reward == 0.0);
    assert_eq!(aborted.metadata["aborted"], json!("timeouts"));
    assert_eq!(env.metrics()["timeouts"], json!(2));
}

#[tokio::test]
async fn the_turn_limit_ends_an_episode_without_an_answer() {
    let (mut env, _) = start(json!({"max_turns": 2}), &row(), None).await;
    let first = run(env.as_mut(), "x = 1").await;
    assert!(seen(&first).contains("This is your last turn"));
    let last = run(env.as_mut(), "x = 2").await;
    assert!(last.truncated && !last.terminated && last.observations.is_empty());
    assert_eq!(env.metrics()["final_value_set"], json!(false));
}

#[tokio::test]
async fn long_output_is_cut() {
    let (mut env, _) = start(json!({"output_chars": 1000}), &row(), None).await;
    let step = run(env.as_mut(), "print('x' * 5000 + 'end')").await;
    assert!(seen(&step).contains("characters left out]") && seen(&step).contains("xend"));
    assert_eq!(env.metrics()["truncated_outputs"], json!(1));
}

#[tokio::test]
async fn contexts_are_typed() {
    for (context, code) in [
        (json!("{\"a\": [1]}"), "assert context == {'a': [1]}"),
        (json!({"a": "text"}), "assert context['a'] == 'text'"),
        (json!(["one", "two"]), "assert context[1] == 'two'"),
        (json!("[1, 2]"), "assert context == '[1, 2]'"),
    ] {
        let data =
            json!({"prompt": "q", "reward_spec": {"ground_truth": "x"}, "extra_info": {"context_text": context}});
        let mut columns = data.as_object().cloned().unwrap();
        columns.remove("prompt");
        let row = espalier_datasets::Row {
            id: "0".to_owned(),
            prompt: espalier_datasets::Prompt::Text("q".to_owned()),
            env: None,
            columns,
        };
        let (mut env, _) = start(json!({}), &EnvRow::from_row(row).unwrap(), None).await;
        let step = run(env.as_mut(), &format!("{code}\nprint('fine')")).await;
        assert!(seen(&step).contains("fine"), "{code}: {}", seen(&step));
    }
}

#[tokio::test]
async fn tools_written_in_python_are_offered_and_work() {
    let params =
        json!({"tools": [{"name": "double", "description": "doubles", "source": "def double(x):\n    return 2 * x"}]});
    let (mut env, messages) = start(params, &row(), None).await;
    assert!(messages[0].content.contains("- `double`: doubles"));
    let step = run(env.as_mut(), "print(double(21))").await;
    assert!(seen(&step).contains("42"), "{}", seen(&step));
}

#[tokio::test]
async fn the_compact_prompt_takes_python_fences_and_shows_values() {
    let (mut env, messages) = start(json!({"prompt": "compact"}), &row(), None).await;
    // The system prompt, seven worked examples of four messages each, the task.
    assert_eq!(messages.len(), 1 + 7 * 4 + 1);
    assert!(messages.iter().map(|message| message.content.len()).sum::<usize>() < 2600);
    let step = env.step(says("```python\nlen(context)\n```")).await.unwrap();
    assert_eq!(seen(&step), "Output:\n11\n\nWrite FINAL(answer), or another block.");
}

/// Serves queries by echoing them, children by a fixed answer.
#[derive(Default)]
struct Echo {
    children: bool,
    asked: Mutex<Vec<ChildRequest>>,
}

#[async_trait]
impl Services for Echo {
    fn has_llm(&self) -> bool {
        true
    }

    fn has_children(&self) -> bool {
        self.children
    }

    async fn llm_query(&self, queries: Vec<SubQuery>, _: CancellationToken) -> Vec<Result<String, SubCallError>> {
        let answer = |query: SubQuery| match query.prompt.as_str() {
            "bad" => Err(SubCallError::Failed("the model is gone".to_owned())),
            "poor" => Err(SubCallError::Budget { budget: "sub-calls", limit: 3 }),
            prompt => Ok(format!("<{prompt}>")),
        };
        queries.into_iter().map(answer).collect()
    }

    async fn rlm_query(
        &self,
        requests: Vec<ChildRequest>,
        _: CancellationToken,
    ) -> Vec<Result<ChildAnswer, SubCallError>> {
        self.asked.lock().unwrap().extend(requests.iter().cloned());
        let answer = |request: ChildRequest| {
            let value = match request.prompt.as_str() {
                "list" => Python::List(vec![Python::from("a"), Python::from("b")]),
                "digits" => Python::from("3"),
                "bad" => return Err(SubCallError::Failed("the child is gone".to_owned())),
                "none" => return Ok(ChildAnswer { answer: None }),
                _ => Python::from("text"),
            };
            let text = match &value {
                Python::Str(text) => text.clone(),
                _ => "['a', 'b']".to_owned(),
            };
            Ok(ChildAnswer { answer: Some(FinalAnswer { text, value }) })
        };
        requests.into_iter().map(answer).collect()
    }
}

/// Runs code that asserts; what it prints last shows that it got there.
async fn holds(params: Value, children: bool, code: &str) -> Arc<Echo> {
    let echo = Arc::new(Echo { children, ..Echo::default() });
    let (mut env, _) = start(params, &row(), Some(Arc::clone(&echo) as Arc<dyn Services>)).await;
    let step = run(env.as_mut(), &format!("{code}\nprint('fine')")).await;
    assert!(seen(&step).contains("\nfine"), "{}", seen(&step));
    echo
}

#[tokio::test]
async fn queries_are_answered_in_order_and_fail_alone() {
    let code = "assert llm_query('x') == '<x>'
assert llm_query(prompt='x', model='m') == '<x>'
out = llm_query_batched(['a', 'bad', 'poor', 'c'])
assert out[0] == '<a>' and out[3] == '<c>', out
assert out[1] == 'Error: LM query failed - the model is gone', out
assert out[2] == 'Error: LM query failed - the sub-calls budget of this rollout is spent (3)', out
assert llm_query_batched([]) == []";
    holds(json!({}), false, code).await;
}

#[tokio::test]
async fn children_answer_with_types() {
    let code = "assert rlm_query('list') == ['a', 'b']
assert rlm_query('digits') == '3'
assert rlm_query_batched(['text', 'bad', 'none'], context_list=['p', None, {'k': 1}]) == [
    'text',
    'Error: RLM query failed - the child is gone',
    'Error: RLM query failed - the child ended without an answer',
]";
    let echo = holds(json!({}), true, code).await;
    let asked = echo.asked.lock().unwrap();
    let contexts: Vec<_> =
        asked.iter().map(|request| request.context.as_ref().map(|own| own.value().clone())).collect();
    let dict = Python::Dict(vec![(Python::from("k"), Python::Int(1))]);
    assert_eq!(contexts, [None, None, Some(Python::from("p")), None, Some(dict)]);
}

#[tokio::test]
async fn one_context_per_prompt_is_demanded() {
    let code = "try:
    rlm_query_batched(['a', 'b'], context_list=['p'])
except ValueError as error:
    assert 'got 2 prompts and 1 contexts' in str(error), error
else:
    raise AssertionError('no error')
try:
    llm_query_batched('abc')
except TypeError as error:
    assert 'expects a list of prompts' in str(error), error
else:
    raise AssertionError('no error')
try:
    rlm_query_batched(['a', 'b'], ['p', 'q'])
except TypeError as error:
    assert 'context_list=[...]' in str(error), error
else:
    raise AssertionError('no error')
try:
    rlm_query('a', 'line one\\nline two')
except TypeError as error:
    assert 'context=...' in str(error), error
else:
    raise AssertionError('no error')
try:
    llm_query('a', nodel='b')
except TypeError as error:
    assert \"unexpected keyword argument 'nodel'\" in str(error), error";
    holds(json!({}), true, code).await;
}

#[tokio::test]
async fn without_children_a_model_is_asked_once() {
    let code = "assert rlm_query('x') == '<x>'
assert rlm_query('x', context='data') == '<x\\n\\nContext:\\ndata>'
assert rlm_query_batched(['x', 'y']) == ['<x>', '<y>']";
    holds(json!({}), false, code).await;
    holds(json!({"children": false}), true, code).await;
}

#[tokio::test]
async fn without_a_model_the_names_do_not_exist() {
    let (mut env, messages) = start(json!({}), &row(), None).await;
    assert!(!messages[0].content.contains("llm_query"));
    let step = run(env.as_mut(), "llm_query('x')").await;
    assert!(seen(&step).contains("NameError"), "{}", seen(&step));
}

#[tokio::test]
async fn a_child_row_asks_its_own_question_and_is_not_graded() {
    let request = ChildRequest { prompt: "sub".to_owned(), context: None };
    let child = row().child(&request);
    let (mut env, messages) = start(json!({}), &child, None).await;
    assert!(messages[1].content.contains("sub") && messages[1].content.contains("a str with 3 total"));
    let step = env.step(says("FINAL(2)")).await.unwrap();
    assert!(step.terminated);
    assert_eq!(step.reward, 0.0);
    assert_eq!(env.answer().unwrap().value, Python::Int(2));
}

#[tokio::test]
async fn a_grader_that_fails_is_an_error_and_no_zero() {
    struct Fails;
    #[async_trait]
    impl RlmTask for Fails {
        async fn reward(&self, _: &FinalAnswer, _: &EnvRow, _: &Params) -> Result<f64, String> {
            Err("no verdict".to_owned())
        }
    }
    let mut registry = Registry::standard();
    registry.register(Rlm::new("fails", "A task whose grader fails.", Fails)).unwrap();
    let row = EnvRow::ask("q").with_truth("one");
    let mut env = registry.prepare("fails", &Map::new()).unwrap().make(&row).unwrap();
    env.init(row.prompt.clone(), alone(10)).await.unwrap();
    let error = env.step(says("FINAL(1)")).await.unwrap_err();
    assert!(matches!(error, EnvError::Grader { .. }), "{error}");
}

#[test]
fn a_truth_that_no_answer_can_be_compared_with_is_refused_before_anything_is_played() {
    for (method, truth, said) in [
        ("numeric", json!("one"), "`numeric` compares with a number, got `\"one\"`"),
        ("numeric", json!([1]), "`numeric` compares with a number, got `[1]`"),
        ("contains", json!(" "), "an empty text is contained in every answer"),
        ("contains", json!(["a", ""]), "an empty text is contained in every answer"),
        ("contains", json!([]), "`contains` compares with a text, a number or a list of them, got a list"),
    ] {
        let mut row = EnvRow::ask("q").with_context("text").with_truth(truth.clone());
        row.reward_spec.insert("method".to_owned(), json!(method));
        for env in ["rlm", "long", "tool_use"] {
            let Err(EnvError::Invalid { key, reason, .. }) = make(env, &Map::new(), &row) else {
                panic!("{env} {method} {truth}")
            };
            assert_eq!(key, "reward_spec.ground_truth");
            assert!(reason.contains(said), "{env}: {reason}");
        }
    }
}

mod compat {
    use super::*;

    fn compat() -> Value {
        json!({"compat": "skyrl"})
    }

    /// Plays one turn; the answer, if there is one.
    async fn plays(response: &str) -> Option<String> {
        let (mut env, _) = start(compat(), &row(), None).await;
        let step = env.step(says(response)).await.unwrap();
        assert_eq!(step.terminated, env.answer().is_some());
        env.answer().map(|answer| answer.text)
    }

    #[tokio::test]
    async fn the_published_cases() {
        let x = block("x = [1]");
        for (response, answer) in [
            ("FINAL(42)".to_owned(), None),
            (block("a = [1]\nFINAL_VAR(\"a\")"), Some("[1]")),
            (format!("{x}\nFINAL_VAR(x)"), Some("[1]")),
            (format!("{x}\nFINAL(foo (bar))"), Some("foo (bar)")),
            (format!("{x}\nFINAL(a)\nFINAL(b)"), Some("a)\nFINAL(b")),
            (format!("{x}\nFINAL(a) because (x)"), Some("a) because (x")),
            (format!("{x}\nFINAL(a)<|im_end|>"), None),
            ("```repl x\nFINAL_VAR('context')\n```".to_owned(), None),
            ("```repl\n\n```".to_owned(), None),
            (format!("{}\n{}", block("FINAL_VAR(1)"), block("y = 2")), None),
            (format!("{x}\nFINAL_VAR(nothing)\nFINAL(b)"), Some("b")),
        ] {
            assert_eq!(plays(&response).await.as_deref(), answer, "{response}");
        }
    }

    #[tokio::test]
    async fn a_block_that_raised_leaves_no_variables() {
        let (mut env, _) = start(compat(), &row(), None).await;
        run(env.as_mut(), "kept = 1").await;
        run(env.as_mut(), "y = 1\nkept = 2\nraise ValueError('x')").await;
        let step = run(env.as_mut(), "print(kept)\nprint(y)").await;
        assert!(seen(&step).contains("NameError") && seen(&step).contains("\n1\n"), "{}", seen(&step));
    }

    #[tokio::test]
    async fn prompts_stand_for_one_turn_only() {
        let (mut env, messages) = start(compat(), &row(), None).await;
        assert_eq!(messages.len(), 3);
        assert_eq!(
            messages[1].content,
            "Your context is a str with 11 total characters, and is broken up into chunks of char lengths: [11]."
        );
        let first = run(env.as_mut(), "x = 1").await;
        assert_eq!(first.history, History::Remove(2));
        assert_eq!(first.observations.len(), 2);
        assert!(first.observations[0].content.starts_with(
            "Code executed:\n```python\nx = 1\n```\n\nREPL output:\nREPL variables: ['context_0', 'context', 'x']"
        ));
        // system, metadata, action, observation, prompt: the prompt is message 4 now.
        let second = env.step(says("nothing")).await.unwrap();
        assert_eq!(second.history, History::Remove(4));
        assert_eq!(
            second.observations[0].content,
            r"[No ```repl``` code block found. Wrap your code in ```repl\n...\n``` blocks.]"
        );
    }

    #[tokio::test]
    async fn imports_are_refused_and_children_answer_text() {
        let (mut env, _) = start(compat(), &row(), None).await;
        let step = run(env.as_mut(), "import re").await;
        assert!(seen(&step).contains("Error"), "{}", seen(&step));
        let code = "assert rlm_query('list') == ['a', 'b']
assert rlm_query('digits') == 3
assert rlm_query('text') == 'text'
assert rlm_query('none') == ''
assert llm_query_batched(['a', 'bad']) == ['Error: LM query failed - the model is gone'] * 2
assert len(rlm_query_batched(['text', 'text'], context_list=['p'])) == 1";
        holds(compat(), true, code).await;
    }
}

/// The first row of a family's data set.
fn reasoning(name: &str) -> EnvRow {
    let params = json!({"rows": 1, "seed": 3, "level": 2}).as_object().cloned().unwrap();
    let mut rows = Builtin.open(name, &params).unwrap();
    EnvRow::from_row(rows.next().unwrap().unwrap()).unwrap()
}

async fn answered(params: Value, row: &EnvRow, answer: &str) -> f64 {
    let (mut env, _) = start(params, row, None).await;
    let step = run(env.as_mut(), &format!("answer = {}\nFINAL_VAR('answer')", json!(answer))).await;
    assert!(step.terminated, "{step:?}");
    step.reward
}

#[tokio::test]
async fn rows_of_reasoning_are_graded_by_their_verifier() {
    for family in Family::ALL {
        let row = reasoning(espalier_envs::reasoning::id(family));
        let stored = match &row.reward_spec["ground_truth"] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        assert_eq!(answered(json!({}), &row, &stored).await, 1.0, "{}: {stored}", family.name());
        assert_eq!(answered(json!({}), &row, "no idea").await, 0.0, "{}", family.name());
    }
    // Another right answer than the stored one.
    let row = reasoning("reasoning/countdown");
    let other = format!("(({}))", row.reward_spec["ground_truth"].as_str().unwrap());
    assert_eq!(answered(json!({}), &row, &other).await, 1.0, "{other}");
    assert_eq!(answered(json!({"reward": "exact"}), &row, &other).await, 0.0, "unless a parameter says how to grade");
    let mut broken = row.clone();
    broken.reward_spec.insert("facts".to_owned(), json!({}));
    let error = make("rlm", &Map::new(), &broken).err().unwrap().to_string();
    assert!(error.contains("`reward_spec.facts` of row"), "{error}");
}
