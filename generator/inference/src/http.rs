//! JSON over HTTP to an endpoint that may be slow, busy or broken.
//!
//! One [`HttpClient`] serves one endpoint: it bounds how many requests are under way, tries again where that can help
//! (no connection, a broken answer, 408, 425, 429 and 5xx), waits as long as the endpoint asks (`Retry-After`), and ends
//! every request by its deadline or by cancellation, which closes its connection. Who waits meanwhile is told in the log.
//!
//! Invariants: answers are read up to a bound; what an endpoint said is quoted in errors, but only its beginning, and
//! never the key; redirects are not followed, so that a key goes nowhere but to the endpoint it was meant for.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use backon::{BackoffBuilder, ExponentialBuilder};
use bytes::Bytes;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Response, StatusCode, Url};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::template::days_from_civil;

/// Bytes of an endpoint's answer that an error quotes.
const QUOTED: usize = 400;

/// Warnings about one endpoint are this far apart: hundreds of requests may wait for it at once.
const WARNED_EVERY: Duration = Duration::from_secs(10);

/// What a client puts up with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EndpointLimits {
    /// Requests under way at once.
    pub concurrency: usize,
    /// Tries after the first.
    pub retries: usize,
    /// Milliseconds before the first retry; each wait is up to twice the one before.
    pub first_backoff_ms: u64,
    /// Longest wait between tries, where the endpoint does not ask for more.
    pub longest_backoff_ms: u64,
    /// Milliseconds until a connection must stand.
    pub connect_timeout_ms: u64,
    /// Milliseconds that one try may take.
    pub attempt_timeout_ms: u64,
    /// Largest answer, in bytes.
    pub response_bytes: usize,
}

impl Default for EndpointLimits {
    fn default() -> Self {
        Self {
            concurrency: 64,
            retries: 5,
            first_backoff_ms: 500,
            longest_backoff_ms: 30_000,
            connect_timeout_ms: 10_000,
            attempt_timeout_ms: 300_000,
            response_bytes: 64 << 20,
        }
    }
}

/// Why a request came to nothing.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(crate) enum HttpError {
    /// The endpoint refused the request; sending it again changes nothing.
    #[error("the endpoint refused the request with {status}: {body}")]
    Refused { status: u16, body: String },
    /// All tries failed.
    #[error("no answer after {tries} {}: {reason}", if *tries == 1 { "try" } else { "tries" })]
    Exhausted { tries: usize, reason: String },
    #[error("no answer within the request's deadline")]
    Deadline,
    #[error("the request was cancelled")]
    Cancelled,
    /// The answer is larger than the bound.
    #[error("the answer is larger than the {limit} bytes that `response_bytes` allows")]
    TooLarge { limit: usize },
}

/// How one try ended.
enum Attempt {
    Done(Value),
    Again { reason: String, wait: Option<Duration> },
    Never(HttpError),
}

/// A client of one endpoint.
pub(crate) struct HttpClient {
    client: reqwest::Client,
    permits: Arc<Semaphore>,
    limits: EndpointLimits,
    /// What must not be quoted.
    secret: Option<String>,
    /// When a warning was last written.
    warned: Mutex<Option<Instant>>,
}

