//! `knights_knaves`: who tells the truth and who lies, by what they say. The solution is unique: all 2^n are tried.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Draft, Generator, Level, Score};
use crate::answer::Answer;
use crate::draw::Draw;

pub(crate) struct KnightsKnaves;

/// What is asked.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Facts {
    names: Vec<String>,
    /// What each person says: `["telling-truth", i]`, `["lying", i]`, `["not", s]`, `["and", s, ...]`,
    /// `["or", s, ...]`, `["->", s, s]`, `["<=>", s, s]`.
    statements: Vec<Value>,
    /// What one who tells the truth is called, and one who lies.
    roles: [String; 2],
}

const MAX_PEOPLE: usize = 12;
const MAX_DEPTH: usize = 16;

const NAMES: [&str; 16] = [
    "Ada", "Boris", "Chiara", "Dmitri", "Esra", "Farid", "Greta", "Hugo", "Ines", "Jarek", "Kofi", "Lotte", "Milan",
    "Noor", "Otis", "Petra",
];

const ROLES: [[&str; 2]; 3] = [["knight", "knave"], ["scout", "trickster"], ["sage", "rogue"]];

/// Whether a statement is true where bit `i` of `truthful` says whether person `i` tells the truth; none where it is
/// no statement about so many people.
fn holds(statement: &Value, truthful: u32, people: usize, depth: usize) -> Option<bool> {
    if depth > MAX_DEPTH {
        return None;
    }
    let (sign, parts) = statement.as_array()?.split_first()?;
    let person = || {
        let index = usize::try_from(parts.first()?.as_u64()?).ok()?;
        (parts.len() == 1 && index < people).then_some(truthful >> index & 1 == 1)
    };
    let all = || parts.iter().map(|part| holds(part, truthful, people, depth + 1)).collect::<Option<Vec<bool>>>();
    match sign.as_str()? {
        "telling-truth" => person(),
        "lying" => person().map(|truthful| !truthful),
        "not" => match all()?[..] {
            [inner] => Some(!inner),
            _ => None,
        },
        "and" => all().map(|parts| parts.into_iter().all(|part| part)),
        "or" => all().map(|parts| parts.into_iter().any(|part| part)),
        "->" => match all()?[..] {
            [left, right] => Some(!left || right),
            _ => None,
        },
        "<=>" => match all()?[..] {
            [left, right] => Some(left == right),
            _ => None,
        },
        _ => None,
    }
}

/// Every solution: who tells the truth says something true, who lies something false.
fn solutions(statements: &[Value]) -> Result<Vec<u32>, String> {
    let people = statements.len();
    if people == 0 || people > MAX_PEOPLE {
        return Err(format!("`statements` must be of 1 to {MAX_PEOPLE} people, got {people}"));
    }
    let mut solutions = Vec::new();
    for truthful in 0..1_u32 << people {
        let mut fits = true;
        for (person, statement) in statements.iter().enumerate() {
            let holds = holds(statement, truthful, people, 0)
                .ok_or_else(|| format!("`statements[{person}]` is no statement: {statement}"))?;
            fits &= holds == (truthful >> person & 1 == 1);
        }
        if fits {
            solutions.push(truthful);
        }
    }
    Ok(solutions)
}

fn statement(speaker: usize, people: usize, depth: usize, draw: &mut Draw) -> Value {
    if depth <= 1 || draw.below(5) == 0 {
        // Nobody says of themselves that they lie, and few that they do not.
        let other = (speaker + 1 + draw.below(people - 1)) % people;
        return json!([if draw.below(2) == 0 { "telling-truth" } else { "lying" }, other]);
    }
    let (mut left, mut right) = (Value::Null, Value::Null);
    for _ in 0..30 {
        let person = if draw.below(4) == 0 { speaker } else { (speaker + 1 + draw.below(people - 1)) % people };
        left = match draw.below(2) {
            0 => json!(["telling-truth", person]),
            _ => statement(speaker, people, depth - 1, draw),
        };
        right = statement(speaker, people, depth - 1, draw);
        // Two plain statements about one person are one statement, or none.
        let about = |part: &Value| part[1].as_u64();
        if left != right && (about(&left).is_none() || about(&left) != about(&right)) {
            break;
        }
    }
    match draw.below(6) {
        0 => json!(["not", ["and", left, right]]),
        1 | 2 => json!(["and", left, right]),
        3 => json!(["or", left, right]),
        4 => json!(["->", left, right]),
        _ => json!(["<=>", left, right]),
    }
}

