//! Compares pairs of answers: reads lines `{"a": truth, "b": answer}` on standard input, writes lines
//! `{"equal", "note", "steps"}`. `--time N` reads every line first, grades them all N times on one thread and writes the
//! seconds to standard error; `--gsm8k` grades with the `####` grader instead, `b` being a whole response.
#![expect(clippy::print_stderr, reason = "its timings are what it is run for")]

use std::hint::black_box;
use std::io::{BufRead, Write};
use std::time::Instant;

use espalier_graders::{math, numeric};
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize)]
struct Pair {
    a: String,
    b: String,
}

fn math_line(pair: &Pair) -> serde_json::Value {
    match math::equivalent(&pair.a, &pair.b) {
        Ok(verdict) => {
            let note = match &verdict.reason {
                math::Reason::Unread(stop) => format!("{}: {stop}", verdict.reason.name()),
                reason => reason.name().to_owned(),
            };
            json!({"equal": verdict.equal, "note": note, "steps": verdict.steps})
        }
        Err(error) => json!({"equal": null, "note": error.to_string(), "steps": 0}),
    }
}

fn gsm8k(truth: Option<&numeric::Number>, response: &str) -> bool {
    match (numeric::worked_answer(response, false), truth) {
        (Some(answer), Some(truth)) => numeric::equal(&answer, truth),
        _ => false,
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let by_number = arguments.iter().any(|argument| argument == "--gsm8k");
    let rounds = arguments.iter().position(|argument| argument == "--time").map(|at| arguments.get(at + 1));
    let pairs = std::io::stdin().lock().lines().map(|line| Ok(serde_json::from_str::<Pair>(&line?)?));
    if let Some(rounds) = rounds {
        let rounds: u32 = rounds.ok_or("--time needs a number of rounds")?.parse()?;
        let pairs = pairs.collect::<Result<Vec<_>, Box<dyn std::error::Error>>>()?;
        // An environment reads the truth once; a text needs no reading on the other side either.
        let truths: Vec<_> = pairs.iter().map(|pair| numeric::parse(&pair.a)).collect();
        for _ in 0..rounds {
            let start = Instant::now();
            for (pair, truth) in pairs.iter().zip(&truths) {
                if by_number {
                    black_box(gsm8k(truth.as_ref(), &pair.b));
                } else {
                    black_box(math::equivalent(&pair.a, &pair.b).is_ok_and(|verdict| verdict.equal));
                }
            }
            eprintln!("{}", start.elapsed().as_secs_f64());
        }
        return Ok(());
    }
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for pair in pairs {
        let pair = pair.map_err(|error: Box<dyn std::error::Error>| error)?;
        let line = if by_number {
            json!({"equal": gsm8k(numeric::parse(&pair.a).as_ref(), &pair.b)})
        } else {
            math_line(&pair)
        };
        writeln!(out, "{line}")?;
        out.flush()?;
    }
    Ok(())
}
