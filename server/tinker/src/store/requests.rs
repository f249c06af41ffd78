//! Requests: taken in, claimed, finished, looked at.

use std::sync::atomic::Ordering;

use sha2::{Digest as _, Sha256};
use sqlx::sqlite::SqliteConnection;

use super::checkpoints::{Adapter, write_down};
use super::sessions::{Standing, standing};
use super::{Laid, Store, StoreError, now, order};
use crate::backend::{Category, OperationError};
use crate::ids::{ModelId, SamplerId, SessionId, request_id};
use crate::operation::{Kind, Payload, Reply, ReplyKind};
use crate::path::TinkerPath;

/// Where a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Others of its model come first.
    Waiting,
    /// It is its turn.
    Ready,
    /// It is being executed.
    Running,
    /// It has a result.
    Done,
    /// It has a failure.
    Failed,
    /// It was answered with a 4xx; its place is used up.
    Refused,
    /// Its result was forgotten.
    Expired,
}

impl State {
    pub(super) fn of(number: i64) -> Result<Self, StoreError> {
        let all = [Self::Waiting, Self::Ready, Self::Running, Self::Done, Self::Failed, Self::Refused, Self::Expired];
        let found = usize::try_from(number).ok().and_then(|number| all.get(number).copied());
        found.ok_or_else(|| StoreError::Database(format!("a row's state is {number}")))
    }
}

/// A request to take in.
#[derive(Clone, Debug)]
pub struct Submission {
    /// The model's or sampler's name.
    pub lane: String,
    /// Its place there.
    pub seq: i64,
    /// Whose.
    pub session: SessionId,
    /// What it asks for.
    pub kind: Kind,
    /// The same in its stored form.
    pub payload: Vec<u8>,
    /// The model to make, where it makes one.
    pub creates: Option<NewModel>,
}

/// A model to make.
#[derive(Clone, Debug)]
pub struct NewModel {
    /// What it starts from.
    pub base_model: String,
    /// Its adapter.
    pub adapter: Adapter,
    /// For people: a JSON object.
    pub user_metadata: String,
}

impl Submission {
    /// An operation of a model.
    pub fn of_model(model: &ModelId, payload: Payload, creates: Option<NewModel>) -> Self {
        let (seq, kind) = (payload.operation.seq(), payload.operation.kind());
        let (lane, session) = (model.to_string(), model.session.clone());
        Self { lane, seq, session, kind, payload: payload.bytes, creates }
    }

    /// A prompt for a sampler.
    pub fn of_sampler(sampler: &SamplerId, payload: Payload) -> Self {
        let (seq, kind) = (payload.operation.seq(), payload.operation.kind());
        let (lane, session) = (sampler.to_string(), sampler.session.clone());
        Self { lane, seq, session, kind, payload: payload.bytes, creates: None }
    }
}

/// What became of a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// It was taken in, under this name.
    New(String),
    /// The same request was taken in before, under this name.
    Known(String),
    /// The same place was refused before.
    Refused {
        /// With this status.
        status: u16,
        /// And these words.
        detail: String,
    },
    /// Another request has the place.
    Conflict(Kind),
    /// The place was used up, and what it held is forgotten.
    Gone {
        /// The place that comes next.
        next: i64,
    },
    /// Too many requests wait.
    Full,
    /// The session ended.
    SessionEnded,
    /// There is no such session or model, for this owner.
    Unknown,
}

/// A request to execute.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// Its name.
    pub request_id: String,
    /// Its model's or sampler's.
    pub lane: String,
    /// Its place there.
    pub seq: i64,
    /// Whose.
    pub owner: String,
    /// What it asks for.
    pub kind: Kind,
    /// Why its model cannot do anything.
    pub broken: Option<OperationError>,
    /// What it asks for is kept beyond its end, so that its model can be brought back: until [`Store::trim`].
    pub keeps: bool,
    laid: Laid,
}

/// An operation that was done before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Past {
    /// Its place in its model's order.
    pub seq: i64,
    /// What it asked for.
    pub kind: Kind,
    /// The same in its stored form.
    pub payload: Vec<u8>,
    /// When it was done, milliseconds since 1970.
    pub finished_at: i64,
}

