//! REPLs: start, block, fork, limits.

use std::time::{Duration, Instant};

use espalier_sandbox::{Limits, Repl, ReplOptions, Sandbox, SandboxError};

use super::figure::{Better, Figure, Report, median};
use super::{python, residency};
use crate::failure::Failure;

/// Blocks that try not to end; each would run for hours.
const HOSTILE: [(&str, &str); 10] = [
    ("loop", "while True: pass"),
    ("swallow", "while True:\n    try:\n        while True: pass\n    except BaseException:\n        pass"),
    ("sum", "sum(range(10**12))"),
    ("power", "x = 10 ** (10 ** 8)"),
    ("regex", "import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')"),
    ("repeat", "x = 'a' * 10 ** 10"),
    ("list", "list(range(10 ** 10))"),
    ("sort", "x = sorted(range(10 ** 7), key=lambda n: -n)"),
    ("print", "while True: print('x' * 10 ** 6)"),
    ("hook", "class A:\n    def __del__(self):\n        while True: pass\nA()"),
];

pub(super) async fn measure(report: &mut Report, quick: bool) -> Result<(), Failure> {
    let sandbox = Sandbox::shared()?;
    let rounds = if quick { 20 } else { 300 };
    // The first REPL pays for page tables and lazily bound code.
    warm(&sandbox).await?;

    if report.wants("repl_new_us") {
        let mut times = Vec::new();
        for _ in 0..rounds {
            let start = Instant::now();
            let mut repl = sandbox.repl(ReplOptions::default()).await?;
            repl.execute("x = 1").await?;
            times.push(micros(start));
        }
        report.add(Figure {
            figure: "repl_new_us",
            value: median(times),
            unit: "us",
            must: 300.0,
            better: Better::Lower,
        })?;
    }
    if report.wants("repl_block_us") {
        let mut repl = sandbox.repl(ReplOptions::default()).await?;
        let mut times = Vec::new();
        for _ in 0..rounds * 10 {
            let start = Instant::now();
            repl.execute("x = 1").await?;
            times.push(micros(start));
        }
        report.add(Figure {
            figure: "repl_block_us",
            value: median(times),
            unit: "us",
            must: 150.0,
            better: Better::Lower,
        })?;
    }
    if report.wants("repl_fork_us") {
        let times = forks(&sandbox, if quick { 3 } else { 20 }).await?;
        report.add(Figure {
            figure: "repl_fork_us",
            value: median(times),
            unit: "us",
            must: 3000.0,
            better: Better::Lower,
        })?;
    }
    if report.wants("limit_overshoot_ms") {
        let worst = overshoot(&sandbox, if quick { 1 } else { 5 }).await?;
        report.add(Figure {
            figure: "limit_overshoot_ms",
            value: worst,
            unit: "ms",
            must: 100.0,
            better: Better::Lower,
        })?;
    }
    if report.wants("trivial_blocks_p99_ms") {
        let value = many_at_once(&sandbox, 512, if quick { 2 } else { 10 }).await?;
        report.add(Figure { figure: "trivial_blocks_p99_ms", value, unit: "ms", must: 60.0, better: Better::Lower })?;
    }
    if report.wants("python_slowdown_geomean") {
        let value = python::slowdown(&sandbox, if quick { 1 } else { 5 }).await?;
        report.add(Figure { figure: "python_slowdown_geomean", value, unit: "x", must: 3.0, better: Better::Lower })?;
    }
    residency::measure(report, &sandbox, quick).await
}

async fn warm(sandbox: &Sandbox) -> Result<(), SandboxError> {
    for _ in 0..5 {
        sandbox.repl(ReplOptions::default()).await?.execute("x = 1").await?;
    }
    Ok(())
}

fn micros(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6
}

/// A REPL with 16 MiB of its own forks; then a block runs in both.
async fn forks(sandbox: &Sandbox, rounds: usize) -> Result<Vec<f64>, SandboxError> {
    let mut times = Vec::new();
    for _ in 0..rounds {
        let mut repl = sandbox.repl(ReplOptions::default()).await?;
        repl.execute("data = [bytearray(1 << 20) for _ in range(16)]\nfor d in data:\n    d[::4096] = b'x' * 256")
            .await?;
        let start = Instant::now();
        let mut fork = repl.fork(None).await?;
        repl.execute("x = 1").await?;
        fork.execute("x = 1").await?;
        times.push(micros(start));
    }
    Ok(times)
}

/// The worst of the hostile blocks' overshoots beyond limit and grace, each the median of `rounds`, milliseconds.
async fn overshoot(sandbox: &Sandbox, rounds: usize) -> Result<f64, SandboxError> {
    let limits = Limits { block: Duration::from_millis(100), ..Limits::default() };
    let allowed = limits.block + limits.grace;
    let mut worst = f64::NEG_INFINITY;
    for (name, code) in HOSTILE {
        let mut times = Vec::new();
        for _ in 0..rounds {
            let mut repl = sandbox.repl(ReplOptions { limits: limits.clone(), ..ReplOptions::default() }).await?;
            let start = Instant::now();
            repl.execute(code).await?;
            times.push((start.elapsed().as_secs_f64() - allowed.as_secs_f64()) * 1e3);
        }
        let time = median(times);
        tracing::info!(name, overshoot_ms = time, "hostile block");
        worst = worst.max(time);
    }
    Ok(worst.max(0.0))
}

/// `count` live REPLs run a trivial block at once; the 99th percentile of their latencies, milliseconds.
async fn many_at_once(sandbox: &Sandbox, count: usize, rounds: usize) -> Result<f64, SandboxError> {
    let mut repls = Vec::new();
    for _ in 0..count {
        let mut repl = sandbox.repl(ReplOptions::default()).await?;
        repl.execute("x = 0").await?;
        repls.push(repl);
    }
    let mut percentiles = Vec::new();
    for _ in 0..rounds {
        let start = Instant::now();
        let blocks = repls.iter_mut().map(|repl: &mut Repl| async move {
            repl.execute("x = 1").await.map(|_| start.elapsed().as_secs_f64() * 1e3)
        });
        let mut latencies = futures::future::try_join_all(blocks).await?;
        latencies.sort_by(f64::total_cmp);
        percentiles.push(latencies[(latencies.len() * 99 / 100).min(latencies.len() - 1)]);
    }
    Ok(median(percentiles))
}
