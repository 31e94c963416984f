//! The umbrella's tests in one program: a program's view of `udeck`, over every transport. A module is a topic.
//!
//! The tests run in parallel in one process. A test that changes the process or examines all of it runs again in a process of
//! its own ([`common::apart`]). `tests/hostile.rs` and `tests/bytes` are programs of their own: after each case they count the
//! resources of the process (descriptors, mappings, threads), which nothing else may change meanwhile.

#[path = "../common/mod.rs"]
mod common;

mod barrier;
mod choosing;
mod deadlines;
mod doubt;
mod draining;
mod errors;
mod everyday;
mod exhaustion;
mod external_buf;
mod fairness;
mod families;
mod finished;
mod floods;
mod fork;
mod forwarding;
mod groups;
mod handshake;
mod incast;
mod late;
mod leaving;
mod liars;
mod lingering;
mod lost;
mod matching;
mod memory;
mod mixing;
mod names;
mod order;
mod outage;
mod packed;
mod pairs;
mod posing;
mod posting;
mod posting_each;
mod progress;
mod protocols;
mod reading;
mod room;
mod routes;
mod segments;
mod select;
mod share;
mod starting;
mod stats;
mod tasks;
mod threads;
mod turns;
mod verbs;
