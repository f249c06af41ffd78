//! `code`: a program in one turn, graded by tests that are code, as HumanEval and MBPP bring them.
//!
//! The candidate and the tests run in two processes of one sandbox. The tests call the candidate's functions through a
//! pair of pipes that carries data, so nothing that the candidate does to its interpreter (builtins, comparisons,
//! exits, output) reaches the tests; and the tests are read after the candidate's process was made. They passed if
//! their process says so with a word that this module drew.
//!
//! What one interpreter would allow and this does not: tests that put the candidate's own objects to operators (`+`,
//! `<`, `in`, `with`), that ask whether two of them are identical or of what class they are, that look for a global
//! which the candidate changes while it runs, or that redirect the standard output to read what the candidate prints.
//! A program that is right may fail such tests.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use async_trait::async_trait;
use espalier_datasets::error::kind;
use espalier_inference::{Message, Role};
use espalier_process::{Job, Status};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{answer, grader, wasm};
use crate::env::{Action, Env, EnvContext, EnvError, Metrics, Step};
use crate::registry::{ColumnSpec, EnvKind, EnvSpec, ParamSpec};
use crate::rlm::literal;
use crate::row::EnvRow;
use crate::thinking;

const ID: &str = "code";
const EXAMINE: &str = include_str!("examine.py");

/// Where programs run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    /// Natively, in the process sandbox.
    #[default]
    Process,
    /// In the interpreter that is WebAssembly, candidate and tests together.
    Wasm,
}

/// The parameters of `code`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// Where programs run.
    pub runtime: Runtime,
    /// Seconds of a candidate and its tests.
    pub seconds: f64,
    /// Memory in megabytes.
    pub memory_mb: u64,
    /// Whether programs see installed packages.
    pub site_packages: bool,
    /// Whether the prompt says how to answer, and shows the tests of a row that is a list of them.
    pub instructions: bool,
}

impl Default for Params {
    fn default() -> Self {
        Self { runtime: Runtime::Process, seconds: 10.0, memory_mb: 1024, site_packages: true, instructions: true }
    }
}

/// The kind of environment that plays HumanEval and MBPP.
#[derive(Clone, Copy, Debug)]
pub struct Code;

impl EnvKind for Code {
    type Params = Params;

    fn spec(&self) -> EnvSpec {
        EnvSpec {
            id: ID.to_owned(),
            summary: "A program in one turn, graded by tests that are code, as HumanEval and MBPP bring them."
                .to_owned(),
            params: vec![
                ParamSpec {
                    name: "runtime",
                    kind: "one of \"process\", \"wasm\"",
                    default: "\"process\"",
                    doc: "where programs run: natively in the process sandbox, or in the WebAssembly interpreter",
                },
                ParamSpec { name: "seconds", kind: "seconds", default: "10", doc: "time of a candidate and its tests" },
                ParamSpec { name: "memory_mb", kind: "number", default: "1024", doc: "memory, in megabytes" },
                ParamSpec {
                    name: "site_packages",
                    kind: "true or false",
                    default: "true",
                    doc: "whether programs see installed packages (only runtime \"process\")",
                },
                ParamSpec {
                    name: "instructions",
                    kind: "true or false",
                    default: "true",
                    doc: "say how to answer, and show the tests of a row that is a list of them",
                },
            ],
            columns: vec![
                ColumnSpec { name: "prompt", required: true, doc: "the task; HumanEval's is the start of the program" },
                ColumnSpec { name: "test", required: false, doc: "HumanEval: code that defines `check(candidate)`" },
                ColumnSpec { name: "entry_point", required: false, doc: "HumanEval: the function's name" },
                ColumnSpec { name: "test_list", required: false, doc: "MBPP: a list of assertions" },
                ColumnSpec { name: "test_setup_code", required: false, doc: "MBPP: code before the assertions" },
                ColumnSpec {
                    name: "reward_spec.ground_truth",
                    required: false,
                    doc: "the tests as code, or an object of the columns above, where they are no columns",
                },
            ],
        }
    }

