//! Forks and snapshots continue exactly; what is no snapshot is refused.

use espalier_sandbox::{Limits, LoadOptions, Outcome, Repl, ReplOptions, Sandbox, SandboxError, SnapshotError, Value};

use sha2::{Digest, Sha256};

use crate::{ENDLESS, out, raised, repl, run, serving, tight, with};

const SETUP: &str =
    "import random\nrandom.random()\nd = {i: str(i) for i in range(20000)}\ng = iter(d.items())\nnext(g)";
const GO_ON: &str = "print(next(g), random.random(), len(d))\nd.clear()";

async fn restore(bytes: &[u8]) -> Result<Repl, SandboxError> {
    Sandbox::shared().unwrap().restore(bytes, ReplOptions::default()).await
}

#[tokio::test]
async fn a_fork_goes_on_like_its_parent_and_apart_from_it() {
    let mut parent = repl().await;
    out(&mut parent, SETUP).await;
    let mut fork = parent.fork(None).await.unwrap();
    let mut grandchild = fork.fork(None).await.unwrap();
    let expected = out(&mut parent, GO_ON).await;
    assert_eq!(out(&mut fork, GO_ON).await, expected);
    assert_eq!(out(&mut grandchild, GO_ON).await, expected);
    out(&mut fork, "mine = 1").await;
    assert_eq!(out(&mut parent, "print('mine' in dir())").await, "False\n");
}

#[tokio::test]
async fn a_fork_reseeded_differs_in_randomness_only() {
    let mut parent = repl().await;
    out(&mut parent, SETUP).await;
    let mut fork = parent.fork(Some(99)).await.unwrap();
    let expected = out(&mut parent, "print(len(d), random.random())").await;
    let other = out(&mut fork, "print(len(d), random.random())").await;
    assert_ne!(other, expected);
    assert!(other.starts_with("20000 "));
}

#[tokio::test]
async fn forks_of_a_large_state_are_apart() {
    let mut parent = repl().await;
    out(&mut parent, "big = [bytes([i % 251]) * 1000 for i in range(16000)]").await;
    let mut forks = Vec::new();
    for _ in 0..4 {
        forks.push(parent.fork(None).await.unwrap());
    }
    let check = "print(sum(b[0] for b in big), len(big))";
    let expected = out(&mut parent, check).await;
    out(&mut parent, "big[:] = [b'z'] * 10").await;
    for mut fork in forks {
        assert_eq!(out(&mut fork, check).await, expected);
        out(&mut fork, "big = [b + b'!' for b in big]").await;
        let mut again = fork.fork(None).await.unwrap();
        assert_eq!(out(&mut again, "print(big[7][-1:])").await, "b'!'\n");
    }
    assert_eq!(out(&mut parent, "print(len(big))").await, "10\n");
}

#[tokio::test]
async fn checkpoint_after_checkpoint_keeps_the_state() {
    let mut repl = with(ReplOptions { limits: tight(), ..ReplOptions::default() }).await;
    out(&mut repl, "log = []\nbig = []").await;
    for round in 0..6 {
        let grown = format!("big += ['{round}' * 500 for _ in range(3000)]\nlog.append(len(big))");
        repl.execute_with(&grown, &Limits::default()).await.unwrap();
        let fork = repl.fork(None).await.unwrap();
        let killed = run(&mut repl, &format!("log.append('never')\nbig.clear()\n{ENDLESS}")).await;
        assert!(matches!(killed.outcome, Outcome::Killed { .. }), "{:?}", killed.outcome);
        drop(fork);
    }
    let check = "print(log, len(big), big[0][0], big[-1][-1], sum(len(s) for s in big))";
    assert_eq!(out(&mut repl, check).await, "[3000, 6000, 9000, 12000, 15000, 18000] 18000 0 5 9000000\n");
}

#[tokio::test]
async fn a_snapshot_goes_on_exactly() {
    let mut repl = repl().await;
    out(&mut repl, SETUP).await;
    let bytes = repl.snapshot().await.unwrap();
    let expected = out(&mut repl, GO_ON).await;
    let mut restored = restore(&bytes).await.unwrap();
    assert_eq!(out(&mut restored, GO_ON).await, expected);
    let mut again = restore(&bytes).await.unwrap();
    assert_eq!(out(&mut again, GO_ON).await, expected);
}

#[tokio::test]
async fn a_snapshot_goes_on_where_no_such_repl_was_ever_made() {
    let options = ReplOptions {
        policy: espalier_sandbox::Policy::Strict,
        limits: Limits { recursion: 321, ..Limits::default() },
        functions: vec!["llm_query".to_owned()],
        seed: 11,
        ..ReplOptions::default()
    };
    let go_on = "x += 1\nprint(x, llm_query, [len(n) for n in dir()])";
    let mut repl = with(options.clone()).await;
    let empty = repl.snapshot().await.unwrap();
    out(&mut repl, "x = 1").await;
    let bytes = repl.snapshot().await.unwrap();
    let mut fork = repl.fork(None).await.unwrap();
    let expected = out(&mut repl, go_on).await;
    assert_eq!(out(&mut fork, go_on).await, expected);
    let other = Sandbox::load(LoadOptions::default()).unwrap();
    let mut restored = other.restore(&bytes, options.clone()).await.unwrap();
    assert_eq!(out(&mut restored, go_on).await, expected);
    let mut restored = other.restore(&empty, options).await.unwrap();
    out(&mut restored, "x = 1").await;
    assert_eq!(out(&mut restored, go_on).await, expected);
}

