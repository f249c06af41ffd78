//! The prompt for people, and the same without a prompt where stdin is a file or a pipe.

use std::io::IsTerminal as _;
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
use crate::output::{out, outln, say};

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
    let session = Session { sandbox, repls: vec![sandbox.repl(options.clone()).await?], current: 0, options };
    if std::io::stdin().is_terminal() { prompt(session).await } else { piped(session).await }
}

/// Runs what stdin holds, statement by statement, as if it were typed; what is open at the end runs too.
async fn piped(mut session: Session<'_>) -> Result<(), Failure> {
    let mut text = String::new();
    let mut lines = std::io::stdin().lines().enumerate();
    while let Some((index, line)) = tokio::task::block_in_place(|| lines.next()) {
        let line = line.map_err(|error| Failure::Input {
            file: "stdin".to_owned(),
            reason: format!("line {}: {error}", index + 1),
        })?;
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&line);
        if text.starts_with(':') || !is_incomplete(&text) {
            let whole = std::mem::take(&mut text);
            match whole.trim() {
                "" => {}
                ":quit" | ":q" => return Ok(()),
                command if command.starts_with(':') => session.command(command).await?,
                _ => session.execute(&whole).await?,
            }
        }
    }
    if !text.trim().is_empty() {
        session.execute(&text).await?;
    }
    Ok(())
}

async fn prompt(mut session: Session<'_>) -> Result<(), Failure> {
    let internal = |error: ReadlineError| Failure::Internal(format!("the terminal: {error}"));
    let mut editor: Editor<MultiLine, FileHistory> =
        Editor::with_config(Config::builder().auto_add_history(true).build()).map_err(internal)?;
    editor.set_helper(Some(MultiLine));
    let history = history_file();
    if let Some(file) = &history {
        // A missing history is an empty one.
        let _ = editor.load_history(file);
    }
    outln!("Espalier {}: Python in a sandbox. {} for help.", env!("CARGO_PKG_VERSION"), ":help".bold())?;
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
            command if command.starts_with(':') => session.command(command).await?,
            _ => session.execute(&line).await?,
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
    async fn execute(&mut self, code: &str) -> Result<(), Failure> {
        let interrupted = tokio::signal::ctrl_c();
        tokio::select! {
            ended = self.repls[self.current].execute(code) => match ended {
                Ok(execution) => show(&execution)?,
                Err(error) => complain(&error.to_string()),
            },
            _ = interrupted => complain("stopped; the block's effects are gone"),
        }
        Ok(())
    }

    async fn command(&mut self, text: &str) -> Result<(), Failure> {
        let (command, argument) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let argument = argument.trim();
        match (command, argument) {
            (":help" | ":h", _) => outln!("{HELP}")?,
            (":vars", _) => match self.repls[self.current].variables().await {
                Ok(variables) => {
                    let width = variables.iter().map(|info| info.name.chars().count()).max().unwrap_or(0);
                    for info in variables {
                        let length = info.length.map(|length| format!(" [{length}]")).unwrap_or_default();
                        outln!("{:width$}  {}{length}", info.name.bold(), info.type_name)?;
                    }
                }
                Err(error) => complain(&error.to_string()),
            },
            (":limits", _) => {
                let limits = serde_json::to_value(&self.options.limits).unwrap_or_default();
                for (name, value) in limits.as_object().into_iter().flatten() {
                    outln!("{:16}  {value}", name.bold())?;
                }
            }
            (":fork", _) => match self.repls[self.current].fork(None).await {
                Ok(repl) => self.switch_to_new(repl)?,
                Err(error) => complain(&error.to_string()),
            },
            (":repl", "") => {
                for index in 0..self.repls.len() {
                    outln!("{}{index}", if index == self.current { "* " } else { "  " })?;
                }
            }
            (":repl", number) => match number.parse::<usize>() {
                Ok(index) if index < self.repls.len() => self.current = index,
                _ => complain(&format!("expected a number below {}, got `{number}`", self.repls.len())),
            },
            (":snapshot" | ":restore", "") => complain(&format!("`{command}` needs a file name")),
            (":snapshot", file) => match self.repls[self.current].snapshot().await {
                Ok(bytes) => match std::fs::write(file, &bytes) {
                    Ok(()) => outln!("{} bytes in {file}", bytes.len())?,
                    Err(error) => complain(&format!("`{file}`: {error}")),
                },
                Err(error) => complain(&error.to_string()),
            },
            (":restore", file) => match std::fs::read(file) {
                Ok(bytes) => match self.sandbox.restore(&bytes, self.options.clone()).await {
                    Ok(repl) => self.switch_to_new(repl)?,
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
        Ok(())
    }

    fn switch_to_new(&mut self, repl: Repl) -> Result<(), Failure> {
        self.repls.push(repl);
        self.current = self.repls.len() - 1;
        outln!("now in REPL {}", self.current)
    }
}

fn show(execution: &Execution) -> Result<(), Failure> {
    out!("{}", execution.stdout.text)?;
    if !execution.stdout.text.is_empty() && !execution.stdout.text.ends_with('\n') {
        outln!("")?;
    }
    if !execution.stderr.text.is_empty() {
        outln!("{}", execution.stderr.text.trim_end().red())?;
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
        outln!("{} {}", "final answer:".green().bold(), answer.text)?;
    }
    Ok(())
}

fn complain(text: &str) {
    say!("{}", text.yellow());
}
