//! Host calls: served on the caller's runtime, awaited without a thread, bounded in number and time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use espalier_sandbox::{CallError, Limits, Outcome, ReplOptions, Sandbox, Value};
use tokio::sync::{Barrier, Notify};

use crate::{ENDLESS, out, raised, run, serving, tight, with};

#[tokio::test]
async fn a_call_returns_its_value() {
    let mut repl = with(serving(|prompt, _| async move { Ok(Value::from(prompt.to_uppercase())) })).await;
    let execution = run(&mut repl, "answer = llm_query('hello')\nprint(answer)").await;
    assert_eq!((execution.stdout.text.as_str(), execution.calls), ("HELLO\n", 1));
}

#[tokio::test]
async fn a_call_that_fails_raises() {
    let options = serving(|_, _| async {
        Err(CallError { type_name: "ValueError".to_owned(), message: "no such model".to_owned() })
    });
    let mut repl = with(options).await;
    assert_eq!(
        out(&mut repl, "try:\n    llm_query('x')\nexcept ValueError as error:\n    print(error)").await,
        "no such model\n"
    );
}

#[tokio::test]
async fn waiting_is_not_execution() {
    let options = serving(|_, _| async {
        // Longer than the block may execute.
        tokio::time::sleep(tight().block * 3).await;
        Ok(Value::from("late"))
    });
    let mut repl = with(options).await;
    let execution = run(&mut repl, "print(llm_query('x'))").await;
    assert_eq!(execution.outcome, Outcome::Completed);
    assert!(execution.waiting >= tight().block * 3);
    assert!(execution.cpu < tight().block);
}

#[tokio::test]
async fn waiting_has_its_own_limit() {
    let mut options = serving(|_, _| std::future::pending());
    options.limits = Limits { waiting: Duration::from_millis(50), ..tight() };
    let mut repl = with(options).await;
    let execution =
        run(&mut repl, "before = 1\ntry:\n    llm_query('x')\nexcept Exception:\n    pass\nafter = 2").await;
    assert_eq!(execution.outcome, Outcome::TimedOut, "{}", execution.stderr.text);
    assert_eq!(out(&mut repl, "print(before)").await, "1\n");
}

#[tokio::test]
async fn sleeping_is_waiting() {
    let mut repl = with(ReplOptions::default()).await;
    let execution = run(&mut repl, "import time\ntime.sleep(0.05)").await;
    assert_eq!(execution.outcome, Outcome::Completed, "{}", execution.stderr.text);
    assert!(execution.waiting >= Duration::from_millis(50));
}

#[tokio::test]
async fn calls_are_bounded_per_block_and_in_all() {
    let mut options = serving(|_, _| async { Ok(Value::None) });
    options.limits = Limits { calls_per_block: 3, calls_total: 5, ..tight() };
    let mut repl = with(options).await;
    let execution = run(&mut repl, "for i in range(4): llm_query('x')").await;
    assert_eq!((raised(&execution), execution.calls), ("RuntimeError", 3));
    let execution = run(&mut repl, "for i in range(3): llm_query('x')").await;
    assert_eq!((raised(&execution), execution.calls), ("RuntimeError", 2));
    repl.reset().await.unwrap();
    assert_eq!(raised(&run(&mut repl, "llm_query('x')").await), "RuntimeError");
}

#[tokio::test]
async fn a_killed_block_does_not_give_its_calls_back_and_replays_none() {
    let served = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&served);
    let options = serving(move |_, _| {
        let number = counter.fetch_add(1, Ordering::SeqCst);
        async move { Ok(Value::Int(number as i64)) }
    });
    let mut repl = with(options).await;
    out(&mut repl, "first = llm_query('a')").await;
    let execution = run(&mut repl, &format!("second = llm_query('b')\n{ENDLESS}")).await;
    assert!(matches!(execution.outcome, Outcome::Killed { .. }), "{:?}", execution.outcome);
    // The state before the block holds the first answer, which was not asked for again.
    assert_eq!(out(&mut repl, "print(first, 'second' in dir())").await, "0 False\n");
    assert_eq!(served.load(Ordering::SeqCst), 2);
    assert_eq!(repl.calls_spent(), 2);
}

#[tokio::test]
async fn a_thousand_calls_wait_at_once() {
    let barrier = Arc::new(Barrier::new(1000));
    let sandbox = Sandbox::shared().unwrap();
    let mut blocks = Vec::new();
    for _ in 0..1000 {
        let barrier = Arc::clone(&barrier);
        // Nobody gets an answer before all have asked.
        let options = serving(move |_, _| {
            let barrier = Arc::clone(&barrier);
            async move {
                barrier.wait().await;
                Ok(Value::Int(1))
            }
        });
        let sandbox = sandbox.clone();
        blocks.push(tokio::spawn(async move {
            let mut repl = sandbox.repl(options).await.unwrap();
            repl.execute("print(llm_query('x'))").await.unwrap().stdout.text
        }));
    }
    for block in blocks {
        assert_eq!(block.await.unwrap(), "1\n");
    }
}

#[tokio::test]
async fn a_dropped_block_cancels_its_call_and_the_repl_goes_on_from_before() {
    let asked = Arc::new(Notify::new());
    let cancelled = Arc::new(Notify::new());
    let (ask, cancel) = (Arc::clone(&asked), Arc::clone(&cancelled));
    let options = serving(move |prompt, context| {
        let (ask, cancel) = (Arc::clone(&ask), Arc::clone(&cancel));
        async move {
            if prompt == "quick" {
                return Ok(Value::from("answer"));
            }
            tokio::spawn(async move {
                context.cancel.cancelled().await;
                cancel.notify_one();
            });
            ask.notify_one();
            std::future::pending().await
        }
    });
    let mut repl = with(options).await;
    out(&mut repl, "kept = llm_query('quick')").await;
    tokio::select! {
        execution = repl.execute("kept = 'changed'\nllm_query('endless')") => panic!("{execution:?}"),
        () = asked.notified() => {}
    }
    cancelled.notified().await;
    assert_eq!(out(&mut repl, "print(kept)").await, "answer\n");
}
