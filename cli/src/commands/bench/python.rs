//! Python's speed against the machine's own `python3`, over the programs in `benches/programs`.

use std::time::Duration;

use espalier_sandbox::{Limits, Outcome, ReplOptions, Sandbox};

use super::figure::median;
use crate::failure::Failure;

const PROGRAMS: [(&str, &str); 8] = [
    ("loop", include_str!("../../../../benches/programs/loop.py")),
    ("fib", include_str!("../../../../benches/programs/fib.py")),
    ("str_re", include_str!("../../../../benches/programs/str_re.py")),
    ("json", include_str!("../../../../benches/programs/json_round_trip.py")),
    ("dict", include_str!("../../../../benches/programs/dict_words.py")),
    ("class", include_str!("../../../../benches/programs/class_methods.py")),
    ("sort", include_str!("../../../../benches/programs/sort.py")),
    ("csv", include_str!("../../../../benches/programs/csv_parse.py")),
];

/// The geometric mean over the programs of (time here / time in `python3`), each the median of `rounds`, both CPU
/// time, taken in turns so that a noisy neighbour meets both.
pub(super) async fn slowdown(sandbox: &Sandbox, rounds: usize) -> Result<f64, Failure> {
    let limits = Limits { block: Duration::from_mins(2), memory_bytes: 1 << 30, ..Limits::default() };
    let mut logarithms = Vec::new();
    for (name, program) in PROGRAMS {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            theirs.push(native(program).await?);
            let mut repl = sandbox.repl(ReplOptions { limits: limits.clone(), ..ReplOptions::default() }).await?;
            let execution = repl.execute(program).await?;
            if execution.outcome != Outcome::Completed {
                return Err(Failure::Internal(format!(
                    "`{name}` did not complete: {:?} {}",
                    execution.outcome, execution.stderr.text
                )));
            }
            ours.push(execution.cpu.as_secs_f64());
        }
        let ratio = median(ours) / median(theirs);
        tracing::info!(name, ratio, "slowdown against python3");
        logarithms.push(ratio.ln());
    }
    Ok((logarithms.iter().sum::<f64>() / logarithms.len() as f64).exp())
}

/// CPU seconds of one run in `python3`, compilation included, start-up not.
async fn native(program: &str) -> Result<f64, Failure> {
    const HARNESS: &str = "import sys, time\ncode = sys.argv[1]\nstart = time.process_time()\n\
                           exec(compile(code, 'program', 'exec'), {'__name__': '__main__'})\n\
                           print(time.process_time() - start)";
    let output = tokio::process::Command::new("python3")
        .args(["-c", HARNESS, program])
        .output()
        .await
        .map_err(|error| Failure::Internal(format!("`python3` cannot be started: {error}")))?;
    String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .map_err(|_| Failure::Internal(format!("`python3` failed: {}", String::from_utf8_lossy(&output.stderr).trim())))
}
