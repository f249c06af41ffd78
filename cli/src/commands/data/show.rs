//! Rows as JSONL, and what is asked.

use espalier_datasets::{Format, Prompt, Row};
use espalier_envs::EnvRow;
use espalier_envs::builtin::Builtin;
use serde_json::Value;

use super::opening;
use crate::arguments::DataSourceArguments;
use crate::failure::Failure;
use crate::output::{outln, say};
use crate::settings;

/// Every row, checked.
pub(super) fn rows(
    arguments: DataSourceArguments,
    max_prompt_tokens: Option<u64>,
    limit: Option<u64>,
) -> Result<(), Failure> {
    let mut source = opening::source(&arguments)?;
    source.limit = limit;
    source.max_prompt_tokens = max_prompt_tokens;
    source.tokenizer = arguments.tokenizer.filter(|_| max_prompt_tokens.is_some()).map(settings::model_folder);
    let opened = source.open(&Builtin)?;
    for row in opened.rows {
        let row = row?;
        outln!("{}", Value::Object(row.to_record()))?;
        EnvRow::from_row(row).map_err(|error| Failure::Input { file: source.name(), reason: error.to_string() })?;
    }
    for sentence in opened.left_out.sentences() {
        say!("{sentence}");
    }
    Ok(())
}

/// The template, and the first row's prompt.
pub(super) fn prompt(arguments: DataSourceArguments) -> Result<(), Failure> {
    let source = opening::source(&arguments)?;
    let mut opened = source.open(&Builtin)?;
    let format = opened.format;
    let Some(row) = opened.rows.next().transpose()? else {
        return Err(Failure::Input { file: source.name(), reason: "holds no rows".to_owned() });
    };
    outln!("# template\n{}\n\n# prompt of row {}", template(source.prompt_template.as_deref(), format, &row), row.id)?;
    match &row.prompt {
        Prompt::Text(text) => outln!("{}", text.trim_end())?,
        Prompt::Messages(messages) => {
            for message in messages {
                let text = |key: &str| message.get(key).and_then(Value::as_str).unwrap_or_default();
                outln!("[{}]\n{}", text("role"), text("content").trim_end())?;
            }
        }
    }
    Ok(())
}

fn template(given: Option<&str>, format: Format, row: &Row) -> String {
    match (given, format.prompts()) {
        (Some("instruct"), Some(prompts)) => prompts.instruct.to_owned(),
        (Some("question"), Some(prompts)) => prompts.question.to_owned(),
        (Some(text), _) => text.to_owned(),
        (None, _) if matches!(row.prompt, Prompt::Messages(_)) => "none: the record carries its messages".to_owned(),
        (None, Some(prompts)) => prompts.default().to_owned(),
        (None, None) => "none: the record carries its prompt".to_owned(),
    }
}