    fn check(&self, params: &Params) -> Result<(), EnvError> {
        super::seconds(ID, "seconds", params.seconds)?;
        super::memory(ID, params.memory_mb).map(drop)
    }

    fn make(&self, params: &Arc<Params>, row: &EnvRow) -> Result<Box<dyn Env>, EnvError> {
        let problem = Problem::of(row)?;
        Ok(Box::new(Episode { params: Arc::clone(params), problem, metrics: Metrics::new() }))
    }
}

/// What a row asks.
#[derive(Clone, Debug)]
struct Problem {
    /// The start of the program, where the row gives one.
    prompt: String,
    /// The function that is asked for, where it is named.
    entry: Option<String>,
    /// What each part of the tests is called, and its code.
    tests: Vec<(String, String)>,
    /// The assertions, to be shown.
    shown: Vec<String>,
}

impl Problem {
    fn of(row: &EnvRow) -> Result<Self, EnvError> {
        let truth = row.reward_spec.get("ground_truth");
        let field = |name: &str| {
            let places = [row.columns.get(name), row.extra_info.get(name), row.reward_spec.get(name)];
            let inner = truth.and_then(|truth| truth.get(name));
            places.into_iter().flatten().chain(inner).find(|value| !value.is_null())
        };
        let text = |name: &str| match field(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(other) => Err(invalid(name, format!("must be a text, got {}", kind(other)))),
        };
        let entry = text("entry_point")?.filter(|name| !name.is_empty());
        let mut tests = Vec::new();
        let mut shown = Vec::new();
        if let Some(setup) = text("test_setup_code")?.filter(|setup| !setup.trim().is_empty()) {
            tests.push(("setup".to_owned(), setup));
        }
        let list = field("test_list").filter(|list| !list.as_array().is_some_and(Vec::is_empty));
        if let Some(list) = list {
            let Value::Array(list) = list else {
                return Err(invalid("test_list", format!("must be a list of texts, got {}", kind(list))));
            };
            for (index, test) in list.iter().enumerate() {
                let Value::String(test) = test else {
                    let key = format!("test_list[{index}]");
                    return Err(invalid(&key, format!("must be a text, got {}", kind(test))));
                };
                tests.push((format!("test {}", index + 1), test.clone()));
                shown.push(test.clone());
            }
        } else {
            let test = match text("test")? {
                Some(test) => test,
                None => match truth {
                    Some(Value::String(test)) => test.clone(),
                    _ => {
                        let reason =
                            format!("is missing in row `{}`, and so is `test_list`: nothing to grade by", row.id);
                        return Err(invalid("test", reason));
                    }
                },
            };
            if entry.is_none() && test.matches("check(").count() == 1 && test.contains("def check(") {
                let reason = format!("is missing in row `{}`, whose `test` defines a `check` to be called", row.id);
                return Err(invalid("entry_point", reason));
            }
            let call = match &entry {
                Some(entry) if test.contains("def check(") => format!("check({entry})"),
                _ => String::new(),
            };
            tests.push(("test".to_owned(), test));
            if !call.is_empty() {
                tests.push(("check".to_owned(), call));
            }
        }
        if tests.iter().all(|(name, test)| name == "setup" || says_nothing(test)) {
            let column = if shown.is_empty() { "test" } else { "test_list" };
            return Err(invalid(column, format!("is empty in row `{}`: anything would pass", row.id)));
        }
        if tests.iter().all(|(name, test)| name == "setup" || cannot_fail(test)) {
            let column = if shown.is_empty() { "test" } else { "test_list" };
            let reason = format!("only states a value in row `{}`, and tests nothing: anything would pass", row.id);
            return Err(invalid(column, reason));
        }
        Ok(Self { prompt: row.question(), entry, tests, shown })
    }

