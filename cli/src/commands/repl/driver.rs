//! `espalier repl --json`: one object per line in, one per line out, in the order of the lines.
//!
//! While a block waits for a call, the next line must answer it (`return` or `raise`).

use std::collections::BTreeMap;

use espalier_sandbox::{CallError, Context, Limits, Repl, ReplOptions, Sandbox, SandboxError, Value};
use espalier_sandbox_protocol::HostCall;
use serde_json::{Map, Value as Json, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, Stdin};
use tokio::sync::mpsc::UnboundedReceiver;

use super::calls::PendingCall;
use super::lines::{self, BadLine, FIRST_REPL, Line, Order, SnapshotSource};
use crate::failure::Failure;
use crate::output::{self, outln};
use espalier_sandbox_server::value as json_value;

/// Longest line that is read: a 200 MB context with room for escapes.
const MAX_LINE: u64 = 1 << 30;

pub(super) async fn run(
    sandbox: &Sandbox,
    options: ReplOptions,
    calls: Option<UnboundedReceiver<PendingCall>>,
) -> Result<(), Failure> {
    let first = sandbox.repl(options.clone()).await?;
    let mut driver = Driver {
        sandbox,
        options,
        repls: BTreeMap::from([(FIRST_REPL.to_owned(), first)]),
        next_name: 1,
        input: Input { lines: BufReader::new(tokio::io::stdin()), number: 0 },
        calls,
    };
    while let Some(line) = driver.input.next().await? {
        let answer = match line {
            Ok(line) => {
                let id = line.id.clone();
                let mut answer = driver.serve(line).await?;
                if let Some(id) = id {
                    answer.insert("id".into(), id);
                }
                answer
            }
            Err(refused) => refused,
        };
        write_line(&Json::Object(answer))?;
    }
    Ok(())
}

struct Driver<'a> {
    sandbox: &'a Sandbox,
    options: ReplOptions,
    repls: BTreeMap<String, Repl>,
    next_name: u64,
    input: Input,
    calls: Option<UnboundedReceiver<PendingCall>>,
}

type Answer = Map<String, Json>;

fn refusal(reason: String) -> Answer {
    Map::from_iter([("error".to_owned(), json!({"type": "request", "message": reason}))])
}

fn done(key: &str, value: impl Into<Json>) -> Answer {
    Map::from_iter([(key.to_owned(), value.into())])
}

impl Driver<'_> {
    async fn serve(&mut self, line: Line) -> Result<Answer, Failure> {
        let name = line.repl;
        let order = match line.order {
            Order::Restore { source } => return Ok(self.restore(source).await),
            Order::New => return Ok(self.add_fresh().await),
            order => order,
        };
        let Some(repl) = self.repls.get_mut(&name) else {
            return Ok(refusal(format!("no REPL `{name}`; `fork` and `restore` answer the names of new ones")));
        };
        let answer = match order {
            Order::Execute { code, timeout } => {
                let limits =
                    Limits { block: timeout.unwrap_or(self.options.limits.block), ..self.options.limits.clone() };
                let block = repl.execute_with(&code, &limits);
                match serve_calls(block, &mut self.calls, &mut self.input, &name).await? {
                    Ok(execution) => Ok(lines::executed(&execution)),
                    Err(error) => Err(error),
                }
            }
            Order::Fork { reseed } => match repl.fork(reseed).await {
                Ok(fork) => Ok(done("repl", self.add(fork))),
                Err(error) => Err(error),
            },
            Order::Snapshot { file } => match repl.snapshot().await {
                Ok(bytes) => Ok(keep_snapshot(&bytes, file)),
                Err(error) => Err(error),
            },
            Order::Bind { name: Some(variable), value } => {
                repl.bind(&variable, value).await.map(|()| done("bound", variable))
            }
            Order::Bind { name: None, value } => {
                repl.bind_context(Context::new(value)).await.map(|index| done("bound", format!("context_{index}")))
            }
            Order::Get { name } => repl.get(&name).await.map(|value| {
                let mut answer = done("value", json_value::to_json(&value));
                answer.insert("type".into(), value.type_name().into());
                answer
            }),
            Order::Reset => repl.reset().await.map(|()| done("reset", true)),
            Order::Close => {
                self.repls.remove(&name);
                Ok(done("closed", name.clone()))
            }
            Order::Return { .. } => return Ok(refusal("no call is pending".to_owned())),
            Order::Restore { .. } | Order::New => unreachable!("served above"),
        };
        Ok(answer.unwrap_or_else(|error| refusal(error.to_string())))
    }

    async fn add_fresh(&mut self) -> Answer {
        match self.sandbox.repl(self.options.clone()).await {
            Ok(repl) => done("repl", self.add(repl)),
            Err(error) => refusal(error.to_string()),
        }
    }

    async fn restore(&mut self, source: SnapshotSource) -> Answer {
        let bytes = match source {
            SnapshotSource::Inline(text) => lines::from_base64(&text),
            SnapshotSource::File(file) => std::fs::read(&file).map_err(|error| format!("`{file}`: {error}")),
        };
        match bytes {
            Ok(bytes) => match self.sandbox.restore(&bytes, self.options.clone()).await {
                Ok(repl) => done("repl", self.add(repl)),
                Err(error) => refusal(error.to_string()),
            },
            Err(reason) => refusal(reason),
        }
    }

    fn add(&mut self, repl: Repl) -> String {
        let name = self.next_name.to_string();
        self.next_name += 1;
        self.repls.insert(name.clone(), repl);
        name
    }
}

