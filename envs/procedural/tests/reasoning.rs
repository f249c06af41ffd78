//! Every family: its own answers are right, others are wrong, levels grow, the bytes stay what they are.

use espalier_procedural::draw::Draw;
use espalier_procedural::reasoning::{Family, Level, Problem, Score};
use proptest::prelude::*;
use serde_json::{Value, json};

fn problem(family: Family, level: Level, index: u64) -> Problem {
    family.generate(level, &mut Draw::new(1, index))
}

fn score(problem: &Problem, response: &str) -> Score {
    problem.score(response).unwrap_or_else(|error| panic!("{error}: {}", problem.question))
}

/// Answers that are wrong for sure, each near the right one.
fn wrong_answers(problem: &Problem) -> Vec<String> {
    let text = problem.answer_text();
    let mut wrong = vec!["x".to_owned(), "999999999999".to_owned(), format!("{text} or so"), format!("{text} {text}")];
    let swapped = |from: &str, to: &str| text.replacen(from, to, 1);
    match problem.family {
        Family::ChainSum | Family::BasicArithmetic | Family::LetterCounting => {
            let value = problem.answer.as_i64().unwrap();
            wrong.extend([format!("{}", value + 1), format!("{}", value - 1), format!("{value}.5")]);
        }
        Family::SpellBackward => wrong.extend([format!("{text}a"), text[1..].to_owned()]),
        Family::NumberSorting => {
            let items = problem.answer.as_array().unwrap();
            let reversed: Vec<&Value> = items.iter().rev().collect();
            if reversed.iter().zip(items).any(|(left, right)| *left != right) {
                wrong.push(json!(reversed).to_string());
            }
            wrong.push(json!(items[1..]).to_string());
            wrong.push(text.replacen('[', "[1000, ", 1));
        }
        // Another digit in the same place is another number.
        Family::BaseConversion => wrong.extend([format!("{text}0"), format!("-{text}1"), format!("1{text}")]),
        Family::PropositionalLogic => {
            match problem.facts["ask"].as_str().unwrap() {
                "follows" => wrong
                    .extend(["A", "B", "C", "D", "E"].iter().filter(|other| **other != text).map(ToString::to_string)),
                "assignment" => wrong
                    .extend([text.replacen("P=", "Q=", 1), text.replace("true", "maybe").replace("false", "maybe")]),
                _ => wrong.push((problem.answer.as_i64().unwrap() + 1).to_string()),
            }
        }
        Family::KnightsKnaves => {
            for role in problem.facts["roles"].as_array().unwrap() {
                let role = role.as_str().unwrap();
                let other =
                    problem.facts["roles"].as_array().unwrap().iter().find(|other| other.as_str() != Some(role));
                let changed = swapped(role, other.unwrap().as_str().unwrap());
                if changed != text {
                    wrong.push(changed);
                }
            }
            wrong.push(text.split(", ").skip(1).collect::<Vec<_>>().join(", "));
        }
        Family::Countdown => {
            wrong.extend([format!("{text} + 1"), format!("({text}) * 1"), format!("{}", problem.facts["target"])]);
        }
        Family::Maze => match problem.facts["ask"].as_str().unwrap() {
            "steps" => wrong.push((problem.answer.as_i64().unwrap() + 1).to_string()),
            _ => wrong.extend([text[1..].to_owned(), format!("{text}{}", "U".repeat(40))]),
        },
        Family::MiniSudoku => wrong.extend([swapped("1", "2"), swapped("4", "3"), text[2..].to_owned()]),
        Family::CalendarArithmetic => {
            if let Some(number) = problem.answer.as_i64() {
                wrong.push((number + 1).to_string());
            }
            wrong.extend(
                ["Monday", "Friday", "2024-02-30", "yes", "no"]
                    .iter()
                    .filter(|other| **other != text)
                    .map(ToString::to_string),
            );
        }
    }
    wrong
}

#[test]
fn a_thousand_problems_of_each_family_are_graded_right() {
    for family in Family::ALL {
        for index in 0..1000 {
            let level = Level::ALL[index as usize % 5];
            let problem = problem(family, level, index);
            let text = problem.answer_text();
            let right = Score { correct: true, credit: 1.0 };
            assert_eq!(score(&problem, &text), right, "{}\n{text}", problem.question);
            assert_eq!(score(&problem, &format!("Let me see: 1, 2.\n\nAnswer: {text}")), right, "{}", problem.question);
            assert_eq!(
                score(&problem, &format!("**Answer:**\n```\n{text}\n```\nDone!")),
                right,
                "{}",
                problem.question
            );
            for wrong in wrong_answers(&problem) {
                let score = score(&problem, &wrong);
                assert!(!score.correct && score.credit < 1.0, "{}\n{text}\n{wrong}", problem.question);
                assert!((0.0..1.0).contains(&score.credit));
            }
            for nothing in ["", "Answer:", "I do not know.\nSorry."] {
                assert_eq!(score(&problem, nothing), Score::WRONG, "{nothing}");
            }
        }
    }
}

