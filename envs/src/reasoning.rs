//! `reasoning/*`: short generated problems in one turn, graded by the verifier of their family.
//!
//! The problems and the verifiers are [`espalier_procedural::reasoning`]. A row carries what its verifier needs in
//! `reward_spec`: `family`, and `facts`, which say what was asked; so rows can be saved and graded later, and a
//! verifier accepts every right answer, not only `ground_truth`. `reasoning/mixed` plays the rows of every family,
//! `reasoning/maze` and so on those of one.

use std::sync::Arc;

use async_trait::async_trait;
use espalier_datasets::{Prompt, Row};
use espalier_inference::{Message, Role};
use espalier_procedural::answer::Answer;
use espalier_procedural::draw::Draw;
use espalier_procedural::reasoning::{Family, Level, Score, number_sorting};
use espalier_sandbox::FinalAnswer;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::computing::apart;
use crate::env::{Action, Env, EnvContext, EnvError, Metrics, Step};
use crate::params::hint;
use crate::registry::{ColumnSpec, EnvKind, EnvSpec, ParamSpec};
use crate::rlm::parse::without_trailing_specials;
use crate::row::{EnvRow, text_answer};

/// The environment and the data set of every family.
pub const MIXED: &str = "reasoning/mixed";

/// The id of a family's environment, which is also the name of its data set.
pub const fn id(family: Family) -> &'static str {
    match family {
        Family::ChainSum => "reasoning/chain_sum",
        Family::BasicArithmetic => "reasoning/basic_arithmetic",
        Family::LetterCounting => "reasoning/letter_counting",
        Family::SpellBackward => "reasoning/spell_backward",
        Family::NumberSorting => "reasoning/number_sorting",
        Family::BaseConversion => "reasoning/base_conversion",
        Family::PropositionalLogic => "reasoning/propositional_logic",
        Family::KnightsKnaves => "reasoning/knights_knaves",
        Family::Countdown => "reasoning/countdown",
        Family::Maze => "reasoning/maze",
        Family::MiniSudoku => "reasoning/mini_sudoku",
        Family::CalendarArithmetic => "reasoning/calendar_arithmetic",
    }
}

/// The parameters of a data set.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataParams {
    /// How many rows.
    pub rows: u64,
    /// The seed.
    pub seed: u64,
    /// Difficulty, from 1 to 5.
    pub level: u64,
    /// Levels that rows take in turn, instead of `level`.
    pub levels: Vec<u64>,
    /// Families that the rows of `reasoning/mixed` take in turn; all of them where it is empty.
    pub families: Vec<String>,
}

impl Default for DataParams {
    fn default() -> Self {
        Self { rows: 16, seed: 0, level: 1, levels: Vec::new(), families: Vec::new() }
    }
}

/// A data set with its parameters checked.
#[derive(Clone, Debug)]
pub struct DataSet {
    name: &'static str,
    rows: u64,
    seed: u64,
    levels: Vec<Level>,
    families: Vec<Family>,
}

impl DataSet {
    /// The data set `reasoning/...` with these parameters, or the parameter that is wrong and why.
    pub fn new(name: &'static str, params: DataParams) -> Result<Self, (&'static str, String)> {
        let level = |key: &'static str| {
            move |number: u64| {
                Level::new(number).ok_or_else(|| (key, format!("must be a level from 1 to 5, got {number}")))
            }
        };
        let levels = if params.levels.is_empty() {
            vec![level("level")(params.level)?]
        } else {
            params.levels.iter().copied().map(level("levels")).collect::<Result<_, _>>()?
        };
        let families = match Family::ALL.into_iter().find(|family| id(*family) == name) {
            Some(family) if params.families.is_empty() => vec![family],
            Some(_) => return Err(("families", format!("is a parameter of `{MIXED}` only"))),
            None if params.families.is_empty() => Family::ALL.to_vec(),
            None => params
                .families
                .iter()
                .map(|name| {
                    Family::from_name(name).ok_or_else(|| {
                        let hint = hint(name, Family::ALL.iter().map(|family| family.name()));
                        ("families", format!("holds `{name}`, which is no family; {hint}"))
                    })
                })
                .collect::<Result<_, _>>()?,
        };
        Ok(Self { name, rows: params.rows, seed: params.seed, levels, families })
    }

    /// How many rows there are.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Row `index`.
    pub fn row(&self, index: u64) -> Row {
        let families = self.families.len() as u64;
        let family = self.families[(index % families) as usize];
        // Levels change once every family had its turn, so that all pairs occur.
        let level = self.levels[(index / families % self.levels.len() as u64) as usize];
        // No two families and levels share draws: what one level shows is no part of another's problem.
        let stream = index.wrapping_mul(128).wrapping_add(family as u64 * 8 + u64::from(level.number()));
        let problem = family.generate(level, &mut Draw::new(self.seed, stream));
        let mut columns = Map::new();
        columns.insert("data_source".to_owned(), json!(format!("espalier/{}", self.name)));
        columns.insert(
            "reward_spec".to_owned(),
            json!({
                "method": METHOD, "family": family.name(), "ground_truth": problem.answer,
                "facts": problem.facts,
            }),
        );
        columns.insert(
            "extra_info".to_owned(),
            json!({"index": index, "seed": self.seed, "family": family.name(), "level": level.number()}),
        );
        let id = format!("{}-{}-{}-{index}", self.name.replace('/', "_"), self.seed, level.number());
        Row { id, prompt: Prompt::Text(problem.question), env: None, columns }
    }
}

/// What `reward_spec.method` says of a row that a family's verifier grades.
pub(crate) const METHOD: &str = "reasoning";

