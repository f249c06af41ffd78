//! The code in a response.

use std::sync::LazyLock;

use regex::Regex;

use crate::thinking;

#[expect(clippy::expect_used, reason = "a constant pattern, which a test compiles")]
static ORIGINAL: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?s)```(?:\w+)?\n(.*?)```").expect("the pattern of the original"));

/// The last of [`blocks`].
pub fn last_block(text: &str) -> Option<String> {
    blocks(text).pop()
}

/// A block that is open.
struct Open<'a> {
    fence: Fence<'a>,
    lines: Vec<&'a str>,
}

impl Open<'_> {
    fn close(self) -> String {
        let lines: Vec<&str> = self.lines.iter().map(|line| dedent(line, self.fence.indent)).collect();
        trim(&lines.join("\n"))
    }
}

/// The contents of the fenced blocks after the thinking, as Markdown reads them: a line that begins with three or more
/// backticks or tildes and an optional language opens one, a line of nothing but as many closes it. A fence may be
/// indented, or follow the mark of a list's item: its lines lose as many blanks, and it is closed by a fence that is
/// indented by at most three more. One that is not closed ends with the text; it counts if it names a language or is
/// the only one. Blank lines around a block and blanks at its end go; its first line's indentation stays.
pub fn blocks(text: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut open: Option<Open<'_>> = None;
    for line in thinking::spoken(text).lines() {
        if let Some(mut block) = open.take() {
            let closed = fence(line).is_some_and(|end| {
                end.mark == block.fence.mark
                    && end.count >= block.fence.count
                    && end.indent <= block.fence.indent + 3
                    && end.info.trim().is_empty()
            });
            if closed {
                blocks.push(block.close());
            } else {
                block.lines.push(line);
                open = Some(block);
            }
        } else {
            let rest = item(line);
            let start = fence(rest).filter(|start| !(start.mark == '`' && start.info.contains('`')));
            open = start.map(|mut fence| {
                fence.indent += line.len() - rest.len();
                Open { fence, lines: Vec::new() }
            });
        }
    }
    if let Some(block) = open {
        let counts = blocks.is_empty() || !block.fence.info.trim().is_empty();
        let block = block.close();
        if counts && !block.is_empty() {
            blocks.push(block);
        }
    }
    blocks
}

/// A line that may open or close a block.
struct Fence<'a> {
    indent: usize,
    mark: char,
    count: usize,
    info: &'a str,
}

fn fence(line: &str) -> Option<Fence<'_>> {
    let rest = line.trim_start_matches([' ', '\t']);
    let mark = rest.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
    let info = rest.trim_start_matches(mark);
    let count = rest.len() - info.len();
    (count >= 3).then_some(Fence { indent: line.len() - rest.len(), mark, count, info })
}

/// A line after the mark of a list's item, or the whole line.
fn item(line: &str) -> &str {
    let text = line.trim_start_matches([' ', '\t']);
    let digits = text.trim_start_matches(|character: char| character.is_ascii_digit());
    let rest =
        if digits.len() < text.len() { digits.strip_prefix(['.', ')']) } else { text.strip_prefix(['-', '*', '+']) };
    rest.filter(|rest| rest.starts_with(' ')).unwrap_or(line)
}

/// A line without its first blanks, as many as `indent`.
fn dedent(line: &str, indent: usize) -> &str {
    let blanks = line.len() - line.trim_start_matches([' ', '\t']).len();
    &line[blanks.min(indent)..]
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
        for text in ["", "no block", "`x`", "```python x = 1```", "```\n\n"] {
            assert_eq!(last_block(text), None, "{text}");
        }
    }

    #[test]
    fn a_block_that_is_not_closed_ends_with_the_text() {
        assert_eq!(last_block("```python\na = 1").as_deref(), Some("a = 1"));
        assert_eq!(last_block("```\na\n```\n```python\nb").as_deref(), Some("b"));
        assert_eq!(last_block("```\na\n```\n```\nThat is it.").as_deref(), Some("a"));
    }

    #[test]
    fn a_block_of_a_list_loses_the_indentation_of_its_fence() {
        let code = Some("if a:\n    b");
        assert_eq!(last_block("1. So:\n\n    ```python\n    if a:\n        b\n    ```").as_deref(), code);
        assert_eq!(last_block("- ```python\n  if a:\n      b\n  ```\nDone.").as_deref(), code);
        assert_eq!(last_block("```\na\n    ```\nb\n```").as_deref(), Some("a\n    ```\nb"));
    }

    #[test]
    fn what_is_thought_is_no_answer() {
        assert_eq!(blocks("<think>```\na\n```</think>\n```\nb\n```"), ["b"]);
        assert_eq!(last_block("```\na\n```</think>I do not know."), None);
        let prints = "```python\nprint('</think>')\n```";
        for text in [prints.to_owned(), format!("<think>```\na\n```</think>{prints}")] {
            assert_eq!(blocks(&text), ["print('</think>')"], "{text}");
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
