//! Plays one environment with one engine, token in and token out.
//!
//! | item | what it is |
//! |---|---|
//! | [`play`] | plays an [`Episode`]; always answers, whatever fails |
//! | [`crate::episode`] | what is played, how, and what comes of it |
//!
//! Invariants: what the engine is sent is what the row holds; a turn's reward sits at its last sampled token; every
//! wait ends at the episode's deadline and at its cancellation; a failing or panicking environment or engine ends this
//! episode with a typed stop reason and a cleared mask, and nothing else.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use espalier_envs::{Action, EnvContext, History, Step};
use espalier_inference::{
    EngineError, Extension, Fidelity, GenerateRequest, Generation, Message, SamplingParams, StopReason,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::budget::{Resource, seconds};
use crate::dialogue::Dialogue;
use crate::episode::{Episode, Interrupt, Played, RowMode, guarded, micros, panic_text};
use crate::row::{Row, RowBuilder, Sampled};
use crate::seed;
use crate::trajectory::{RolloutStop, Timings, TokenUsage, Turn};

/// How an episode ended.
struct Ending {
    stop: RolloutStop,
    error: Option<String>,
}

impl Ending {
    fn plain(stop: RolloutStop) -> Self {
        Self { stop, error: None }
    }

    fn because(stop: RolloutStop, error: impl Into<String>) -> Self {
        Self { stop, error: Some(error.into()) }
    }
}

/// What bounded a turn's `max_tokens`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bound {
    Sampling,
    Context,
    Budget,
}

/// What grows while an episode is played.
struct Progress {
    dialogue: Option<Dialogue>,
    builder: Option<RowBuilder>,
    rows: Vec<Row>,
    messages: Vec<Message>,
    turns: Vec<Turn>,
    timings: Timings,
    usage: TokenUsage,
    /// Tokens of this conversation that the budget has seen.
    counted: u64,
}

impl Progress {
    fn finish_row(&mut self) {
        if let Some(builder) = self.builder.take() {
            self.rows.push(builder.finish());
        }
    }
}

/// Plays an episode. Always answers: whatever fails is in [`Played::stop`].
pub async fn play(mut episode: Episode) -> Played {
    let started = Instant::now();
    let mut progress = Progress {
        dialogue: None,
        builder: None,
        rows: Vec::new(),
        messages: Vec::new(),
        turns: Vec::new(),
        timings: Timings::default(),
        usage: TokenUsage::default(),
        counted: 0,
    };
    let mut ending = run(&mut episode, &mut progress).await;
    progress.finish_row();

    let report = std::panic::catch_unwind(AssertUnwindSafe(|| (episode.env.metrics(), episode.env.answer())));
    let (metrics, answer) = match report {
        Ok(report) => report,
        Err(panic) => {
            if ending.stop.trains() {
                let reason = format!("the environment panicked in its report: {}", panic_text(&*panic));
                ending = Ending::because(RolloutStop::EnvError, reason);
            }
            (espalier_envs::Metrics::new(), None)
        }
    };
    // Closing happens also after a cancellation, and may not hang or spoil what is done.
    let closing = Instant::now() + Duration::from_secs(5);
    if guarded(episode.env.close(), closing, &CancellationToken::new()).await.is_err() {
        tracing::warn!(session = episode.session, "the environment did not close");
    }
    let Episode { env, player, session, .. } = episode;
    if std::panic::catch_unwind(AssertUnwindSafe(move || drop(env))).is_err() {
        tracing::warn!(session, "the environment panicked while it was dropped");
    }
    player.engine.finish_session(&session);

    let fidelity = progress.dialogue.as_ref().map_or(player.fidelity(), Dialogue::fidelity);
    if !ending.stop.trains() {
        progress.rows.iter_mut().for_each(Row::clear_mask);
    }
    progress.timings.total_us = micros(started);
    Played {
        stop: ending.stop,
        error: ending.error,
        rows: progress.rows,
        messages: progress.messages,
        turns: progress.turns,
        fidelity,
        answer,
        metrics,
        timings: progress.timings,
        usage: progress.usage,
    }
}

