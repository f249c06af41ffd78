//! The tables, and how an older database becomes a newer one.
//!
//! Statements elsewhere are written so that SQLite and PostgreSQL read them alike (`$1`, `ON CONFLICT`, `RETURNING`); what
//! differs is here: the types of columns, and a number that counts up by itself.

use sqlx::sqlite::SqliteConnection;
use sqlx::{Connection as _, raw_sql};

use super::StoreError;

/// Each makes the next version of the schema. What stands here is never changed; more is added.
const MIGRATIONS: [&str; 2] = [FIRST, CHECKPOINTS];

/// Sessions, models, samplers, requests.
const FIRST: &str = "
CREATE TABLE sessions (
    session_id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    tags TEXT NOT NULL,
    user_metadata TEXT NOT NULL,
    display_name TEXT,
    project_id TEXT,
    sdk_version TEXT,
    created_at BIGINT NOT NULL,
    last_heartbeat BIGINT NOT NULL,
    ended_at BIGINT,
    ended_reason TEXT
);
CREATE INDEX sessions_of_owner ON sessions (owner, created_at);
CREATE INDEX sessions_open ON sessions (last_heartbeat) WHERE ended_at IS NULL;

CREATE TABLE models (
    model_id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL REFERENCES sessions (session_id),
    owner TEXT NOT NULL,
    base_model TEXT NOT NULL,
    lora_rank BIGINT,
    user_metadata TEXT NOT NULL,
    -- creating, ready, failed
    state TEXT NOT NULL,
    failure TEXT,
    failure_category TEXT,
    -- the place in the model's order that is executed next, or is being executed
    next_seq BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    last_request_at BIGINT NOT NULL
);
CREATE INDEX models_of_session ON models (session_id);
CREATE INDEX models_of_owner ON models (owner, created_at);

CREATE TABLE samplers (
    sampler_id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL REFERENCES sessions (session_id),
    owner TEXT NOT NULL,
    base_model TEXT NOT NULL,
    model_path TEXT,
    created_at BIGINT NOT NULL
);
CREATE INDEX samplers_of_session ON samplers (session_id);

CREATE TABLE requests (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    request_id TEXT NOT NULL UNIQUE,
    -- a model or a sampler
    lane TEXT NOT NULL,
    seq BIGINT NOT NULL,
    -- 1 where the lane's requests have an order
    ordered BIGINT NOT NULL,
    session_id TEXT NOT NULL REFERENCES sessions (session_id),
    owner TEXT NOT NULL,
    kind TEXT NOT NULL,
    fingerprint BLOB NOT NULL,
    state BIGINT NOT NULL,
    -- what is asked for, here or in a file; gone when it is done
    payload BLOB,
    payload_file TEXT,
    reply_kind TEXT,
    reply BLOB,
    reply_file TEXT,
    reply_bytes BIGINT,
    -- why it failed or was refused
    error TEXT,
    category TEXT,
    status BIGINT,
    created_at BIGINT NOT NULL,
    finished_at BIGINT,
    -- counts the ends of the lane's requests
    completion BIGINT,
    UNIQUE (lane, seq)
);
CREATE INDEX requests_ready ON requests (ordered, number) WHERE state = 1;
CREATE INDEX requests_running ON requests (number) WHERE state = 2;
CREATE INDEX requests_completed ON requests (lane, completion) WHERE completion IS NOT NULL;
CREATE INDEX requests_of_session ON requests (session_id, state);
CREATE INDEX requests_finished ON requests (finished_at) WHERE state IN (3, 4);
CREATE INDEX requests_payload_files ON requests (payload_file) WHERE payload_file IS NOT NULL;
CREATE INDEX requests_reply_files ON requests (reply_file) WHERE reply_file IS NOT NULL;
";

/// Checkpoints, and what they have to know of their models.
const CHECKPOINTS: &str = "
ALTER TABLE models ADD COLUMN train_attn BIGINT;
ALTER TABLE models ADD COLUMN train_mlp BIGINT;
ALTER TABLE models ADD COLUMN train_unembed BIGINT;

CREATE TABLE checkpoints (
    path TEXT PRIMARY KEY,
    -- counts up: the one with the largest is the newest
    number BIGINT NOT NULL UNIQUE,
    model_id TEXT NOT NULL REFERENCES models (model_id),
    owner TEXT NOT NULL,
    -- weights, sampler_weights, external_weights
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    size_bytes BIGINT,
    user_metadata TEXT,
    public BIGINT NOT NULL,
    -- 1 where nobody named it: it goes with its session
    ephemeral BIGINT NOT NULL,
    -- 1 where it is there for nobody any more, and its files go
    removed BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    -- of the model, when it was saved
    base_model TEXT NOT NULL,
    lora_rank BIGINT,
    train_attn BIGINT,
    train_mlp BIGINT,
    train_unembed BIGINT
);
CREATE INDEX checkpoints_of_owner ON checkpoints (owner, number);
CREATE INDEX checkpoints_of_model ON checkpoints (model_id, kind, number);
CREATE INDEX checkpoints_with_an_end ON checkpoints (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX checkpoints_removed ON checkpoints (number) WHERE removed = 1;
";

/// Brings a database to the newest schema.
pub(super) async fn migrate(connection: &mut SqliteConnection) -> Result<(), StoreError> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    raw_sql("CREATE TABLE IF NOT EXISTS schema_version (version BIGINT NOT NULL)").execute(&mut *transaction).await?;
    let found: Option<i64> =
        sqlx::query_scalar("SELECT MAX(version) FROM schema_version").fetch_one(&mut *transaction).await?;
    let found = found.unwrap_or(0);
    let newest = MIGRATIONS.len() as i64;
    if !(0..=newest).contains(&found) {
        return Err(StoreError::Database(format!(
            "the database has version {found} of the schema, this program knows up to {newest}: a newer one wrote it"
        )));
    }
    for (version, migration) in (1i64..).zip(MIGRATIONS).skip(found as usize) {
        raw_sql(migration).execute(&mut *transaction).await?;
        sqlx::query("INSERT INTO schema_version (version) VALUES ($1)")
            .bind(version)
            .execute(&mut *transaction)
            .await?;
    }
    transaction.commit().await?;
    Ok(())
}
