//! What is read in a response: the default way, and as the original reads it.

use espalier_envs::rlm::parse::{Fences, Reading, TextAnswer, read, read_original, without_trailing_specials};
use proptest::prelude::*;

fn plain(text: &str) -> Reading {
    read(text, &Fences::repl())
}

fn code(text: &str) -> Option<String> {
    plain(text).code.map(|block| block.code)
}

fn answer(text: &str) -> Option<TextAnswer> {
    plain(text).answer
}

#[expect(clippy::unnecessary_wraps, reason = "compared with what the parser answers")]
fn text(text: &str) -> Option<TextAnswer> {
    Some(TextAnswer::Final(text.to_owned()))
}

#[expect(clippy::unnecessary_wraps, reason = "compared with what the parser answers")]
fn name(name: &str) -> Option<TextAnswer> {
    Some(TextAnswer::FinalVar(name.to_owned()))
}

#[test]
fn the_last_block_runs_and_all_are_counted() {
    let reading = plain("First\n```repl\na = 1\n```\nthen\n```repl\nb = 2\n```\ndone");
    assert_eq!(reading.code.map(|block| block.code), Some("b = 2".to_owned()));
    assert_eq!(reading.blocks, 2);
}

#[test]
fn blocks_in_other_languages_do_not_run() {
    assert_eq!(code("```python\nx\n```"), None);
    assert_eq!(code("```\nx\n```"), None);
    let fences = Fences { words: vec!["repl".to_owned(), "python".to_owned(), String::new()], unclosed: true };
    for text in ["```python\nx\n```", "```Python\nx\n```", "```\nx\n```", "~~~repl\nx\n~~~"] {
        assert_eq!(read(text, &fences).code.map(|block| block.code), Some("x".to_owned()), "{text}");
    }
}

#[test]
fn a_longer_fence_holds_shorter_ones() {
    assert_eq!(code("````repl\ntext = '''\n```\n'''\n````\n"), Some("text = '''\n```\n'''".to_owned()));
    // A fence of another language hides what it quotes.
    assert_eq!(code("````markdown\n```repl\nx\n```\n````"), None);
}

#[test]
fn fences_may_follow_words_and_be_indented() {
    assert_eq!(code("Let me look: ```repl\nx = 1\n```"), Some("x = 1".to_owned()));
    assert_eq!(code("1. Look:\n   ```repl\n   if x:\n       y\n   ```"), Some("if x:\n    y".to_owned()));
    assert_eq!(code("```repl  first try\nx\n```"), Some("x".to_owned()));
    assert_eq!(code("use ```repl``` blocks"), None);
    assert_eq!(code("```repl\r\nx = 1\r\n```\r\n"), Some("x = 1".to_owned()));
}

#[test]
fn an_unclosed_block_runs_only_when_it_may() {
    assert_eq!(code("```repl\nx = 1"), Some("x = 1".to_owned()));
    assert_eq!(read("```repl\nx = 1", &Fences { unclosed: false, ..Fences::repl() }).code, None);
}

#[test]
fn an_empty_block_is_a_block() {
    assert_eq!(code("```repl\n\n```"), Some(String::new()));
    assert_eq!(code("```repl\n```"), Some(String::new()));
}

#[test]
fn answers_need_no_block_and_the_last_one_wins() {
    assert_eq!(answer("FINAL(42)"), text("42"));
    assert_eq!(answer("FINAL(1)\nno:\nFINAL(2)"), text("2"));
    assert_eq!(answer("FINAL(1)\nFINAL_VAR(x)"), name("x"));
    assert_eq!(answer("  **FINAL(42)**"), text("42"));
}

#[test]
fn parentheses_are_balanced() {
    assert_eq!(answer("FINAL(foo (bar)) and more (text)"), text("foo (bar)"));
    assert_eq!(answer("FINAL(a) because (x)"), text("a"));
    assert_eq!(answer("FINAL(one\ntwo (2)\n)\nbye"), text("one\ntwo (2)"));
    assert_eq!(answer("FINAL(\"a) b\")"), text("\"a) b\""));
    assert_eq!(answer("FINAL(smile :()\nmore"), text("smile :("));
    assert_eq!(answer("FINAL(never closed"), None);
    assert_eq!(answer("FINAL()"), text(""));
}

#[test]
fn names_lose_their_quotes() {
    for written in ["FINAL_VAR(x)", "FINAL_VAR(\"x\")", "FINAL_VAR( 'x' )", "FINAL_VAR (x)"] {
        assert_eq!(answer(written), name("x"), "{written}");
    }
}

#[test]
fn answers_in_fences_thinking_and_sentences_do_not_count() {
    assert_eq!(answer("```repl\nFINAL(1)\n```"), None);
    assert_eq!(answer("```text\nFINAL(1)\n```"), None);
    assert_eq!(answer("<think>\nFINAL(1)\n</think>\nhm"), None);
    assert_eq!(answer("Later I will say FINAL(1)."), None);
    assert_eq!(answer("FINALLY(1)"), None);
    assert_eq!(answer("<think>\nnever ends\nFINAL(1)"), None);
}

