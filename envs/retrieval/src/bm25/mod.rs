//! Full-text search in this process: BM25 over an index that tantivy keeps.
//!
//! | module | what lives there |
//! |---|---|
//! | `analysis` | texts to terms, for documents and queries alike |
//! | `index` | the index's fields; building it |
//! | `cache` | finished indexes on disk, by what the corpus holds |
//! | this one | opening and searching |
//!
//! A small corpus is indexed in memory when it is opened. A larger one is indexed once: into the cache, where every
//! process finds it again by the SHA-256 of the corpus. Queries are plain text; there is no query syntax. Scores are
//! BM25's with k1 = 1.2 and b = 0.75 (Robertson and Zaragoza, "The Probabilistic Relevance Framework", 2009); hits with
//! equal scores come in the order of the corpus.

mod analysis;
mod cache;
mod index;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use tantivy::collector::TopDocs;
use tantivy::query::{BooleanQuery, BoostQuery, Occur, Query, TermQuery};
use tantivy::schema::{IndexRecordOption, Value as _};
use tantivy::{DocAddress, IndexReader, TantivyDocument, TantivyError, Term};
use tokio::sync::Semaphore;

use self::index::Fields;
use crate::corpus::{Corpus, LeftOut, Progress};
use crate::protocol;
use crate::retriever::{Hit, RetrievalError, Retriever, SearchLimits};

/// Distinct terms of a query that are searched for; those that come later are left out.
const MAX_TERMS: usize = 1024;

/// Told how far hashing and indexing have come.
pub type OnProgress = Arc<dyn Fn(Progress) + Send + Sync>;

/// How a corpus is opened.
#[derive(Clone)]
pub struct Bm25Options {
    /// Where indexes are kept; [`default_cache`] where this is `None`.
    pub cache: Option<PathBuf>,
    /// Corpora of up to this many bytes are indexed in memory and not kept.
    pub in_memory_bytes: u64,
    /// Memory of an index that is being built, bytes.
    pub build_bytes: usize,
    /// Told how far it is.
    pub progress: Option<OnProgress>,
}

impl Default for Bm25Options {
    fn default() -> Self {
        Self { cache: None, in_memory_bytes: 16 << 20, build_bytes: 128 << 20, progress: None }
    }
}

/// `retrieval` in `$ESPALIER_CACHE`, else in `$XDG_CACHE_HOME/espalier`, else in `~/.cache/espalier`; `None` without a
/// home.
pub fn default_cache() -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    named("ESPALIER_CACHE")
        .or_else(|| named("XDG_CACHE_HOME").map(|folder| folder.join("espalier")))
        .or_else(|| named("HOME").map(|home| home.join(".cache/espalier")))
        .map(|folder| folder.join("retrieval"))
}

/// A corpus that can be searched. Cheap to clone.
#[derive(Clone)]
pub struct Bm25 {
    inner: Arc<Inner>,
    /// One search per core at once: more would only wait for each other.
    permits: Arc<Semaphore>,
}

struct Inner {
    reader: IndexReader,
    fields: Fields,
    documents: u64,
    /// The index's folder, or the corpus where the index lies in memory.
    place: PathBuf,
    left_out: LeftOut,
}

impl std::fmt::Debug for Bm25 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bm25")
            .field("documents", &self.inner.documents)
            .field("place", &self.inner.place)
            .finish_non_exhaustive()
    }
}

