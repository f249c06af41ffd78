//! `llm_query`, `llm_query_batched`, `rlm_query`, `rlm_query_batched` and the author's host functions.
//!
//! A query that fails is a text that says so, in its place, so that one bad one spoils none of the others; what the
//! block itself did wrong (arguments) raises. Spent budgets are the tree's business: they arrive as failures.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use espalier_sandbox::HostCall;
use espalier_sandbox::{CallContext, CallError, Context, HostCalls, Value};

use super::task::ChildOutcome;
use super::{literal, python};
use crate::row::context_from_text;
use crate::services::{ChildAnswer, ChildRequest, Services, SubCallError, SubQuery};

/// How often the block asked.
#[derive(Debug, Default)]
pub struct Counts {
    /// Prompts sent to a model by `llm_query` and its batched form.
    pub sub_calls: AtomicU64,
    /// Children asked for by `rlm_query` and its batched form.
    pub children: AtomicU64,
    /// The children that ended, in the order in which they were asked for.
    outcomes: Mutex<Vec<ChildOutcome>>,
}

impl Counts {
    /// The children that ended, in the order in which they were asked for.
    pub fn outcomes(&self) -> Vec<ChildOutcome> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Serves one episode's REPL.
pub struct Calls {
    services: Arc<dyn Services>,
    children: bool,
    original: bool,
    tools: HashMap<String, Arc<dyn HostCalls>>,
    counts: Arc<Counts>,
}

impl Calls {
    /// `children`: whether `rlm_query` spawns any; without, it asks a model once. `original`: skyrl-gym's behaviour.
    pub fn new(
        services: Arc<dyn Services>,
        children: bool,
        original: bool,
        tools: HashMap<String, Arc<dyn HostCalls>>,
        counts: Arc<Counts>,
    ) -> Self {
        Self { services, children, original, tools, counts }
    }

    async fn llm(
        &self,
        prompts: Vec<String>,
        model: Option<String>,
        context: &CallContext,
    ) -> Result<Vec<Value>, CallError> {
        if prompts.is_empty() {
            return Ok(Vec::new());
        }
        self.counts.sub_calls.fetch_add(prompts.len() as u64, Ordering::Relaxed);
        let count = prompts.len();
        let queries = prompts.into_iter().map(|prompt| SubQuery { prompt, model: model.clone() }).collect();
        let answers = self.services.llm_query(queries, context.cancel.clone()).await;
        check_count("llm_query", answers.len(), count)?;
        let mut values = Vec::with_capacity(count);
        for answer in answers {
            values.push(match answer {
                Ok(text) => Value::Str(text),
                Err(SubCallError::Cancelled) => return Err(CallError::runtime(SubCallError::Cancelled.to_string())),
                Err(error) => {
                    let text = Value::Str(format!("Error: LM query failed - {error}"));
                    if self.original {
                        // The original sends one batch: one failure fails all.
                        return Ok(vec![text; count]);
                    }
                    text
                }
            });
        }
        Ok(values)
    }

    async fn rlm(
        &self,
        requests: Vec<(String, Option<Value>)>,
        model: Option<String>,
        context: &CallContext,
    ) -> Result<Vec<Value>, CallError> {
        if !self.children {
            let prompts = requests
                .into_iter()
                .map(|(prompt, own)| match own {
                    // A plain model sees nothing but its prompt.
                    Some(own) if !self.original => format!("{prompt}\n\nContext:\n{}", own.display()),
                    _ => prompt,
                })
                .collect();
            return self.llm(prompts, model, context).await;
        }
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        let count = requests.len();
        self.counts.children.fetch_add(count as u64, Ordering::Relaxed);
        let requests: Vec<ChildRequest> = requests
            .into_iter()
            .map(|(prompt, own)| ChildRequest { prompt, context: own.and_then(|own| self.child_context(own)) })
            .collect();
        let answers = self.services.rlm_query(requests.clone(), context.cancel.clone()).await;
        check_count("rlm_query", answers.len(), count)?;
        let outcomes = requests.into_iter().zip(&answers).map(|(request, answer)| ChildOutcome {
            prompt: request.prompt,
            context: request.context,
            answer: answer.as_ref().ok().and_then(|answer| answer.answer.clone()),
        });
        self.counts.outcomes.lock().unwrap_or_else(PoisonError::into_inner).extend(outcomes);
        answers
            .into_iter()
            .map(|answer| match answer {
                Ok(answer) => Ok(self.child_value(answer)),
                Err(SubCallError::Cancelled) => Err(CallError::runtime(SubCallError::Cancelled.to_string())),
                Err(error) => Ok(Value::Str(format!("Error: RLM query failed - {error}"))),
            })
            .collect()
    }

    /// The second positional argument of every query is `model`, as in the original: a context that lands there would be
    /// lost without a word, so what is no name is refused.
    fn model_name(&self, function: &str, value: Option<Value>) -> Result<Option<String>, CallError> {
        match value {
            None | Some(Value::None) => Ok(None),
            Some(Value::Str(name)) if self.original || (name.len() <= MAX_MODEL_NAME && !name.contains('\n')) => {
                Ok(Some(name))
            }
            Some(_) if self.original => Ok(None),
            Some(other) => {
                let keyword = if function.ends_with("_batched") { "context_list=[...]" } else { "context=..." };
                let contexts = if function.starts_with("rlm") {
                    format!("; a context goes by keyword: {keyword}")
                } else {
                    String::new()
                };
                Err(error(
                    "TypeError",
                    format!("{function}(): `model` must be a model's name, got {}{contexts}", kind_of(&other)),
                ))
            }
        }
    }

