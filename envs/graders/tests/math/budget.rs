//! What a text may cost, and the texts that cost most.

use std::sync::Arc;

use espalier_graders::math::{Limits, Reason, Stop, Truth, TruthError};

use super::equal;

#[test]
fn a_truth_that_cannot_be_read_is_an_error() {
    assert!(matches!(Truth::read("  "), Err(TruthError::Empty)));
    assert!(matches!(Truth::read(r"\frac{1}{"), Err(TruthError::Unread { stop: Stop::Syntax { .. }, .. })));
    assert!(matches!(Truth::read(r"\frac{1}{0}"), Err(TruthError::Unread { stop: Stop::Undefined(_), .. })));
    let deep = format!("{}5{}", "(".repeat(200), ")".repeat(200));
    assert!(matches!(Truth::read(&deep), Err(TruthError::Unread { stop: Stop::Budget(_), .. })));
}

/// Texts that hang or crash other graders.
fn hostile() -> Vec<String> {
    let nested = |open: &str, close: &str, times| format!("{}5{}", open.repeat(times), close.repeat(times));
    let fractions: Vec<String> = (0..500).map(|n| format!(r"\frac{{1}}{{x+{n}}}")).collect();
    let factors: Vec<String> = (0..500).map(|n| format!("(x+{n})")).collect();
    let numbers: Vec<String> = (0..1500).map(|n| n.to_string()).collect();
    let fractional: Vec<String> = (2..120).map(|n| format!("(x+1/{n})")).collect();
    let squares = format!("{}x+1/3{}", "((".repeat(15), ")^{2}+1/7)".repeat(15));
    let sines: Vec<String> = (0..100).map(|n| format!(r"\sin({n}x)+\cos x")).collect();
    vec![
        "9^{9^{9^{9}}}".to_owned(),
        "9^9^9^9^9".to_owned(),
        "10**10**10".to_owned(),
        "10^{10^{10}}+1".to_owned(),
        "1000000!".to_owned(),
        "2500!^{100}".to_owned(),
        r"\binom{1000000}{500000}".to_owned(),
        nested("(", ")", 10_000),
        nested("(", ")", 1000),
        nested("{", "}", 1000),
        nested(r"\frac{1}{1+", "}", 400),
        nested(r"\sqrt{2+", "}", 45),
        nested(r"\sin(", ")", 45),
        nested("|", "|", 4000),
        "1".repeat(1_000_000),
        format!("({})^{{9}}", "9".repeat(4000)),
        format!(r"\sqrt{{{}}}", "9".repeat(4001)),
        r"(x+y+z+w)^{32}(a+b+c+d)^{32}".to_owned(),
        r"((x+1)^{31}+1)^{31}".to_owned(),
        fractions.join("+"),
        factors.concat(),
        // Fractions of a few words: reducing them is what costs.
        fractional.concat(),
        squares,
        format!(r"\frac{{{}}}{{{}}}", "7".repeat(3900), "3".repeat(3900)),
        numbers.join(", "),
        sines.join(","),
        "1/3".repeat(2000),
        r"\pm 1 ".repeat(1000),
        "-".repeat(8000),
        "^".repeat(4000),
        "2^".repeat(2000),
        "x_".repeat(3000),
        r"\frac".repeat(1500),
        r"\boxed{".repeat(1000),
        r"\{".repeat(3000),
        r"\begin{pmatrix}&&&\\\\\\".to_owned(),
        r"0.\overline{".to_owned(),
        // A unit where no conversion reaches it.
        r"780\circ^\theta".to_owned(),
        // Names before brackets, empty bases, brackets that turn their backs.
        "P(".repeat(4000),
        "P(1,".repeat(2000),
        format!("{}1,2{}", "P(1,".repeat(40), ")".repeat(40)),
        "C(1000000,500000)".to_owned(),
        "{}_{1000000}C_{500000}".to_owned(),
        "{}_".repeat(2700),
        "_".repeat(8000),
        "]1,".repeat(2700),
        "[1,2[".repeat(1600),
        format!("0.({})", "7".repeat(8000)),
        r"\text{one thousand }".repeat(400),
        format!(r"\text{{{}}}", "one million ".repeat(600)),
        // A bar that closes nothing within a bracket that closes nothing.
        r"|[\cup".to_owned(),
        "\u{0}\u{301}\\".to_owned(),
    ]
}