#[tokio::test]
async fn a_damaged_snapshot_is_refused() {
    let mut repl = repl().await;
    let bytes = repl.snapshot().await.unwrap();
    assert!(matches!(restore(b"").await, Err(SandboxError::Snapshot(SnapshotError::NoSnapshot))));
    assert!(matches!(restore(b"something else").await, Err(SandboxError::Snapshot(SnapshotError::NoSnapshot))));
    for length in [9, 40, bytes.len() / 2, bytes.len() - 1] {
        assert!(matches!(restore(&bytes[..length]).await, Err(SandboxError::Snapshot(SnapshotError::Damaged(_)))));
    }
    for position in [60, bytes.len() / 2, bytes.len() - 1] {
        let mut damaged = bytes.clone();
        damaged[position] ^= 1;
        assert!(matches!(restore(&damaged).await, Err(SandboxError::Snapshot(SnapshotError::Damaged(_)))));
    }
    let mut other = bytes.clone();
    other[8] = 77;
    assert!(matches!(
        restore(&other).await,
        Err(SandboxError::Snapshot(SnapshotError::Format { found: 77, expected: 1 }))
    ));
    let mut foreign = bytes;
    foreign[12] ^= 1;
    assert!(matches!(restore(&foreign).await, Err(SandboxError::Snapshot(SnapshotError::Interpreter { .. }))));
}

#[tokio::test]
async fn a_restored_repl_has_the_stricter_limits_and_the_larger_spending() {
    let mut options = serving(|_, _| async { Ok(Value::None) });
    options.limits = Limits { calls_total: 3, ..tight() };
    let mut repl = with(options.clone()).await;
    out(&mut repl, "llm_query('a')\nllm_query('b')").await;
    let bytes = repl.snapshot().await.unwrap();
    options.limits = Limits::default();
    let sandbox = Sandbox::shared().unwrap();
    let mut restored = sandbox.restore(&bytes, options.clone()).await.unwrap();
    assert_eq!(raised(&run(&mut restored, "for i in range(2): llm_query('x')").await), "RuntimeError");
    options.calls_spent = 3;
    let mut restored = sandbox.restore(&bytes, options).await.unwrap();
    assert_eq!(raised(&run(&mut restored, "llm_query('x')").await), "RuntimeError");
}

#[tokio::test]
async fn a_snapshot_larger_than_allowed_is_refused() {
    let mut repl = repl().await;
    out(&mut repl, "big = ['x' * 100000 + str(i) for i in range(300)]").await;
    let bytes = repl.snapshot().await.unwrap();
    let limits = Limits { memory_bytes: 1 << 20, ..Limits::default() };
    let options = ReplOptions { limits, ..ReplOptions::default() };
    let refused = Sandbox::shared().unwrap().restore(&bytes, options).await;
    assert!(matches!(refused, Err(SandboxError::Snapshot(SnapshotError::Memory { .. }))), "{refused:?}");
}

/// A snapshot with another body and a checksum that fits it.
pub(crate) fn forge(bytes: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    const HEADER: usize = 52;
    let mut body = zstd::stream::decode_all(&bytes[HEADER..bytes.len() - 32]).unwrap();
    change(&mut body);
    let body = zstd::bulk::compress(&body, 1).unwrap();
    let mut forged = bytes[..HEADER - 8].to_vec();
    forged.extend_from_slice(&(body.len() as u64).to_le_bytes());
    forged.extend_from_slice(&body);
    let sum = Sha256::digest(&forged);
    forged.extend_from_slice(&sum);
    forged
}

#[tokio::test]
async fn a_forged_counter_gains_nothing() {
    const SPENT: usize = 93;
    let mut options = serving(|_, _| async { Ok(Value::None) });
    options.limits = Limits { calls_total: 2, ..tight() };
    let mut repl = with(options.clone()).await;
    out(&mut repl, "llm_query('a')\nllm_query('b')").await;
    let bytes = repl.snapshot().await.unwrap();
    let forged = forge(&bytes, |body| {
        assert_eq!(body[SPENT..SPENT + 8], 2u64.to_le_bytes());
        body[SPENT..SPENT + 8].fill(0);
    });
    options.calls_spent = repl.calls_spent();
    let mut restored = Sandbox::shared().unwrap().restore(&forged, options).await.unwrap();
    assert_eq!(raised(&run(&mut restored, "llm_query('x')").await), "RuntimeError");
}

#[tokio::test]
async fn forged_memory_does_not_harm_the_host() {
    let mut repl = repl().await;
    out(&mut repl, SETUP).await;
    let bytes = repl.snapshot().await.unwrap();
    for stride in [1_001, 4_099, 65_537] {
        let forged = forge(&bytes, |body| {
            let start = body.len() / 2;
            for position in (start..body.len()).step_by(stride) {
                body[position] ^= 0x55;
            }
        });
        let options = ReplOptions { limits: tight(), ..ReplOptions::default() };
        // Whatever this memory means to the guest: the host answers.
        if let Ok(mut restored) = Sandbox::shared().unwrap().restore(&forged, options).await {
            let _ = restored.execute("print(len(d))").await;
            let _ = restored.snapshot().await;
        }
    }
    assert_eq!(out(&mut repl, "print(len(d))").await, "20000\n");
}
