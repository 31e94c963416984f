//! Where everybody is: what the ranks wait for, who waits for whom, and for how long nothing has moved.
//!
//! A host's launcher looks at its own ranks ([`look`]): at the page in which each makes its long waits known, and at what the kernel
//! says of its threads. So a rank that hangs, computes or is stopped is reported like one that waits. The root puts the looks
//! of all hosts together ([`report`]), with the circle in which ranks wait for each other ([`deadlock`]). It does so when no rank
//! makes progress, at a SIGQUIT, and when another deckrun asks ([`status`]).

pub(crate) mod deadlock;
pub(crate) mod look;
pub(crate) mod report;
pub(crate) mod status;
