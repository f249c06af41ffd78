//! Equivalence of answers: what is equal, what is not, and what it may cost.

mod budget;
mod expressions;
mod extract;
mod numbers;
mod properties;
mod sets;
mod units;
mod words;

use espalier_graders::math::equivalent;

fn equal(truth: &str, answer: &str) -> bool {
    equivalent(truth, answer).unwrap_or_else(|error| panic!("`{truth}`: {error}")).equal
}

fn all_equal(pairs: &[(&str, &str)]) {
    for (left, right) in pairs {
        assert!(equal(left, right), "`{left}` is `{right}`");
        assert!(equal(right, left), "`{right}` is `{left}`");
    }
}

fn all_different(pairs: &[(&str, &str)]) {
    for (left, right) in pairs {
        assert!(!equal(left, right), "`{left}` is not `{right}`");
        assert!(!equal(right, left), "`{right}` is not `{left}`");
    }
}

fn refused(truth: &str, answers: &[&str]) {
    for answer in answers {
        assert!(!equal(truth, answer), "`{answer}` is not `{truth}`");
    }
}
