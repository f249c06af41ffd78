//! Models and samplers, for those who make and read them.

use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow, Row as _};

use super::checkpoints::Adapter;
use super::sessions::{Standing, standing};
use super::{Store, StoreError, now};
use crate::ids::{ModelId, SamplerId};

/// A model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Its name.
    pub model_id: String,
    /// Whose.
    pub owner: String,
    /// What it started from.
    pub base_model: String,
    /// Its adapter.
    pub adapter: Adapter,
    /// For people: a JSON object.
    pub user_metadata: String,
    /// `creating`, `ready` or `failed`.
    pub state: String,
    /// Why it failed.
    pub failure: Option<String>,
    /// When something was last asked of it, milliseconds since 1970.
    pub last_request_at: i64,
}

/// A sampling session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sampler {
    /// Its name.
    pub sampler_id: String,
    /// Which base model.
    pub base_model: String,
    /// Which weights; the base model's own where absent.
    pub model_path: Option<String>,
}

impl FromRow<'_, SqliteRow> for Model {
    fn from_row(row: &SqliteRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            model_id: row.try_get("model_id")?,
            owner: row.try_get("owner")?,
            base_model: row.try_get("base_model")?,
            adapter: Adapter::of_row(row)?,
            user_metadata: row.try_get("user_metadata")?,
            state: row.try_get("state")?,
            failure: row.try_get("failure")?,
            last_request_at: row.try_get("last_request_at")?,
        })
    }
}

impl FromRow<'_, SqliteRow> for Sampler {
    fn from_row(row: &SqliteRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            sampler_id: row.try_get("sampler_id")?,
            base_model: row.try_get("base_model")?,
            model_path: row.try_get("model_path")?,
        })
    }
}

/// What became of a sampler that was to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Made {
    /// It is there.
    Yes,
    /// Another one has its number.
    Conflict,
    /// Its session takes no work, or is not there.
    No(Standing),
}

impl Store {
    /// Makes a sampler, once.
    pub async fn create_sampler(
        &self,
        owner: &str,
        sampler: &SamplerId,
        base_model: &str,
        model_path: Option<String>,
    ) -> Result<Made, StoreError> {
        let (owner, sampler, base_model) = (owner.to_owned(), sampler.clone(), base_model.to_owned());
        self.write(move |connection| {
            Box::pin(async move {
                match standing(connection, &owner, &sampler.session).await? {
                    Standing::Open => {}
                    other => return Ok(Made::No(other)),
                }
                let known: Option<(String, Option<String>)> =
                    sqlx::query_as("SELECT base_model, model_path FROM samplers WHERE sampler_id = $1")
                        .bind(sampler.to_string())
                        .fetch_optional(&mut *connection)
                        .await?;
                if let Some(known) = known {
                    return Ok(if known == (base_model, model_path) { Made::Yes } else { Made::Conflict });
                }
                sqlx::query(
                    "INSERT INTO samplers (sampler_id, session_id, owner, base_model, model_path, created_at) \
                     VALUES ($1, $2, $3, $4, $5, $6)",
                )
                .bind(sampler.to_string())
                .bind(sampler.session.to_string())
                .bind(owner)
                .bind(base_model)
                .bind(model_path)
                .bind(now())
                .execute(connection)
                .await?;
                Ok(Made::Yes)
            })
        })
        .await
    }

    /// One of an owner's samplers.
    pub async fn sampler(&self, owner: &str, sampler: &SamplerId) -> Result<Option<Sampler>, StoreError> {
        let found = sqlx::query_as(
            "SELECT sampler_id, base_model, model_path FROM samplers WHERE sampler_id = $1 AND owner = $2",
        )
        .bind(sampler.to_string())
        .bind(owner.to_owned())
        .fetch_optional(&self.readers)
        .await?;
        Ok(found)
    }

    /// One of an owner's models.
    pub async fn model(&self, owner: &str, model: &ModelId) -> Result<Option<Model>, StoreError> {
        let found = sqlx::query_as("SELECT * FROM models WHERE model_id = $1 AND owner = $2")
            .bind(model.to_string())
            .bind(owner.to_owned())
            .fetch_optional(&self.readers)
            .await?;
        Ok(found)
    }

    /// An owner's models, newest first, and how many there are in all.
    pub async fn models(&self, owner: &str, limit: i64, offset: i64) -> Result<(Vec<Model>, i64), StoreError> {
        let total: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM models WHERE owner = $1")
            .bind(owner.to_owned())
            .fetch_one(&self.readers)
            .await?;
        let models = sqlx::query_as(
            "SELECT * FROM models WHERE owner = $1 ORDER BY created_at DESC, model_id LIMIT $2 OFFSET $3",
        )
        .bind(owner.to_owned())
        .bind(limit)
        .bind(offset)
        .fetch_all(&self.readers)
        .await?;
        Ok((models, total))
    }
}