#[test]
fn hostile_answers_end_within_the_budget_and_are_wrong() {
    let limits = Limits::default();
    for truth in ["5", "x+1", r"\sin x", "(1,2)", r"\text{yes}", r"9^{9^{9^{9}}}+1"] {
        let truth = Truth::read(truth).unwrap();
        for answer in hostile() {
            let verdict = truth.check(&answer);
            let short: String = answer.chars().take(30).collect();
            assert!(verdict.steps <= limits.steps, "`{short}`: {} steps", verdict.steps);
            let balanced = answer.starts_with("((") || answer.starts_with("{{");
            assert!(!verdict.equal || balanced, "`{short}` beside `{}`", truth.text());
        }
    }
}

#[test]
fn a_chain_without_brackets_is_no_deeper_than_they() {
    let truth = Truth::read("5").unwrap();
    for answer in [
        format!("{}1", "1/".repeat(4000)),
        format!("{}1", r"1\div -".repeat(900)),
        format!("5{}", r"\%".repeat(4000)),
        format!("5{}", "%".repeat(8000)),
        format!("x{}", "!".repeat(8000)),
        format!("x{}", r"^\circ".repeat(1300)),
        format!("x{}", "^2".repeat(4000)),
        format!("x{}", r"\bmod 2".repeat(900)),
        format!("(1,2){}", r"\setminus\{1\}".repeat(400)),
        format!("(1,2){}", r"\cap(1,3)".repeat(700)),
        format!("(x+1){}", r"\text{ degrees}".repeat(500)),
    ] {
        let verdict = truth.check(&answer);
        let short: String = answer.chars().take(30).collect();
        // Two signs of percent are refused as such.
        let reason = if answer.contains('%') { "malformed" } else { "over_budget" };
        assert_eq!(verdict.reason.name(), reason, "`{short}`");
        assert!(matches!(Truth::read(&answer), Err(TruthError::Unread { .. })), "`{short}`");
    }
    // Chains that people write are read, and calculated in as little room as any other formula.
    for (answer, times) in [("!", 180), (r"\%", 180), ("/1", 180), (r"^{2}", 40)] {
        let verdict = truth.check(&format!("x{}", answer.repeat(times)));
        assert!(!verdict.equal);
    }
    assert!(equal("1/2/2/2", r"\frac{1}{8}"));
}

#[test]
fn over_the_budget_is_told_from_wrong() {
    let truth = Truth::read("5").unwrap();
    for answer in [format!("{}5{}", "(".repeat(10_000), ")".repeat(10_000)), "((x+1)^{31}+1)^{31}".to_owned()] {
        let verdict = truth.check(&answer);
        assert!(matches!(verdict.reason, Reason::Unread(Stop::Budget(_))), "{:?}", verdict.reason);
        assert_eq!(verdict.reason.name(), "over_budget");
        assert!(!verdict.equal);
    }
    // Fewer steps allowed, fewer spent.
    let tight = Truth::with_limits("5", Limits { steps: 300, ..Limits::default() }).unwrap();
    assert_eq!(tight.check("(x+1)^{20}").steps, 300);
    assert!(tight.check("5.0").equal);
}

#[test]
fn the_same_text_costs_the_same_on_every_thread() {
    let truth = Arc::new(Truth::read(r"\frac{\sqrt{3}}{2}").unwrap());
    let hostile = Arc::new(hostile());
    let alone: Vec<_> = hostile.iter().map(|answer| truth.check(answer)).collect();
    let alone = Arc::new(alone);
    let threads: Vec<_> = (0..64)
        .map(|thread: usize| {
            let (truth, hostile, alone) = (Arc::clone(&truth), Arc::clone(&hostile), Arc::clone(&alone));
            std::thread::spawn(move || {
                assert!(truth.check(r"\sin 60^\circ").equal);
                let at = thread % hostile.len();
                assert_eq!(truth.check(&hostile[at]), alone[at]);
                assert!(truth.check(r"\frac{3}{2\sqrt3}").equal);
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}
