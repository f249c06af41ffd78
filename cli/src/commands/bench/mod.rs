//! `espalier bench`: this machine's figures.
//!
//! | module | what lives there |
//! |---|---|
//! | [`figure`] | a figure, the table for people, the lines for programs |
//! | [`sandbox`] | REPLs: start, block, fork, limits |
//! | [`residency`] | memory per REPL, how many live in 6 GB |
//! | [`python`] | Python's speed against the machine's own `python3` |

mod figure;
mod python;
mod residency;
mod sandbox;

use crate::arguments::{BenchArguments, BenchSubject};
use crate::failure::Failure;

pub(crate) use figure::{Better, Figure, median};

pub(crate) async fn run(arguments: BenchArguments) -> Result<(), Failure> {
    let mut report = figure::Report::new(arguments.json, arguments.only.clone());
    match arguments.subject {
        BenchSubject::Sandbox => sandbox::measure(&mut report, arguments.quick).await?,
        BenchSubject::Rollout | BenchSubject::Engine => {
            return Err(Failure::Usage {
                what: "`espalier bench`".to_owned(),
                expected: "`sandbox`".to_owned(),
                got: format!("{:?}", arguments.subject),
            });
        }
    }
    report.finish()
}
