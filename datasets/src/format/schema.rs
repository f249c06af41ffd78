//! Database schemas from Spider's and BIRD's `tables.json`, as `CREATE TABLE` statements.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::Deserialize;
use serde_json::Value;

use super::record::Wrong;
use crate::error::DataError;
use crate::json;

/// The names under which schemas lie beside a set.
const NAMES: [&str; 4] = ["tables.json", "dev_tables.json", "train_tables.json", "test_tables.json"];

/// The schemas beside a file, read when the first is asked for.
#[derive(Debug, Default)]
pub(crate) struct Schemas {
    /// Files to look into; those that are not there are no schemas, unless they were named.
    files: Vec<PathBuf>,
    named: bool,
    read: OnceLock<Result<BTreeMap<String, String>, String>>,
}

impl Schemas {
    /// Those of `tables`, or of the files that lie beside `path` under the usual names.
    pub(crate) fn of(path: &Path, tables: Option<&Path>) -> Self {
        let folder = path.parent().unwrap_or(Path::new(""));
        let files = match tables {
            Some(tables) => vec![tables.to_owned()],
            None => NAMES.iter().map(|name| folder.join(name)).filter(|file| file.is_file()).collect(),
        };
        Self { files, named: tables.is_some(), read: OnceLock::new() }
    }

    /// A database's schema.
    pub(crate) fn get(&self, database: &str) -> Result<&str, Wrong> {
        let wrong = |column, reason: String| Wrong::new(column, reason);
        if self.files.is_empty() {
            return Err(wrong(
                "schema",
                "is missing: put the set's `tables.json` beside the file, name it with `tables`, or give the record a \
                 `schema` column"
                    .to_owned(),
            ));
        }
        let schemas = self.read.get_or_init(|| self.load()).as_ref();
        let schemas = schemas.map_err(|reason| wrong("schema", reason.clone()))?;
        schemas.get(database).map(String::as_str).ok_or_else(|| {
            let files = self.files.iter().map(|file| format!("`{}`", file.display())).collect::<Vec<_>>().join(", ");
            wrong("db_id", format!("no database `{database}` in {files}"))
        })
    }

    fn load(&self) -> Result<BTreeMap<String, String>, String> {
        let mut schemas = BTreeMap::new();
        for file in &self.files {
            let entries = json::open(file).map_err(|error| error.to_string())?;
            for entry in entries {
                let (place, entry) = entry.map_err(|error| error.to_string())?;
                let wrong = |reason: String| DataError::Row { path: file.clone(), place, reason }.to_string();
                let tables: Tables =
                    serde_json::from_value(Value::Object(entry)).map_err(|error| wrong(error.to_string()))?;
                let schema = tables.render().map_err(wrong)?;
                schemas.insert(tables.db_id, schema);
            }
        }
        if schemas.is_empty() && self.named {
            return Err(format!("`{}` holds no schema", self.files[0].display()));
        }
        Ok(schemas)
    }
}

/// One entry of `tables.json`.
#[derive(Deserialize)]
struct Tables {
    db_id: String,
    table_names_original: Vec<String>,
    /// A table's index (-1: all) and a column's name.
    column_names_original: Vec<(i64, String)>,
    /// The same in words.
    #[serde(default)]
    column_names: Vec<(i64, String)>,
    column_types: Vec<String>,
    #[serde(default)]
    primary_keys: Vec<Key>,
    #[serde(default)]
    foreign_keys: Vec<(usize, usize)>,
}

/// A column, or several together.
#[derive(Deserialize)]
#[serde(untagged)]
enum Key {
    One(usize),
    Several(Vec<usize>),
}

impl Tables {
    fn column(&self, index: usize) -> Result<(usize, &str), String> {
        let entry = self.column_names_original.get(index);
        let (table, name) = entry.ok_or_else(|| format!("`{}`: there is no column {index}", self.db_id))?;
        let table = usize::try_from(*table).ok().filter(|table| *table < self.table_names_original.len());
        let table = table.ok_or_else(|| format!("`{}`: column {index} is in no table", self.db_id))?;
        Ok((table, name))
    }

    fn render(&self) -> Result<String, String> {
        if self.column_types.len() != self.column_names_original.len() {
            return Err(format!(
                "`{}`: {} columns have {} types",
                self.db_id,
                self.column_names_original.len(),
                self.column_types.len()
            ));
        }
        let mut lines: Vec<Vec<(String, Option<&str>)>> =
            self.table_names_original.iter().map(|_| Vec::new()).collect();
        for (index, kind) in self.column_types.iter().enumerate() {
            // Column 0 is `*`.
            if self.column_names_original[index].0 < 0 {
                continue;
            }
            let (table, name) = self.column(index)?;
            let words = self.column_names.get(index).map(|(_, words)| words.trim()).filter(|words| {
                let plain = |text: &str| text.to_lowercase().replace(['_', ' '], "");
                !words.is_empty() && !words.contains('\n') && plain(words) != plain(name)
            });
            lines[table].push((format!("{} {}", quoted(name), sql_type(kind)), words));
        }
        for key in &self.primary_keys {
            let columns: &[usize] = match key {
                Key::One(column) => std::slice::from_ref(column),
                Key::Several(columns) => columns,
            };
            let Some(first) = columns.first() else { continue };
            let table = self.column(*first)?.0;
            let names: Vec<String> =
                columns.iter().map(|column| Ok(quoted(self.column(*column)?.1))).collect::<Result<_, String>>()?;
            lines[table].push((format!("PRIMARY KEY ({})", names.join(", ")), None));
        }
        let foreign: BTreeSet<_> = self.foreign_keys.iter().collect();
        for (from, to) in foreign {
            let ((table, column), (other, target)) = (self.column(*from)?, self.column(*to)?);
            let other = quoted(&self.table_names_original[other]);
            let line = format!("FOREIGN KEY ({}) REFERENCES {other} ({})", quoted(column), quoted(target));
            lines[table].push((line, None));
        }
        let mut schema = String::new();
        for (name, lines) in self.table_names_original.iter().zip(lines) {
            if !schema.is_empty() {
                schema.push('\n');
            }
            let _ = writeln!(schema, "CREATE TABLE {} (", quoted(name));
            for (index, (line, words)) in lines.iter().enumerate() {
                let comma = if index + 1 < lines.len() { "," } else { "" };
                let words = words.map(|words| format!(" -- {words}")).unwrap_or_default();
                let _ = writeln!(schema, "    {line}{comma}{words}");
            }
            schema.push_str(");\n");
        }
        Ok(schema)
    }
}

/// A name as SQL takes it.
fn quoted(name: &str) -> String {
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    if plain && !name.starts_with(|first: char| first.is_ascii_digit()) && !name.is_empty() {
        name.to_owned()
    } else {
        format!("\"{}\"", name.replace('"', "\"\""))
    }
}

fn sql_type(kind: &str) -> &'static str {
    match kind.to_ascii_lowercase().as_str() {
        "number" | "integer" | "real" => "NUMERIC",
        "time" | "date" | "datetime" => "DATETIME",
        "boolean" => "BOOLEAN",
        _ => "TEXT",
    }
}
