//! What the tests of this crate share.

use espalier_process::{Outcome, ProcessConfig, ProcessError, ProcessSandbox, Status};

/// Says why a test has nothing to test.
#[expect(clippy::print_stderr, reason = "whoever reads the output of tests is told what they did not test")]
pub(crate) fn skip(reason: impl std::fmt::Display) {
    eprintln!("skipped: {reason}");
}

/// A sandbox with the walls that are required by default, or nothing and a word why where this host has them not.
pub(crate) fn sandbox() -> Option<ProcessSandbox> {
    with(ProcessConfig::default())
}

/// A sandbox of this configuration, likewise.
pub(crate) fn with(config: ProcessConfig) -> Option<ProcessSandbox> {
    match ProcessSandbox::new(config) {
        Ok(sandbox) => Some(sandbox),
        Err(error @ ProcessError::Wall { .. }) => {
            skip(error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// What a job that ended well wrote.
pub(crate) fn text(outcome: &Outcome) -> String {
    assert_eq!(outcome.status, Status::Exited(0), "{}", outcome.stderr.text());
    outcome.stdout.text()
}

/// A job whose processes can be found from the host: their command line has the marker. Returns both.
pub(crate) fn marked(code: &str) -> (espalier_process::Job, String) {
    use std::sync::atomic::{AtomicU64, Ordering};
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    let marker = format!("marker-{}-{}-", std::process::id(), SERIAL.fetch_add(1, Ordering::Relaxed));
    let mut job = espalier_process::Job::python(code);
    job.env.push(("MARKER".to_owned(), marker.clone()));
    if let espalier_process::Program::Python(args) = &mut job.program {
        args.push(marker.clone());
    }
    (job, marker)
}

/// How many processes of this host carry a marker in their command line or environment.
pub(crate) fn alive(marker: &str) -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let carries = |path: std::path::PathBuf| {
        std::fs::read(path).is_ok_and(|content| content.windows(marker.len()).any(|window| window == marker.as_bytes()))
    };
    processes
        .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok()))
        .filter(|entry| carries(entry.path().join("cmdline")) || carries(entry.path().join("environ")))
        .count()
}

/// Runs a job, sees that nothing of it is left, and that the next one is as good as ever.
pub(crate) async fn attacked(sandbox: &ProcessSandbox, code: &str, limits: espalier_process::ProcessLimits) -> Outcome {
    let (job, marker) = marked(code);
    let outcome = sandbox.run(job.with_limits(limits)).await.unwrap();
    assert_eq!(alive(&marker), 0, "something survived");
    let next = sandbox.run(espalier_process::Job::python("print(6 * 7)")).await.unwrap();
    assert_eq!(text(&next), "42\n");
    outcome
}
