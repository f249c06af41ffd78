//! The sandbox as its users see it.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod cache;
mod calls;
mod lifetimes;
mod limits;
mod machine;
mod snapshots;
mod state;
mod stdlib;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use espalier_sandbox::{
    CallContext, CallError, Execution, HostCalls, Limits, Outcome, Repl, ReplOptions, Sandbox, Value,
};
use espalier_sandbox_protocol::HostCall;

/// A block that the interpreter cannot interrupt: only the host ends it.
const ENDLESS: &str = "str(3**3000000)";

/// A REPL as most tests want it.
async fn repl() -> Repl {
    with(ReplOptions::default()).await
}

async fn with(options: ReplOptions) -> Repl {
    Sandbox::shared().expect("the interpreter loads").repl(options).await.expect("a REPL opens")
}

/// Limits that hostile blocks reach soon.
fn tight() -> Limits {
    Limits { block: Duration::from_millis(150), memory_bytes: 48 << 20, ..Limits::default() }
}

async fn run(repl: &mut Repl, code: &str) -> Execution {
    repl.execute(code).await.expect("a block runs")
}

/// Runs a block that must complete, and answers what it printed.
async fn out(repl: &mut Repl, code: &str) -> String {
    let execution = run(repl, code).await;
    assert_eq!(execution.outcome, Outcome::Completed, "{code}\n{}", execution.stderr.text);
    execution.stdout.text
}

/// The type of the exception that left a block.
fn raised(execution: &Execution) -> &str {
    match &execution.outcome {
        Outcome::Raised { type_name, .. } => type_name,
        other => panic!("expected an exception, got {other:?}"),
    }
}

/// Serves `llm_query` with a function of its first argument.
struct Answers<F>(F);

#[async_trait]
impl<F, R> HostCalls for Answers<F>
where
    F: Fn(String, CallContext) -> R + Send + Sync,
    R: Future<Output = Result<Value, CallError>> + Send,
{
    async fn call(&self, call: HostCall, context: CallContext) -> Result<Value, CallError> {
        let prompt = call.args.first().and_then(Value::as_str).unwrap_or_default().to_owned();
        self.0(prompt, context).await
    }
}

fn serving<F, R>(serve: F) -> ReplOptions
where
    F: Fn(String, CallContext) -> R + Send + Sync + 'static,
    R: Future<Output = Result<Value, CallError>> + Send + 'static,
{
    ReplOptions {
        functions: vec!["llm_query".to_owned()],
        host: Arc::new(Answers(serve)),
        limits: tight(),
        ..ReplOptions::default()
    }
}