async fn run(episode: &mut Episode, progress: &mut Progress) -> Ending {
    if let Some(ending) = start(episode, progress).await {
        return ending;
    }
    for turn in 0..episode.options.max_turns {
        episode.turn.store(turn, Ordering::Relaxed);
        let (generation, bound) = match sample(episode, progress, turn).await {
            Ok(sampled) => sampled,
            Err(ending) => return ending,
        };
        let stop = match (generation.stop, bound) {
            (StopReason::MaxTokens, Bound::Context) => StopReason::ContextOverflow,
            (stop, _) => stop,
        };
        let action = Action { text: generation.text.clone(), tokens: generation.tokens.clone(), stop };
        if let Err(ending) = record(episode, progress, generation, stop) {
            return ending;
        }
        let step = match step(episode, progress, action).await {
            Ok(step) => step,
            Err(ending) => return ending,
        };
        if let Err(ending) = reward(progress, &step) {
            return ending;
        }
        if step.terminated || step.truncated {
            return Ending::plain(match (stop, bound) {
                (StopReason::MaxTokens, Bound::Budget) => RolloutStop::Budget,
                (StopReason::MaxTokens, _) => RolloutStop::MaxTokens,
                (StopReason::ContextOverflow, _) => RolloutStop::ContextOverflow,
                _ if step.truncated && !step.terminated => RolloutStop::MaxTurns,
                (StopReason::StopString, _) => RolloutStop::StopString,
                _ => RolloutStop::Completed,
            });
        }
        if turn + 1 == episode.options.max_turns {
            // Nobody answers these observations: they belong to no prompt.
            return Ending::plain(RolloutStop::MaxTurns);
        }
        if let Err(ending) = observe(episode, progress, step) {
            return ending;
        }
    }
    Ending::because(RolloutStop::MaxTurns, "`max_turns` is 0: no turn was played")
}

/// Lets the environment begin and shows the policy its first messages.
async fn start(episode: &mut Episode, progress: &mut Progress) -> Option<Ending> {
    let context = EnvContext {
        services: Arc::clone(&episode.services),
        seed: episode.seed,
        deadline: episode.deadline,
        cancel: episode.cancel.clone(),
        max_turns: episode.options.max_turns,
        depth: episode.depth,
    };
    let begun = Instant::now();
    let limit = episode.deadline.min(begun + seconds(episode.options.env_timeout_s));
    let prompt = std::mem::take(&mut episode.prompt);
    let answer = guarded(episode.env.init(prompt, context), limit, &episode.cancel).await;
    progress.timings.env_us += micros(begun);
    let messages = match answer {
        Ok(Ok(messages)) => messages,
        Ok(Err(error)) => return Some(Ending::because(RolloutStop::EnvError, error.to_string())),
        Err(interrupt) => return Some(env_interrupt(episode, interrupt, "`init`")),
    };
    progress.messages.clone_from(&messages);
    match Dialogue::start(&episode.player, messages) {
        Ok(dialogue) => {
            progress.builder = dialogue.prompt_ids().map(|ids| RowBuilder::new(ids.to_vec()));
            progress.dialogue = Some(dialogue);
            None
        }
        Err(error) => Some(Ending::because(RolloutStop::EnvError, error.to_string())),
    }
}

fn env_interrupt(episode: &Episode, interrupt: Interrupt, what: &str) -> Ending {
    match interrupt {
        Interrupt::Cancelled => Ending::plain(RolloutStop::Cancelled),
        Interrupt::Deadline if Instant::now() >= episode.deadline => {
            Ending::because(RolloutStop::Timeout, format!("the rollout's deadline passed in the environment's {what}"))
        }
        Interrupt::Deadline => Ending::because(
            RolloutStop::Timeout,
            format!("the environment's {what} took longer than {} s", episode.options.env_timeout_s),
        ),
        Interrupt::Panicked(text) => {
            Ending::because(RolloutStop::EnvError, format!("the environment panicked in {what}: {text}"))
        }
    }
}

