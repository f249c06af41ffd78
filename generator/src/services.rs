//! What a node of a tree gives its environment: [`espalier_envs::Services`] over the tree's budget.
//!
//! The judge's calls are recorded beside the others, and counted by themselves.
//!
//! Invariants: a call is counted before it is made; `llm_query` holds a permit only while its own request is with the
//! engine; a caller that goes away takes its requests and children with it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use espalier_envs::{ChildAnswer, ChildRequest, JudgeRequest, Services, SubCallError, SubQuery};
use espalier_inference::{GenerateRequest, Generation, Message, Prompt, SamplingParams};
use futures::FutureExt;
use futures::future::join_all;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::budget::Resource;
use crate::dialogue::Dialogue;
use crate::episode::panic_text;
use crate::player::Player;
use crate::seed;
use crate::trajectory::{CallKind, CallRecord};
use crate::tree::{Node, RolloutTree, lock};

/// The services of one node.
pub(crate) struct NodeServices {
    tree: Arc<RolloutTree>,
    node: Arc<Node>,
}

impl NodeServices {
    pub(crate) fn new(tree: Arc<RolloutTree>, node: Arc<Node>) -> Self {
        Self { tree, node }
    }

    /// One `llm_query`, recorded whatever becomes of it.
    async fn call(&self, index: u32, query: SubQuery, cancel: &CancellationToken) -> Result<String, SubCallError> {
        let begun = Instant::now();
        let mut record = self.record(CallKind::Query, index, query.prompt);
        let answer = self.ask(&mut record, cancel).await;
        self.enter(record, &answer, begun);
        answer
    }

    fn record(&self, kind: CallKind, index: u32, prompt: String) -> CallRecord {
        CallRecord {
            index,
            kind,
            turn: self.node.turn.load(Ordering::Relaxed),
            model: String::new(),
            prompt,
            response: None,
            error: None,
            prompt_tokens: 0,
            sampled_tokens: 0,
            us: 0,
        }
    }

    fn enter(&self, mut record: CallRecord, answer: &Result<String, SubCallError>, begun: Instant) {
        match answer {
            Ok(text) => record.response = Some(text.clone()),
            Err(error) => record.error = Some(error.to_string()),
        }
        record.us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        lock(&self.node.calls).push(record);
    }

