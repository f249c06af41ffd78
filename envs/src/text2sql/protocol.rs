//! The tags in what the model says: `<think>`, `<sql>`, `<solution>`.
//!
//! [`Turn::read`] reads one turn of the model, [`solution`] all of them; [`solution_original`] and the functions beside
//! it are skyrl-gym's reading of the whole conversation, observations included.
//!
//! Invariant: a tag counts where the model speaks. In a thought there are none, and in a query only those that stand
//! outside SQL's quotes ([`quoting`]).

use std::sync::LazyLock;

use regex::Regex;

use super::quoting;

/// Added to a prompt that does not speak of `<solution>` itself.
pub(super) const INSTRUCTION: &str = "Answer with one SQLite query. Begin every turn with your reasoning between <think> \
     and </think>. Then either look at the database: write one query between <sql> and </sql>, and you will see its result \
     between <observation> and </observation>. Or, when you are sure, end with the final query between <solution> and \
     </solution>.";

const OPEN: &str = "<solution>";
const CLOSE: &str = "</solution>";
const THINK: &str = "<think>";
const THOUGHT_END: &str = "</think>";
const QUERY: &str = "<sql>";
const QUERY_END: &str = "</sql>";

/// Tags of a turn that may stand open.
const MOST_UNCLOSED: u32 = 64;

fn pattern(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a pattern of ours")
}

static SQL: LazyLock<Regex> = LazyLock::new(|| pattern("(?s)<sql>(.*?)</sql>"));
static ANY: LazyLock<Regex> = LazyLock::new(|| pattern("</?think>|<sql>|</?solution>"));
static THOUGHT: LazyLock<Regex> = LazyLock::new(|| pattern("(?s)<think>(.*?)</think>"));
static TAG: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?i)</?(think|sql|observation)\b"));
static OBSERVATION_END: LazyLock<Regex> = LazyLock::new(|| pattern("(?i)</observation>"));

/// What is wrong with the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    NoSolution,
    SeveralSolutions,
    NotClosed,
    TagInside,
    NoThought,
    NotThinkingFirst,
}

impl Fault {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::NoSolution => "there is no <solution>",
            Self::SeveralSolutions => "there is more than one <solution>",
            Self::NotClosed => "<solution> is not closed by exactly one </solution>",
            Self::TagInside => "there is another tag inside <solution>",
            Self::NoThought => "there is no <think>...</think>",
            Self::NotThinkingFirst => "what follows an observation does not begin with <think>",
        }
    }
}

/// A turn of the model, without its thoughts.
#[derive(Debug, Default)]
pub(super) struct Turn<'a> {
    /// The first query.
    pub(super) query: Option<&'a str>,
    /// Where each `<solution>` begins, and what it holds where it is closed.
    solutions: Vec<(usize, Option<&'a str>)>,
    /// Ends of solutions behind the last one, which close nothing.
    ends: usize,
    /// Whether it thinks between tags.
    thinks: bool,
}

impl<'a> Turn<'a> {
    /// Reads a turn from its start. A thought ends at the first `</think>`; one that does not end is none, and one whose
    /// beginning is in the prompt is all that stands before a `</think>` that nothing opened.
    pub(super) fn read(text: &'a str) -> Self {
        let mut turn = Self::default();
        let mut at = 0;
        let last_thought = text.rfind(THOUGHT_END);
        let mut unclosed = 0;
        while let Some(found) = ANY.find_at(text, at) {
            let (start, tag) = (found.start(), found.as_str());
            at = found.end();
            let behind = &text[at..];
            match tag {
                THINK => {
                    if last_thought.is_some_and(|last| last >= at)
                        && let Some(length) = behind.find(THOUGHT_END)
                    {
                        turn.thinks = true;
                        at += length + THOUGHT_END.len();
                    }
                }
                THOUGHT_END if !turn.thinks => turn = Self::default(),
                QUERY => {
                    if let Some(query) = enclosed(behind, QUERY_END, &[QUERY, OPEN], &mut unclosed) {
                        turn.query.get_or_insert(query);
                        at += query.len() + QUERY_END.len();
                    }
                }
                OPEN => {
                    let inside = enclosed(behind, CLOSE, &[OPEN], &mut unclosed);
                    at += inside.map_or(0, |inside| inside.len() + CLOSE.len());
                    turn.solutions.push((start, inside));
                    turn.ends = 0;
                }
                CLOSE => turn.ends += 1,
                _ => {}
            }
        }
        turn
    }