/// Samples one turn within what fits and what is left.
async fn sample(episode: &mut Episode, progress: &mut Progress, turn: u32) -> Result<(Generation, Bound), Ending> {
    let dialogue = progress.dialogue.as_ref().ok_or_else(|| Ending::plain(RolloutStop::EnvError))?;
    let info = episode.player.engine.info();
    let known = dialogue.prompt_ids().map(<[_]>::len);
    let mut most = u64::from(episode.player.sampling.max_tokens);
    let mut bound = Bound::Sampling;
    if let Some(prompt) = known {
        if episode.options.max_input_tokens.is_some_and(|max| prompt > max as usize) {
            let max = episode.options.max_input_tokens.unwrap_or_default();
            let reason = format!("a prompt of {prompt} tokens, `max_input_tokens` is {max}");
            return Err(Ending::because(RolloutStop::ContextOverflow, reason));
        }
        if let Some(context) = info.context_tokens {
            let room = u64::from(context).saturating_sub(prompt as u64);
            if room == 0 {
                let reason = format!("a prompt of {prompt} tokens does not fit a context of {context}");
                return Err(Ending::because(RolloutStop::ContextOverflow, reason));
            }
            if room < most {
                (most, bound) = (room, Bound::Context);
            }
        }
    }
    if most == 0 {
        return Err(Ending::because(RolloutStop::MaxTokens, "`max_tokens` is 0: nothing can be sampled"));
    }
    // Where only text is known three bytes count as a token until the engine says how many there were.
    let prompt_tokens = known.map_or_else(|| dialogue.text_bytes().div_ceil(3) as u64, |tokens| tokens as u64);
    let fresh = prompt_tokens.saturating_sub(progress.counted);
    let reservation = episode
        .budget
        .reserve_between(Resource::Tokens, fresh + 1, fresh + most)
        .map_err(|error| Ending::because(RolloutStop::Budget, error.to_string()))?;
    let allowed = reservation.amount() - fresh;
    if allowed < most {
        (most, bound) = (allowed, Bound::Budget);
    }

    let sampling = SamplingParams {
        max_tokens: u32::try_from(most).unwrap_or(u32::MAX),
        seed: Some(seed::nth(episode.player.sampling.seed.unwrap_or_default() ^ episode.seed, u64::from(turn))),
        logprobs: true,
        ..episode.player.sampling.clone()
    };
    let begun = Instant::now();
    let answer = generate(episode, dialogue, sampling).await;
    progress.timings.llm_us += micros(begun);
    let generation = match answer {
        Ok(generation) => generation,
        Err(ending) => {
            // What the engine worked on before it failed is spent; nobody knows how much it sampled.
            reservation.spend(fresh);
            return Err(ending);
        }
    };
    let sampled = if generation.tokens.is_empty() {
        u64::from(generation.usage.completion_tokens)
    } else {
        generation.tokens.len() as u64
    };
    let prompt_tokens = known.map_or_else(|| u64::from(generation.usage.prompt_tokens), |tokens| tokens as u64);
    reservation.spend(prompt_tokens.saturating_sub(progress.counted) + sampled);
    progress.counted = progress.counted.max(prompt_tokens + sampled);
    progress.usage.prompt_tokens += prompt_tokens;
    progress.usage.cached_tokens += u64::from(generation.usage.cached_tokens);
    progress.usage.sampled_tokens += sampled;
    progress.turns.push(Turn {
        row: None,
        start: 0,
        end: 0,
        message: 0,
        stop: generation.stop,
        reward: 0.0,
        prompt_tokens: u32::try_from(prompt_tokens).unwrap_or(u32::MAX),
        cached_tokens: generation.usage.cached_tokens,
        sampled_tokens: u32::try_from(sampled).unwrap_or(u32::MAX),
        llm_us: micros(begun),
        env_us: 0,
        metadata: serde_json::Map::new(),
    });
    Ok((generation, bound))
}

