//! What there is.

use espalier_datasets::hub::{Cache, CachedRepo};
use espalier_datasets::{FORMATS, FormatSpec};
use espalier_envs::builtin::ALL;
use espalier_envs::{EnvSpec, Registry};
use serde_json::json;

use super::{counted, size};
use crate::failure::Failure;
use crate::output::outln;

/// Environments, generated sets, formats and cached sets.
pub(super) fn all(json: bool) -> Result<(), Failure> {
    let registry = Registry::standard();
    let mut entries: Vec<(&str, String, String)> = Vec::new();
    for id in registry.ids() {
        let spec = registry.spec(id).map_err(|error| Failure::Internal(error.to_string()))?;
        entries.push(("environment", spec.id, spec.summary));
    }
    entries.extend(ALL.iter().map(|spec| ("data set", spec.name.to_owned(), spec.summary.to_owned())));
    let format = |spec: &FormatSpec| ("format", spec.name.to_owned(), spec.summary.to_owned());
    entries.extend(FORMATS.iter().map(format));
    // A cache that cannot be read is no reason to keep quiet about the rest.
    match Cache::from_env().and_then(|cache| cache.repos()) {
        Ok(repos) => entries.extend(repos.iter().map(|repo| ("cached set", repo.repo.to_string(), summary(repo)))),
        Err(error) => tracing::warn!("the Hugging Face cache: {error}"),
    }
    let width = entries.iter().map(|(_, name, _)| name.chars().count()).max().unwrap_or(0);
    for (kind, name, summary) in entries {
        if json {
            outln!("{}", json!({"kind": kind, "name": name, "summary": summary}))?;
        } else {
            outln!("{kind:11}  {name:width$}  {summary}")?;
        }
    }
    Ok(())
}

/// `main (0123456): 3 files, 1.2 MB`, for every commit.
fn summary(repo: &CachedRepo) -> String {
    let of = |(commit, files): (&String, &Vec<(String, u64)>)| {
        let names: Vec<&str> =
            repo.revisions.iter().filter(|(_, at)| *at == commit).map(|(name, _)| name.as_str()).collect();
        let short = commit.get(..7).unwrap_or(commit);
        let name = if names.is_empty() { short.to_owned() } else { format!("{} ({short})", names.join(", ")) };
        let bytes = files.iter().map(|(_, bytes)| bytes).sum();
        format!("{name}: {}, {}", counted(files.len() as u64, "file"), size(bytes))
    };
    repo.commits.iter().map(of).collect::<Vec<_>>().join("; ")
}

/// One environment.
pub(super) fn environment(id: &str) -> Result<(), Failure> {
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
