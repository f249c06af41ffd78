//! `reasoning/*`: procedural problems with verifiers.