/// Asks the engine, again where that makes sense.
async fn generate(episode: &mut Episode, dialogue: &Dialogue, sampling: SamplingParams) -> Result<Generation, Ending> {
    let model = episode.player.engine.info().model.clone();
    let max_tokens = sampling.max_tokens as usize;
    let mut attempt = 0;
    loop {
        let now = Instant::now();
        let limit = episode.deadline.min(now + seconds(episode.options.engine_timeout_s));
        let cancel = episode.cancel.child_token();
        // Dropping the wait cancels the request, also where the engine goes on in a task of its own.
        let _cancels = cancel.clone().drop_guard();
        let request = GenerateRequest {
            session: Some(episode.session.clone()),
            deadline: limit,
            cancel,
            ..GenerateRequest::new(dialogue.prompt(), sampling.clone())
        };
        // The engine keeps its own deadline; a second later it is taken at its word.
        let outer = limit + Duration::from_secs(1);
        let error = match guarded(episode.player.engine.generate(request), outer, &episode.cancel).await {
            Ok(Ok(mut generations)) if generations.len() == 1 => {
                let generation = generations.remove(0);
                if generation.stop == StopReason::Cancelled {
                    let passed = Instant::now() >= episode.deadline;
                    return Err(if episode.cancel.is_cancelled() {
                        Ending::plain(RolloutStop::Cancelled)
                    } else if passed {
                        Ending::because(RolloutStop::Timeout, "the rollout's deadline passed while the engine sampled")
                    } else {
                        Ending::because(RolloutStop::EngineError, format!("{model}: the request was cancelled"))
                    });
                }
                if generation.tokens.len() > max_tokens {
                    let reason =
                        format!("{model}: sampled {} tokens, at most {max_tokens} were asked", generation.tokens.len());
                    return Err(Ending::because(RolloutStop::EngineError, reason));
                }
                if dialogue.prompt_ids().is_some() && generation.fidelity == Fidelity::Text {
                    let reason = format!("{model}: expected the sampled tokens, got text only");
                    return Err(Ending::because(RolloutStop::EngineError, reason));
                }
                return Ok(generation);
            }
            Ok(Ok(generations)) => format!("{model}: one continuation was asked, {} came", generations.len()),
            Ok(Err(error @ EngineError::ContextOverflow { .. })) => {
                return Err(Ending::because(RolloutStop::ContextOverflow, error.to_string()));
            }
            Ok(Err(error @ (EngineError::Invalid { .. } | EngineError::UnknownAdapter { .. }))) => {
                return Err(Ending::because(RolloutStop::EngineError, error.to_string()));
            }
            Ok(Err(error)) if episode.cancel.is_cancelled() => {
                return Err(Ending::because(RolloutStop::Cancelled, error.to_string()));
            }
            Ok(Err(error)) => error.to_string(),
            Err(Interrupt::Cancelled) => return Err(Ending::plain(RolloutStop::Cancelled)),
            Err(Interrupt::Deadline) => format!("{model}: no answer within the request's deadline"),
            Err(Interrupt::Panicked(text)) => format!("{model}: the engine panicked: {text}"),
        };
        if Instant::now() >= episode.deadline {
            return Err(Ending::because(RolloutStop::Timeout, error));
        }
        if attempt >= episode.options.engine_retries {
            return Err(Ending::because(RolloutStop::EngineError, error));
        }
        attempt += 1;
        tracing::debug!(session = episode.session, error, attempt, "asking the engine again");
    }
}

