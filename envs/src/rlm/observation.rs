//! What the model is shown of a block's end.
//!
//! [`describe`] is the default: output, what happened to the state where that is not plain, and the variables.
//! [`original`] is skyrl-gym's format, letter by letter. Both cut at a number of characters and say how many are
//! missing.

use std::fmt::Write as _;
use std::time::Duration;

use espalier_sandbox::{Execution, Outcome, VariableInfo};

/// Characters shown by default.
pub const SHOWN: usize = 20_000;

/// How many variables are listed, the newest.
const LISTED_VARIABLES: usize = 24;

/// An observation and whether something was cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The text.
    pub text: String,
    /// Output was cut.
    pub cut: bool,
}

/// What a block did, for [`describe`].
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// What it did.
    pub execution: &'a Execution,
    /// How many blocks the response had; only the last one ran.
    pub blocks: usize,
    /// Characters of output to show.
    pub limit: usize,
    /// The block's execution time limit.
    pub block_time: Duration,
    /// Leave out everything that is not output or a warning.
    pub brief: bool,
}

/// The default observation.
pub fn describe(seen: Seen<'_>) -> Shown {
    let Seen { execution, blocks, limit, brief, .. } = seen;
    let mut text = String::new();
    if blocks > 1 {
        let _ = writeln!(text, "Only the last of your {blocks} code blocks was run.");
    }
    // An error stands at the end and must be seen: it has half of the room before output gets the rest.
    let error = cut_middle(execution.stderr.text.trim_end(), limit / 2);
    let output = cut_middle(execution.stdout.text.trim_end(), limit.saturating_sub(error.text.chars().count()));
    text.push_str(if brief { "Output:\n" } else { "REPL output:\n" });
    if output.text.is_empty() && error.text.is_empty() {
        text.push_str("(nothing was printed)\n");
    }
    for part in [&output.text, &error.text] {
        if !part.is_empty() {
            text.push_str(part);
            text.push('\n');
        }
    }
    if let Some(note) = state_note(execution, seen.block_time) {
        let _ = writeln!(text, "{note}");
    }
    if !brief && !execution.variables.is_empty() {
        let _ = writeln!(text, "REPL variables: {}", variables(&execution.variables));
    }
    Shown { text: text.trim_end().to_owned(), cut: output.cut || error.cut }
}

/// What happened to the state, where the output alone does not say it.
pub fn state_note(execution: &Execution, block_time: Duration) -> Option<String> {
    let state = if execution.rolled_back {
        "Its changes are undone: the REPL is as it was before the block."
    } else {
        "What it had assigned by then is kept."
    };
    match &execution.outcome {
        Outcome::Completed | Outcome::Raised { .. } | Outcome::HostError { .. } => {
            execution.rolled_back.then(|| state.to_owned())
        }
        Outcome::TimedOut => {
            let seconds = block_time.as_secs_f64();
            Some(format!(
                "The block was stopped: it ran longer than its time limit ({seconds} s of execution). {state}"
            ))
        }
        Outcome::MemoryExceeded => Some(format!("The block was stopped: it needed more memory than there is. {state}")),
        Outcome::Killed { reason } => Some(format!("The block had to be killed: {reason}. {state}")),
    }
}

fn variables(all: &[VariableInfo]) -> String {
    let hidden = all.len().saturating_sub(LISTED_VARIABLES);
    let mut text = if hidden > 0 { format!("{hidden} older ones, ") } else { String::new() };
    for (index, variable) in all[hidden..].iter().enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        let _ = match variable.length {
            Some(length) => write!(text, "{comma}{} ({}, {length})", variable.name, variable.type_name),
            None => write!(text, "{comma}{} ({})", variable.name, variable.type_name),
        };
    }
    text
}

