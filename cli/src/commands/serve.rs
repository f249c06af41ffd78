//! `espalier serve`.

use crate::arguments::ServeCommand;
use crate::failure::Failure;

pub(crate) async fn run(command: ServeCommand) -> Result<(), Failure> {
    match command {
        #[cfg(feature = "torch")]
        ServeCommand::Openai { model, adapters, listen, kv_cache_mb, precision } => {
            super::serve_openai::run(model, adapters, listen, kv_cache_mb, precision).await
        }
        ServeCommand::Search(arguments) => super::serve_search::run(arguments).await,
        ServeCommand::Sandbox(arguments) => super::serve_sandbox::run(arguments).await,
    }
}
