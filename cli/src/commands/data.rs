//! `espalier data`.

use std::path::Path;

use espalier_datasets::source::Paths;
use espalier_datasets::{Builtins as _, Format, Source};
use espalier_envs::builtin::{ALL, Builtin};
use espalier_envs::{EnvRow, EnvSpec, Registry};
use serde_json::{Value, json};

use crate::arguments::DataCommand;
use crate::failure::Failure;
use crate::output::outln;
use crate::settings;

pub(crate) fn run(command: DataCommand) -> Result<(), Failure> {
    match command {
        DataCommand::List { json } => list(json),
        DataCommand::Env { id } => describe(&id),
        DataCommand::Show { source, param, format, limit } => show(&source, &param, format.as_deref(), limit),
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
            outln!("{}", json!({"kind": kind, "name": name, "summary": summary}))?;
        } else {
            outln!("{kind:11}  {name:width$}  {summary}")?;
        }
    }
    Ok(())
}

fn describe(id: &str) -> Result<(), Failure> {
    let spec: EnvSpec = Registry::standard().spec(id)?;
    outln!("{}\n{}\n\nparameters", spec.id, spec.summary)?;
    for param in &spec.params {
        outln!("  {} ({}; default {})\n      {}", param.name, param.kind, param.default, param.doc)?;
    }
    outln!("\ncolumns")?;
    for column in &spec.columns {
        let need = if column.required { "required" } else { "optional" };
        outln!("  {} ({need})\n      {}", column.name, column.doc)?;
    }
    Ok(())
}

fn show(name: &Path, params: &[String], format: Option<&str>, limit: Option<u64>) -> Result<(), Failure> {
    let params = settings::table_of("`--param`", params)?;
    let builtin = name.to_str().filter(|name| Builtin.names().iter().any(|builtin| builtin == name));
    let mut source = match builtin.filter(|_| !name.exists()) {
        Some(builtin) => Source::builtin(builtin, params),
        None => Source { path: Some(Paths::One(name.to_owned())), params, ..Source::default() },
    };
    if let Some(format) = format {
        let format = serde_json::from_value::<Format>(Value::from(format));
        source.format = format.map_err(|error| Failure::Configuration(format!("`--format`: {error}")))?;
    }
    source.limit = limit;
    for row in source.rows(&Builtin)? {
        let row = row?;
        outln!("{}", Value::Object(row.to_record()))?;
        EnvRow::from_row(row)
            .map_err(|error| Failure::Input { file: name.display().to_string(), reason: error.to_string() })?;
    }
    Ok(())
}
