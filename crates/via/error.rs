//! Errors of VI operations. Descriptors that were accepted report by [`crate::Status`] instead.

use std::borrow::Cow;
use std::io;
use std::time::Duration;

use crate::caps::Caps;
use crate::rejection::{RejectKind, Rejection};
use crate::state::State;

/// Result of a VI operation.
pub type Result<T = (), E = Error> = std::result::Result<T, E>;

/// A VI operation that was not carried out. VIA's return code in brackets.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The NIC lacks an ability. \[none in VIA\]
    #[error("{what} needs {needed}, and this NIC has {have}")]
    Unsupported {
        /// The operation that was asked for.
        what: &'static str,
        /// The missing ability.
        needed: Caps,
        /// The abilities of this NIC.
        have: Caps,
    },
    /// The VI is not in a state that allows this. \[INVALID_STATE\]
    #[error("{what}: the VI is {state:?}")]
    InvalidState {
        /// The operation that was asked for.
        what: &'static str,
        /// The state of the VI.
        state: State,
    },
    /// A descriptor, size or name that can never work. \[INVALID_PARAMETER, DESCRIPTOR_ERROR\]
    #[error("{0}")]
    InvalidParameter(String),
    /// Memory and VI have different protection tags, or the NIC has no such tag (any more). \[INVALID_PTAG\]
    #[error(
        "the protection tag is not the VI's, or none of this NIC's: memory and VI need the same living one"
    )]
    InvalidPtag,
    /// An object that shall end is still in use. \[ERROR_RESOURCE\]
    #[error("{what} is in use by {by}: end that first")]
    InUse {
        /// The object that shall end.
        what: String,
        /// The object that uses it.
        by: String,
    },
    /// The two VIs have different reliability levels. \[INVALID_RELIABILITY_LEVEL\]
    #[error("the peer's VI has another reliability level")]
    InvalidReliability,
    /// A queue, table or arena is full; more may fit later. \[ERROR_RESOURCE\]
    #[error("{what} is full ({bound})")]
    Full {
        /// The queue, table or arena.
        what: &'static str,
        /// Its bound, in words. (No allocation where posts are refused again and again.)
        bound: Cow<'static, str>,
    },
    /// No memory left. \[ERROR_RESOURCE\]
    #[error("no room for {asked} bytes in the {arena} arena: {full}; {remedy}")]
    NoMemory {
        /// Bytes asked for.
        asked: usize,
        /// Bytes in use.
        used: usize,
        /// The arena's bound in bytes.
        limit: usize,
        /// Name of the arena.
        arena: &'static str,
        /// The exhausted resource of the arena, in words: its bytes, or its table of blocks.
        full: String,
        /// Advice to the user.
        remedy: &'static str,
    },
    /// The deadline passed. \[TIMEOUT\]
    #[error("{what}: nothing within {waited:?}")]
    Timeout {
        /// The awaited event.
        what: String,
        /// Time waited.
        waited: Duration,
    },
    /// No listener has the discriminator. \[NO_MATCH\]
    #[error("no listener at discriminator {0:?}")]
    NoMatch(String),
    /// The peer refused the connection. \[REJECT\]
    #[error("the peer refused the connection: {0}")]
    Rejected(Rejection),
    /// The peer closed the connection in order.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer died or broke the protocol; the VI is in the Error state.
    #[error("the connection is lost: {0}")]
    Lost(String),
    /// RDMA outside of the memory that the peer exposed. \[RDMA protection error\]
    #[error(
        "the remote memory is not exposed for this access (handle {handle:#010x}, {len} bytes at {offset})"
    )]
    RdmaProtection {
        /// Handle that was used.
        handle: u32,
        /// Byte offset in the window.
        offset: usize,
        /// Length in bytes.
        len: usize,
    },
    /// The name service could not help: the name or address, the question, and the entries that exist. \[ERROR_NAMESERVICE\]
    #[error(transparent)]
    NameService(Box<crate::names::NameError>),
    /// This host lacks something that a NIC needs (hardware, or a library), or the path to one peer does (on one host, the
    /// same user). Other NICs may do. \[ERROR_RESOURCE\]
    #[error("{what} cannot be used here: {why}")]
    Unavailable {
        /// The missing thing.
        what: String,
        /// The state that was found instead.
        why: String,
    },
    /// The operating system refused.
    #[error("{what}: {source}")]
    Os {
        /// The operation that was tried.
        what: String,
        /// The operating system's reason.
        source: io::Error,
    },
}

impl Error {
    /// An error of the operating system, with the operation that was tried.
    pub fn os(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Error::Os { what: what.into(), source: source.into() }
    }

    /// The error of a connection that a process refused in these words.
    pub fn rejected(words: impl Into<String>) -> Self {
        Error::Rejected(Rejection::new(RejectKind::Refused, words))
    }

    /// The error of a requester that was refused at this discriminator.
    #[cold]
    pub fn of_rejection(rejection: Rejection, discriminator: &[u8]) -> Self {
        match rejection.kind {
            RejectKind::NoListener => Error::NoMatch(String::from_utf8_lossy(discriminator).into_owned()),
            RejectKind::Reliability => Error::InvalidReliability,
            _ => Error::Rejected(rejection),
        }
    }

    /// The error of a forked child: the NIC belongs to its parent.
    #[cold]
    pub(crate) fn forked() -> Self {
        let source = udeck_sys::process::check().err().unwrap_or_else(|| io::ErrorKind::Unsupported.into());
        Error::os("using a NIC", source)
    }

    /// Whether the peer refused a connection only because it has no place for it now
    /// ([`Request::reject_for_now`](crate::Request::reject_for_now)): a later request may succeed.
    pub fn is_no_place(&self) -> bool {
        matches!(self, Error::Rejected(rejection) if rejection.kind == RejectKind::NoPlace)
    }

    /// Whether the connection is over.
    pub fn is_final(&self) -> bool {
        matches!(self, Error::Closed | Error::Lost(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rejection_is_an_error_and_only_one_may_be_tried_again() {
        for kind in RejectKind::ALL {
            let error = Error::of_rejection(kind.into(), b"at");
            assert_eq!(error.is_no_place(), kind == RejectKind::NoPlace, "{error}");
            let is_expected = match (kind, &error) {
                (RejectKind::NoListener, Error::NoMatch(at)) => at == "at",
                (RejectKind::Reliability, Error::InvalidReliability) => true,
                (_, Error::Rejected(rejection)) => rejection.kind == kind,
                _ => false,
            };
            assert!(is_expected, "{kind:?}: {error}");
        }
        assert_eq!(Error::rejected("busy").to_string(), "the peer refused the connection: busy");
        let same = Rejection::from(RejectKind::Reliability).to_string();
        assert_eq!(same, Error::InvalidReliability.to_string());
    }
}
