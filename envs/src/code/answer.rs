//! The code in a response.

use std::sync::LazyLock;

use regex::Regex;

#[expect(clippy::expect_used, reason = "a constant pattern, which a test compiles")]
static ORIGINAL: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?s)```(?:\w+)?\n(.*?)```").expect("the pattern of the original"));

/// The content of the last fenced block, as Markdown reads it: a line that begins with three or more backticks or
/// tildes (after at most three blanks) and an optional language opens it, a line of nothing but as many closes it. A
/// block that is not closed is none. Blank lines around it and blanks at its end go; its first line's indentation
/// stays.
pub fn last_block(text: &str) -> Option<String> {
    let mut last = None;
    let mut open: Option<(char, usize, Vec<&str>)> = None;
    for line in text.lines() {
        let fence = fence(line);
        match (&mut open, fence) {
            (None, Some((mark, count, info))) if !(mark == '`' && info.contains('`')) => {
                open = Some((mark, count, Vec::new()));
            }
            (Some((mark, count, lines)), Some((other, others, info)))
                if *mark == other && others >= *count && info.trim().is_empty() =>
            {
                last = Some(lines.join("\n"));
                open = None;
            }
            (Some((_, _, lines)), _) => lines.push(line),
            (None, _) => {}
        }
    }
    last.map(|block| trim(&block))
}

/// The mark of a line that may open or close a block, how many of it, and what follows.
fn fence(line: &str) -> Option<(char, usize, &str)> {
    let rest = line.trim_start_matches(' ');
    if line.len() - rest.len() > 3 {
        return None;
    }
    let mark = rest.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
    let info = rest.trim_start_matches(mark);
    let count = rest.len() - info.len();
    (count >= 3).then_some((mark, count, info))
}

fn trim(block: &str) -> String {
    let lines: Vec<&str> = block.lines().skip_while(|line| line.trim().is_empty()).collect();
    lines.join("\n").trim_end().to_owned()
}

/// The last fenced block as skyrl-gym finds it.
pub fn last_block_original(text: &str) -> Option<String> {
    ORIGINAL.captures_iter(text).last().map(|found| found[1].trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_closed_block_counts() {
        let text = "One:\n```python\na = 1\n```\nTwo:\n```py title\n\n    b = 2\n\n```\nand\n```\nc = 3";
        assert_eq!(last_block(text).as_deref(), Some("    b = 2"));
        assert_eq!(last_block("~~~\nx\n```\n~~~").as_deref(), Some("x\n```"));
        assert_eq!(last_block("````\n```\ny\n```\n````").as_deref(), Some("```\ny\n```"));
        for text in ["", "no block", "`x`", "```python x = 1```", "```\nopen"] {
            assert_eq!(last_block(text), None, "{text}");
        }
    }

    #[test]
    fn backticks_within_a_block_do_not_end_it() {
        let text = "```python\ns = '''\n    ```sql\n    '''\nprint(s)\n```";
        assert_eq!(last_block(text).as_deref(), Some("s = '''\n    ```sql\n    '''\nprint(s)"));
        assert_eq!(last_block_original(text).as_deref(), Some("s = '''"));
    }

    #[test]
    fn the_original_takes_any_backticks() {
        assert_eq!(last_block_original("```python\na\n``` then ```\n  b\n```").as_deref(), Some("b"));
        assert_eq!(last_block_original("```c++\na\n```"), None);
    }
}