/// Enters a turn's tokens and text.
fn record(episode: &Episode, progress: &mut Progress, generation: Generation, stop: StopReason) -> Result<(), Ending> {
    let row = progress.rows.len() as u32;
    let (Some(turn), Some(dialogue)) = (progress.turns.last_mut(), progress.dialogue.as_mut()) else {
        return Err(Ending::plain(RolloutStop::EngineError));
    };
    turn.stop = stop;
    turn.message = progress.messages.len() as u32;
    if let Some(builder) = progress.builder.as_mut() {
        let sampled = Sampled {
            tokens: &generation.tokens,
            logprobs: &generation.logprobs,
            versions: &generation.versions,
            trained: episode.player.trained,
        };
        let (start, end) = builder
            .push_sampled(sampled)
            .map_err(|error| Ending::because(RolloutStop::EngineError, error.to_string()))?;
        (turn.row, turn.start, turn.end) = (Some(row), start, end);
    }
    progress.messages.push(Message::assistant(generation.text.clone()));
    dialogue.push_turn(&generation).map_err(|error| Ending::because(RolloutStop::EngineError, error.to_string()))?;
    Ok(())
}

/// Lets the environment answer.
async fn step(episode: &mut Episode, progress: &mut Progress, action: Action) -> Result<Step, Ending> {
    let begun = Instant::now();
    let limit = episode.deadline.min(begun + seconds(episode.options.env_timeout_s));
    let answer = guarded(episode.env.step(action), limit, &episode.cancel).await;
    let took = micros(begun);
    progress.timings.env_us += took;
    if let Some(turn) = progress.turns.last_mut() {
        turn.env_us = took;
    }
    match answer {
        Ok(Ok(step)) => Ok(step),
        Ok(Err(_)) if episode.cancel.is_cancelled() => Err(Ending::plain(RolloutStop::Cancelled)),
        Ok(Err(error)) => Err(Ending::because(RolloutStop::EnvError, error.to_string())),
        Err(interrupt) => Err(env_interrupt(episode, interrupt, "`step`")),
    }
}

/// Enters a turn's reward and metadata.
fn reward(progress: &mut Progress, step: &Step) -> Result<(), Ending> {
    let value = step.reward as f32;
    if !value.is_finite() {
        let reason = format!("a reward of {}, expected a finite 32-bit number", step.reward);
        return Err(Ending::because(RolloutStop::EnvError, reason));
    }
    if let Some(turn) = progress.turns.last_mut() {
        turn.reward = value;
        turn.metadata = step.metadata.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        if let (Some(builder), true) = (progress.builder.as_mut(), value != 0.0) {
            // A turn without tokens leaves its reward at the sampled token before it.
            if !builder.add_reward(value) && turn.end > turn.start {
                return Err(Ending::because(RolloutStop::EnvError, "the sum of the rewards is not finite"));
            }
        }
    }
    Ok(())
}

/// Enters the observations and decides whether the row goes on.
fn observe(episode: &Episode, progress: &mut Progress, step: Step) -> Result<(), Ending> {
    let Some(dialogue) = progress.dialogue.as_mut() else {
        return Err(Ending::plain(RolloutStop::EnvError));
    };
    let broken = |error: String| Ending::because(RolloutStop::EnvError, error);
    let extension = if let History::Remove(index) = step.history {
        if index >= progress.messages.len() {
            let count = progress.messages.len();
            return Err(broken(format!("the environment removes message {index} of {count}")));
        }
        progress.messages.remove(index);
        for turn in &mut progress.turns {
            if turn.message as usize > index {
                turn.message -= 1;
            }
        }
        progress.messages.extend(step.observations);
        dialogue.rewrite(progress.messages.clone())
    } else {
        progress.messages.extend(step.observations.iter().cloned());
        dialogue.push_observations(step.observations)
    };
    match extension.map_err(|error| broken(error.to_string()))? {
        Extension::Extended(ids) if episode.options.rows == RowMode::Merged => {
            if let Some(builder) = progress.builder.as_mut() {
                builder.push_given(&ids);
            }
        }
        extension => {
            if matches!(extension, Extension::Fork(_)) {
                progress.counted = 0;
            }
            let next = dialogue.prompt_ids().map(|ids| RowBuilder::new(ids.to_vec()));
            progress.finish_row();
            progress.builder = next;
        }
    }
    Ok(())
}
