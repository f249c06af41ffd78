//! Prompt templates: minijinja over a record's columns and what its format adds to them.
//!
//! A name that the record does not have is an error, never an empty text. Rendering is bounded in steps.

use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior};
use serde_json::{Map, Value};

/// Steps that one prompt may take: a template that loops forever ends.
const STEPS: u64 = 1_000_000;

/// The name under which the template is compiled.
const NAME: &str = "prompt";

/// A template. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct PromptTemplate {
    environment: Environment<'static>,
}

impl PromptTemplate {
    /// Compiles a template; what is wrong with it otherwise.
    pub(crate) fn new(source: &str) -> Result<Self, String> {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(STEPS));
        environment.add_template_owned(NAME, source.to_owned()).map_err(|error| describe(&error))?;
        Ok(Self { environment })
    }

    /// Whether the template asks for a name of the record.
    pub(crate) fn names(&self, name: &str) -> bool {
        self.environment
            .get_template(NAME)
            .is_ok_and(|template| template.undeclared_variables(false).iter().any(|asked| asked == name))
    }

    /// The prompt of one record, without line feeds behind its end; why there is none otherwise.
    pub(crate) fn render(&self, columns: &Map<String, Value>) -> Result<String, String> {
        let template = self.environment.get_template(NAME).map_err(|error| describe(&error))?;
        let rendered = template.render(columns).map(|text| text.trim_end_matches('\n').to_owned());
        rendered.map_err(|error| {
            let said = describe(&error);
            if error.kind() != ErrorKind::UndefinedError {
                return said;
            }
            let mut unknown: Vec<String> =
                template.undeclared_variables(false).into_iter().filter(|name| !columns.contains_key(name)).collect();
            unknown.sort_unstable();
            let unknown = listed(unknown.iter().map(String::as_str));
            let known = listed(columns.keys().map(String::as_str));
            if unknown.is_empty() { said } else { format!("no {unknown} here; the record has {known}") }
        })
    }
}

/// Names in backticks with commas between.
pub(crate) fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// minijinja's message with its line, without the name that nobody gave.
fn describe(error: &minijinja::Error) -> String {
    let detail =
        error.detail().map_or_else(|| error.kind().to_string(), |detail| format!("{}: {detail}", error.kind()));
    match error.line() {
        Some(line) => format!("line {line}: {detail}"),
        None => detail,
    }
}
