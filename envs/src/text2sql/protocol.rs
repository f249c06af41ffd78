//! The tags in what the model says: `<think>`, `<sql>`, `<solution>`.
//!
//! [`solution`] reads the model's own turns; [`solution_original`] is skyrl-gym's reading of the whole conversation,
//! observations included.

use std::sync::LazyLock;

use regex::Regex;

/// Added to a prompt that does not speak of `<solution>` itself.
pub(super) const INSTRUCTION: &str = "Answer with one SQLite query. Begin every turn with your reasoning between <think> \
     and </think>. Then either look at the database: write one query between <sql> and </sql>, and you will see its result \
     between <observation> and </observation>. Or, when you are sure, end with the final query between <solution> and \
     </solution>.";

const OPEN: &str = "<solution>";
const CLOSE: &str = "</solution>";
const THINK: &str = "<think>";

fn pattern(pattern: &str) -> Regex {
    Regex::new(pattern).expect("a pattern of ours")
}

static SQL: LazyLock<Regex> = LazyLock::new(|| pattern("(?s)<sql>(.*?)</sql>"));
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

/// The first query that a turn asks for.
pub(super) fn query(text: &str) -> Option<&str> {
    SQL.captures(text).and_then(|found| found.get(1)).map(|found| found.as_str())
}

/// Whether a turn ends the episode.
pub(super) fn is_final(text: &str) -> bool {
    text.contains(OPEN) && text.contains(CLOSE)
}

/// A turn that was ended by a stop text that the engine left out, with what is missing.
pub(super) fn completed(text: &str) -> Option<String> {
    for (open, close) in [(OPEN, CLOSE), ("<sql>", "</sql>")] {
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
    let mut found = None;
    for turn in turns {
        match (turn.matches(OPEN).count(), found) {
            (0, _) => {}
            (1, None) => found = turn.split_once(OPEN),
            _ => return Err(Fault::SeveralSolutions),
        }
    }
    let (before, tail) = found.ok_or(Fault::NoSolution)?;
    let inside = inside(tail)?;
    if !turns.iter().any(|turn| THOUGHT.is_match(turn)) {
        return Err(Fault::NoThought);
    }
    let first = OBSERVATION_END.find_iter(before).all(|end| thinks_first(&before[end.end()..]));
    if !first || turns.iter().skip(1).any(|turn| !thinks_first(turn)) {
        return Err(Fault::NotThinkingFirst);
    }
    Ok(inside)
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
    fn a_stop_text_that_was_left_out_is_put_back() {
        assert_eq!(completed("<sql>SELECT 1").as_deref(), Some("<sql>SELECT 1</sql>"));
        assert_eq!(completed("a <solution>SELECT 1").as_deref(), Some("a <solution>SELECT 1</solution>"));
        assert_eq!(completed("<sql>SELECT 1</sql>"), None);
        assert_eq!(completed("nothing"), None);
    }
}