/// At most about `limit` characters: four fifths from the start, one fifth from the end, and between them how many
/// are missing.
pub fn cut_middle(text: &str, limit: usize) -> Shown {
    let count = text.chars().count();
    if count <= limit {
        return Shown { text: text.to_owned(), cut: false };
    }
    let tail = limit / 5;
    let head = limit - tail;
    let head_end = nth(text, head);
    let tail_start = nth(text, count - tail);
    let missing = count - limit;
    Shown {
        text: format!("{}\n... [{missing} characters left out] ...\n{}", &text[..head_end], &text[tail_start..]),
        cut: true,
    }
}

/// The byte at which character `index` starts.
fn nth(text: &str, index: usize) -> usize {
    text.char_indices().nth(index).map_or(text.len(), |(at, _)| at)
}

/// skyrl-gym's observation of a block.
pub fn original(code: &str, execution: &Execution, contexts: usize, block_time: Duration, limit: usize) -> Shown {
    let result = original_result(execution, contexts, block_time);
    let count = result.chars().count();
    let (result, cut) = if count > limit {
        (format!("{}... + [{} chars...]", &result[..nth(&result, limit)], count - limit), true)
    } else {
        (result, false)
    };
    Shown { text: format!("Code executed:\n```python\n{code}\n```\n\nREPL output:\n{result}"), cut }
}

/// The observation of a response without a block, under compat. The backslashes are literal.
pub const ORIGINAL_NO_BLOCK: &str = r"[No ```repl``` code block found. Wrap your code in ```repl\n...\n``` blocks.]";

