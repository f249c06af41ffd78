//! What all-gather and reduce-scatter move a second between ranks on this machine, and how long a barrier takes.
//!
//! ```text
//! cargo run -p espalier-distributed --example bandwidth [RANKS]
//! ```
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::time::Instant;

use espalier_distributed::{Group, spawn_local};
use tch::{Device, Kind, Tensor};

const ROUNDS: usize = 9;

fn main() -> Result<(), Box<dyn Error>> {
    if std::env::var_os("RANK").is_none() {
        let ranks = std::env::args().nth(1).map_or(Ok(2), |n| n.parse())?;
        return Ok(spawn_local(ranks, std::env::current_exe()?, [""; 0], [("", ""); 0])?);
    }
    let group = Group::from_env()?;
    let world = group.world_size() as i64;
    let show = |text: String| {
        if group.rank() == 0 {
            println!("{text}");
        }
    };
    let barrier = median(|| group.barrier())?;
    show(format!("barrier, {world} ranks: {:.0} us", barrier * 1e6));
    for megabytes in [1, 64] {
        // The size is that of the whole tensor; a rank's shard is a part of it.
        let bytes = megabytes << 20;
        for kind in [Kind::Float, Kind::BFloat16] {
            let elements = bytes / kind.elt_size_in_bytes() as i64 / world * world;
            let mut whole = Tensor::ones([elements], (kind, Device::Cpu));
            let mut part = Tensor::ones([elements / world], (kind, Device::Cpu));
            let gather = median(|| group.all_gather_into(&mut whole, &part))?;
            let scatter = median(|| group.reduce_scatter_into(&mut part, &whole))?;
            let rate = |seconds: f64| bytes as f64 / 1e6 / seconds;
            show(format!(
                "{megabytes} MiB of {kind:?}: all_gather {:.2} ms, {:.0} MB/s; reduce_scatter {:.2} ms, {:.0} MB/s",
                gather * 1e3,
                rate(gather),
                scatter * 1e3,
                rate(scatter)
            ));
        }
    }
    Ok(())
}

/// The median time of some rounds, in seconds.
fn median<E>(mut round: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    round()?;
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        round()?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[ROUNDS / 2])
}