/// The verifier of a row and what was asked of it; otherwise the column that is wrong, and why. Facts that nothing can be
/// graded by are found here, before anything is played.
pub(crate) fn verifier(row: &EnvRow) -> Result<(Family, Value), (&'static str, String)> {
    let name = row.reward_spec.get("family").and_then(Value::as_str).unwrap_or_default();
    let family = Family::from_name(name).ok_or_else(|| {
        let hint = hint(name, Family::ALL.iter().map(|family| family.name()));
        ("reward_spec.family", format!("must name a family, got `{name}` in row `{}`; {hint}", row.id))
    })?;
    let facts = row.reward_spec.get("facts").cloned().unwrap_or_default();
    family.score(&facts, "").map_err(|error| ("reward_spec.facts", format!("of row `{}`: {error}", row.id)))?;
    Ok((family, facts))
}

/// The parameters of `reasoning/*`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// Reward an answer that is right in part by that part.
    pub partial: bool,
}

/// The kind of environment that plays generated problems.
#[derive(Clone, Copy, Debug)]
pub struct Reasoning {
    /// The only family whose rows are played; none for all of them.
    pub family: Option<Family>,
}

/// `reasoning/mixed`, and the environment of each family.
pub fn kinds() -> impl Iterator<Item = Reasoning> {
    std::iter::once(None).chain(Family::ALL.into_iter().map(Some)).map(|family| Reasoning { family })
}

impl Reasoning {
    fn id(self) -> &'static str {
        self.family.map_or(MIXED, id)
    }
}

impl EnvKind for Reasoning {
    type Params = Params;

    fn spec(&self) -> EnvSpec {
        EnvSpec {
            id: self.id().to_owned(),
            summary: match self.family {
                Some(family) => family.summary().to_owned(),
                None => "Generated problems of every family, each graded by the verifier of its family.".to_owned(),
            },
            params: vec![ParamSpec {
                name: "partial",
                kind: "true or false",
                default: "false",
                doc: "reward an answer that is right in part by that part, where the family has parts",
            }],
            columns: vec![
                ColumnSpec { name: "prompt", required: true, doc: "the problem" },
                ColumnSpec { name: "reward_spec.family", required: true, doc: "the family whose verifier grades" },
                ColumnSpec { name: "reward_spec.facts", required: true, doc: "what was asked, for the verifier" },
                ColumnSpec { name: "reward_spec.ground_truth", required: false, doc: "one right answer, for people" },
            ],
        }
    }

    fn make(&self, params: &Arc<Params>, row: &EnvRow) -> Result<Box<dyn Env>, EnvError> {
        let id = self.id();
        let invalid = |key: &str, reason: String| EnvError::Invalid { env: id.to_owned(), key: key.to_owned(), reason };
        let (family, facts) = verifier(row).map_err(|(key, reason)| invalid(key, reason))?;
        if self.family.is_some_and(|own| own != family) {
            let name = family.name();
            let reason = format!("is `{name}` in row `{}`, which `reasoning/{name}` and `{MIXED}` play", row.id);
            return Err(invalid("reward_spec.family", reason));
        }
        Ok(Box::new(Episode { id, family, facts: Arc::new(facts), partial: params.partial, played: None }))
    }
}

struct Episode {
    id: &'static str,
    family: Family,
    facts: Arc<Value>,
    partial: bool,
    played: Option<(Score, Option<FinalAnswer>)>,
}

impl Episode {
    fn instruction(&self) -> &'static str {
        match self.family {
            Family::MiniSudoku => "Give the answer alone at the end, below a line `Answer:`.",
            _ => "Give the answer alone on the last line, after `Answer:`.",
        }
    }
}

#[async_trait]
impl Env for Episode {
    async fn init(&mut self, mut prompt: Vec<Message>, _context: EnvContext) -> Result<Vec<Message>, EnvError> {
        if !prompt.iter().any(|message| message.content.contains("Answer:")) {
            let instruction = self.instruction();
            match prompt.iter_mut().rfind(|message| message.role == Role::User) {
                Some(message) => message.content = format!("{}\n\n{instruction}", message.content.trim_end()),
                None => prompt.push(Message::user(instruction)),
            }
        }
        Ok(prompt)
    }

    async fn step(&mut self, action: Action) -> Result<Step, EnvError> {
        let (family, facts) = (self.family, Arc::clone(&self.facts));
        let (score, action) = apart(move || {
            let score = family.score(&facts, without_trailing_specials(&action.text));
            (score, action)
        })
        .await;
        let text = without_trailing_specials(&action.text);
        let score = score.map_err(|error| EnvError::Grader { env: self.id.to_owned(), reason: error.to_string() })?;
        let answer = Answer::find(text);
        // What a child of `rlm_query` would hand back: the line, a list, or the lines of a grid.
        let shown = match self.family {
            Family::MiniSudoku => Some(answer.lines().take(16).collect::<Vec<_>>().join("\n")),
            Family::NumberSorting => number_sorting::written(answer),
            _ => answer.line().map(str::to_owned),
        };
        self.played = Some((score, shown.filter(|text| !text.is_empty()).map(text_answer)));
        let reward = if self.partial { score.credit } else { f64::from(u8::from(score.correct)) };
        Ok(Step { reward, terminated: true, ..Step::default() })
    }

    fn metrics(&self) -> Metrics {
        let (score, answer) = self.played.clone().unwrap_or((Score::WRONG, None));
        Metrics::from([
            ("correct".to_owned(), json!(score.correct)),
            ("credit".to_owned(), json!(score.credit)),
            ("answered".to_owned(), json!(answer.is_some())),
            ("family".to_owned(), json!(self.family.name())),
            ("final_answer".to_owned(), json!(answer.map(|answer| answer.text).unwrap_or_default())),
        ])
    }

    fn answer(&self) -> Option<FinalAnswer> {
        self.played.as_ref()?.1.clone()
    }
}
