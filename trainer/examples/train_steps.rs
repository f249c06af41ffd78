//! Training steps on demand, for `benches/train_peer.py`: `train_steps MODEL ROWS.json bf16|f32 lora|full`.
//!
//! Each line on stdin asks for one step on all rows (token ids, all but the first learned); each is answered by a line of
//! JSON with its seconds and its loss, the end of the input by one with the peak of resident memory. Where `RANK` and its
//! companions are set this is one process of several.
#![expect(clippy::print_stdout, reason = "a program of its own")]

use std::error::Error;
use std::io::BufRead as _;
use std::path::Path;
use std::time::Instant;

use espalier_distributed::Group;
use espalier_trainer::lora::LoraConfig;
use espalier_trainer::optimizer::{AdamW, OptimizerConfig};
use espalier_trainer::sft;
use espalier_trainer::sft::examples::Example;
use espalier_trainer::{ModelOptions, TrainModel, TrainPrecision};
use serde_json::json;

const USAGE: &str = "usage: train_steps MODEL ROWS.json bf16|f32 lora|full";

fn main() -> Result<(), Box<dyn Error>> {
    espalier_engine::fused::keep_memory();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, rows, precision, kind] = arguments.as_slice() else { return Err(USAGE.into()) };
    let precision = match precision.as_str() {
        "bf16" => TrainPrecision::Bf16,
        "f32" => TrainPrecision::F32,
        _ => return Err(USAGE.into()),
    };
    let lora = match kind.as_str() {
        "lora" => LoraConfig { rank: 16, alpha: 16.0, ..LoraConfig::default() },
        "full" => LoraConfig::default(),
        _ => return Err(USAGE.into()),
    };
    let rows: Vec<Vec<u32>> = serde_json::from_str(&std::fs::read_to_string(rows)?)?;
    let examples: Vec<Example> = rows
        .into_iter()
        .map(|tokens| {
            let weights = (0..tokens.len()).map(|i| f32::from(u8::from(i > 0))).collect();
            Example { tokens, weights }
        })
        .collect();
    let examples: Vec<&Example> = examples.iter().collect();
    let tokens = examples.iter().map(|example| example.tokens.len()).sum();
    let group = if std::env::var_os("RANK").is_some() { Group::from_env()? } else { Group::single() };
    let options = ModelOptions { precision, lora, ..ModelOptions::default() };
    let mut model = TrainModel::load(Path::new(model), options, group)?;
    let config = OptimizerConfig { lr: 1e-5, ..OptimizerConfig::default() };
    let mut optimizer = AdamW::new(config, &model)?;
    println!("{}", json!({"threads": tch::get_num_threads()}));
    for line in std::io::stdin().lock().lines() {
        line?;
        let begun = Instant::now();
        let (loss, _) = sft::step(&mut model, &mut optimizer, &examples, tokens, 1)?;
        println!("{}", json!({"seconds": begun.elapsed().as_secs_f64(), "loss": loss}));
    }
    let held = model.resident_bytes() + optimizer.resident_bytes();
    println!("{}", json!({"peak_mb": peak_mb()?, "held_mb": held as f64 / f64::from(1 << 20)}));
    Ok(())
}

fn peak_mb() -> Result<f64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("/proc names no peak of memory")?;
    Ok(peak.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
}
