//! Somebody to imitate, who knows the format and is of two minds about everything else.
//!
//! The teacher asks copies about single lines, about two or about five at once, adds their answers up or takes the largest,
//! or looks at the text itself; what it sees it names, line by line, before it counts. One of these ways is right and the others are not: which, the model has to find out by
//! itself.

use espalier_inference::EngineError;
use espalier_inference::scripted::{Reply, ScriptedRequest};
use espalier_procedural::long::topics::TOPICS;

/// How a text is gone about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Asks a copy about every so many lines, and makes one number of their answers by this function.
    Ask(usize, &'static str),
    /// Prints what there is.
    Look,
    /// Prints the first three lines, and takes them for a third of all.
    Guess,
}

/// Ways of a root that may ask copies.
const WITH_COPIES: [Way; 5] =
    [Way::Ask(1, "sum"), Way::Ask(1, "max"), Way::Ask(1, "min"), Way::Ask(2, "max"), Way::Look];

/// Ways of a root that may not.
const ALONE: [Way; 2] = [Way::Look, Way::Guess];

/// The code of a way.
pub fn code(way: Way, question: &str) -> String {
    match way {
        Way::Ask(size, of) => format!(
            "```repl\nlines = context.splitlines()[:-1]\nparts = [\"\\n\".join(lines[i:i + {size}]) for i in range(0, \
             len(lines), {size})]\nFINAL({of}(rlm_query_batched([\"{question}\"] * len(parts), \
             context_list=parts)))\n```"
        ),
        Way::Look => "```repl\nprint(context)\n```".to_owned(),
        Way::Guess => "```repl\nprint(\"\\n\".join(context.splitlines()[:3]))\n```".to_owned(),
    }
}

/// The thing that each line is about, and its topic.
fn things(text: &str) -> Vec<(&str, &'static str)> {
    let of_line = |line| {
        let mut words = str::split(line, [' ', '.']);
        words.find_map(|word| TOPICS.iter().find(|(_, words)| words.contains(&word)).map(|(name, _)| (word, *name)))
    };
    text.lines().filter_map(of_line).collect()
}

/// What was asked for, a note on every thing, and a count.
fn noted(asked: &str, things: &[(&str, &str)], count: usize) -> String {
    let notes: String = things.iter().map(|(_, topic)| format!("{topic}\n")).collect();
    format!("{asked}\n{notes}FINAL({count})")
}

/// The topic of a question.
fn topic(question: &str) -> &str {
    question.rsplit(' ').next().unwrap_or_default().trim_end_matches('?')
}

/// All that the teacher may say about a question: what a vocabulary should know.
pub fn everything_said(question: &str) -> Vec<String> {
    let ways = WITH_COPIES.into_iter().chain(ALONE);
    let mut all: Vec<String> = ways.map(|way| code(way, question)).collect();
    let things: Vec<(&str, &str)> = TOPICS.iter().flat_map(|(name, words)| words.iter().map(|w| (*w, *name))).collect();
    all.extend((0..=20).map(|count| noted(topic(question), &things, count)));
    all
}

/// What one turn has to go on.
struct Seen<'a> {
    question: &'a str,
    /// Whether copies may be asked.
    copies: bool,
    /// What the last block printed.
    output: Option<&'a str>,
}

fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    let (_, rest) = text.rsplit_once(start)?;
    Some(rest.split(end).next().unwrap_or(rest))
}

fn read(prompt: &str) -> Option<Seen<'_>> {
    let end = "<|im_end|>";
    Some(Seen {
        question: between(prompt, "Task: ", end)?,
        copies: prompt.split(end).next().is_some_and(|system| system.contains("rlm_query")),
        output: between(prompt, "Output:\n", "\n\nWrite FINAL"),
    })
}

/// A number that depends on a text and a seed alone (FNV-1a).
fn draw(text: &str, seed: u64) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let hash = text.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33
}

/// What the teacher says next.
pub fn reply(request: &ScriptedRequest<'_>, seed: u64) -> Result<Reply, EngineError> {
    let Some(seen) = read(request.text) else {
        return Err(EngineError::Failed {
            model: "teacher".to_owned(),
            reason: format!("no question in `{}`", request.text),
        });
    };
    let session = request.session.unwrap_or_default();
    let root = !session.contains('/');
    let way = |of: &[Way]| of[(draw(session, seed) % of.len() as u64) as usize];
    let way = match (seen.copies, root) {
        (true, _) => way(&WITH_COPIES),
        (false, true) => way(&ALONE),
        (false, false) => Way::Look,
    };
    Ok(Reply::from(say(&seen, way)))
}

fn say(seen: &Seen<'_>, way: Way) -> String {
    let Some(output) = seen.output else { return code(way, seen.question) };
    let (asked, found) = (topic(seen.question), things(output));
    let times = if way == Way::Guess { 3 } else { 1 };
    noted(asked, &found, times * found.iter().filter(|(_, topic)| *topic == asked).count())
}
