//! Two texts are compared: within the budget, whatever they are; a readable text is itself; equality has no direction.
//! Run with `scripts/fuzz.sh envs math`.
#![no_main]

use espalier_graders::aime;
use espalier_graders::math::{Limits, Reason, Stop, Truth, last_boxed, last_line};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|texts: (&str, &str)| {
    let (left, right) = texts;
    if let Some(answer) = last_boxed(left) {
        assert!(left.contains(answer));
    }
    last_line(left);
    aime::skyrl(left, right);
    let limits = Limits { steps: 50_000, ..Limits::default() };
    let read = |text| Truth::with_limits(text, limits).ok();
    let (first, second) = (read(left), read(right));
    for (truth, text, other) in [(&first, left, right), (&second, right, left)] {
        if let Some(truth) = truth {
            assert!(truth.check(text).equal);
            assert!(truth.check(other).steps <= limits.steps);
        }
    }
    if let (Some(first), Some(second)) = (first, second) {
        let (there, back) = (first.check(right), second.check(left));
        // The two ways cost differently: one may end where the other does not.
        let ended = [&there, &back].iter().any(|verdict| matches!(verdict.reason, Reason::Unread(Stop::Budget(_))));
        assert!(ended || there.equal == back.equal);
    }
});
