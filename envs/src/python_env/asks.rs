//! `llm_query` and `judge` for the author's code.
//!
//! What fails raises: a judge that is away must end a rollout, and not be read as its verdict.

use std::sync::Arc;

use async_trait::async_trait;
use espalier_inference::{Message, Role};
use espalier_sandbox::{CallContext, CallError, HostCall, HostCalls, Value};

use crate::services::{JudgeRequest, Services, SubQuery};

/// Tokens of a judge's answer, unless the author asks for another number.
const JUDGE_TOKENS: u32 = 512;

tokio::task_local! {
    /// The episode whose functions run in this task. Forks share the host of what they were forked from, so the host
    /// cannot know it by itself.
    static SERVICES: Arc<dyn Services>;
}

/// Lets `work` ask these services.
pub(super) async fn with<T>(services: Arc<dyn Services>, work: impl Future<Output = T>) -> T {
    SERVICES.scope(services, work).await
}

/// Puts questions to the episode's services.
pub(super) struct Asks;

#[async_trait]
impl HostCalls for Asks {
    async fn call(&self, call: HostCall, context: CallContext) -> Result<Value, CallError> {
        let Ok(services) = SERVICES.try_with(Arc::clone) else {
            return Err(CallError::runtime(format!(
                "`{}` can be called while an episode is played, not while the file is loaded",
                call.function
            )));
        };
        match call.function.as_str() {
            "llm_query" => {
                let prompt = text(&call.args, "llm_query")?;
                let mut answers = query(&*services, vec![prompt], &call, context).await?;
                answers.pop().ok_or_else(|| CallError::runtime("`llm_query` had no answer"))
            }
            "llm_query_batched" => {
                let prompts = match call.args.first() {
                    Some(Value::List(prompts) | Value::Tuple(prompts)) => prompts.iter().map(Value::display).collect(),
                    _ => return Err(wrong("llm_query_batched() takes a list of texts")),
                };
                query(&*services, prompts, &call, context).await.map(Value::List)
            }
            "judge" => judge(&*services, call, context).await,
            other => Err(CallError::runtime(format!("nothing serves `{other}` here"))),
        }
    }
}

fn wrong(message: &str) -> CallError {
    CallError { type_name: "TypeError".to_owned(), message: message.to_owned() }
}

fn text(args: &[Value], function: &str) -> Result<String, CallError> {
    args.first().map(Value::display).ok_or_else(|| wrong(&format!("{function}() takes a text")))
}

async fn query(
    services: &dyn Services,
    prompts: Vec<String>,
    call: &HostCall,
    context: CallContext,
) -> Result<Vec<Value>, CallError> {
    if !services.has_llm() {
        return Err(CallError::runtime(
            "no model serves `llm_query` for this environment: neither in mode `alone` of a suite nor while grading; \
             `judge(...)` asks the suite's `judge`",
        ));
    }
    let model = call.kwargs.iter().find(|(name, _)| name == "model").map(|(_, value)| value.display());
    let (asked, cancel) = (prompts.len(), context.cancel);
    let queries = prompts.into_iter().map(|prompt| SubQuery { prompt, model: model.clone() }).collect();
    let answers = services.llm_query(queries, cancel).await;
    if answers.len() != asked {
        return Err(CallError::runtime(format!("{} answers came to {asked} prompts", answers.len())));
    }
    answers
        .into_iter()
        .map(|answer| answer.map(Value::Str).map_err(|error| CallError::runtime(error.to_string())))
        .collect()
}

/// `judge(prompt, max_tokens=512)`: a text, or a list of messages.
async fn judge(services: &dyn Services, call: HostCall, context: CallContext) -> Result<Value, CallError> {
    let signature = || wrong("judge() takes a text or a list of {\"role\", \"content\"}, and `max_tokens`");
    let [prompt] = <[Value; 1]>::try_from(call.args).map_err(|_| signature())?;
    let messages = match prompt {
        Value::Str(text) => vec![Message::user(text)],
        Value::List(items) => items.iter().map(message).collect::<Option<_>>().ok_or_else(signature)?,
        _ => return Err(signature()),
    };
    let mut max_tokens = JUDGE_TOKENS;
    for (name, value) in call.kwargs {
        max_tokens = match (name.as_str(), value) {
            ("max_tokens", Value::Int(number)) => u32::try_from(number).map_err(|_| signature())?,
            _ => return Err(signature()),
        };
    }
    let request = JudgeRequest { messages, schema: None, max_tokens };
    services
        .judge(request, context.cancel)
        .await
        .map(Value::Str)
        .map_err(|error| CallError::runtime(format!("the judge: {error}")))
}

fn message(value: &Value) -> Option<Message> {
    let Value::Dict(entries) = value else { return None };
    let text = |name: &str| entries.iter().find(|(key, _)| key.as_str() == Some(name)).and_then(|(_, v)| v.as_str());
    let role = match text("role")? {
        "system" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        _ => return None,
    };
    Some(Message::new(role, text("content")?))
}
