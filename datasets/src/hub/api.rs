//! What the hub answers: the commit of a revision, the files of a commit, and their contents.

use std::time::Duration;

use reqwest::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, ETAG, HeaderMap, HeaderValue, LINK, LOCATION, RANGE, RETRY_AFTER,
};
use reqwest::{Client, Response, StatusCode, Url};
use serde::Deserialize;

use super::address::{Repo, Revision, check_path, is_hex};
use super::{HubError, HubOptions, LONGEST_WAIT};

/// Largest answer that is no file, bytes.
const MAX_ANSWER: usize = 64 << 20;
/// Redirects that are followed.
const MAX_REDIRECTS: usize = 8;
/// Pages of a list of files.
const MAX_PAGES: usize = 10_000;
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(15);

/// A file as the hub lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name in the repository; it does not lead out of it.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// What its contents are named by in the cache, and checked against.
    pub hash: Hash,
}

/// A checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hash {
    /// SHA-256 of the contents: files that are stored apart.
    Sha256(String),
    /// Git's hash of a blob: everything else.
    Git(String),
}

impl Hash {
    /// Its digits.
    pub fn digits(&self) -> &str {
        match self {
            Self::Sha256(digits) | Self::Git(digits) => digits,
        }
    }
}

/// A client of one hub.
pub(crate) struct Hub<'a> {
    client: Client,
    endpoint: Url,
    options: &'a HubOptions,
}

/// Why a request came to nothing.
pub(crate) enum Failed {
    /// Another try may do.
    Again {
        reason: String,
        wait: Option<Duration>,
    },
    Never(HubError),
}

/// Waits between tries.
pub(crate) struct Tries {
    left: u32,
    most: u32,
    first: Duration,
    wait: Duration,
}

impl Tries {
    pub(crate) fn new(options: &HubOptions) -> Self {
        let most = options.tries.max(1);
        Self { left: most, most, first: options.first_wait, wait: options.first_wait }
    }

    /// Counts anew: something worked.
    pub(crate) fn reset(&mut self) {
        (self.left, self.wait) = (self.most, self.first);
    }

    /// Whether this is the last try.
    pub(crate) fn is_last(&self) -> bool {
        self.left <= 1
    }

    /// Waits before the next try; an error after the last.
    pub(crate) async fn next(&mut self, url: &Url, reason: String, wait: Option<Duration>) -> Result<(), HubError> {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            return Err(HubError::Away { url: shown(url), reason, tries: self.most });
        }
        let wait = wait.unwrap_or(self.wait).min(LONGEST_WAIT);
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
        tracing::warn!("`{}`: {reason}; trying again in {:.1} s", shown(url), wait.as_secs_f64());
        tokio::time::sleep(wait).await;
        Ok(())
    }
}

/// An address without its query: signed addresses carry secrets there.
pub(crate) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.to_string()
}

impl<'a> Hub<'a> {
    pub(crate) fn new(options: &'a HubOptions) -> Result<Self, HubError> {
        let wrong = |reason: String| HubError::name(&options.endpoint, reason);
        let endpoint = Url::parse(options.endpoint.trim_end_matches('/'))
            .map_err(|error| wrong(format!("is no address of a hub (`HF_ENDPOINT`): {error}")))?;
        if !matches!(endpoint.scheme(), "http" | "https") || endpoint.cannot_be_a_base() {
            return Err(wrong("is no address of a hub (`HF_ENDPOINT`): expected `https://...`".to_owned()));
        }
        let client = Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT)
            .read_timeout(options.silence)
            .user_agent(concat!("espalier/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| wrong(format!("cannot be asked: {error}")))?;
        Ok(Self { client, endpoint, options })
    }

    /// The endpoint with path segments behind, escaped.
    fn url<'s>(&self, segments: impl Iterator<Item = &'s str>) -> Url {
        let mut url = self.endpoint.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        url
    }

    /// The commit of a revision.
    pub(crate) async fn commit(&self, repo: &Repo, revision: &Revision) -> Result<String, HubError> {
        #[derive(Deserialize)]
        struct Info {
            sha: String,
        }
        let repo = repo.to_string();
        let url =
            self.url(["api", "datasets"].into_iter().chain(repo.split('/')).chain(["revision", revision.as_str()]));
        let (info, _): (Info, _) = self.json(&url).await?;
        if !is_hex(&info.sha, 40) {
            let reason = format!("expected a commit of 40 hexadecimal digits, got `{}`", info.sha);
            return Err(HubError::Answer { url: shown(&url), reason });
        }
        Ok(info.sha)
    }

