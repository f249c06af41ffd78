//! Graders: pure functions from an answer and the truth to a verdict.
//!
//! | module | what lives there |
//! |---|---|
//! | [`aime`] | DAPO's `Answer:` format and its normaliser |
//! | [`math`] | mathematical equivalence: LaTeX to an exact normal form |
//! | [`numeric`] | numbers in text, compared by value; the `####` answers of GSM8K |
//!
//! Invariants: bounded work whatever the text, no state, callable from any thread; never run where the policy could
//! reach them.

pub mod aime;
pub mod math;
pub mod numeric;
