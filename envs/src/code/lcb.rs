//! `lcb`: LiveCodeBench, one program or function in one turn.
//!
//! Each test runs in a process of its own that knows its input and not what is expected. Whether it passed is decided
//! here. `compat = "skyrl"` takes the answer from the response as skyrl-gym does and compares nested tuples as it does.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use espalier_inference::Message;
use espalier_process::session::Line;
use espalier_process::{Job, ProcessLimits, ProcessSandbox, Session, Status};
use espalier_sandbox::{Value as Data, literal};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::cases::{Case, Cases, Expected};
use super::{answer, decimal, equality, grader};
use crate::Compat;
use crate::env::{Action, Env, EnvContext, EnvError, Metrics, Step};
use crate::registry::{ColumnSpec, EnvKind, EnvSpec, ParamSpec};
use crate::row::EnvRow;

const ID: &str = "lcb";
const STAGE: &str = include_str!("stage.py");

/// Longest answer of the stage, in bytes: what a test wrote is bounded there.
const LINE: usize = 64 << 20;

/// The parameters of `lcb`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// The reward is the share of tests that pass, and all tests are run.
    pub partial: bool,
    /// Seconds of one test.
    pub test_seconds: f64,
    /// Memory in megabytes.
    pub memory_mb: u64,
    /// Whether programs see installed packages.
    pub site_packages: bool,
    /// Grade as another framework does.
    pub compat: Option<Compat>,
}

impl Default for Params {
    fn default() -> Self {
        Self { partial: false, test_seconds: 6.0, memory_mb: 1024, site_packages: true, compat: None }
    }
}

/// The kind of environment that plays LiveCodeBench.
#[derive(Clone, Copy, Debug)]
pub struct Lcb;

impl EnvKind for Lcb {
    type Params = Params;

    fn spec(&self) -> EnvSpec {
        EnvSpec {
            id: ID.to_owned(),
            summary: "Programs and functions in one turn, graded by tests of inputs and outputs.".to_owned(),
            params: vec![
                ParamSpec {
                    name: "partial",
                    kind: "true or false",
                    default: "false",
                    doc: "the reward is the share of tests that pass, and no failure ends the tests",
                },
                ParamSpec { name: "test_seconds", kind: "seconds", default: "6", doc: "time of one test" },
                ParamSpec { name: "memory_mb", kind: "number", default: "1024", doc: "memory, in megabytes" },
                ParamSpec {
                    name: "site_packages",
                    kind: "true or false",
                    default: "true",
                    doc: "whether programs see installed packages",
                },
                ParamSpec {
                    name: "compat",
                    kind: "\"skyrl\"",
                    default: "none",
                    doc: "find the code, end programs and compare tuples as skyrl-gym does",
                },
            ],
            columns: vec![
                ColumnSpec { name: "prompt", required: true, doc: "the problem" },
                ColumnSpec {
                    name: "reward_spec.ground_truth",
                    required: true,
                    doc: "the tests, a list or its JSON text: `input`, `output`, `testtype`, `metadata.func_name`",
                },
            ],
        }
    }

    fn check(&self, params: &Params) -> Result<(), EnvError> {
        super::seconds(ID, "test_seconds", params.test_seconds)?;
        super::memory(ID, params.memory_mb).map(drop)
    }

    fn make(&self, params: &Arc<Params>, row: &EnvRow) -> Result<Box<dyn Env>, EnvError> {
        let cases = Cases::of(ID, row, params.compat.is_none())?;
        Ok(Box::new(Episode { params: Arc::clone(params), cases, metrics: Metrics::new() }))
    }
}

/// How one test ended, with the numbers of LiveCodeBench.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passed.
    Passed,
    /// The time of all tests together was over: -1.
    AllTime,
    /// The answer is wrong: -2.
    Wrong,
    /// It took too long: -3.
    Time,
    /// It raised, or ended otherwise: -4.
    Error,
}

