//! Limits hold, are typed, and leave the REPL usable.

use std::time::Duration;

use espalier_sandbox::{Context, Limits, Outcome, Repl, ReplOptions, Value};

use crate::{ENDLESS, out, raised, run, tight, with};

async fn tight_repl() -> Repl {
    let mut repl = with(ReplOptions { limits: tight(), ..ReplOptions::default() }).await;
    out(&mut repl, "kept = [1]").await;
    repl
}

/// The REPL is as it was before the block, and works.
async fn assert_unchanged(repl: &mut Repl) {
    assert_eq!(
        out(repl, "kept.append(2)\nprint(kept, sorted(n for n in dir() if n[0] != '_' and n in ('x', 'y')))").await,
        "[1, 2] []\n"
    );
}

#[tokio::test]
async fn a_slow_block_times_out_and_keeps_its_state() {
    let mut repl = tight_repl().await;
    let execution = run(&mut repl, "print('started')\nn = 0\nwhile True:\n    n += 1").await;
    assert_eq!(execution.outcome, Outcome::TimedOut, "{}", execution.stderr.text);
    assert!(!execution.rolled_back);
    assert_eq!(execution.stdout.text, "started\n");
    assert_eq!(out(&mut repl, "print(n > 0, kept)").await, "True [1]\n");
}

#[tokio::test]
async fn a_handler_cannot_swallow_a_timeout() {
    let mut repl = tight_repl().await;
    let code = "n = 0\nwhile True:\n    try:\n        while True:\n            n += 1\n    except BaseException:\n        pass";
    let execution = run(&mut repl, code).await;
    assert!(matches!(execution.outcome, Outcome::TimedOut | Outcome::Killed { .. }), "{:?}", execution.outcome);
    assert_eq!(out(&mut repl, "print(kept)").await, "[1]\n");
}

#[tokio::test]
async fn native_loops_are_killed_and_undone() {
    for code in [ENDLESS] {
        let mut repl = tight_repl().await;
        let execution = run(&mut repl, &format!("x = 1\nkept.append(9)\nprint('printed')\n{code}")).await;
        assert!(matches!(execution.outcome, Outcome::Killed { .. }), "{code}: {:?}", execution.outcome);
        assert!(execution.rolled_back, "{code}");
        assert_eq!(execution.stdout.text, "printed\n", "{code}");
        assert_eq!(execution.variables.len(), 1, "{code}");
        assert_unchanged(&mut repl).await;
    }
}

#[tokio::test]
async fn a_long_native_iteration_ends() {
    let mut repl = tight_repl().await;
    let execution = run(&mut repl, "sum(range(10**12))").await;
    assert!(matches!(execution.outcome, Outcome::TimedOut | Outcome::Killed { .. }), "{:?}", execution.outcome);
    assert_unchanged(&mut repl).await;
}

#[tokio::test]
async fn a_giant_allocation_fails_without_harm() {
    let mut repl = tight_repl().await;
    for code in ["'a' * 10**10", "[0] * 10**9", "bytearray(10**9)", "x = 'b' * (40 << 20)", "10**10**8"] {
        let execution = run(&mut repl, code).await;
        let failed = match &execution.outcome {
            Outcome::MemoryExceeded => true,
            Outcome::Raised { type_name, .. } => type_name == "MemoryError" || type_name == "OverflowError",
            _ => false,
        };
        assert!(failed, "{code}: {:?}", execution.outcome);
    }
    assert_unchanged(&mut repl).await;
}

#[tokio::test]
async fn one_allocation_beyond_the_limit_is_told_from_a_memory_error_that_the_block_raised() {
    let mut repl = tight_repl().await;
    let execution = run(&mut repl, "x = 'b' * (40 << 20)").await;
    assert_eq!(execution.outcome, Outcome::MemoryExceeded, "{}", execution.stderr.text);
    let execution = run(&mut repl, "raise MemoryError('mine')").await;
    assert!(matches!(execution.outcome, Outcome::Raised { .. }), "{:?}", execution.outcome);
    let caught = "try:\n    x = 'b' * (40 << 20)\nexcept MemoryError:\n    print('caught')";
    assert_eq!(out(&mut repl, caught).await, "caught\n");
}

