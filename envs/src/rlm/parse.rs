//! Code blocks and final answers in a response.
//!
//! [`read`] is the default reading, [`read_original`] skyrl-gym's, faults included. Both are total: any text is read,
//! in time linear in its length, and every range they report lies on character boundaries of the text.
//!
//! The default reading, line by line: a fence opens with three or more backticks and a word; it closes with at least
//! as many backticks alone on a line, so a longer fence may hold shorter ones. Thinking (`<think>` at the start of a
//! line up to `</think>`, or everything before a `</think>` that nothing opened) is neither code nor answer. What
//! remains is prose, and only there do `FINAL(...)` and `FINAL_VAR(...)` at the start of a line count.

use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

/// What a response asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The block to run.
    pub code: Option<Block>,
    /// How many runnable blocks there were; only the last one runs.
    pub blocks: usize,
    /// The answer given in prose.
    pub answer: Option<TextAnswer>,
}

/// One runnable block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its code, without the fences.
    pub code: String,
    /// Where it stands in the response, fences included.
    pub range: Range<usize>,
    /// Whether a closing fence was there.
    pub closed: bool,
}

/// An answer given in prose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextAnswer {
    /// `FINAL(text)`: the text, trimmed.
    Final(String),
    /// `FINAL_VAR(name)`: the name, without quotes.
    FinalVar(String),
}

/// What counts as a runnable block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fences {
    /// The words after the backticks, compared without case. An empty word stands for a bare fence.
    pub words: Vec<String>,
    /// Whether a block that the response does not close runs as well.
    pub unclosed: bool,
}

impl Fences {
    /// Only ```` ```repl ````.
    pub fn repl() -> Self {
        Self { words: vec!["repl".to_owned()], unclosed: true }
    }

    fn accept(&self, word: &str) -> bool {
        self.words.iter().any(|accepted| accepted.eq_ignore_ascii_case(word))
    }
}

/// The text without the special tokens that some engines leave at its end.
pub fn without_trailing_specials(text: &str) -> &str {
    const TOKENS: [&str; 6] = ["</s>", "<eos>", "<end_of_turn>", "<pad>", "[/INST]", "<EOT>"];
    let mut rest = text.trim_end();
    loop {
        let bare = TOKENS.iter().find_map(|token| rest.strip_suffix(token)).or_else(|| strip_piped(rest));
        match bare {
            Some(shorter) => rest = shorter.trim_end(),
            None => return rest,
        }
    }
}

/// Strips one trailing token of the form `<|name|>` (with the full-width bar of some vocabularies too).
fn strip_piped(text: &str) -> Option<&str> {
    let (bar, inner) = ["|", "\u{ff5c}"]
        .iter()
        .find_map(|bar| text.strip_suffix('>').and_then(|rest| rest.strip_suffix(bar)).map(|inner| (bar, inner)))?;
    let open = inner.rfind('<')?;
    let name = inner[open + 1..].strip_prefix(bar)?;
    let plain = !name.is_empty()
        && name.chars().count() <= 40
        && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '\u{2581}'));
    plain.then(|| &text[..open])
}

/// How many unreadable answers are tried from the end, so that a response full of them is still read in linear time.
const MOST_TRIED: usize = 32;

/// A fence that is open while lines are read.
struct OpenFence {
    ticks: usize,
    marker: char,
    indent: usize,
    runnable: bool,
    start: usize,
    code_start: usize,
}

