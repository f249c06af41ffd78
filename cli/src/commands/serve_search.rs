//! `espalier serve search`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use espalier_retrieval::corpus::Progress;
use espalier_retrieval::server::{ServerOptions, Shutdown, serve};
use espalier_retrieval::{Bm25, Bm25Options, RetrievalError};

use crate::arguments::SearchServerArguments;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::say;

/// Progress of indexing is told in steps of a tenth, and only for corpora that take a while.
const TOLD_FROM_BYTES: u64 = 64 << 20;

pub(crate) async fn run(arguments: SearchServerArguments) -> Result<(), Failure> {
    let SearchServerArguments { corpus, listen, topk } = arguments;
    let options = ServerOptions::default();
    if !(1..=options.max_topk).contains(&topk) {
        return Err(Failure::Usage {
            what: "`--topk`".to_owned(),
            expected: format!("a whole number from 1 to {}", options.max_topk),
            got: format!("`{topk}`"),
        });
    }
    let options = ServerOptions { topk, ..options };
    let path = corpus.clone();
    let tenths = AtomicU64::new(0);
    let progress = move |now: Progress| {
        // Hashing comes before indexing, without documents.
        if now.of < TOLD_FROM_BYTES || now.documents == 0 {
            return;
        }
        let tenth = now.bytes * 10 / now.of;
        if tenths.fetch_max(tenth, Ordering::Relaxed) < tenth {
            say!("indexed {} % ({} documents)", tenth * 10, now.documents);
        }
    };
    let opened = tokio::task::spawn_blocking(move || {
        Bm25::open(&path, &Bm25Options { progress: Some(Arc::new(progress)), ..Bm25Options::default() })
    });
    let opened = opened.await.map_err(|error| Failure::Internal(format!("indexing ended early: {error}")))?;
    let bm25 = opened.map_err(|error| of_corpus(&error))?;
    for sentence in bm25.left_out().sentences() {
        say!("`{}`: {sentence}", corpus.display());
    }
    let listener = tokio::net::TcpListener::bind(listen).await.map_err(|error| Failure::Usage {
        what: "`--listen`".to_owned(),
        expected: "an address that is free".to_owned(),
        got: format!("`{listen}`: {error}"),
    })?;
    let address = listener.local_addr().map_err(|error| Failure::Internal(error.to_string()))?;
    say!(
        "serving {} documents of `{}` at http://{address}/retrieve (Ctrl-C ends it)",
        bm25.documents(),
        corpus.display()
    );
    if !address.ip().is_loopback() {
        say!("anybody who reaches this port may search: there are no keys");
    }
    let shutdown = Shutdown::default();
    let (open, drain) = (shutdown.clone(), options.drain.as_secs());
    let stopper = tokio::spawn(interrupt::twice(shutdown.begun().clone(), move || match open.open_requests() {
        0 => say!("stopping; no request runs"),
        1 => say!("stopping; 1 request may still take {drain} s, then it is cut off (Ctrl-C again leaves at once)"),
        more => {
            say!(
                "stopping; {more} requests may still take {drain} s, then they are cut off (Ctrl-C again leaves at once)"
            );
        }
    }));
    let cut_off = serve(Arc::new(bm25), listener, options, shutdown).await;
    stopper.abort();
    match cut_off.map_err(|error| Failure::Internal(format!("the server: {error}")))? {
        0 => Ok(()),
        1 => Err(Failure::Interrupted("1 request was cut off".to_owned())),
        more => Err(Failure::Interrupted(format!("{more} requests were cut off"))),
    }
}

fn of_corpus(error: &RetrievalError) -> Failure {
    let said = error.to_string();
    match error {
        RetrievalError::Corpus { .. } => Failure::Data(said),
        RetrievalError::Option { .. } => Failure::Configuration(said),
        RetrievalError::Index { .. } => Failure::Output(said),
        _ => Failure::Internal(said),
    }
}
