//! Project automation: `cargo xtask guest [--check | --rebuild-check | --vendor]`.
//!
//! | module | what lives there |
//! |---|---|
//! | [`guest`] | builds the sandbox's guest and compares it with what is committed |
//! | [`sources`] | the interpreter's sources with our patches |

use std::process::ExitCode;

mod guest;
mod sources;

const USAGE: &str = "usage: cargo xtask guest [--check | --rebuild-check | --vendor | --save-patches]

  guest                  builds sandbox/artifact/guest.wasm.zst
  guest --check          says whether the committed artifact was built from these sources
  guest --rebuild-check  builds it again and compares
  guest --vendor         only lays out the patched sources in sandbox/guest/vendor
  guest --save-patches   writes sandbox/guest/patches from the changed sandbox/guest/vendor";

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a command for people")]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments.as_slice() {
        ["guest"] => guest::build(),
        ["guest", "--check"] => guest::check(),
        ["guest", "--rebuild-check"] => guest::rebuild_check(),
        ["guest", "--vendor"] => {
            sources::vendor().map(|()| "the patched sources are in sandbox/guest/vendor".to_owned())
        }
        ["guest", "--save-patches"] => sources::save_patches(),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(message) => {
            println!("{message}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
