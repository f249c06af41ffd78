//! TOML files with `key.path=value` overrides, and where the per-user cache is.

use std::path::{Path, PathBuf};

use espalier_datasets::error::kind;
use serde_json::{Map, Value};

use crate::failure::Failure;

/// `$ESPALIER_CACHE`, else `$XDG_CACHE_HOME/espalier`, else `~/.cache/espalier`; `None` without a home.
pub(crate) fn cache_folder() -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    named("ESPALIER_CACHE")
        .or_else(|| named("XDG_CACHE_HOME").map(|folder| folder.join("espalier")))
        .or_else(|| named("HOME").map(|home| home.join(".cache/espalier")))
}

/// A model's folder: as given, or by name in `$ESPALIER_MODELS` or the cache.
pub(crate) fn model_folder(name: impl AsRef<Path>) -> PathBuf {
    let given = name.as_ref();
    if given.exists() || given.components().count() > 1 {
        return given.to_owned();
    }
    let models = std::env::var_os("ESPALIER_MODELS")
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
        .or_else(|| cache_folder().map(|folder| folder.join("models")));
    match models {
        Some(models) if models.join(given).exists() => models.join(given),
        _ => given.to_owned(),
    }
}

/// A TOML file as a table.
pub(crate) fn read_toml(path: &Path) -> Result<Map<String, Value>, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::unreadable(path, &error))?;
    let table: Map<String, Value> = toml::from_str(&text).map_err(|error| Failure::Input {
        file: path.display().to_string(),
        reason: format!("not valid TOML: {}", error.to_string().trim_end()),
    })?;
    match table.iter().find_map(|(key, value)| not_finite(key, value)) {
        None => Ok(table),
        Some(key) => Err(Failure::Configuration(format!(
            "`{}`: key `{key}`: expected a finite number, got `nan` or `inf`",
            path.display()
        ))),
    }
}

/// The key of a number that is not finite. TOML has no null: where JSON has one, such a number stood.
fn not_finite(key: &str, value: &Value) -> Option<String> {
    match value {
        Value::Null => Some(key.to_owned()),
        Value::Array(items) => {
            items.iter().enumerate().find_map(|(index, item)| not_finite(&format!("{key}.{index}"), item))
        }
        Value::Object(entries) => entries.iter().find_map(|(name, value)| not_finite(&format!("{key}.{name}"), value)),
        _ => None,
    }
}

/// `key.path=value` texts as a table of their own. `what` names the argument that they come from.
pub(crate) fn table_of(what: &str, overrides: &[String]) -> Result<Map<String, Value>, Failure> {
    let mut table = Map::new();
    apply(what, &mut table, overrides)?;
    Ok(table)
}

/// Sets what `key.path=value` texts say. Values are TOML (`0.5`, `true`, `[1, 2]`, `"text"`); what is not, is text.
/// Numbers in a path name list items, counted from 0.
pub(crate) fn apply(what: &str, table: &mut Map<String, Value>, overrides: &[String]) -> Result<(), Failure> {
    for text in overrides {
        set(table, text).map_err(|reason| Failure::Configuration(format!("{what} `{text}`: {reason}")))?;
    }
    Ok(())
}

fn set(table: &mut Map<String, Value>, text: &str) -> Result<(), String> {
    let (path, value) = text.split_once('=').ok_or("expected `key.path=value`")?;
    let keys: Vec<&str> = path.split('.').collect();
    if keys.iter().any(|key| key.is_empty()) {
        return Err("expected `key.path=value` with no empty key".to_owned());
    }
    let value = parse(value)?;
    let Some((first, rest)) = keys.split_first() else { return Ok(()) };
    let mut place = table.entry(*first).or_insert_with(|| if rest.is_empty() { Value::Null } else { new_table() });
    for (at, key) in rest.iter().enumerate() {
        let (path, last) = (keys[..=at].join("."), at + 1 == rest.len());
        place = match place {
            Value::Object(entries) => {
                entries.entry(*key).or_insert_with(|| if last { Value::Null } else { new_table() })
            }
            Value::Array(items) => {
                let count = items.len();
                let number = key.parse::<usize>().map_err(|_| match count {
                    0 => format!("`{path}` is an empty list; it has no `{key}`"),
                    _ => format!("`{path}` is a list: name an item by its number, as in `{path}.0.{key}`"),
                })?;
                let item = items.get_mut(number).ok_or_else(|| match count {
                    0 => format!("`{path}` is an empty list; it has no item {number}"),
                    1 => format!("`{path}` has 1 item, `{path}.0`; it has no item {number}"),
                    _ => format!(
                        "`{path}` has {count} items, `{path}.0` to `{path}.{}`; it has no item {number}",
                        count - 1
                    ),
                })?;
                if last && item.is_object() {
                    return Err(format!(
                        "`{path}.{number}` is a table, which no value can replace: set its keys one by one, as \
                         `{path}.{number}.key=value`"
                    ));
                }
                item
            }
            other => return Err(format!("`{path}` is {}; it has no key `{key}`", kind(other))),
        };
    }
    *place = value;
    Ok(())
}