fn original_result(execution: &Execution, contexts: usize, block_time: Duration) -> String {
    let mut parts = Vec::new();
    if !execution.stdout.text.is_empty() {
        parts.push(format!("\n{}", execution.stdout.text));
    }
    let error = match &execution.outcome {
        Outcome::TimedOut => format!("Timeout after {} seconds\n", block_time.as_secs()),
        Outcome::Killed { reason } => format!("{}{reason}\n", execution.stderr.text),
        _ => execution.stderr.text.clone(),
    };
    if !error.is_empty() {
        parts.push(format!("\n{error}"));
    }
    let mut names: Vec<String> = (0..contexts).map(|index| format!("context_{index}")).collect();
    if contexts > 0 {
        names.insert(1, "context".to_owned());
    }
    let plain = ["str", "int", "float", "bool", "list", "dict", "tuple"];
    names.extend(
        execution
            .variables
            .iter()
            .filter(|variable| plain.contains(&variable.type_name.as_str()))
            .map(|variable| variable.name.clone())
            .filter(|name| !name.starts_with('_')),
    );
    if !names.is_empty() {
        let quoted: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
        parts.push(format!("REPL variables: [{}]\n", quoted.join(", ")));
    }
    if parts.is_empty() { "No output".to_owned() } else { parts.join("\n\n") }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;
    use proptest::prelude::*;

    use super::*;

    fn execution(stdout: &str, stderr: &str, outcome: Outcome) -> Execution {
        let output =
            |text: &str| espalier_sandbox::execution::Output { text: text.to_owned(), bytes: text.len() as u64 };
        let variable = |name: &str, type_name: &str, length| VariableInfo {
            name: name.to_owned(),
            type_name: type_name.to_owned(),
            length,
        };
        Execution {
            stdout: output(stdout),
            stderr: output(stderr),
            outcome,
            rolled_back: false,
            final_answer: None,
            variables: vec![variable("hits", "list", Some(3)), variable("f", "function", None)],
            cpu: Duration::ZERO,
            waiting: Duration::ZERO,
            calls: 0,
        }
    }

    fn seen(execution: &Execution) -> Seen<'_> {
        Seen { execution, blocks: 1, limit: SHOWN, block_time: Duration::from_secs(30), brief: false }
    }

    #[test]
    fn output_errors_and_variables_are_shown() {
        let raised = Outcome::Raised { type_name: "KeyError".to_owned(), message: "'x'".to_owned() };
        let error = "Traceback (most recent call last):\n  File \"<block 1>\", line 2\nKeyError: 'x'\n";
        let execution = execution("one\n", error, raised);
        assert_snapshot!(describe(Seen { blocks: 2, ..seen(&execution) }).text, @r#"
        Only the last of your 2 code blocks was run.
        REPL output:
        one
        Traceback (most recent call last):
          File "<block 1>", line 2
        KeyError: 'x'
        REPL variables: hits (list, 3), f (function)
        "#);
        assert_snapshot!(describe(Seen { brief: true, ..seen(&execution) }).text, @r#"
        Output:
        one
        Traceback (most recent call last):
          File "<block 1>", line 2
        KeyError: 'x'
        "#);
    }

    #[test]
    fn a_stopped_block_says_what_became_of_its_state() {
        let mut stopped = execution("", "", Outcome::TimedOut);
        let note = |execution: &Execution| state_note(execution, Duration::from_millis(1500)).unwrap();
        assert_eq!(
            note(&stopped),
            "The block was stopped: it ran longer than its time limit (1.5 s of execution). What it had assigned by \
             then is kept."
        );
        stopped.rolled_back = true;
        stopped.outcome = Outcome::Killed { reason: "it did not stop in time".to_owned() };
        assert_eq!(
            note(&stopped),
            "The block had to be killed: it did not stop in time. Its changes are undone: the REPL is as it was \
             before the block."
        );
        stopped.outcome = Outcome::MemoryExceeded;
        assert!(note(&stopped).contains("more memory than there is. Its changes are undone"));
    }

    #[test]
    fn an_error_is_seen_below_endless_output() {
        let raised = Outcome::Raised { type_name: "E".to_owned(), message: String::new() };
        let execution = execution(&"x".repeat(50_000), "E: the reason", raised);
        let shown = describe(seen(&execution));
        assert!(shown.cut);
        assert!(shown.text.contains("E: the reason"));
        assert!(shown.text.contains("[30013 characters left out]"), "{}", &shown.text[shown.text.len() - 4200..]);
        assert!(shown.text.chars().count() < SHOWN + 300);
    }

    #[test]
    fn the_original_format_is_kept_letter_by_letter() {
        let block = execution("one\n", "", Outcome::Completed);
        let shown = original("print('one')", &block, 1, Duration::from_mins(3), SHOWN);
        assert_eq!(
            shown.text,
            "Code executed:\n```python\nprint('one')\n```\n\nREPL output:\n\none\n\n\nREPL variables: ['context_0', \
             'context', 'hits']\n"
        );
        let timeout = execution("", "whatever the guest said", Outcome::TimedOut);
        let shown = original("x", &timeout, 0, Duration::from_mins(3), SHOWN);
        assert!(shown.text.contains("REPL output:\n\nTimeout after 180 seconds\n\n\nREPL variables: ['hits']\n"));
        let mut silent = execution("", "", Outcome::Completed);
        silent.variables.clear();
        assert!(original("x", &silent, 0, Duration::ZERO, SHOWN).text.ends_with("REPL output:\nNo output"));
    }

    #[test]
    fn the_original_cut_counts_what_is_missing() {
        let mut long = execution(&"y".repeat(20_100), "", Outcome::Completed);
        long.variables.clear();
        let shown = original("x", &long, 0, Duration::ZERO, SHOWN);
        assert!(shown.cut);
        assert!(shown.text.ends_with("y... + [101 chars...]"), "{}", &shown.text[shown.text.len() - 40..]);
    }

    proptest! {
        #[test]
        fn cutting_keeps_both_ends_whole(text in "\\PC{0,300}", limit in 0_usize..200) {
            let shown = cut_middle(&text, limit);
            let count = text.chars().count();
            prop_assert_eq!(shown.cut, count > limit);
            if shown.cut {
                let (head, tail) = (limit - limit / 5, limit / 5);
                let start: String = text.chars().take(head).collect();
                let end: String = text.chars().skip(count - tail).collect();
                prop_assert!(shown.text.starts_with(&start) && shown.text.ends_with(&end));
            } else {
                prop_assert_eq!(shown.text, text);
            }
        }
    }
}