impl HttpClient {
    /// `headers` go along with every request.
    pub(crate) fn new(limits: EndpointLimits, headers: HeaderMap, secret: Option<String>) -> Result<Self, String> {
        let client = reqwest::Client::builder()
            .default_headers(headers)
            .connect_timeout(Duration::from_millis(limits.connect_timeout_ms))
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| chain(&error))?;
        let permits = Arc::new(Semaphore::new(limits.concurrency.clamp(1, Semaphore::MAX_PERMITS)));
        Ok(Self { client, permits, limits, secret, warned: Mutex::new(None) })
    }

    /// Posts JSON and gives the JSON that comes back.
    pub(crate) async fn post(
        &self,
        url: &Url,
        headers: HeaderMap,
        body: &Value,
        deadline: Instant,
        cancel: &CancellationToken,
    ) -> Result<Value, HttpError> {
        let body = Bytes::from(body.to_string());
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(HttpError::Cancelled),
            () = tokio::time::sleep_until(deadline) => Err(HttpError::Deadline),
            answer = self.tries(url, &headers, &body, deadline) => answer,
        }
    }

    async fn tries(&self, url: &Url, headers: &HeaderMap, body: &Bytes, deadline: Instant) -> Result<Value, HttpError> {
        let mut waits = ExponentialBuilder::new()
            .with_min_delay(Duration::from_millis(self.limits.first_backoff_ms))
            .with_max_delay(Duration::from_millis(self.limits.longest_backoff_ms))
            .with_max_times(self.limits.retries)
            .with_jitter()
            .build();
        let mut tries = 0;
        loop {
            tries += 1;
            let (reason, wait) = match self.attempt(url, headers.clone(), body.clone()).await {
                Attempt::Done(answer) => return Ok(answer),
                Attempt::Never(error) => return Err(error),
                Attempt::Again { reason, wait } => (reason, wait),
            };
            let Some(backoff) = waits.next() else { return Err(HttpError::Exhausted { tries, reason }) };
            let wait = wait.unwrap_or(backoff);
            if deadline.saturating_duration_since(Instant::now()) <= wait {
                let reason = format!(
                    "{reason}; the next try, in {:.1} s, would come after the request's deadline",
                    wait.as_secs_f64()
                );
                return Err(HttpError::Exhausted { tries, reason });
            }
            let seconds = wait.as_secs_f64();
            if self.is_time_to_warn() {
                let most = self.limits.retries + 1;
                tracing::warn!(
                    "`{url}` did not answer (try {tries} of {most}): {reason}; trying again in {seconds:.1} s"
                );
            } else {
                tracing::debug!(%url, tries, %reason, seconds, "trying again");
            }
            tokio::time::sleep(wait).await;
        }
    }

    fn is_time_to_warn(&self) -> bool {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let due = warned.is_none_or(|last| now.duration_since(last) >= WARNED_EVERY);
        if due {
            *warned = Some(now);
        }
        due
    }

    async fn attempt(&self, url: &Url, headers: HeaderMap, body: Bytes) -> Attempt {
        // The permit goes back while waiting for the next try. The semaphore is never closed.
        let _permit = self.permits.acquire().await;
        let limit = Duration::from_millis(self.limits.attempt_timeout_ms);
        match tokio::time::timeout(limit, self.exchange(url, headers, body)).await {
            Ok(attempt) => attempt,
            Err(_) => again(format!("no answer within the {} ms of one try", limit.as_millis())),
        }
    }

    async fn exchange(&self, url: &Url, headers: HeaderMap, body: Bytes) -> Attempt {
        let json = HeaderValue::from_static("application/json");
        let request = self.client.post(url.clone()).headers(headers).header(CONTENT_TYPE, json).body(body);
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) => return again(chain(&error.without_url())),
        };
        let status = response.status();
        let wait = response.headers().get(RETRY_AFTER).and_then(|value| retry_after(value.to_str().ok()?, now()));
        let bytes = match self.read(response).await {
            Ok(bytes) => bytes,
            Err(attempt) => return attempt,
        };
        if !status.is_success() {
            return self.refused(status, wait, &bytes);
        }
        let answer: Value = match serde_json::from_slice(&bytes) {
            Ok(answer) => answer,
            Err(error) => return again(format!("the answer is not JSON ({error}): {}", self.quote(&bytes))),
        };
        // Gateways report a failure behind them with status 200 and an `error` object.
        match answer.get("error").filter(|error| error.is_object() && answer.get("choices").is_none()) {
            Some(error) => {
                let code = error.get("code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
                let status = code.and_then(|code| StatusCode::from_u16(code).ok()).unwrap_or(StatusCode::BAD_GATEWAY);
                self.refused(status, wait, &bytes)
            }
            None => Attempt::Done(answer),
        }
    }

    async fn read(&self, mut response: Response) -> Result<Vec<u8>, Attempt> {
        let mut bytes = Vec::new();
        loop {
            match response.chunk().await {
                Ok(None) => return Ok(bytes),
                Ok(Some(chunk)) if bytes.len() + chunk.len() > self.limits.response_bytes => {
                    return Err(Attempt::Never(HttpError::TooLarge { limit: self.limits.response_bytes }));
                }
                Ok(Some(chunk)) => bytes.extend_from_slice(&chunk),
                Err(error) => {
                    let reason = chain(&error.without_url());
                    return Err(again(format!("the answer broke off after {} bytes: {reason}", bytes.len())));
                }
            }
        }
    }

    fn refused(&self, status: StatusCode, wait: Option<Duration>, bytes: &[u8]) -> Attempt {
        let body = self.quote(bytes);
        if matches!(status.as_u16(), 408 | 425 | 429) || status.is_server_error() {
            return Attempt::Again { reason: format!("{status}: {body}"), wait };
        }
        Attempt::Never(HttpError::Refused { status: status.as_u16(), body })
    }

    /// The beginning of an answer, on one line, without the key.
    fn quote(&self, bytes: &[u8]) -> String {
        let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4 * QUOTED)]);
        let text = match &self.secret {
            Some(secret) => text.replace(secret, "***"),
            None => text.into_owned(),
        };
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
}

