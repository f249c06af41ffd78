//! Environments written in Python, each in a sandbox instance of its own.
