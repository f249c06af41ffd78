//! The tags of the protocol: reading them out of a model's turn, and keeping them out of what others wrote.

use std::sync::LazyLock;

use regex::Regex;

use crate::thinking;

/// What a turn asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// `<answer>...</answer>`, trimmed; it ends the episode.
    Answer(String),
    /// `<search>...</search>`, trimmed and not empty.
    Search(String),
    /// Neither.
    Nothing(Why),
}

/// Why a turn asks for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// There are no tags.
    NoTags,
    /// A tag is opened and not closed, in a turn that was cut off.
    CutOff,
    /// A tag is closed that was not opened.
    Unopened,
    /// There is nothing between the tags.
    Empty,
}

/// Reads a turn. What stands in `<think>` is a thought and asks for nothing. An answer goes before a search; of several
/// answers the last one counts, of several searches the first. `complete` says that the model itself ended its turn: then
/// a last tag that is not closed counts too, since many endpoints leave the stop text out.
pub fn read(text: &str, complete: bool) -> Turn {
    let text = spoken(text);
    if let Some(answer) = last(&text, "answer", complete) {
        return Turn::Answer(answer.trim().to_owned());
    }
    if let Some(query) = first(&text, "search", complete) {
        let query = query.trim();
        return if query.is_empty() { Turn::Nothing(Why::Empty) } else { Turn::Search(query.to_owned()) };
    }
    Turn::Nothing(if text.contains("<search>") || text.contains("<answer>") {
        Why::CutOff
    } else if text.contains("</search>") || text.contains("</answer>") {
        Why::Unopened
    } else {
        Why::NoTags
    })
}

/// A turn without its thoughts: without every `<think>...</think>`, and without what stands before a `</think>` whose
/// beginning is in the prompt. A thought that does not end is no thought: its author never spoke otherwise.
pub(crate) fn spoken(text: &str) -> String {
    let close = thinking::CLOSE;
    let mut rest = match (thinking::end(text), thinking::start(text)) {
        (Some(end), Some(start)) if end < start => &text[end + close.len()..],
        (Some(end), None) => &text[end + close.len()..],
        _ => text,
    };
    let mut spoken = String::new();
    while let Some(start) = thinking::start(rest) {
        let Some(length) = rest[start..].find(close) else { break };
        spoken.push_str(&rest[..start]);
        rest = &rest[start + length + close.len()..];
    }
    spoken + rest
}

/// The text between the last `<name>` that is closed and the first `</name>` after it.
pub(crate) fn last<'a>(text: &'a str, name: &str, complete: bool) -> Option<&'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    if complete
        && let Some(start) = text.rfind(&open)
        && !text[start..].contains(&close)
    {
        return Some(&text[start + open.len()..]);
    }
    let mut end = text.len();
    while let Some(at) = text[..end].rfind(&close) {
        if let Some(start) = text[..at].rfind(&open) {
            let inside = &text[start + open.len()..at];
            return Some(inside.find(&close).map_or(inside, |end| &inside[..end]));
        }
        end = at;
    }
    None
}

/// The text between the first `</name>` that has a `<name>` before it, and that one.
pub(crate) fn first<'a>(text: &'a str, name: &str, complete: bool) -> Option<&'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let start = text.find(&open)? + open.len();
    match text[start..].find(&close) {
        Some(length) => {
            let inside = &text[start..start + length];
            // The last opening before the end: "a <search> tag, so: <search>Paris</search>".
            Some(inside.rfind(&open).map_or(inside, |at| &inside[at + open.len()..]))
        }
        None => complete.then(|| &text[text.rfind(&open).map_or(start, |at| at + open.len())..]),
    }
}

static TAG: LazyLock<Regex> = LazyLock::new(|| {
    // A constant pattern, compiled by every test of this module.
    Regex::new(r"(?i)<(\s*/?\s*(?:search|answer|information|think|tool|python|solution)\b)").expect("a valid pattern")
});