fn again(reason: String) -> Attempt {
    Attempt::Again { reason, wait: None }
}

/// An error with what caused it: reqwest keeps "connection refused" two levels down.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

/// `Retry-After`: seconds, or a date as `Wed, 21 Oct 2026 07:28:00 GMT`. At most a day.
fn retry_after(value: &str, now: i64) -> Option<Duration> {
    const DAY: f64 = 86_400.0;
    let value = value.trim();
    if let Ok(seconds) = value.parse::<f64>() {
        return (seconds >= 0.0).then(|| Duration::from_secs_f64(seconds.min(DAY)));
    }
    let mut parts = value.split_once(", ")?.1.split([' ', ':']);
    let number = |parts: &mut dyn Iterator<Item = &str>| parts.next()?.parse::<i64>().ok();
    let day = number(&mut parts)?;
    let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let name = parts.next()?;
    let month = months.iter().position(|month| *month == name)? as i64 + 1;
    let year = number(&mut parts)?;
    let (hour, minute, second) = (number(&mut parts)?, number(&mut parts)?, number(&mut parts)?);
    let sane = (1..=31).contains(&day) && (1970..=9999).contains(&year) && hour < 24 && minute < 60 && second < 61;
    if !sane || parts.next() != Some("GMT") {
        return None;
    }
    let at = days_from_civil(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    Some(Duration::from_secs_f64(((at - now).max(0) as f64).min(DAY)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_read_as_seconds_and_as_a_date() {
        assert_eq!(retry_after("2", 0), Some(Duration::from_secs(2)));
        assert_eq!(retry_after(" 0.5 ", 0), Some(Duration::from_millis(500)));
        assert_eq!(retry_after("1e300", 0), Some(Duration::from_hours(24)));
        assert_eq!(retry_after("Thu, 01 Jan 1970 00:01:40 GMT", 40), Some(Duration::from_mins(1)));
        assert_eq!(retry_after("Thu, 01 Jan 1970 00:01:40 GMT", 4000), Some(Duration::ZERO));
        for wrong in [
            "",
            "-1",
            "soon",
            "NaN",
            "Thu, 01 Foo 1970 00:01:40 GMT",
            "Thu, 01 Jan 1970",
            "Thu, 99 Jan 1970 00:00:00 GMT",
        ] {
            assert_eq!(retry_after(wrong, 0), None, "{wrong}");
        }
    }
}