    /// What stands before the function in a prompt that is the start of a program: imports, and functions that it may
    /// use. Nothing where the prompt is none.
    fn before(&self) -> String {
        let Some(entry) = self.entry.as_deref().filter(|entry| defines(&self.prompt, entry)) else {
            return String::new();
        };
        let before: Vec<&str> = self.prompt.lines().take_while(|line| !is_definition(line, entry)).collect();
        before.join("\n")
    }

    /// The program of a response, if it has one.
    fn source(&self, response: &str) -> Option<String> {
        let mut blocks = answer::blocks(response);
        let entry = self.entry.as_deref();
        // An example of use may follow the program.
        let defining = entry.and_then(|entry| blocks.iter().rposition(|block| defines(block, entry)));
        let block = match defining {
            Some(index) => Some(blocks.swap_remove(index)),
            None => blocks.pop(),
        };
        let Some(entry) = entry.filter(|entry| defines(&self.prompt, entry)) else {
            return block;
        };
        // A model that only continues texts writes no block.
        let body = block.unwrap_or_else(|| thinking::spoken(response).trim_end().to_owned());
        if body.trim().is_empty() {
            return None;
        }
        let first = body.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let indented = first.starts_with([' ', '\t']);
        if defines(&body, entry) || !(indented || returns(&body)) {
            return Some(format!("{}\n{body}\n", self.before()));
        }
        let body = if indented { body } else { body.lines().map(|line| format!("    {line}\n")).collect() };
        Some(format!("{}\n{body}\n", self.prompt.trim_end_matches([' ', '\t', '\n'])))
    }
}

fn invalid(key: &str, reason: String) -> EnvError {
    EnvError::Invalid { env: ID.to_owned(), key: key.to_owned(), reason }
}

fn is_definition(line: &str, name: &str) -> bool {
    let line = line.strip_prefix("async ").unwrap_or(line);
    let rest = line.strip_prefix("def ").or_else(|| line.strip_prefix("class "));
    rest.and_then(|rest| rest.trim_start().strip_prefix(name))
        .is_some_and(|rest| rest.trim_start().starts_with(['(', ':', '[']))
}

/// Whether there is nothing but blanks and comments.
fn says_nothing(source: &str) -> bool {
    source.lines().map(str::trim).all(|line| line.is_empty() || line.starts_with('#'))
}

/// Whether there are only values: an answer where a test should be.
fn cannot_fail(source: &str) -> bool {
    let nothing = |line: &str| line.is_empty() || line.starts_with('#') || line == "pass";
    source.lines().map(str::trim).all(|line| nothing(line) || literal(line).is_some())
}

/// Whether a text returns from a function that it does not define, so that it is the body of one.
fn returns(source: &str) -> bool {
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    let outside = |line: &str| line.strip_prefix("return").is_some_and(|rest| !rest.starts_with(is_word));
    let function = |line: &str| {
        let line = line.trim_start();
        line.starts_with("def ") || line.starts_with("async def ")
    };
    let within = |line: &str| outside(line.trim_start()) || line.contains(": return");
    source.lines().any(outside) || (!source.lines().any(function) && source.lines().any(within))
}

/// Whether a program defines a function at its top level, or gives the name a value.
fn defines(source: &str, name: &str) -> bool {
    source.lines().any(|line| {
        let assigned = line.strip_prefix(name).is_some_and(|rest| {
            let rest = rest.trim_start();
            (rest.starts_with('=') && !rest.starts_with("==")) || (rest.starts_with(':') && rest.contains('='))
        });
        assigned || is_definition(line, name)
    })
}

/// The imports at a program's top level, one line each.
fn imports(source: &str) -> Vec<&str> {
    let imports = source.lines().filter(|line| line.starts_with("import ") || line.starts_with("from "));
    imports.filter(|line| !line.ends_with(['(', '\\'])).collect()
}

struct Episode {
    params: Arc<Params>,
    problem: Problem,
    metrics: Metrics,
}

