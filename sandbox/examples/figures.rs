//! What a REPL costs on this machine: `cargo run -p espalier-sandbox --example figures`.

#![expect(clippy::print_stdout, reason = "a table for people")]

use std::error::Error;
use std::time::{Duration, Instant};

use espalier_sandbox::{Limits, LoadOptions, Repl, ReplOptions, Sandbox};

const SMALL: &str = "x = 1";
/// Dirties 16 MiB beyond the image.
const LARGE: &str = "big = [bytes(8000) + bytes([i % 256]) for i in range(2048)]";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (sandbox, small, large) = match arguments.next() {
        // Another interpreter, with its own two blocks.
        Some(path) => {
            let options = LoadOptions { artifact: Some(std::fs::read(path)?), ..LoadOptions::default() };
            let small = arguments.next().unwrap_or_else(|| SMALL.to_owned());
            let large = arguments.next().unwrap_or_else(|| LARGE.to_owned());
            (Sandbox::load(options)?, small, large)
        }
        None => (Sandbox::shared()?, SMALL.to_owned(), LARGE.to_owned()),
    };
    println!("{:?}", sandbox.report());
    new_repl(&sandbox, &small).await?;
    block(&sandbox, &small).await?;
    fork(&sandbox, &small, &large).await?;
    idle(&sandbox, &small).await?;
    burst(&sandbox, &small).await?;
    overshoot(&sandbox).await?;
    Ok(())
}

fn show(name: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!("{name}: median {:?}, p90 {:?}, p99 {:?}, most {:?}", at(0.5), at(0.9), at(0.99), at(1.0));
}

async fn new_repl(sandbox: &Sandbox, code: &str) -> Result<(), Box<dyn Error>> {
    let mut times = Vec::new();
    for _ in 0..300 {
        let started = Instant::now();
        let mut repl = sandbox.repl(ReplOptions::default()).await?;
        repl.execute(code).await?;
        times.push(started.elapsed());
    }
    show("repl_new", times);
    Ok(())
}

async fn block(sandbox: &Sandbox, code: &str) -> Result<(), Box<dyn Error>> {
    let mut repl = sandbox.repl(ReplOptions::default()).await?;
    let (mut times, mut cpu) = (Vec::new(), Vec::new());
    for _ in 0..2000 {
        let started = Instant::now();
        let execution = repl.execute(code).await?;
        times.push(started.elapsed());
        cpu.push(execution.cpu);
    }
    show("repl_block", times);
    show("repl_block, in the guest", cpu);
    Ok(())
}

async fn fork(sandbox: &Sandbox, small: &str, large: &str) -> Result<(), Box<dyn Error>> {
    let (mut times, mut forks) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        let mut repl = sandbox.repl(ReplOptions::default()).await?;
        repl.execute(large).await?;
        let started = Instant::now();
        let mut fork = repl.fork(None).await?;
        forks.push(started.elapsed());
        fork.execute(small).await?;
        repl.execute(small).await?;
        times.push(started.elapsed());
    }
    show("repl_fork, first block in both included", times);
    show("repl_fork alone", forks);
    Ok(())
}

/// RssAnon, RssShmem and VmPTE of this process, kB.
fn memory() -> Result<(u64, u64, u64), Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    let all = field("RssAnon").zip(field("RssShmem")).zip(field("VmPTE"));
    all.map(|((anonymous, shared), tables)| (anonymous, shared, tables)).ok_or_else(|| "no memory figures".into())
}

async fn idle(sandbox: &Sandbox, code: &str) -> Result<(), Box<dyn Error>> {
    let count = 1000;
    let before = memory()?;
    let started = Instant::now();
    let mut repls: Vec<Repl> = Vec::new();
    for _ in 0..count {
        let mut repl = sandbox.repl(ReplOptions::default()).await?;
        repl.execute(code).await?;
        repls.push(repl);
    }
    let took = started.elapsed();
    let after = memory()?;
    let maps = std::fs::read_to_string("/proc/self/maps")?.lines().count();
    let each = |before: u64, after: u64| after.saturating_sub(before) as f64 / f64::from(count) / 1024.0;
    println!(
        "repl_idle: {:.3} MB anonymous, {:.3} MB page tables, {:.3} MB of files; {count} in {took:?}; {:.1} mappings each",
        each(before.0, after.0),
        each(before.2, after.2),
        each(before.1, after.1),
        maps as f64 / f64::from(count)
    );
    tokio::time::sleep(Duration::from_secs(8)).await;
    let after = memory()?;
    println!(
        "repl_idle, for a while: {:.3} MB anonymous, {:.3} MB page tables",
        each(before.0, after.0),
        each(before.2, after.2)
    );
    let mut times = Vec::new();
    for repl in &mut repls {
        let started = Instant::now();
        repl.execute(code).await?;
        times.push(started.elapsed());
    }
    show("repl_block, after a while", times);
    Ok(())
}

async fn burst(sandbox: &Sandbox, code: &str) -> Result<(), Box<dyn Error>> {
    let mut repls = Vec::new();
    for _ in 0..512 {
        repls.push(sandbox.repl(ReplOptions::default()).await?);
    }
    for _ in 0..3 {
        let started = Instant::now();
        let mut tasks = Vec::new();
        for mut repl in repls.drain(..) {
            let code = code.to_owned();
            tasks.push(tokio::spawn(async move { repl.execute(&code).await.map(|_| (repl, started.elapsed())) }));
        }
        let mut times = Vec::new();
        for task in tasks {
            let (repl, took) = task.await??;
            repls.push(repl);
            times.push(took);
        }
        show("512 blocks at once", times);
    }
    Ok(())
}

async fn overshoot(sandbox: &Sandbox) -> Result<(), Box<dyn Error>> {
    let limits = Limits { block: Duration::from_millis(200), ..Limits::default() };
    for code in [
        "while True: pass",
        "while True:\n  try:\n    while True: pass\n  except BaseException: pass",
        "sum(range(10**12))",
        "10**10**8",
        "import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')",
        "x = [0] * 1000000\nwhile True: x = sorted(x)",
        "x = 'a' * 30000000\nwhile True: y = x.replace('a', 'b')",
    ] {
        let mut worst = Duration::ZERO;
        let mut outcome = String::new();
        for _ in 0..3 {
            let mut repl = sandbox.repl(ReplOptions { limits: limits.clone(), ..ReplOptions::default() }).await?;
            let started = Instant::now();
            let execution = repl.execute(code).await?;
            let over = started.elapsed().saturating_sub(limits.block + limits.grace);
            worst = worst.max(over);
            outcome = format!("{:?}", execution.outcome);
        }
        outcome.truncate(60);
        println!("overshoot {worst:?}: {code:?} {outcome}");
    }
    Ok(())
}
