//! Fault points: named points at which a test can kill the process, as `kill -9` would.
//!
//! A point costs nothing unless the crate is built with the feature `fault`, which only the kill harness
//! does. `DECK_FAULT=NAME:N` kills at the N-th passage (from 1) of point NAME.

/// Passes the point `name`; ends the process by SIGKILL if the test asked for it.
#[cfg(not(feature = "fault"))]
#[inline(always)]
pub fn point(_name: &'static str) {}

#[cfg(feature = "fault")]
pub use armed::{POINTS, point};

#[cfg(feature = "fault")]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// All points, in the order in which a message meets them.
    pub const POINTS: &[&str] = &[
        "post.claimed",
        "post.written",
        "post.published",
        "doorbell.leaf",
        "doorbell.summary",
        "doorbell.unparked",
        "rdma.entered",
        "rdma.copied",
        "rdma.left",
        "retrieve.seen",
        "retrieve.taken",
        "retrieve.credited",
        "release.claimed",
        "release.published",
        "accept.accepted",
        "announce.said",
        "announce.taken",
        "announce.answered",
        "copy.sent",
        "copy.taken",
        "read.announced",
        "read.fetched",
        "handshake.asked",
        "handshake.granted",
        "handshake.sent",
        "handshake.received",
    ];

    struct Plan {
        name: String,
        passages_left: AtomicU64,
    }

    fn plan() -> Option<&'static Plan> {
        static PLAN: OnceLock<Option<Plan>> = OnceLock::new();
        PLAN.get_or_init(|| {
            let text = std::env::var("DECK_FAULT").ok()?;
            let (name, count) = text.rsplit_once(':').expect("DECK_FAULT=NAME:N");
            assert!(POINTS.contains(&name), "DECK_FAULT names no point: {name}; there are {POINTS:?}");
            let passages_left = AtomicU64::new(count.parse().expect("DECK_FAULT=NAME:N, N a number"));
            Some(Plan { name: name.to_owned(), passages_left })
        })
        .as_ref()
    }

    /// Passes the point `name`; ends the process by SIGKILL if the test asked for it.
    pub fn point(name: &'static str) {
        debug_assert!(POINTS.contains(&name), "unlisted fault point {name}");
        let Some(plan) = plan() else { return };
        if plan.name == name && plan.passages_left.fetch_sub(1, Ordering::Relaxed) == 1 {
            // SAFETY: sends a signal to ourselves; nothing is read or written.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
            loop {
                std::thread::park(); // the signal is on its way
            }
        }
    }
}