/// A request, for whoever waits for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Look {
    /// It is not finished.
    Pending,
    /// Its result.
    Done(ReplyKind, Vec<u8>),
    /// Its failure.
    Failed(OperationError),
    /// Its result was forgotten.
    Gone,
    /// There is none of that name, for this owner.
    Unknown,
}

/// The end of a sampler's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Its name.
    pub request_id: String,
    /// Whether it has a result.
    pub done: bool,
    /// The result's bytes.
    pub bytes: Option<i64>,
    /// Counts the ends of the sampler's requests.
    pub cursor: i64,
}

/// A row of `requests` for whoever looks: state, reply's kind, reply, reply's file, error, category.
type LookRow = (i64, Option<String>, Option<Vec<u8>>, Option<String>, Option<String>, Option<String>);
/// A row of `requests` that is claimed: number, name, lane, place, owner, kind, payload, payload's file.
type ClaimRow = (i64, String, String, i64, String, String, Option<Vec<u8>>, Option<String>);

/// A row of `requests` that was done: place, kind, when, payload, payload's file.
type PastRow = (i64, String, i64, Option<Vec<u8>>, Option<String>);
/// A row of `requests` that has a place: name, kind, fingerprint, state, refusal, its status.
type PlaceRow = (String, String, Vec<u8>, i64, Option<String>, Option<i64>);

/// How much may wait.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Requests that are not finished, all together.
    pub unfinished: usize,
    /// How far ahead of its model's turn a request may come.
    pub ahead: i64,
}

async fn make_model(
    connection: &mut SqliteConnection,
    owner: &str,
    submission: &Submission,
    model: &NewModel,
    at: i64,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO models (model_id, session_id, owner, base_model, lora_rank, user_metadata, state, next_seq, created_at, \
         last_request_at, train_attn, train_mlp, train_unembed) VALUES ($1, $2, $3, $4, $5, $6, 'creating', 0, $7, $7, $8, $9, \
         $10) ON CONFLICT (model_id) DO NOTHING",
    )
    .bind(submission.lane.clone())
    .bind(submission.session.to_string())
    .bind(owner.to_owned())
    .bind(model.base_model.clone())
    .bind(model.adapter.rank)
    .bind(model.user_metadata.clone())
    .bind(at)
    .bind(model.adapter.attn.map(i64::from))
    .bind(model.adapter.mlp.map(i64::from))
    .bind(model.adapter.unembed.map(i64::from))
    .execute(connection)
    .await?;
    Ok(())
}

/// What holds a place already, if something does.
async fn placed(
    connection: &mut SqliteConnection,
    lane: &str,
    seq: i64,
    fingerprint: &[u8],
) -> Result<Option<Submitted>, StoreError> {
    let found: Option<PlaceRow> = sqlx::query_as(
        "SELECT request_id, kind, fingerprint, state, error, status FROM requests WHERE lane = $1 AND seq = $2",
    )
    .bind(lane.to_owned())
    .bind(seq)
    .fetch_optional(connection)
    .await?;
    let Some((request_id, kind, known, state, error, status)) = found else { return Ok(None) };
    Ok(Some(if State::of(state)? == State::Refused {
        let status = status.and_then(|status| u16::try_from(status).ok()).unwrap_or(400);
        Submitted::Refused { status, detail: error.unwrap_or_default() }
    } else if known == fingerprint {
        Submitted::Known(request_id)
    } else {
        Submitted::Conflict(Kind::of(&kind).ok_or_else(|| StoreError::Database(format!("a row's kind is `{kind}`")))?)
    }))
}

async fn next_seq(connection: &mut SqliteConnection, lane: &str) -> Result<Option<i64>, StoreError> {
    let next = sqlx::query_scalar("SELECT next_seq FROM models WHERE model_id = $1")
        .bind(lane.to_owned())
        .fetch_optional(connection)
        .await?;
    Ok(next)
}

