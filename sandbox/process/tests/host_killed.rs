//! A host that is killed takes its jobs along.

#[allow(dead_code, reason = "every test file uses a part")]
mod support;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use espalier_process::session::Line;
use espalier_process::{Job, ProcessLimits};
use support::{alive, sandbox};

const CHILD: &str = "ESPALIER_TEST_HOST_MARKER";

/// Runs itself once more as the host that is killed.
#[tokio::test]
async fn jobs_die_with_their_host() {
    if let Ok(marker) = std::env::var(CHILD) {
        host(marker).await;
        return;
    }
    if sandbox().is_none() {
        return;
    }
    let marker = format!("host-marker-{}-", std::process::id());
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "jobs_die_with_their_host", "--nocapture"])
        .env(CHILD, &marker)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("job is up")), "the host did not start its job");
    // The host carries the marker too.
    assert!(alive(&marker) >= 2);
    child.kill().unwrap();
    child.wait().unwrap();
    // The kernel kills them when the thread that started them ends; the last one closes the pipe that is read here.
    assert_eq!(lines.count(), 0);
    let gone = async {
        while alive(&marker) > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), gone).await.expect("something survived its host");
}

#[expect(clippy::print_stdout, reason = "the other process reads it")]
async fn host(marker: String) {
    let sandbox = sandbox().unwrap();
    let mut job = Job::python("import time\nprint('up', flush=True)\ntime.sleep(600)");
    job.env.push(("MARKER".to_owned(), marker));
    job.limits = ProcessLimits { wall: Duration::from_mins(10), ..ProcessLimits::default() };
    let mut session = sandbox.session(job).await.unwrap();
    assert_eq!(session.line(10).await, Line::Whole(b"up".to_vec()));
    println!("\njob is up");
    let _ = session.line(10).await;
}