    /// Whether it ends the episode.
    pub(super) fn is_final(&self) -> bool {
        self.solutions.iter().any(|(_, inside)| inside.is_some()) || !self.solutions.is_empty() && self.ends > 0
    }
}

/// What stands before the tag that closes it: the first outside SQL's quotes, or the first where all stand in quotes
/// (of which one was not meant as such). Nothing where another of `opening` comes first: then this one is not closed.
///
/// A text in which nothing closes is read to its end, and again for the next tag, so `unclosed` counts those: behind
/// the last one that is allowed, none is closed.
fn enclosed<'a>(text: &'a str, close: &str, opening: &[&str], unclosed: &mut u32) -> Option<&'a str> {
    if *unclosed >= MOST_UNCLOSED {
        return None;
    }
    let outside = quoting::find(text, &[close]).map(|(at, _)| at);
    let inside = outside.or_else(|| text.find(close)).map(|end| &text[..end]);
    let inside = inside.filter(|inside| quoting::find(inside, opening).is_none());
    if outside.is_none() || inside.is_none() {
        *unclosed += 1;
    }
    inside
}

/// A query without the fence that chat models put around code: "```sql", a line for the query, "```".
pub(super) fn unfenced(query: &str) -> &str {
    let query = query.trim_matches(is_space);
    let ticks = query.len() - query.trim_start_matches('`').len();
    if ticks < 3 {
        return query;
    }
    let (open, rest) = query.split_at(ticks);
    let Some(inside) = rest.strip_suffix(open).filter(|inside| !inside.ends_with('`')) else { return query };
    // The language stands behind the fence, on its line.
    let word = inside.find(|letter: char| !letter.is_ascii_alphanumeric()).unwrap_or(inside.len());
    let (language, code) = inside.split_at(word);
    let alone = code.trim_start_matches([' ', '\t', '\r']).starts_with('\n');
    let named = ["sql", "sqlite", "sqlite3"].iter().any(|name| language.eq_ignore_ascii_case(name));
    if alone || named { code.trim_matches(is_space) } else { inside.trim_matches(is_space) }
}

/// The first query that skyrl-gym finds in a turn.
pub(super) fn query_original(text: &str) -> Option<&str> {
    SQL.captures(text).and_then(|found| found.get(1)).map(|found| found.as_str())
}

/// Whether a turn ends skyrl-gym's episode.
pub(super) fn is_final_original(text: &str) -> bool {
    text.contains(OPEN) && text.contains(CLOSE)
}

/// A turn that was ended by a stop text that the engine left out, with what is missing.
pub(super) fn completed(text: &str) -> Option<String> {
    for (open, close) in [(OPEN, CLOSE), (QUERY, QUERY_END)] {
        if let Some(at) = text.rfind(open)
            && !text[at..].contains(close)
        {
            return Some(format!("{text}{close}"));
        }
    }
    None
}

/// White space as Python's `str.strip` sees it.
fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

fn thinks_first(text: &str) -> bool {
    let start: String = text.trim_start_matches(is_space).chars().take(THINK.len()).collect();
    start.to_lowercase().starts_with(THINK)
}