    fn child_context(&self, own: Value) -> Option<Context> {
        if !self.original {
            return Some(Context::new(own));
        }
        // The original sends a text; what is none goes as JSON, of which only an object is read back.
        let text = match own {
            Value::Str(text) => text,
            other => python::json(&other),
        };
        (!text.is_empty()).then(|| Context::new(context_from_text(text)))
    }

    /// What the parent's block gets: the answer with its type.
    fn child_value(&self, answer: ChildAnswer) -> Value {
        match answer.answer {
            None if self.original => Value::Str(String::new()),
            None => Value::Str("Error: RLM query failed - the child ended without an answer".to_owned()),
            Some(answer) => match answer.value {
                value if !self.original && !matches!(value, Value::Opaque { .. }) => value,
                _ => literal(&answer.text).unwrap_or(Value::Str(answer.text)),
            },
        }
    }
}

/// Longest name of a model, bytes.
const MAX_MODEL_NAME: usize = 200;

fn kind_of(value: &Value) -> String {
    match value {
        Value::Str(text) => format!("a text of {} characters", text.chars().count()),
        other => other.type_name().to_owned(),
    }
}

fn check_count(function: &str, got: usize, expected: usize) -> Result<(), CallError> {
    if got == expected {
        return Ok(());
    }
    Err(CallError::runtime(format!("`{function}` was answered {got} times for {expected} prompts")))
}

#[async_trait]
impl HostCalls for Calls {
    async fn call(&self, call: HostCall, context: CallContext) -> Result<Value, CallError> {
        let function = call.function.clone();
        match function.as_str() {
            "llm_query" => {
                let [prompt, model] = arguments(call, ["prompt", "model"], 1)?;
                let prompt = text(prompt);
                one(self.llm(vec![prompt], self.model_name(&function, model)?, &context).await?)
            }
            "llm_query_batched" => {
                let [prompts, model] = arguments(call, ["prompts", "model"], 1)?;
                let prompts = list(&function, "prompts", prompts)?.into_iter().map(|item| text(Some(item))).collect();
                Ok(Value::List(self.llm(prompts, self.model_name(&function, model)?, &context).await?))
            }
            "rlm_query" => {
                let [prompt, model, own] = arguments(call, ["prompt", "model", "context"], 1)?;
                let own = own.filter(|own| *own != Value::None);
                one(self.rlm(vec![(text(prompt), own)], self.model_name(&function, model)?, &context).await?)
            }
            "rlm_query_batched" => {
                let [prompts, model, contexts] = arguments(call, ["prompts", "model", "context_list"], 1)?;
                let prompts = list(&function, "prompts", prompts)?;
                let contexts = match contexts {
                    None | Some(Value::None) => vec![Value::None; prompts.len()],
                    given => list(&function, "context_list", given)?,
                };
                // The original drops what has no partner, and nobody learns of it.
                if contexts.len() != prompts.len() && !self.original {
                    return Err(error(
                        "ValueError",
                        format!(
                            "rlm_query_batched() needs one context per prompt: got {} prompts and {} contexts",
                            prompts.len(),
                            contexts.len()
                        ),
                    ));
                }
                let requests = prompts
                    .into_iter()
                    .zip(contexts)
                    .map(|(prompt, own)| (text(Some(prompt)), (own != Value::None).then_some(own)))
                    .collect();
                Ok(Value::List(self.rlm(requests, self.model_name(&function, model)?, &context).await?))
            }
            _ => match self.tools.get(&function) {
                Some(tool) => tool.call(call, context).await,
                None => Err(CallError::runtime(format!("nothing serves `{function}` here"))),
            },
        }
    }
}

fn one(values: Vec<Value>) -> Result<Value, CallError> {
    values.into_iter().next().ok_or_else(|| CallError::runtime("the query was not answered"))
}

fn error(type_name: &str, message: String) -> CallError {
    CallError { type_name: type_name.to_owned(), message }
}

/// Binds a call's arguments to names, as Python does: positional ones first, then by keyword.
fn arguments<const N: usize>(
    call: HostCall,
    names: [&str; N],
    required: usize,
) -> Result<[Option<Value>; N], CallError> {
    let function = &call.function;
    if call.args.len() > N {
        return Err(error(
            "TypeError",
            format!("{function}() takes at most {N} arguments ({} given)", call.args.len()),
        ));
    }
    let mut bound: [Option<Value>; N] = std::array::from_fn(|_| None);
    for (slot, value) in bound.iter_mut().zip(call.args) {
        *slot = Some(value);
    }
    for (name, value) in call.kwargs {
        let Some(index) = names.iter().position(|known| *known == name) else {
            return Err(error(
                "TypeError",
                format!("{function}() got an unexpected keyword argument '{name}'; it takes {}", names.join(", ")),
            ));
        };
        if bound[index].replace(value).is_some() {
            return Err(error("TypeError", format!("{function}() got multiple values for argument '{name}'")));
        }
    }
    if let Some(missing) = (0..required).find(|index| bound[*index].is_none()) {
        return Err(error("TypeError", format!("{function}() missing 1 required argument: '{}'", names[missing])));
    }
    Ok(bound)
}

/// A prompt as text; what is none is written as Python writes it.
fn text(value: Option<Value>) -> String {
    match value {
        Some(Value::Str(text)) => text,
        Some(other) => other.display(),
        None => String::new(),
    }
}

fn list(function: &str, name: &str, value: Option<Value>) -> Result<Vec<Value>, CallError> {
    match value {
        Some(Value::List(items) | Value::Tuple(items)) => Ok(items),
        other => Err(error(
            "TypeError",
            format!(
                "{function}(): `{name}` must be a list, got {}",
                other.as_ref().map_or("nothing", |value| value.type_name())
            ),
        )),
    }
}
