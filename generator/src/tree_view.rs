//! Trees and rows for people.
//!
//! [`tree`] prints a tree: nodes with their stop reason, reward and tokens, turns with what they wrote and what came
//! back, cut at a bound. [`mask`] prints a row token by token, sampled and given ones told apart.

use std::fmt::Write;

use espalier_inference::{Role, TokenId};

use crate::row::Row;
use crate::trajectory::{CallRecord, Trajectory, Tree, Turn};

/// How much is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewOptions {
    /// Colours, for terminals.
    pub colour: bool,
    /// Most lines of one message.
    pub lines: usize,
    /// Most characters of one line.
    pub width: usize,
    /// Most `llm_query` calls shown per turn.
    pub calls: usize,
}

impl Default for ViewOptions {
    fn default() -> Self {
        Self { colour: false, lines: 12, width: 100, calls: 4 }
    }
}

#[derive(Clone, Copy)]
enum Paint {
    Bold,
    Dim,
    Green,
    Red,
    Cyan,
}

impl ViewOptions {
    fn paint(self, paint: Paint, text: &str) -> String {
        if !self.colour || text.is_empty() {
            return text.to_owned();
        }
        let code = match paint {
            Paint::Bold => "1",
            Paint::Dim => "2",
            Paint::Green => "32",
            Paint::Red => "31",
            Paint::Cyan => "36",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// A tree: each node with its turns, its children below it.
pub fn tree(tree: &Tree, options: ViewOptions) -> String {
    let mut out = String::new();
    node(tree, &tree.root, "", "", options, &mut out);
    out
}

fn node(tree: &Tree, it: &Trajectory, first: &str, rest: &str, options: ViewOptions, out: &mut String) {
    let stop = options.paint(if it.stop.is_natural() { Paint::Green } else { Paint::Red }, it.stop.name());
    let mut head = format!(
        "{first}{} {} by {}: {stop}, reward {}, {} turns, {} tokens in, {} sampled",
        options.paint(Paint::Bold, &plain(&it.rollout_id)),
        plain(&it.env_id),
        plain(&it.model),
        it.reward,
        it.turns.len(),
        it.usage.prompt_tokens,
        it.usage.sampled_tokens,
    );
    let queries = it.calls.iter().filter(|call| call.kind.is_query()).count();
    for (count, what) in [(queries, "sub-calls"), (it.calls.len() - queries, "judge calls")] {
        if count > 0 {
            let _ = write!(head, ", {count} {what}");
        }
    }
    let _ = write!(head, ", {:.2} s", it.timings.total_us as f64 / 1e6);
    let _ = writeln!(out, "{head}");
    if let Some(error) = &it.error {
        let _ = writeln!(out, "{rest}│ {}", options.paint(Paint::Red, &plain(error)));
    }
    let opening = it.turns.first().map_or(it.messages.len(), |turn| turn.message as usize);
    for message in &it.messages[..opening.min(it.messages.len())] {
        text(&format!("{rest}│ "), role(message.role), &message.content, Paint::Dim, options, out);
    }
    for (index, turn) in it.turns.iter().enumerate() {
        show_turn(it, index, turn, rest, options, out);
    }
    if let Some(answer) = &it.answer {
        text(&format!("{rest}│ "), "answer", answer, Paint::Bold, options, out);
    }
    let children: Vec<&Trajectory> = tree.children(&it.rollout_id).collect();
    for (index, child) in children.iter().enumerate() {
        let last = index + 1 == children.len();
        let (branch, below) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        node(tree, child, &format!("{rest}{branch}"), &format!("{rest}{below}"), options, out);
    }
}

fn show_turn(it: &Trajectory, index: usize, turn: &Turn, rest: &str, options: ViewOptions, out: &mut String) {
    let cut = match turn.stop {
        espalier_inference::StopReason::EndOfTurn => String::new(),
        other => format!(", cut by {}", serde_json::to_value(other).unwrap_or_default().as_str().unwrap_or("?")),
    };
    let reward = if turn.reward == 0.0 { String::new() } else { format!(", reward {}", turn.reward) };
    let title = format!(
        "turn {}: {} tokens in ({} cached), {} sampled{cut}{reward}",
        index + 1,
        turn.prompt_tokens,
        turn.cached_tokens,
        turn.sampled_tokens
    );
    let _ = writeln!(out, "{rest}│ {}", options.paint(Paint::Cyan, &title));
    let from = turn.message as usize;
    let to = it.turns.get(index + 1).map_or(it.messages.len(), |next| next.message as usize);
    for (place, message) in it.messages.iter().enumerate().take(to).skip(from) {
        let paint = if place == from { Paint::Green } else { Paint::Dim };
        text(&format!("{rest}│   "), role(message.role), &message.content, paint, options, out);
    }
    let calls: Vec<&CallRecord> = it.calls.iter().filter(|call| call.turn as usize == index).collect();
    for call in calls.iter().take(options.calls) {
        let answer = call.response.as_deref().or(call.error.as_deref()).unwrap_or_default();
        let width = options.width / 2;
        let what = if call.kind.is_query() { "llm_query" } else { "judge" };
        let line = format!("{what} {} -> {}", clean(&call.prompt, width), clean(answer, width));
        let _ = writeln!(out, "{rest}│   {}", options.paint(Paint::Dim, &line));
    }
    if calls.len() > options.calls {
        let _ = writeln!(out, "{rest}│   ... {} more sub-calls", calls.len() - options.calls);
    }
}

fn role(role: Role) -> &'static str {
    match role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    }
}

/// A text below a label, its middle left out where it is long.
fn text(margin: &str, label: &str, content: &str, paint: Paint, options: ViewOptions, out: &mut String) {
    let lines: Vec<&str> = content.lines().collect();
    let shown = options.lines.max(2);
    let (head, tail) = if lines.len() > shown { (shown - shown / 3, shown / 3) } else { (lines.len(), 0) };
    let blank = " ".repeat(label.len());
    let mut first = true;
    let mut put = |line: &str| {
        let label = if std::mem::take(&mut first) { label } else { &blank };
        let _ = writeln!(out, "{margin}{label} {}", options.paint(paint, line));
    };
    for line in &lines[..head] {
        put(&clean(line, options.width));
    }
    if head + tail < lines.len() {
        put(&format!("... {} lines ...", lines.len() - head - tail));
    }
    for line in &lines[lines.len() - tail..] {
        put(&clean(line, options.width));
    }
    if lines.is_empty() {
        put("");
    }
}

/// One line without control characters, cut at a width.
fn clean(line: &str, width: usize) -> String {
    match line.char_indices().nth(width) {
        Some((cut, _)) => format!("{}... +{}", plain(&line[..cut]), line[cut..].chars().count()),
        None => plain(line),
    }
}

/// A text as one line without control characters: they could rewrite the terminal, and tables would fall apart.
pub fn plain(text: &str) -> String {
    let mut shown = String::new();
    for character in text.chars() {
        match character {
            '\n' => shown.push_str("\\n"),
            '\t' => shown.push_str("    "),
            character if character.is_control() => {
                let _ = write!(shown, "{}", character.escape_unicode());
            }
            character => shown.push(character),
        }
    }
    shown
}

/// A row token by token. Tokens that train stand in brackets (green with colours), given ones do not; a reward stands
/// behind its token. `name` gives a token's text.
pub fn mask(row: &Row, name: impl Fn(TokenId) -> String, options: ViewOptions) -> String {
    let mut out = String::new();
    let prompt: String = row.prompt_ids().iter().map(|&id| name(id)).collect();
    text("", "prompt", &prompt, Paint::Dim, options, &mut out);
    let _ = writeln!(out, "response: {} tokens, {} with mask 1", row.len(), row.trained_tokens());
    let mut line = String::new();
    for ((&id, &mask), &reward) in row.response_ids().iter().zip(row.mask()).zip(row.rewards()) {
        let token = clean(&name(id), options.width);
        if mask == 1 {
            line.push_str(&options.paint(Paint::Green, &format!("[{token}]")));
        } else {
            line.push_str(&options.paint(Paint::Dim, &token));
        }
        if reward != 0.0 {
            line.push_str(&options.paint(Paint::Bold, &format!("({reward:+})")));
        }
    }
    let _ = writeln!(out, "{line}");
    out
}
