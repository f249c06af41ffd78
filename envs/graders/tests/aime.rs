//! skyrl-gym's `aime` grader, reproduced: `fixtures/aime.jsonl` holds responses with what skyrl-gym 0.4.0 made of them.

use espalier_graders::aime::{Reading, equal, skyrl, stated, strict_box};
use espalier_graders::math::Truth;
use proptest::prelude::*;

#[test]
fn every_verdict_and_prediction_is_the_same() {
    let fixtures = include_str!("fixtures/aime.jsonl");
    for line in fixtures.lines() {
        let case: serde_json::Value = serde_json::from_str(line).unwrap();
        let text = |key: &str| case[key].as_str().unwrap();
        let expected = (case["acc"].as_bool().unwrap(), text("pred").to_owned());
        assert_eq!(skyrl(text("response"), text("truth")), expected, "{line}");
    }
    assert_eq!(fixtures.lines().count(), 140);
}

#[test]
fn the_last_announcement_is_read() {
    assert_eq!(stated("Answer: 1\nanswer : 2 <b>", Reading::Whole), Some("2 "));
    assert_eq!(stated("Answer:", Reading::Whole), None);
    let far = format!("Answer: 1 {}", "\u{e9}".repeat(300));
    assert_eq!(stated(&far, Reading::Tail), None);
    assert!(stated(&far, Reading::Whole).is_some());
}

#[test]
fn equivalence_reads_what_the_normaliser_cannot() {
    let truth = Truth::read(r"\frac{1}{2}").unwrap();
    for answer in ["0.5", "$0.5$", "**1/2**", r"\boxed{\frac12}", r"x = \frac{1}{2}"] {
        assert!(equal(answer, &truth).equal, "{answer}");
    }
    assert!(!equal("0.25", &truth).equal);
}

#[test]
fn what_the_normaliser_makes_of_a_text_is_not_its_meaning() {
    let truth = Truth::read("123").unwrap();
    for answer in [
        "1,2,3",
        "1 2 3",
        "12 3",
        "1,23",
        r"\text{1}23",
        "1square23",
        "not $123$",
        "$123$ or $5$",
        "5 $123$ 6",
        "5=6=123",
        "!=123",
        r"x\neq=123",
        "-0=123",
        "123 < 5",
        r"\overline{123}",
    ] {
        assert!(!equal(answer, &truth).equal, "{answer}");
    }
    for answer in
        ["123", "123.", "$123$", "$123$.", "**123**", "$$123$$", r"\$123", r"123 \text{ square inches}", "n = 123"]
    {
        assert!(equal(answer, &truth).equal, "{answer}");
    }
}

#[test]
fn a_sign_that_the_truth_has_not_is_another_answer() {
    let truth = Truth::read("123").unwrap();
    for answer in
        [r"123\%", "123%", r"123^\circ", "123°", r"123^{\circ}", "123 degrees", r"123 \text{ percent}", r"x = 123\%"]
    {
        assert!(!equal(answer, &truth).equal, "{answer}");
    }
    for (truth, answers) in
        [(r"123^\circ", &[r"123^\circ", "123"][..]), (r"50\%", &[r"50\%", "50", "0.5"]), ("1", &[r"2\sin 30^\circ"])]
    {
        let truth = Truth::read(truth).unwrap();
        for answer in answers {
            assert!(equal(answer, &truth).equal, "{answer}");
        }
    }
}

#[test]
fn an_announcement_may_be_emphasised() {
    assert_eq!(stated("**Answer**: 5", Reading::Whole), Some("5"));
    assert_eq!(stated("**Answer:** 5", Reading::Whole), Some("** 5"));
    assert_eq!(stated("**Answer**: 5", Reading::Tail), None);
    assert!(equal("** 5", &Truth::read("5").unwrap()).equal);
}

#[test]
fn a_box_counts_only_as_text_in_the_strict_variant() {
    assert_eq!(
        strict_box(r"a \boxed{1} b \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (true, Some(r"\frac{1}{2}".to_owned()))
    );
    assert_eq!(strict_box(r"\boxed{1} \boxed{2", "1"), (false, None));
}

proptest! {
    #[test]
    fn no_text_panics(response in ".{0,400}", truth in ".{0,40}") {
        skyrl(&response, &truth);
        strict_box(&response, &truth);
    }
}
