//! The standard library and the language, by the examples in `tests/stdlib`.
//!
//! An example is `### name`, code, `#>`, and what the code prints.

use espalier_sandbox::{Limits, ReplOptions};

use crate::{run, with};

async fn check(examples: &str) {
    let limits = Limits { block: std::time::Duration::from_mins(1), ..Limits::default() };
    let mut wrong = Vec::new();
    let mut count = 0;
    for example in examples.split("\n### ").skip(1) {
        let (name, rest) = example.split_once('\n').expect("a name and code");
        let (code, expected) = rest.split_once("\n#>\n").expect("code and what it prints");
        let mut repl = with(ReplOptions { limits: limits.clone(), ..ReplOptions::default() }).await;
        let execution = run(&mut repl, code).await;
        if execution.stdout.text.trim_end() != expected.trim_end() {
            wrong.push(format!("{name}: {}{}", execution.stdout.text, execution.stderr.text));
        }
        count += 1;
    }
    assert!(count > 0);
    assert!(wrong.is_empty(), "{} of {count} examples are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test]
async fn modules_work() {
    check(include_str!("../stdlib/modules.txt")).await;
}

#[tokio::test]
async fn the_language_works() {
    check(include_str!("../stdlib/language.txt")).await;
}
