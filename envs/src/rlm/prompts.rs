//! What the model is told: the system prompt, the first message and the instruction of every turn.
//!
//! Two sets: [`Style::Full`] for models that follow instructions, [`Style::Compact`] for very small ones: few words, and
//! worked examples as turns of the conversation, which such a model imitates where it would not follow. A system prompt
//! is a template that may contain [`TOOLS_PLACEHOLDER`].

use std::fmt::Write as _;

use espalier_inference::Message;
use serde::{Deserialize, Serialize};

/// Where the list of functions goes in a system prompt.
pub const TOOLS_PLACEHOLDER: &str = "{custom_tools_section}";

/// Which set of prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Style {
    /// Complete instructions.
    #[default]
    Full,
    /// Few words and worked examples, for models of some hundred million parameters.
    Compact,
}

/// What the REPL offers beyond Python.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// `llm_query` and `llm_query_batched` exist.
    pub llm: bool,
    /// `rlm_query` and `rlm_query_batched` exist.
    pub rlm: bool,
    /// The author's tools: name and description.
    pub tools: Vec<(String, String)>,
}

/// The complete system prompt, as a template.
pub const FULL: &str = "\
You answer a question about a context that may be far longer than anything you can read at once. The context lies in a \
Python REPL, and you work on it by writing code. You are asked again after every block of code, with what it printed, \
until you give a final answer.

The REPL keeps its variables from one block to the next and holds:
1. `context`: the data that the question is about.
2. `SHOW_VARS()`: returns the variables you have made, with their types.
3. `print(...)`: the way to see anything. Long output is cut, so print parts, counts and summaries.
{custom_tools_section}
Write code in a fence that is marked `repl`:
```repl
print(type(context), len(context))
print(context[:500])
```
One block runs per response: the last one. Look at the context before you decide how to work: how it is built, how its \
parts are separated, what an answer would look like in it. Then search, split, filter and count with code, and keep \
what you find in variables.

When you know the answer, end with one of these, at the start of a line and outside of any code:
- FINAL(your answer): the text between the parentheses is the answer.
- FINAL_VAR(name): the value of the REPL variable `name` is the answer. The variable must exist: make it in a block, \
look at it, and give FINAL_VAR in a later response.

Say in a sentence what you are going to do, and do it in the same response.";

/// The short system prompt, as a template.
pub const COMPACT: &str = "\
You answer tasks by running Python. The variable `context` holds a text. Write one ```repl block of code; you are shown \
its output. When the output shows the answer, write FINAL(answer).
{custom_tools_section}";

/// A worked example: the task, the code, what it printed, the answer.
type Example = (&'static str, &'static str, &'static str, &'static str);

// A model of this size copies what it has seen twice, and the nearest example first: every form of task comes in pairs,
// and the form that is hardest to copy, a name of two words taken from the question into the code, comes last. Where
// there are copies to ask, that form is shown with them.

const COUNT: [Example; 2] = [
    ("How many lines have the label [oak]?", "print(context.count(\"[oak]\"))", "31", "31"),
    ("How many lines of the text have the label [pine]?", "print(context.count(\"[pine]\"))", "8", "8"),
];

const CALCULATE: [Example; 2] = [
    (
        "Sam has 3 bags with 12 nuts in each. Sam eats 5 nuts and buys 2 more. How many nuts does Sam have?",
        "print(3 * 12 - 5 + 2)",
        "33",
        "33",
    ),
    (
        "Eva buys 4 pens for $3 each and pays with $20. How many dollars does Eva get back?",
        "print(20 - 4 * 3)",
        "8",
        "8",
    ),
];

const FIND: [Example; 3] = [
    (
        "What is the code of the red door?",
        "for part in context.split(\". \"):\n    if \"red door\" in part:\n        print(part)",
        "The code of the red door is 5512",
        "5512",
    ),
    (
        "What is the code of the silver boat?",
        "for part in context.split(\". \"):\n    if \"silver boat\" in part:\n        print(part)",
        "The code of the silver boat is 41907",
        "41907",
    ),
    (
        "What is the code of the white lamp?",
        "for part in context.split(\". \"):\n    if \"white lamp\" in part:\n        print(part)",
        "The code of the white lamp is 55128",
        "55128",
    ),
];

