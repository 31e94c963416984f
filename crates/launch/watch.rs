//! The state of all ranks: what they wait for, who waits for whom, and for how long nothing has moved.
//!
//! A host's launcher examines its own ranks ([`wait_sampler`]): the page in which each publishes its long waits, and
//! the kernel's data on its threads. A rank that hangs, computes or is stopped is therefore reported like one
//! that waits. The root combines the data of all hosts ([`report`]), with the circle in which ranks wait for
//! each other ([`deadlock`]). It does this when no rank makes progress, at a SIGQUIT, and when another deckrun
//! asks ([`status`]).

pub(crate) mod deadlock;
pub(crate) mod report;
pub(crate) mod status;
pub(crate) mod wait_sampler;
