//! `<tool><NAME>input</NAME></tool>` and `<solution>` read out of a turn.

use std::sync::LazyLock;

use regex::Regex;

use crate::search::qa::space;
use crate::search::tags;

/// What a turn asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// `<solution>...</solution>`, trimmed; it ends the episode.
    Solution(String),
    /// A search, trimmed and not empty.
    Search(String),
    /// A Python program, not empty.
    Python(String),
    /// None of these; what is wrong, for the model.
    Nothing(String),
}

/// Reads a turn. Thoughts ask for nothing; a solution goes before a tool; of several tools the first one counts.
/// `complete` says that the model itself ended its turn: then a last tag that is not closed counts too.
pub fn read(text: &str, complete: bool) -> Turn {
    let text = tags::spoken(text);
    if let Some(solution) = tags::last(&text, "solution", complete) {
        return Turn::Solution(solution.trim().to_owned());
    }
    let nothing = |said: &str| Turn::Nothing(said.to_owned());
    let Some(call) = tags::first(&text, "tool", complete) else {
        return nothing(if text.contains("<tool>") {
            "Your <tool> tag is not closed."
        } else {
            "Your turn neither used a tool nor gave a solution."
        });
    };
    let Some((name, input)) = tool(call, complete) else {
        return nothing("There is no tool named between your <tool> tags, or its tag is not closed.");
    };
    match name {
        "search" if !input.trim().is_empty() => Turn::Search(input.trim().to_owned()),
        "python" if !input.trim().is_empty() => Turn::Python(program(input)),
        "search" | "python" => Turn::Nothing(format!("There is nothing between your <{name}> tags.")),
        other => Turn::Nothing(format!("There is no tool `{other}`; there are `search` and `python`.")),
    }
}

static NAME: LazyLock<Regex> = LazyLock::new(|| {
    // A constant pattern, compiled by every test of this module. What Python's `\w` matches.
    Regex::new(r"<([\p{L}\p{N}_]+)>").expect("a valid pattern")
});

/// The tool of a call and its input: from the first tag to the last one that closes it.
fn tool(call: &str, complete: bool) -> Option<(&str, &str)> {
    let tag = NAME.captures(call)?;
    let (whole, name) = (tag.get(0)?, tag.get(1)?.as_str());
    let rest = &call[whole.end()..];
    match rest.rfind(&format!("</{name}>")) {
        Some(end) => Some((name, &rest[..end])),
        None => complete.then_some((name, rest)),
    }
}

/// A program without the code fence and the indentation that it may stand in.
fn program(input: &str) -> String {
    let trimmed = input.trim();
    let fenced = trimmed.strip_prefix("```").and_then(|inside| {
        let (language, code) = inside.split_once('\n')?;
        let known = matches!(language.trim(), "" | "python" | "py" | "python3");
        known.then_some(())?;
        code.trim_end().strip_suffix("```")
    });
    let code = fenced.unwrap_or(input).trim_end();
    let lines: Vec<&str> = code.lines().skip_while(|line| line.trim().is_empty()).collect();
    let indent = |line: &&str| line.len() - line.trim_start_matches([' ', '\t']).len();
    let common = lines.iter().filter(|line| !line.trim().is_empty()).map(indent).min().unwrap_or(0);
    lines.iter().map(|line| line.get(common..).unwrap_or("")).collect::<Vec<_>>().join("\n")
}

