//! `espalier repl`.
//!
//! | module | what lives there |
//! |---|---|
//! | [`interactive`] | the prompt for people |
//! | [`incomplete`] | whether what was typed so far needs more lines |
//! | [`driver`] | `--json`: one object per line in, one per line out |
//! | [`lines`] | the wire objects of `--json` |
//! | [`calls`] | host calls put to the driver |

mod calls;
mod driver;
mod incomplete;
mod interactive;
mod lines;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use espalier_sandbox::{Context, Limits, Policy, ReplOptions, Sandbox, Tool, Value};
use serde_json::value::RawValue;

use crate::arguments::{LimitArguments, PolicyArgument, ReplArguments};
use crate::failure::Failure;

/// Scaffold functions that call models.
const MODEL_FUNCTIONS: [&str; 4] = ["llm_query", "llm_query_batched", "rlm_query", "rlm_query_batched"];

pub(crate) async fn run(arguments: ReplArguments) -> Result<(), Failure> {
    let mut options = ReplOptions {
        policy: match arguments.policy {
            PolicyArgument::Default => Policy::Default,
            PolicyArgument::Strict => Policy::Strict,
        },
        limits: limits(&arguments.limits)?,
        seed: arguments.seed,
        deterministic: arguments.deterministic,
        echo: !arguments.json,
        contexts: arguments.context.iter().map(|path| read_context(path)).collect::<Result<_, _>>()?,
        tools: arguments
            .tool
            .iter()
            .map(|name| Tool::Host { name: name.clone(), description: String::new() })
            .collect(),
        ..ReplOptions::default()
    };
    let sandbox = Sandbox::shared()?;
    if !arguments.json {
        return interactive::run(&sandbox, options).await;
    }
    let mut pending = None;
    if arguments.host_calls {
        let (host, calls) = calls::channel();
        options.host = Arc::new(host);
        options.functions = MODEL_FUNCTIONS.map(str::to_owned).to_vec();
        pending = Some(calls);
    }
    driver::run(&sandbox, options, pending).await
}

/// The limits that the arguments say.
pub(crate) fn limits(arguments: &LimitArguments) -> Result<Limits, Failure> {
    let seconds = |flag: &str, value: f64| {
        Duration::try_from_secs_f64(value).ok().filter(|duration| !duration.is_zero()).ok_or_else(|| Failure::Usage {
            what: format!("`{flag}`"),
            expected: "a positive number of seconds".to_owned(),
            got: format!("`{value}`"),
        })
    };
    let at_least_one = |flag: &str, value: u64| {
        (value > 0).then_some(value).ok_or_else(|| Failure::Usage {
            what: format!("`{flag}`"),
            expected: "at least 1".to_owned(),
            got: "`0`".to_owned(),
        })
    };
    let memory_bytes = at_least_one("--memory", arguments.memory)?.saturating_mul(1 << 20);
    at_least_one("--recursion", u64::from(arguments.recursion))?;
    Ok(Limits {
        block: seconds("--timeout", arguments.timeout)?,
        waiting: seconds("--wait-timeout", arguments.wait_timeout)?,
        memory_bytes,
        allocation_bytes: memory_bytes / 8,
        output_bytes: arguments.output,
        recursion: arguments.recursion,
        calls_per_block: arguments.calls_per_block,
        calls_total: arguments.calls,
        ..Limits::default()
    })
}

fn read_context(path: &Path) -> Result<Context, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::unreadable(path, &error))?;
    if path.extension().is_none_or(|extension| !extension.eq_ignore_ascii_case("json")) {
        return Ok(Context::new(Value::Str(text)));
    }
    // A byte order mark is no part of the text.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let input = |reason| Failure::Input { file: path.display().to_string(), reason };
    let json: &RawValue = serde_json::from_str(text).map_err(|error| input(format!("expected JSON: {error}")))?;
    Ok(Context::new(espalier_sandbox_server::value::parse(json).map_err(input)?))
}