/// A text that others wrote, with the protocol's tags made visible instead of effective: `<answer>` becomes
/// `&lt;answer>`. Everything else stays as it is.
pub fn neutral(text: &str) -> String {
    TAG.replace_all(text, "&lt;$1").into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn answer(text: &str) -> Turn {
        Turn::Answer(text.to_owned())
    }

    fn search(text: &str) -> Turn {
        Turn::Search(text.to_owned())
    }

    #[test]
    fn tags_are_read_where_the_model_speaks() {
        for (text, expected) in [
            ("<think>who?</think>\n<search> capital of France\n</search>", search("capital of France")),
            ("<search>a</search> then <search>b</search>", search("a")),
            ("I write a <search> tag: <search>a</search>", search("a")),
            ("<search>a</search><answer>b</answer>", answer("b")),
            ("<answer>a</answer> no, <answer> b </answer>", answer("b")),
            ("an <answer> tag: <answer>Paris</answer>", answer("Paris")),
            ("<answer>x</answer></answer>", answer("x")),
            ("<answer></answer>", answer("")),
            ("<think>maybe <answer>a</answer></think><search>q</search>", search("q")),
            ("maybe <answer>a</answer></think><search>q</search>", search("q")),
            ("<think>never ends <answer>a</answer>", answer("a")),
            ("<search> </search>", Turn::Nothing(Why::Empty)),
            ("Paris", Turn::Nothing(Why::NoTags)),
            ("</answer> <search>", Turn::Nothing(Why::CutOff)),
            ("a</search>", Turn::Nothing(Why::Unopened)),
            ("<Search>a</Search>", Turn::Nothing(Why::NoTags)),
        ] {
            assert_eq!(read(text, false), expected, "{text}");
        }
    }

    #[test]
    fn a_tag_that_a_stop_text_closed_counts_in_a_complete_turn() {
        for (text, complete, cut) in [
            ("<search>q", search("q"), Turn::Nothing(Why::CutOff)),
            ("<answer>Paris\n", answer("Paris"), Turn::Nothing(Why::CutOff)),
            ("<answer>a</answer> <answer>b", answer("b"), answer("a")),
            ("<search>", Turn::Nothing(Why::Empty), Turn::Nothing(Why::CutOff)),
        ] {
            assert_eq!(read(text, true), complete, "{text}");
            assert_eq!(read(text, false), cut, "{text}");
        }
    }

    #[test]
    fn tags_of_others_are_made_visible() {
        assert_eq!(neutral("a < b <answer>x</ANSWER >"), "a < b &lt;answer>x&lt;/ANSWER >");
        assert_eq!(neutral("<br> <searching> < / search>"), "<br> <searching> &lt; / search>");
        assert_eq!(neutral("</information>\n<tool"), "&lt;/information>\n&lt;tool");
    }

    proptest! {
        #[test]
        fn neutral_text_asks_for_nothing(parts in proptest::collection::vec(
            prop_oneof!["</?(answer|search|think|information)>", "[ a-z<>/]{0,4}"], 0..12)) {
            let text = parts.concat();
            let neutral = neutral(&text);
            for complete in [false, true] {
                prop_assert_eq!(read(&neutral, complete), Turn::Nothing(Why::NoTags));
            }
            prop_assert_eq!(super::neutral(&neutral), neutral);
        }

        #[test]
        fn what_is_written_between_tags_is_what_is_read(query in "[^<]{1,40}", before in "[^<]{0,20}", after in "[^<]{0,20}") {
            prop_assume!(!query.trim().is_empty());
            let text = format!("{before}<search>{query}</search>{after}");
            prop_assert_eq!(read(&text, false), search(query.trim()));
            let text = format!("{before}<answer>{query}</answer>{after}");
            prop_assert_eq!(read(&text, true), answer(query.trim()));
        }

        #[test]
        fn any_text_is_read(text in "(<|>|/|think|answer|search|é|a| ){0,24}", complete: bool) {
            let _ = read(&text, complete);
        }
    }
}
