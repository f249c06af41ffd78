//! Where a tree's environments come from.

use espalier_envs::{ChildRequest, Env, EnvError};
use espalier_inference::Message;

/// Makes the environments of one task: the root's, and a copy of it for every child.
///
/// All nodes of a tree have the same environment id and parameters; a child differs in its context and prompt.
pub trait EnvSource: Send + Sync {
    /// The environment's id.
    fn env_id(&self) -> &str;

    /// The root's environment, fresh.
    fn root(&self) -> Result<Box<dyn Env>, EnvError>;

    /// A child's environment, fresh, and the prompt it starts from. Environments without children keep the default.
    fn child(&self, request: &ChildRequest, depth: u32) -> Result<(Box<dyn Env>, Vec<Message>), EnvError> {
        let _ = (request, depth);
        Err(EnvError::Failed { env: self.env_id().to_owned(), reason: "this environment has no children".to_owned() })
    }
}
