//! A retrieval server behind HTTP: Search-R1's, skyrl-gym's, or this crate's own.
//!
//! One connection pool serves the whole process. A search is tried again where that can help (no connection, an answer
//! that broke off or took too long, 429, 500, 502, 503 and 504), with growing waits, up to a number of tries and the
//! search's deadline. Everything else fails at once, as a [`RetrievalError`] that says what the server did.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use backon::{BackoffBuilder, ExponentialBuilder};
use reqwest::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Client, Response, Url};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::protocol;
use crate::retriever::{Hit, RetrievalError, Retriever, SearchLimits};

/// Bytes of an answer that an error quotes.
const QUOTED: usize = 300;

/// How queries are put to the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueryForm {
    /// `{"query": TEXT}`, one request each: skyrl-gym's servers.
    #[default]
    Single,
    /// `{"queries": [TEXT, ...]}`: Search-R1's own server.
    List,
}

/// What a client puts up with. Every default is finite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpOptions {
    /// How queries are put.
    pub form: QueryForm,
    /// Tries in all, the first included.
    pub tries: usize,
    /// The wait before the second try; each later wait is up to twice the one before.
    pub first_backoff: Duration,
    /// The longest wait between tries, also where the server asks for more.
    pub longest_backoff: Duration,
    /// How long one try may take.
    pub try_timeout: Duration,
    /// Largest answer, bytes.
    pub answer_bytes: usize,
    /// Requests under way at once, of this retriever and its clones.
    pub concurrency: usize,
    /// The HTTP statuses after which the server is asked again.
    pub retried: Vec<u16>,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            form: QueryForm::Single,
            tries: 10,
            first_backoff: Duration::from_secs(1),
            longest_backoff: Duration::from_secs(10),
            try_timeout: Duration::from_secs(30),
            answer_bytes: 16 << 20,
            concurrency: 256,
            retried: vec![429, 500, 502, 503, 504],
        }
    }
}

/// An answer of the server with status 2xx, before it is read as JSON; or why there is none.
enum Attempt {
    Done(Vec<u8>),
    Again { reason: String, status: Option<u16>, wait: Option<Duration> },
    Never(RetrievalError),
}

/// The process's one client; `Err` says why there can be none.
static CLIENT: LazyLock<Result<Client, String>> = LazyLock::new(|| {
    Client::builder()
        .connect_timeout(Duration::from_secs(10))
        .redirect(reqwest::redirect::Policy::none())
        .pool_max_idle_per_host(256)
        .build()
        .map_err(|error| chain(&error))
});

/// A retrieval server. Cheap to clone.
#[derive(Clone, Debug)]
pub struct HttpRetriever {
    client: Client,
    url: Url,
    options: HttpOptions,
    permits: Arc<Semaphore>,
}

impl HttpRetriever {
    /// A client of the server at `url`, path included (`http://127.0.0.1:8000/retrieve`).
    pub fn new(url: &str, options: HttpOptions) -> Result<Self, RetrievalError> {
        let wrong = |key: &str, reason: String| RetrievalError::Option { key: key.to_owned(), reason };
        let expected = "must be an address such as `http://127.0.0.1:8000/retrieve`";
        let parsed =
            Url::parse(url).map_err(|error| wrong("search_url", format!("{expected}, got `{url}` ({error})")))?;
        if !matches!(parsed.scheme(), "http" | "https") || parsed.host_str().is_none() {
            return Err(wrong("search_url", format!("{expected}, got `{url}`")));
        }
        if options.tries == 0 {
            return Err(wrong("tries", "must be at least 1, got 0".to_owned()));
        }
        let client = CLIENT.clone().map_err(|reason| wrong("search_url", format!("cannot be used: {reason}")))?;
        let permits = Arc::new(Semaphore::new(options.concurrency.clamp(1, Semaphore::MAX_PERMITS)));
        Ok(Self { client, url: parsed, options, permits })
    }

    /// The server's address.
    pub fn url(&self) -> &str {
        self.url.as_str()
    }

    /// Posts a request and gives the body of the answer, whatever it holds.
    pub async fn post(&self, body: &Value, limits: &SearchLimits) -> Result<Vec<u8>, RetrievalError> {
        let body = body.to_string();
        limits.check()?;
        tokio::select! {
            biased;
            () = limits.cancel.cancelled() => Err(RetrievalError::Cancelled),
            () = tokio::time::sleep_until(limits.deadline) => Err(RetrievalError::Deadline),
            answer = self.tries(&body, limits.deadline) => answer,
        }
    }

    async fn tries(&self, body: &str, deadline: Instant) -> Result<Vec<u8>, RetrievalError> {
        let mut waits = ExponentialBuilder::new()
            .with_min_delay(self.options.first_backoff)
            .with_max_delay(self.options.longest_backoff)
            .with_max_times(self.options.tries - 1)
            .with_jitter()
            .build();
        let mut tries = 0;
        loop {
            tries += 1;
            let (reason, status, asked) = match self.attempt(body).await {
                Attempt::Done(answer) => return Ok(answer),
                Attempt::Never(error) => return Err(error),
                Attempt::Again { reason, status, wait } => (reason, status, wait),
            };
            let exhausted = |reason| RetrievalError::Exhausted { url: self.url.to_string(), tries, status, reason };
            let Some(backoff) = waits.next() else { return Err(exhausted(reason)) };
            let wait = asked.map_or(backoff, |asked| asked.min(self.options.longest_backoff));
            if deadline.saturating_duration_since(Instant::now()) <= wait {
                return Err(exhausted(format!("{reason}; the next try would come after the search's deadline")));
            }
            tracing::debug!(url = %self.url, tries, %reason, ?wait, "the search is tried again");
            tokio::time::sleep(wait).await;
        }
    }

