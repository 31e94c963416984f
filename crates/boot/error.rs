//! Errors between a rank and its launcher.

use std::{io, time::Duration};

use crate::{Ranks, start::StartError, wire::WireError};

/// Error of a bootstrap call. `what` is the call in words: "lookup of `sums`".
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BootError {
    /// Another rank has registered the name.
    #[error(
        "the name `{name}` is taken: rank {owner} registered it. Choose another, or unregister it there first"
    )]
    NameTaken {
        /// The name.
        name: String,
        /// The rank that has it.
        owner: u32,
    },

    /// No rank has registered this name.
    #[error("no rank has registered the name `{name}`{}. {}", after(waited), Listing(existing, *total))]
    NoSuchName {
        /// The name.
        name: String,
        /// The first names that do exist, sorted; at most [`wire::MAX_LISTED`](crate::wire::MAX_LISTED).
        existing: Vec<String>,
        /// How many names exist.
        total: u64,
        /// How long the answer took; zero when no wait was asked for.
        waited: Duration,
    },

    /// No rank has stored a value under this key.
    #[error("no rank has put a value under the key `{key}`{}. {}", after(waited), Listing(existing, *total))]
    NoSuchKey {
        /// The key.
        key: String,
        /// The first keys that do exist, sorted; at most [`wire::MAX_LISTED`](crate::wire::MAX_LISTED).
        existing: Vec<String>,
        /// How many keys exist.
        total: u64,
        /// How long the answer took; zero when no wait was asked for.
        waited: Duration,
    },

    /// No rank is left that could do what the call waits for.
    #[error("{what}: no other rank is left that could answer (all are done or lost)")]
    NobodyLeft {
        /// The call.
        what: String,
    },

    /// The deadline has passed.
    #[error("{what}: not answered within {waited:.1?}{}", missing_text(missing))]
    Deadline {
        /// The call.
        what: String,
        /// How long the call has waited.
        waited: Duration,
        /// For a fence or an agreement: the ranks that had not come to it, sorted. Otherwise empty.
        missing: Vec<u32>,
    },

    /// The caller's own check ended the wait.
    #[error("{what}: the wait was interrupted")]
    Interrupted {
        /// The call.
        what: String,
    },

    /// A rank that the call needs was lost.
    #[error("{what}: rank {rank} is lost: {how}")]
    PeerLost {
        /// The call.
        what: String,
        /// The rank that ended.
        rank: u32,
        /// How it ended.
        how: String,
    },

    /// A rank that the call needs has said goodbye.
    #[error("{what}: rank {rank} has finished")]
    PeerDone {
        /// The call.
        what: String,
        /// The rank that ended.
        rank: u32,
    },

    /// A bound would be exceeded.
    #[error("{what}: {bound} may be at most {limit}, this would make it {got}")]
    TooBig {
        /// The call.
        what: String,
        /// The bounded quantity, with its unit.
        bound: String,
        /// The bound.
        limit: u64,
        /// The value that the call would have led to.
        got: u64,
    },

    /// The launcher refused the call.
    #[error("{what}: refused by the launcher: {why}")]
    Refused {
        /// The call.
        what: String,
        /// The launcher's reason.
        why: String,
    },

    /// The connection to the launcher has ended.
    #[error("{what}: {server_name} is gone ({why}); this job cannot go on")]
    LauncherGone {
        /// The call.
        what: String,
        /// The process that served this job's names: "the launcher", or rank 0.
        server_name: &'static str,
        /// The sign of the connection's end.
        why: String,
    },

    /// The descriptor that the environment names cannot be used.
    #[error(
        "{}={value} does not lead to a launcher: {why}. A rank's own children are no ranks: \
         start them with this variable unset, or start them by deckrun",
        crate::ENV_BOOT_FD
    )]
    BadDescriptor {
        /// The variable's value.
        value: String,
        /// The reason.
        why: String,
    },

    /// This process has joined its job already.
    #[error(
        "this process has joined its job already, and a process has one world: keep what the first `init` returned, and lend it to \
         whoever needs it"
    )]
    AlreadyJoined,

    /// The launcher's bytes are not of this protocol.
    #[error("{what}: the launcher sent {source}; are it and this program of the same version?")]
    Protocol {
        /// The call.
        what: String,
        /// The fault of the bytes.
        source: WireError,
    },

    /// The launcher that started this process offers no usable way into a job.
    #[error(transparent)]
    Start(#[from] StartError),

    /// The operating system refused an operation.
    #[error("{what}: {source}")]
    Io {
        /// The call.
        what: String,
        /// The system's reason.
        source: io::Error,
    },
}

fn after(waited: &Duration) -> String {
    if waited.is_zero() { String::new() } else { format!(" within {waited:.1?}") }
}

fn missing_text(missing: &[u32]) -> String {
    if missing.is_empty() { String::new() } else { format!("; still missing: {}", Ranks(missing)) }
}

struct Listing<'a>(&'a [String], u64);

impl std::fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Listing(listed, total) = self;
        if listed.is_empty() {
            return f.write_str("None exists");
        }
        f.write_str("There are: ")?;
        for (i, name) in listed.iter().enumerate() {
            write!(f, "{}`{name}`", if i == 0 { "" } else { ", " })?;
        }
        match total.saturating_sub(listed.len() as u64) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn no_such(existing: &[&str], total: u64, waited: Duration) -> String {
        let existing = existing.iter().map(ToString::to_string).collect();
        BootError::NoSuchName { name: "x".into(), existing, total, waited }.to_string()
    }

    #[test]
    fn messages_say_what_exists_and_who_is_missing() {
        assert_eq!(no_such(&[], 0, Duration::ZERO), "no rank has registered the name `x`. None exists");
        assert_eq!(
            no_such(&["a", "b"], 5, Duration::from_secs(2)),
            "no rank has registered the name `x` within 2.0s. There are: `a`, `b` and 3 more"
        );
        let late = BootError::Deadline {
            what: "fence".into(),
            waited: Duration::from_secs(1),
            missing: vec![0, 1, 4],
        };
        assert_eq!(late.to_string(), "fence: not answered within 1.0s; still missing: ranks 0-1, 4");
    }
}
