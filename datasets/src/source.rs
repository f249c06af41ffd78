//! Where rows come from.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{DataError, Place};
use crate::files::{self, Files, Located, Mapping, compiled};
use crate::format::Format;
use crate::hub;
use crate::left_out::{Announced, LeftOut};
use crate::length::{self, TokenCounter};
use crate::order::{Shuffle, Shuffled, Split};
use crate::row::Row;

/// Rows, one at a time. After an error no more rows come.
pub type Rows = Box<dyn Iterator<Item = Result<Row, DataError>> + Send>;

/// What a source needs and this crate does not know: data sets that are generated rather than read, and tokenizers.
pub trait Builtins: Send + Sync {
    /// The names of the generated sets.
    fn names(&self) -> Vec<String>;

    /// The rows of one.
    fn open(&self, name: &str, params: &Map<String, Value>) -> Result<Rows, DataError>;

    /// What counts tokens as the model in a folder does. Without it `max_prompt_tokens` is refused.
    fn counter(&self, tokenizer: &Path) -> Result<Arc<dyn TokenCounter>, DataError> {
        Err(DataError::Source {
            key: "tokenizer".to_owned(),
            reason: format!("`{}` cannot be opened: there are no tokenizers here", tokenizer.display()),
        })
    }
}

/// No generated data sets.
#[derive(Clone, Copy, Debug)]
pub struct NoBuiltins;

impl Builtins for NoBuiltins {
    fn names(&self) -> Vec<String> {
        Vec::new()
    }

    fn open(&self, name: &str, _params: &Map<String, Value>) -> Result<Rows, DataError> {
        Err(DataError::Source {
            key: "builtin".to_owned(),
            reason: format!("no data set `{name}`; there is none here"),
        })
    }
}

/// One path or several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Paths {
    /// One file.
    One(PathBuf),
    /// Several, read one after the other.
    Many(Vec<PathBuf>),
}

/// Where rows come from: files, or a generated data set.
///
/// The order of operations is fixed: rows are read (repeated ones left out), split, held against the length limit,
/// shuffled, and then limited.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Source {
    /// Files: `.jsonl`, `.json`, `.csv`, `.parquet`; `hf://org/name/file` are files of the Hugging Face cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<Paths>,
    /// A generated data set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub builtin: Option<String>,
    /// The generated data set's parameters.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub params: Map<String, Value>,
    /// What the files' records are.
    pub format: Format,
    /// Columns of rows to fill from others: `reward_spec.ground_truth = "answer"`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub columns: BTreeMap<String, String>,
    /// What makes the prompt of a record: `question`, `instruct`, or a template with `{{ column }}` in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_template: Option<String>,
    /// The file with the schemas of Spider's or BIRD's databases, where it is not beside the questions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tables: Option<PathBuf>,
    /// Whether rows whose prompt was there before are left out; only `dapo` does so where nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique: Option<bool>,
    /// A part of the data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split: Option<Split>,
    /// The folder of the model whose tokens `max_prompt_tokens` counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<PathBuf>,
    /// Rows with longer prompts are left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_prompt_tokens: Option<u64>,
    /// A random order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shuffle: Option<Shuffle>,
    /// At most this many rows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

/// A file of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataFile {
    /// As the source names it; a file of a `hf://` pattern with its own name.
    pub name: PathBuf,
    /// Where it lies.
    pub path: PathBuf,
}

/// A source that was opened.
pub struct Opened {
    /// The rows.
    pub rows: Rows,
    /// What was left out so far.
    pub left_out: LeftOut,
    /// What the records are; never [`Format::Auto`].
    pub format: Format,
}

/// Rows with their places, going on behind what is wrong.
pub type Each = Box<dyn Iterator<Item = Result<Located, DataError>> + Send>;

