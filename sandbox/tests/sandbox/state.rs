//! State persists from block to block, whatever a block does.

use espalier_sandbox::{Context, Limits, Outcome, ReplOptions, SandboxError, Tool, Value};

use crate::{out, raised, repl, run, with};

#[tokio::test]
async fn variables_functions_and_imports_persist() {
    let mut repl = repl().await;
    out(&mut repl, "import math\nx = 20\ndef double(n): return 2 * n").await;
    assert_eq!(out(&mut repl, "print(double(x) + math.floor(2.5))").await, "42\n");
}

#[tokio::test]
async fn an_error_keeps_the_assignments_before_it() {
    let mut repl = repl().await;
    let execution = run(&mut repl, "a = 1\nprint('before')\nb = 1 / 0\nc = 3").await;
    assert_eq!(raised(&execution), "ZeroDivisionError");
    assert_eq!(execution.stdout.text, "before\n");
    assert!(execution.stderr.text.contains("line 3"), "{}", execution.stderr.text);
    assert_eq!(out(&mut repl, "print(a, 'b' in globals() if False else 'b' in dir())").await, "1 False\n");
}

#[tokio::test]
async fn variables_are_listed_with_types() {
    let mut repl = repl().await;
    let execution = run(&mut repl, "xs = [1, 2, 3]\nname = 'abc'\n_hidden = 1").await;
    let listed: Vec<_> =
        execution.variables.iter().map(|v| (v.name.as_str(), v.type_name.as_str(), v.length)).collect();
    assert_eq!(listed, [("xs", "list", Some(3)), ("name", "str", Some(3))]);
    assert_eq!(repl.variables().await.unwrap(), execution.variables);
}

#[tokio::test]
async fn values_cross_with_their_types() {
    let mut repl = repl().await;
    let value = Value::Dict(vec![
        (Value::from("n"), Value::Int(-5)),
        (Value::from("f"), Value::Float(1.5)),
        (Value::from("t"), Value::Tuple(vec![Value::None, Value::Bool(true)])),
        (Value::from("b"), Value::Bytes(vec![0, 255])),
        (Value::from("big"), Value::BigInt("123456789012345678901234567890".to_owned())),
    ]);
    repl.bind("data", value.clone()).await.unwrap();
    assert_eq!(repl.get("data").await.unwrap(), value);
    assert_eq!(out(&mut repl, "print(data['n'] + 1, type(data['t']).__name__)").await, "-4 tuple\n");
}

#[tokio::test]
async fn names_that_do_not_exist_or_are_reserved_are_refused() {
    let mut repl = repl().await;
    assert!(matches!(repl.get("missing").await, Err(SandboxError::NoVariable(name)) if name == "missing"));
    assert!(matches!(repl.final_var("missing").await, Err(SandboxError::NoVariable(_))));
    assert!(matches!(repl.bind("not a name", Value::None).await, Err(SandboxError::Name { .. })));
    assert!(matches!(repl.bind("context", Value::None).await, Err(SandboxError::Name { .. })));
}

#[tokio::test]
async fn a_final_answer_carries_its_value() {
    let mut repl = repl().await;
    let execution = run(&mut repl, "answer = {'k': [1, 2]}\nFINAL_VAR('answer')").await;
    let answer = execution.final_answer.expect("an answer");
    assert_eq!(answer.text, "{'k': [1, 2]}");
    let expected = Value::Dict(vec![(Value::from("k"), Value::List(vec![Value::Int(1), Value::Int(2)]))]);
    assert_eq!(answer.value, expected);
    assert_eq!(repl.final_var("answer").await.unwrap().value, expected);
}

#[tokio::test]
async fn contexts_are_bound_and_restored_after_every_block() {
    let contexts = vec![Context::new(Value::from("first")), Context::new(Value::from("second"))];
    let mut repl = with(ReplOptions { contexts, ..ReplOptions::default() }).await;
    assert_eq!(out(&mut repl, "print(context, context_0, context_1)").await, "first first second\n");
    run(&mut repl, "context = 1\ndel context_1\ndef FINAL_VAR(*a): pass").await;
    assert_eq!(out(&mut repl, "print(context, context_1)").await, "first second\n");
    assert!(run(&mut repl, "y = 2\nFINAL_VAR('y')").await.final_answer.is_some());
    assert_eq!(repl.bind_context(Context::new(Value::from("third"))).await.unwrap(), 2);
    assert_eq!(out(&mut repl, "print(context_2)").await, "third\n");
}

#[tokio::test]
async fn large_contexts_bind() {
    let text = "x".repeat(10 << 20);
    let contexts = vec![Context::new(Value::from("y")), Context::new(Value::from(text))];
    let mut repl = with(ReplOptions { contexts, ..ReplOptions::default() }).await;
    assert_eq!(out(&mut repl, "print(len(context), len(context_1))").await, "1 10485760\n");
}

#[tokio::test]
async fn very_large_contexts_bind() {
    if std::env::var_os("ESPALIER_TEST_LARGE").is_none() {
        return;
    }
    let contexts = vec![Context::new(Value::from("x".repeat(200 << 20)))];
    let mut repl = with(ReplOptions { contexts, ..ReplOptions::default() }).await;
    assert_eq!(out(&mut repl, "print(len(context))").await, "209715200\n");
}