impl Verdict {
    fn code(self) -> Value {
        match self {
            Self::Passed => json!(true),
            Self::AllTime => json!(-1),
            Self::Wrong => json!(-2),
            Self::Time => json!(-3),
            Self::Error => json!(-4),
        }
    }
}

struct Episode {
    params: Arc<Params>,
    cases: Cases,
    metrics: Metrics,
}

#[async_trait]
impl Env for Episode {
    async fn init(&mut self, prompt: Vec<Message>, _context: EnvContext) -> Result<Vec<Message>, EnvError> {
        self.metrics.clear();
        Ok(prompt)
    }

    async fn step(&mut self, action: Action) -> Result<Step, EnvError> {
        let code = match self.params.compat {
            Some(Compat::Skyrl) => answer::last_block_original(&action.text),
            None => answer::last_block(&action.text),
        };
        let mut step = Step { terminated: true, ..Step::default() };
        let Some(code) = code else {
            step.metadata.insert("parsed_code".to_owned(), Value::Null);
            self.record(0.0, 0, false);
            return Ok(step);
        };
        let sandbox = super::sandbox(ID, self.params.site_packages).await?;
        let (verdicts, reason) = self.grade(&sandbox, &code).await?;
        let passed = verdicts.iter().filter(|verdict| **verdict == Verdict::Passed).count();
        let total = self.cases.cases.len();
        step.reward =
            if self.params.partial { passed as f64 / total as f64 } else { f64::from(u8::from(passed == total)) };
        step.metadata.insert("parsed_code".to_owned(), json!(code));
        step.metadata.insert("results".to_owned(), verdicts.iter().map(|verdict| verdict.code()).collect());
        if let Some((test, reason)) = reason {
            step.metadata.insert("failed_test".to_owned(), json!(test));
            step.metadata.insert("reason".to_owned(), json!(reason));
        }
        self.record(step.reward, passed, true);
        Ok(step)
    }

    fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }
}

impl Episode {
    fn record(&mut self, reward: f64, passed: usize, answered: bool) {
        self.metrics.insert("answered".to_owned(), json!(answered));
        self.metrics.insert("correct".to_owned(), json!(passed == self.cases.cases.len()));
        self.metrics.insert("tests_passed".to_owned(), json!(passed));
        self.metrics.insert("reward".to_owned(), json!(reward));
    }

    /// One verdict per test that ran, and the first failure: its number and what happened.
    async fn grade(
        &self,
        sandbox: &ProcessSandbox,
        code: &str,
    ) -> Result<(Vec<Verdict>, Option<(usize, String)>), EnvError> {
        let test_time = super::seconds(ID, "test_seconds", self.params.test_seconds)?;
        let memory = super::memory(ID, self.params.memory_mb)?;
        // As the original bounds all tests together.
        let all_time = (test_time + Duration::from_secs(1)) * self.cases.cases.len() as u32 + Duration::from_secs(5);
        let limits = super::limits(all_time, test_time * 2, memory);
        let mut verdicts = Vec::new();
        let mut failure = None;
        let mut stage: Option<Session> = None;
        for (index, case) in self.cases.cases.iter().enumerate() {
            let mut session = match stage.take() {
                Some(session) => session,
                None => self.open(sandbox, code, &limits).await?,
            };
            let (verdict, reason) = match ask(&mut session, case, test_time).await {
                Answer::Said(said) => {
                    let judged = self.judge(case, &said);
                    stage = Some(session);
                    judged
                }
                Answer::Late => {
                    session.kill();
                    session.finish().await.map_err(|error| grader(ID, &error))?;
                    (Verdict::Time, format!("took longer than {} s", self.params.test_seconds))
                }
                Answer::Gone => gone(session).await?,
            };
            verdicts.push(verdict);
            if verdict != Verdict::Passed {
                failure.get_or_insert((index, reason));
                if !self.params.partial {
                    break;
                }
            }
        }
        if let Some(mut session) = stage {
            session.kill();
            session.finish().await.map_err(|error| grader(ID, &error))?;
        }
        Ok((verdicts, failure))
    }

