//! The end of every call: a code, and the text of this thread's last error.
#![allow(unsafe_code, reason = "calls of C's")]

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt::Display;

use udeck::{Error, FailureCause};
use udeck_boot::BootError;

use crate::boundary::caught;

/// Defines the codes with their constant texts.
macro_rules! codes {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        $(pub(super) const $name: c_int = $code;)*

        fn text(code: c_int) -> &'static CStr {
            match code {
                $($code => $text,)*
                _ => c"no error code of DECK's",
            }
        }
    };
}

codes! {
    OK = 0, c"no error";
    INVALID = -1, c"an argument is wrong, or its structure was not created, was destroyed, or is too small";
    NO_MEMORY = -2, c"no memory is left";
    TIMED_OUT = -3, c"the time limit ended";
    AGAIN = -4, c"nothing is available now, or the call would have to wait";
    PEER_LOST = -5, c"another rank is lost";
    GONE = -6, c"the mailbox was destroyed, or no rank is left that could answer";
    NO_ENTRY = -7, c"no such name";
    EXISTS = -8, c"the name is taken";
    STATE = -9, c"called before deck_init or after deck_done, or one of these two was called twice";
    UNSUPPORTED = -10, c"not possible here, or no transport reaches that rank";
    MISMATCH = -11, c"ranks disagree on a mailbox's type or on a collective call";
    OWNER_DEAD = -12, c"the lock's holder died: the data may be half written";
    UNDELIVERED = -13, c"messages that were posted earlier were not delivered";
    FAILED = -14, c"the launcher, the network or the system failed";
    INTERNAL = -15, c"a defect of the library: please report it, with the text of deck_errmsg()";
}

/// Error of a call. It is boxed, so that the result of a successful call stays small.
#[derive(Debug)]
pub(super) struct CallError(Box<Why>);

#[derive(Debug)]
struct Why {
    code: c_int,
    words: String,
}

pub(super) type Result<T = ()> = std::result::Result<T, CallError>;

#[cold]
pub(super) fn failure(code: c_int, words: impl Display) -> CallError {
    CallError(Box::new(Why { code, words: words.to_string() }))
}

impl CallError {
    pub fn code(&self) -> c_int {
        self.0.code
    }

    /// Returns the same text with another code.
    pub fn with_code(mut self, code: c_int) -> Self {
        self.0.code = code;
        self
    }

    /// Returns the same code with another text.
    pub fn with_words(mut self, words: impl FnOnce(&str) -> String) -> Self {
        self.0.words = words(&self.0.words);
        self
    }
}

/// The failure for an invalid argument.
#[cold]
pub(super) fn invalid(words: impl Display) -> CallError {
    failure(INVALID, words)
}

impl From<Error> for CallError {
    #[cold]
    fn from(error: Error) -> Self {
        failure(code_of(&error), error)
    }
}

impl From<BootError> for CallError {
    #[cold]
    fn from(error: BootError) -> Self {
        Error::from(error).into()
    }
}

/// The failure of a barrier. DECK_ETIMEDOUT means that the same barrier can be waited for again, which holds for no group that
/// has failed.
pub fn of_barrier(error: Error) -> CallError {
    match error {
        Error::GroupFailed { cause: FailureCause::Deadline, .. } => failure(FAILED, error),
        error => error.into(),
    }
}

