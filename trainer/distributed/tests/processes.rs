//! Groups of processes: how they meet, and what becomes of them when one dies.

mod support;

use std::net::TcpListener;
use std::process::Command;

use espalier_distributed::LocalStore;
use nix::sys::signal::{Signal, kill};
use support::{Ended, Running, rank_program};

/// Starts ranks that meet at a store of this process.
fn ranks(store: &LocalStore, world: usize, args: &[&str]) -> Vec<Running> {
    let start = |rank| Running::start(Command::new(rank_program()).args(args).envs(store.variables(rank, world)));
    (0..world).map(start).collect()
}

#[test]
fn processes_meet_and_work_together() {
    let store = LocalStore::open().expect("open");
    for (rank, running) in ranks(&store, 3, &["check"]).into_iter().enumerate() {
        let ended = running.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert_eq!(ended.stdout, format!("rank {rank} of 3: ok\n"));
    }
}

#[test]
fn rank_0_opens_the_store_where_no_launcher_has() {
    // Another program may take the port between its choice and its use.
    let mut ended = Vec::new();
    for _ in 0..3 {
        let free = TcpListener::bind("127.0.0.1:0").expect("bound").local_addr().expect("an address").port();
        let start = |rank: usize| {
            Running::start(Command::new(rank_program()).arg("check").envs([
                ("RANK", rank.to_string()),
                ("LOCAL_RANK", rank.to_string()),
                ("WORLD_SIZE", 2.to_string()),
                ("MASTER_ADDR", "localhost".to_owned()),
                ("MASTER_PORT", free.to_string()),
            ]))
        };
        let ranks = [start(0), start(1)];
        let first = ranks.map(Running::end);
        let taken = first[0].stderr.contains("could not open the rendezvous store");
        ended = first.into();
        if !taken {
            break;
        }
    }
    for ended in ended {
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
}

#[test]
fn a_port_in_use_is_an_error_that_says_so() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("bound");
    let port = taken.local_addr().expect("an address").port().to_string();
    let ended = Running::start(Command::new(rank_program()).arg("check").envs([
        ("RANK", "0"),
        ("LOCAL_RANK", "0"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", &port),
    ]))
    .end();
    assert_eq!(ended.code, Some(3));
    let expected = format!("could not open the rendezvous store at 127.0.0.1:{port}: Address already in use");
    assert!(ended.stderr.contains(&expected), "{ended:?}");
    assert!(ended.stderr.contains("choose a free MASTER_PORT"), "{ended:?}");
}

#[test]
fn a_rank_that_was_never_started_is_missed() {
    let store = LocalStore::open().expect("open");
    let variables = store.variables(0, 2);
    let ended = Running::start(Command::new(rank_program()).args(["join", "500"]).envs(variables)).end();
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.stderr.contains("rank 0 of 2: could not join the process group at 127.0.0.1:"), "{ended:?}");
    assert!(ended.stderr.contains("within 500ms"), "{ended:?}");
    assert!(ended.stderr.contains("check that all 2 ranks were started"), "{ended:?}");
}

#[test]
fn a_store_that_nobody_opens_is_missed() {
    let closed = TcpListener::bind("127.0.0.1:0").expect("bound").local_addr().expect("an address").port();
    let ended = Running::start(Command::new(rank_program()).args(["join", "500"]).envs([
        ("RANK", "1"),
        ("LOCAL_RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", &closed.to_string()),
    ]))
    .end();
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.stderr.contains("rank 1 of 2: could not join"), "{ended:?}");
}

/// Three ranks in the middle of their collectives; one gets a signal. What became of the other two?
fn after_signal(signal: Signal, timeout_ms: &str) -> Vec<Ended> {
    let store = LocalStore::open().expect("open");
    let mut running = ranks(&store, 3, &["loop", timeout_ms]);
    for rank in &running {
        rank.line("pid");
    }
    let victim = running.remove(1);
    kill(victim.pid(), signal).expect("signalled");
    let ended: Vec<Ended> = running.into_iter().map(Running::end).collect();
    for (rank, ended) in [0, 2].into_iter().zip(&ended) {
        assert_eq!(ended.code, Some(3), "{ended:?}");
        assert!(ended.stderr.contains(&format!("error: rank {rank}: all_reduce: ")), "{ended:?}");
        assert!(ended.stderr.contains("start"), "says what to do: {ended:?}");
        assert!(ended.stdout.contains("refused at once: true"), "{ended:?}");
    }
    ended
}

#[test]
fn a_killed_rank_ends_the_others() {
    // The timeout is far away: a broken connection is noticed at once.
    for ended in after_signal(Signal::SIGKILL, "100000") {
        assert!(ended.stderr.contains("a connection to another rank broke"), "{ended:?}");
    }
}

#[test]
fn a_stopped_rank_ends_the_others_after_the_timeout() {
    let ended = after_signal(Signal::SIGSTOP, "1500");
    // Whoever times out first leaves, and the other may notice that instead.
    let timed_out = |e: &Ended| e.stderr.contains("not all ranks took part within the group's timeout of 1.5s");
    assert!(ended.iter().any(timed_out), "{ended:?}");
}
