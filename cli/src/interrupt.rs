//! What Ctrl-C (and SIGTERM) does: the first ends what runs, the second leaves at once.

use std::os::unix::process::CommandExt as _;

use tokio_util::sync::CancellationToken;

/// Waits for Ctrl-C: the first calls `stop` and cancels, the second leaves with exit code 130, whatever still runs.
pub(crate) async fn twice(cancel: CancellationToken, stop: impl FnOnce() + Send) {
    if asked_to_stop().await.is_err() {
        return;
    }
    stop();
    cancel.cancel();
    if asked_to_stop().await.is_ok() {
        leave();
    }
}

/// Waits for Ctrl-C, or for the signal by which a process manager asks for the same.
async fn asked_to_stop() -> std::io::Result<()> {
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminate.recv() => Ok(()),
    }
}

/// Ends this process with exit code 130, without destructors: libtorch's pull the ground from under a thread that still
/// computes, which then reports faults that are none. Becoming another program is the way to that which is safe.
fn leave() -> ! {
    let _ = std::process::Command::new("sh").args(["-c", "exit 130"]).exec();
    std::process::exit(130);
}

/// [`twice`] for work whose parts are kept as they end.
pub(crate) async fn stop_and_keep(cancel: CancellationToken) {
    twice(cancel, || {
        crate::output::say!("stopping; what ended is kept (Ctrl-C again leaves at once)");
    })
    .await;
}
