//! The verdicts that `tests/parity/reasoning_gym.py` recorded, replayed.

use std::collections::BTreeMap;
use std::path::Path;

use espalier_procedural::reasoning::Family;
use serde_json::Value;

/// What docs/procedural.md explains.
const DIFFERENCES: [&str; 6] =
    ["extra_letters", "floor_division", "presentation", "tolerance", "trivial_conclusion", "weekday_spelling"];

#[test]
fn verdicts_are_those_of_reasoning_gym_but_for_the_named_differences() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/parity/reasoning.jsonl");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut seen: BTreeMap<(String, bool), usize> = BTreeMap::new();
    for line in text.lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        let family = Family::from_name(record["family"].as_str().unwrap()).unwrap();
        for case in record["cases"].as_array().unwrap() {
            let score = family.score(&record["facts"], case["response"].as_str().unwrap()).unwrap();
            assert_eq!(score.correct, case["ours"].as_bool().unwrap(), "{family:?} {} {case}", record["facts"]);
            let peer = case["peer"].as_f64().unwrap() >= 1.0;
            match case["difference"].as_str() {
                None => assert_eq!(score.correct, peer, "{family:?} {} {case}", record["facts"]),
                Some(name) => {
                    assert!(DIFFERENCES.contains(&name), "{name}");
                    assert_ne!(score.correct, peer, "{case}");
                }
            }
            *seen.entry((family.name().to_owned(), score.correct)).or_default() += 1;
        }
    }
    // Every family has right and wrong answers, so the replay can fail.
    assert_eq!(seen.len(), 24, "{seen:?}");
    assert!(seen.values().all(|count| *count >= 10), "{seen:?}");
}
