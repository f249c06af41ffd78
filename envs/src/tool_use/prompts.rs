//! What the agent is told.

use std::fmt::Write as _;

use super::python::Runtime;
use super::tools::{Tool, schemas};

/// The system prompt: how to call tools, which there are, what holds here.
pub(super) fn system(offered: &[Tool], runtime: Runtime, max_turns: u32, seconds: f64) -> String {
    let mut text = String::from(
        "You work on a task in a workspace of files, by calling tools. A call is a JSON object between tags:\n\n<tool_call>\n\
         {\"name\": \"read_file\", \"arguments\": {\"path\": \"notes.txt\"}}\n</tool_call>\n\nA response may hold several calls; \
         they are made one after the other, and you are shown their results between <tool_response> and </tool_response> \
         before your next turn. Say in a sentence what you are about to do, then call. In JSON a line break inside a text \
         is written \\n and a quotation mark \\\".\n\nThe tools:\n<tools>\n",
    );
    for schema in schemas(offered) {
        let _ = writeln!(text, "{schema}");
    }
    text.push_str("</tools>\n\n");
    match runtime {
        Runtime::Process => {
            let _ = write!(
                text,
                "run_python runs the code as a program in the workspace's folder, for at most {seconds} s, without a network. \
                 Variables do not last from one run to the next; files do. "
            );
        }
        Runtime::Wasm => {
            let _ = write!(
                text,
                "run_python runs the code for at most {seconds} s in an interpreter without a file system: list_files(), \
                 read_file(path) and write_file(path, content) are functions there. Variables do not last from one run to \
                 the next; files do. "
            );
        }
        Runtime::None => {}
    }
    let _ = write!(
        text,
        "Paths are relative to the workspace. You have {max_turns} turns. When the task is done, call finish with the answer; \
         nothing counts as an answer but that."
    );
    text
}

/// What follows a response without a call.
pub(super) const NO_CALL: &str = "Your response held no tool call. Call a tool between <tool_call> and </tool_call>, or end the \
                                  task with the tool finish.";

/// The last lines of an observation.
pub(super) fn left(turns: u32) -> String {
    match turns {
        1 => "This is your last turn: call finish.".to_owned(),
        turns if turns <= 5 => format!("{turns} turns are left."),
        _ => String::new(),
    }
}