/// The solution of an episode, from the model's turns. Every turn but the first follows an observation.
pub(super) fn solution(turns: &[String]) -> Result<&str, Fault> {
    let read: Vec<Turn<'_>> = turns.iter().map(|turn| Turn::read(turn)).collect();
    let mut solutions = turns.iter().zip(&read).flat_map(|(text, turn)| {
        turn.solutions.iter().map(move |(start, inside)| (&text[..*start], *inside, turn.ends))
    });
    let (before, inside, ends) = solutions.next().ok_or(Fault::NoSolution)?;
    if solutions.next().is_some() {
        return Err(Fault::SeveralSolutions);
    }
    let inside = inside.filter(|_| ends == 0).ok_or(Fault::NotClosed)?;
    if quoting::matches(inside, &TAG) {
        return Err(Fault::TagInside);
    }
    if !read.iter().any(|turn| turn.thinks) {
        return Err(Fault::NoThought);
    }
    let first = OBSERVATION_END.find_iter(before).all(|end| thinks_first(&before[end.end()..]));
    if !first || turns.iter().skip(1).any(|turn| !thinks_first(turn)) {
        return Err(Fault::NotThinkingFirst);
    }
    Ok(unfenced(inside))
}

/// What skyrl-gym takes for the solution of a conversation.
pub(super) fn solution_original(history: &str) -> Option<&str> {
    if history.matches(OPEN).count() != 1 {
        return None;
    }
    let (before, tail) = history.split_once(OPEN)?;
    let inside = inside(tail).ok()?;
    let thought = THOUGHT.is_match(history);
    let first = OBSERVATION_END.find_iter(before).all(|end| thinks_first(&before[end.end()..]));
    (thought && first).then_some(inside)
}

