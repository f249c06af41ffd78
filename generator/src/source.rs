//! Where a tree's environments come from.

use espalier_envs::{ChildRequest, Env, EnvError, EnvRow, Prepared};
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

/// Environments of a registry, for one row of a data set.
#[derive(Clone, Debug)]
pub struct RowSource {
    prepared: Prepared,
    row: EnvRow,
}

impl RowSource {
    /// Environments for a row.
    pub fn new(prepared: Prepared, row: EnvRow) -> Self {
        Self { prepared, row }
    }

    /// The row.
    pub fn row(&self) -> &EnvRow {
        &self.row
    }
}

impl EnvSource for RowSource {
    fn env_id(&self) -> &str {
        self.prepared.id()
    }

    fn root(&self) -> Result<Box<dyn Env>, EnvError> {
        self.prepared.make(&self.row)
    }

    fn child(&self, request: &ChildRequest, _depth: u32) -> Result<(Box<dyn Env>, Vec<Message>), EnvError> {
        let row = self.row.child(request);
        let env = self.prepared.make(&row)?;
        Ok((env, row.prompt))
    }
}
