//! The one place that writes stdout and stderr for a command that answers and ends.
//!
//! Answers go to stdout through [`out`] and [`outln`]; stdout that cannot be written ends the command
//! ([`Failure::Stdout`]) instead of panicking. Everything else that is said goes to stderr through [`say`], where
//! nobody is left to hear of a failure.

use std::fmt::Arguments;
use std::io::{IsTerminal as _, Write as _};

use crate::failure::Failure;

/// Writes to stdout; colours stay where stdout shows them.
pub(crate) fn write(text: Arguments<'_>) -> Result<(), Failure> {
    anstream::stdout().write_fmt(text).map_err(Failure::Stdout)
}

/// Hands what is still buffered to the system.
pub(crate) fn flush() -> Result<(), Failure> {
    std::io::stdout().flush().map_err(Failure::Stdout)
}

/// Writes a line to stderr, which may be gone.
pub(crate) fn tell(text: Arguments<'_>) {
    let _ = writeln!(anstream::stderr(), "{text}");
}

/// Whether stdout shows colours.
pub(crate) fn colour() -> bool {
    anstream::AutoStream::choice(&std::io::stdout()) != anstream::ColorChoice::Never
}

/// Columns of the terminal that stdout is; `None` where it is none, which has room for everything.
pub(crate) fn columns() -> Option<usize> {
    let stdout = std::io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    terminal_size::terminal_size_of(stdout).map(|(width, _)| usize::from(width.0)).filter(|columns| *columns > 0)
}

/// `print!` that says whether it worked.
macro_rules! out {
    ($($text:tt)*) => { $crate::output::write(format_args!($($text)*)) };
}

/// `println!` that says whether it worked.
macro_rules! outln {
    ($($text:tt)*) => { $crate::output::write(format_args!("{}\n", format_args!($($text)*))) };
}

/// `eprintln!` that never panics.
macro_rules! say {
    ($($text:tt)*) => { $crate::output::tell(format_args!($($text)*)) };
}

pub(crate) use {out, outln, say};
