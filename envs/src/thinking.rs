//! What a response says beside its thinking.
//!
//! Models think between `<think>` and `</think>`; some chat templates write the first tag into the prompt, so that a
//! response begins within the thought. A tag that is all of a text in quotes is text: a program may print one.

pub(crate) const OPEN: &str = "<think>";
pub(crate) const CLOSE: &str = "</think>";

/// Whether a tag is all that stands in a text's quotes.
fn is_quoted(text: &str, at: usize, tag: &str) -> bool {
    let (before, after) = (&text[..at], &text[at + tag.len()..]);
    ['"', '\''].iter().any(|quote| before.ends_with(*quote) && after.starts_with(*quote))
}

/// The first place of a tag that is not text in quotes.
fn first(text: &str, tag: &str) -> Option<usize> {
    text.match_indices(tag).map(|(at, _)| at).find(|at| !is_quoted(text, *at, tag))
}

/// The first `<think>` that is no text in quotes.
pub(crate) fn start(text: &str) -> Option<usize> {
    first(text, OPEN)
}

/// The first `</think>` that is no text in quotes.
pub(crate) fn end(text: &str) -> Option<usize> {
    first(text, CLOSE)
}

/// What a response says after its thinking: what stands behind its last thought. Where it opens none, that is what stands
/// behind the last `</think>`; a thought that never ends is none.
pub(crate) fn spoken(text: &str) -> &str {
    if start(text).is_none() {
        let last = text.rmatch_indices(CLOSE).map(|(at, _)| at).find(|at| !is_quoted(text, *at, CLOSE));
        return last.map_or(text, |at| &text[at + CLOSE.len()..]);
    }
    let mut rest = match (end(text), start(text)) {
        (Some(end), Some(start)) if end < start => &text[end + CLOSE.len()..],
        _ => text,
    };
    while let Some(start) = start(rest)
        && let Some(length) = rest[start..].find(CLOSE)
    {
        rest = &rest[start + length + CLOSE.len()..];
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_the_last_thought_is_spoken() {
        for (text, expected) in [
            ("plain", "plain"),
            ("<think>a</think>b", "b"),
            ("a</think>b", "b"),
            ("a</think>b</think>c", "c"),
            ("a</think><think>b</think>c", "c"),
            ("<think>a</think>b<think>c</think>d", "d"),
            ("<think>never ends", "<think>never ends"),
            ("<think>a</think>b <think>never ends", "b <think>never ends"),
            ("<think>a</think>print('</think>')", "print('</think>')"),
            ("<think>print('<think>')</think>b", "b"),
            ("he said \"hi\"</think>b", "b"),
            ("print(\"</think>\")", "print(\"</think>\")"),
            ("s = '<think>' + '</think>'", "s = '<think>' + '</think>'"),
            ("", ""),
        ] {
            assert_eq!(spoken(text), expected, "{text}");
        }
    }
}
