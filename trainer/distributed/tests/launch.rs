//! Ranks on this machine: started together, ended together.

mod support;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use espalier_distributed::{LaunchError, RankEnd, spawn_local};
use nix::sys::signal::{Signal, kill};
use support::{Running, rank_program};

const NO_ENV: [(&str, &str); 0] = [];

fn shell(nproc: usize, script: &str, env: &[(&str, &str)]) -> Result<(), LaunchError> {
    spawn_local(nproc, "/bin/sh", ["-c", script], env.iter().copied())
}

/// A launcher in a process of its own.
fn launcher(nproc: usize, script: &str) -> Command {
    let mut command = Command::new(rank_program());
    command.args(["launch", &nproc.to_string(), "/bin/sh", "-c", script]);
    command
}

#[test]
fn launched_ranks_form_a_group() {
    spawn_local(3, rank_program(), ["check"], NO_ENV).expect("all ranks end well");
}

#[test]
fn every_rank_finds_its_variables() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = r#"echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR $EXTRA" > "$FOLDER/$RANK";
        test "$OMP_NUM_THREADS" -ge 1 && test "$MASTER_PORT" -gt 0"#;
    shell(3, script, &[("FOLDER", folder.path().to_str().expect("text")), ("EXTRA", "more")]).expect("all end well");
    for rank in 0..3 {
        let found = std::fs::read_to_string(folder.path().join(rank.to_string())).expect("written");
        assert_eq!(found, format!("{rank} {rank} 3 3 127.0.0.1 more\n"));
    }
}

