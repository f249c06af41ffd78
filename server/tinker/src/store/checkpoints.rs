//! Checkpoints: written down with the end of the request that saved them, read, changed, and forgotten.
//!
//! A row is `removed` first: from then on the checkpoint exists for nobody. Its files go next, and the row last, so that
//! files that are left by a crash are still known. One whose time is over is not there either, also before it is removed.

use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{FromRow, Row as _};

use super::{Store, StoreError, now};
use crate::ids::ModelId;
use crate::operation::Saved;
use crate::path::TinkerPath;

/// Most checkpoints that are listed of one model, and most that one sweep removes.
const MOST: i64 = 10_000;

/// What stands in a statement for a checkpoint that can be listed at the time `$1`.
macro_rules! listed {
    () => {
        "removed = 0 AND ephemeral = 0 AND (expires_at IS NULL OR expires_at > $1)"
    };
}

/// The adapter of a model or checkpoint. What is not known is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adapter {
    /// Its rank.
    pub rank: Option<i64>,
    /// The attention has one.
    pub attn: Option<bool>,
    /// The feed-forward layers have one.
    pub mlp: Option<bool>,
    /// The output layer has one.
    pub unembed: Option<bool>,
}

impl Adapter {
    pub(super) fn of_row(row: &SqliteRow) -> Result<Self, sqlx::Error> {
        let flag = |name: &str| Ok::<_, sqlx::Error>(row.try_get::<Option<i64>, _>(name)?.map(|flag| flag != 0));
        Ok(Self {
            rank: row.try_get("lora_rank")?,
            attn: flag("train_attn")?,
            mlp: flag("train_mlp")?,
            unembed: flag("train_unembed")?,
        })
    }
}

/// A checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Where it is.
    pub path: TinkerPath,
    /// Whose.
    pub owner: String,
    /// Bytes, where they are known.
    pub size_bytes: Option<i64>,
    /// For people: a JSON object.
    pub user_metadata: Option<String>,
    /// Everybody may read it.
    pub public: bool,
    /// It has no name that anybody gave, and goes with its session.
    pub ephemeral: bool,
    /// It is there for nobody any more, and its files go.
    pub removed: bool,
    /// When it was written, milliseconds since 1970.
    pub created_at: i64,
    /// When it goes, milliseconds since 1970.
    pub expires_at: Option<i64>,
    /// Which base model its weights belong to.
    pub base_model: String,
    /// Its adapter.
    pub adapter: Adapter,
}

impl Checkpoint {
    /// Whether it is there, at a time.
    pub fn is_there(&self, at: i64) -> bool {
        !self.removed && self.expires_at.is_none_or(|end| end > at)
    }
}

impl FromRow<'_, SqliteRow> for Checkpoint {
    fn from_row(row: &SqliteRow) -> Result<Self, sqlx::Error> {
        let path: String = row.try_get("path")?;
        let flag = |name: &str| Ok::<_, sqlx::Error>(row.try_get::<i64, _>(name)? != 0);
        Ok(Self {
            path: path.parse().map_err(|error| sqlx::Error::Decode(Box::new(error)))?,
            owner: row.try_get("owner")?,
            size_bytes: row.try_get("size_bytes")?,
            user_metadata: row.try_get("user_metadata")?,
            public: flag("public")?,
            ephemeral: flag("ephemeral")?,
            removed: flag("removed")?,
            created_at: row.try_get("created_at")?,
            expires_at: row.try_get("expires_at")?,
            base_model: row.try_get("base_model")?,
            adapter: Adapter::of_row(row)?,
        })
    }
}

/// What its owner does to a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is there for nobody any more; its files are to go.
    Remove,
    /// Everybody may read it, or only its owner.
    Publish(bool),
    /// It goes then (milliseconds since 1970), or never.
    Expire(Option<i64>),
}

