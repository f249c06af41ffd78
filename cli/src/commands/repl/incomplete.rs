//! Whether what was typed so far needs more lines.
//!
//! The interpreter lives in the sandbox and is asked only once a block is whole, so this looks at the text alone:
//! open brackets, open triple quotes, a trailing backslash, or a compound statement that no blank line has ended.

/// Whether the prompt should ask for another line.
pub(super) fn is_incomplete(text: &str) -> bool {
    let scan = scan(text);
    if scan.open_quote || scan.depth > 0 || scan.continued {
        return true;
    }
    let mut lines = text.lines();
    let compound = lines.clone().any(|line| {
        let line = line.trim_end();
        line.ends_with(':') || line.starts_with('@')
    });
    compound && lines.next_back().is_some_and(|line| !line.trim().is_empty())
}

struct Scan {
    depth: i64,
    open_quote: bool,
    continued: bool,
}

fn scan(text: &str) -> Scan {
    let bytes = text.as_bytes();
    let mut at = 0;
    let mut depth = 0_i64;
    let mut open_quote = false;
    while at < bytes.len() {
        match bytes[at] {
            b'#' => {
                while at < bytes.len() && bytes[at] != b'\n' {
                    at += 1;
                }
            }
            quote @ (b'"' | b'\'') => {
                let triple = bytes[at..].starts_with(&[quote; 3]);
                let width = if triple { 3 } else { 1 };
                at += width;
                let mut closed = false;
                while at < bytes.len() {
                    if bytes[at] == b'\\' {
                        at += 2;
                    } else if bytes[at..].starts_with(&[quote; 3][..width]) {
                        at += width;
                        closed = true;
                        break;
                    } else if !triple && bytes[at] == b'\n' {
                        closed = true; // A broken string: the interpreter says so.
                        break;
                    } else {
                        at += 1;
                    }
                }
                open_quote = triple && !closed;
                continue;
            }
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            _ => {}
        }
        at += 1;
    }
    Scan { depth, open_quote, continued: text.trim_end_matches('\n').ends_with('\\') }
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
        assert!(!is_incomplete("for i in y:\n    print(i)\n\n"));
        assert!(!is_incomplete("def f():\n    return 1\n   "));
    }
}
