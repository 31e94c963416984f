//! The umbrella's tests in one program: a program's view of `udeck`, over every transport. A folder is a topic.
//!
//! The tests run in parallel in one process. A test that changes the process or examines all of it runs again in a process of
//! its own ([`common::apart`]). `tests/hostile.rs` and `tests/bytes` are programs of their own: after each case they count the
//! resources of the process (descriptors, mappings, threads), which nothing else may change meanwhile.

#[path = "../common/mod.rs"]
mod common;

/// How ranks end, and what the others learn.
mod ends {
    mod doubt;
    mod finished;
    mod fork;
    mod leaving;
    mod lost;
    mod pairs;
}
/// Collective calls.
mod groups;
/// Calls to other ranks.
mod services;
/// Peers that break the rules.
mod hostile {
    mod floods;
    mod liars;
    mod lingering;
    mod posing;
}
/// Calls that post and retrieve.
mod mailboxes {
    mod deadlines;
    mod draining;
    mod errors;
    mod families;
    mod handshake;
    mod matching;
    mod posting;
    mod posting_each;
    mod select;
    mod starting;
    mod stats;
}
/// Memory of messages, and memory that ranks share.
mod memory {
    mod bounds;
    mod depth;
    mod exhaustion;
    mod external_buf;
    mod room;
    mod segments;
}
/// Contents of messages, and the protocols that carry them.
mod messages {
    mod choosing;
    mod everyday;
    mod forwarding;
    mod order;
    mod packed;
    mod protocols;
    mod reading;
    mod share;
}
/// Names, routes, and networks that are several, slow or crowded.
mod networks {
    mod fairness;
    mod incast;
    pub mod late;
    mod mixing;
    mod names;
    mod outage;
    mod routes;
    mod verbs;
}
/// Threads, tasks and progress.
mod waiting {
    mod progress;
    pub mod tasks;
    mod threads;
    mod turns;
}