/// A statement in words.
fn words(statement: &Value, names: &[String], roles: &[String; 2], nested: bool) -> String {
    let part = |index: usize| words(&statement[index], names, roles, true);
    let person = || statement[1].as_u64().and_then(|index| names.get(index as usize)).map_or("", String::as_str);
    let text = match statement[0].as_str().unwrap_or_default() {
        "telling-truth" => return format!("{} is a {}", person(), roles[0]),
        "lying" => return format!("{} is a {}", person(), roles[1]),
        "not" => format!("it is not true that {}", part(1)),
        "and" => format!("{} and {}", part(1), part(2)),
        "or" => format!("{} or {}", part(1), part(2)),
        "->" => format!("if {} then {}", part(1), part(2)),
        _ => format!("{} if and only if {}", part(1), part(2)),
    };
    if nested { format!("({text})") } else { text }
}

impl Generator for KnightsKnaves {
    type Facts = Facts;

    fn generate(level: Level, draw: &mut Draw) -> Draft<Facts> {
        let people = level.of([2, 3, 4, 5, 7]);
        // Two people need more than a plain statement each: those alone always leave two solutions or none.
        let depth = level.of([2, 2, 2, 3, 3]);
        let names: Vec<String> = {
            let mut chosen = draw.distinct(people, NAMES.len());
            draw.shuffle(&mut chosen);
            chosen.into_iter().map(|index| NAMES[index].to_owned()).collect()
        };
        let roles = draw.pick(&ROLES).map(str::to_owned);
        let unique = |statements: &[Value]| match solutions(statements).as_deref() {
            Ok([only]) => Some(*only),
            _ => None,
        };
        let mut found = None;
        for _ in 0..200 {
            let statements: Vec<Value> = (0..people).map(|speaker| statement(speaker, people, depth, draw)).collect();
            if let Some(truthful) = unique(&statements) {
                found = Some((statements, truthful));
                break;
            }
        }
        let (statements, truthful) = found.unwrap_or_else(|| {
            // "I tell the truth if and only if X does" is said exactly where X does: each settles the next one.
            let truthful = draw.below(1 << people) as u32;
            let of = |next: usize| if truthful >> next & 1 == 1 { "telling-truth" } else { "lying" };
            let says = |speaker: usize| {
                let next = (speaker + 1) % people;
                json!(["<=>", ["telling-truth", speaker], [of(next), next]])
            };
            ((0..people).map(says).collect(), truthful)
        });
        let said: String = names
            .iter()
            .zip(&statements)
            .map(|(name, statement)| format!("{name} says: \"{}.\"\n", words(statement, &names, &roles, false)))
            .collect();
        let role = |person: usize| if truthful >> person & 1 == 1 { &roles[0] } else { &roles[1] };
        let solution: Vec<String> =
            names.iter().enumerate().map(|(person, name)| format!("{name} is a {}", role(person))).collect();
        let form: Vec<String> = names.iter().map(|name| format!("{name} is a ...")).collect();
        Draft {
            question: format!(
                "On an island every inhabitant is either a {0}, who says only what is true, or a {1}, who says only \
                 what is false. You meet {2}.\n{said}Who is a {0} and who is a {1}? Answer in the form: {3}",
                roles[0],
                roles[1],
                names.join(", "),
                form.join(", ")
            ),
            answer: json!(solution.join(", ")),
            facts: Facts { names, statements, roles },
        }
    }

    fn score(facts: &Facts, answer: Answer<'_>) -> Result<Score, String> {
        let solutions = solutions(&facts.statements)?;
        if facts.names.len() != facts.statements.len()
            || facts.names.iter().collect::<BTreeSet<_>>().len() != facts.names.len()
        {
            return Err("`names` must be different ones, as many as `statements`".to_owned());
        }
        let joined = answer.lines().collect::<Vec<_>>().join(" ");
        let Some(given) = answer.line().and_then(|line| read(line, facts)).or_else(|| read(&joined, facts)) else {
            return Ok(Score::WRONG);
        };
        let people = facts.names.len();
        let best = solutions.iter().map(|solution| people - (solution ^ given).count_ones() as usize).max();
        Ok(best.map_or(Score::WRONG, |hits| Score::share(hits, people)))
    }
}

/// Reads `Ada is a knight, Boris is a knave`: everybody once, and nothing else.
fn read(text: &str, facts: &Facts) -> Option<u32> {
    let mut words = text.split(|letter: char| !letter.is_alphanumeric()).filter(|word| {
        !word.is_empty() && !["is", "a", "an", "the", "and"].iter().any(|filler| word.eq_ignore_ascii_case(filler))
    });
    let same = |left: &str, right: &str| left.to_lowercase() == right.to_lowercase();
    let (mut seen, mut truthful) = (0_u32, 0_u32);
    while let Some(name) = words.next() {
        let bit = 1_u32 << facts.names.iter().position(|known| same(known, name))?;
        let role = words.next()?;
        if seen & bit != 0 {
            return None;
        }
        seen |= bit;
        if same(role, &facts.roles[0]) {
            truthful |= bit;
        } else if !same(role, &facts.roles[1]) {
            return None;
        }
    }
    (seen.count_ones() as usize == facts.names.len()).then_some(truthful)
}