/// Writes the file under its final name only when it is complete.
fn keep_snapshot(bytes: &[u8], file: Option<String>) -> Answer {
    let Some(file) = file else {
        return done("snapshot", lines::to_base64(bytes));
    };
    let partial = format!("{file}.partial");
    match std::fs::write(&partial, bytes).and_then(|()| std::fs::rename(&partial, &file)) {
        Ok(()) => {
            let mut answer = done("file", file);
            answer.insert("bytes".into(), bytes.len().into());
            answer
        }
        Err(error) => {
            // Nothing half-written stays; that it may never have existed is fine.
            let _ = std::fs::remove_file(&partial);
            refusal(format!("`{file}`: {error}"))
        }
    }
}

/// Runs a block, putting its calls to the driver.
async fn serve_calls<T>(
    block: impl Future<Output = Result<T, SandboxError>>,
    calls: &mut Option<UnboundedReceiver<PendingCall>>,
    input: &mut Input,
    repl: &str,
) -> Result<Result<T, SandboxError>, Failure> {
    let Some(calls) = calls else { return Ok(block.await) };
    let mut block = std::pin::pin!(block);
    loop {
        let pending = tokio::select! {
            ended = &mut block => return Ok(ended),
            Some(pending) = calls.recv() => pending,
        };
        let PendingCall { call, context, answer } = pending;
        write_line(&json!({"call": {
            "repl": repl,
            "block": context.block,
            "index": context.index,
            "function": call.function,
            "args": call.args.iter().map(json_value::to_json).collect::<Vec<_>>(),
            "kwargs": call.kwargs.iter().map(|(key, value)| (key.clone(), json_value::to_json(value))).collect::<Map<_, _>>(),
        }}))?;
        // The block may die (its waiting time) while the driver thinks; its late answer is then of no use.
        let answered = tokio::select! {
            ended = &mut block => return Ok(ended),
            answered = input.answer() => answered?,
        };
        if let Some(result) = answered {
            let result = result
                .map_err(|(type_name, message)| CallError { type_name, message })
                .and_then(|value| one_answer_per_prompt(&call, value));
            // The receiver is gone only when the block died, which the next turn of the loop sees.
            let _ = answer.send(result);
        }
    }
}

/// Answers pair with prompts by their place: one that is missing would shift all behind it.
fn one_answer_per_prompt(call: &HostCall, answer: Value) -> Result<Value, CallError> {
    match (call.args.first(), &answer) {
        (Some(Value::List(prompts)), Value::List(answers))
            if call.function.ends_with("_batched") && prompts.len() != answers.len() =>
        {
            let (function, asked, answered) = (&call.function, prompts.len(), answers.len());
            Err(CallError::runtime(format!("the driver answered {answered} of {asked} prompts of {function}()")))
        }
        _ => Ok(answer),
    }
}

struct Input {
    lines: BufReader<Stdin>,
    number: u64,
}

impl Input {
    /// The next line, or the answer to one that cannot be served; `None` at the end.
    async fn next(&mut self) -> Result<Option<Result<Line, Answer>>, Failure> {
        let mut bytes = Vec::new();
        self.number += 1;
        let read = (&mut self.lines)
            .take(MAX_LINE)
            .read_until(b'\n', &mut bytes)
            .await
            .map_err(|error| self.unusable(&error.to_string()))?;
        if read == 0 {
            return Ok(None);
        }
        if read as u64 == MAX_LINE && !bytes.ends_with(b"\n") {
            return Err(self.unusable(&format!("longer than {MAX_LINE} bytes")));
        }
        let line = String::from_utf8(bytes)
            .map_err(|error| {
                let column = error.utf8_error().valid_up_to() + 1;
                BadLine { id: None, reason: format!("expected UTF-8 text, got other bytes from column {column}") }
            })
            .and_then(|text| Line::parse(&text));
        Ok(Some(line.map_err(|BadLine { id, reason }| self.refusal(id, &reason))))
    }

    fn refusal(&self, id: Option<Json>, reason: &str) -> Answer {
        let mut answer = refusal(format!("line {}: {reason}", self.number));
        if let Some(id) = id {
            answer.insert("id".into(), id);
        }
        answer
    }

    /// The answer to a pending call; `None` at the end of the input.
    async fn answer(&mut self) -> Result<Option<Result<Value, (String, String)>>, Failure> {
        loop {
            let Some(line) = self.next().await? else { return Ok(None) };
            let refused = match line {
                Ok(Line { order: Order::Return { result }, .. }) => return Ok(Some(result)),
                Ok(line) => {
                    self.refusal(line.id, "a call is pending; expected `return` or `raise` before anything else")
                }
                Err(refused) => refused,
            };
            write_line(&Json::Object(refused))?;
        }
    }

    fn unusable(&self, reason: &str) -> Failure {
        Failure::Input { file: "stdin".to_owned(), reason: format!("line {}: {reason}", self.number) }
    }
}

fn write_line(answer: &Json) -> Result<(), Failure> {
    outln!("{answer}")?;
    output::flush()
}