    async fn open(&self, sandbox: &ProcessSandbox, code: &str, limits: &ProcessLimits) -> Result<Session, EnvError> {
        let job = Job::python(STAGE).with_limits(limits.clone());
        let mut session = sandbox.session(job).await.map_err(|error| grader(ID, &error))?;
        let kind = if self.cases.function.is_some() { "functional" } else { "program" };
        // The original neither awaits threads nor gives a test a folder of its own.
        let whole = self.params.compat.is_none();
        let mut first = json!({"kind": kind, "name": self.cases.function, "code": code, "whole": whole}).to_string();
        first.push('\n');
        // A stage that does not take it is found to be gone when it is asked.
        session.send(first.as_bytes()).await;
        Ok(session)
    }

    fn judge(&self, case: &Case, said: &Said) -> (Verdict, String) {
        if said.cut {
            return (Verdict::Wrong, "wrote more than can be compared".to_owned());
        }
        match (said.tag.as_str(), &case.expected) {
            ("V", Expected::Value(expected)) => {
                let Some(value) = returned(&said.text) else {
                    return (Verdict::Wrong, "returned what is no data".to_owned());
                };
                let value = match (self.params.compat, value) {
                    (Some(Compat::Skyrl), Data::Tuple(items)) => Data::List(items),
                    (_, value) => value,
                };
                if equality::equal(&value, expected, self.params.compat.is_none()) {
                    (Verdict::Passed, String::new())
                } else {
                    (Verdict::Wrong, format!("returned {}", shortened(&said.text)))
                }
            }
            ("E" | "C", _) => (Verdict::Error, shortened(&said.text)),
            // A program that ends itself has said what it had to say.
            (_, Expected::Output(expected)) if exited(said.status) => {
                if decimal::same_output(&said.shown, expected) {
                    (Verdict::Passed, String::new())
                } else {
                    (Verdict::Wrong, format!("wrote {}", shortened(&said.shown)))
                }
            }
            _ => (Verdict::Error, format!("ended before it had answered (wait status {})", said.status)),
        }
    }
}

/// Digits from which an integer is kept out of the literal: a literal may have fewer than a value.
const MANY_DIGITS: usize = 1000;

/// A text that does not occur in another, in one pass over it: `integer 0~`, with the first number that is free.
fn unused_mark(text: &str) -> String {
    const MARK: &str = "integer ";
    let taken: HashSet<usize> = text
        .match_indices(MARK)
        .filter_map(|(at, _)| {
            let rest = &text[at + MARK.len()..];
            let digits = rest.bytes().take(20).take_while(u8::is_ascii_digit).count();
            rest[..digits].parse().ok()
        })
        .collect();
    let free = (0..=taken.len()).find(|number| !taken.contains(number)).unwrap_or_default();
    format!("{MARK}{free}~")
}

/// What a function returned. An integer of more digits than a literal may have stands in it as a text that occurs
/// nowhere else, and takes its place again in the value.
fn returned(text: &str) -> Option<Data> {
    let mark = unused_mark(text);
    let mut integers = Vec::new();
    let mut short = String::new();
    let mut rest = text;
    while let Some((before, integer, after)) = long_integer(rest) {
        short.push_str(before);
        short.push_str(&format!("'{mark}{}'", integers.len()));
        integers.push(integer);
        rest = after;
    }
    let value = literal::parse(&(short + rest)).ok()?;
    Some(if integers.is_empty() { value } else { with_integers(value, &mark, &integers) })
}

/// The first integer of many digits outside the literal's texts, with what stands before and behind it.
fn long_integer(text: &str) -> Option<(&str, &str, &str)> {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            quote @ (b'\'' | b'"') => {
                at += 1;
                while at < bytes.len() && bytes[at] != quote {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
            }
            b'0'..=b'9' => {
                let start = at;
                // Floats and hexadecimal digits belong to one number.
                while at < bytes.len() && matches!(bytes[at], b'0'..=b'9' | b'a'..=b'z' | b'.') {
                    at += 1;
                }
                let number = &bytes[start..at];
                if number.len() > MANY_DIGITS && number.iter().all(u8::is_ascii_digit) {
                    let start = start - usize::from(start > 0 && bytes[start - 1] == b'-');
                    return Some((&text[..start], &text[start..at], &text[at..]));
                }
            }
            _ => at += 1,
        }
    }
    None
}

