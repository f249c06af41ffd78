//! What the tests of this crate share: a context without services, and actions.

use std::sync::Arc;
use std::time::Duration;

use espalier_envs::{Action, EnvContext, NoServices, Services};
use espalier_inference::StopReason;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A context whose services are the given ones.
pub(crate) fn context(services: Arc<dyn Services>, max_turns: u32) -> EnvContext {
    EnvContext {
        services,
        seed: 7,
        deadline: Instant::now() + Duration::from_mins(10),
        cancel: CancellationToken::new(),
        max_turns,
        depth: 0,
    }
}

/// A context without services.
pub(crate) fn alone(max_turns: u32) -> EnvContext {
    context(Arc::new(NoServices), max_turns)
}

/// A complete response.
pub(crate) fn says(text: &str) -> Action {
    Action { text: text.to_owned(), tokens: Vec::new(), stop: StopReason::EndOfTurn }
}
