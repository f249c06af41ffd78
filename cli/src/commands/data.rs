//! `espalier data`.

use std::path::Path;

use espalier_datasets::{Builtins as _, Source};
use espalier_envs::builtin::{ALL, Builtin};
use espalier_envs::{EnvRow, EnvSpec, Registry};
use serde_json::json;

use crate::arguments::DataCommand;
use crate::failure::Failure;
use crate::settings;

pub(crate) fn run(command: DataCommand) -> Result<(), Failure> {
    match command {
        DataCommand::List { json } => list(json),
        DataCommand::Env { id } => describe(&id),
        DataCommand::Show { source, param, format, limit } => show(&source, &param, format, limit),
    }
}

fn list(json: bool) -> Result<(), Failure> {
    let registry = Registry::standard();
    let mut entries: Vec<(&str, String, String)> = Vec::new();
    for id in registry.ids() {
        let spec = registry.spec(id).map_err(|error| Failure::Internal(error.to_string()))?;
        entries.push(("environment", spec.id, spec.summary));
    }
    entries.extend(ALL.iter().map(|spec| ("data set", spec.name.to_owned(), spec.summary.to_owned())));
    let width = entries.iter().map(|(_, name, _)| name.len()).max().unwrap_or(0);
    for (kind, name, summary) in entries {
        if json {
            anstream::println!("{}", json!({"kind": kind, "name": name, "summary": summary}));
        } else {
            anstream::println!("{kind:11}  {name:width$}  {summary}");
        }
    }
    Ok(())
}

fn describe(id: &str) -> Result<(), Failure> {
    let spec: EnvSpec = Registry::standard().spec(id).map_err(|error| Failure::Usage {
        what: "the environment".to_owned(),
        expected: "one of `espalier data list`".to_owned(),
        got: error.to_string(),
    })?;
    anstream::println!("{}\n{}\n\nparameters", spec.id, spec.summary);
    for param in &spec.params {
        anstream::println!("  {} ({}; default {})\n      {}", param.name, param.kind, param.default, param.doc);
    }
    anstream::println!("\ncolumns");
    for column in &spec.columns {
        let need = if column.required { "required" } else { "optional" };
        anstream::println!("  {} ({need})\n      {}", column.name, column.doc);
    }
    Ok(())
}

fn show(name: &str, params: &[String], format: Option<String>, limit: Option<u64>) -> Result<(), Failure> {
    let params = settings::table_of("`--param`", params)?;
    let generated = !Path::new(name).exists() && Builtin.names().iter().any(|builtin| builtin == name);
    let mut table = serde_json::Map::new();
    table.insert((if generated { "builtin" } else { "path" }).to_owned(), json!(name));
    table.insert("params".to_owned(), json!(params));
    if let Some(format) = format {
        table.insert("format".to_owned(), json!(format));
    }
    if let Some(limit) = limit {
        table.insert("limit".to_owned(), json!(limit));
    }
    let wrong = |reason: String| Failure::Input { file: name.to_owned(), reason };
    let source: Source = espalier_envs::params::read("data", &table).map_err(|error| wrong(error.to_string()))?;
    source.check().map_err(|error| wrong(error.to_string()))?;
    for row in source.rows(&Builtin).map_err(|error| wrong(error.to_string()))? {
        let row = row.map_err(|error| wrong(error.to_string()))?;
        anstream::println!("{}", serde_json::Value::Object(row.to_record()));
        EnvRow::from_row(row).map_err(|error| wrong(error.to_string()))?;
    }
    Ok(())
}