#[tokio::test]
async fn source_that_nests_too_deeply_is_a_syntax_error() {
    let mut repl = tight_repl().await;
    let deep = [
        format!("{}1{}", "(".repeat(20_000), ")".repeat(20_000)),
        format!("x = {}1", "-".repeat(100_000)),
        format!("x = {}1", "not ".repeat(20_000)),
        format!("x = {}1", "lambda: ".repeat(20_000)),
        format!("x = {}1", "1 if 1 else ".repeat(20_000)),
        format!("x = {}", "[".repeat(20_000)),
        "async ".repeat(20_000),
    ];
    for code in deep {
        let execution = run(&mut repl, &code).await;
        assert!(
            matches!(&execution.outcome, Outcome::Raised { type_name, .. } if type_name == "SyntaxError" || type_name == "RecursionError"),
            "{}: {:?}",
            &code[..20],
            execution.outcome
        );
    }
    assert_unchanged(&mut repl).await;
}

#[tokio::test]
async fn a_long_sort_is_interrupted_and_keeps_what_was_assigned() {
    let limits = Limits { block: Duration::from_secs(1), ..Limits::default() };
    let mut repl = with(ReplOptions { limits, ..ReplOptions::default() }).await;
    // One sort takes several times the grace.
    let code = "kept = 1\nnumbers = [(i * 7919) % 400_009 for i in range(400_000)]\nwhile True:\n    sorted(numbers)";
    let execution = run(&mut repl, code).await;
    assert_eq!(execution.outcome, Outcome::TimedOut);
    assert_eq!(out(&mut repl, "print(kept)").await, "1\n");
}

#[tokio::test]
async fn a_growing_block_exceeds_its_memory() {
    let limits = Limits { block: Duration::from_secs(30), ..tight() };
    let mut repl = with(ReplOptions { limits, ..ReplOptions::default() }).await;
    let execution = run(&mut repl, "grown = []\nwhile True:\n    grown.append('x' * 100000)").await;
    assert_eq!(execution.outcome, Outcome::MemoryExceeded, "{}", execution.stderr.text);
    assert_eq!(run(&mut repl, "").await.outcome, Outcome::Completed);
    assert_eq!(out(&mut repl, "print('alive')").await, "alive\n");
}

#[tokio::test]
async fn a_million_items_do_not_fit_two_megabytes() {
    let limits = Limits { memory_bytes: 2 << 20, block: Duration::from_secs(30), ..Limits::default() };
    let mut repl = with(ReplOptions { limits, ..ReplOptions::default() }).await;
    let execution = run(&mut repl, "x = [str(i) for i in range(1000000)]").await;
    assert_eq!(execution.outcome, Outcome::MemoryExceeded, "{}", execution.stderr.text);
}

#[tokio::test]
async fn a_context_bound_later_takes_nothing_from_the_blocks() {
    let limits = Limits { memory_bytes: 24 << 20, block: Duration::from_secs(30), ..Limits::default() };
    let mut repl = with(ReplOptions { limits, ..ReplOptions::default() }).await;
    run(&mut repl, "").await;
    repl.bind_context(Context::new(Value::from("x".repeat(20 << 20)))).await.expect("the context fits");
    assert_eq!(out(&mut repl, "print(len(context), len(bytearray(10 << 20)))").await, "20971520 10485760\n");
}

#[tokio::test]
async fn endless_output_is_bounded_and_counted() {
    let limits = Limits { output_bytes: 1000, ..tight() };
    let mut repl = with(ReplOptions { limits, ..ReplOptions::default() }).await;
    let execution = run(&mut repl, "print('first')\nwhile True:\n    print('x' * 10000)").await;
    assert_eq!(execution.outcome, Outcome::TimedOut);
    assert!(execution.stdout.text.starts_with("first\nxxx"));
    assert!(execution.stdout.text.len() < 1100);
    assert!(execution.stdout.bytes > 100_000, "{}", execution.stdout.bytes);
}

