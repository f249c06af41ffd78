//! What is wrong with a source: every row is read, and put to its environment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use espalier_datasets::error::Place;
use espalier_datasets::{Builtins as _, DataError, Located, TokenCounter};
use espalier_envs::builtin::Builtin;
use espalier_envs::{EnvRow, Prepared, Registry};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};

use super::{counted, grouped, opening};
use crate::arguments::DataSourceArguments;
use crate::failure::Failure;
use crate::output::{outln, say};
use crate::settings;

/// Rows that were read, on stderr where it is a terminal.
pub(super) fn spinner() -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {human_pos} rows, {per_sec}, {elapsed}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// What was checked.
#[derive(Default)]
pub(super) struct Rows {
    checked: u64,
    wrong: u64,
    /// Rows that name no environment.
    unasked: u64,
    /// Rows by the environment that took them.
    taken: BTreeMap<String, u64>,
    /// Rows that a limit on tokens leaves out.
    longer: u64,
    /// Tokens of the longest prompt, where they were counted.
    longest: Option<u64>,
    stopped: bool,
}

impl Rows {
    /// Whether a file's name is one of data.
    pub(super) fn is_data(name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        let name = name.trim_end_matches(".gz").trim_end_matches(".zst");
        [".jsonl", ".ndjson", ".json", ".csv", ".parquet"].iter().any(|end| name.ends_with(end))
    }
}

/// A row that a limit on tokens leaves out.
struct Longer {
    file: PathBuf,
    place: Place,
    id: String,
    tokens: u64,
    limit: u64,
}

impl Longer {
    fn tell(&self, json: bool) -> Result<(), Failure> {
        let Self { file, place, id, tokens, limit } = self;
        if json {
            let mut out = json!({"file": file.display().to_string(), "id": id, "tokens": tokens, "limit": limit});
            set_place(&mut out, *place);
            return outln!("{out}");
        }
        outln!(
            "`{}`, {place}: row `{id}` is left out: its prompt has {tokens} tokens, the limit is {limit}",
            file.display()
        )
    }
}

fn set_place(out: &mut Value, place: Place) {
    match place {
        Place::Line(line) => out["line"] = json!(line),
        Place::Row(row) => out["row"] = json!(row),
    }
}

/// One thing that is wrong.
struct Problem {
    file: PathBuf,
    place: Option<Place>,
    column: Option<String>,
    reason: String,
}

impl Problem {
    fn of(error: DataError, file: &Path) -> Self {
        match error {
            DataError::File { path, reason } => Self { file: path, place: None, column: None, reason },
            DataError::Row { path, place, reason } => Self { file: path, place: Some(place), column: None, reason },
            DataError::Column { path, place, column, reason } => {
                Self { file: path, place: Some(place), column: Some(column), reason }
            }
            other => Self { file: file.to_owned(), place: None, column: None, reason: other.to_string() },
        }
    }

    fn tell(&self, json: bool) -> Result<(), Failure> {
        let Self { file, place, column, reason } = self;
        if json {
            let mut out = json!({"file": file.display().to_string()});
            if let Some(place) = place {
                set_place(&mut out, *place);
            }
            if let Some(column) = column {
                out["column"] = json!(column);
            }
            out["reason"] = json!(reason);
            return outln!("{out}");
        }
        let place = place.map(|place| format!(", {place}")).unwrap_or_default();
        let column = column.as_ref().map(|column| format!(", column `{column}`")).unwrap_or_default();
        outln!("`{}`{place}{column}: {reason}", file.display())
    }
}