    /// The files of a commit.
    pub(crate) async fn files(&self, repo: &Repo, commit: &str) -> Result<Vec<Listed>, HubError> {
        #[derive(Deserialize)]
        struct Entry {
            #[serde(rename = "type")]
            kind: String,
            path: String,
            #[serde(default)]
            oid: String,
            #[serde(default)]
            size: u64,
            lfs: Option<Large>,
        }
        #[derive(Deserialize)]
        struct Large {
            oid: String,
            size: u64,
        }
        let repo = repo.to_string();
        let mut url = self.url(["api", "datasets"].into_iter().chain(repo.split('/')).chain(["tree", commit]));
        url.set_query(Some("recursive=true"));
        let mut files = Vec::new();
        for _ in 0..MAX_PAGES {
            let (entries, headers): (Vec<Entry>, _) = self.json(&url).await?;
            for entry in entries.into_iter().filter(|entry| entry.kind == "file") {
                let wrong = |reason: String| HubError::Answer { url: shown(&url), reason };
                check_path(&entry.path)
                    .map_err(|reason| wrong(format!("lists a file whose name {reason}: `{}`", entry.path)))?;
                let (size, hash) = match entry.lfs {
                    Some(large) => (large.size, Hash::Sha256(large.oid.trim_start_matches("sha256:").to_owned())),
                    None => (entry.size, Hash::Git(entry.oid)),
                };
                let length = if matches!(hash, Hash::Sha256(_)) { 64 } else { 40 };
                if !is_hex(hash.digits(), length) {
                    return Err(wrong(format!("lists `{}` without its checksum", entry.path)));
                }
                files.push(Listed { name: entry.path, size, hash });
            }
            match next_page(&url, &headers) {
                None => {
                    files.sort_by(|one, other| one.name.cmp(&other.name));
                    files.dedup_by(|one, other| one.name == other.name);
                    return Ok(files);
                }
                // Another machine is not told the token; the hub's own lists do not lead there.
                Some(next) if next.origin() != self.endpoint.origin() => {
                    let reason = format!("its next page is elsewhere, at `{}`", shown(&next));
                    return Err(HubError::Answer { url: shown(&url), reason });
                }
                Some(next) => url = next,
            }
        }
        Err(HubError::Answer { url: shown(&url), reason: format!("lists files on more than {MAX_PAGES} pages") })
    }

    /// Where the contents of a file are asked for.
    pub(crate) fn contents(&self, repo: &Repo, commit: &str, name: &str) -> Url {
        let repo = repo.to_string();
        self.url(["datasets"].into_iter().chain(repo.split('/')).chain(["resolve", commit]).chain(name.split('/')))
    }

    /// Asks for something, from a byte on; follows redirects. Headers of the hub's own answer that contradict what it
    /// listed are an error.
    pub(crate) async fn ask(&self, url: &Url, from: u64, listed: Option<(&str, &Listed)>) -> Result<Response, Failed> {
        let mut at = url.clone();
        for hop in 0..=MAX_REDIRECTS {
            let mut request = self.client.get(at.clone()).header(ACCEPT_ENCODING, "identity");
            if from > 0 {
                request = request.header(RANGE, format!("bytes={from}-"));
            }
            if let Some(token) = self.options.token.as_ref().filter(|_| at.origin() == self.endpoint.origin()) {
                let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
                    .map_err(|_| Failed::Never(HubError::name("HF_TOKEN", "holds characters that no header takes")))?;
                value.set_sensitive(true);
                request = request.header(AUTHORIZATION, value);
            }
            let response = request.send().await.map_err(|error| again(&error))?;
            if hop == 0
                && let Some((commit, listed)) = listed
            {
                agrees(url, response.headers(), commit, listed).map_err(Failed::Never)?;
            }
            let status = response.status();
            if !status.is_redirection() || status == StatusCode::NOT_MODIFIED {
                return self.answered(&at, response);
            }
            let target = response.headers().get(LOCATION).and_then(|target| target.to_str().ok());
            let next = target.and_then(|target| at.join(target).ok());
            let next = next.filter(|next| matches!(next.scheme(), "http" | "https"));
            at = next.ok_or_else(|| {
                let reason = format!("redirects ({status}) without saying where to");
                Failed::Never(HubError::Answer { url: shown(&at), reason })
            })?;
        }
        let reason = format!("redirects more than {MAX_REDIRECTS} times");
        Err(Failed::Never(HubError::Answer { url: shown(url), reason }))
    }

