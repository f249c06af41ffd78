//! Steps on a console.

use espalier_trackers::{Console, ConsoleOptions, Layout, Tracker};

use crate::support::numbers;

fn shown(options: ConsoleOptions, colour: bool, pairs: &[(&str, f64)]) -> String {
    let mut out = Vec::new();
    Console::new(&mut out, options).with_colour(colour).log(3, &numbers(pairs)).unwrap();
    String::from_utf8(out).unwrap()
}

fn block() -> ConsoleOptions {
    ConsoleOptions { layout: Some(Layout::Block), ..ConsoleOptions::default() }
}

#[test]
fn a_line_has_the_numbers_of_the_asked_prefixes() {
    let options = ConsoleOptions { prefixes: vec!["a/".to_owned()], ..ConsoleOptions::default() };
    assert_eq!(shown(options, false, &[("a/x", 0.5), ("b/y", f64::NAN)]), "step 3  a/x=0.5000\n");
}

#[test]
fn numbers_are_short_and_say_what_is_not_finite() {
    let pairs = [("a", 12.0), ("b", 1.5e-7), ("c", f64::NAN), ("d", f64::NEG_INFINITY), ("e", 2.5e12), ("f", -0.25)];
    let line = shown(ConsoleOptions::default(), false, &pairs);
    assert_eq!(line, "step 3  a=12  b=1.500e-7  c=NaN  d=-inf  e=2.500e12  f=-0.2500\n");
}

#[test]
fn a_block_aligns_names_and_values() {
    let text = shown(block(), false, &[("policy/loss", 0.5), ("timing/step", 12.0), ("x", 1.0)]);
    assert_eq!(text, "step 3\n  policy/loss  0.5000\n  timing/step      12\n  x                 1\n");
}

#[test]
fn colours_are_there_only_if_asked_for() {
    let text = shown(block(), true, &[("x", 1.0)]);
    assert_eq!(text, "\u{1b}[1mstep 3\u{1b}[0m\n  \u{1b}[2mx\u{1b}[0m  1\n");
    assert!(!shown(block(), false, &[("x", 1.0)]).contains('\u{1b}'));
}

#[test]
fn what_others_wrote_cannot_steer_the_terminal() {
    let line = shown(ConsoleOptions::default(), false, &[("a\u{1b}[2J\nb", 1.0)]);
    assert_eq!(line, "step 3  a\\u{1b}[2J\\nb=1\n");
    let mut out = Vec::new();
    Console::new(&mut out, ConsoleOptions::default()).text(4, "sample", "one\ntwo\u{9b}31m").unwrap();
    assert_eq!(String::from_utf8(out).unwrap(), "step 4  sample:\n  one\n  two\\u{9b}31m\n");
}

#[test]
fn long_texts_lose_their_end() {
    let mut out = Vec::new();
    Console::new(&mut out, ConsoleOptions::default()).text(4, "sample", &"é".repeat(5000)).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.contains(&"é".repeat(4000)) && text.ends_with("  ... 2000 more bytes\n"), "{text}");
}
