//! Requests about sessions, samplers, futures and reads.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Checked, within};
use crate::ids::{ModelId, SamplerId, SessionId};
use crate::path::TinkerPath;

/// Most tags of a session.
const MOST_TAGS: usize = 64;
/// Most bytes of a session's or model's metadata.
const MOST_METADATA: usize = 64 << 10;

/// Body of `create_session`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CreateSession {
    /// For people.
    #[serde(default)]
    pub tags: Vec<String>,
    /// For people.
    #[serde(default)]
    pub user_metadata: Option<Map<String, Value>>,
    /// Which SDK.
    #[serde(default)]
    pub sdk_version: Option<String>,
    /// For people.
    #[serde(default)]
    pub project_id: Option<String>,
    /// For people.
    #[serde(default)]
    pub display_name: Option<String>,
}

/// Refuses metadata that would fill the database.
pub(super) fn check_metadata(metadata: Option<&Map<String, Value>>) -> Result<(), String> {
    let bytes = metadata.and_then(|metadata| serde_json::to_vec(metadata).ok()).map_or(0, |bytes| bytes.len());
    within("user_metadata", "at most 64 KiB", bytes <= MOST_METADATA, format!("{bytes} bytes"))
}

impl Checked for CreateSession {
    fn check(&self) -> Result<(), String> {
        within("tags", "at most 64", self.tags.len() <= MOST_TAGS, self.tags.len())?;
        let texts = self.tags.iter().chain(&self.sdk_version).chain(&self.project_id).chain(&self.display_name);
        if let Some(long) = texts.map(String::len).find(|length| *length > 1024) {
            return Err(format!(
                "`tags`, `sdk_version`, `project_id`, `display_name`: expected at most 1024 bytes, got {long}"
            ));
        }
        check_metadata(self.user_metadata.as_ref())
    }
}

/// Body of `session_heartbeat`.
#[derive(Clone, Debug, Deserialize)]
pub struct Heartbeat {
    /// Whose.
    pub session_id: SessionId,
}

impl Checked for Heartbeat {}

/// Body of `sessions/ID/finish`.
#[derive(Clone, Debug, Deserialize)]
pub struct Finish {
    /// Why.
    pub reason: FinishReason,
    /// In words.
    #[serde(default)]
    pub detail: Option<String>,
}

/// Why a session ends.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FinishReason {
    /// All is done.
    Success,
    /// The client failed.
    Errored,
    /// Somebody stopped it.
    Interrupted,
}

impl FinishReason {
    /// As it is stored.
    pub fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Errored => "errored",
            Self::Interrupted => "interrupted",
        }
    }
}

impl Checked for Finish {}

/// Body of `create_sampling_session`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CreateSamplingSession {
    /// Whose.
    pub session_id: SessionId,
    /// Which of its samplers.
    pub sampling_session_seq_id: u32,
    /// The model that samples...
    #[serde(default)]
    pub base_model: Option<String>,
    /// ...or its weights.
    #[serde(default)]
    pub model_path: Option<TinkerPath>,
}

impl Checked for CreateSamplingSession {
    fn check(&self) -> Result<(), String> {
        if self.base_model.is_none() && self.model_path.is_none() {
            return Err("`base_model`, `model_path`: expected one of them, got neither".to_owned());
        }
        Ok(())
    }
}

/// Body of `get_info`.
#[derive(Clone, Debug, Deserialize)]
pub struct GetInfo {
    /// Which.
    pub model_id: ModelId,
}

impl Checked for GetInfo {}

/// Body of `weights_info`.
#[derive(Clone, Debug, Deserialize)]
pub struct WeightsInfo {
    /// Which checkpoint.
    pub tinker_path: TinkerPath,
}

impl Checked for WeightsInfo {}

/// Body of a checkpoint's `ttl`.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Ttl {
    /// From now on; for good where it is null. It must be there: what is absent would be taken for null.
    #[serde(deserialize_with = "Option::deserialize")]
    pub ttl_seconds: Option<u64>,
}

impl Checked for Ttl {
    fn check(&self) -> Result<(), String> {
        super::training::check_life(self.ttl_seconds)
    }
}

/// Body of `retrieve_future`.
#[derive(Clone, Debug, Deserialize)]
pub struct RetrieveFuture {
    /// Which request.
    pub request_id: String,
}

impl Checked for RetrieveFuture {}

/// Body of `cancel_future`.
#[derive(Clone, Debug, Deserialize)]
pub struct CancelFuture {
    /// Which request.
    pub request_id: String,
}

impl Checked for CancelFuture {}

/// Body of `retrieve_futures`.
#[derive(Clone, Debug, Deserialize)]
pub struct RetrieveFutures {
    /// Whose requests.
    pub target: Target,
    /// Completions up to this one are known.
    #[serde(default)]
    pub prev_cursor: i64,
    /// Longest wait, seconds; the server's where absent.
    #[serde(default)]
    pub timeout: Option<f64>,
}

/// Whose requests.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Target {
    /// Of one client of a sampling session.
    SamplingSession {
        /// Which sampling session.
        sampling_session_id: SamplerId,
        /// Which client: its requests have the `seq_id`s from a billion times this.
        #[serde(default)]
        cloned_sampler_id: i64,
    },
}

impl Checked for RetrieveFutures {
    fn check(&self) -> Result<(), String> {
        let Target::SamplingSession { cloned_sampler_id, .. } = self.target;
        within("target.cloned_sampler_id", "0 or more", cloned_sampler_id >= 0, cloned_sampler_id)?;
        within("prev_cursor", "0 or more", self.prev_cursor >= 0, self.prev_cursor)?;
        let timeout = self.timeout.unwrap_or(0.0);
        within("timeout", "0 or more", timeout >= 0.0, timeout)
    }
}
