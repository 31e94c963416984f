//! Errors as exceptions: the classes of `udeck/_errors.py`, with the rank and the mailbox that an error is about.

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyModule;
use udeck::Error;
use udeck::via::Error as ViaError;

use crate::wait;

static CLASSES: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

/// An exception of the class `class`.
#[cold]
pub fn raise(py: Python<'_>, class: &str, text: String, rank: Option<usize>, mailbox: Option<&str>) -> PyErr {
    let make = || -> PyResult<PyErr> {
        let module = CLASSES.get_or_try_init(py, || py.import("udeck._errors").map(Bound::unbind))?;
        let exception = module.bind(py).getattr(class)?.call1((text,))?;
        exception.setattr(intern!(py, "rank"), rank)?;
        exception.setattr(intern!(py, "mailbox"), mailbox)?;
        Ok(PyErr::from_value(exception))
    };
    make().unwrap_or_else(|error| error)
}

/// Exception for a lock that a thread of the parent process held when it forked this process.
#[cold]
pub fn forked(py: Python<'_>) -> PyErr {
    let why = udeck::via::check_process().err().map_or_else(String::new, |error| error.to_string());
    raise(py, "Error", why, None, None)
}

/// The exception for an error of a call that concerns this mailbox.
#[cold]
pub fn exception(py: Python<'_>, error: &Error, mailbox: Option<&str>) -> PyErr {
    if matches!(error, Error::Interrupted) {
        return wait::raised().unwrap_or_else(|| PyKeyboardInterrupt::new_err(()));
    }
    let (class, rank, name) = meaning(error);
    raise(py, class, error.to_string(), rank, name.or(mailbox))
}

/// Exception class for an error, with the rank and the mailbox that the error names.
fn meaning(error: &Error) -> (&'static str, Option<usize>, Option<&str>) {
    match error {
        Error::PeerLost { rank, .. } => ("PeerLost", Some(*rank), None),
        Error::RankFinished { rank, name } => ("RankFinished", Some(*rank), Some(name)),
        Error::NobodyLeft { name } => ("NobodyLeft", None, Some(name)),
        Error::Deadline { .. } => ("Deadline", None, None),
        Error::WouldBlock { .. } => ("WouldBlock", None, None),
        Error::NoSuchMailbox { name, rank, .. } => ("NoSuchMailbox", *rank, Some(name)),
        Error::NameTaken { name, rank } => ("NameTaken", Some(*rank), Some(name)),
        Error::BadName { name, .. } => ("BadName", None, Some(name)),
        Error::MailboxGone { name, rank } => ("MailboxGone", Some(*rank), Some(name)),
        Error::Unreachable { name, rank, .. } => ("Unreachable", Some(*rank), Some(name)),
        Error::WrongType { name, .. } => ("WrongType", None, Some(name)),
        Error::WrongLength { rank, .. } => ("WrongType", Some(*rank), None),
        Error::TooSmall { rank, .. } | Error::ReceiverBufferTooSmall { rank, .. } => {
            ("TooSmall", Some(*rank), None)
        }
        Error::TooLarge { .. } => ("TooLarge", None, None),
        Error::NoMemory { .. } => ("NoMemory", None, None),
        Error::Refused { rank, .. } => ("Undelivered", Some(*rank), None),
        Error::Undelivered { name, rank, .. } => ("Undelivered", Some(*rank), Some(name)),
        Error::Multiple(errors) => match errors.first() {
            Some(first) => meaning(first),
            None => ("Error", None, None),
        },
        Error::RequestFailed { source, .. } => meaning(source),
        Error::SetAsideFull { name, .. } => ("SetAsideFull", None, Some(name)),
        Error::NoSuchRank { rank, .. } => ("NoSuchRank", Some(*rank), None),
        Error::CallMismatch { rank, .. } => ("CallMismatch", Some(*rank), None),
        Error::GroupFailed { .. } => ("GroupFailed", None, None),
        Error::Abandoned { rank, .. } => ("Abandoned", Some(*rank), None),
        Error::OtherHost { rank, .. } => ("Unreachable", Some(*rank), None),
        Error::SegmentMismatch { rank, .. } => ("CallMismatch", Some(*rank), None),
        Error::BadMembers { .. } => ("InvalidArgument", None, None),
        Error::WorldFinished => ("Closed", None, None),
        Error::Config { .. } => ("ConfigError", None, None),
        Error::InvalidArgument { .. } => ("InvalidArgument", None, None),
        Error::Via { source, .. } if matches!(**source, ViaError::InvalidParameter(_)) => {
            ("InvalidArgument", None, None)
        }
        _ => ("Error", None, None),
    }
}

/// Converts a result of the library into one of Python.
pub trait OrRaise<T> {
    /// `mailbox`: the mailbox that the call concerns, if the error does not name it.
    fn or_raise(self, py: Python<'_>, mailbox: Option<&str>) -> PyResult<T>;
}

impl<T> OrRaise<T> for udeck::Result<T> {
    #[inline]
    fn or_raise(self, py: Python<'_>, mailbox: Option<&str>) -> PyResult<T> {
        self.map_err(|error| exception(py, &error, mailbox))
    }
}
