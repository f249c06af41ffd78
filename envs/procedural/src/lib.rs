//! Problems that the project generates, with their verifiers.
