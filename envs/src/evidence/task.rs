//! The task behind both environments.

use std::sync::Arc;

use async_trait::async_trait;
use espalier_sandbox::{Context, FinalAnswer, Value};
use serde_json::json;

use super::papers::{self, Evidence};
use super::params::{EvidenceParams, EvidenceReward};
use super::{answer, judge, prompts, scoring, tools};
use crate::env::{EnvContext, EnvError, Metrics};
use crate::llm_judge::JudgeError;
use crate::rlm::{Briefing, Grade, Grading, Params, RlmTask, RlmTool};
use crate::row::EnvRow;

/// Passages as an answer.
pub(super) struct EvidenceTask {
    pub(super) id: &'static str,
    pub(super) params: Arc<EvidenceParams>,
    /// A root coordinates and workers read; else whoever is asked reads.
    pub(super) multi: bool,
}

impl EvidenceTask {
    /// Whether an answer to this row is graded. The original grades the children of a single paper by their parent's
    /// evidence.
    fn grades(&self, row: &EnvRow) -> bool {
        row.graded || (self.params.rlm.original() && !self.multi)
    }

    fn judges(&self, row: &EnvRow) -> bool {
        self.grades(row) && self.params.reward() == EvidenceReward::Judge
    }

    /// What is scored without a judge, on a thread that may take its time.
    async fn report(
        &self,
        by: Grading<'_>,
        evidence: &[Evidence],
        passages: &[String],
    ) -> Result<(scoring::MultiScore, usize, Metrics), String> {
        let (context, children) = (by.context.clone(), by.children.to_vec());
        let (evidence, passages) = (evidence.to_vec(), passages.to_vec());
        tokio::task::spawn_blocking(move || scoring::report(context.value(), &evidence, &passages, &children))
            .await
            .map_err(|error| format!("the passages could not be scored: {error}"))
    }
}

fn at_depth(by: Grading<'_>) -> Metrics {
    Metrics::from([("depth".to_owned(), json!(by.episode.depth))])
}

#[async_trait]
impl RlmTask for EvidenceTask {
    fn prompt(&self, about: Briefing<'_>) -> Option<String> {
        let coordinates = self.multi && about.depth == 0 && about.offer.rlm;
        let several = matches!(about.context.value(), Value::Dict(_));
        Some(prompts::prompt(about, coordinates && several, several))
    }

    fn start(&self, row: &EnvRow, _params: &Params, episode: &EnvContext) -> Result<(), EnvError> {
        if self.judges(row) && !episode.services.has_judge() && !self.params.rlm.original() {
            return Err(EnvError::Grader { env: self.id.to_owned(), reason: JudgeError::Nobody.to_string() });
        }
        Ok(())
    }

    fn tools(&self, _row: &EnvRow, _context: &Context) -> Vec<RlmTool> {
        tools::tools(self.params.fuzzy(), self.params.window())
    }

    fn check(&self, row: &EnvRow, _params: &Params, env: &str) -> Result<(), EnvError> {
        if self.grades(row) {
            papers::evidence(row, env)?;
        }
        Ok(())
    }

    async fn grade(&self, answer: &FinalAnswer, by: Grading<'_>) -> Result<Grade, String> {
        let mut metrics = at_depth(by);
        if !self.grades(by.row) {
            return Ok(Grade { reward: 0.0, metrics });
        }
        let evidence = papers::evidence(by.row, self.id).map_err(|error| error.to_string())?;
        let passages = answer::passages(answer);
        let (scores, located, scored) = self.report(by, &evidence, &passages).await?;
        metrics.extend(scored);
        let reward = match self.params.reward() {
            EvidenceReward::Interval if located == 0 => {
                return Err("none of the evidence stands in the context: there is nothing to compare with".to_owned());
            }
            EvidenceReward::Interval => scores.micro.f1,
            EvidenceReward::Judge => {
                match judge::scores(by, &evidence, &passages, self.params.patience()).await {
                    Ok(scores) => {
                        metrics.insert("judge_precision".to_owned(), json!(scores.precision));
                        metrics.insert("judge_recall".to_owned(), json!(scores.recall));
                        metrics.insert("judge_attempts".to_owned(), json!(scores.attempts));
                        scores.reward()
                    }
                    // The original takes a judge that fails for a bad answer.
                    Err(_) if self.params.rlm.original() => 0.0,
                    Err(error) => return Err(error.to_string()),
                }
            }
        };
        Ok(Grade { reward, metrics })
    }

    async fn unanswered(&self, by: Grading<'_>) -> Metrics {
        let mut metrics = at_depth(by);
        if self.grades(by.row)
            && let Ok(evidence) = papers::evidence(by.row, self.id)
            && let Ok((_, _, scored)) = self.report(by, &evidence, &[]).await
        {
            metrics.extend(scored);
        }
        metrics
    }
}