    async fn attempt(&self, body: &str) -> Attempt {
        // The permit goes back while waiting for the next try. The semaphore is never closed.
        let _permit = self.permits.acquire().await;
        match tokio::time::timeout(self.options.try_timeout, self.exchange(body)).await {
            Ok(attempt) => attempt,
            Err(_) => again(format!("no answer within the {} ms of one try", self.options.try_timeout.as_millis())),
        }
    }

    async fn exchange(&self, body: &str) -> Attempt {
        let request = self
            .client
            .post(self.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json")
            .body(body.to_owned());
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) => return again(chain(&error.without_url())),
        };
        let status = response.status();
        let wait = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        // An error's body is only quoted: more of it than that is not worth reading.
        let limit = if status.is_success() { self.options.answer_bytes } else { 64 << 10 };
        let bytes = match self.read(response, limit).await {
            Ok(bytes) => bytes,
            Err(Attempt::Never(_)) if !status.is_success() => Vec::new(),
            Err(attempt) => return attempt,
        };
        if status.is_success() {
            return Attempt::Done(bytes);
        }
        let said = quote(&bytes);
        if self.options.retried.contains(&status.as_u16()) {
            let wait = wait.map(Duration::from_secs);
            return Attempt::Again { reason: format!("{status}: {said}"), status: Some(status.as_u16()), wait };
        }
        Attempt::Never(RetrievalError::Refused { url: self.url.to_string(), status: status.as_u16(), body: said })
    }

    async fn read(&self, mut response: Response, limit: usize) -> Result<Vec<u8>, Attempt> {
        let mut bytes = Vec::new();
        loop {
            match response.chunk().await {
                Ok(None) => return Ok(bytes),
                Ok(Some(chunk)) if bytes.len() + chunk.len() > limit => {
                    return Err(Attempt::Never(RetrievalError::TooLarge { url: self.url.to_string(), limit }));
                }
                Ok(Some(chunk)) => bytes.extend_from_slice(&chunk),
                Err(error) => {
                    let reason = chain(&error.without_url());
                    return Err(again(format!("the answer broke off after {} bytes: {reason}", bytes.len())));
                }
            }
        }
    }

    async fn lists(&self, body: Value, count: usize, limits: &SearchLimits) -> Result<Vec<Vec<Hit>>, RetrievalError> {
        let wrong = |reason| RetrievalError::Answer { url: self.url.to_string(), reason };
        let bytes = self.post(&body, limits).await?;
        let answer: Value = serde_json::from_slice(&bytes)
            .map_err(|error| wrong(format!("it is not JSON ({error}): {}", quote(&bytes))))?;
        let lists = protocol::read_answer(&answer).map_err(wrong)?;
        // A server that found nothing at all may leave the lists out.
        match lists.len() {
            got if got == count => Ok(lists),
            0 => Ok(vec![Vec::new(); count]),
            got => Err(wrong(format!("expected one list of results per query ({count}), got {got}"))),
        }
    }
}

#[async_trait]
impl Retriever for HttpRetriever {
    async fn search(&self, query: &str, topk: usize, limits: &SearchLimits) -> Result<Vec<Hit>, RetrievalError> {
        let body = match self.options.form {
            QueryForm::Single => json!({"query": query, "topk": topk, "return_scores": true}),
            QueryForm::List => json!({"queries": [query], "topk": topk, "return_scores": true}),
        };
        Ok(self.lists(body, 1, limits).await?.pop().unwrap_or_default())
    }

    async fn search_all(
        &self,
        queries: &[String],
        topk: usize,
        limits: &SearchLimits,
    ) -> Result<Vec<Vec<Hit>>, RetrievalError> {
        if self.options.form == QueryForm::List {
            let body = json!({"queries": queries, "topk": topk, "return_scores": true});
            return self.lists(body, queries.len(), limits).await;
        }
        let mut answers = Vec::with_capacity(queries.len());
        for query in queries {
            answers.push(self.search(query, topk, limits).await?);
        }
        Ok(answers)
    }
}

fn again(reason: String) -> Attempt {
    Attempt::Again { reason, status: None, wait: None }
}

/// The words that go with an HTTP status: `Not Found`.
pub fn status_words(status: u16) -> &'static str {
    reqwest::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or("")
}

/// An error with what caused it: reqwest keeps "connection refused" two levels down.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        source = cause.source();
    }
    text
}

/// The beginning of an answer, on one line.
fn quote(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * QUOTED)]);
    let mut quoted = String::from("`");
    for character in text.trim().chars() {
        if quoted.len() > QUOTED {
            quoted.push('…');
            break;
        }
        quoted.push(if character.is_control() { ' ' } else { character });
    }
    quoted.push('`');
    quoted
}