fn inside(tail: &str) -> Result<&str, Fault> {
    if tail.matches(CLOSE).count() != 1 {
        return Err(Fault::NotClosed);
    }
    let (inside, _) = tail.split_once(CLOSE).ok_or(Fault::NotClosed)?;
    if TAG.is_match(inside) { Err(Fault::TagInside) } else { Ok(inside.trim_matches(is_space)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(turns: &[&str]) -> Result<String, Fault> {
        let turns: Vec<String> = turns.iter().map(|turn| (*turn).to_owned()).collect();
        solution(&turns).map(str::to_owned)
    }

    #[test]
    fn the_format_is_checked_on_the_models_own_turns() {
        let think = "<think>so</think>";
        let done = format!("{think}<solution> SELECT 1 </solution>");
        assert_eq!(read(&[&done]), Ok("SELECT 1".to_owned()));
        assert_eq!(read(&[&format!("{think}<sql>SELECT 2</sql>"), &format!(" \n{done}")]), Ok("SELECT 1".to_owned()));
        for (turns, fault) in [
            (vec![think.to_owned()], Fault::NoSolution),
            (vec![format!("{done}<solution>")], Fault::SeveralSolutions),
            (vec![format!("{think}<solution>"), done.clone()], Fault::SeveralSolutions),
            (vec![format!("{think}</solution><solution>SELECT 1")], Fault::NotClosed),
            (vec![format!("{done}</solution>")], Fault::NotClosed),
            (vec![format!("{think}<solution>a <SQL> b</solution>")], Fault::TagInside),
            (vec!["<solution>SELECT 1</solution>".to_owned()], Fault::NoThought),
            (vec![think.to_owned(), format!("so {done}")], Fault::NotThinkingFirst),
            (vec![format!("{think}<observation>1</observation> thus <solution>1</solution>")], Fault::NotThinkingFirst),
        ] {
            let turns: Vec<&str> = turns.iter().map(String::as_str).collect();
            assert_eq!(read(&turns), Err(fault), "{turns:?}");
        }
    }

    #[test]
    fn a_solution_in_a_thought_is_a_thought() {
        for turn in [
            "<think>perhaps <solution>SELECT 2</solution></think><solution>SELECT 1</solution>",
            "<think>perhaps <solution></think> now <solution>SELECT 1</solution>",
            "<think>a</think><think><solution>SELECT 2</solution></think><solution>SELECT 1</solution>",
            // The thought begins in the prompt; another one makes the format whole.
            "perhaps <solution>SELECT 2</solution></think><think>so</think><solution>SELECT 1</solution>",
            "perhaps <solution> or </think><think>so</think><solution>SELECT 1</solution>",
        ] {
            assert_eq!(read(&[turn]), Ok("SELECT 1".to_owned()), "{turn}");
            assert!(Turn::read(turn).is_final());
        }
        for turn in ["<think><solution>SELECT 1</solution></think>", "<solution>SELECT 1</solution></think> hm"] {
            assert_eq!(read(&[turn]), Err(Fault::NoSolution), "{turn}");
            assert!(!Turn::read(turn).is_final(), "{turn}");
        }
        assert_eq!(Turn::read("<think><sql>SELECT 2</sql></think><sql>SELECT 1</sql>").query, Some("SELECT 1"));
    }

    #[test]
    fn tags_in_sqls_quotes_are_text() {
        for sql in [
            "SELECT '</think>'",
            "SELECT replace(a, '<think>', '</think>') FROM \"<sql>\"",
            "SELECT 'it''s </solution>' -- don't",
            "SELECT '<solution>' /* it's */",
            "SELECT '</observation>'",
        ] {
            let turn = format!("<think>so</think><solution>{sql}</solution>");
            assert_eq!(read(&[&turn]), Ok(sql.to_owned()));
            let turn = format!("<think>so</think><sql>{sql}</sql>");
            assert_eq!(Turn::read(&turn).query, Some(sql));
            assert!(!Turn::read(&turn).is_final(), "{turn}");
        }
        // A quote that is not closed hides nothing.
        let turn = "<think>so</think><solution>SELECT 'a</solution> is not b' what I mean";
        assert_eq!(read(&[turn]), Ok("SELECT 'a".to_owned()));
        assert_eq!(read(&["<think>a</think><solution>SELECT 'a <sql> b</solution>"]), Err(Fault::TagInside));
    }

    #[test]
    fn tags_that_nothing_closes_are_read_in_one_pass() {
        // A reading that starts again at every tag would take minutes for each of these.
        let many = 300_000;
        let think = "<think>a</think>";
        for (opened, fault) in [
            (format!("{think}{}SELECT 1</solution>", OPEN.repeat(many)), Fault::SeveralSolutions),
            (format!("{think}<solution>{}", "'</solution>".repeat(many)), Fault::NotClosed),
            (format!("{think}{}", "<sql>'</sql>'".repeat(many)), Fault::NoSolution),
            (format!("{think}{}<solution>SELECT 1", THINK.repeat(many)), Fault::NotClosed),
            (format!("{}<solution>SELECT 1</solution>", CLOSE.repeat(many)), Fault::NoThought),
        ] {
            assert_eq!(read(&[&opened]), Err(fault), "{}", &opened[..40]);
        }
        let turn = format!("{}{think}<solution>SELECT 1</solution>", "</think>".repeat(many));
        assert_eq!(read(&[&turn]), Ok("SELECT 1".to_owned()));
    }

    #[test]
    fn a_fence_around_a_query_is_no_part_of_it() {
        for (fenced, query) in [
            ("```sql\nSELECT 1\n```", "SELECT 1"),
            (" \n```SQL\r\nSELECT 1;\n\n``` \n", "SELECT 1;"),
            ("```\nSELECT 1\n```", "SELECT 1"),
            ("````sqlite\nSELECT '```'\n````", "SELECT '```'"),
            ("```sql SELECT 1```", "SELECT 1"),
            ("```SELECT 1```", "SELECT 1"),
            ("SELECT 1", "SELECT 1"),
            ("`a`", "`a`"),
            ("```sql\nSELECT 1", "```sql\nSELECT 1"),
            ("```", "```"),
        ] {
            assert_eq!(unfenced(fenced), query, "{fenced:?}");
        }
        let turn = "<think>so</think><solution>\n```sql\nSELECT '</think>'\n```\n</solution>";
        assert_eq!(read(&[turn]), Ok("SELECT '</think>'".to_owned()));
    }

    #[test]
    fn a_stop_text_that_was_left_out_is_put_back() {
        assert_eq!(completed("<sql>SELECT 1").as_deref(), Some("<sql>SELECT 1</sql>"));
        assert_eq!(completed("a <solution>SELECT 1").as_deref(), Some("a <solution>SELECT 1</solution>"));
        assert_eq!(completed("<sql>SELECT 1</sql>"), None);
        assert_eq!(completed("nothing"), None);
    }
}