/// A context too long for one: each half goes to a copy.
const DELEGATE: [Example; 2] = [
    (
        "What is the code of the green tower?",
        "half = len(context) // 2\n\
         print(rlm_query_batched([\"What is the code of the green tower?\"] * 2, context_list=[context[:half], context[half:]]))",
        "['not found', 80713]",
        "80713",
    ),
    (
        "What is the code of the black wheel?",
        "half = len(context) // 2\n\
         print(rlm_query_batched([\"What is the code of the black wheel?\"] * 2, context_list=[context[:half], context[half:]]))",
        "[20644, 'not found']",
        "20644",
    ),
];

/// The worked examples that stand between the system prompt and the task, as turns: none in the full style.
pub fn examples(style: Style, offer: &Offer) -> Vec<Message> {
    if style == Style::Full {
        return Vec::new();
    }
    let last: &[Example] = if offer.rlm { &DELEGATE } else { &FIND };
    let mut messages = Vec::new();
    for (question, code, output, answer) in COUNT.iter().chain(&CALCULATE).chain(last) {
        let turn = |turn| Turn { question, turn, max_turns: u32::MAX };
        messages.push(Message::user(first_message(style, "", turn(0))));
        messages.push(Message::assistant(format!("```repl\n{code}\n```")));
        messages.push(Message::user(format!("Output:\n{output}\n\n{}", next_instruction(style, turn(1)))));
        messages.push(Message::assistant(format!("FINAL({answer})")));
    }
    messages
}

/// The system prompt with the list of functions in its place.
pub fn system(template: &str, style: Style, offer: &Offer) -> String {
    let section = match style {
        Style::Full => tools_section(offer),
        Style::Compact => compact_tools(offer),
    };
    template.replace(TOOLS_PLACEHOLDER, &section)
}

/// The numbered list that goes on after `print`.
fn tools_section(offer: &Offer) -> String {
    let mut text = String::new();
    let mut number = 4;
    if offer.llm || offer.rlm {
        let _ = writeln!(text, "{number}. Other models, which see only what you pass them:");
        number += 1;
    }
    if offer.llm {
        text.push_str(
            "   - `llm_query(prompt)`: asks a language model once, returns its text. Good for reading a passage.\n   \
             - `llm_query_batched(prompts)`: asks once per prompt, all at the same time; returns the texts in order.\n",
        );
    }
    if offer.rlm {
        text.push_str(
            "   - `rlm_query(prompt, context=...)`: gives a sub-question to a copy of you with a REPL of its own, in \
             which `context` is what you pass; returns its answer as a Python value.\n   \
             - `rlm_query_batched(prompts, context_list=[...])`: the same for many sub-questions at the same time.\n",
        );
    }
    if !offer.tools.is_empty() {
        let _ = writeln!(text, "{number}. Made for this task:");
        for (name, description) in &offer.tools {
            let _ = writeln!(text, "   - `{name}`: {description}");
        }
    }
    text
}

fn compact_tools(offer: &Offer) -> String {
    let mut lines = Vec::new();
    if offer.rlm {
        lines.push("`rlm_query(question, context=text)` asks a helper about a text.".to_owned());
    } else if offer.llm {
        lines.push("`llm_query(question)` asks a helper.".to_owned());
    }
    lines.extend(offer.tools.iter().map(|(name, description)| format!("`{name}`: {description}")));
    if lines.is_empty() { String::new() } else { lines.join("\n") + "\n" }
}

/// What a turn's instruction depends on.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    /// The question.
    pub question: &'a str,
    /// The number of the turn to come, from 0.
    pub turn: u32,
    /// Most turns.
    pub max_turns: u32,
}

/// A question longer than this (characters) is not repeated at every turn.
const REPEATED_QUESTION: usize = 400;

/// The first user message: what the context is, the question, and what to do first.
pub fn first_message(style: Style, metadata: &str, turn: Turn<'_>) -> String {
    let Turn { question, max_turns, .. } = turn;
    match style {
        Style::Full => {
            let last = last_turn_note(turn);
            format!(
                "{metadata}\n\nQuestion:\n{question}\n\nYou have not seen the context yet, so do not answer yet: look \
                 at it with a ```repl block first. You have {max_turns} turns.{last}"
            )
        }
        Style::Compact => format!("Task: {question}"),
    }
}

