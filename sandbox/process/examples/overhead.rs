//! What the walls cost: programs in the sandbox against the same interpreter with nothing around it.
//!
//! `cargo run --release -p espalier-process --example overhead -- PROGRAMS.jsonl ROUNDS`, where each line is a JSON
//! text, a program. Without arguments: `pass`, 50 times.

use std::error::Error;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use espalier_process::{Job, ProcessConfig, ProcessSandbox};

fn median(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(f64::NAN, |time| time.as_secs_f64() * 1000.0)
}

#[expect(clippy::print_stdout, reason = "its output is what it is for")]
#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let programs: Vec<String> = match args.next() {
        Some(path) => {
            let text = std::fs::read_to_string(path)?;
            text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?
        }
        None => vec!["pass".to_owned(); 50],
    };
    let rounds: usize = args.next().map_or(Ok(1), |rounds| rounds.parse())?;
    let sandbox = ProcessSandbox::new(ProcessConfig::default())?;
    println!("walls: {}", sandbox.walls());
    println!("python: {}", sandbox.interpreter().version);
    let (mut bare, mut walled, mut over) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        for program in &programs {
            let began = Instant::now();
            let output = Command::new(&sandbox.interpreter().executable)
                .args(["-s", "-B", "-c", program])
                .stdin(Stdio::null())
                .output()?;
            let alone = began.elapsed();
            let began = Instant::now();
            let outcome = sandbox.run(Job::python(program.clone())).await?;
            let inside = began.elapsed();
            if outcome.status.success() != output.status.success() {
                let said = outcome.stderr.text();
                return Err(format!("{} alone, {:?} in the sandbox: {said}", output.status, outcome.status).into());
            }
            bare.push(alone);
            walled.push(inside);
            over.push(inside.saturating_sub(alone));
        }
    }
    println!("runs: {}", bare.len());
    println!("bare_ms_median: {:.2}", median(&mut bare));
    println!("sandbox_ms_median: {:.2}", median(&mut walled));
    println!("code_overhead_ms: {:.2}", median(&mut over));
    Ok(())
}
