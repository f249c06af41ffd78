//! Any text is read, both ways, and what is reported lies within it. Run with `cargo fuzz run response` in `envs/`.
#![no_main]

use espalier_envs::graders::numeric;
use espalier_envs::rlm::parse::{Fences, read, read_original};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let every = ["repl", "python", ""].map(str::to_owned).to_vec();
    for fences in [Fences::repl(), Fences { words: every, unclosed: true }] {
        let reading = read(text, &fences);
        assert_eq!(reading.code.is_some(), reading.blocks > 0);
        if let Some(block) = reading.code {
            assert!(text.get(block.range).is_some());
        }
    }
    if let Some(block) = read_original(text).code {
        assert!(text[block.range].contains(block.code.as_str()));
    }
    numeric::numbers(text);
    numeric::worked_answer(text, true);
});