/// A value with the integers in the places of the texts that stand for them.
fn with_integers(value: Data, mark: &str, integers: &[&str]) -> Data {
    let again = |value| with_integers(value, mark, integers);
    let all = |items: Vec<Data>| items.into_iter().map(again).collect();
    match value {
        Data::Str(text) => {
            let number = text.strip_prefix(mark).and_then(|number| number.parse::<usize>().ok());
            match number.and_then(|number| integers.get(number)) {
                Some(integer) => Data::BigInt((*integer).to_owned()),
                None => Data::Str(text),
            }
        }
        Data::List(items) => Data::List(all(items)),
        Data::Tuple(items) => Data::Tuple(all(items)),
        Data::Set(items) => Data::Set(all(items)),
        Data::Dict(entries) => Data::Dict(entries.into_iter().map(|(key, value)| (again(key), again(value))).collect()),
        other => other,
    }
}

/// Gives a test to the stage and takes its answer.
async fn ask(session: &mut Session, case: &Case, time: Duration) -> Answer {
    let mut line = Value::from(case.input.as_str()).to_string();
    line.push('\n');
    let asked = async {
        if !session.send(line.as_bytes()).await {
            return Answer::Gone;
        }
        match session.line(LINE).await {
            Line::Whole(line) => serde_json::from_slice(&line).map_or(Answer::Gone, Answer::Said),
            Line::TooLong | Line::Closed => Answer::Gone,
        }
    };
    timeout(time, asked).await.unwrap_or(Answer::Late)
}

/// Whether a wait status is that of a process that ended itself.
fn exited(status: i64) -> bool {
    status & 0x7f == 0
}

/// What the stage says of one test.
#[derive(Deserialize)]
struct Said {
    tag: String,
    text: String,
    shown: String,
    status: i64,
    cut: bool,
}

enum Answer {
    Said(Said),
    Late,
    Gone,
}

/// What a stage that is gone says about the test: the candidate ended it, or its limits did.
async fn gone(session: Session) -> Result<(Verdict, String), EnvError> {
    let outcome = session.finish().await.map_err(|error| grader(ID, &error))?;
    Ok(match outcome.status {
        Status::TimedOut => (Verdict::AllTime, "the time of all tests was over".to_owned()),
        Status::CpuExceeded => (Verdict::Time, "used its CPU time up".to_owned()),
        Status::MemoryExceeded => (Verdict::Error, "used its memory up".to_owned()),
        status => {
            let said = outcome.stderr.text();
            let last = shortened(said.trim_end().lines().last().unwrap_or_default());
            (Verdict::Error, format!("ended what runs the tests: {status:?} {last}"))
        }
    })
}

fn shortened(text: &str) -> String {
    const MOST: usize = 200;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_of_long_integers_is_found_in_one_pass() {
        assert_eq!(unused_mark("[1, 'integer ']"), "integer 0~");
        assert_eq!(unused_mark("['integer 0~', 'integer 2', 'integer 99999999999999999999999']"), "integer 1~");
        // A mark that grows by one with every look at the text would take minutes.
        let many: String = (0..300_000).map(|number| format!("integer {number}~")).collect();
        assert_eq!(unused_mark(&many), "integer 300000~");
        let integer = "7".repeat(MANY_DIGITS + 1);
        let value = returned(&format!("['integer {}', 'integer 0~0', -{integer}]", "~".repeat(400_000)));
        let Some(Data::List(items)) = value else { panic!("a list") };
        assert_eq!(items[1..], [Data::Str("integer 0~0".to_owned()), Data::BigInt(format!("-{integer}"))]);
    }
}
