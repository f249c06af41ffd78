//! `espalier data`.
//!
//! | module | what lives there |
//! |---|---|
//! | [`list`] | what there is: environments, generated sets, formats, cached sets; one environment |
//! | [`opening`] | which source the arguments mean |
//! | [`show`] | rows as JSONL |
//! | [`inspect`] | what a source holds; [`columns`] and [`lengths`] are what it counts |
//! | [`validate`] | what is wrong with a source |
//! | [`fetch`] | data sets of the Hugging Face hub |

mod columns;
mod fetch;
mod inspect;
mod lengths;
mod list;
mod opening;
mod show;
mod validate;

use crate::arguments::DataCommand;
use crate::failure::Failure;

pub(crate) async fn run(command: DataCommand) -> Result<(), Failure> {
    match command {
        DataCommand::List { json } => list::all(json),
        DataCommand::Env { id } => list::environment(&id),
        DataCommand::Show { source, max_prompt_tokens, limit } => show::rows(source, max_prompt_tokens, limit),
        DataCommand::Inspect { source, prompt, max_prompt_tokens, limit, json } => {
            if prompt {
                show::prompt(source)
            } else {
                inspect::run(source, max_prompt_tokens, limit, json)
            }
        }
        DataCommand::Validate { source, env, env_param, max_prompt_tokens, problems, json } => {
            let most = max_prompt_tokens.map(std::num::NonZeroU64::get);
            validate::run(source, env.as_deref(), &env_param, most, problems.get(), json)
        }
        DataCommand::Fetch { repo, file, split, json } => fetch::run(&repo, file, split, json).await,
    }
}

/// A number with commas: `1,319`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A size in bytes, for people.
fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "kB", "MB", "GB"] {
        if value < 1000.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{value:.1} {unit}") };
        }
        value /= 1000.0;
    }
    format!("{value:.1} TB")
}

/// `1 row`, `2 rows`.
fn counted(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {what}{plural}", grouped(number))
}

#[cfg(test)]
mod tests {
    #[test]
    fn numbers_are_for_people() {
        assert_eq!([0, 999, 1000, 1_234_567].map(super::grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([999, 1500, 2_000_000_000].map(super::size), ["999 B", "1.5 kB", "2.0 GB"]);
        assert_eq!([1, 2000].map(|number| super::counted(number, "row")), ["1 row", "2,000 rows"]);
    }
}
