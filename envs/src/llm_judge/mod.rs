//! `llm_judge`: one response, graded by another model.
//!
//! | module | what lives there |
//! |---|---|
//! | this one | [`LlmJudge`], the kind, its parameters and its episode |
//! | [`ask`](mod@ask) | asks the judge until its verdict has its form, a bounded number of times |
//! | [`verdict`] | the form of a verdict, read strictly |
//! | [`fence`] | untrusted text in a prompt |
//! | [`original`] | skyrl-gym's reading of a verdict, for `compat = "skyrl"` |
//!
//! The judge is an engine that the rollout names; the tree counts and records its calls apart from the policy's.
//!
//! Invariants: nothing that the policy writes can end its fence or become the verdict; a judge that fails is
//! [`EnvError::Grader`], never 0 (but under compat, where it is 0 as in the original).

pub mod ask;
pub mod fence;
pub mod original;
pub mod verdict;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use espalier_inference::Message;
use serde::Deserialize;
use serde_json::{Value, json};

pub use ask::{JudgeError, Judged, Patience, Question, ask};
pub use verdict::{Field, FieldKind, Form, Verdict};

use crate::Compat;
use crate::env::{Action, Env, EnvContext, EnvError, Metrics, Step};
use crate::registry::{ColumnSpec, EnvKind, EnvSpec, ParamSpec};
use crate::row::{EnvRow, question};
use crate::thinking;

const ID: &str = "llm_judge";

/// What is judged, where no rubric is given.
pub const RUBRIC: &str = "\
Judge the response to the question. Where there is a reference answer, the response is good as far as it says the same; \
its wording and its length do not count. Where there is none, judge whether the response answers the question correctly \
and completely.";

/// Characters of a response that the judge sees; of a longer one the middle is left out.
const SHOWN: usize = 40_000;

/// What scores there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// 0 or 1.
    #[default]
    Binary,
    /// 1 to 10; the reward is (score - 1) / 9.
    Ten,
}

const REASONING: Field = Field {
    name: "reasoning",
    kind: FieldKind::Text,
    doc: "what speaks for and against the response, in a few sentences, before you decide",
};

const BINARY: Form = Form {
    name: "verdict",
    fields: &[
        REASONING,
        Field {
            name: "score",
            kind: FieldKind::Integer { least: 0, most: 1 },
            doc: "1 if the response is right by the instructions, else 0",
        },
    ],
};

const TEN: Form = Form {
    name: "verdict",
    fields: &[
        REASONING,
        Field {
            name: "score",
            kind: FieldKind::Integer { least: 1, most: 10 },
            doc: "1 if the response is worthless by the instructions, 10 if nothing could be better",
        },
    ],
};

impl Scale {
    /// The form of a verdict on this scale.
    pub fn form(self) -> Form {
        match self {
            Self::Binary => BINARY,
            Self::Ten => TEN,
        }
    }

    /// The reward of a score, from 0 to 1.
    pub fn reward(self, score: i64) -> f64 {
        match self {
            Self::Binary => score as f64,
            Self::Ten => (score - 1) as f64 / 9.0,
        }
    }
}

/// The parameters of `llm_judge`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// What is judged, and how; a template.
    pub rubric: String,
    /// What scores there are.
    pub scale: Scale,
    /// Most tries of one verdict.
    pub attempts: u32,
    /// Most tokens of one answer of the judge.
    pub max_tokens: u32,
    /// Longest time for one verdict, seconds.
    pub timeout_s: f64,
    /// Judge as another framework does.
    pub compat: Option<Compat>,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            rubric: RUBRIC.to_owned(),
            scale: Scale::Binary,
            attempts: 5,
            max_tokens: 1024,
            timeout_s: 300.0,
            compat: None,
        }
    }
}

impl Params {
    fn patience(&self) -> Patience {
        Patience {
            attempts: self.attempts,
            max_tokens: self.max_tokens,
            timeout: Duration::try_from_secs_f64(self.timeout_s).unwrap_or(Duration::MAX / 4),
        }
    }
}

/// The kind of environment whose responses another model grades.
#[derive(Clone, Copy, Debug)]
pub struct LlmJudge;

macro_rules! param {
    ($name:literal, $kind:literal, $default:literal, $doc:literal) => {
        ParamSpec { name: $name, kind: $kind, default: $default, doc: $doc }
    };
}

const PARAMS: [ParamSpec; 6] = [
    param!(
        "rubric",
        "text",
        "right by the reference answer",
        "what is judged, and how; {question} and {reference} stand for the row's"
    ),
    param!("scale", "\"binary\" or \"ten\"", "binary", "scores of 0 and 1, or of 1 to 10 that become 0 to 1"),
    param!("attempts", "number", "5", "most tries of one verdict"),
    param!("max_tokens", "number", "1024", "most tokens of one answer of the judge"),
    param!("timeout_s", "seconds", "300", "longest time for one verdict, all tries together"),
    param!("compat", "\"skyrl\"", "none", "judge as skyrl-gym's example does: one try, failures score 0"),
];

impl EnvKind for LlmJudge {
    type Params = Params;

    fn spec(&self) -> EnvSpec {
        EnvSpec {
            id: ID.to_owned(),
            summary: "One response, graded by another model: the engine that `judge` names.".to_owned(),
            params: PARAMS.to_vec(),
            columns: vec![
                ColumnSpec { name: "prompt", required: true, doc: "the question, as text or messages" },
                ColumnSpec {
                    name: "reward_spec.ground_truth",
                    required: false,
                    doc: "the reference answer: a text, or anything that JSON can say",
                },
            ],
        }
    }

