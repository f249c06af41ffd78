//! What each line of stdin costs to grade against `5`: steps, milliseconds and the verdict's reason. Shows where steps
//! and time part.
#![allow(clippy::print_stdout, reason = "a table")]

use std::io::BufRead as _;
use std::time::Instant;

use espalier_graders::math::Truth;

fn main() {
    let truths: Vec<Truth> =
        ["5", "x+1", r"\sin x", "(1,2)"].iter().filter_map(|text| Truth::read(text).ok()).collect();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let (mut most, mut steps, mut reason) = (0.0_f64, 0, "");
        for truth in &truths {
            let begun = Instant::now();
            let verdict = truth.check(&line);
            let took = begun.elapsed().as_secs_f64() * 1e3;
            if took > most {
                (most, steps, reason) = (took, verdict.steps, verdict.reason.name());
            }
        }
        let short: String = line.chars().take(60).collect();
        println!("{most:9.2} ms {steps:8} steps  {reason:12} {short}");
    }
}