pub(super) fn run(
    arguments: DataSourceArguments,
    env: Option<&str>,
    env_params: &[String],
    max_prompt_tokens: Option<u64>,
    most: u64,
    json: bool,
) -> Result<(), Failure> {
    let source = opening::source(&arguments)?;
    let counter = match &arguments.tokenizer {
        Some(folder) => Some(Builtin.counter(&settings::model_folder(folder))?),
        None => None,
    };
    let registry = Registry::standard();
    let params = settings::table_of("`--env-param`", env_params)?;
    let mut prepared: BTreeMap<String, Result<Prepared, String>> = BTreeMap::new();
    if let Some(id) = env {
        prepared.insert(id.to_owned(), Ok(registry.prepare(id, &params)?));
    }
    let (rows, left_out) = source.each(&Builtin)?;
    let name = PathBuf::from(source.name());
    let mut sum = Rows::default();
    let bar = spinner();
    for located in rows {
        bar.inc(1);
        // A file that holds nothing has a problem and no row.
        sum.checked += u64::from(!matches!(&located, Err(DataError::File { .. })));
        let problem = match located {
            Err(error) => Some(Problem::of(error, &name)),
            Ok(located) => match counted_tokens(&located, counter.as_deref(), &mut sum) {
                Err(problem) => Some(problem),
                Ok(tokens) => match (tokens, max_prompt_tokens) {
                    (Some(tokens), Some(limit)) if tokens > limit => {
                        // A suite leaves it out before its environment sees it.
                        sum.longer += 1;
                        if sum.longer <= most {
                            let Located { row, path, place } = located;
                            bar.suspend(|| Longer { file: path, place, id: row.id, tokens, limit }.tell(json))?;
                        }
                        None
                    }
                    _ => check(located, env, &registry, &mut prepared, &mut sum),
                },
            },
        };
        if let Some(problem) = problem {
            sum.wrong += 1;
            bar.suspend(|| problem.tell(json))?;
            if sum.wrong == most {
                sum.stopped = true;
                break;
            }
        }
    }
    bar.finish_and_clear();
    conclude(&sum, &left_out.sentences(), json)?;
    if sum.wrong == 0 {
        return match max_prompt_tokens {
            Some(limit) if sum.longer == sum.checked => Err(Failure::Data(format!(
                "`{}`: no row is left: every prompt has more than {} tokens",
                name.display(),
                grouped(limit)
            ))),
            _ => Ok(()),
        };
    }
    let stopped = if sum.stopped { "; stopped there, `--problems` says where" } else { "" };
    Err(Failure::Data(format!(
        "`{}`: {} in {}{stopped}",
        name.display(),
        counted(sum.wrong, "problem"),
        counted(sum.checked, "row")
    )))
}

/// The tokens of a row's prompt, where they are counted.
fn counted_tokens(
    located: &Located,
    counter: Option<&dyn TokenCounter>,
    sum: &mut Rows,
) -> Result<Option<u64>, Problem> {
    let Some(counter) = counter else { return Ok(None) };
    let tokens = counter.count(&located.row.prompt).map_err(|reason| Problem {
        file: located.path.clone(),
        place: Some(located.place),
        column: Some("prompt".to_owned()),
        reason: format!("its tokens cannot be counted: {reason}"),
    })?;
    sum.longest = sum.longest.max(Some(tokens));
    Ok(Some(tokens))
}

/// Puts a row to its environment.
fn check(
    located: Located,
    env: Option<&str>,
    registry: &Registry,
    prepared: &mut BTreeMap<String, Result<Prepared, String>>,
    sum: &mut Rows,
) -> Option<Problem> {
    let Located { row, path, place } = located;
    let problem = |column: Option<&str>, reason: String| {
        Some(Problem { file: path, place: Some(place), column: column.map(str::to_owned), reason })
    };
    let id = env.map(str::to_owned).or_else(|| row.env.clone());
    let row = match EnvRow::from_row(row) {
        Ok(row) => row,
        Err(error) => return problem(None, error.to_string()),
    };
    let Some(id) = id else {
        sum.unasked += 1;
        return None;
    };
    let known = prepared
        .entry(id.clone())
        .or_insert_with(|| registry.prepare(&id, &Map::new()).map_err(|error| error.to_string()));
    let made = match known {
        Err(reason) => return problem(Some("env_class"), reason.clone()),
        Ok(known) => known.make(&row).map(drop),
    };
    match made {
        Ok(()) => {
            *sum.taken.entry(id).or_default() += 1;
            None
        }
        Err(error) => problem(None, error.to_string()),
    }
}

fn conclude(sum: &Rows, left_out: &[String], json: bool) -> Result<(), Failure> {
    if json {
        let taken: Map<String, Value> = sum.taken.iter().map(|(env, rows)| (env.clone(), json!(rows))).collect();
        return outln!(
            "{}",
            json!({
                "rows": sum.checked, "problems": sum.wrong, "stopped": sum.stopped, "taken": taken,
                "without_environment": sum.unasked, "left_out": left_out, "longer": sum.longer,
                "longest_prompt_tokens": sum.longest,
            })
        );
    }
    for sentence in left_out {
        say!("{sentence}");
    }
    if sum.unasked > 0 {
        let name = if sum.unasked == 1 { "names" } else { "name" };
        say!("{} {name} no environment; `--env ID` checks them with one", counted(sum.unasked, "row"));
    }
    if sum.wrong == 0 {
        let taken: Vec<String> =
            sum.taken.iter().map(|(env, rows)| format!("`{env}` takes {}", counted(*rows, "row"))).collect();
        let taken = if taken.is_empty() { String::new() } else { format!("; {}", taken.join(", ")) };
        let longest = match sum.longest {
            Some(tokens) => format!("; the longest prompt has {}", counted(tokens, "token")),
            None => String::new(),
        };
        let longer = match sum.longer {
            0 => String::new(),
            rows => format!("; {} too long", counted(rows, "row")),
        };
        outln!("{}, nothing wrong{taken}{longer}{longest}", counted(sum.checked, "row"))?;
    }
    Ok(())
}
