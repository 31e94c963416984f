//! What is wrapped does what the inner device does; and what the wrappers add.

mod delegation;
mod faults;
#[path = "../../src/via/tests/script/mod.rs"]
mod script;
mod traces;
