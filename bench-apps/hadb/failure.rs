//! Errors that end a run without a result.

use std::{io, time::Duration};

/// Why a rank gives up.
#[derive(Debug, thiserror::Error)]
pub enum HadbError {
    #[error(transparent)]
    Messaging(#[from] udeck::Error),
    #[error(transparent)]
    Dat(#[from] udeck_dat::Error),
    #[error(transparent)]
    Launch(#[from] deckrun::LaunchError),
    #[error("{0}")]
    Options(String),
    #[error("hadb {line}: {why}")]
    Run { line: String, why: String },
    #[error("rank {from} sent what this build does not understand: do all ranks run the same hadb?")]
    BadMessage { from: usize },
    #[error("rank {peer} has acknowledged nothing for {} s, and is not known to be dead", after.as_secs())]
    Silent { peer: usize, after: Duration },
    #[error("no connection with rank {peer}: {what:?}")]
    Unconnected { peer: usize, what: udeck_dat::Connection },
    #[error("the connection with rank {peer} broke {} s ago, and the rank is not known to be dead", after.as_secs())]
    Broken { peer: usize, after: Duration },
    #[error("rank {peer} takes no messages: its queue is full")]
    Full { peer: usize },
    #[error("waited {} s in vain for {what}", after.as_secs())]
    Overdue { what: String, after: Duration },
    #[error("rank {0} has died unexpectedly: the run has no result")]
    Lost(usize),
    #[error("{what}: {source}")]
    System { what: &'static str, source: io::Error },
    /// A check at another client failed.
    #[error("the run was ended")]
    Stopped,
    /// A check of an answer failed: the run ends.
    #[error("a check failed: {0}")]
    Check(String),
}

/// Result of a rank's work.
pub type Result<T = (), E = HadbError> = std::result::Result<T, E>;

impl HadbError {
    /// Adds the attempted operation to an error of the system.
    pub fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| HadbError::System { what, source: source.into() }
    }
}

impl<M> From<udeck::PostError<M>> for HadbError {
    fn from(error: udeck::PostError<M>) -> Self {
        HadbError::Messaging(error.into())
    }
}
