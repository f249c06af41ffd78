//! `espalier serve search`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use espalier_retrieval::corpus::Progress;
use espalier_retrieval::server::{ServerOptions, serve};
use espalier_retrieval::{Bm25, Bm25Options, RetrievalError};

use super::serve::{bind, until_interrupted};
use crate::arguments::SearchServerArguments;
use crate::failure::Failure;
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
    let (listener, address) = bind(listen).await?;
    say!(
        "serving {} documents of `{}` at http://{address}/retrieve (Ctrl-C ends it)",
        bm25.documents(),
        corpus.display()
    );
    if !address.ip().is_loopback() {
        say!("anybody who reaches this port may search: there are no keys");
    }
    until_interrupted(options.drain, |shutdown| serve(Arc::new(bm25), listener, options, shutdown)).await
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