fn code_of(error: &Error) -> c_int {
    match error {
        Error::PeerLost { .. } => PEER_LOST,
        Error::Deadline { .. } | Error::GroupFailed { cause: FailureCause::Deadline, .. } => TIMED_OUT,
        Error::WouldBlock { .. } | Error::WouldBlockThread { .. } => AGAIN,
        Error::NoSuchMailbox { .. } => NO_ENTRY,
        Error::NameTaken { .. } => EXISTS,
        Error::MailboxGone { .. } | Error::RankFinished { .. } | Error::NobodyLeft { .. } => GONE,
        Error::Unreachable { .. } | Error::Unsupported { .. } | Error::OtherHost { .. } => UNSUPPORTED,
        Error::WrongType { .. }
        | Error::WrongLength { .. }
        | Error::CallMismatch { .. }
        | Error::GroupFailed { cause: FailureCause::Mismatch, .. }
        | Error::SegmentMismatch { .. } => MISMATCH,
        Error::BadName { .. }
        | Error::BadPayload { .. }
        | Error::TooSmall { .. }
        | Error::ReceiverBufferTooSmall { .. }
        | Error::TooLarge { .. }
        | Error::NoSuchRank { .. }
        | Error::Config { .. }
        | Error::BadMembers { .. }
        | Error::TooManyPermits { .. }
        | Error::InvalidArgument { .. }
        | Error::Pack(_) => INVALID,
        Error::NoMemory { .. } | Error::SetAsideFull { .. } | Error::ReturnQueueFull { .. } => NO_MEMORY,
        Error::Abandoned { .. } => OWNER_DEAD,
        Error::WorldFinished => STATE,
        Error::Undelivered { .. } => UNDELIVERED,
        Error::Multiple(errors) => errors.first().map_or(FAILED, code_of),
        Error::RequestFailed { source, .. } => code_of(source),
        Error::Boot(boot) => code_of_boot(boot),
        Error::Via { source, .. } => match **source {
            udeck::via::Error::InvalidParameter(_) => INVALID,
            udeck::via::Error::NoMemory { .. } => NO_MEMORY,
            _ => FAILED,
        },
        _ => FAILED,
    }
}

fn code_of_boot(error: &BootError) -> c_int {
    match error {
        BootError::NoSuchName { .. } | BootError::NoSuchKey { .. } => NO_ENTRY,
        BootError::Deadline { .. } => TIMED_OUT,
        BootError::NobodyLeft { .. } | BootError::PeerDone { .. } => GONE,
        BootError::TooBig { .. } => INVALID,
        _ => FAILED,
    }
}

thread_local! {
    /// Text of this thread's last error.
    static LAST: RefCell<CString> = RefCell::default();
}

/// Runs a call of `deck.h` and returns its code, even if `body` panics.
#[inline(always)]
pub(super) fn call(name: &'static str, body: impl FnOnce() -> Result) -> c_int {
    let coded = || match body() {
        Ok(()) => OK,
        Err(failure) => ended_by(name, failure),
    };
    caught(coded, |panic| ended_by(name, failure(INTERNAL, format!("the library panicked: {panic}"))))
}

/// Stores the text for [`deck_errmsg`].
#[cold]
#[inline(never)]
pub(super) fn ended_by(name: &str, failure: CallError) -> c_int {
    let Why { code, words } = *failure.0;
    let line = format!("{name}: {words}").replace('\0', "?");
    // A thread that is ending has no place for the text any more.
    let _ = LAST.try_with(|last| last.replace(CString::new(line).unwrap_or_default()));
    code
}

/// `const char *deck_strerror(int code)`
#[unsafe(no_mangle)]
pub extern "C" fn deck_strerror(code: c_int) -> *const c_char {
    text(code).as_ptr()
}

/// `const char *deck_errmsg(void)`
#[unsafe(no_mangle)]
pub extern "C" fn deck_errmsg() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> String {
        // SAFETY: a string of this thread, which no call replaces meanwhile.
        unsafe { CStr::from_ptr(deck_errmsg()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_is_a_code_with_words() {
        assert_eq!(call("deck_x", || panic!("seven")), INTERNAL);
        assert_eq!(message(), "deck_x: the library panicked: seven");
    }

    #[test]
    fn a_good_call_leaves_the_last_words_alone() {
        assert_eq!(call("deck_x", || Err(invalid("no\0good"))), INVALID);
        assert_eq!(call("deck_y", || Ok(())), OK);
        assert_eq!(message(), "deck_x: no?good");
    }

    #[test]
    fn a_failed_group_has_the_code_of_what_failed() {
        let failed = |cause| Error::GroupFailed { group: "g".into(), why: "an earlier call".into(), cause };
        let causes = [FailureCause::Deadline, FailureCause::Mismatch, FailureCause::Other];
        assert_eq!(causes.map(|cause| code_of(&failed(cause))), [TIMED_OUT, MISMATCH, FAILED]);
    }

    #[test]
    fn the_first_of_several_errors_gives_the_code() {
        let lost = Error::PeerLost { rank: 1, how: "killed".into() };
        let gone = Error::MailboxGone { name: "m".into(), rank: 1 };
        assert_eq!(CallError::from(Error::Multiple(vec![lost, gone])).code(), PEER_LOST);
    }
}
