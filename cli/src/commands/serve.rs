//! `espalier serve`, and what its servers share: binding, Ctrl-C, and what the end cut off.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use espalier_serving::Shutdown;
use tokio::net::TcpListener;

use crate::arguments::ServeCommand;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::say;

pub(crate) async fn run(command: ServeCommand) -> Result<(), Failure> {
    match command {
        #[cfg(feature = "torch")]
        ServeCommand::Openai { model, adapters, listen, kv_cache_mb, precision } => {
            super::serve_openai::run(model, adapters, listen, kv_cache_mb, precision).await
        }
        ServeCommand::Search(arguments) => super::serve_search::run(arguments).await,
        #[cfg(feature = "torch")]
        ServeCommand::Tinker(arguments) => super::serve_tinker::run(arguments).await,
        ServeCommand::Sandbox(arguments) => super::serve_sandbox::run(arguments).await,
    }
}

/// Takes an address.
pub(super) async fn bind(listen: SocketAddr) -> Result<(TcpListener, SocketAddr), Failure> {
    let listener = TcpListener::bind(listen).await.map_err(|error| Failure::Usage {
        what: "`--listen`".to_owned(),
        expected: "an address that is free".to_owned(),
        got: format!("`{listen}`: {error}"),
    })?;
    let address = listener.local_addr().map_err(|error| Failure::Internal(error.to_string()))?;
    Ok((listener, address))
}

/// Runs a server until Ctrl-C, or a second one.
pub(super) async fn until_interrupted<S>(drain: Duration, server: impl FnOnce(Shutdown) -> S) -> Result<(), Failure>
where
    S: Future<Output = io::Result<usize>>,
{
    let shutdown = Shutdown::default();
    let (open, drain) = (shutdown.clone(), drain.as_secs());
    let stopper = tokio::spawn(interrupt::twice(shutdown.begun().clone(), move || match open.open_requests() {
        0 => say!("stopping; no request runs"),
        1 => say!("stopping; 1 request may still take {drain} s, then it is cut off (Ctrl-C again leaves at once)"),
        more => {
            say!(
                "stopping; {more} requests may still take {drain} s, then they are cut off (Ctrl-C again leaves at once)"
            );
        }
    }));
    let cut_off = server(shutdown).await;
    stopper.abort();
    match cut_off.map_err(|error| Failure::Internal(format!("the server: {error}")))? {
        0 => Ok(()),
        1 => Err(Failure::Interrupted("1 request was cut off".to_owned())),
        more => Err(Failure::Interrupted(format!("{more} requests were cut off"))),
    }
}
