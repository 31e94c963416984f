//! What is wrapped does what the inner device does; and what the wrappers add.

mod delegation;
mod faults;
mod script;
mod traces;
