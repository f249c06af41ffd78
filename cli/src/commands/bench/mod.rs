//! `espalier bench`: this machine's figures.
//!
//! | module | what lives there |
//! |---|---|
//! | [`figure`] | a figure, the table for people, the lines for programs |
//! | [`sandbox`] | REPLs: start, block, fork, limits |
//! | [`residency`] | memory per REPL, how many live in 6 GB |
//! | [`rollout`] | rollouts with a scripted engine |
//! | `engine` | the local engine's decoding, adapters, weight updates |
//! | `train` | the trainer |
//! | [`python`] | Python's speed against the machine's own `python3` |

#[cfg(feature = "torch")]
mod engine;
mod figure;
mod python;
mod residency;
mod rollout;
mod sandbox;
#[cfg(feature = "torch")]
mod train;

use crate::arguments::{BenchArguments, BenchSubject};
use crate::failure::Failure;

pub(crate) async fn run(arguments: BenchArguments) -> Result<(), Failure> {
    let mut report = figure::Report::new(arguments.json, arguments.only.clone());
    match arguments.subject {
        BenchSubject::Sandbox => sandbox::measure(&mut report, arguments.quick).await?,
        BenchSubject::Rollout => rollout::measure(&mut report, arguments.quick).await?,
        #[cfg(feature = "torch")]
        BenchSubject::Engine => engine::measure(&mut report, arguments.quick).await?,
        #[cfg(feature = "torch")]
        BenchSubject::Train => {
            espalier_engine::fused::keep_memory();
            tokio::task::block_in_place(|| train::measure(&mut report, arguments.quick))?;
        }
        #[cfg(not(feature = "torch"))]
        BenchSubject::Engine | BenchSubject::Train => {
            return Err(Failure::Engine("this build has no local engine; build with the `torch` feature".to_owned()));
        }
    }
    report.finish()
}
