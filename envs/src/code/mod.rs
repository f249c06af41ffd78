//! `lcb` and `code`: programs graded by tests, in a sandbox.
