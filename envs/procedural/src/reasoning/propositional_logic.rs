//! `propositional_logic`: which statement follows from premises, an assignment that makes all statements true, or how
//! many assignments do.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::formula::{self, Formula, MAX_VARIABLES, NAMES};
use super::{Draft, Generator, Level, Score};
use crate::answer::{Answer, integer};
use crate::draw::Draw;

pub(crate) struct PropositionalLogic;

/// What is asked.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub(crate) enum Facts {
    /// Which option follows from the premises.
    Follows { variables: Vec<char>, premises: Vec<String>, options: Vec<String> },
    /// An assignment that makes all statements true.
    Assignment { variables: Vec<char>, statements: Vec<String> },
    /// How many assignments make all statements true.
    Count { variables: Vec<char>, statements: Vec<String> },
}

/// The assignments under which every formula is true.
fn models(formulas: &[String], variables: &[char]) -> Result<u64, String> {
    if variables.is_empty() || variables.len() > MAX_VARIABLES {
        return Err(format!("`variables` must be 1 to {MAX_VARIABLES}, got {}", variables.len()));
    }
    formulas.iter().try_fold(formula::assignments(variables.len()), |models, text| {
        formula::table(text, variables)
            .map(|table| models & table)
            .ok_or_else(|| format!("`{text}` is no formula over {}", variables.iter().collect::<String>()))
    })
}

/// Statements that are not all true everywhere, and are all true somewhere.
fn statements(variables: usize, level: Level, draw: &mut Draw) -> (Vec<String>, u64) {
    let count = level.of([2, 3, 3, 4, 5]);
    let depth = level.of([2, 2, 3, 3, 3]);
    let all = formula::assignments(variables);
    let (mut texts, mut models) = (Vec::new(), all);
    while texts.len() < count {
        let Formula { text, table } = formula::random(variables, depth, draw);
        // Each statement takes something away, where it can, and leaves something.
        let left = models & table;
        let takes = left != models || models.is_power_of_two();
        if left != 0 && takes && table & all != all && !texts.contains(&text) {
            texts.push(text);
            models = left;
        }
    }
    (texts, models)
}

/// A premise or a variable, or a premise or a negated variable: it follows.
fn weakened(premises: &[String], variables: usize, draw: &mut Draw) -> Formula {
    let (premise, literal) = (draw.pick(premises), formula::random(variables, 1, draw));
    let table = formula::table(premise, &NAMES[..variables]).unwrap_or_default();
    Formula { text: format!("({premise} ∨ {})", literal.text), table: table | literal.table }
}

fn listed(texts: &[String]) -> String {
    texts.iter().map(|text| format!("- {text}\n")).collect()
}

const LEGEND: &str = "(¬ is not, ∧ is and, ∨ is or, → is if-then, ↔ is if and only if.)";

fn follows(variables: usize, level: Level, draw: &mut Draw) -> Draft<Facts> {
    let (premises, models) = statements(variables, level, draw);
    let all = formula::assignments(variables);
    let mut options = Vec::new();
    let mut right = None;
    let mut tries = 0;
    while options.len() < 3 || right.is_none() {
        tries += 1;
        // Few short formulas follow from weak premises; one premise or something else always does.
        let Formula { text, table } = if tries > 200 && right.is_none() {
            weakened(&premises, variables, draw)
        } else {
            formula::random(variables, 2, draw)
        };
        let entailed = models & !table == 0;
        if premises.contains(&text) || options.contains(&text) || table & all == all {
            continue;
        }
        if !entailed && options.len() < 3 && table & all != 0 {
            options.push(text);
        } else if entailed && right.is_none() {
            right = Some(text);
        }
    }
    let place = draw.below(4);
    options.insert(place, right.unwrap_or_default());
    let lettered: String = options.iter().zip('A'..).map(|(option, letter)| format!("{letter}. {option}\n")).collect();
    Draft {
        question: format!(
            "These statements are true:\n{}Which of the following must then be true too?\n{lettered}Exactly one must. \
             Answer with its letter. {LEGEND}",
            listed(&premises)
        ),
        answer: json!(char::from(b'A' + place as u8)),
        facts: Facts::Follows { variables: NAMES[..variables].to_vec(), premises, options },
    }
}

fn assignment_text(variables: &[char], assignment: u32) -> String {
    let values = variables.iter().enumerate().map(|(index, name)| format!("{name}={}", assignment >> index & 1 == 1));
    values.collect::<Vec<_>>().join(", ")
}

