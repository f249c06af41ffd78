//! Whatever text is parsed is a value whose `repr` parses to the same value, or an error.
#![no_main]

use espalier_sandbox_protocol::literal::parse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(value) = parse(text) {
        // An overflowing float reads as an infinity, which prints as no literal.
        let printed = value.repr();
        if !printed.contains("inf") {
            assert_eq!(parse(&printed), Ok(value));
        }
    }
});
