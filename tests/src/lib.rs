//! Whole-system tests: the command as a person or program meets it, hostile blocks against the sandbox, peers side by
//! side. Everything stands in `tests/`; there is nothing to use here.
//!
//! | folder | what lies there |
//! |---|---|
//! | `tests/*.rs` | the tests |
//! | `redteam/*.py` | what hostile models write |