    fn answered(&self, url: &Url, response: Response) -> Result<Response, Failed> {
        let status = response.status();
        let never = |reason: String| Err(Failed::Never(HubError::Answer { url: shown(url), reason }));
        match status {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE => Ok(response),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => never(match &self.options.token {
                None => format!("refuses ({status}); if the set is private or gated, put a token into `HF_TOKEN`"),
                Some(_) => format!("refuses the token of `HF_TOKEN` ({status}); it may need to accept the set's terms"),
            }),
            StatusCode::NOT_FOUND => never(format!("no such data set, revision or file ({status})")),
            status
                if status.is_server_error()
                    || status == StatusCode::TOO_MANY_REQUESTS
                    || status == StatusCode::REQUEST_TIMEOUT =>
            {
                let wait = response.headers().get(RETRY_AFTER).and_then(|wait| wait.to_str().ok()?.trim().parse().ok());
                Err(Failed::Again { reason: status.to_string(), wait: wait.map(Duration::from_secs) })
            }
            status => never(format!("answers {status}")),
        }
    }

    async fn json<T: serde::de::DeserializeOwned>(&self, url: &Url) -> Result<(T, HeaderMap), HubError> {
        let mut tries = Tries::new(self.options);
        loop {
            let (reason, wait) = match self.once(url).await {
                Ok((body, headers)) => {
                    let value = serde_json::from_slice(&body).map_err(|error| HubError::Answer {
                        url: shown(url),
                        reason: format!("answers what no hub answers: {error}"),
                    })?;
                    return Ok((value, headers));
                }
                Err(Failed::Never(error)) => return Err(error),
                Err(Failed::Again { reason, wait }) => (reason, wait),
            };
            tries.next(url, reason, wait).await?;
        }
    }

    async fn once(&self, url: &Url) -> Result<(Vec<u8>, HeaderMap), Failed> {
        let mut response = self.ask(url, 0, None).await?;
        let headers = response.headers().clone();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| again(&error))? {
            if body.len() + chunk.len() > MAX_ANSWER {
                let reason = format!("answers more than {MAX_ANSWER} bytes");
                return Err(Failed::Never(HubError::Answer { url: shown(url), reason }));
            }
            body.extend_from_slice(&chunk);
        }
        let promised = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        if promised.is_some_and(|promised| promised != body.len()) {
            return Err(Failed::Again { reason: "the answer broke off".to_owned(), wait: None });
        }
        Ok((body, headers))
    }
}

/// An error of the connection, with what lies behind it.
pub(crate) fn again(error: &reqwest::Error) -> Failed {
    let mut reason = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        reason = cause.to_string();
        source = cause.source();
    }
    Failed::Again { reason, wait: None }
}

/// Whether the hub's own headers say of a file what its list said.
fn agrees(url: &Url, headers: &HeaderMap, commit: &str, listed: &Listed) -> Result<(), HubError> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let wrong = |what: &str, said: &str, expected: &str| HubError::Answer {
        url: shown(url),
        reason: format!("its header `{what}` says `{said}`, and its list says `{expected}`"),
    };
    if let Some(said) = text("x-repo-commit").filter(|said| *said != commit) {
        return Err(wrong("X-Repo-Commit", said, commit));
    }
    let plain = |etag: &str| etag.trim_start_matches("W/").trim_matches('"').to_owned();
    if let Some(said) = text("x-linked-etag").or_else(|| text(ETAG.as_str())).map(plain) {
        // Other servers' tags are no hashes and say nothing.
        let hash = is_hex(&said, 40) || is_hex(&said, 64);
        if hash && said != listed.hash.digits() {
            return Err(wrong("ETag", &said, listed.hash.digits()));
        }
    }
    Ok(())
}

/// The next page of a list, as `Link: <...>; rel="next"` says it.
fn next_page(url: &Url, headers: &HeaderMap) -> Option<Url> {
    headers.get_all(LINK).iter().filter_map(|link| link.to_str().ok()).flat_map(|link| link.split(',')).find_map(
        |link| {
            let (target, rest) = link.trim().strip_prefix('<')?.split_once('>')?;
            let next = rest.split(';').any(|part| matches!(part.trim(), "rel=\"next\"" | "rel=next"));
            if next { url.join(target).ok() } else { None }
        },
    )
}