impl Bm25 {
    /// Opens a corpus: a folder of texts or a JSONL file. Takes as long as indexing it, where it is not indexed yet;
    /// call it from a thread that may block.
    pub fn open(path: &Path, options: &Bm25Options) -> Result<Self, RetrievalError> {
        let corpus = Corpus::open(path)?;
        let mut progress = |now| {
            if let Some(told) = &options.progress {
                told(now);
            }
        };
        let (index, place) = if corpus.bytes() <= options.in_memory_bytes {
            (index::in_memory(&corpus, options.build_bytes, &mut progress)?, path.to_owned())
        } else {
            let folder = options.cache.clone().or_else(default_cache).ok_or_else(|| RetrievalError::Option {
                key: "ESPALIER_CACHE".to_owned(),
                reason: "must name a folder for indexes where there is no home".to_owned(),
            })?;
            cache::open_or_build(&corpus, &folder, options.build_bytes, &mut progress)?
        };
        let failed = |error: TantivyError| RetrievalError::Index { path: place.clone(), reason: error.to_string() };
        let fields = Fields::of(&index.schema()).map_err(failed)?;
        let reader = index::reader(&index).map_err(failed)?;
        let documents = reader.searcher().num_docs();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            inner: Arc::new(Inner {
                reader,
                fields,
                documents,
                place: place.clone(),
                left_out: corpus.left_out().clone(),
            }),
            permits: Arc::new(Semaphore::new(cores)),
        })
    }

    /// How many documents (passages, of a folder) there are.
    pub fn documents(&self) -> u64 {
        self.inner.documents
    }

    /// What lies in the corpus's folder and is no part of it.
    pub fn left_out(&self) -> &LeftOut {
        &self.inner.left_out
    }
}

impl Inner {
    fn search(&self, query: &str, topk: usize) -> Result<Vec<Hit>, RetrievalError> {
        let failed = |error: TantivyError| self.failed(error.to_string());
        let topk = topk.min(usize::try_from(self.documents).unwrap_or(usize::MAX));
        let query = self.query(query);
        if topk == 0 || query.clauses().is_empty() {
            return Ok(Vec::new());
        }
        let searcher = self.reader.searcher();
        let found = searcher.search(&query, &TopDocs::with_limit(topk).order_by_score()).map_err(failed)?;
        found.into_iter().map(|(score, address)| self.hit(&searcher, score, address)).collect()
    }

    /// Any of the query's terms, each weighted by how often the query says it.
    fn query(&self, query: &str) -> BooleanQuery {
        let mut counts: BTreeMap<String, u32> = BTreeMap::new();
        analysis::terms(query, |term| {
            if let Some(count) = counts.get_mut(term) {
                *count += 1;
            } else if counts.len() < MAX_TERMS {
                counts.insert(term.to_owned(), 1);
            }
        });
        let clause = |(term, count): (String, u32)| -> (Occur, Box<dyn Query>) {
            let term = Term::from_field_text(self.fields.text, &term);
            let query = TermQuery::new(term, IndexRecordOption::WithFreqs);
            match count {
                1 => (Occur::Should, Box::new(query)),
                more => (Occur::Should, Box::new(BoostQuery::new(Box::new(query), more as f32))),
            }
        };
        BooleanQuery::new(counts.into_iter().map(clause).collect())
    }

    fn hit(&self, searcher: &tantivy::Searcher, score: f32, address: DocAddress) -> Result<Hit, RetrievalError> {
        let document: TantivyDocument = searcher.doc(address).map_err(|error| self.failed(error.to_string()))?;
        let stored = document.get_first(self.fields.document).and_then(|value| value.as_bytes());
        let stored = stored.ok_or_else(|| self.failed("a document has no text in it".to_owned()))?;
        let fields = serde_json::from_slice(stored).map_err(|error| self.failed(error.to_string()))?;
        protocol::hit(fields, f64::from(score)).map_err(|reason| self.failed(format!("a document {reason}")))
    }

    fn failed(&self, reason: String) -> RetrievalError {
        RetrievalError::Index { path: self.place.clone(), reason }
    }
}

#[async_trait]
impl Retriever for Bm25 {
    async fn search(&self, query: &str, topk: usize, limits: &SearchLimits) -> Result<Vec<Hit>, RetrievalError> {
        let (inner, permits, query) = (self.inner.clone(), self.permits.clone(), query.to_owned());
        let answer = async move {
            // The permit stays with the search, also where nobody waits for it any more.
            let permit = permits.acquire_owned().await;
            let task = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                inner.search(&query, topk)
            });
            task.await
        };
        let failed = |reason: String| RetrievalError::Index { path: self.inner.place.clone(), reason };
        limits.check()?;
        tokio::select! {
            biased;
            () = limits.cancel.cancelled() => Err(RetrievalError::Cancelled),
            () = tokio::time::sleep_until(limits.deadline) => Err(RetrievalError::Deadline),
            answer = answer => answer.map_err(|error| failed(format!("the search ended early: {error}")))?,
        }
    }
}
