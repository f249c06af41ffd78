//! The parameters of the evidence environments: their own beside those of `rlm`.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error as _};
use serde_json::{Map, Value};

use super::tools;
use crate::llm_judge::Patience;
use crate::registry::{EnvKind, ParamSpec};
use crate::rlm::{self, Rlm};

/// How an answer is graded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EvidenceReward {
    /// F1 of the characters that the passages cover, against those of the evidence.
    #[default]
    Interval,
    /// The mean of the judge's precision and recall, each from 1 to 10, over 10.
    Judge,
}

#[derive(Clone, Debug, serde::Deserialize)]
#[serde(default)]
struct Own {
    reward: Option<EvidenceReward>,
    fuzzy: bool,
    window: usize,
    judge_attempts: u32,
    judge_tokens: u32,
    judge_timeout_s: f64,
}

impl Default for Own {
    fn default() -> Self {
        Self {
            reward: None,
            fuzzy: true,
            window: tools::WINDOW,
            judge_attempts: 5,
            judge_tokens: 2048,
            judge_timeout_s: 300.0,
        }
    }
}

/// The parameters of `evidence_rlm` and `multipaper_evidence_rlm`.
#[derive(Clone, Debug)]
pub struct EvidenceParams {
    own: Own,
    /// The parameters of the REPL episode.
    pub rlm: Arc<rlm::Params>,
}

impl EvidenceParams {
    /// How an answer is graded; by the judge under compat, by intervals else.
    pub fn reward(&self) -> EvidenceReward {
        let default = if self.rlm.original() { EvidenceReward::Judge } else { EvidenceReward::Interval };
        self.own.reward.unwrap_or(default)
    }

    /// Whether searches take near spellings.
    pub fn fuzzy(&self) -> bool {
        self.own.fuzzy && !self.rlm.original()
    }

    /// Characters of a snippet.
    pub fn window(&self) -> usize {
        self.own.window
    }

    pub(super) fn patience(&self) -> Patience {
        Patience {
            attempts: self.own.judge_attempts,
            max_tokens: self.own.judge_tokens,
            timeout: Duration::try_from_secs_f64(self.own.judge_timeout_s).unwrap_or(Duration::from_mins(5)),
        }
    }

    /// What the types cannot say: the key and why.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        let own = &self.own;
        for (key, value) in [("judge_attempts", own.judge_attempts), ("judge_tokens", own.judge_tokens)] {
            if value == 0 {
                return Err((key, "must be at least 1, got 0".to_owned()));
            }
        }
        if own.window > 20_000 {
            return Err(("window", format!("must be at most 20000 characters, got {}", own.window)));
        }
        if !(own.judge_timeout_s > 0.0 && own.judge_timeout_s <= 86_400.0) {
            let got = own.judge_timeout_s;
            return Err(("judge_timeout_s", format!("must be between 0 and 86400 seconds, got {got}")));
        }
        Ok(())
    }
}

macro_rules! param {
    ($name:literal, $kind:literal, $default:literal, $doc:literal) => {
        ParamSpec { name: $name, kind: $kind, default: $default, doc: $doc }
    };
}

const OWN: [ParamSpec; 6] = [
    param!(
        "reward",
        "\"interval\" or \"judge\"",
        "interval; judge under compat",
        "by the characters that the passages cover, or by the engine that `judge` names"
    ),
    param!(
        "fuzzy",
        "true or false",
        "true; false under compat",
        "searches take near spellings where there is no exact one"
    ),
    param!("window", "number", "300", "characters of a snippet"),
    param!("judge_attempts", "number", "5", "most tries of one verdict"),
    param!("judge_tokens", "number", "2048", "most tokens of one answer of the judge"),
    param!("judge_timeout_s", "seconds", "300", "longest time for one verdict, all tries together"),
];

/// Parameters of `rlm` that have no meaning here: what is graded are passages.
const WITHOUT: [&str; 3] = ["reward", "unordered", "ignore_case"];

/// What there is to know of the parameters.
pub(super) static PARAMS: LazyLock<Vec<ParamSpec>> = LazyLock::new(|| {
    let inherited = EnvKind::spec(&Rlm::default()).params;
    OWN.into_iter().chain(inherited.into_iter().filter(|param| !WITHOUT.contains(&param.name))).collect()
});

static NAMES: LazyLock<&'static [&'static str]> =
    LazyLock::new(|| Vec::leak(PARAMS.iter().map(|param| param.name).collect()));

impl<'de> Deserialize<'de> for EvidenceParams {
    /// Serde's `flatten` and `deny_unknown_fields` exclude each other, so names are sorted out here.
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let given = Map::<String, Value>::deserialize(input)?;
        let (mut own, mut inherited) = (Map::new(), Map::new());
        for (key, value) in given {
            if OWN.iter().any(|param| param.name == key) {
                own.insert(key, value);
            } else if NAMES.contains(&key.as_str()) {
                inherited.insert(key, value);
            } else {
                return Err(D::Error::unknown_field(&key, *NAMES));
            }
        }
        Ok(Self { own: part(own)?, rlm: Arc::new(part(inherited)?) })
    }
}

fn part<T: serde::de::DeserializeOwned, E: serde::de::Error>(entries: Map<String, Value>) -> Result<T, E> {
    serde_path_to_error::deserialize(Value::Object(entries)).map_err(|error| {
        let path = error.path().to_string();
        E::custom(format!("at `{path}`: {}", error.into_inner()))
    })
}
