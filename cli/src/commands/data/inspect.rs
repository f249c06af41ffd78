//! What a source holds.

use std::collections::BTreeMap;
use std::path::Path;

use espalier_datasets::hub::glob;
use espalier_datasets::{Builtins as _, DataError, Prompt, Row, Source};
use espalier_envs::builtin::Builtin;
use espalier_envs::{EnvRow, Registry};
use serde_json::{Map, Value, json};

use super::columns::Columns;
use super::lengths::Lengths;
use super::validate::{Rows, spinner};
use super::{counted, grouped, opening};
use crate::arguments::DataSourceArguments;
use crate::failure::Failure;
use crate::output::outln;
use crate::settings;

/// Rows by which it is told which environments fit.
const SAMPLE: usize = 20;
/// Ids of rows that are too long, and errors, that are shown.
const SHOWN: usize = 8;

/// What was found.
#[derive(Default)]
struct Found {
    rows: u64,
    columns: Columns,
    characters: Lengths,
    tokens: Lengths,
    /// Rows by the environment that they name.
    envs: BTreeMap<String, u64>,
    sample: Vec<EnvRow>,
    wrong: u64,
    errors: Vec<String>,
    longer: u64,
    longer_ids: Vec<String>,
}

pub(super) fn run(
    arguments: DataSourceArguments,
    max_prompt_tokens: Option<u64>,
    limit: Option<u64>,
    json: bool,
) -> Result<(), Failure> {
    let source = opening::source(&arguments)?;
    let counter = match &arguments.tokenizer {
        Some(folder) => Some(Builtin.counter(&settings::model_folder(folder))?),
        None => None,
    };
    let format = source.open(&Builtin)?.format;
    let (rows, left_out) = source.each(&Builtin)?;
    let mut found = Found::default();
    let bar = spinner();
    for located in rows {
        bar.inc(1);
        let row = match located {
            Ok(located) => located.row,
            Err(error @ DataError::File { .. }) if found.rows == 0 && found.wrong == 0 => return Err(error.into()),
            Err(error) => {
                found.wrong += 1;
                if found.errors.len() < SHOWN {
                    found.errors.push(error.to_string());
                }
                continue;
            }
        };
        if let Some(counter) = &counter {
            let tokens = counter.count(&row.prompt).map_err(|reason| {
                Failure::Data(format!("the tokens of row `{}` cannot be counted: {reason}", row.id))
            })?;
            found.tokens.add(tokens);
            if max_prompt_tokens.is_some_and(|most| tokens > most) {
                found.longer += 1;
                if found.longer_ids.len() < SHOWN {
                    found.longer_ids.push(row.id.clone());
                }
            }
        }
        found.add(row);
        if limit.is_some_and(|limit| found.rows >= limit) {
            break;
        }
    }
    bar.finish_and_clear();
    let fits = fits(&found);
    let splits = splits(&source);
    let names = source.name();
    if json {
        let object = |of: &BTreeMap<String, Value>| Value::Object(of.clone().into_iter().collect());
        let envs: BTreeMap<String, Value> = found.envs.iter().map(|(env, rows)| (env.clone(), json!(rows))).collect();
        let mut out = json!({
            "source": names, "format": format, "rows": found.rows, "wrong_rows": found.wrong, "errors": found.errors,
            "env_class": object(&envs), "fits": fits.iter().filter(|fit| fit.reason.is_none()).map(|fit| &fit.id).collect::<Vec<_>>(),
            "splits": splits, "left_out": left_out.sentences(),
            "prompt_characters": found.characters.to_json(),
            "columns": found.columns.iter().map(super::columns::Column::to_json).collect::<Vec<_>>(),
        });
        if counter.is_some() {
            out["prompt_tokens"] = found.tokens.to_json();
        }
        if let Some(most) = max_prompt_tokens {
            out["longer"] = json!({"than": most, "rows": found.longer, "ids": found.longer_ids});
        }
        outln!("{out}")?;
        return found.verdict();
    }
    let stopped = if limit == Some(found.rows) { " looked at" } else { "" };
    outln!("{names}: {}{stopped}, format `{format}`", counted(found.rows, "row"))?;
    if found.wrong > 0 {
        outln!("wrong rows   {}; `espalier data validate` names them", grouped(found.wrong))?;
        outln!("             {}", found.errors[0])?;
    }
    for sentence in left_out.sentences() {
        outln!("left out     {sentence}")?;
    }
    if !splits.is_empty() {
        outln!("splits       {}", splits.join(", "))?;
    }
    let envs: Vec<String> =
        found.envs.iter().map(|(env, rows)| format!("`{env}` ({})", counted(*rows, "row"))).collect();
    outln!("env_class    {}", if envs.is_empty() { "none".to_owned() } else { envs.join(", ") })?;
    let fitting: Vec<String> =
        fits.iter().filter(|fit| fit.reason.is_none()).map(|fit| format!("`{}`", fit.id)).collect();
    outln!("fits         {}", if fitting.is_empty() { "none".to_owned() } else { fitting.join(", ") })?;
    for fit in fits.iter().filter(|fit| found.envs.contains_key(&fit.id)) {
        if let Some(reason) = &fit.reason {
            outln!("             not `{}`: {reason}", fit.id)?;
        }
    }
    outln!("\n{:24} {:>10} {:>10} {:>10} {:>10} {:>10}", "prompt", "least", "half", "90 %", "99 %", "most")?;
    let line = |what: &str, lengths: &Lengths| {
        let [least, half, most_90, most_99, most] = lengths.figures().map(grouped);
        outln!("{what:24} {least:>10} {half:>10} {most_90:>10} {most_99:>10} {most:>10}")
    };
    line("characters", &found.characters)?;
    if counter.is_some() {
        line("tokens", &found.tokens)?;
    }
    if let Some(most) = max_prompt_tokens {
        let more = if found.longer > found.longer_ids.len() as u64 { ", ..." } else { "" };
        let ids = if found.longer == 0 { String::new() } else { format!(": {}{more}", found.longer_ids.join(", ")) };
        outln!("{} longer than {} tokens{ids}", counted(found.longer, "row"), grouped(most))?;
    }
    table(&found)?;
    found.verdict()
}