/// What became of a candidate.
pub(super) struct Examined {
    pub(super) passed: bool,
    pub(super) verdict: &'static str,
    pub(super) reason: String,
}

#[async_trait]
impl Env for Episode {
    async fn init(&mut self, mut prompt: Vec<Message>, _context: EnvContext) -> Result<Vec<Message>, EnvError> {
        self.metrics.clear();
        let last = prompt.iter_mut().rev().find(|message| message.role == Role::User);
        if let Some(message) = last.filter(|_| self.params.instructions) {
            let asked = &message.content;
            if let Some(entry) = self.problem.entry.as_deref().filter(|entry| defines(asked, entry)) {
                if !asked.contains("```") {
                    message.content = format!(
                        "Complete the function `{entry}`. Answer with the whole program in one code block.\n\n\
                         ```python\n{}\n```",
                        asked.trim_end()
                    );
                }
            } else if let Some(first) = self.problem.shown.first()
                && !asked.contains(first.trim())
            {
                message.content = format!(
                    "{}\n\nThe program must pass these tests:\n\n```python\n{}\n```\n\nAnswer with the whole program \
                     in one code block.",
                    asked.trim_end(),
                    self.problem.shown.join("\n")
                );
            }
        }
        Ok(prompt)
    }

    async fn step(&mut self, action: Action) -> Result<Step, EnvError> {
        let mut step = Step { terminated: true, ..Step::default() };
        let source = self.problem.source(&action.text);
        let answered = source.is_some();
        let examined = match source {
            None => {
                Examined { passed: false, verdict: "no_code", reason: "there is no code in the response".to_owned() }
            }
            Some(source) => {
                step.metadata.insert("parsed_code".to_owned(), json!(source));
                match self.params.runtime {
                    Runtime::Process => self.examine(&source).await?,
                    Runtime::Wasm => {
                        let seconds = super::seconds(ID, "seconds", self.params.seconds)?;
                        let memory = super::memory(ID, self.params.memory_mb)?;
                        wasm::examine(ID, &source, self.problem.entry.as_deref(), &self.problem.tests, seconds, memory)
                            .await?
                    }
                }
            }
        };
        step.reward = f64::from(u8::from(examined.passed));
        step.metadata.insert("verdict".to_owned(), json!(examined.verdict));
        if !examined.reason.is_empty() {
            step.metadata.insert("reason".to_owned(), json!(examined.reason));
        }
        self.metrics.insert("answered".to_owned(), json!(answered));
        self.metrics.insert("correct".to_owned(), json!(examined.passed));
        self.metrics.insert("reward".to_owned(), json!(step.reward));
        Ok(step)
    }

    fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }
}

/// What the tests' process says.
#[derive(Deserialize)]
struct Said {
    word: String,
    verdict: String,
    text: String,
}

impl Episode {
    async fn examine(&self, source: &str) -> Result<Examined, EnvError> {
        let sandbox = super::sandbox(ID, self.params.site_packages).await?;
        let time = super::seconds(ID, "seconds", self.params.seconds)?;
        let word = word();
        let input = json!({
            "word": word,
            "entry": self.problem.entry,
            "imports": imports(source),
            "before": self.problem.before(),
            "tests": self.problem.tests,
        });
        let limits = super::limits(time, time, super::memory(ID, self.params.memory_mb)?);
        let job = Job::python(EXAMINE)
            .with_file("candidate.py", source.as_bytes())
            .with_stdin(input.to_string())
            .with_limits(limits);
        let outcome = sandbox.run(job).await.map_err(|error| grader(ID, &error))?;
        let said = serde_json::from_slice::<Said>(&outcome.stdout.head).ok().filter(|said| said.word == word);
        let wrong = |verdict, reason| Ok(Examined { passed: false, verdict, reason });
        match (outcome.status, said) {
            (Status::Exited(0), Some(said)) => match said.verdict.as_str() {
                "passed" => Ok(Examined { passed: true, verdict: "passed", reason: String::new() }),
                "no_candidate" => wrong("no_candidate", said.text),
                "bad_tests" => Err(EnvError::Grader {
                    env: ID.to_owned(),
                    reason: format!("the row's tests are no Python: {}", said.text),
                }),
                _ => wrong("failed", said.text),
            },
            (Status::TimedOut, _) => wrong("timed_out", format!("took longer than {} s", self.params.seconds)),
            (Status::CpuExceeded, _) => wrong("timed_out", format!("used {} s of CPU time", self.params.seconds)),
            (Status::MemoryExceeded, _) => wrong("memory", format!("used {} MB", self.params.memory_mb)),
            (status, _) => {
                // The candidate can end the tests' process, which gains it nothing.
                let said = outcome.stderr.text();
                let last = said.trim_end().lines().last().unwrap_or_default().to_owned();
                wrong("no_verdict", format!("the tests ended without a verdict: {status:?} {last}"))
            }
        }
    }
}

