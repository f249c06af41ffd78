//! Typed parameters: errors name the key, what was expected, and the nearest valid key.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::env::EnvError;

/// Reads an environment's parameters into its own type, which refuses unknown fields.
pub fn read<T: DeserializeOwned>(env: &str, params: &Map<String, Value>) -> Result<T, EnvError> {
    let value = Value::Object(params.clone());
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let reason = error.into_inner().to_string();
        let (key, reason) = if let Some((field, valid)) = unknown_field(&reason) {
            let parent = path.strip_suffix(field).unwrap_or(&path).trim_end_matches('.');
            let key = if parent.is_empty() { field.to_owned() } else { format!("{parent}.{field}") };
            (key, format!("is no parameter; {}", hint(field, valid.iter().copied())))
        } else {
            let key = if path == "." { "parameters".to_owned() } else { path };
            (key, format!("is wrong: {reason}"))
        };
        EnvError::Invalid { env: env.to_owned(), key, reason }
    })
}

/// The field and the valid ones of serde's message about an unknown field.
fn unknown_field(message: &str) -> Option<(&str, Vec<&str>)> {
    let rest = message.strip_prefix("unknown field ")?;
    let mut names = rest.split('`').skip(1).step_by(2);
    let field = names.next()?;
    Some((field, names.collect()))
}

/// "did you mean ...", or the whole list when nothing is near.
pub fn hint<'a>(given: &str, valid: impl Iterator<Item = &'a str>) -> String {
    let valid: Vec<&str> = valid.collect();
    match nearest(given, &valid) {
        Some(near) => format!("did you mean `{near}`?"),
        None if valid.is_empty() => "there is none".to_owned(),
        None => format!("there is {}", valid.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")),
    }
}

/// The valid name that is most like the given one, if any is much like it.
pub fn nearest<'a>(given: &str, valid: &[&'a str]) -> Option<&'a str> {
    valid
        .iter()
        // Of short names, two letters in the wrong order are already much.
        .map(|name| {
            (if strsim::osa_distance(given, name) == 1 { 1.0 } else { strsim::jaro_winkler(given, name) }, *name)
        })
        .filter(|(likeness, _)| *likeness >= 0.8)
        .max_by(|left, right| left.0.total_cmp(&right.0))
        .map(|(_, name)| name)
}