#[tokio::test]
async fn deep_recursion_is_an_exception() {
    let mut repl = tight_repl().await;
    let execution = run(&mut repl, "def f(n): return f(n + 1)\nf(0)").await;
    assert_eq!(raised(&execution), "RecursionError");
    assert_eq!(out(&mut repl, "print(kept)").await, "[1]\n");
}

#[tokio::test]
async fn a_block_may_have_less_time_than_the_repl() {
    let mut repl = with(ReplOptions::default()).await;
    let limits = Limits { block: Duration::from_millis(50), ..Limits::default() };
    let execution = repl.execute_with("while True: pass", &limits).await.unwrap();
    assert_eq!(execution.outcome, Outcome::TimedOut);
}

#[tokio::test]
async fn hooks_that_run_outside_blocks_are_limited_too() {
    let mut repl = tight_repl().await;
    let code = "class Slow:\n    def __repr__(self):\n        while True: pass\nslow = Slow()";
    out(&mut repl, code).await;
    let read = repl.get("slow").await;
    assert!(!matches!(read, Ok(Value::Str(_))), "{read:?}");
    assert_eq!(out(&mut repl, "print(kept)").await, "[1]\n");
}

#[tokio::test]
async fn a_short_block_does_not_wait_for_hogs() {
    let sandbox = espalier_sandbox::Sandbox::shared().unwrap();
    let mut hogs = Vec::new();
    for _ in 0..8 {
        let limits = Limits { block: Duration::from_mins(1), ..Limits::default() };
        let mut hog = sandbox.repl(ReplOptions { limits, ..ReplOptions::default() }).await.unwrap();
        hogs.push(tokio::spawn(async move { hog.execute("while True: pass").await }));
    }
    let mut repl = tight_repl().await;
    for _ in 0..20 {
        out(&mut repl, "x = 1").await;
    }
    // All of that ran while every hog still runs.
    assert!(hogs.iter().all(|hog| !hog.is_finished()));
    for hog in hogs {
        hog.abort();
    }
}

#[tokio::test]
async fn every_limit_is_finite_by_default() {
    let limits = Limits::default();
    assert!(limits.block < Duration::MAX && limits.waiting < Duration::MAX && limits.grace < Duration::MAX);
    assert!(limits.memory_bytes < 1 << 32 && limits.allocation_bytes < 1 << 32);
    assert!(limits.output_bytes < 1 << 30 && limits.value_bytes < 1 << 30);
    assert!(limits.recursion < u32::MAX && limits.calls_per_block < u32::MAX && limits.calls_total < u64::MAX);
}

#[tokio::test]
async fn an_empty_block_runs_where_only_small_pieces_are_free() {
    let limits = Limits { memory_bytes: 128 << 20, ..tight() };
    let mut repl = with(ReplOptions { limits, ..ReplOptions::default() }).await;
    for code in ["x = []\nwhile True:\n    x.append('y' * 1000)", "x = [[]]\nwhile True:\n    x.append(x * 2)"] {
        let execution = run(&mut repl, code).await;
        assert!(!matches!(execution.outcome, Outcome::Completed), "{code}: {:?}", execution.outcome);
        assert_eq!(run(&mut repl, "").await.outcome, Outcome::Completed, "after {code}");
        out(&mut repl, "z = 1\ntry:\n    del x\nexcept NameError:\n    pass").await;
    }
    // What was shown to run is part of the way back, too.
    let killed = run(&mut repl, ENDLESS).await;
    assert!(killed.rolled_back, "{:?}", killed.outcome);
    assert_eq!(out(&mut repl, "print(z)").await, "1\n");
}