/// Writes down what a model saved. One of the same path is replaced.
pub(super) async fn write_down(
    connection: &mut SqliteConnection,
    saved: &Saved,
    model: &str,
    at: i64,
) -> Result<(), StoreError> {
    let expires = saved.ttl_seconds.and_then(|seconds| i64::try_from(seconds).ok()?.checked_mul(1000)?.checked_add(at));
    sqlx::query(
        "INSERT INTO checkpoints (path, number, model_id, owner, kind, name, size_bytes, user_metadata, public, ephemeral, \
         removed, created_at, expires_at, base_model, lora_rank, train_attn, train_mlp, train_unembed) \
         SELECT $1, (SELECT COALESCE(MAX(number), 0) + 1 FROM checkpoints), model_id, owner, $2, $3, $4, $5, 0, $6, 0, $7, $8, \
         base_model, lora_rank, train_attn, train_mlp, train_unembed FROM models WHERE model_id = $9 \
         ON CONFLICT (path) DO UPDATE SET number = excluded.number, size_bytes = excluded.size_bytes, \
         user_metadata = excluded.user_metadata, public = 0, removed = 0, created_at = excluded.created_at, \
         expires_at = excluded.expires_at, base_model = excluded.base_model, lora_rank = excluded.lora_rank, \
         train_attn = excluded.train_attn, train_mlp = excluded.train_mlp, train_unembed = excluded.train_unembed \
         WHERE checkpoints.ephemeral = excluded.ephemeral",
    )
    .bind(saved.path.to_string())
    .bind(saved.path.kind.segment())
    .bind(saved.path.name.as_str().to_owned())
    .bind(saved.size.and_then(|size| i64::try_from(size).ok()))
    .bind(saved.user_metadata.clone())
    .bind(i64::from(saved.ephemeral))
    .bind(at)
    .bind(expires)
    .bind(model.to_owned())
    .execute(connection)
    .await?;
    Ok(())
}

/// What a session leaves to sample from goes with it.
pub(super) async fn end_session(connection: &mut SqliteConnection, session: &str) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE checkpoints SET removed = 1 WHERE ephemeral = 1 AND removed = 0 \
         AND model_id IN (SELECT model_id FROM models WHERE session_id = $1)",
    )
    .bind(session.to_owned())
    .execute(connection)
    .await?;
    Ok(())
}

impl Store {
    /// The checkpoint of that path, whoever's it is, also where it is removed or its time is over.
    pub async fn checkpoint(&self, path: &TinkerPath) -> Result<Option<Checkpoint>, StoreError> {
        let found = sqlx::query_as("SELECT * FROM checkpoints WHERE path = $1")
            .bind(path.to_string())
            .fetch_optional(&self.readers)
            .await?;
        Ok(found)
    }

    /// The checkpoint of that path, where this owner may read it.
    pub async fn readable(&self, owner: &str, path: &TinkerPath) -> Result<Option<Checkpoint>, StoreError> {
        let found = self.checkpoint(path).await?;
        Ok(found.filter(|found| found.is_there(now()) && (found.public || found.owner == owner)))
    }

    /// An owner's checkpoints, newest first, and how many there are in all.
    pub async fn checkpoints(
        &self,
        owner: &str,
        limit: i64,
        offset: i64,
    ) -> Result<(Vec<Checkpoint>, i64), StoreError> {
        let at = now();
        let total = sqlx::query_scalar(concat!("SELECT COUNT(*) FROM checkpoints WHERE owner = $2 AND ", listed!()))
            .bind(at)
            .bind(owner.to_owned())
            .fetch_one(&self.readers)
            .await?;
        let found = sqlx::query_as(concat!(
            "SELECT * FROM checkpoints WHERE owner = $2 AND ",
            listed!(),
            " ORDER BY number DESC LIMIT $3 OFFSET $4"
        ))
        .bind(at)
        .bind(owner.to_owned())
        .bind(limit)
        .bind(offset)
        .fetch_all(&self.readers)
        .await?;
        Ok((found, total))
    }

    /// A model's checkpoints, newest first.
    pub async fn checkpoints_of(&self, model: &ModelId) -> Result<Vec<Checkpoint>, StoreError> {
        let found = sqlx::query_as(concat!(
            "SELECT * FROM checkpoints WHERE model_id = $2 AND ",
            listed!(),
            " ORDER BY number DESC LIMIT $3"
        ))
        .bind(now())
        .bind(model.to_string())
        .bind(MOST)
        .fetch_all(&self.readers)
        .await?;
        Ok(found)
    }