#[test]
fn thinking_is_neither_code_nor_answer() {
    assert_eq!(code("<think>\n```repl\nbad\n```\n</think>\n```repl\ngood\n```"), Some("good".to_owned()));
    // The prompt opened the thinking.
    assert_eq!(code("try\n```repl\nbad\n```\n</think>\n```repl\ngood\n```"), Some("good".to_owned()));
    assert_eq!(code("try\n```repl\nbad\n</think>\n```repl\ngood\n```"), Some("good".to_owned()));
    assert_eq!(answer("FINAL(1)\n</think>FINAL(2)"), text("2"));
    assert_eq!(answer("<think>short</think>\nFINAL(2)"), text("2"));
    // What code prints is no thinking.
    assert_eq!(code("```repl\nprint('</think>')\n```"), Some("print('</think>')".to_owned()));
    assert_eq!(code("```repl\ns = '<think>'\n```"), Some("s = '<think>'".to_owned()));
}

#[test]
fn special_tokens_at_the_end_are_no_text() {
    for token in
        ["<|im_end|>", "</s>", "<|eot_id|>\n", "<end_of_turn>", "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>"]
    {
        assert_eq!(answer(&format!("FINAL(42){token}")), text("42"), "{token}");
        assert_eq!(code(&format!("```repl\nx\n```{token}")), Some("x".to_owned()), "{token}");
    }
    assert_eq!(without_trailing_specials("a <|im_end|><|endoftext|>"), "a");
    assert_eq!(without_trailing_specials("a <b> | c|>"), "a <b> | c|>");
}

/// The published behaviour, case by case: response, code, name, text.
#[test]
fn the_original_reading_is_kept_case_by_case() {
    let block = "```repl\na = [1]\n```\n";
    for (response, code, name, text) in [
        ("FINAL(42)".to_owned(), None, None, Some("42")),
        ("```repl\na=[1]\nFINAL_VAR(\"a\")\n```".to_owned(), Some("a=[1]\nFINAL_VAR(\"a\")"), Some("a"), None),
        (format!("{block}FINAL_VAR(x)"), Some("a = [1]"), Some("x"), None),
        (format!("{block}FINAL(foo (bar))"), Some("a = [1]"), None, Some("foo (bar)")),
        (format!("{block}FINAL(a)\nx\nFINAL(b)"), Some("a = [1]"), None, Some("a)\nx\nFINAL(b")),
        (format!("{block}FINAL(a) because (x)"), Some("a = [1]"), None, Some("a) because (x")),
        (format!("{block}FINAL(a)<|im_end|>"), Some("a = [1]"), None, None),
        ("```repl python\nx\n```".to_owned(), None, None, None),
        ("```repl\n\n```".to_owned(), Some(""), None, None),
        ("```repl\n1\n```\n```repl\n2\n```".to_owned(), Some("2"), None, None),
        (format!("{block}FINAL()"), Some("a = [1]"), None, Some("")),
    ] {
        let reading = read_original(&response);
        assert_eq!(reading.code.as_ref().map(|block| block.code.as_str()), code, "code of {response}");
        assert_eq!(reading.final_var.as_deref(), name, "name of {response}");
        assert_eq!(reading.final_text.as_deref(), text, "text of {response}");
    }
}

/// Pieces that meet in responses, in any order.
fn noise() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("```repl\n".to_owned()),
        Just("```\n".to_owned()),
        Just("````repl\n".to_owned()),
        Just("~~~\n".to_owned()),
        Just("   ```repl\n".to_owned()),
        Just("<think>".to_owned()),
        Just("</think>".to_owned()),
        Just("FINAL(".to_owned()),
        Just("FINAL_VAR(x)".to_owned()),
        Just("\"\"\"".to_owned()),
        Just(")".to_owned()),
        Just("\r\n".to_owned()),
        Just("\n".to_owned()),
        Just("<|im_end|>".to_owned()),
        "\\PC{0,8}",
    ];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn any_text_is_read_and_offsets_are_valid(text in noise(), words in prop::sample::select(vec!["repl", "python", ""])) {
        let fences = Fences { words: vec![words.to_owned()], unclosed: true };
        let reading = read(&text, &fences);
        if let Some(block) = &reading.code {
            prop_assert!(reading.blocks > 0);
            prop_assert!(text.get(block.range.clone()).is_some(), "{:?} in {text:?}", block.range);
        }
        if let Some(block) = read_original(&text).code {
            prop_assert!(text.get(block.range).is_some());
        }
    }

    #[test]
    fn code_in_a_closed_fence_comes_back_as_it_was(lines in prop::collection::vec("[a-z(){}'\"#= ]{0,12}", 1..6)) {
        // `x` first and last: what surrounds the code is not part of it.
        let code = format!("x\n{}\nx", lines.join("\n"));
        let expected = code.clone();
        prop_assert_eq!(self::code(&format!("I do this:\n```repl\n{code}\n```\nand wait")), Some(expected));
    }

    #[test]
    fn a_plain_answer_comes_back_as_it_was(inner in "[a-zA-Z0-9 .,:;'\\[\\]{}-]{0,40}") {
        prop_assume!(!inner.trim_start().starts_with('\''));
        prop_assert_eq!(answer(&format!("so\nFINAL({inner})")), text(inner.trim()));
    }
}