/// Reads `P=true, Q=false` (also `P is T`, `P: 1`): bit `v` is the value of variable `v`. Every variable must be there
/// once, and nothing else.
fn read_assignment(text: &str, variables: &[char]) -> Option<u32> {
    let mut words = text
        .split(|letter: char| !letter.is_alphanumeric())
        .filter(|word| !word.is_empty() && !word.eq_ignore_ascii_case("is") && !word.eq_ignore_ascii_case("and"));
    let (mut seen, mut values) = (0_u32, 0_u32);
    while let Some(name) = words.next() {
        let mut letters = name.chars();
        let (Some(letter), None) = (letters.next(), letters.next()) else { return None };
        let bit = 1 << variables.iter().position(|variable| *variable == letter)?;
        if seen & bit != 0 {
            return None;
        }
        seen |= bit;
        match words.next()?.to_ascii_lowercase().as_str() {
            "true" | "t" | "1" => values |= bit,
            "false" | "f" | "0" => {}
            _ => return None,
        }
    }
    (seen.count_ones() as usize == variables.len()).then_some(values)
}

impl Generator for PropositionalLogic {
    type Facts = Facts;

    fn generate(level: Level, draw: &mut Draw) -> Draft<Facts> {
        let variables = level.of([2, 3, 4, 5, 6]);
        let names = NAMES[..variables].to_vec();
        match draw.below(3) {
            0 => follows(variables, level, draw),
            1 => {
                let (statements, models) = statements(variables, level, draw);
                let example = assignment_text(&names, models.trailing_zeros());
                let shown: Vec<String> = names.iter().map(|name| format!("{name}=...")).collect();
                Draft {
                    question: format!(
                        "Find truth values under which all of these statements are true:\n{}Answer in the form {}, \
                         with true or false in the places of the dots. {LEGEND}",
                        listed(&statements),
                        shown.join(", ")
                    ),
                    answer: json!(example),
                    facts: Facts::Assignment { variables: names, statements },
                }
            }
            _ => {
                let (statements, models) = statements(variables, level, draw);
                let listed_names: Vec<String> = names.iter().map(char::to_string).collect();
                Draft {
                    question: format!(
                        "Of the {} ways to give {} a truth value each, how many make all of these statements \
                         true?\n{}{LEGEND}",
                        1 << variables,
                        listed_names.join(", "),
                        listed(&statements)
                    ),
                    answer: json!(models.count_ones()),
                    facts: Facts::Count { variables: names, statements },
                }
            }
        }
    }

    fn score(facts: &Facts, answer: Answer<'_>) -> Result<Score, String> {
        let right = match facts {
            Facts::Follows { variables, premises, options } => {
                let premises = models(premises, variables)?;
                let all = formula::assignments(variables.len());
                let tables = options
                    .iter()
                    .map(|option| models(std::slice::from_ref(option), variables))
                    .collect::<Result<Vec<_>, _>>()?;
                let follows = |index: usize| tables.get(index).is_some_and(|table| premises & !table & all == 0);
                answer.line().and_then(|line| chosen(line, options)).is_some_and(follows)
            }
            Facts::Assignment { variables, statements } => {
                let models = models(statements, variables)?;
                let joined = answer.lines().collect::<Vec<_>>().join(" ");
                let given = answer.line().and_then(|line| read_assignment(line, variables));
                // One variable a line is as good as one line.
                let given = given.or_else(|| read_assignment(&joined, variables));
                given.is_some_and(|assignment| models >> assignment & 1 == 1)
            }
            Facts::Count { variables, statements } => {
                let count = i64::from(models(statements, variables)?.count_ones());
                answer.line().and_then(integer) == Some(count)
            }
        };
        Ok(Score::of(right))
    }
}

/// The option that a line names by its letter, with or without parentheses and with or without its text.
fn chosen(line: &str, options: &[String]) -> Option<usize> {
    let line = line.trim().trim_start_matches('(');
    let mut letters = line.chars();
    let index = (letters.next()?.to_ascii_uppercase() as usize).checked_sub('A' as usize)?;
    let option = options.get(index)?;
    let rest = letters.as_str().trim_start_matches([')', '.', ':', ' ']).trim();
    (rest.is_empty() || rest == option).then_some(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assignments_are_read_in_many_forms() {
        let read = |text| read_assignment(text, &['P', 'Q']);
        for text in ["P=true, Q=false", "P: T; Q: F", "P is true and Q is False", "{\"P\": 1, \"Q\": 0}", "Q=0 P=1"] {
            assert_eq!(read(text), Some(1), "{text}");
        }
        for text in ["", "P=true", "P=true, P=false, Q=true", "P=true, Q=maybe", "P=true, Q=false, R=true", "P Q"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn an_option_is_named_by_its_letter() {
        let options = ["P".to_owned(), "(P ∧ Q)".to_owned()];
        for text in ["B", "b", "(B)", "B.", "B) (P ∧ Q)"] {
            assert_eq!(chosen(text, &options), Some(1), "{text}");
        }
        for text in ["C", "", "A or B", "B (P ∨ Q)", "1"] {
            assert_eq!(chosen(text, &options), None, "{text}");
        }
    }
}