/// Reads a response the default way.
pub fn read(text: &str, fences: &Fences) -> Reading {
    let text = without_trailing_specials(text);
    let mut blocks: Vec<Block> = Vec::new();
    let mut prose: Vec<Range<usize>> = Vec::new();
    let mut fence: Option<OpenFence> = None;
    let mut thinking = false;
    let mut thought = false;
    let mut at = 0;
    while at < text.len() {
        let end = text[at..].find('\n').map_or(text.len(), |length| at + length + 1);
        let mut start = at;
        at = end;
        if thinking {
            let Some(close) = find_close(&text[start..end]) else { continue };
            thinking = false;
            start += close;
        }
        if let Some(open) = &fence {
            let line = &text[start..end];
            // Thinking that the prompt opened may have left a fence open; no Python line starts like this.
            if thought || !line.trim_start().starts_with("</think") {
                if closes(line, open) {
                    if open.runnable {
                        blocks.push(block(text, open, start, end, true));
                    }
                    fence = None;
                }
                continue;
            }
            fence = None;
        }
        // Thinking may open and close within the line; what follows it is read like any line.
        loop {
            let line = &text[start..end];
            let opened = line.trim_start().starts_with("<think>") || line.trim_start().starts_with("<thinking>");
            let close = find_close(line);
            if !opened && (thought || close.is_none()) {
                break;
            }
            if !opened {
                blocks.clear();
                prose.clear();
            }
            thought = true;
            if let Some(close) = close {
                start += close;
            } else {
                thinking = true;
                break;
            }
        }
        if thinking {
            continue;
        }
        let line = &text[start..end];
        match opens(line, fences) {
            Some((before, ticks, marker, indent, runnable)) => {
                if before > 0 {
                    prose.push(start..start + before);
                }
                fence = Some(OpenFence { ticks, marker, indent, runnable, start: start + before, code_start: end });
            }
            None => prose.push(start..end),
        }
    }
    if let Some(open) = fence
        && open.runnable
        && fences.unclosed
    {
        blocks.push(block(text, &open, text.len(), text.len(), false));
    }
    let answer = last_answer(text, &prose);
    let count = blocks.len();
    Reading { code: blocks.pop(), blocks: count, answer }
}

/// Where thinking ends in a line: after `</think>` or `</thinking>`.
fn find_close(line: &str) -> Option<usize> {
    ["</think>", "</thinking>"].iter().filter_map(|tag| line.find(tag).map(|at| at + tag.len())).min()
}

/// Whether a line opens a fence: bytes before it that are prose, its ticks, its marker, its indent, and whether the
/// block runs.
fn opens(line: &str, fences: &Fences) -> Option<(usize, usize, char, usize, bool)> {
    let body = line.trim_end();
    let trimmed = body.trim_start();
    let indent = body.len() - trimmed.len();
    for marker in ['`', '~'] {
        let ticks = trimmed.chars().take_while(|c| *c == marker).count();
        if ticks >= 3 {
            let info = &trimmed[ticks..];
            // Backticks after the opening ones make it inline code.
            if info.contains('`') {
                return None;
            }
            let word = info.split_whitespace().next().unwrap_or_default();
            return Some((0, ticks, marker, indent, fences.accept(word)));
        }
    }
    // `Let me look: ```repl` opens a block as well, when the line ends with the fence.
    let word_start = body.rfind('`')? + 1;
    let word = &body[word_start..];
    let before = body[..word_start].trim_end_matches('`');
    let ticks = word_start - before.len();
    (ticks >= 3 && !word.is_empty() && !before.contains('`') && fences.accept(word)).then_some((
        before.len(),
        ticks,
        '`',
        0,
        true,
    ))
}

/// Whether a line closes a fence.
fn closes(line: &str, open: &OpenFence) -> bool {
    let body = line.trim_end();
    let trimmed = body.trim_start();
    let indent = body.len() - trimmed.len();
    indent <= open.indent + 3 && trimmed.len() >= open.ticks && trimmed.chars().all(|c| c == open.marker)
}

fn block(text: &str, open: &OpenFence, code_end: usize, end: usize, closed: bool) -> Block {
    let raw = text.get(open.code_start.min(text.len())..code_end).unwrap_or_default();
    let code = if open.indent == 0 {
        raw.trim_end().to_owned()
    } else {
        // A block inside a list item is indented as the item is.
        let lines: Vec<&str> = raw
            .lines()
            .map(|line| {
                let blank = line.bytes().take_while(u8::is_ascii_whitespace).count().min(open.indent);
                &line[blank..]
            })
            .collect();
        lines.join("\n").trim_end().to_owned()
    };
    Block { code, range: open.start..end, closed }
}

