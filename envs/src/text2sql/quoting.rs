//! What stands in SQL's quotes: nothing there is a tag.
//!
//! Quotes are `'`, `"` and `` ` ``; a doubled one is a text's own. In a comment a quote opens nothing. One that is never
//! closed is an apostrophe.

use regex::Regex;

/// The parts of a text that stand outside quotes, with their places. Quotes themselves belong to no part.
fn bare(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    let mut done = false;
    std::iter::from_fn(move || {
        if done {
            return None;
        }
        let start = at;
        let mut from = at;
        loop {
            let Some(next) = text[from..].find(['\'', '"', '`', '-', '/']) else {
                done = true;
                return Some((start, &text[start..]));
            };
            let next = from + next;
            let rest = &text[next..];
            let comment = [("--", "\n"), ("/*", "*/")].iter().find(|(open, _)| rest.starts_with(open));
            if let Some((open, close)) = comment {
                let length = rest[open.len()..].find(close).map(|at| open.len() + at + close.len());
                from = length.map_or(text.len(), |length| next + length);
                continue;
            }
            let quote = &rest[..1];
            match rest[1..].find(quote).filter(|_| !matches!(quote, "-" | "/")) {
                Some(length) => {
                    at = next + length + 2;
                    return Some((start, &text[start..next]));
                }
                None => from = next + 1,
            }
        }
    })
}

/// The first of these tags outside quotes.
pub(super) fn find<'t>(text: &str, tags: &[&'t str]) -> Option<(usize, &'t str)> {
    bare(text).find_map(|(start, part)| {
        let found = tags.iter().filter_map(|tag| Some((start + part.find(tag)?, *tag)));
        found.min_by_key(|(at, _)| *at)
    })
}

/// Whether a pattern fits something outside quotes.
pub(super) fn matches(text: &str, pattern: &Regex) -> bool {
    bare(text).any(|(_, part)| pattern.is_match(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_hide_and_comments_do_not() {
        for (text, expected) in [
            ("a 'x' b", vec!["a ", " b"]),
            ("'it''s' x", vec!["", "", " x"]),
            ("-- don't\n'x'y", vec!["-- don't\n", "y"]),
            ("/* don't */ \"x\" `y`", vec!["/* don't */ ", " ", ""]),
            ("don't", vec!["don't"]),
            ("a - b / c -- open", vec!["a - b / c -- open"]),
            ("", vec![""]),
            ("é'ü'ß", vec!["é", "ß"]),
        ] {
            assert_eq!(bare(text).map(|(_, part)| part).collect::<Vec<_>>(), expected, "{text:?}");
            for (start, part) in bare(text) {
                assert!(text[start..].starts_with(part));
            }
        }
    }
}
