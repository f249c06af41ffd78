//! `espalier serve sandbox`.

use std::time::Duration;

use espalier_sandbox::Sandbox;
use espalier_sandbox_server::{Closed, Keys, ServeError, ServerOptions, serve};
use tokio_util::sync::CancellationToken;

use super::serve::bind;
use crate::arguments::SandboxServerArguments;
use crate::commands::repl;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::say;

pub(crate) async fn run(arguments: SandboxServerArguments) -> Result<(), Failure> {
    let SandboxServerArguments { listen, max_repls, max_memory, idle_timeout, max_body, api_key_env, limits } =
        arguments;
    let idle = Duration::try_from_secs_f64(idle_timeout).ok().filter(|idle| !idle.is_zero());
    let idle_timeout = idle.ok_or_else(|| usage("`--idle-timeout`", "a positive number of seconds", idle_timeout))?;
    if max_repls == 0 {
        return Err(usage("`--max-repls`", "at least 1", 0));
    }
    let max_body_bytes = max_body.saturating_mul(1 << 20);
    let defaults = ServerOptions::default();
    let options = ServerOptions {
        max_repls,
        max_memory_bytes: max_memory.saturating_mul(1 << 20),
        idle_timeout,
        limits: repl::limits(&limits)?,
        max_body_bytes,
        max_bodies_bytes: defaults.max_bodies_bytes.max(max_body_bytes),
        keys: keys(api_key_env.as_deref())?,
        ..defaults
    };
    if options.limits.memory_bytes > options.max_memory_bytes {
        let least = format!("at least `--memory`, {} MiB", options.limits.memory_bytes >> 20);
        return Err(usage("`--max-memory`", &least, max_memory));
    }
    if !listen.ip().is_loopback() && options.keys.is_open() {
        return Err(Failure::Configuration(format!(
            "`--listen {listen}` can be reached from other machines: name the variable that holds the keys with \
             `--api-key-env NAME`, or listen on 127.0.0.1"
        )));
    }
    let (listener, address) = bind(listen).await?;
    let loading = tokio::task::spawn_blocking(Sandbox::shared).await;
    let sandbox = loading.map_err(|error| Failure::Internal(format!("loading the sandbox: {error}")))??;
    say!("serving at most {max_repls} REPLs at http://{address}/v1/repls (Ctrl-C ends it)");
    let shutdown = CancellationToken::new();
    let drain = options.drain.as_secs();
    let stopper = tokio::spawn(interrupt::twice(shutdown.clone(), move || {
        say!("stopping; blocks that run may still take {drain} s (Ctrl-C again leaves at once)");
    }));
    let closed = serve(sandbox, listener, options, shutdown).await;
    stopper.abort();
    match closed {
        Ok(Closed { running: 0, .. }) => Ok(()),
        Ok(Closed { running: 1, .. }) => Err(Failure::Interrupted("1 block was cut off".to_owned())),
        Ok(Closed { running, .. }) => Err(Failure::Interrupted(format!("{running} blocks were cut off"))),
        Err(error @ (ServeError::NoKeys(_) | ServeError::Options(_))) => Err(Failure::Configuration(error.to_string())),
        Err(error @ ServeError::Listener(_)) => Err(Failure::Internal(format!("the server: {error}"))),
    }
}

fn usage(what: &str, expected: &str, got: impl std::fmt::Display) -> Failure {
    Failure::Usage { what: what.to_owned(), expected: expected.to_owned(), got: format!("`{got}`") }
}

/// The keys of the variable that is named. What it holds is never shown.
fn keys(variable: Option<&str>) -> Result<Keys, Failure> {
    let Some(variable) = variable else { return Ok(Keys::default()) };
    let wrong = |reason: String| Failure::Configuration(format!("`--api-key-env {variable}`: {reason}"));
    let text = std::env::var(variable).map_err(|error| match error {
        std::env::VarError::NotPresent => wrong("there is no such variable in the environment".to_owned()),
        std::env::VarError::NotUnicode(_) => wrong("the variable is not UTF-8".to_owned()),
    })?;
    Keys::parse(&text).map_err(|error| wrong(format!("the variable {error}")))
}
