//! Why a call was not carried out.

use std::time::Duration;

use crate::core::code::Code;
use crate::core::state::EpState;

/// Result of a call.
pub type Result<T = (), E = Error> = std::result::Result<T, E>;

/// A call that was not carried out: which one, by uDAPL's name, and why. Work that was accepted reports by a
/// [`Status`](super::Status) instead.
///
/// uDAPL's return code in brackets; [`Error::name`] gives it, too.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The end point's state forbids it. \[DAT_INVALID_STATE\]
    #[error("{call}: the end point is {state:?}")]
    InvalidState {
        /// The call.
        call: &'static str,
        /// The end point's state.
        state: EpState,
    },
    /// The arguments can never be valid. \[DAT_INVALID_PARAMETER\]
    #[error("{call}: {what}")]
    InvalidParameter {
        /// The call.
        call: &'static str,
        /// Describes the wrong argument.
        what: String,
    },
    /// Local and remote memory do not fit, or more than an adapter sends in one piece. \[DAT_LENGTH_ERROR\]
    #[error("{call}: {len} bytes, and there is room for {room}: post less at a time")]
    Length {
        /// The call.
        call: &'static str,
        /// Bytes of the request.
        len: usize,
        /// Most bytes that the request may have.
        room: usize,
    },
    /// Memory, end point or zone are not of one protection zone. \[DAT_PROTECTION_VIOLATION\]
    #[error(
        "{call}: the memory is of another protection zone than the end point, or lies outside what is registered"
    )]
    Protection {
        /// The call.
        call: &'static str,
    },
    /// The memory lacks the right for this access. \[DAT_PRIVILEGES_VIOLATION\]
    #[error("{call}: the memory is not registered for that access")]
    Privileges {
        /// The call.
        call: &'static str,
    },
    /// A queue or table is full; more may fit when something of it has ended. \[DAT_INSUFFICIENT_RESOURCES,
    /// DAT_QUEUE_FULL\]
    #[error("{call}: {what} is full")]
    Full {
        /// The call.
        call: &'static str,
        /// The queue or table that is full.
        what: &'static str,
    },
    /// The qualifier is served on this host already. \[DAT_CONN_QUAL_IN_USE\]
    #[error("{call}: qualifier {qualifier} is served on this host already: take another one, or Psp::any")]
    QualifierInUse {
        /// The call.
        call: &'static str,
        /// The qualifier.
        qualifier: u64,
    },
    /// Nothing came until the deadline. \[DAT_TIMEOUT_EXPIRED\]
    #[error("{call}: nothing within {waited:?}")]
    Timeout {
        /// The call.
        call: &'static str,
        /// Time that the call waited.
        waited: Duration,
    },
    /// Another thread waits for the object, or the object is in use. \[DAT_INVALID_STATE\]
    #[error("{call}: {what}")]
    InUse {
        /// The call.
        call: &'static str,
        /// Describes the other use.
        what: &'static str,
    },
    /// The wait was told to stop ([`Evd::set_unwaitable`](super::Evd::set_unwaitable)). \[DAT_ABORT\]
    #[error("{call}: ended, because the dispatcher must not be waited for")]
    Aborted {
        /// The call.
        call: &'static str,
    },
    /// This host or its settings lack what an adapter needs; or there is no thread. \[DAT_INSUFFICIENT_RESOURCES\]
    #[error("{call}: {why}")]
    Unavailable {
        /// The call.
        call: &'static str,
        /// The reason.
        why: String,
    },
}

impl Error {
    /// uDAPL's name of it, as `dat_error.h` has it.
    pub fn name(&self) -> &'static str {
        match self {
            Error::InvalidState { .. } | Error::InUse { .. } => "DAT_INVALID_STATE",
            Error::InvalidParameter { .. } => "DAT_INVALID_PARAMETER",
            Error::Length { .. } => "DAT_LENGTH_ERROR",
            Error::Protection { .. } => "DAT_PROTECTION_VIOLATION",
            Error::Privileges { .. } => "DAT_PRIVILEGES_VIOLATION",
            Error::Full { .. } | Error::Unavailable { .. } => "DAT_INSUFFICIENT_RESOURCES",
            Error::QualifierInUse { .. } => "DAT_CONN_QUAL_IN_USE",
            Error::Timeout { .. } => "DAT_TIMEOUT_EXPIRED",
            Error::Aborted { .. } => "DAT_ABORT",
        }
    }

    /// Whether the same call may succeed later, when something has ended.
    pub fn is_full(&self) -> bool {
        matches!(self, Error::Full { .. })
    }

    pub(super) fn parameter(call: &'static str, what: impl Into<String>) -> Error {
        Error::InvalidParameter { call, what: what.into() }
    }

    pub(super) fn unavailable(call: &'static str, why: impl std::fmt::Display) -> Error {
        Error::Unavailable { call, why: why.to_string() }
    }

    /// Translates a code of the objects in `core`. `full` names the queue or table, for codes that say "full"; `state` is the end point's.
    #[cold]
    pub(super) fn of(call: &'static str, code: Code, full: &'static str, state: EpState) -> Error {
        match Code(code.0 & 0xffff_0000) {
            Code::INVALID_STATE => Error::InvalidState { call, state },
            Code::PROTECTION_VIOLATION => Error::Protection { call },
            Code::PRIVILEGES_VIOLATION => Error::Privileges { call },
            Code::INSUFFICIENT_RESOURCES | Code::QUEUE_FULL => Error::Full { call, what: full },
            Code::ABORT => Error::Aborted { call },
            _ => Error::parameter(call, format!("refused with {:#010x}", code.0)),
        }
    }
}