    fn check(&self, params: &Params) -> Result<(), EnvError> {
        let invalid = |key: &str, reason: &str| {
            Err(EnvError::Invalid { env: ID.to_owned(), key: key.to_owned(), reason: reason.to_owned() })
        };
        if params.rubric.trim().is_empty() {
            return invalid("rubric", "must say what is judged, it is empty");
        }
        if params.attempts == 0 {
            return invalid("attempts", "must be at least 1, got 0");
        }
        if params.max_tokens == 0 {
            return invalid("max_tokens", "must be at least 1, got 0");
        }
        if !(params.timeout_s > 0.0 && params.timeout_s <= 86_400.0) {
            return invalid("timeout_s", &format!("must be between 0 and 86400 seconds, got {}", params.timeout_s));
        }
        Ok(())
    }

    fn make(&self, params: &Arc<Params>, row: &EnvRow) -> Result<Box<dyn Env>, EnvError> {
        let reference = match row.reward_spec.get("ground_truth") {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text.clone()),
            Some(other) => Some(other.to_string()),
        };
        Ok(Box::new(Episode {
            params: Arc::clone(params),
            reference,
            question: String::new(),
            context: None,
            metrics: Metrics::new(),
        }))
    }
}

struct Episode {
    params: Arc<Params>,
    reference: Option<String>,
    question: String,
    context: Option<EnvContext>,
    metrics: Metrics,
}

impl Episode {
    /// The judge's instructions: the rubric, with names for the texts that stand in fences of their own.
    fn instructions(&self) -> String {
        fill(&self.params.rubric, |name| match name {
            "question" => Some("the text named question"),
            "reference" if self.reference.is_some() => Some("the text named reference"),
            "reference" => Some("(there is no reference)"),
            _ => None,
        })
    }

    async fn judged(&self, response: &str, context: &EnvContext) -> Result<Judged, JudgeError> {
        let mut parts = vec![("question", self.question.as_str())];
        if let Some(reference) = &self.reference {
            parts.push(("reference", reference));
        }
        parts.push(("response", response));
        let question = Question { instructions: self.instructions(), parts, form: self.params.scale.form() };
        ask(
            context.services.as_ref(),
            &question,
            self.params.patience(),
            context.seed,
            context.deadline,
            &context.cancel,
        )
        .await
    }
}

/// A template with its names replaced, in one pass: what is put in is not looked at again.
fn fill<'a>(template: &str, mut value: impl FnMut(&str) -> Option<&'a str>) -> String {
    let mut out = String::new();
    let mut rest = template;
    while let Some(at) = rest.find('{') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let replaced = rest.find('}').and_then(|end| Some((end, value(&rest[1..end])?)));
        if let Some((end, text)) = replaced {
            out.push_str(text);
            rest = &rest[end + 1..];
        } else {
            out.push('{');
            rest = &rest[1..];
        }
    }
    out.push_str(rest);
    out
}

/// What the judge sees of a response: what follows its thinking, its middle left out where it is very long.
fn shown(response: &str) -> String {
    let answer = thinking::spoken(response).trim();
    let count = answer.chars().count();
    if count <= SHOWN {
        return answer.to_owned();
    }
    let head: String = answer.chars().take(SHOWN / 2).collect();
    let tail: String = answer.chars().skip(count - SHOWN / 2).collect();
    format!("{head}\n... ({} characters left out) ...\n{tail}", count - SHOWN)
}

#[async_trait]
impl Env for Episode {
    async fn init(&mut self, prompt: Vec<Message>, context: EnvContext) -> Result<Vec<Message>, EnvError> {
        // Known before anything is sampled.
        if !context.services.has_judge() && self.params.compat.is_none() {
            return Err(EnvError::Grader { env: ID.to_owned(), reason: JudgeError::Nobody.to_string() });
        }
        self.question = question(&prompt);
        self.context = Some(context);
        Ok(prompt)
    }

    async fn step(&mut self, action: Action) -> Result<Step, EnvError> {
        let Some(context) = self.context.clone() else {
            return Err(EnvError::Failed { env: ID.to_owned(), reason: "a turn came before the start".to_owned() });
        };
        if self.params.compat == Some(Compat::Skyrl) {
            let reference = self.reference.as_deref().unwrap_or_default();
            let request = original::request(&self.params, &self.question, reference, &action.text, context.seed);
            let said = context.services.judge(request, context.cancel.child_token()).await;
            let score = said.ok().and_then(|said| original::score(&said)).unwrap_or(0.0);
            self.metrics.insert("score".to_owned(), json!(score));
            return Ok(Step { reward: score, terminated: true, ..Step::default() });
        }
        let response = shown(&action.text);
        let grader = |reason: String| EnvError::Grader { env: ID.to_owned(), reason };
        let judged = self.judged(&response, &context).await.map_err(|error| grader(error.to_string()))?;
        let score = judged.verdict.integer("score").ok_or_else(|| grader("the verdict has no score".to_owned()))?;
        let reward = self.params.scale.reward(score);
        let mut step = Step { reward, terminated: true, ..Step::default() };
        for (key, value) in [
            ("score", json!(score)),
            ("reasoning", json!(judged.verdict.text("reasoning"))),
            ("judge_attempts", json!(judged.attempts)),
        ] {
            step.metadata.insert(key.to_owned(), value);
        }
        self.metrics.insert("score".to_owned(), json!(score));
        self.metrics.insert("judge_attempts".to_owned(), json!(judged.attempts));
        Ok(step)
    }

    fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    async fn close(&mut self) {
        self.context = None;
    }
}
