//! Nothing stays behind.

use std::sync::Arc;
use std::time::{Duration, Instant};

use espalier_sandbox::{Limits, ReplOptions, Sandbox};
use tokio::sync::Semaphore;

use crate::serving;

/// Mappings, files and threads of this process.
fn held() -> (usize, usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    let files = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
    (maps, files, threads)
}

/// A sandbox of its own, so that other tests' guests are not counted as this one's.
async fn assert_released(before: (usize, usize, usize)) {
    // Other tests run beside this one; a thousand REPLs hold thousands of mappings.
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        let now = held();
        if now.0 < before.0 + 1000 && now.1 < before.1 + 500 && now.2 < before.2 + 100 {
            return;
        }
        assert!(Instant::now() < deadline, "before {before:?}, now {now:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_thousand_repls_dropped_in_the_middle_of_blocks_leave_nothing() {
    let sandbox = Sandbox::shared().unwrap();
    let before = held();
    let mut blocks = Vec::new();
    for _ in 0..1000 {
        let limits = Limits { block: Duration::from_hours(1), ..Limits::default() };
        let mut repl = sandbox.repl(ReplOptions { limits, ..ReplOptions::default() }).await.unwrap();
        blocks.push(tokio::spawn(async move { repl.execute("while True: pass").await }));
    }
    tokio::task::yield_now().await;
    for block in &blocks {
        block.abort();
    }
    for block in blocks {
        assert!(block.await.unwrap_err().is_cancelled());
    }
    assert_released(before).await;
    // The threads are free again.
    let mut repl = sandbox.repl(ReplOptions::default()).await.unwrap();
    assert_eq!(repl.execute("print(1)").await.unwrap().stdout.text, "1\n");
}

#[tokio::test]
async fn a_thousand_repls_dropped_in_the_middle_of_calls_leave_nothing() {
    let sandbox = Sandbox::shared().unwrap();
    let before = held();
    let asked = Arc::new(Semaphore::new(0));
    let mut blocks = Vec::new();
    for _ in 0..1000 {
        let asked = Arc::clone(&asked);
        let options = serving(move |_, _| {
            asked.add_permits(1);
            std::future::pending()
        });
        let mut repl = sandbox.repl(options).await.unwrap();
        blocks.push(tokio::spawn(async move { repl.execute("llm_query('x')").await }));
    }
    drop(asked.acquire_many(1000).await.unwrap());
    for block in &blocks {
        block.abort();
    }
    for block in blocks {
        assert!(block.await.unwrap_err().is_cancelled());
    }
    assert_released(before).await;
}
