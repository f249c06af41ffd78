//! The program that tests start. The first argument says what it does; see [`main`].
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;
use std::time::Duration;

use espalier_distributed::{DistributedError, Group, LaunchError, Reduction, Rendezvous, spawn_local};
use tch::{Device, Kind, Tensor};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        // Joins the group, does one of each collective, and says so.
        ["check"] => join(60_000).and_then(|group| check(&group)).map_err(|e| e.to_string()),
        // Joins, and prints whether it could, with a timeout in milliseconds.
        ["join", timeout] => join(number(timeout)).map(|_| println!("joined")).map_err(|e| e.to_string()),
        // Reduces until that fails, with a timeout in milliseconds; then shows that the group refuses at once.
        ["loop", timeout] => join(number(timeout)).and_then(|group| reduce_forever(&group)).map_err(|e| e.to_string()),
        // Launches: the number of ranks, then a command.
        ["launch", nproc, program, args @ ..] => {
            launch(number(nproc) as usize, program, args).map_err(|e| e.to_string())
        }
        _ => Err(format!("unknown arguments {args:?}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(3)
        }
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|e| panic!("expected a number, got {text}: {e}"))
}

fn join(timeout_ms: u64) -> Result<Group, DistributedError> {
    tch::set_num_threads(1);
    Group::join(Rendezvous { timeout: Duration::from_millis(timeout_ms), ..Rendezvous::from_env()? })
}

fn check(group: &Group) -> Result<(), DistributedError> {
    let (rank, world) = (group.rank() as i64, group.world_size() as i64);
    let float = (Kind::Float, Device::Cpu);
    let mut gathered = Tensor::zeros([world], float);
    group.all_gather_into(&mut gathered, &Tensor::full([1], rank, float))?;
    assert_eq!(gathered, Tensor::arange(world, float));
    let mut part = Tensor::zeros([2], float);
    group.reduce_scatter_into(&mut part, &Tensor::ones([2 * world], float))?;
    assert_eq!(part, Tensor::full([2], world, float));
    let mut sum = Tensor::full([1], rank, float);
    group.all_reduce(&mut sum, Reduction::Sum)?;
    assert_eq!(sum.double_value(&[0]), (world * (world - 1) / 2) as f64);
    let mut root = Tensor::full([1], rank, float);
    group.broadcast(&mut root, 1 % world as usize)?;
    assert_eq!(root.int64_value(&[0]), 1 % world);
    group.barrier()?;
    let hosts = group.all_gather_json(&(rank, "x".repeat(rank as usize)))?;
    assert_eq!(hosts.len() as i64, world);
    println!("rank {rank} of {world}: ok");
    Ok(())
}

fn reduce_forever(group: &Group) -> Result<(), DistributedError> {
    let mut tensor = Tensor::zeros([1 << 16], (Kind::Float, Device::Cpu));
    let mut first = true;
    loop {
        if let Err(error) = group.all_reduce(&mut tensor, Reduction::Sum) {
            println!(
                "refused at once: {}",
                group.barrier().is_err_and(|e| matches!(e, DistributedError::Broken { .. }))
            );
            return Err(error);
        }
        if std::mem::take(&mut first) {
            println!("pid {}", std::process::id());
        }
    }
}

fn launch(nproc: usize, program: &str, args: &[&str]) -> Result<(), LaunchError> {
    spawn_local(nproc, program, args, [("LAUNCHED_BY_TEST", "1")])
}
