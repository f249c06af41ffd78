//! Memory per REPL, how many live in 6 GB.

use std::sync::Arc;

use async_trait::async_trait;
use espalier_sandbox::{CallContext, CallError, HostCalls, Repl, ReplOptions, Sandbox, SandboxError, Value};
use espalier_sandbox_protocol::HostCall;
use tokio::sync::Semaphore;

use super::figure::{Better, Figure, Report};
use crate::failure::Failure;

pub(super) async fn measure(report: &mut Report, sandbox: &Sandbox, quick: bool) -> Result<(), Failure> {
    let count = if quick { 100 } else { 1000 };
    if report.wants("repl_idle_mb") {
        let before = private_bytes()?;
        let repls = idle(sandbox, count).await?;
        let value = mebibytes(private_bytes()?.saturating_sub(before)) / count as f64;
        drop(repls);
        report.add(Figure { figure: "repl_idle_mb", value, unit: "MB", must: 0.5, better: Better::Lower })?;
    }
    if report.wants("repl_waiting_mb") {
        let value = waiting(sandbox, count).await?;
        report.add(Figure { figure: "repl_waiting_mb", value, unit: "MB", must: 0.5, better: Better::Lower })?;
    }
    if report.wants("repl_live_6gb") && !quick {
        let before = private_bytes()?;
        let mut repls = Vec::new();
        while private_bytes()?.saturating_sub(before) < 6 << 30 && repls.len() < 12_000 {
            match idle(sandbox, 250).await {
                Ok(more) => repls.extend(more),
                Err(error) => {
                    tracing::warn!(live = repls.len(), %error, "no more REPLs");
                    break;
                }
            }
        }
        let value = repls.len() as f64;
        report.add(Figure { figure: "repl_live_6gb", value, unit: "REPLs", must: 10_000.0, better: Better::Higher })?;
    }
    Ok(())
}

async fn idle(sandbox: &Sandbox, count: usize) -> Result<Vec<Repl>, SandboxError> {
    let mut repls = Vec::with_capacity(count);
    for _ in 0..count {
        let mut repl = sandbox.repl(ReplOptions::default()).await?;
        repl.execute("x = 1").await?;
        repls.push(repl);
    }
    Ok(repls)
}

/// A call that is answered when the measurement is over.
struct Gate {
    arrived: Semaphore,
    open: Semaphore,
}

#[async_trait]
impl HostCalls for Gate {
    async fn call(&self, _: HostCall, _: CallContext) -> Result<Value, CallError> {
        self.arrived.add_permits(1);
        self.open.acquire().await.map(|_| Value::None).map_err(|_| CallError::runtime("the bench is over"))
    }
}

/// MB per REPL that is suspended in a host call.
async fn waiting(sandbox: &Sandbox, count: usize) -> Result<f64, Failure> {
    let gate = Arc::new(Gate { arrived: Semaphore::new(0), open: Semaphore::new(0) });
    let before = private_bytes()?;
    let mut blocks = tokio::task::JoinSet::new();
    for _ in 0..count {
        let options =
            ReplOptions { functions: vec!["llm_query".to_owned()], host: gate.clone(), ..ReplOptions::default() };
        let mut repl = sandbox.repl(options).await?;
        blocks.spawn(async move { repl.execute("x = llm_query('?')").await.map(|_| ()) });
    }
    let arrived = u32::try_from(count).unwrap_or(u32::MAX);
    gate.arrived
        .acquire_many(arrived)
        .await
        .map_err(|_| Failure::Internal("the bench's own gate closed".to_owned()))?
        .forget();
    let value = mebibytes(private_bytes()?.saturating_sub(before)) / count as f64;
    gate.open.add_permits(count);
    while let Some(ended) = blocks.join_next().await {
        ended.map_err(|error| Failure::Internal(error.to_string()))??;
    }
    Ok(value)
}

/// RssAnon and VmPTE of this process, bytes.
fn private_bytes() -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")
        .map_err(|error| Failure::Internal(format!("`/proc/self/status`: {error}")))?;
    Ok(status
        .lines()
        .filter(|line| line.starts_with("RssAnon:") || line.starts_with("VmPTE:"))
        .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
        .map(|kilobytes| kilobytes << 10)
        .sum())
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
