//! TOML files with `key.path=value` overrides, and where the per-user cache is.

use std::path::{Path, PathBuf};

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
pub(crate) fn model_folder(name: &str) -> PathBuf {
    let given = Path::new(name);
    if given.exists() || given.components().count() > 1 {
        return given.to_owned();
    }
    let models = std::env::var_os("ESPALIER_MODELS")
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
        .or_else(|| cache_folder().map(|folder| folder.join("models")));
    match models {
        Some(models) if models.join(name).exists() => models.join(name),
        _ => given.to_owned(),
    }
}

/// A TOML file as a table.
pub(crate) fn read_toml(path: &Path) -> Result<Map<String, Value>, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::unreadable(path, &error))?;
    toml::from_str(&text).map_err(|error| Failure::Input {
        file: path.display().to_string(),
        reason: format!("not valid TOML: {}", error.to_string().trim_end()),
    })
}

/// `key.path=value` texts as a table of their own.
pub(crate) fn table_of(what: &str, overrides: &[String]) -> Result<Map<String, Value>, Failure> {
    let mut table = Map::new();
    apply(what, &mut table, overrides)?;
    Ok(table)
}

/// Sets what `key.path=value` texts say. Values are TOML (`0.5`, `true`, `[1, 2]`, `"text"`); what is not, is text.
/// Numbers in a path name list items.
pub(crate) fn apply(what: &str, table: &mut Map<String, Value>, overrides: &[String]) -> Result<(), Failure> {
    for text in overrides {
        let usage = |expected: &str| Failure::Usage {
            what: what.to_owned(),
            expected: expected.to_owned(),
            got: format!("`{text}`"),
        };
        let (path, value) = text.split_once('=').ok_or_else(|| usage("`key.path=value`"))?;
        let keys: Vec<&str> = path.split('.').collect();
        if keys.iter().any(|key| key.is_empty()) {
            return Err(usage("`key.path=value` with no empty key"));
        }
        let (last, parents) = keys.split_last().ok_or_else(|| usage("`key.path=value`"))?;
        let mut place = &mut *table;
        let mut at = 0;
        while at < parents.len() {
            let entry = place.entry(parents[at]).or_insert_with(|| Value::Object(Map::new()));
            at += 1;
            // A list takes the next key as the item's number.
            let entry = if let Value::Array(items) = entry {
                let count = items.len();
                let item =
                    parents.get(at).and_then(|key| key.parse::<usize>().ok()).and_then(|item| items.get_mut(item));
                at += 1;
                item.ok_or_else(|| usage(&format!("an item of `{}`, numbered below {count}", parents[at - 2])))?
            } else {
                entry
            };
            place = entry
                .as_object_mut()
                .ok_or_else(|| usage(&format!("a key of a table; `{}` is none", parents[at - 1])))?;
        }
        place.insert((*last).to_owned(), parse(value));
    }
    Ok(())
}

fn parse(text: &str) -> Value {
    toml::from_str::<Map<String, Value>>(&format!("value = {text}"))
        .ok()
        .and_then(|mut table| table.remove("value"))
        .unwrap_or_else(|| Value::String(text.to_owned()))
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
    fn what_cannot_be_set_is_said() {
        let start = json!({"engine": [{}], "name": "x"});
        for (text, said) in [
            ("name", "`key.path=value`"),
            ("a..b=1", "no empty key"),
            ("engine.7.name=1", "numbered below 1"),
            ("name.x=1", "`name` is none"),
        ] {
            let error = applied(start.clone(), &[text]).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