/// The instruction that follows an observation. It is part of the observation and stays in the conversation.
pub fn next_instruction(style: Style, turn: Turn<'_>) -> String {
    let last = turn.turn + 1 >= turn.max_turns;
    match (style, last) {
        (Style::Full, false) => {
            let left = turn.max_turns - turn.turn;
            let reminder = if turn.question.chars().count() <= REPEATED_QUESTION {
                format!(" The question was: {}", turn.question)
            } else {
                String::new()
            };
            format!(
                "Go on with the next ```repl block, or answer with FINAL(...) or FINAL_VAR(...). {left} turns are \
                 left.{reminder}"
            )
        }
        (Style::Full, true) => last_turn_note(turn).trim_start().to_owned(),
        (Style::Compact, false) => "Write FINAL(answer), or another block.".to_owned(),
        (Style::Compact, true) => "Write FINAL(answer) now.".to_owned(),
    }
}

fn last_turn_note(turn: Turn<'_>) -> &'static str {
    if turn.turn + 1 >= turn.max_turns {
        " This is your last turn: it must contain the answer, as FINAL(...) or FINAL_VAR(...)."
    } else {
        ""
    }
}

/// The prompt that stands for one turn only under `compat = "skyrl"`: the same parts as the original's, in our words.
pub fn ephemeral(question: &str, turn: u32) -> String {
    let opening = if turn == 0 {
        "Nothing of the context has been looked at so far. Use the REPL to see what it holds before you decide on an \
         answer, and give no final answer in this response.\n\n"
    } else {
        "What stands above are your earlier exchanges with the REPL. "
    };
    format!(
        "{opening}Work step by step, in the REPL that holds the context, towards an answer to this question: \
         \"{question}\".\n\nGo on: write code in a ```repl block, use sub-queries where they help, and say what to do \
         by doing it. Your next step:"
    )
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    fn offer() -> Offer {
        Offer { llm: true, rlm: true, tools: vec![("lookup".to_owned(), "finds an entry by its number".to_owned())] }
    }

    #[test]
    fn the_full_prompt_lists_what_there_is() {
        assert_snapshot!("full_with_everything", system(FULL, Style::Full, &offer()));
        let alone = system(FULL, Style::Full, &Offer::default());
        assert!(!alone.contains("llm_query") && !alone.contains("4."), "{alone}");
    }

    #[test]
    fn the_compact_prompt_stays_short() {
        let alone = system(COMPACT, Style::Compact, &Offer::default());
        assert!(alone.len() < 300, "{} bytes", alone.len());
        let offer = Offer { tools: vec![], ..offer() };
        let mut text = system(COMPACT, Style::Compact, &offer);
        for message in examples(Style::Compact, &offer) {
            let _ = write!(text, "\n---- {:?}\n{}", message.role, message.content);
        }
        assert_snapshot!("compact_with_children", text);
        let alone = examples(Style::Compact, &Offer::default());
        assert!(alone.iter().all(|message| !message.content.contains("rlm_query")), "{alone:?}");
        assert_eq!(examples(Style::Full, &offer), []);
    }

    #[test]
    fn instructions_say_which_turn_it_is() {
        let turn = |turn| Turn { question: "how many?", turn, max_turns: 3 };
        let texts = [
            first_message(Style::Full, "Your context is a str.", turn(0)),
            next_instruction(Style::Full, turn(1)),
            next_instruction(Style::Full, turn(2)),
            first_message(Style::Compact, "", turn(0)),
            next_instruction(Style::Compact, turn(1)),
            next_instruction(Style::Compact, turn(2)),
            ephemeral("how many?", 0),
            ephemeral("how many?", 1),
        ];
        assert_snapshot!("instructions", texts.join("\n----\n"));
    }

    #[test]
    fn a_long_question_is_not_repeated() {
        let question = "why? ".repeat(200);
        let text = next_instruction(Style::Full, Turn { question: &question, turn: 1, max_turns: 5 });
        assert!(!text.contains("why?"));
    }
}
