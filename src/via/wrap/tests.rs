//! What is wrapped does what the inner device does; and what the wrappers add.

mod delegation;
mod faults;
pub(crate) mod script;
mod traces;
