//! What Ctrl-C does: the first ends what runs, the second leaves at once.

use std::os::unix::process::CommandExt as _;

use tokio_util::sync::CancellationToken;

/// Waits for Ctrl-C: the first calls `stop` and cancels, the second leaves with exit code 130, whatever still runs.
pub(crate) async fn twice(cancel: CancellationToken, stop: impl FnOnce() + Send) {
    if tokio::signal::ctrl_c().await.is_err() {
        return;
    }
    stop();
    cancel.cancel();
    if tokio::signal::ctrl_c().await.is_ok() {
        leave();
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
