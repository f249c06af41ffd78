//! `espalier serve`.

use std::sync::Arc;

use espalier_engine::openai_server::{ServerOptions, serve};
use espalier_engine::{EngineOptions, LocalEngine};
use tokio_util::sync::CancellationToken;

use crate::arguments::ServeCommand;
use crate::engines::precision;
use crate::failure::Failure;
use crate::settings::model_folder;

pub(crate) async fn run(command: ServeCommand) -> Result<(), Failure> {
    let ServeCommand::Openai { model, listen, kv_cache_mb, precision: kept } = command;
    let options = EngineOptions {
        precision: precision(&kept).map_err(Failure::Internal)?,
        kv_cache_mb,
        ..EngineOptions::default()
    };
    let folder = model_folder(&model.to_string_lossy());
    let engine = tokio::task::spawn_blocking(move || LocalEngine::load(&folder, options))
        .await
        .map_err(|error| Failure::Internal(error.to_string()))?
        .map_err(|error| Failure::Input { file: model.display().to_string(), reason: error.to_string() })?;
    let listener = tokio::net::TcpListener::bind(listen).await.map_err(|error| Failure::Usage {
        what: "`--listen`".to_owned(),
        expected: "an address that is free".to_owned(),
        got: format!("`{listen}`: {error}"),
    })?;
    let address = listener.local_addr().map_err(|error| Failure::Internal(error.to_string()))?;
    anstream::eprintln!("serving `{}` at http://{address}/v1 (Ctrl-C ends it)", model.display());
    if !address.ip().is_loopback() {
        anstream::eprintln!("anybody who reaches this port may use the model: there are no keys");
    }
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            stop.cancel();
        }
    });
    serve(Arc::new(engine), listener, ServerOptions::default(), shutdown)
        .await
        .map_err(|error| Failure::Internal(format!("the server: {error}")))
}