impl Store {
    /// Takes a request in, once: sent again it is known.
    pub async fn submit(&self, owner: &str, submission: Submission, room: Room) -> Result<Submitted, StoreError> {
        let mut hash = Sha256::new();
        hash.update(submission.kind.name());
        hash.update([0]);
        hash.update(&submission.payload);
        let fingerprint = hash.finalize().to_vec();
        let request_id =
            request_id().map_err(|error| StoreError::Database(format!("the system gives no randomness: {error}")))?;
        let mut submission = submission;
        let laid = self.lay_down(std::mem::take(&mut submission.payload)).await?;
        let (owner, unfinished) = (owner.to_owned(), std::sync::Arc::clone(&self.unfinished));
        self.write(move |connection| {
            Box::pin(async move {
                let at = now();
                match standing(connection, &owner, &submission.session).await? {
                    Standing::Unknown => return Ok(Submitted::Unknown),
                    Standing::Ended => return Ok(Submitted::SessionEnded),
                    Standing::Open => {}
                }
                if let Some(held) = placed(connection, &submission.lane, submission.seq, &fingerprint).await? {
                    return Ok(held);
                }
                let ordered = submission.kind.is_ordered();
                let full = unfinished.load(Ordering::Relaxed) >= room.unfinished;
                let mut state = State::Ready;
                if ordered {
                    if let Some(model) = &submission.creates {
                        make_model(connection, &owner, &submission, model, at).await?;
                    }
                    let Some(next) = next_seq(connection, &submission.lane).await? else { return Ok(Submitted::Unknown) };
                    if submission.seq < next {
                        return Ok(Submitted::Gone { next });
                    }
                    // Whoever's turn it is always gets in: those that wait for it hold the room.
                    if submission.seq > next && (full || submission.seq - next > room.ahead) {
                        return Ok(Submitted::Full);
                    }
                    state = order::on_arrival(submission.seq, next);
                    sqlx::query("UPDATE models SET last_request_at = $2 WHERE model_id = $1")
                        .bind(submission.lane.clone())
                        .bind(at)
                        .execute(&mut *connection)
                        .await?;
                } else if full {
                    return Ok(Submitted::Full);
                }
                sqlx::query(
                    "INSERT INTO requests (request_id, lane, seq, ordered, session_id, owner, kind, fingerprint, state, \
                     payload, payload_file, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
                )
                .bind(request_id.clone())
                .bind(submission.lane)
                .bind(submission.seq)
                .bind(i64::from(ordered))
                .bind(submission.session.to_string())
                .bind(owner)
                .bind(submission.kind.name())
                .bind(fingerprint)
                .bind(state as i64)
                .bind(laid.inline)
                .bind(laid.file)
                .bind(at)
                .execute(connection)
                .await?;
                unfinished.fetch_add(1, Ordering::Relaxed);
                Ok(Submitted::New(request_id))
            })
        })
        .await
    }

    /// Uses up a place whose request was refused, so that those after it go on. Nothing happens where something has the
    /// place, or the model is nobody's.
    pub async fn refuse(
        &self,
        owner: &str,
        model: &ModelId,
        seq: i64,
        kind: Kind,
        status: u16,
        detail: &str,
    ) -> Result<(), StoreError> {
        let request_id =
            request_id().map_err(|error| StoreError::Database(format!("the system gives no randomness: {error}")))?;
        let (owner, session, lane) = (owner.to_owned(), model.session.clone(), model.to_string());
        let detail: String = detail.chars().take(2000).collect();
        self.write(move |connection| {
            Box::pin(async move {
                if standing(connection, &owner, &session).await? != Standing::Open {
                    return Ok(());
                }
                let next = next_seq(connection, &lane).await?;
                if next.is_none_or(|next| seq < next) {
                    return Ok(());
                }
                let at = now();
                let made = sqlx::query(
                    "INSERT INTO requests (request_id, lane, seq, ordered, session_id, owner, kind, fingerprint, state, error, \
                     category, status, created_at, finished_at) VALUES ($1, $2, $3, 1, $4, $5, $6, $7, 5, $8, 'user', $9, $10, \
                     $10) ON CONFLICT (lane, seq) DO NOTHING",
                )
                .bind(request_id)
                .bind(lane.clone())
                .bind(seq)
                .bind(session.to_string())
                .bind(owner)
                .bind(kind.name())
                .bind(Vec::new())
                .bind(detail)
                .bind(i64::from(status))
                .bind(at)
                .execute(&mut *connection)
                .await?;
                if made.rows_affected() > 0 {
                    order::advance(connection, &lane, seq).await?;
                }
                Ok(())
            })
        })
        .await
    }