    /// Waits until a request may go to an engine.
    async fn permit(&self, cancel: &CancellationToken) -> Result<tokio::sync::SemaphorePermit<'_>, SubCallError> {
        tokio::select! {
            biased;
            () = self.node.cancel.cancelled() => Err(SubCallError::Cancelled),
            () = cancel.cancelled() => Err(SubCallError::Cancelled),
            () = tokio::time::sleep_until(self.tree.deadline) => Err(self.out_of_time()),
            permit = self.tree.permits.acquire() => permit.map_err(|_| SubCallError::Cancelled),
        }
    }

    /// One question to the judge.
    async fn ask_judge(
        &self,
        record: &mut CallRecord,
        asked: JudgeRequest,
        cancel: &CancellationToken,
    ) -> Result<String, SubCallError> {
        let tree = &self.tree;
        let player =
            tree.judge().ok_or_else(|| SubCallError::Failed("no model serves as the judge here".to_owned()))?;
        record.model.clone_from(&player.engine.info().model);
        tree.budget.reserve(Resource::JudgeCalls, 1)?.spend_all();
        let _permit = self.permit(cancel).await?;
        let dialogue = Dialogue::start(player, asked.messages)
            .map_err(|error| SubCallError::Failed(format!("the judge's prompt cannot be rendered: {error}")))?;
        let known = dialogue.prompt_ids().map(<[_]>::len);
        let mut most = asked.max_tokens;
        if let (Some(tokens), Some(context)) = (known, player.engine.info().context_tokens) {
            let room = u64::from(context).saturating_sub(tokens as u64);
            if room == 0 {
                let reason = format!("a prompt of {tokens} tokens does not fit the judge's context of {context}");
                return Err(SubCallError::Failed(reason));
            }
            most = most.min(u32::try_from(room).unwrap_or(u32::MAX));
        }
        let hint = asked.schema.filter(|_| !tree.plain_judge.load(Ordering::Relaxed));
        let hinted = hint.is_some();
        let sampling = SamplingParams {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            max_tokens: most,
            stop: Vec::new(),
            seed: Some(seed::derive(self.node.place.seed, &format!("judge {}", record.index))),
            logprobs: false,
            json_schema: hint,
            ..player.sampling.clone()
        };
        let mut answer = self.request(player, dialogue.prompt(), sampling.clone(), record.index, cancel).await;
        if hinted && matches!(&answer, Err(SubCallError::Failed(reason)) if reason.contains("response_format")) {
            // An endpoint that does not know the hint: the prompt says the same.
            tree.plain_judge.store(true, Ordering::Relaxed);
            let sampling = SamplingParams { json_schema: None, ..sampling };
            answer = self.request(player, dialogue.prompt(), sampling, record.index, cancel).await;
        }
        let generation = answer?;
        let sampled = generation.tokens.len().max(generation.usage.completion_tokens as usize);
        let prompt = known.unwrap_or(generation.usage.prompt_tokens as usize);
        record.prompt_tokens = u32::try_from(prompt).unwrap_or(u32::MAX);
        record.sampled_tokens = u32::try_from(sampled).unwrap_or(u32::MAX);
        Ok(generation.text)
    }

    async fn ask(&self, record: &mut CallRecord, cancel: &CancellationToken) -> Result<String, SubCallError> {
        let tree = &self.tree;
        let player =
            tree.caller().ok_or_else(|| SubCallError::Failed("no model serves `llm_query` here".to_owned()))?;
        record.model.clone_from(&player.engine.info().model);
        tree.budget.reserve(Resource::SubCalls, 1)?.spend_all();
        let _permit = self.permit(cancel).await?;
        let dialogue = Dialogue::start(player, vec![Message::user(record.prompt.clone())])
            .map_err(|error| SubCallError::Failed(format!("the prompt cannot be rendered: {error}")))?;
        let known = dialogue.prompt_ids().map(<[_]>::len);
        let prompt_tokens = known.unwrap_or_else(|| dialogue.text_bytes().div_ceil(3)) as u64;
        let mut most = u64::from(player.sampling.max_tokens);
        if let (Some(tokens), Some(context)) = (known, player.engine.info().context_tokens) {
            let room = u64::from(context).saturating_sub(tokens as u64);
            if room == 0 {
                let reason = format!("a prompt of {tokens} tokens does not fit the model's context of {context}");
                return Err(SubCallError::Failed(reason));
            }
            most = most.min(room);
        }
        let reservation = tree.budget.reserve_between(Resource::Tokens, prompt_tokens + 1, prompt_tokens + most)?;
        let most = (reservation.amount() - prompt_tokens).min(most);
        record.prompt_tokens = u32::try_from(prompt_tokens).unwrap_or(u32::MAX);
        let sampling = SamplingParams {
            max_tokens: u32::try_from(most).unwrap_or(u32::MAX),
            seed: Some(seed::derive(self.node.place.seed, &format!("call {}", record.index))),
            ..player.sampling.clone()
        };
        let answer = self.request(player, dialogue.prompt(), sampling, record.index, cancel).await;
        match answer {
            Ok(generation) => {
                let sampled = if generation.tokens.is_empty() {
                    u64::from(generation.usage.completion_tokens)
                } else {
                    generation.tokens.len() as u64
                };
                let prompt_tokens = known.map_or(u64::from(generation.usage.prompt_tokens), |known| known as u64);
                reservation.spend(prompt_tokens + sampled);
                record.prompt_tokens = u32::try_from(prompt_tokens).unwrap_or(u32::MAX);
                record.sampled_tokens = u32::try_from(sampled).unwrap_or(u32::MAX);
                self.node.call_prompt_tokens.fetch_add(prompt_tokens, Ordering::AcqRel);
                self.node.call_sampled_tokens.fetch_add(sampled, Ordering::AcqRel);
                let cached = u64::from(generation.usage.cached_tokens);
                self.node.call_cached_tokens.fetch_add(cached, Ordering::AcqRel);
                Ok(generation.text)
            }
            Err(error) => {
                reservation.spend(prompt_tokens);
                Err(error)
            }
        }
    }

    async fn request(
        &self,
        player: &Player,
        prompt: Prompt,
        sampling: SamplingParams,
        index: u32,
        cancel: &CancellationToken,
    ) -> Result<Generation, SubCallError> {
        let options = &self.tree.options.root;
        let timeout = Duration::try_from_secs_f64(options.engine_timeout_s).unwrap_or(Duration::ZERO);
        let token = self.node.cancel.child_token();
        // Dropping the wait cancels the request.
        let _cancels = token.clone().drop_guard();
        let deadline = self.tree.deadline.min(Instant::now() + timeout);
        let session = format!("{}/call/{index}", self.tree.session(&self.node));
        let request = GenerateRequest {
            session: Some(session.clone()),
            deadline,
            cancel: token,
            ..GenerateRequest::new(prompt, sampling)
        };
        let work = std::panic::AssertUnwindSafe(player.engine.generate(request)).catch_unwind();
        let answer = tokio::select! {
            biased;
            () = self.node.cancel.cancelled() => Err(SubCallError::Cancelled),
            () = cancel.cancelled() => Err(SubCallError::Cancelled),
            answer = work => match answer {
                Ok(Ok(mut generations)) if generations.len() == 1 => Ok(generations.remove(0)),
                Ok(Ok(generations)) => {
                    Err(SubCallError::Failed(format!("one continuation was asked, {} came", generations.len())))
                }
                Ok(Err(_)) if Instant::now() >= self.tree.deadline => Err(self.out_of_time()),
                Ok(Err(error)) => Err(SubCallError::Failed(error.to_string())),
                Err(panic) => Err(SubCallError::Failed(format!("the engine panicked: {}", panic_text(&*panic)))),
            },
            () = tokio::time::sleep_until(deadline + Duration::from_secs(1)) => {
                if Instant::now() >= self.tree.deadline {
                    Err(self.out_of_time())
                } else {
                    Err(SubCallError::Failed(format!("no answer within {} s", options.engine_timeout_s)))
                }
            }
        };
        player.engine.finish_session(&session);
        answer
    }

    fn out_of_time(&self) -> SubCallError {
        SubCallError::Budget { budget: "time", limit: self.tree.options.limits.wall().as_secs() }
    }
}

