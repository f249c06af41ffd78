//! `espalier serve openai`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use espalier_engine::openai_server::{ServerOptions, Shutdown, serve};
use espalier_engine::{AdapterWeights, EngineOptions};

use crate::engines::{open, precision};
use crate::failure::Failure;
use crate::interrupt;
use crate::output::say;
use crate::settings::model_folder;

pub(crate) async fn run(
    model: PathBuf,
    adapters: Vec<(String, PathBuf)>,
    listen: SocketAddr,
    kv_cache_mb: Option<u64>,
    kept: String,
) -> Result<(), Failure> {
    let options = EngineOptions {
        precision: precision(&kept).map_err(Failure::Internal)?,
        kv_cache_mb,
        ..EngineOptions::default()
    };
    let engine = open(model_folder(&model), options).await.map_err(Failure::of_model)?;
    for (name, folder) in adapters {
        let loaded = AdapterWeights::read(&folder, &engine.config().decoder)
            .and_then(|weights| engine.load_adapter(&name, &weights));
        loaded.map_err(|error| Failure::from(error).within("`--adapter`"))?;
        say!("adapter `{name}`, from `{}`", folder.display());
    }
    let listener = tokio::net::TcpListener::bind(listen).await.map_err(|error| Failure::Usage {
        what: "`--listen`".to_owned(),
        expected: "an address that is free".to_owned(),
        got: format!("`{listen}`: {error}"),
    })?;
    let address = listener.local_addr().map_err(|error| Failure::Internal(error.to_string()))?;
    say!("serving `{}` at http://{address}/v1 (Ctrl-C ends it)", model.display());
    if !address.ip().is_loopback() {
        say!("anybody who reaches this port may use the model: there are no keys");
    }
    let server = ServerOptions::default();
    let shutdown = Shutdown::default();
    let (open, drain) = (shutdown.clone(), server.drain.as_secs());
    let stopper = tokio::spawn(interrupt::twice(shutdown.begun().clone(), move || match open.open_requests() {
        0 => say!("stopping; no request runs"),
        1 => say!("stopping; 1 request may still take {drain} s, then it is cut off (Ctrl-C again leaves at once)"),
        more => {
            say!(
                "stopping; {more} requests may still take {drain} s, then they are cut off (Ctrl-C again leaves at once)"
            );
        }
    }));
    let cut_off = serve(Arc::new(engine), listener, server, shutdown).await;
    stopper.abort();
    match cut_off.map_err(|error| Failure::Internal(format!("the server: {error}")))? {
        0 => Ok(()),
        1 => Err(Failure::Interrupted("1 request was cut off".to_owned())),
        more => Err(Failure::Interrupted(format!("{more} requests were cut off"))),
    }
}
