//! What a statement may touch: SQLite asks while it compiles.

use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

use crate::error::SqlError;
use crate::query::Writes;

/// Pragmas that only describe tables.
const PRAGMAS: [&str; 8] = [
    "table_info",
    "table_xinfo",
    "table_list",
    "index_list",
    "index_info",
    "index_xinfo",
    "foreign_key_list",
    "collation_list",
];

/// Functions that reach out of the database. Most do not exist in this build; a build that has them must not offer them.
const FUNCTIONS: [&str; 6] = ["load_extension", "fts3_tokenizer", "readfile", "writefile", "edit", "fsdir"];

/// What the authoriser of a connection is told, and what it tells.
#[derive(Default)]
struct State {
    writes: Writes,
    refused: Option<SqlError>,
}

/// The part of the authoriser that the connection's owner keeps.
#[derive(Clone, Default)]
pub(crate) struct Guard(Arc<Mutex<State>>);

impl Guard {
    /// Before a statement is compiled.
    pub(crate) fn set(&self, writes: Writes) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = State { writes, refused: None };
    }

    /// What was refused since, if anything.
    pub(crate) fn refused(&self) -> Option<SqlError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).refused.take()
    }

    pub(crate) fn authorize(&self, context: AuthContext<'_>) -> Authorization {
        let Err(error) = judge(&context.action) else { return Authorization::Allow };
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A statement that is never stepped may be compiled.
        if state.writes == Writes::Pretend && compiles_only(&context.action) {
            return Authorization::Allow;
        }
        state.refused.get_or_insert(error);
        Authorization::Deny
    }
}

/// Statements that SQLite never calls read-only, so that none of them is stepped.
fn compiles_only(action: &AuthAction<'_>) -> bool {
    use AuthAction as A;
    matches!(
        action,
        A::Insert { .. }
            | A::Update { .. }
            | A::Delete { .. }
            | A::CreateTable { .. }
            | A::CreateView { .. }
            | A::CreateIndex { .. }
            | A::DropTable { .. }
            | A::DropView { .. }
            | A::DropIndex { .. }
            | A::Reindex { .. }
    )
}

fn judge(action: &AuthAction<'_>) -> Result<(), SqlError> {
    use AuthAction as A;
    let writes = |what: &str| Err(SqlError::NotReadOnly { what: what.to_owned() });
    let denied = |what: String| Err(SqlError::Denied { what });
    match action {
        A::Select | A::Read { .. } | A::Recursive => Ok(()),
        A::Function { function_name } => {
            if FUNCTIONS.iter().any(|name| name.eq_ignore_ascii_case(function_name)) {
                denied(format!("the function `{function_name}`"))
            } else {
                Ok(())
            }
        }
        A::Pragma { pragma_name, .. } => {
            if PRAGMAS.iter().any(|name| name.eq_ignore_ascii_case(pragma_name)) {
                Ok(())
            } else {
                denied(format!("PRAGMA {pragma_name}"))
            }
        }
        A::Insert { .. } => writes("INSERT"),
        A::Update { .. } => writes("UPDATE"),
        A::Delete { .. } => writes("DELETE"),
        A::CreateTable { .. }
        | A::CreateIndex { .. }
        | A::CreateView { .. }
        | A::CreateTrigger { .. }
        | A::CreateVtable { .. }
        | A::CreateTempTable { .. }
        | A::CreateTempIndex { .. }
        | A::CreateTempView { .. }
        | A::CreateTempTrigger { .. } => writes("CREATE"),
        A::DropTable { .. }
        | A::DropIndex { .. }
        | A::DropView { .. }
        | A::DropTrigger { .. }
        | A::DropVtable { .. }
        | A::DropTempTable { .. }
        | A::DropTempIndex { .. }
        | A::DropTempView { .. }
        | A::DropTempTrigger { .. } => writes("DROP"),
        A::AlterTable { .. } => writes("ALTER TABLE"),
        A::Reindex { .. } => writes("REINDEX"),
        A::Analyze { .. } => writes("ANALYZE"),
        A::Attach { .. } => denied("ATTACH".to_owned()),
        A::Detach { .. } => denied("DETACH".to_owned()),
        A::Transaction { .. } | A::Savepoint { .. } => denied("a transaction".to_owned()),
        _ => denied("this statement".to_owned()),
    }
}