/// The columns.
fn table(found: &Found) -> Result<(), Failure> {
    let name = found.columns.iter().map(|column| column.name.chars().count()).max().unwrap_or(0).max(6);
    let kind = found.columns.iter().map(|column| column.kinds().chars().count()).max().unwrap_or(0).max(4);
    outln!("\n{:name$}  {:kind$}  {:>9}  example", "column", "type", "filled")?;
    for column in found.columns.iter() {
        let (kinds, filled) = (column.kinds(), grouped(column.filled()));
        outln!("{:name$}  {kinds:kind$}  {filled:>9}  {}", column.name, column.example)?;
    }
    if found.columns.beyond > 0 {
        outln!("... and {} of further columns", counted(found.columns.beyond, "value"))?;
    }
    Ok(())
}

impl Found {
    /// A source of which not one row can be read is not one to work with.
    fn verdict(&self) -> Result<(), Failure> {
        match self.errors.first() {
            Some(error) if self.rows == 0 => Err(Failure::Data(format!("no row can be read; the first: {error}"))),
            _ => Ok(()),
        }
    }

    fn add(&mut self, row: Row) {
        self.rows += 1;
        if let Some(env) = &row.env {
            *self.envs.entry(env.clone()).or_default() += 1;
        }
        self.characters.add(characters(&row.prompt));
        let mut record: Map<String, Value> = row.to_record();
        record.shift_remove("uid");
        if row.columns.contains_key("uid") {
            record.insert("uid".to_owned(), Value::from(row.id.clone()));
        }
        self.columns.add(&record);
        if self.sample.len() < SAMPLE {
            self.sample.extend(EnvRow::from_row(row));
        }
    }
}

/// Characters of a prompt's texts.
fn characters(prompt: &Prompt) -> u64 {
    match prompt {
        Prompt::Text(text) => text.chars().count() as u64,
        Prompt::Messages(messages) => messages
            .iter()
            .filter_map(|message| message.get("content").and_then(Value::as_str))
            .map(|text| text.chars().count() as u64)
            .sum(),
    }
}

/// An environment, and why it does not take the first rows.
struct Fit {
    id: String,
    reason: Option<String>,
}

fn fits(found: &Found) -> Vec<Fit> {
    let registry = Registry::standard();
    let fit = |id: &str| {
        let made = registry
            .prepare(id, &Map::new())
            .and_then(|prepared| found.sample.iter().try_for_each(|row| prepared.make(row).map(drop)));
        let reason = match made {
            Ok(()) if found.sample.is_empty() => Some("there is no row".to_owned()),
            made => made.err().map(|error| error.to_string()),
        };
        Fit { id: id.to_owned(), reason }
    };
    registry.ids().map(fit).collect()
}

/// Splits by the names of the source's file and of those beside it.
fn splits(source: &Source) -> Vec<String> {
    let mut splits = Vec::new();
    let Ok(files) = source.files() else { return splits };
    for file in &files {
        let name = file.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        splits.extend(glob::split_of(&name).map(|split| format!("{split} (this file)")));
        let folder = file.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut others: Vec<String> = std::fs::read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|other| *other != name && Rows::is_data(other))
            .collect();
        others.sort_unstable();
        splits.extend(others.iter().filter_map(|other| Some(format!("{} ({other})", glob::split_of(other)?))));
    }
    splits.dedup();
    splits.truncate(12);
    splits
}
