//! How long prompts are for a model. Who knows tokenizers counts ([`TokenCounter`]); this crate knows none.

use crate::error::DataError;
use crate::left_out::{LeftOut, set_of};
use crate::row::{Prompt, Row};
use crate::source::Rows;

/// Counts the tokens of prompts.
pub trait TokenCounter: Send + Sync {
    /// The tokens of a prompt as the model is shown it, its chat template included; why they cannot be counted
    /// otherwise.
    fn count(&self, prompt: &Prompt) -> Result<u64, String>;
}

/// The rows whose prompts have at most `most` tokens; the others are noted.
pub(crate) fn at_most(
    rows: Rows,
    most: u64,
    counter: std::sync::Arc<dyn TokenCounter>,
    left_out: LeftOut,
    name: String,
) -> Rows {
    let reason = format!("the prompt has more than {most} tokens (`max_prompt_tokens`)");
    let mut failed = false;
    let mut keep = move |row: Row| match counter.count(&row.prompt) {
        Ok(count) if count > most => {
            left_out.note(&reason, &row.id, set_of(&row, &name));
            Ok(None)
        }
        Ok(_) => Ok(Some(row)),
        Err(reason) => Err(DataError::Source {
            key: "tokenizer".to_owned(),
            reason: format!("cannot count the tokens of row `{}`: {reason}", row.id),
        }),
    };
    Box::new(
        rows.map_while(move |row| {
            if failed {
                return None;
            }
            let kept = row.and_then(&mut keep);
            failed = kept.is_err();
            Some(kept.transpose())
        })
        .flatten(),
    )
}
