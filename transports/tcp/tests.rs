//! The crate's own tests: what the conformance suite does not ask.