    /// The newest checkpoint of each kind of a model.
    pub async fn last_checkpoints_of(&self, model: &ModelId) -> Result<Vec<Checkpoint>, StoreError> {
        let found = sqlx::query_as(concat!(
            "SELECT * FROM checkpoints WHERE number IN (SELECT MAX(number) FROM checkpoints WHERE model_id = $2 AND ",
            listed!(),
            " GROUP BY kind)"
        ))
        .bind(now())
        .bind(model.to_string())
        .fetch_all(&self.readers)
        .await?;
        Ok(found)
    }

    /// The newest checkpoint of each kind, of each of the models that [`Self::models`] answers.
    pub async fn last_checkpoints(&self, owner: &str, limit: i64, offset: i64) -> Result<Vec<Checkpoint>, StoreError> {
        let found = sqlx::query_as(concat!(
            "SELECT * FROM checkpoints WHERE number IN (SELECT MAX(number) FROM checkpoints WHERE model_id IN \
             (SELECT model_id FROM models WHERE owner = $2 ORDER BY created_at DESC, model_id LIMIT $3 OFFSET $4) AND ",
            listed!(),
            " GROUP BY model_id, kind)"
        ))
        .bind(now())
        .bind(owner.to_owned())
        .bind(limit)
        .bind(offset)
        .fetch_all(&self.readers)
        .await?;
        Ok(found)
    }

    /// Changes one of an owner's checkpoints that can be listed; `false` where there is none.
    pub async fn change_checkpoint(&self, owner: &str, path: &TinkerPath, change: Change) -> Result<bool, StoreError> {
        let (owner, path) = (owner.to_owned(), path.to_string());
        self.write(move |connection| {
            Box::pin(async move {
                let (statement, value) = match change {
                    Change::Remove => (
                        concat!("UPDATE checkpoints SET removed = $4 WHERE path = $2 AND owner = $3 AND ", listed!()),
                        Some(1),
                    ),
                    Change::Publish(public) => (
                        concat!("UPDATE checkpoints SET public = $4 WHERE path = $2 AND owner = $3 AND ", listed!()),
                        Some(i64::from(public)),
                    ),
                    Change::Expire(at) => (
                        concat!(
                            "UPDATE checkpoints SET expires_at = $4 WHERE path = $2 AND owner = $3 AND ",
                            listed!()
                        ),
                        at,
                    ),
                };
                let changed =
                    sqlx::query(statement).bind(now()).bind(path).bind(owner).bind(value).execute(connection).await?;
                Ok(changed.rows_affected() > 0)
            })
        })
        .await
    }

    /// Removes checkpoints whose time is over; answers all that are removed and not forgotten yet.
    pub async fn expire_checkpoints(&self, at: i64) -> Result<Vec<TinkerPath>, StoreError> {
        let over: Option<i64> =
            sqlx::query_scalar("SELECT number FROM checkpoints WHERE removed = 1 OR expires_at <= $1 LIMIT 1")
                .bind(at)
                .fetch_optional(&self.readers)
                .await?;
        if over.is_none() {
            return Ok(Vec::new());
        }
        self.write(move |connection| {
            Box::pin(async move {
                sqlx::query("UPDATE checkpoints SET removed = 1 WHERE removed = 0 AND expires_at <= $1")
                    .bind(at)
                    .execute(&mut *connection)
                    .await?;
                let removed: Vec<(String,)> =
                    sqlx::query_as("SELECT path FROM checkpoints WHERE removed = 1 ORDER BY number LIMIT $1")
                        .bind(MOST)
                        .fetch_all(connection)
                        .await?;
                let path = |(path,): (String,)| {
                    path.parse().map_err(|error| StoreError::Database(format!("a row's path: {error}")))
                };
                removed.into_iter().map(path).collect()
            })
        })
        .await
    }

    /// Forgets a checkpoint that is removed, or whose time is over: its files are gone.
    pub async fn forget_checkpoint(&self, path: &TinkerPath) -> Result<(), StoreError> {
        let path = path.to_string();
        self.write(move |connection| {
            Box::pin(async move {
                sqlx::query("DELETE FROM checkpoints WHERE path = $1 AND (removed = 1 OR expires_at <= $2)")
                    .bind(path)
                    .bind(now())
                    .execute(connection)
                    .await?;
                Ok(())
            })
        })
        .await
    }
}