#[async_trait]
impl Services for NodeServices {
    fn has_llm(&self) -> bool {
        self.tree.caller().is_some()
    }

    fn has_children(&self) -> bool {
        self.tree.child_player().is_some() && self.node.place.depth < self.tree.options.limits.depth
    }

    async fn llm_query(&self, queries: Vec<SubQuery>, cancel: CancellationToken) -> Vec<Result<String, SubCallError>> {
        let count = u32::try_from(queries.len()).unwrap_or(u32::MAX);
        let first = self.node.calls_made.fetch_add(count, Ordering::AcqRel);
        let calls = queries.into_iter().zip(first..).map(|(query, index)| self.call(index, query, &cancel));
        join_all(calls).await
    }

    fn has_judge(&self) -> bool {
        self.tree.judge().is_some()
    }

    async fn judge(&self, request: JudgeRequest, cancel: CancellationToken) -> Result<String, SubCallError> {
        let begun = Instant::now();
        let index = self.node.calls_made.fetch_add(1, Ordering::AcqRel);
        let texts: Vec<&str> = request.messages.iter().map(|message| message.content.as_str()).collect();
        let mut record = self.record(CallKind::Judge, index, texts.join("\n\n"));
        let answer = self.ask_judge(&mut record, request, &cancel).await;
        self.enter(record, &answer, begun);
        answer
    }

    async fn rlm_query(
        &self,
        requests: Vec<ChildRequest>,
        cancel: CancellationToken,
    ) -> Vec<Result<ChildAnswer, SubCallError>> {
        // All are spawned before any is awaited: indices and budgets go by the order of the requests.
        let spawned: Vec<_> = requests.into_iter().map(|request| self.tree.spawn_child(&self.node, request)).collect();
        // If the block that waits here dies, this future is dropped, and the children end with it.
        let _guards: Vec<_> = spawned.iter().flatten().map(|child| child.cancel.clone().drop_guard()).collect();
        let answers = spawned.into_iter().map(|child| {
            let cancel = &cancel;
            async move {
                let child = child?;
                tokio::select! {
                    biased;
                    () = cancel.cancelled() => {
                        child.cancel.cancel();
                        Err(SubCallError::Cancelled)
                    }
                    answer = child.answer => {
                        answer.unwrap_or_else(|_| Err(SubCallError::Failed("the child's task failed".to_owned())))
                    }
                }
            }
        });
        join_all(answers).await
    }
}
