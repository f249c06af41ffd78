//! Computing where whoever waits can give up on it.
//!
//! A grader that computes holds the thread that polls it: no deadline and no cancellation gets a word in. What may
//! compute for long is moved to a thread where it holds up nobody; its own budget ends what remains of it once nobody
//! waits any more. It computes the same there, so verdicts do not depend on where they were found.

/// Texts up to this length, bytes, are read where they are: moving them costs more than reading them.
const SHORT: usize = 16 << 10;

/// Computes on a thread where it holds up nobody. A panic is the caller's.
pub async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime ends: nobody waits for an answer any more.
        Err(_) => std::future::pending().await,
    }
}

/// Computes what takes time in proportion to a text of so many bytes: where it stands, or [`apart`].
pub(crate) async fn reading<T: Send + 'static>(length: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
    if length <= SHORT { work() } else { apart(work).await }
}
