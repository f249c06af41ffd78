//! The trainer: what packing gains, what reinforcement costs around the engine and the model, memory. A step beside
//! transformers and peft is `benches/train_peer.py`'s; adapters in one batch and weight updates are the engine's figures.

use espalier_trainer::{TrainError, bench};

use super::figure::{Better, Figure, Report};
use crate::failure::Failure;
use crate::settings::model_folder;

/// Processes among which the shards are counted.
const PROCESSES: usize = 4;

/// How a figure comes to be.
type Measure<'a> = Box<dyn Fn() -> Result<f64, TrainError> + 'a>;

pub(super) fn measure(report: &mut Report, quick: bool) -> Result<(), Failure> {
    let folder = model_folder("smollm2-135m-instruct");
    let runtime = tokio::runtime::Handle::current();
    let repeat = if quick { 1 } else { 7 };
    let growth_steps = if quick { 25 } else { 200 };
    let figures: [(&'static str, &'static str, f64, Better, Measure<'_>); 4] = [
        ("packing_speedup", "x", 1.8, Better::Higher, Box::new(|| bench::packing_speedup(&folder, repeat))),
        (
            "rl_overhead_pct",
            "%",
            5.0,
            Better::Lower,
            Box::new(|| bench::rl_overhead_percent(&folder, repeat as u64, runtime.clone())),
        ),
        (
            "rss_mb_per_100_steps",
            "MiB",
            1.0,
            Better::Lower,
            Box::new(|| bench::rl_growth_mb(growth_steps, runtime.clone())),
        ),
        // Shards are padded to whole blocks, which shows on the tiny model that is counted.
        ("fsdp_bytes_n4_over_1_4", "x", 1.05, Better::Lower, Box::new(|| bench::shard_excess(PROCESSES))),
    ];
    for (figure, unit, must, better, measure) in figures {
        if report.wants(figure) {
            crate::output::say!("measuring {figure}");
            // Over few steps memory still grows into what it needs.
            let must = if quick && figure == "rss_mb_per_100_steps" { f64::INFINITY } else { must };
            report.add(Figure { figure, value: measure()?, unit, must, better })?;
        }
    }
    Ok(())
}
