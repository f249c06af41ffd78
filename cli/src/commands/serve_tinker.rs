//! `espalier serve tinker`.

use std::path::{Component, Path};
use std::sync::Arc;
use std::time::Duration;

use espalier_engine::EngineOptions;
use espalier_tinker::store::INLINE;
use espalier_tinker::{Keys, ServeError, ServerOptions, Store, StoreError, serve};
use espalier_tinker_engine::{LearnerOptions, LocalBackend, LocalOptions};
use espalier_trainer::TrainPrecision;
use tokio_util::sync::CancellationToken;

use crate::arguments::TinkerServerArguments;
use crate::engines::{open, precision};
use crate::failure::Failure;
use crate::interrupt;
use crate::output::say;
use crate::settings::model_folder;

pub(crate) async fn run(arguments: TinkerServerArguments) -> Result<(), Failure> {
    let listen = arguments.listen;
    let options = ServerOptions {
        keys: arguments.api_keys.as_deref().map(keys).transpose()?.unwrap_or_default(),
        open: arguments.open,
        keep_results: seconds("`--keep-results`", arguments.keep_results)?,
        session_timeout: seconds("`--session-timeout`", arguments.session_timeout)?,
        ..ServerOptions::default()
    };
    if !listen.ip().is_loopback() && options.keys.is_open() && !options.open {
        return Err(Failure::Configuration(format!(
            "`--listen {listen}` can be reached from other machines: name a file of keys with `--api-keys FILE`, let \
             everybody in with `--open`, or listen on 127.0.0.1"
        )));
    }
    let listener = tokio::net::TcpListener::bind(listen).await.map_err(|error| Failure::Usage {
        what: "`--listen`".to_owned(),
        expected: "an address that is free".to_owned(),
        got: format!("`{listen}`: {error}"),
    })?;
    let address = listener.local_addr().map_err(|error| Failure::Internal(error.to_string()))?;
    let store = Store::open(&arguments.state, INLINE).await.map_err(|error| match error {
        StoreError::Database(_) => Failure::Data(format!("`--state {}`: {error}", arguments.state.display())),
        StoreError::File { .. } | StoreError::Taken(_) => Failure::Output(format!("`--state`: {error}")),
    })?;
    let name = arguments.name.unwrap_or_else(|| arguments.base_model.display().to_string());
    if let Some(clients) = &arguments.write_client_dir {
        write_tokenizer(&model_folder(&arguments.base_model), clients, &name)?;
    }
    let engine_options = EngineOptions {
        precision: precision(&arguments.precision).map_err(Failure::Internal)?,
        kv_cache_mb: arguments.kv_cache_mb,
        ..EngineOptions::default()
    };
    let folder = model_folder(&arguments.base_model);
    let within = |failure: Failure| {
        if matches!(failure, Failure::Configuration(_)) { failure } else { failure.within("`--base-model`") }
    };
    let engine = open(folder.clone(), engine_options).await.map_err(within)?;
    let local = LocalOptions {
        name: name.clone(),
        folder: arguments.state.clone(),
        learner: LearnerOptions {
            precision: if arguments.precision == "f32" { TrainPrecision::F32 } else { TrainPrecision::Bf16 },
            memory: (arguments.adapter_memory_mb as usize) << 20,
            micro_batch_tokens: arguments.micro_batch_tokens,
            gradient_checkpointing: arguments.gradient_checkpointing,
            ..LearnerOptions::default()
        },
        samplers: arguments.samplers,
        limit: options.operation_timeout,
    };
    let backend = tokio::task::spawn_blocking(move || LocalBackend::start(Arc::new(engine), &folder, local)).await;
    let backend = backend.map_err(|error| Failure::Internal(error.to_string()))?;
    let backend = backend.map_err(|error| within(Failure::from(error)))?;
    let found = store.recovered();
    if found.again > 0 {
        say!("{} requests that were cut off are done again", found.again);
    }
    say!("serving `{name}` to Tinker clients at http://{address} (Ctrl-C ends it)");
    if !address.ip().is_loopback() && options.keys.is_open() {
        say!("anybody who reaches this port may use the model: there are no keys");
    }
    let shutdown = CancellationToken::new();
    let drain = options.drain.as_secs();
    let stopper = tokio::spawn(interrupt::twice(shutdown.clone(), move || {
        say!("stopping; what runs may still take {drain} s (Ctrl-C again leaves at once)");
    }));
    let cut_off = serve(store, Arc::new(backend), listener, options, shutdown).await;
    stopper.abort();
    match cut_off {
        Ok(0) => Ok(()),
        Ok(1) => Err(Failure::Interrupted("1 request was cut off; it is done when the server runs again".to_owned())),
        Ok(more) => {
            Err(Failure::Interrupted(format!("{more} requests were cut off; they are done when the server runs again")))
        }
        Err(error @ (ServeError::NoKeys(_) | ServeError::Options(_))) => Err(Failure::Configuration(error.to_string())),
        Err(error @ ServeError::Listener(_)) => Err(Failure::Internal(format!("the server: {error}"))),
    }
}

/// What a tokenizer and the configuration of a model consist of.
const CLIENT_FILES: [&str; 8] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
];

/// Copies a model's tokenizer to where clients look for it: a folder of the model's name, in the one that they run in.
fn write_tokenizer(model: &Path, clients: &Path, name: &str) -> Result<(), Failure> {
    let plain = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    if !plain {
        return Err(Failure::Usage {
            what: "`--write-client-dir`".to_owned(),
            expected: "a model's name that can be a folder's, such as `Org/Model`; `--name` gives one".to_owned(),
            got: format!("`{name}`"),
        });
    }
    let folder = clients.join(name);
    let failed = |path: &Path, error: std::io::Error| {
        Failure::Output(format!("`--write-client-dir`: `{}` cannot be written: {error}", path.display()))
    };
    std::fs::create_dir_all(&folder).map_err(|error| failed(&folder, error))?;
    let mut written = 0;
    for file in CLIENT_FILES.into_iter().filter(|file| model.join(file).exists()) {
        let (draft, target) = (folder.join(format!(".{file}.partial")), folder.join(file));
        std::fs::copy(model.join(file), &draft).map_err(|error| failed(&target, error))?;
        std::fs::rename(&draft, &target).map_err(|error| failed(&target, error))?;
        written += 1;
    }
    say!("{written} files of the tokenizer of `{name}` lie in `{}`", folder.display());
    Ok(())
}

fn keys(file: &Path) -> Result<Keys, Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| Failure::unreadable(file, &error))?;
    Keys::parse(&text).map_err(|error| Failure::Input { file: file.display().to_string(), reason: error.to_string() })
}

fn seconds(what: &str, given: f64) -> Result<Duration, Failure> {
    let duration = Duration::try_from_secs_f64(given).ok().filter(|duration| *duration >= Duration::from_secs(1));
    duration.ok_or_else(|| Failure::Usage {
        what: what.to_owned(),
        expected: "a number of seconds from 1".to_owned(),
        got: format!("`{given}`"),
    })
}
