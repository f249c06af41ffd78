//! `espalier serve openai`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use espalier_engine::openai_server::{ServerOptions, serve};
use espalier_engine::{AdapterWeights, EngineOptions};

use super::serve::{bind, until_interrupted};
use crate::engines::{open, precision};
use crate::failure::Failure;
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
    let (listener, address) = bind(listen).await?;
    say!("serving `{}` at http://{address}/v1 (Ctrl-C ends it)", model.display());
    if !address.ip().is_loopback() {
        say!("anybody who reaches this port may use the model: there are no keys");
    }
    let server = ServerOptions::default();
    until_interrupted(server.drain, |shutdown| serve(Arc::new(engine), listener, server, shutdown)).await
}