/// The last answer in prose.
fn last_answer(text: &str, prose: &[Range<usize>]) -> Option<TextAnswer> {
    let mut tried = 0;
    for (index, range) in prose.iter().enumerate().rev() {
        let line = &text[range.clone()];
        // Only a line's first words count, so a sentence about `FINAL(...)` is no answer.
        let body = line.trim_start().trim_start_matches('*');
        let Some(name) = ["FINAL_VAR", "FINAL"].into_iter().find(|name| {
            body.strip_prefix(name).is_some_and(|rest| rest.trim_start_matches([' ', '\t']).starts_with('('))
        }) else {
            continue;
        };
        tried += 1;
        if tried > MOST_TRIED {
            return None;
        }
        let after = body[name.len()..].trim_start_matches([' ', '\t']);
        let open = range.end - (after.len() - 1);
        let start = open.min(text.len());
        // The argument may go on over the following lines of prose, up to the next fence.
        let mut end = range.end;
        for next in &prose[index + 1..] {
            if next.start != end {
                break;
            }
            end = next.end;
        }
        let Some(argument) = argument(&text[start..end]) else { continue };
        return Some(if name == "FINAL" {
            TextAnswer::Final(argument.trim().to_owned())
        } else {
            TextAnswer::FinalVar(unquoted(argument).to_owned())
        });
    }
    None
}

/// What stands between the parenthesis that was just opened and its partner. A text in quotes may hold any
/// parentheses; without a partner the first line's last parenthesis closes.
fn argument(text: &str) -> Option<&str> {
    if let Some(quoted) = quoted_argument(text) {
        return Some(quoted);
    }
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 0 => return Some(&text[..at]),
            ')' => depth -= 1,
            _ => {}
        }
    }
    let line = text.lines().next().unwrap_or_default();
    line.rfind(')').map(|close| &line[..close])
}

/// `"..."` up to its closing quote, when the parenthesis follows.
fn quoted_argument(text: &str) -> Option<&str> {
    let body = text.trim_start();
    let offset = text.len() - body.len();
    let quote = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|quote| body.starts_with(quote))?;
    let mut escaped = false;
    for (at, c) in body.char_indices().skip(quote.len()) {
        if escaped {
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if body[at..].starts_with(quote) {
            let end = at + quote.len();
            return body[end..].trim_start().starts_with(')').then(|| &text[..offset + end]);
        } else if c == '\n' && quote.len() == 1 {
            return None;
        }
    }
    None
}

/// A name without white space and quotes around it.
fn unquoted(text: &str) -> &str {
    text.trim().trim_matches(['"', '\'']).trim()
}

static ORIGINAL_BLOCK: LazyLock<Regex> = LazyLock::new(|| constant(r"(?s)```repl\s*\n(.*?)\n```"));
static ORIGINAL_FINAL_VAR: LazyLock<Regex> = LazyLock::new(|| constant(r"(?ms)^\s*FINAL_VAR\((.*?)\)"));
static ORIGINAL_FINAL: LazyLock<Regex> = LazyLock::new(|| constant(r"(?ms)^\s*FINAL\((.*)\)\s*$"));

fn constant(pattern: &str) -> Regex {
    // A constant pattern, compiled by every test of this module.
    Regex::new(pattern).unwrap()
}

/// Reads a response as skyrl-gym does.
///
/// The last ```` ```repl ```` block runs; without one the answer in prose is ignored too. `FINAL_VAR` is looked for
/// anywhere, code included, and the last one counts; `FINAL` reaches from the first one that starts a line to the
/// last parenthesis that ends one. Both are reported: the name is tried first, and the text when it is no variable.
pub fn read_original(text: &str) -> OriginalReading {
    let mut code = None;
    let mut blocks = 0;
    for found in ORIGINAL_BLOCK.captures_iter(text) {
        blocks += 1;
        if let (Some(all), Some(body)) = (found.get(0), found.get(1)) {
            code = Some(Block { code: body.as_str().trim().to_owned(), range: all.range(), closed: true });
        }
    }
    let group = |found: regex::Captures<'_>| found.get(1).map(|body| body.as_str().trim().to_owned());
    OriginalReading {
        code,
        blocks,
        final_var: ORIGINAL_FINAL_VAR
            .captures_iter(text)
            .last()
            .and_then(group)
            .map(|name| name.trim_matches(['"', '\'']).to_owned()),
        final_text: ORIGINAL_FINAL.captures(text).and_then(group),
    }
}

/// What skyrl-gym sees in a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OriginalReading {
    /// The block to run.
    pub code: Option<Block>,
    /// How many blocks there were.
    pub blocks: usize,
    /// The last `FINAL_VAR(name)`, tried first.
    pub final_var: Option<String>,
    /// The greedy `FINAL(...)`, used when there is no variable of that name.
    pub final_text: Option<String>,
}