impl Source {
    /// A source of one file.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self { path: Some(Paths::One(path.into())), ..Self::default() }
    }

    /// A source of a generated data set.
    pub fn builtin(name: impl Into<String>, params: Map<String, Value>) -> Self {
        Self { builtin: Some(name.into()), params, ..Self::default() }
    }

    /// Refuses a description that contradicts itself.
    pub fn check(&self) -> Result<(), DataError> {
        let wrong = |key: &str, reason: &str| Err(DataError::Source { key: key.to_owned(), reason: reason.to_owned() });
        match (&self.path, &self.builtin) {
            (None, None) => {
                return wrong("path", "is missing: name files with `path` or a generated set with `builtin`");
            }
            (Some(_), Some(_)) => return wrong("builtin", "contradicts `path`: name one of them"),
            (Some(Paths::Many(paths)), None) if paths.is_empty() => return wrong("path", "names no file"),
            (Some(_), None) if !self.params.is_empty() => {
                return wrong("params", "belongs to `builtin`; files take none");
            }
            (None, Some(_)) if self.format != Format::Rows => {
                return wrong("format", "belongs to `path`; a generated set has rows");
            }
            _ => {}
        }
        if self.builtin.is_some() {
            for (key, given) in [
                ("columns", !self.columns.is_empty()),
                ("prompt_template", self.prompt_template.is_some()),
                ("tables", self.tables.is_some()),
                ("unique", self.unique.is_some()),
            ] {
                if given {
                    return wrong(key, "belongs to `path`; a generated set has rows");
                }
            }
        }
        if !self.columns.is_empty() && self.format != Format::Rows {
            return wrong("columns", "belongs to `format = \"rows\"`; the others know their columns");
        }
        self.mapping(self.format)?;
        match (&self.tokenizer, self.max_prompt_tokens) {
            (None, Some(_)) => {
                return wrong("max_prompt_tokens", "needs `tokenizer`, the folder of the model whose tokens count");
            }
            (Some(_), None) => return wrong("tokenizer", "belongs to `max_prompt_tokens`, which is missing"),
            (_, Some(0)) => return wrong("max_prompt_tokens", "must be at least 1, got 0"),
            _ => {}
        }
        if self.limit == Some(0) {
            return wrong("limit", "must be at least 1, got 0");
        }
        if self.shuffle.is_some_and(|shuffle| shuffle.buffer == 0) {
            return wrong("shuffle.buffer", "must be at least 1, got 0");
        }
        if let Some(split) = &self.split {
            split.check().map_err(|(key, reason)| DataError::Source { key: key.to_owned(), reason })?;
        }
        Ok(())
    }

    /// The files, those of the Hugging Face cache found there. Nothing is downloaded.
    pub fn files(&self) -> Result<Vec<DataFile>, DataError> {
        let paths = match &self.path {
            None => &[],
            Some(Paths::One(path)) => std::slice::from_ref(path),
            Some(Paths::Many(paths)) => paths.as_slice(),
        };
        let mut files = Vec::with_capacity(paths.len());
        for path in paths {
            match path.to_str().filter(|path| hub::Address::is_one(path)) {
                None => files.push(DataFile { name: path.clone(), path: path.clone() }),
                Some(address) => files.extend(hub::Address::parse(address)?.cached(&hub::Cache::from_env()?)?),
            }
        }
        Ok(files)
    }

    /// Opens the source. Files are opened here, so that a missing one is known before anything is played.
    pub fn open(&self, builtins: &dyn Builtins) -> Result<Opened, DataError> {
        self.check()?;
        let left_out = LeftOut::default();
        let (mut rows, format): (Rows, Format) = if let Some(name) = &self.builtin {
            (builtins.open(name, &self.params)?, Format::Rows)
        } else {
            let files = self.located(left_out.clone())?;
            let format = files.format();
            let mut failed = false;
            let rows = files.map_while(move |row| {
                if failed {
                    return None;
                }
                failed = row.is_err();
                Some(row.map(|located| located.row))
            });
            (Box::new(rows), format)
        };
        if let Some(split) = self.split {
            let mut number = 0;
            rows = Box::new(rows.filter(move |row| {
                number += u64::from(row.is_ok());
                row.is_err() || split.holds(number - 1)
            }));
        }
        if let (Some(most), Some(tokenizer)) = (self.max_prompt_tokens, &self.tokenizer) {
            let counter = builtins.counter(tokenizer)?;
            rows = length::at_most(rows, most, counter, left_out.clone(), self.name());
        }
        if let Some(shuffle) = self.shuffle {
            rows = Box::new(Shuffled::new(rows, shuffle));
        }
        if let Some(limit) = self.limit {
            rows = Box::new(rows.take(usize::try_from(limit).unwrap_or(usize::MAX)));
        }
        Ok(Opened { rows, left_out, format })
    }

    /// The rows, as [`Source::open`] gives them. What was left out is written to the log once they end.
    pub fn rows(&self, builtins: &dyn Builtins) -> Result<Rows, DataError> {
        let opened = self.open(builtins)?;
        Ok(Box::new(Announced::new(opened.rows, opened.left_out)))
    }

    /// Every row with its place, also behind rows that are wrong. Splits, order and limits are left aside.
    pub fn each(&self, builtins: &dyn Builtins) -> Result<(Each, LeftOut), DataError> {
        self.check()?;
        let left_out = LeftOut::default();
        let Some(name) = &self.builtin else {
            return Ok((Box::new(self.located(left_out.clone())?), left_out));
        };
        let path = PathBuf::from(name);
        let rows = (1..).zip(builtins.open(name, &self.params)?);
        let rows =
            rows.map(move |(row, of)| of.map(|of| Located { row: of, path: path.clone(), place: Place::Row(row) }));
        Ok((Box::new(rows), left_out))
    }

    /// What the source is called, for messages.
    pub fn name(&self) -> String {
        match (&self.path, &self.builtin) {
            (_, Some(name)) => name.clone(),
            (Some(Paths::One(path)), None) => path.display().to_string(),
            (Some(Paths::Many(paths)), None) => {
                paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
            }
            (None, None) => String::new(),
        }
    }

    fn located(&self, left_out: LeftOut) -> Result<Files, DataError> {
        let files: Vec<PathBuf> = self.files()?.into_iter().map(|file| file.path).collect();
        let format = if self.format == Format::Auto { files::detected(&files)? } else { self.format };
        Files::new(files, self.mapping(format)?, left_out)
    }

    /// How records of a format become rows.
    fn mapping(&self, format: Format) -> Result<Mapping, DataError> {
        let prompts = format.prompts();
        let template = match (self.prompt_template.as_deref(), prompts) {
            (None, _) => None,
            // Which template that is, is known once the format is.
            (Some("question" | "instruct"), None) if format == Format::Auto => None,
            (Some("question"), Some(prompts)) => Some(compiled(prompts.question)?),
            (Some("instruct"), Some(prompts)) => Some(compiled(prompts.instruct)?),
            (Some(text), _) if text.contains("{{") || text.contains("{%") => Some(compiled(text)?),
            (Some(text), Some(_)) => {
                return Err(DataError::Source {
                    key: "prompt_template".to_owned(),
                    reason: format!(
                        "must be `question`, `instruct` or a template with `{{{{ column }}}}`, got `{text}`"
                    ),
                });
            }
            (Some(text), None) => {
                return Err(DataError::Source {
                    key: "prompt_template".to_owned(),
                    reason: format!("must be a template with `{{{{ column }}}}` for format `{format}`, got `{text}`"),
                });
            }
        };
        let otherwise = match prompts {
            None => None,
            Some(prompts) => Some(compiled(prompts.default())?),
        };
        let asks = template.as_ref().or(otherwise.as_ref());
        Ok(Mapping {
            shows_schema: asks.is_some_and(|template| template.names("schema")),
            format,
            columns: self.columns.iter().map(|(target, source)| (target.clone(), source.clone())).collect(),
            template,
            otherwise,
            tables: self.tables.clone(),
            unique: self.unique.unwrap_or(format.repeats()),
        })
    }
}
