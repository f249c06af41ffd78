//! Where in a response its answer stands.

/// The content of the last `\boxed{}` or `\fbox{}` that is closed; `\boxed 5` gives the token that follows. What comes
/// after an unclosed box is no answer, but an earlier closed one is.
///
/// ```
/// use espalier_graders::math::last_boxed;
///
/// assert_eq!(last_boxed(r"so \boxed{\frac{1}{2}}."), Some(r"\frac{1}{2}"));
/// assert_eq!(last_boxed(r"so \boxed{1} or \boxed{2"), Some("1"));
/// ```
pub fn last_boxed(text: &str) -> Option<&str> {
    // Every backslash is looked at once, and the scan for a closing brace stops where the previous one began: what is
    // unclosed from there is unclosed. One pass over the text in all.
    let mut unclosed_from = text.len();
    for (at, _) in text.rmatch_indices('\\') {
        let rest = &text[at..];
        let Some(name) = [r"\boxed", r"\fbox"].into_iter().find(|name| rest.starts_with(name)) else { continue };
        if let Some(content) = content(text, at + name.len(), &mut unclosed_from) {
            return Some(content);
        }
    }
    None
}

fn content<'a>(text: &'a str, after: usize, unclosed_from: &mut usize) -> Option<&'a str> {
    let rest = text[after..].trim_start_matches([' ', '\n', '\t']);
    let open = text.len() - rest.len();
    if !rest.starts_with('{') {
        // `\boxed5` and `\boxed 5`; `\boxedlabel` is another command.
        if rest.starts_with(|c: char| c.is_ascii_alphabetic()) && open == after {
            return None;
        }
        let length = rest.find(|c: char| c.is_whitespace() || matches!(c, '$' | '}')).unwrap_or(rest.len());
        let token = rest[..length].trim_end_matches(['.', ',', ';']).trim_end_matches([')', ']']);
        let token = token.strip_suffix('\\').unwrap_or(token);
        return (!token.is_empty()).then_some(token);
    }
    let mut depth = 0_usize;
    let mut escaped = false;
    for (offset, byte) in rest.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'{' => depth += 1,
            b'}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(&rest[1..offset]);
                }
            }
            _ => {}
        }
        if open + offset >= *unclosed_from && depth >= 1 {
            // From here on more braces are opened than closed.
            break;
        }
    }
    *unclosed_from = (*unclosed_from).min(open);
    None
}

/// The last line of a text that is not blank, without what decorates it: for responses that box nothing.
pub fn last_line(text: &str) -> Option<&str> {
    let line = text.lines().rev().find(|line| !line.trim().is_empty())?.trim();
    let line = line.trim_matches(['*', '`', '#', ' ']);
    let stated = ["answer is", "Answer:", "answer:"]
        .iter()
        .filter_map(|mark| line.rfind(mark).map(|at| at + mark.len()))
        .max()
        .map_or(line, |at| &line[at..]);
    Some(stated.trim_matches([' ', ':', '*', '`']))
}