/// The tool and input of an action as skyrl-gym reads it, or the text of its exception.
pub(super) fn original(action: &str) -> Result<(String, String), String> {
    static CALL: LazyLock<Regex> = LazyLock::new(|| {
        // A constant pattern, compiled by every test of this module.
        Regex::new("(?s)<tool>(.*?)</tool>").expect("a valid pattern")
    });
    let call = CALL.captures(action).and_then(|found| found.get(1)).map(|call| call.as_str().trim_matches(space));
    let call = call.ok_or("No <tool>...</tool> block found in action string.")?;
    // `<(\w+)>(.*?)</\1>`
    let inner = NAME.captures_iter(call).find_map(|tag| {
        let name = tag.get(1)?.as_str();
        let rest = &call[tag.get(0)?.end()..];
        let end = rest.find(&format!("</{name}>"))?;
        Some((name.to_owned(), rest[..end].trim_matches(space).to_owned()))
    });
    let (name, input) = inner.ok_or("No valid inner tool tag found inside <tool> block.")?;
    if !matches!(name.as_str(), "search" | "python") {
        return Err(format!("Tool '{name}' not found in any registered tool group."));
    }
    Ok((name, input))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tools_and_solutions_are_read() {
        let search = |text: &str| Turn::Search(text.to_owned());
        let python = |text: &str| Turn::Python(text.to_owned());
        for (text, expected) in [
            ("<think>x</think><tool><search> a b </search></tool>", search("a b")),
            ("<tool>\n<python>\nprint(1)\n</python>\n</tool>", python("print(1)")),
            ("<tool><python>```python\nif 1:\n    print(1)\n```</python></tool>", python("if 1:\n    print(1)")),
            ("<tool><python>\n    a = 1\n\n    print(a)\n</python></tool>", python("a = 1\n\nprint(a)")),
            ("<tool><python>print('</python>')</python></tool>", python("print('</python>')")),
            ("<tool><python>print('</think>')</python></tool>", python("print('</think>')")),
            (
                "<think>x</think><tool><python>a = '<think>' '</think>'</python></tool>",
                python("a = '<think>' '</think>'"),
            ),
            ("<tool><search>a</search></tool><solution>#### 4 </solution>", Turn::Solution("#### 4".to_owned())),
        ] {
            assert_eq!(read(text, false), expected, "{text}");
        }
        for (text, said) in [
            ("hello", "neither used a tool"),
            ("<tool><search>a", "not closed"),
            ("<tool>search a</tool>", "no tool named"),
            ("<tool><search>a</tool>", "not closed"),
            ("<tool><sql>a</sql></tool>", "no tool `sql`"),
            ("<tool><python> </python></tool>", "nothing between your <python> tags"),
        ] {
            let Turn::Nothing(got) = read(text, false) else { panic!("{text}") };
            assert!(got.contains(said), "{text}: {got}");
        }
        assert_eq!(read("<tool><search>a</search>", true), search("a"));
        assert_eq!(read("<tool><python>print(1)", true), python("print(1)"));
        assert_eq!(read("<solution>4", true), Turn::Solution("4".to_owned()));
    }

    #[test]
    fn the_original_reading() {
        let call = |name: &str, input: &str| Ok((name.to_owned(), input.to_owned()));
        for (text, expected) in [
            ("<tool> <search> q </search> </tool>", call("search", "q")),
            ("<tool><b><python>1</python></tool>", call("python", "1")),
            ("<tool><python>a</python><python>b</python></tool>", call("python", "a")),
            (
                "<tool>x</tool><tool><search>q</search></tool>",
                Err("No valid inner tool tag found inside <tool> block.".to_owned()),
            ),
            ("<tool><sql>1</sql></tool>", Err("Tool 'sql' not found in any registered tool group.".to_owned())),
            ("<tool>", Err("No <tool>...</tool> block found in action string.".to_owned())),
        ] {
            assert_eq!(original(text), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "(<|>|/|tool|search|python|solution|think|\\n|```|é| ){0,24}", complete: bool) {
            let _ = read(&text, complete);
            let _ = original(&text);
        }

        #[test]
        fn a_query_is_read_as_it_was_written(query in "[^<>]{1,40}") {
            prop_assume!(!query.trim().is_empty());
            let text = format!("<tool><search>{query}</search></tool>");
            prop_assert_eq!(read(&text, false), Turn::Search(query.trim().to_owned()));
        }
    }
}