fn new_table() -> Value {
    Value::Object(Map::new())
}

fn parse(text: &str) -> Result<Value, String> {
    let parsed = toml::from_str::<Map<String, Value>>(&format!("value = {text}"));
    let value = parsed.ok().and_then(|mut table| table.remove("value"));
    match value {
        Some(value) if not_finite("", &value).is_some() => {
            Err(format!("expected finite numbers, got `{text}`; a text is written in quotes"))
        }
        Some(value) => Ok(value),
        None => Ok(Value::String(text.to_owned())),
    }
}

/// The last override that sets a key, a part of it, or what it is part of; the key as error messages write it, with
/// `[0]` or `.0` for items.
pub(crate) fn override_of<'a>(key: &str, overrides: &'a [String]) -> Option<&'a str> {
    let plain = key.replace('[', ".").replace(']', "");
    let within = |inner: &str, outer: &str| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let sets = |text: &&String| {
        let path = text.split_once('=').map_or(text.as_str(), |(path, _)| path);
        within(&plain, path) || within(path, &plain)
    };
    overrides.iter().rev().find(sets).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn applied(start: Value, overrides: &[&str]) -> Result<Value, String> {
        let mut table = start.as_object().expect("a table").clone();
        let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
        apply("test", &mut table, &overrides).map_err(|error| error.to_string())?;
        Ok(Value::Object(table))
    }

    #[test]
    fn values_are_toml_and_anything_else_is_text() {
        let values = applied(json!({}), &["a=1", "b=0.5", "c=true", "d=[1, 2]", "e=plain text", "f=\"1\"", "g="]);
        assert_eq!(
            values.unwrap(),
            json!({"a": 1, "b": 0.5, "c": true, "d": [1, 2], "e": "plain text", "f": "1", "g": ""})
        );
    }

    #[test]
    fn paths_reach_tables_and_list_items() {
        let start = json!({"engine": [{"name": "a"}, {"name": "b", "sampling": {"top_k": 1}}]});
        let changed = applied(start, &["engine.1.sampling.top_k=5", "engine.0.sampling.seed=3", "new.key=1"]).unwrap();
        assert_eq!(
            changed,
            json!({
                "engine": [{"name": "a", "sampling": {"seed": 3}}, {"name": "b", "sampling": {"top_k": 5}}],
                "new": {"key": 1},
            })
        );
    }

    #[test]
    fn plain_items_of_a_list_are_replaced() {
        let changed = applied(json!({"modes": ["alone", "repl"]}), &["modes.1=recursive"]).unwrap();
        assert_eq!(changed, json!({"modes": ["alone", "recursive"]}));
    }

    #[test]
    fn what_cannot_be_set_is_said() {
        let start = json!({"engine": [{}], "name": "x", "task": []});
        for (text, said) in [
            ("name", "`key.path=value`"),
            ("a..b=1", "no empty key"),
            ("engine.7.name=1", "`engine` has 1 item, `engine.0`; it has no item 7"),
            ("engine.name=x", "name an item by its number, as in `engine.0.name`"),
            ("engine.0=3", "`engine.0` is a table, which no value can replace"),
            ("task.0=3", "empty list"),
            ("name.x=1", "`name` is a text; it has no key `x`"),
            ("limits.wall_s=nan", "expected finite numbers, got `nan`"),
            ("d=[1, -inf]", "got `[1, -inf]`"),
        ] {
            let error = applied(start.clone(), &[text]).unwrap_err();
            assert!(error.contains(said) && error.starts_with(&format!("test `{text}`: ")), "{text}: {error}");
        }
    }

    #[test]
    fn a_key_is_known_to_come_from_an_override() {
        let overrides: Vec<String> = ["samples=1", "task.0.samples=0", "limits.wall_s=1"].map(str::to_owned).to_vec();
        let of = |key| override_of(key, &overrides);
        assert_eq!(of("samples"), Some("samples=1"));
        assert_eq!(of("task[0].samples"), Some("task.0.samples=0"));
        assert_eq!(of("limits"), Some("limits.wall_s=1"));
        assert_eq!((of("limits.wall"), of("task[1].samples"), of("name")), (None, None, None));
    }
}