    /// Takes requests whose turn it is, oldest first: operations of models, or samples.
    pub async fn claim(&self, ordered: bool, limit: usize) -> Result<Vec<Claimed>, StoreError> {
        self.write(move |connection| {
            Box::pin(async move {
                let mut rows: Vec<ClaimRow> = sqlx::query_as(
                    "UPDATE requests SET state = 2 WHERE number IN (SELECT number FROM requests WHERE state = 1 AND ordered = $1 \
                     ORDER BY number LIMIT $2) RETURNING number, request_id, lane, seq, owner, kind, payload, payload_file",
                )
                .bind(i64::from(ordered))
                .bind(limit as i64)
                .fetch_all(&mut *connection)
                .await?;
                rows.sort_by_key(|row| row.0);
                let mut claimed = Vec::with_capacity(rows.len());
                for (_, request_id, lane, seq, owner, kind, inline, file) in rows {
                    let broken = if ordered { broken(connection, &lane).await? } else { None };
                    let kind =
                        Kind::of(&kind).ok_or_else(|| StoreError::Database(format!("a row's kind is `{kind}`")))?;
                    let (keeps, laid) = (kind.changes_model(), Laid { inline, file });
                    claimed.push(Claimed { request_id, lane, seq, owner, kind, broken, keeps, laid });
                }
                Ok(claimed)
            })
        })
        .await
    }

    /// What a claimed request asks for.
    pub async fn payload(&self, claimed: &mut Claimed) -> Result<Vec<u8>, StoreError> {
        self.pick_up(std::mem::take(&mut claimed.laid)).await
    }

    /// Stores how a claimed request ended, and moves its model's order on. `false` where it had ended before: it was
    /// cancelled, or its session ended.
    pub async fn finish(&self, claimed: &Claimed, ended: Result<Reply, OperationError>) -> Result<bool, StoreError> {
        let (lane, seq, kind, request_id) =
            (claimed.lane.clone(), claimed.seq, claimed.kind, claimed.request_id.clone());
        let (mut reply_kind, mut laid, mut bytes, mut sampler, mut saved, mut failure) =
            (None, Laid::default(), None, None, None, None);
        match ended {
            Ok(reply) => {
                reply_kind = Some(reply.kind.name());
                bytes = Some(reply.bytes.len() as i64);
                sampler = reply.sampler;
                saved = reply.saved;
                laid = self.lay_down(reply.bytes).await?;
            }
            Err(error) => failure = Some(error),
        }
        let keeps = claimed.keeps;
        let unfinished = std::sync::Arc::clone(&self.unfinished);
        self.write(move |connection| {
            Box::pin(async move {
                let at = now();
                if let Some((sampler, path)) = &sampler
                    && is_anothers(connection, sampler, path).await?
                {
                    failure = Some(OperationError::user(format!(
                        "`sampling_session_seq_id`: {} of this session samples from something else already",
                        sampler.number
                    )));
                    (reply_kind, laid, bytes, saved) = (None, Laid::default(), None, None);
                }
                let sampler = if failure.is_some() { None } else { sampler };
                let keeps = keeps && failure.is_none();
                let state = if failure.is_some() { State::Failed } else { State::Done };
                let ended = sqlx::query(
                    "UPDATE requests SET state = $2, reply_kind = $3, reply = $4, reply_file = $5, reply_bytes = $6, error = $7, \
                     category = $8, finished_at = $9, payload = CASE WHEN $11 = 1 THEN payload END, \
                     payload_file = CASE WHEN $11 = 1 THEN payload_file END, \
                     completion = (SELECT COALESCE(MAX(completion), 0) + 1 FROM requests WHERE lane = $10) \
                     WHERE request_id = $1 AND state = 2",
                )
                .bind(request_id)
                .bind(state as i64)
                .bind(reply_kind)
                .bind(laid.inline)
                .bind(laid.file)
                .bind(bytes)
                .bind(failure.as_ref().map(|failure| failure.message.clone()))
                .bind(failure.as_ref().map(|failure| failure.category.name()))
                .bind(at)
                .bind(lane.clone())
                .bind(i64::from(keeps))
                .execute(&mut *connection)
                .await?;
                if ended.rows_affected() == 0 {
                    return Ok(false);
                }
                unfinished.fetch_sub(1, Ordering::Relaxed);
                if kind.is_ordered() {
                    if seq == 0 {
                        let state = if failure.is_some() { "failed" } else { "ready" };
                        sqlx::query("UPDATE models SET state = $2, failure = $3, failure_category = $4 WHERE model_id = $1")
                            .bind(lane.clone())
                            .bind(state)
                            .bind(failure.as_ref().map(|failure| failure.message.clone()))
                            .bind(failure.as_ref().map(|failure| failure.category.name()))
                            .execute(&mut *connection)
                            .await?;
                    }
                    order::advance(connection, &lane, seq).await?;
                }
                if let Some(saved) = saved {
                    write_down(connection, &saved, &lane, at).await?;
                }
                if let Some((sampler, path)) = sampler {
                    sqlx::query(
                        "INSERT INTO samplers (sampler_id, session_id, owner, base_model, model_path, created_at) \
                         SELECT $1, session_id, owner, base_model, $2, $3 FROM models WHERE model_id = $4 \
                         ON CONFLICT (sampler_id) DO NOTHING",
                    )
                    .bind(sampler.to_string())
                    .bind(path.to_string())
                    .bind(at)
                    .bind(lane)
                    .execute(connection)
                    .await?;
                }
                Ok(true)
            })
        })
        .await
    }