#[test]
fn cores_are_shared_between_ranks() {
    let cores = std::thread::available_parallelism().expect("known").get();
    let script = |nproc: usize| format!(r#"test "$OMP_NUM_THREADS" = {}"#, (cores / nproc).max(1));
    let launch = |nproc| Running::start(launcher(nproc, &script(nproc)).env_remove("OMP_NUM_THREADS")).end();
    for nproc in [1, 2, cores + 1] {
        let ended = launch(nproc);
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    let kept = Running::start(launcher(2, r#"test "$OMP_NUM_THREADS" = 7"#).env("OMP_NUM_THREADS", "7")).end();
    assert_eq!(kept.code, Some(0), "{kept:?}");
}

#[test]
fn a_rank_that_fails_ends_the_others_and_is_named() {
    // The others would run for hours.
    let script = r#"if [ "$RANK" = 1 ]; then echo "out of luck" >&2; exit 7; else sleep 10000; fi"#;
    let error = shell(3, script, &[]).expect_err("rank 1 fails");
    let text = error.to_string();
    assert!(matches!(error, LaunchError::Rank { rank: 1, world: 3, end: RankEnd::Exit(7), .. }), "{text}");
    assert_eq!(text, "rank 1 of 3 exited with status 7; the other ranks were ended; its last words:\nout of luck");
}

#[test]
fn a_rank_that_is_killed_is_named_with_the_signal() {
    let script = r#"if [ "$RANK" = 2 ]; then kill -KILL $$; else sleep 10000; fi"#;
    let error = shell(3, script, &[]).expect_err("rank 2 is killed");
    assert!(matches!(error, LaunchError::Rank { rank: 2, end: RankEnd::Signal(9), .. }), "{error}");
    assert!(error.to_string().contains("was killed by SIGKILL"), "{error}");
}

#[test]
fn a_program_that_does_not_exist_is_named() {
    let error = spawn_local(2, "/no/such/program", NO_ENV.map(|(a, _)| a), NO_ENV).expect_err("not found");
    assert!(error.to_string().contains("rank 0: could not start `/no/such/program`"), "{error}");
    let error = spawn_local(0, "true", NO_ENV.map(|(a, _)| a), NO_ENV).expect_err("nothing to do");
    assert!(matches!(error, LaunchError::NoRanks), "{error}");
}

#[test]
fn only_rank_0_is_heard_unless_all_are_asked_for() {
    let script = r#"echo "out $RANK"; echo "err $RANK" >&2"#;
    let ended = Running::start(launcher(2, script).env_remove("ESPALIER_RANK_OUTPUT")).end();
    assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("out 0\n", "err 0\n"));
    let ended = Running::start(launcher(2, script).env("ESPALIER_RANK_OUTPUT", "all")).end();
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&ended.stdout), ["[rank 0] out 0", "[rank 1] out 1"]);
    assert_eq!(sorted(&ended.stderr), ["[rank 0] err 0", "[rank 1] err 1"]);
    let ended = Running::start(launcher(2, script).env("ESPALIER_RANK_OUTPUT", "some")).end();
    assert_eq!(ended.code, Some(3));
    assert!(ended.stderr.contains("`ESPALIER_RANK_OUTPUT`: expected `rank0` or `all`, found `some`"), "{ended:?}");
}

#[test]
fn signals_reach_every_rank() {
    let folder = tempfile::tempdir().expect("a folder");
    for (signal, ends) in [(Signal::SIGTERM, true), (Signal::SIGINT, true), (Signal::SIGUSR1, false)] {
        let name = signal.as_str().trim_start_matches("SIG");
        let script = format!(
            r#"trap 'echo {name} > "{folder}/{name}-$RANK"; exit {code}' {name}; echo ready; while :; do sleep 0.05; done"#,
            folder = folder.path().display(),
            code = if ends { 130 } else { 0 },
        );
        let running = Running::start(launcher(2, &script).env("ESPALIER_RANK_OUTPUT", "all"));
        let mut ready = [running.line("[rank "), running.line("[rank ")];
        ready.sort();
        assert_eq!(ready, ["[rank 0] ready", "[rank 1] ready"]);
        kill(running.pid(), signal).expect("signalled");
        let ended = running.end();
        for rank in 0..2 {
            let found = std::fs::read_to_string(folder.path().join(format!("{name}-{rank}")));
            assert_eq!(found.expect("the trap ran"), format!("{name}\n"));
        }
        assert_eq!(ended.code, Some(if ends { 3 } else { 0 }), "{ended:?}");
        assert_eq!(ended.stderr.contains(&format!("ended by {signal}")), ends, "{ended:?}");
    }
}

#[test]
fn ranks_that_were_done_when_a_signal_came_ended_well() {
    let running = Running::start(&mut launcher(1, "trap 'exit 0' INT; echo ready; while :; do sleep 0.05; done"));
    running.line("ready");
    kill(running.pid(), Signal::SIGINT).expect("signalled");
    let ended = running.end();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
}

#[test]
fn a_second_signal_kills_ranks_that_take_their_time() {
    let script = "trap 'echo saving' INT; echo ready; while :; do sleep 0.05; done";
    let running = Running::start(&mut launcher(2, script));
    running.line("ready");
    kill(running.pid(), Signal::SIGINT).expect("signalled");
    running.line("saving");
    kill(running.pid(), Signal::SIGINT).expect("signalled");
    let ended = running.end();
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.stderr.contains("ended by SIGINT, and killed by a second signal"), "{ended:?}");
}

#[test]
fn a_rank_that_fails_while_it_obeys_a_signal_is_named() {
    let script =
        r#"trap 'if [ "$RANK" = 1 ]; then exit 7; else exit 130; fi' INT; echo ready; while :; do sleep 0.05; done"#;
    let running = Running::start(launcher(2, script).env("ESPALIER_RANK_OUTPUT", "all"));
    running.line("[rank ");
    running.line("[rank ");
    kill(running.pid(), Signal::SIGINT).expect("signalled");
    let ended = running.end();
    assert!(ended.stderr.contains("rank 1 of 2 exited with status 7"), "{ended:?}");
}

#[test]
fn ranks_end_with_a_launcher_that_is_killed() {
    let running = Running::start(&mut launcher(1, "echo pid $$; exec sleep 10000"));
    let pid = running.line("pid ");
    let process = Path::new("/proc").join(pid.trim_start_matches("pid "));
    assert!(process.exists());
    kill(running.pid(), Signal::SIGKILL).expect("signalled");
    // Its end closes the pipe that it inherited, which is what this waits for.
    running.end();
    // A process closes its files before it is gone.
    let given_up = Instant::now() + Duration::from_secs(30);
    loop {
        let state = std::fs::read_to_string(process.join("stat")).unwrap_or_default();
        if state.is_empty() || state.contains(") Z ") {
            break;
        }
        assert!(Instant::now() < given_up, "still there: {state}");
        std::thread::yield_now();
    }
}
