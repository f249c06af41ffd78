//! Text that knows which of its special tokens came from messages.
//!
//! A template moves text about (it strips, splits and joins), so the origin of a special token cannot be read off the
//! result. Before rendering, every special token that stands in a message gets a *mark* inside: a noncharacter that
//! occurs nowhere in the conversation. After rendering the marks are taken out, and where they stood is noted.

use serde_json::Value;

use super::TemplateError;
use crate::tokenizer::specials::Specials;

/// Characters that Unicode sets aside for a program's own use.
const MARKS: std::ops::RangeInclusive<char> = '\u{FDD0}'..='\u{FDEF}';

/// A rendered conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    text: String,
    /// Positions inside special tokens that are ordinary text, sorted.
    breaks: Vec<usize>,
}

impl Rendered {
    /// The text, as `transformers` would render it.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the messages held special tokens (which are ordinary text here).
    pub fn has_forged_specials(&self) -> bool {
        !self.breaks.is_empty()
    }

    pub(crate) fn breaks(&self) -> &[usize] {
        &self.breaks
    }

    /// What follows the first `at` bytes, behind `lead` (trusted). `None` where `at` is not between characters.
    pub(crate) fn tail(&self, at: usize, lead: &str) -> Option<Self> {
        let rest = self.text.get(at..)?;
        let first = self.breaks.partition_point(|&position| position < at);
        let breaks = self.breaks[first..].iter().map(|position| position - at + lead.len()).collect();
        Some(Self { text: format!("{lead}{rest}"), breaks })
    }
}

/// Marks special tokens in messages before rendering, and finds the marks afterwards.
pub(super) struct Marker(Option<char>);

impl Marker {
    pub(super) fn mark(
        specials: &Specials,
        messages: &mut [Value],
        tools: &mut [Value],
    ) -> Result<Self, TemplateError> {
        let mut found = false;
        let mut used = [false; 32];
        for value in messages.iter().chain(tools.iter()) {
            look(value, &mut |text| {
                found = found || !specials.starts(text).is_empty();
                for character in text.chars().filter(|character| MARKS.contains(character)) {
                    used[(u32::from(character) - u32::from(*MARKS.start())) as usize] = true;
                }
            });
        }
        if !found {
            return Ok(Self(None));
        }
        let free = MARKS.zip(used).find(|(_, used)| !used).ok_or(TemplateError::Unmarkable)?.0;
        for value in messages.iter_mut().chain(tools.iter_mut()) {
            change(value, &|text| mark_text(specials, text, free));
        }
        Ok(Self(Some(free)))
    }

    pub(super) fn unmark(&self, text: String) -> Rendered {
        let Some(mark) = self.0 else { return Rendered { text, breaks: Vec::new() } };
        let mut plain = String::with_capacity(text.len());
        let mut breaks = Vec::new();
        for (index, piece) in text.split(mark).enumerate() {
            if index > 0 {
                breaks.push(plain.len());
            }
            plain.push_str(piece);
        }
        Rendered { text: plain, breaks }
    }
}

/// Puts the mark behind the first character of every special token; before a token of one character.
fn mark_text(specials: &Specials, text: &str, mark: char) -> Option<String> {
    let starts = specials.starts(text);
    if starts.is_empty() {
        return None;
    }
    let mut marked = String::with_capacity(text.len() + starts.len() * 3);
    let mut starts = starts.into_iter().peekable();
    for (at, character) in text.char_indices() {
        if starts.peek() == Some(&at) {
            starts.next();
            // Both sides: a template that cuts off the first character leaves the second mark, and a token of one
            // character has only the first.
            marked.push(mark);
            marked.push(character);
            marked.push(mark);
        } else {
            marked.push(character);
        }
    }
    Some(marked)
}

fn look(value: &Value, see: &mut impl FnMut(&str)) {
    match value {
        Value::String(text) => see(text),
        Value::Array(list) => list.iter().for_each(|value| look(value, see)),
        Value::Object(object) => {
            for (key, value) in object {
                see(key);
                look(value, see);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn change(value: &mut Value, marked: &impl Fn(&str) -> Option<String>) {
    match value {
        Value::String(text) => {
            if let Some(new) = marked(text) {
                *text = new;
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|value| change(value, marked)),
        Value::Object(object) => {
            if object.keys().any(|key| marked(key).is_some()) {
                let old = std::mem::take(object);
                object.extend(old.into_iter().map(|(key, value)| (marked(&key).unwrap_or(key), value)));
            }
            object.values_mut().for_each(|value| change(value, marked));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
