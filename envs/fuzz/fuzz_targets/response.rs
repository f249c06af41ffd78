//! Any text is read, in every way in which an environment reads responses, and what is reported lies within it. Run with
//! `scripts/fuzz.sh envs response`.
#![no_main]

use espalier_graders::numeric;
use libfuzzer_sys::fuzz_target;

#[allow(dead_code, reason = "a module of `espalier-envs`, of which this target uses a part")]
#[path = "../../src/rlm/parse.rs"]
mod parse;
#[allow(dead_code, reason = "a module of `espalier-envs`, of which this target uses a part")]
#[path = "../../src/text2sql/protocol.rs"]
mod protocol;
#[path = "../../src/text2sql/quoting.rs"]
mod quoting;
#[path = "../../src/thinking.rs"]
mod thinking;

use parse::{Fences, read, read_original};

/// Whether a text is a part of another one, and not a copy.
fn lies_in(part: &str, whole: &str) -> bool {
    whole.as_bytes().as_ptr_range().start <= part.as_ptr()
        && part.as_bytes().as_ptr_range().end <= whole.as_bytes().as_ptr_range().end
}

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
    assert!(text.ends_with(thinking::spoken(text)));
    let turn = protocol::Turn::read(text);
    assert!(turn.query.is_none_or(|query| lies_in(protocol::unfenced(query), text)));
    turn.is_final();
    let turns = [text.to_owned()];
    if let Ok(solution) = protocol::solution(&turns) {
        assert!(lies_in(solution, &turns[0]));
    }
    numeric::numbers(text);
    numeric::worked_answer(text, true);
});