    /// The first operation of a model that was done at a place after `after` and before `before`, and changed it.
    pub async fn done_after(&self, model: &ModelId, after: i64, before: i64) -> Result<Option<Past>, StoreError> {
        let row: Option<PastRow> = sqlx::query_as(
            "SELECT seq, kind, finished_at, payload, payload_file FROM requests WHERE lane = $1 AND seq > $2 AND seq < $3 \
             AND state IN (3, 6) AND (payload IS NOT NULL OR payload_file IS NOT NULL) ORDER BY seq LIMIT 1",
        )
        .bind(model.to_string())
        .bind(after)
        .bind(before)
        .fetch_optional(&self.readers)
        .await?;
        let Some((seq, kind, finished_at, inline, file)) = row else { return Ok(None) };
        let kind = Kind::of(&kind).ok_or_else(|| StoreError::Database(format!("a row's kind is `{kind}`")))?;
        Ok(Some(Past { seq, kind, payload: self.pick_up(Laid { inline, file }).await?, finished_at }))
    }

    /// A model is kept elsewhere as it was after a place: what was asked of it up to there is forgotten.
    pub async fn trim(&self, model: &ModelId, kept: i64) -> Result<(), StoreError> {
        let lane = model.to_string();
        self.write(move |connection| {
            Box::pin(async move {
                sqlx::query(
                    "UPDATE requests SET payload = NULL, payload_file = NULL WHERE lane = $1 AND seq <= $2 \
                     AND state IN (3, 6) AND (payload IS NOT NULL OR payload_file IS NOT NULL)",
                )
                .bind(lane)
                .bind(kept)
                .execute(connection)
                .await?;
                Ok(())
            })
        })
        .await
    }

