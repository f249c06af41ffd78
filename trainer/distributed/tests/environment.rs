//! What the launchers' variables say, and what is said when they do not.

use std::collections::HashMap;

use espalier_distributed::{DEFAULT_TIMEOUT, DistributedError, Rendezvous, VariableError};

fn read(variables: &[(&str, &str)]) -> Result<Rendezvous, DistributedError> {
    let map: HashMap<&str, &str> = variables.iter().copied().collect();
    Rendezvous::from_lookup(|name| map.get(name).map(|v| (*v).to_owned()))
}

/// The names that the error complains of, and its text.
#[track_caller]
fn complaints(variables: &[(&str, &str)]) -> (Vec<&'static str>, String) {
    let error = read(variables).expect_err("these variables are wrong");
    let text = error.to_string();
    let DistributedError::Environment(errors) = error else { panic!("expected an environment error, got {text}") };
    (errors.iter().map(|e: &VariableError| e.name).collect(), text)
}

const TORCH: [(&str, &str); 5] =
    [("RANK", "1"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "0"), ("MASTER_ADDR", "node-0"), ("MASTER_PORT", "29500")];

fn torch_but(name: &str, value: Option<&'static str>) -> Vec<(&'static str, &'static str)> {
    let mut variables: Vec<_> = TORCH.into_iter().filter(|(n, _)| *n != name).collect();
    if let (Some(value), Some((name, _))) = (value, TORCH.iter().find(|(n, _)| *n == name)) {
        variables.push((*name, value));
    }
    variables
}

#[test]
fn torchruns_variables_are_read() {
    let found = read(&TORCH).expect("complete");
    let expected = Rendezvous {
        rank: 1,
        world_size: 4,
        local_rank: 0,
        master_addr: "node-0".to_owned(),
        master_port: 29500,
        hosted: false,
        attempt: 0,
        interfaces: Vec::new(),
        timeout: DEFAULT_TIMEOUT,
    };
    assert_eq!(found, expected);
}

#[test]
fn a_store_that_torchruns_agent_opened_is_not_opened_again() {
    let mut variables = TORCH.to_vec();
    variables.extend([("TORCHELASTIC_USE_AGENT_STORE", "True"), ("TORCHELASTIC_RESTART_COUNT", "2")]);
    let found = read(&variables).expect("complete");
    assert!(found.hosted);
    assert_eq!(found.attempt, 2);
    variables.push(("TORCHELASTIC_USE_AGENT_STORE", "False"));
    assert!(!read(&variables).expect("complete").hosted);
}

#[test]
fn interfaces_are_read() {
    let mut variables = TORCH.to_vec();
    variables.push(("GLOO_SOCKET_IFNAME", "eth0, ib0,"));
    assert_eq!(read(&variables).expect("complete").interfaces, ["eth0", "ib0"]);
}

#[test]
fn slurms_variables_stand_in() {
    let slurm = [
        ("SLURM_PROCID", "3"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_LOCALID", "1"),
        ("MASTER_ADDR", "node-0"),
        ("MASTER_PORT", "29500"),
    ];
    let found = read(&slurm).expect("complete");
    assert_eq!((found.rank, found.world_size, found.local_rank), (3, 4, 1));
    let both: Vec<_> = slurm.into_iter().chain(TORCH).collect();
    assert_eq!(read(&both).expect("complete").rank, 1, "torchrun inside a SLURM job");
}

#[test]
fn launchers_are_not_mixed() {
    // Without this, every process of a half-configured job would be SLURM's rank 0.
    let (names, _) = complaints(&[
        ("WORLD_SIZE", "2"),
        ("SLURM_PROCID", "0"),
        ("SLURM_NTASKS", "1"),
        ("SLURM_LOCALID", "0"),
        ("MASTER_ADDR", "node-0"),
        ("MASTER_PORT", "29500"),
    ]);
    assert_eq!(names, ["RANK", "LOCAL_RANK"]);
}

#[test]
fn every_missing_variable_is_named() {
    let (names, text) = complaints(&[]);
    assert_eq!(names, ["WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"]);
    assert!(text.contains("`MASTER_ADDR`: expected the host of rank 0, found nothing"), "{text}");
    assert!(text.contains("torchrun"), "{text}");
    let (names, text) = complaints(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2")]);
    assert_eq!(names, ["SLURM_LOCALID", "MASTER_ADDR", "MASTER_PORT"]);
    assert!(text.contains("scontrol show hostnames"), "{text}");
}

#[test]
fn every_wrong_variable_is_named_with_what_came() {
    for (name, value, expected) in [
        ("RANK", "4", "`RANK`: expected a number from 0, below WORLD_SIZE = 4, found `4`"),
        ("RANK", "one", "found `one`"),
        ("RANK", "-1", "found `-1`"),
        ("WORLD_SIZE", "0", "`WORLD_SIZE`: expected the number of processes, at least 1, found `0`"),
        ("LOCAL_RANK", "9", "`LOCAL_RANK`: expected a number from 0 on this machine, below WORLD_SIZE = 4, found `9`"),
        ("MASTER_ADDR", " ", "`MASTER_ADDR`: expected the host of rank 0, found ` `"),
        ("MASTER_PORT", "65536", "found `65536`"),
        ("MASTER_PORT", "0", "found `0`"),
    ] {
        let (names, text) = complaints(&torch_but(name, Some(value)));
        assert_eq!(names, [name], "{text}");
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn a_world_of_one_needs_no_address() {
    let found = read(&[("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")]).expect("complete");
    let group = espalier_distributed::Group::join(found).expect("alone");
    assert_eq!((group.rank(), group.world_size()), (0, 1));
    group.barrier().expect("passed");
}