#[test]
fn facts_survive_json() {
    for family in Family::ALL {
        for index in 0..50 {
            let problem = problem(family, Level::ALL[index as usize % 5], index);
            let saved: Value = serde_json::from_str(&problem.facts.to_string()).unwrap();
            assert_eq!(family.score(&saved, &problem.answer_text()), Ok(Score { correct: true, credit: 1.0 }));
        }
    }
}

#[test]
fn facts_of_no_problem_are_an_error() {
    for family in Family::ALL {
        for facts in [json!(null), json!({}), json!([1]), json!({"expression": 1})] {
            let error = family.score(&facts, "1").unwrap_err().to_string();
            assert!(error.starts_with(&format!("the facts are none of `{}`: ", family.name())), "{error}");
        }
    }
    for (family, facts) in [
        (Family::ChainSum, json!({"expression": "1 / 0"})),
        (Family::BaseConversion, json!({"number": "zz", "from": 10, "to": 2})),
        (Family::BaseConversion, json!({"number": "1", "from": 10, "to": 99})),
        (Family::SpellBackward, json!({"word": ""})),
        (Family::NumberSorting, json!({"numbers": ["a"], "direction": "ascending"})),
        (Family::KnightsKnaves, json!({"names": ["A"], "statements": [["says", 0]], "roles": ["a", "b"]})),
        (Family::KnightsKnaves, json!({"names": ["A"], "statements": [["lying", 7]], "roles": ["a", "b"]})),
        (Family::Countdown, json!({"numbers": [], "target": 1})),
        (Family::Countdown, json!({"numbers": [1_000_000_000], "target": 1})),
        (Family::Maze, json!({"grid": ["S#G"], "ask": "steps"})),
        (Family::Maze, json!({"grid": ["SS"], "ask": "steps"})),
        (Family::MiniSudoku, json!({"puzzle": [[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]})),
        (Family::PropositionalLogic, json!({"ask": "count", "variables": ["P"], "statements": ["P ∧"]})),
        (Family::CalendarArithmetic, json!({"ask": "weekday", "date": "2023-02-29", "days": 0})),
    ] {
        assert!(family.score(&facts, "1").is_err(), "{facts}");
    }
}

/// The mean length of what has to be worked through grows with the level.
#[test]
fn levels_grow() {
    for family in Family::ALL {
        let work = |level: Level| -> f64 {
            let size = |index: u64| {
                let problem = problem(family, level, index);
                match family {
                    Family::MiniSudoku => problem.question.matches('_').count(),
                    // What grows is the spans; the sentences differ by what is asked.
                    Family::CalendarArithmetic => problem.facts["days"].as_i64().unwrap_or(0).unsigned_abs() as usize,
                    // Without this the even levels, which have as many numbers, look alike.
                    Family::Countdown => problem.facts["target"].as_i64().unwrap() as usize,
                    _ => problem.facts.to_string().len(),
                }
            };
            (0..400).map(|index| size(index) as f64).sum()
        };
        let sizes: Vec<f64> = Level::ALL.into_iter().map(work).collect();
        assert!(sizes.windows(2).all(|pair| pair[0] < pair[1]), "{family:?}: {sizes:?}");
    }
}

/// FNV-1a, 64 bits.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A change of these is a change of every data set that was ever made with the seed.
#[test]
fn a_seed_gives_the_same_bytes() {
    let golden: [(Family, u64); 12] = GOLDEN;
    let made: Vec<(Family, u64)> = Family::ALL
        .into_iter()
        .map(|family| {
            let texts: String = (0..50)
                .map(|index| {
                    let problem = problem(family, Level::ALL[index as usize % 5], index);
                    format!("{}\n{}\n{}\n", problem.question, problem.answer, problem.facts)
                })
                .collect();
            (family, hash(&texts))
        })
        .collect();
    assert_eq!(made, golden);
}

const GOLDEN: [(Family, u64); 12] = [
    (Family::ChainSum, 16833648645225720988),
    (Family::BasicArithmetic, 8721116261177203437),
    (Family::LetterCounting, 11331513779255082100),
    (Family::SpellBackward, 9191560431012184966),
    (Family::NumberSorting, 11554382128937780933),
    (Family::BaseConversion, 8998308144672245602),
    (Family::PropositionalLogic, 14250064110368029222),
    (Family::KnightsKnaves, 499606968565029238),
    (Family::Countdown, 9684573045678377369),
    (Family::Maze, 8227825685628063946),
    (Family::MiniSudoku, 13879560071592705268),
    (Family::CalendarArithmetic, 16706396078099155891),
];

/// Every assignment is tried: those that the verifier takes are those that make each statement true.
#[test]
fn every_assignment_that_fits_is_right() {
    let fits = |text: &str, values: &[(char, bool)]| -> bool {
        // Substitution and rewriting, unlike the truth tables of the verifier.
        let mut text: String = text.chars().filter(|letter| *letter != ' ').collect();
        for (name, value) in values {
            text = text.replace(*name, if *value { "1" } else { "0" });
        }
        while text.len() > 1 {
            let before = text.clone();
            text = text.replace("¬0", "1").replace("¬1", "0");
            for (left, sign, right, value) in ['0', '1']
                .into_iter()
                .flat_map(|left| ['0', '1'].map(move |right| (left, right)))
                .flat_map(|(left, right)| {
                    let (a, b) = (left == '1', right == '1');
                    [('∧', a && b), ('∨', a || b), ('→', !a || b), ('↔', a == b)]
                        .map(move |(sign, value)| (left, sign, right, value))
                })
            {
                text = text.replace(&format!("({left}{sign}{right})"), if value { "1" } else { "0" });
            }
            assert_ne!(before, text, "no formula");
        }
        text == "1"
    };
    let mut seen = 0;
    for index in 0..60 {
        let problem = problem(Family::PropositionalLogic, Level::ALL[index as usize % 3], index);
        if problem.facts["ask"] != "assignment" {
            continue;
        }
        seen += 1;
        let names: Vec<char> = problem.facts["variables"]
            .as_array()
            .unwrap()
            .iter()
            .map(|name| name.as_str().unwrap().chars().next().unwrap())
            .collect();
        for bits in 0..1_u32 << names.len() {
            let values: Vec<(char, bool)> =
                names.iter().enumerate().map(|(index, name)| (*name, bits >> index & 1 == 1)).collect();
            let truth = problem.facts["statements"]
                .as_array()
                .unwrap()
                .iter()
                .all(|text| fits(text.as_str().unwrap(), &values));
            let answer: Vec<String> = values.iter().map(|(name, value)| format!("{name}={value}")).collect();
            assert_eq!(score(&problem, &answer.join(", ")).correct, truth, "{}\n{answer:?}", problem.question);
        }
    }
    assert!(seen > 10);
}

/// Everybody's roles are tried: one assignment is right.
#[test]
fn one_set_of_roles_is_right() {
    for index in 0..200 {
        let problem = problem(Family::KnightsKnaves, Level::ALL[index as usize % 4], index);
        let names: Vec<&str> =
            problem.facts["names"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
        let roles = &problem.facts["roles"];
        let right = (0..1_u32 << names.len())
            .filter(|bits| {
                let said: Vec<String> = names
                    .iter()
                    .enumerate()
                    .map(|(index, name)| {
                        format!("{name} is a {}", roles[(bits >> index & 1) as usize].as_str().unwrap())
                    })
                    .collect();
                score(&problem, &said.join(", ")).correct
            })
            .count();
        assert_eq!(right, 1, "{}", problem.question);
    }
}

/// All expressions over two and three small numbers, against plain evaluation of the same tree.
#[test]
fn every_expression_that_hits_the_target_is_right() {
    fn trees(numbers: &[i64]) -> Vec<(String, Option<(i64, i64)>)> {
        if let [only] = numbers {
            return vec![(only.to_string(), Some((*only, 1)))];
        }
        let mut all = Vec::new();
        for split in 1..numbers.len() {
            for (left, a) in trees(&numbers[..split]) {
                for (right, b) in trees(&numbers[split..]) {
                    for sign in ['+', '-', '*', '/'] {
                        let value = a.zip(b).and_then(|((p, q), (r, s))| match sign {
                            '+' => Some((p * s + r * q, q * s)),
                            '-' => Some((p * s - r * q, q * s)),
                            '*' => Some((p * r, q * s)),
                            _ if r == 0 => None,
                            _ => Some((p * s, q * r)),
                        });
                        all.push((format!("({left} {sign} {right})"), value));
                    }
                }
            }
        }
        all
    }
    let mut hits = 0;
    for numbers in [[3, 3, 8], [8, 2, 4], [1, 5, 7]] {
        for target in [1, 2, 9, 16, 24] {
            let facts = json!({"numbers": numbers, "target": target});
            for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
                for (text, value) in trees(&order.map(|place| numbers[place])) {
                    let truth = value.is_some_and(|(p, q)| q != 0 && p == target * q);
                    hits += usize::from(truth);
                    assert_eq!(Family::Countdown.score(&facts, &text).unwrap().correct, truth, "{text} = {target}");
                }
            }
        }
    }
    assert!(hits > 20);
    let eights = json!({"numbers": [3, 3, 8, 8], "target": 24});
    for (text, right) in [
        ("8 / (3 - 8 / 3)", true),
        ("8 ÷ (3 − 8 ÷ 3) = 24", true),
        ("-8 / (8/3 - 3)", true),
        ("8 / (3 - 8 / 3) = 25", false),
        ("3 * 8", false),
        ("8 * 3 + 8 - 8", false),
        ("24", false),
        ("83 - 38", false),
    ] {
        assert_eq!(Family::Countdown.score(&eights, text).unwrap().correct, right, "{text}");
    }
}

#[test]
fn a_sorted_list_may_stand_on_several_lines() {
    let facts = json!({"numbers": ["-10", "40", "-9", "37"], "direction": "descending"});
    for (text, credit) in [
        ("Answer:\n40\n37\n-9\n-10", 1.0),
        ("Answer: 40\n37\n-9\n-10", 1.0),
        ("Answer:\n40,\n37,\n-9,\n-10\nThat is all.", 1.0),
        ("40\n37\n-9\n-10", 1.0),
        ("Answer: [\n40,\n37,\n-9,\n-10\n]\nThat is all.", 1.0),
        ("[40, 37,\n-9, -10]", 1.0),
        ("Answer: 40, 37, -9, -10\n5", 1.0),
        ("Answer:\n40\n37\n-9", 0.75),
        ("Answer:\n40\n37\n-9\n-10\n-11", 0.8),
        ("40\n37\n-9\n-10\nThat is all.", 0.0),
    ] {
        let score = Family::NumberSorting.score(&facts, text).unwrap();
        assert_eq!((score.credit, score.correct), (credit, credit == 1.0), "{text}");
    }
}

#[test]
fn credit_is_for_the_parts_that_are_right() {
    let credit = |family: Family, facts: Value, answer: &str| family.score(&facts, answer).unwrap().credit;
    assert_eq!(credit(Family::SpellBackward, json!({"word": "abcd"}), "dcbx"), 0.75);
    assert_eq!(credit(Family::SpellBackward, json!({"word": "abcd"}), "dcbadcba"), 0.5);
    let numbers = json!({"numbers": ["3", "1", "2", "4"], "direction": "ascending"});
    assert_eq!(credit(Family::NumberSorting, numbers, "[1, 2, 4, 3]"), 0.5);
    let people = json!({
        "names": ["Ann", "Bo"], "statements": [["lying", 1], ["and", ["telling-truth", 0], ["telling-truth", 1]]],
        "roles": ["knight", "knave"],
    });
    assert_eq!(credit(Family::KnightsKnaves, people.clone(), "Ann is a knight, Bo is a knave"), 1.0);
    assert_eq!(credit(Family::KnightsKnaves, people.clone(), "Ann: knight; Bo: knight"), 0.5);
    assert_eq!(credit(Family::KnightsKnaves, people, "Ann is a knight"), 0.0);
    let puzzle = json!({"puzzle": [[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [0, 0, 0, 0]]});
    assert_eq!(credit(Family::MiniSudoku, puzzle.clone(), "1234 3412 2143 4312"), 0.5);
    assert_eq!(credit(Family::MiniSudoku, puzzle, "4321 3412 2143 4321"), 0.0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_response_is_graded_without_a_panic(response in "(?s).{0,300}", index in 0_u64..1000) {
        for family in Family::ALL {
            let problem = problem(family, Level::ALL[index as usize % 5], index);
            let score = problem.score(&response).unwrap();
            prop_assert!((0.0..=1.0).contains(&score.credit));
            prop_assert_eq!(score.correct, score.credit == 1.0);
        }
    }

    #[test]
    fn responses_of_the_letters_of_answers_are_graded_without_a_panic(response in "(Answer: )?[-+*/()\\[\\]0-9UDLRudlr,. =PQtf|_\n]{0,200}", index in 0_u64..1000) {
        for family in Family::ALL {
            let problem = problem(family, Level::ALL[index as usize % 5], index);
            prop_assert!(problem.score(&response).is_ok());
        }
    }

    #[test]
    fn numbers_of_every_base_go_round(number in 0_u64..1_000_000_000_000, from in 2_u32..=36, to in 2_u32..=36) {
        let digits = |base: u32| {
            let (mut left, mut text) = (number, String::new());
            while left > 0 || text.is_empty() {
                text.insert(0, char::from_digit((left % u64::from(base)) as u32, base).unwrap());
                left /= u64::from(base);
            }
            text
        };
        let facts = json!({"number": digits(from), "from": from, "to": to});
        let right = |text: String| Family::BaseConversion.score(&facts, &text).unwrap().correct;
        let padded = format!("00{}", digits(to).to_uppercase());
        let longer = format!("{}1", digits(to));
        prop_assert!(right(digits(to)) && right(padded) && !right(longer));
    }
}
