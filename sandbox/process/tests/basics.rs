//! What an honest job sees and gets.

#[allow(dead_code, reason = "every test file uses a part")]
mod support;

use std::time::Duration;

use espalier_process::{Job, ProcessConfig, ProcessError, ProcessLimits, ProcessSandbox, Program, Status, Wall};
use support::{sandbox, text};

#[tokio::test]
async fn a_program_runs_and_its_outputs_and_code_come_back() {
    let Some(sandbox) = sandbox() else { return };
    let code = "import sys\nprint(sys.stdin.read().upper())\nprint('oops', file=sys.stderr)\nsys.exit(3)";
    let outcome = sandbox.run(Job::python(code).with_stdin("hello")).await.unwrap();
    assert_eq!(outcome.status, Status::Exited(3), "{}", outcome.stderr.text());
    assert_eq!(outcome.stdout.text(), "HELLO\n");
    assert_eq!(outcome.stderr.text(), "oops\n");
    assert!(outcome.cpu > Duration::ZERO && outcome.peak_memory_bytes.is_some_and(|bytes| bytes > 1 << 20));
}

#[tokio::test]
async fn files_are_in_the_work_folder() {
    let Some(sandbox) = sandbox() else { return };
    let job = Job::new(Program::Python(vec!["main.py".to_owned()]))
        .with_file("main.py", "from pack.part import value\nimport os\nprint(value, os.getcwd(), sorted(os.listdir()))")
        .with_file("pack/part.py", "value = open('data.bin', 'rb').read()")
        .with_file("data.bin", vec![0, 255]);
    let outcome = sandbox.run(job).await.unwrap();
    assert_eq!(text(&outcome), "b'\\x00\\xff' /tmp/work ['data.bin', 'main.py', 'pack']\n");
}

#[tokio::test]
async fn a_command_runs_with_its_variables_and_no_others() {
    let Some(sandbox) = sandbox() else { return };
    let mut job = Job::new(Program::Command { path: "/usr/bin/env".into(), args: Vec::new() });
    job.env.push(("COLOUR".to_owned(), "red".to_owned()));
    let outcome = sandbox.run(job).await.unwrap();
    let names: Vec<&str> = outcome
        .stdout
        .head
        .split(|byte| *byte == b'\n')
        .filter_map(|line| std::str::from_utf8(line).ok()?.split_once('=').map(|(name, _)| name))
        .collect();
    let expected =
        ["PATH", "HOME", "TMPDIR", "LANG", "PYTHONHASHSEED", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "COLOUR"];
    assert_eq!(names, expected);
}

#[tokio::test]
async fn signals_are_told_apart_from_codes() {
    let Some(sandbox) = sandbox() else { return };
    let outcome = sandbox.run(Job::python("import os\nos.abort()")).await.unwrap();
    assert_eq!(outcome.status, Status::Signalled(libc::SIGABRT));
    let outcome = sandbox.run(Job::python("import os\nos.kill(os.getpid(), 9)")).await.unwrap();
    assert_eq!(outcome.status, Status::Signalled(libc::SIGKILL));
    let outcome = sandbox.run(Job::python("import os\nos._exit(137)")).await.unwrap();
    assert_eq!(outcome.status, Status::Exited(137));
}

#[tokio::test]
async fn what_is_missing_is_an_error_of_the_sandbox() {
    let Some(sandbox) = sandbox() else { return };
    let job = Job::new(Program::Command { path: "/no/such".into(), args: Vec::new() });
    let error = sandbox.run(job).await.unwrap_err();
    assert!(matches!(error, ProcessError::Exec { .. }), "{error}");
    assert!(error.to_string().starts_with("could not execute `/no/such` in the sandbox: No such file"), "{error}");
}

#[tokio::test]
async fn a_job_that_cannot_be_run_is_refused_with_a_reason() {
    let Some(sandbox) = sandbox() else { return };
    for path in ["/etc/passwd", "../x", "a/../b", "", "a//b", "a\0b"] {
        let error = sandbox.run(Job::python("").with_file(path, "")).await.unwrap_err();
        assert!(error.to_string().starts_with("the job's files must be relative paths"), "{error}");
    }
    let limits = ProcessLimits { disk_bytes: 10, ..ProcessLimits::default() };
    let error = sandbox.run(Job::python("").with_file("a", "twelve bytes").with_limits(limits)).await.unwrap_err();
    assert_eq!(error.to_string(), "the job's files must be at most 10 bytes together, got 12");
}

#[test]
fn a_wall_that_is_required_and_missing_is_named() {
    let config = ProcessConfig { cgroup: Some("/no/such".into()), ..ProcessConfig::default() };
    let config = ProcessConfig { require: vec![Wall::CgroupMemory], ..config };
    let error = ProcessSandbox::new(config).unwrap_err();
    assert!(matches!(error, ProcessError::Wall { wall: Wall::CgroupMemory, .. }), "{error}");
    let message = error.to_string();
    assert!(
        message.contains("lacks the wall `cgroup_memory`: `/no/such` is no cgroup folder; to get it, "),
        "{message}"
    );
}

#[test]
fn an_interpreter_that_is_none_is_named() {
    for python in ["/no/such/python", "/bin/false"] {
        let error = ProcessSandbox::new(ProcessConfig { python: python.into(), ..ProcessConfig::default() });
        assert!(matches!(error, Err(ProcessError::Interpreter { .. })), "{error:?}");
    }
}

#[tokio::test]
async fn a_session_is_talked_to_line_by_line() {
    use espalier_process::session::Line;
    let Some(sandbox) = sandbox() else { return };
    let code = "for line in iter(input, 'end'):\n    print(int(line) ** 2, flush=True)\nprint('x' * 100)";
    let mut session = sandbox.session(Job::python(code)).await.unwrap();
    for number in [3, 4] {
        assert!(session.send(format!("{number}\n").as_bytes()).await);
        assert_eq!(session.line(10).await, Line::Whole((number * number).to_string().into_bytes()));
    }
    assert!(session.send(b"end\n").await);
    assert_eq!(session.line(10).await, Line::TooLong);
    let outcome = session.finish().await.unwrap();
    assert_eq!(outcome.status, Status::Exited(0));
    assert_eq!(outcome.stdout.bytes, 5 + 101);
}