/// A word that no candidate can know. Not drawn from a seed: results do not depend on it.
fn word() -> String {
    let draw = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", draw(), draw())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(prompt: &str) -> Problem {
        let mut row = EnvRow::ask(prompt);
        row.columns.insert("entry_point".to_owned(), json!("f"));
        row.columns.insert("test".to_owned(), json!("def check(candidate):\n    assert candidate(1) == 2"));
        Problem::of(&row).unwrap()
    }

    #[test]
    fn a_completion_is_appended_and_a_program_is_not() {
        let problem = problem("import math\n\ndef g(x):\n    return x\n\ndef f(x):\n    \"\"\"Adds one.\"\"\"\n");
        let whole = problem.source("```python\ndef f(x):\n    return g(x) + 1\n```").unwrap();
        assert!(whole.contains("import math") && whole.contains("def g") && whole.matches("def f").count() == 1);
        let expected =
            "import math\n\ndef g(x):\n    return x\n\ndef f(x):\n    \"\"\"Adds one.\"\"\"\n    return x + 1\n";
        for response in ["    return x + 1\n", "```\n    return x + 1\n```", "```\nreturn x + 1\n```"] {
            assert_eq!(problem.source(response).unwrap().trim_end(), expected.trim_end(), "{response}");
        }
        assert_eq!(problem.source("  \n"), None);
    }

    #[test]
    fn without_a_prompt_that_is_code_only_a_block_counts() {
        let problem = problem("Write f.");
        assert_eq!(problem.source("def f(x): return 2"), None);
        assert_eq!(problem.source("```\nf = lambda x: 2\n```").as_deref(), Some("f = lambda x: 2"));
    }

    #[test]
    fn a_continuation_may_begin_with_a_newline() {
        let problem = problem("def f(x):\n    \"\"\"Adds one.\"\"\"\n");
        let source = problem.source("\n    return x + 1").unwrap();
        assert!(source.contains("\n    return x + 1"), "{source}");
        assert_eq!(problem.source("<think>def f(x): no</think>\n    return x + 1").unwrap(), source);
    }

    #[test]
    fn a_program_is_not_taken_for_a_body() {
        let problem = problem("import math\ndef f(x):\n    \"\"\"Adds one.\"\"\"\n");
        let whole = "from operator import add as g\nif True:\n    def f(x):\n        return g(x, 1)";
        assert_eq!(problem.source(&format!("```\n{whole}\n```")).unwrap(), format!("import math\n{whole}\n"));
        let example = "```\nf: object = lambda x: x + 1\n```\nUse:\n```\nprint(f(1))\n```";
        assert_eq!(problem.source(example).unwrap(), "import math\nf: object = lambda x: x + 1\n");
        let body = problem.source("```\nif x: return 2\nelse: return 3\n```").unwrap();
        assert!(body.contains("\n    if x: return 2\n    else"), "{body}");
    }

    #[test]
    fn words_differ() {
        assert!(word() != word() && word().len() == 32);
    }
}
