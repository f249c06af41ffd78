//! What `tests/parity/reasoning_gym.py` asks of this crate, as JSON lines.
//!
//! `parity problems COUNT` writes problems of every family; `parity grade` reads objects with `family`, `facts` and
//! `responses`, and writes for each the list of verdicts.

use std::io::{self, BufRead, Write};

use espalier_procedural::draw::Draw;
use espalier_procedural::reasoning::{Family, Level};
use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut out = io::stdout().lock();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["problems", count] => {
            for family in Family::ALL {
                for index in 0..count.parse()? {
                    let level = Level::ALL[index as usize % 5];
                    let problem = family.generate(level, &mut Draw::new(11, index));
                    let line = json!({
                        "family": family.name(), "answer": problem.answer, "text": problem.answer_text(),
                        "facts": problem.facts,
                    });
                    writeln!(out, "{line}")?;
                }
            }
        }
        ["grade"] => {
            for line in io::stdin().lock().lines() {
                let record: Value = serde_json::from_str(&line?)?;
                let family = Family::from_name(record["family"].as_str().unwrap_or_default()).ok_or("no family")?;
                let mut verdicts = Vec::new();
                for response in record["responses"].as_array().ok_or("no responses")? {
                    verdicts.push(family.score(&record["facts"], response.as_str().ok_or("no text")?)?.correct);
                }
                writeln!(out, "{}", json!(verdicts))?;
            }
        }
        _ => return Err("usage: parity problems COUNT, or parity grade".into()),
    }
    Ok(())
}
