//! Under PyPI's torchrun, whose agent hosts the store. Runs where `ESPALIER_TEST_PYTHON` names a Python with torch.
#![expect(clippy::print_stderr, reason = "says why it skips")]

mod support;

use std::process::Command;

use support::{Ended, Running, rank_program};

/// Runs the rank program under torchrun; `None` where there is no torchrun.
fn torchrun(args: &[&str], rank: &[&str]) -> Option<Ended> {
    let Some(python) = std::env::var_os("ESPALIER_TEST_PYTHON") else {
        eprintln!("skipped: ESPALIER_TEST_PYTHON does not name a Python with torch");
        return None;
    };
    let mut command = Command::new(python);
    command.args(["-m", "torch.distributed.run"]).args(args).arg("--no-python").arg(rank_program()).args(rank);
    Some(Running::start(&mut command).end())
}

#[test]
fn ranks_meet_at_the_agents_store() {
    let Some(ended) = torchrun(&["--standalone", "--nproc-per-node", "2"], &["check"]) else { return };
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for rank in 0..2 {
        assert!(ended.stdout.contains(&format!("rank {rank} of 2: ok")), "{ended:?}");
    }
}

#[test]
fn a_single_rank_needs_no_store() {
    let Some(ended) = torchrun(&["--standalone", "--nproc-per-node", "1"], &["check"]) else { return };
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stdout.contains("rank 0 of 1: ok"), "{ended:?}");
}