    /// Ends a sample that nobody wants any more. Operations of models stay: those behind them count on them. Answers its
    /// lane where something was ended.
    pub async fn cancel(&self, owner: &str, request_id: &str) -> Result<Option<String>, StoreError> {
        let (owner, request_id) = (owner.to_owned(), request_id.to_owned());
        let unfinished = std::sync::Arc::clone(&self.unfinished);
        self.write(move |connection| {
            Box::pin(async move {
                let lane: Option<String> = sqlx::query_scalar(
                    "UPDATE requests SET state = 4, error = 'the request was cancelled', category = 'user', finished_at = $3, \
                     payload = NULL, payload_file = NULL, completion = (SELECT COALESCE(MAX(others.completion), 0) + 1 \
                     FROM requests AS others WHERE others.lane = requests.lane) \
                     WHERE request_id = $1 AND owner = $2 AND ordered = 0 AND state IN (1, 2) RETURNING lane",
                )
                .bind(request_id)
                .bind(owner)
                .bind(now())
                .fetch_optional(connection)
                .await?;
                if lane.is_some() {
                    unfinished.fetch_sub(1, Ordering::Relaxed);
                }
                Ok(lane)
            })
        })
        .await
    }

    /// How a request stands.
    pub async fn look(&self, owner: &str, request_id: &str) -> Result<Look, StoreError> {
        let row: Option<LookRow> = sqlx::query_as(
            "SELECT state, reply_kind, reply, reply_file, error, category FROM requests WHERE request_id = $1 AND owner = $2",
        )
        .bind(request_id.to_owned())
        .bind(owner.to_owned())
        .fetch_optional(&self.readers)
        .await?;
        let Some((state, kind, inline, file, error, category)) = row else { return Ok(Look::Unknown) };
        Ok(match State::of(state)? {
            State::Waiting | State::Ready | State::Running => Look::Pending,
            State::Done => {
                let kind = kind.as_deref().and_then(ReplyKind::of);
                let kind = kind.ok_or_else(|| StoreError::Database("a result has no kind".to_owned()))?;
                Look::Done(kind, self.pick_up(Laid { inline, file }).await?)
            }
            State::Failed | State::Refused => Look::Failed(OperationError {
                category: Category::of(&category.unwrap_or_default()),
                message: error.unwrap_or_default(),
            }),
            State::Expired => Look::Gone,
        })
    }

    /// Ends of a sampler's requests whose places are in a range, after a cursor, oldest first.
    pub async fn completions(
        &self,
        sampler: &SamplerId,
        seqs: std::ops::Range<i64>,
        after: i64,
        limit: i64,
    ) -> Result<Vec<Completion>, StoreError> {
        let rows: Vec<(String, i64, Option<i64>, i64)> = sqlx::query_as(
            "SELECT request_id, state, reply_bytes, completion FROM requests WHERE lane = $1 AND completion > $2 AND seq >= $3 \
             AND seq < $4 AND completion IS NOT NULL ORDER BY completion LIMIT $5",
        )
        .bind(sampler.to_string())
        .bind(after)
        .bind(seqs.start)
        .bind(seqs.end)
        .bind(limit)
        .fetch_all(&self.readers)
        .await?;
        rows.into_iter()
            .map(|(request_id, state, bytes, cursor)| {
                let done = State::of(state)? != State::Failed;
                Ok(Completion { request_id, done, bytes, cursor })
            })
            .collect()
    }
}

/// Whether a sampler's number was given before, to other weights.
async fn is_anothers(
    connection: &mut SqliteConnection,
    sampler: &SamplerId,
    path: &TinkerPath,
) -> Result<bool, StoreError> {
    let known: Option<Option<String>> = sqlx::query_scalar("SELECT model_path FROM samplers WHERE sampler_id = $1")
        .bind(sampler.to_string())
        .fetch_optional(connection)
        .await?;
    Ok(known.is_some_and(|known| known != Some(path.to_string())))
}

/// Why a model can do nothing.
async fn broken(connection: &mut SqliteConnection, lane: &str) -> Result<Option<OperationError>, StoreError> {
    let found: Option<(Option<String>, Option<String>)> =
        sqlx::query_as("SELECT failure, failure_category FROM models WHERE model_id = $1 AND state = 'failed'")
            .bind(lane.to_owned())
            .fetch_optional(connection)
            .await?;
    Ok(found.map(|(failure, category)| OperationError {
        category: Category::of(&category.unwrap_or_default()),
        message: format!("the model `{lane}` is not there: {}", failure.unwrap_or_default()),
    }))
}
