//! The prompt for people.

use std::path::PathBuf;

use espalier_sandbox::{Execution, Outcome, Repl, ReplOptions, Sandbox};
use owo_colors::OwoColorize as _;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Editor, Helper};

use super::incomplete::is_incomplete;
use crate::failure::Failure;

const HELP: &str = "\
:vars            the variables and their types
:limits          what a block may use
:fork            a second REPL that continues from here; :repl N switches between them
:repl [N]        which REPLs there are, or switch to one
:snapshot FILE   write the state to a file
:restore FILE    a new REPL from such a file
:reset           back to how it was set up
:help            this
:quit            leave (also Ctrl-D)
A blank line ends a compound statement. Ctrl-C drops the input.";

struct MultiLine;

impl Completer for MultiLine {
    type Candidate = String;
}

impl Highlighter for MultiLine {}

impl Hinter for MultiLine {
    type Hint = String;
}

impl Helper for MultiLine {}

impl Validator for MultiLine {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let text = context.input();
        Ok(if !text.starts_with(':') && is_incomplete(text) {
            ValidationResult::Incomplete
        } else {
            ValidationResult::Valid(None)
        })
    }
}

pub(super) async fn run(sandbox: &Sandbox, options: ReplOptions) -> Result<(), Failure> {
    let internal = |error: ReadlineError| Failure::Internal(format!("the terminal: {error}"));
    let mut editor: Editor<MultiLine, FileHistory> =
        Editor::with_config(Config::builder().auto_add_history(true).build()).map_err(internal)?;
    editor.set_helper(Some(MultiLine));
    let history = history_file();
    if let Some(file) = &history {
        // A missing history is an empty one.
        let _ = editor.load_history(file);
    }
    let mut session = Session { sandbox, repls: vec![sandbox.repl(options.clone()).await?], current: 0, options };
    anstream::println!("Espalier {}: Python in a sandbox. {} for help.", env!("CARGO_PKG_VERSION"), ":help".bold());
    loop {
        let prompt = if session.repls.len() == 1 { ">>> ".to_owned() } else { format!("[{}]>>> ", session.current) };
        // Reading blocks this thread; nothing else runs meanwhile.
        let line = match tokio::task::block_in_place(|| editor.readline(&prompt)) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(internal(error)),
        };
        match line.trim() {
            "" => {}
            ":quit" | ":q" => break,
            command if command.starts_with(':') => session.command(command).await,
            _ => session.execute(&line).await,
        }
    }
    if let Some(file) = &history {
        if let Some(folder) = file.parent() {
            // History is a convenience: failing to keep it is no reason to fail.
            let _ = std::fs::create_dir_all(folder);
        }
        let _ = editor.save_history(file);
    }
    Ok(())
}

fn history_file() -> Option<PathBuf> {
    crate::settings::cache_folder().map(|folder| folder.join("repl-history"))
}

struct Session<'a> {
    sandbox: &'a Sandbox,
    options: ReplOptions,
    repls: Vec<Repl>,
    current: usize,
}

impl Session<'_> {
    async fn execute(&mut self, code: &str) {
        let interrupted = tokio::signal::ctrl_c();
        tokio::select! {
            ended = self.repls[self.current].execute(code) => match ended {
                Ok(execution) => show(&execution),
                Err(error) => complain(&error.to_string()),
            },
            _ = interrupted => {
                complain("stopped; the block's effects are gone");
            }
        }
    }

    async fn command(&mut self, text: &str) {
        let (command, argument) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let argument = argument.trim();
        match (command, argument) {
            (":help" | ":h", _) => anstream::println!("{HELP}"),
            (":vars", _) => match self.repls[self.current].variables().await {
                Ok(variables) => {
                    let width = variables.iter().map(|info| info.name.chars().count()).max().unwrap_or(0);
                    for info in variables {
                        let length = info.length.map(|length| format!(" [{length}]")).unwrap_or_default();
                        anstream::println!("{:width$}  {}{length}", info.name.bold(), info.type_name);
                    }
                }
                Err(error) => complain(&error.to_string()),
            },
            (":limits", _) => {
                let limits = serde_json::to_value(&self.options.limits).unwrap_or_default();
                for (name, value) in limits.as_object().into_iter().flatten() {
                    anstream::println!("{:16}  {value}", name.bold());
                }
            }
            (":fork", _) => match self.repls[self.current].fork(None).await {
                Ok(repl) => self.switch_to_new(repl),
                Err(error) => complain(&error.to_string()),
            },
            (":repl", "") => {
                for index in 0..self.repls.len() {
                    anstream::println!("{}{index}", if index == self.current { "* " } else { "  " });
                }
            }
            (":repl", number) => match number.parse::<usize>() {
                Ok(index) if index < self.repls.len() => self.current = index,
                _ => complain(&format!("expected a number below {}, got `{number}`", self.repls.len())),
            },
            (":snapshot" | ":restore", "") => complain(&format!("`{command}` needs a file name")),
            (":snapshot", file) => match self.repls[self.current].snapshot().await {
                Ok(bytes) => match std::fs::write(file, &bytes) {
                    Ok(()) => anstream::println!("{} bytes in {file}", bytes.len()),
                    Err(error) => complain(&format!("`{file}`: {error}")),
                },
                Err(error) => complain(&error.to_string()),
            },
            (":restore", file) => match std::fs::read(file) {
                Ok(bytes) => match self.sandbox.restore(&bytes, self.options.clone()).await {
                    Ok(repl) => self.switch_to_new(repl),
                    Err(error) => complain(&error.to_string()),
                },
                Err(error) => complain(&format!("`{file}`: {error}")),
            },
            (":reset", _) => {
                if let Err(error) = self.repls[self.current].reset().await {
                    complain(&error.to_string());
                }
            }
            _ => complain(&format!("no command `{command}`; `:help` lists them")),
        }
    }

    fn switch_to_new(&mut self, repl: Repl) {
        self.repls.push(repl);
        self.current = self.repls.len() - 1;
        anstream::println!("now in REPL {}", self.current);
    }
}

fn show(execution: &Execution) {
    anstream::print!("{}", execution.stdout.text);
    if !execution.stdout.text.is_empty() && !execution.stdout.text.ends_with('\n') {
        anstream::println!();
    }
    if !execution.stderr.text.is_empty() {
        anstream::println!("{}", execution.stderr.text.trim_end().red());
    }
    match &execution.outcome {
        Outcome::Completed | Outcome::Raised { .. } => {}
        Outcome::TimedOut => complain("the block reached its time; what it did until then is kept"),
        Outcome::MemoryExceeded if execution.rolled_back => {
            complain("the block reached its memory; the state is as before the block");
        }
        Outcome::MemoryExceeded => complain("the block reached its memory; what it did until then is kept"),
        Outcome::Killed { reason } => complain(&format!("killed ({reason}); the state is as before the block")),
        Outcome::HostError { reason } => complain(&format!("the host failed: {reason}")),
    }
    if let Some(answer) = &execution.final_answer {
        anstream::println!("{} {}", "final answer:".green().bold(), answer.text);
    }
}

fn complain(text: &str) {
    anstream::eprintln!("{}", text.yellow());
}
