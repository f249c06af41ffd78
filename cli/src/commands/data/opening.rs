//! Which source the arguments mean.

use std::path::Path;

use espalier_datasets::hub::Address;
use espalier_datasets::source::Paths;
use espalier_datasets::{Builtins as _, Format, Source};
use espalier_envs::builtin::Builtin;

use crate::arguments::DataSourceArguments;
use crate::failure::Failure;
use crate::settings;

/// The source. The tokenizer is left aside: what is done with it differs.
pub(super) fn source(arguments: &DataSourceArguments) -> Result<Source, Failure> {
    let path = &arguments.source;
    let params = settings::table_of("`--param`", &arguments.param)?;
    let name = path.to_str().unwrap_or_default();
    let builtin = Builtin.names().iter().any(|builtin| builtin == name) && !path.exists();
    let mut source = if builtin {
        Source::builtin(name, params)
    } else {
        if !Address::is_one(name) && !path.exists() {
            return Err(nothing(path));
        }
        Source { path: Some(Paths::One(path.clone())), params, ..Source::default() }
    };
    if let Some(format) = &arguments.format {
        source.format = Format::named(format)
            .ok_or_else(|| Failure::Configuration(format!("`--format`: there is no format `{format}`")))?;
    }
    source.prompt_template.clone_from(&arguments.prompt_template);
    source.tables.clone_from(&arguments.tables);
    Ok(source)
}

/// A source that is neither a file nor a generated set. What is named like a file was meant as one.
fn nothing(path: &Path) -> Failure {
    let reason = if path.extension().is_some() || path.components().count() > 1 {
        "No such file or directory (os error 2)".to_owned()
    } else {
        let sets = Builtin.names().iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        format!("no such file, and no generated data set of that name; there is {sets}")
    };
    Failure::Input { file: path.display().to_string(), reason }
}
