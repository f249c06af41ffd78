//! Whether what was typed so far needs more lines.
//!
//! The interpreter lives in the sandbox and is asked only once a block is whole, so this looks at the text alone:
//! open brackets, open triple quotes, a trailing backslash, or a compound statement that no blank line has ended.

/// Whether the prompt should ask for another line. Lines are joined by newlines; a blank last line is a newline at the
/// end.
pub(super) fn is_incomplete(text: &str) -> bool {
    let scan = scan(text);
    if scan.open_quote || scan.depth > 0 || scan.code.ends_with('\\') {
        return true;
    }
    let compound = scan.code.lines().any(|line| line.trim_end().ends_with(':') || line.trim_start().starts_with('@'));
    compound && text.rsplit('\n').next().is_some_and(|last| !last.trim().is_empty())
}

struct Scan {
    depth: i64,
    open_quote: bool,
    /// The text without its comments and strings, and without newlines in brackets.
    code: String,
}

fn scan(text: &str) -> Scan {
    let mut scan = Scan { depth: 0, open_quote: false, code: String::with_capacity(text.len()) };
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        match c {
            '#' => {
                rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
                continue;
            }
            '"' | '\'' => {
                let mark = if rest[1..].starts_with(c) && rest[2..].starts_with(c) { &rest[..3] } else { &rest[..1] };
                // What stands in for the string: it is neither a colon nor a backslash.
                scan.code.push(c);
                match string_end(&rest[mark.len()..], mark) {
                    Some(length) => rest = &rest[mark.len() + length..],
                    None => return Scan { open_quote: mark.len() == 3, ..scan },
                }
                continue;
            }
            '(' | '[' | '{' => scan.depth += 1,
            ')' | ']' | '}' => scan.depth -= 1,
            _ => {}
        }
        if c != '\n' || scan.depth <= 0 {
            scan.code.push(c);
        }
        rest = &rest[c.len_utf8()..];
    }
    scan
}

/// Bytes up to the end of a string's closing mark; up to the end of its line for a string that should have ended there,
/// which the interpreter complains about.
fn string_end(text: &str, mark: &str) -> Option<usize> {
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        if text[at..].starts_with(mark) {
            return Some(at + mark.len());
        }
        if c == '\n' && mark.len() == 1 {
            return Some(at);
        }
        at += c.len_utf8();
        if c == '\\' {
            at += text[at..].chars().next().map_or(0, char::len_utf8);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_complete() {
        for text in ["x = 1", "print('a:')", "d = {1: 2}", "x = 'it''s'", "y = 3 # see (", ""] {
            assert!(!is_incomplete(text), "{text:?}");
        }
    }

    #[test]
    fn what_is_open_needs_more() {
        for text in ["f(", "x = [1,", "s = \"\"\"a", "x = 1 + \\", "for i in y:", "def f():\n    return 1", "@cache"] {
            assert!(is_incomplete(text), "{text:?}");
        }
    }

    #[test]
    fn a_blank_line_ends_a_compound_statement() {
        for text in [
            "for i in y:\n    print(i)\n",
            "for i in y:  # each\n    print(i)\n",
            "def f():\n    return 1\n   ",
            "@cache\ndef f(): return 1\n",
        ] {
            assert!(!is_incomplete(text), "{text:?}");
        }
    }

    #[test]
    fn colons_in_comments_and_strings_begin_no_block() {
        for text in ["# note:\nprint(7)", "x = 'a:'", "d = {\n'a':\n1}", "s = 'it\\'s:'", "s = '''a:\n'''", "é = 'ü:'"]
        {
            assert!(!is_incomplete(text), "{text:?}");
        }
        assert!(is_incomplete("for i in y:  # each\n    print(i)"));
        assert!(is_incomplete("if 'é' in x:"));
    }
}