#[tokio::test]
async fn python_tools_work() {
    let tools = vec![Tool::Python {
        name: "triple".to_owned(),
        description: "Three times a number.".to_owned(),
        source: "def triple(n):\n    return 3 * n\n".to_owned(),
    }];
    let mut repl = with(ReplOptions { tools, ..ReplOptions::default() }).await;
    run(&mut repl, "triple = None").await;
    assert_eq!(out(&mut repl, "print(triple(14))").await, "42\n");
}

#[tokio::test]
async fn reset_goes_back_to_the_setup() {
    let contexts = vec![Context::new(Value::List(vec![Value::Int(1)]))];
    let mut repl = with(ReplOptions { contexts, ..ReplOptions::default() }).await;
    run(&mut repl, "context.append(2)\nx = 1").await;
    assert_eq!(out(&mut repl, "print(context)").await, "[1, 2]\n");
    repl.reset().await.unwrap();
    assert_eq!(out(&mut repl, "print(context)").await, "[1]\n");
    assert!(matches!(repl.get("x").await, Err(SandboxError::NoVariable(_))));
}

#[tokio::test]
async fn echo_prints_a_trailing_expression() {
    let mut repl = with(ReplOptions { echo: true, ..ReplOptions::default() }).await;
    assert_eq!(out(&mut repl, "x = 'a'\nx * 3").await, "'aaa'\n");
}

#[tokio::test]
async fn the_same_seed_gives_the_same_randomness() {
    let code = "import random, uuid\nprint(random.random(), uuid.uuid4())";
    let mut outputs = Vec::new();
    for seed in [1, 1, 2] {
        let mut repl = with(ReplOptions { seed, ..ReplOptions::default() }).await;
        outputs.push(out(&mut repl, code).await);
    }
    assert_eq!(outputs[0], outputs[1]);
    assert_ne!(outputs[0], outputs[2]);
}

#[tokio::test]
async fn the_first_repl_of_its_kind_is_like_the_later_ones() {
    let code = "import random, os\ndef f(): pass\nprint(random.random(), os.urandom(4), repr(f), len(context))";
    let mut outputs = Vec::new();
    // Sizes of contexts, functions and seeds differ; the process has made such REPLs before or not.
    for (recursion, size, seed) in [(901, 10, 5), (901, 10, 5), (902, 10, 5), (901, 10, 6), (901, 11, 5)] {
        let options = ReplOptions {
            seed,
            contexts: vec![Context::new(Value::from("x".repeat(size)))],
            limits: Limits { recursion, ..Limits::default() },
            ..ReplOptions::default()
        };
        outputs.push(out(&mut with(options).await, code).await);
    }
    assert_eq!(outputs[0], outputs[1]);
    assert_eq!(outputs[0], outputs[2]);
    assert_ne!(outputs[0], outputs[3]);
    assert_eq!(outputs[0].replace(" 10\n", " 11\n"), outputs[4]);
}

#[tokio::test]
async fn many_kinds_of_repls_at_once_are_each_their_own() {
    let mut open = Vec::new();
    for index in 0..60u32 {
        open.push(tokio::spawn(async move {
            let limits = Limits { recursion: 500 + index % 20, ..Limits::default() };
            let functions = if index % 2 == 0 { vec!["llm_query".to_owned()] } else { Vec::new() };
            let mut repl = with(ReplOptions { limits, functions, seed: 3, ..ReplOptions::default() }).await;
            out(&mut repl, "import sys, random\nprint(sys.getrecursionlimit(), 'llm_query' in dir(), random.random())")
                .await
        }));
    }
    let mut random = None;
    for (index, opened) in open.into_iter().enumerate() {
        let printed = opened.await.unwrap();
        let fields: Vec<_> = printed.split_whitespace().map(str::to_owned).collect();
        assert_eq!(fields[0], (500 + index % 20).to_string(), "{printed}");
        assert_eq!(*random.get_or_insert_with(|| fields[2].clone()), fields[2]);
    }
}

#[tokio::test]
async fn a_deterministic_repl_has_a_clock_of_its_own() {
    let code = "import time\na = time.time()\ntime.sleep(3600)\nprint(a, time.time() - a > 3599)";
    let mut outputs = Vec::new();
    for _ in 0..2 {
        let mut repl = with(ReplOptions { deterministic: true, ..ReplOptions::default() }).await;
        outputs.push(out(&mut repl, code).await);
    }
    assert_eq!(outputs[0], outputs[1]);
    assert!(outputs[0].ends_with("True\n"), "{}", outputs[0]);
}

#[tokio::test]
async fn an_exit_is_an_exception_like_others() {
    let mut repl = repl().await;
    let execution = run(&mut repl, "raise SystemExit(3)").await;
    assert!(matches!(execution.outcome, Outcome::Raised { ref type_name, .. } if type_name == "SystemExit"));
    assert_eq!(out(&mut repl, "print('alive')").await, "alive\n");
}
