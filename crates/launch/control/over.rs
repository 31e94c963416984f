//! Ends of a control connection.

use std::io;
use std::time::Duration;

use udeck_boot::wire::WireError;

/// Reasons why a connection is over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Over {
    #[error("no answer for {} s", .0.as_secs_f32())]
    Silent(Duration),
    #[error("its deckrun has ended")]
    Closed,
    #[error("it sent {0}")]
    Nonsense(#[from] WireError),
    #[error("it sent what it must not: {0}")]
    Unfitting(&'static str),
    #[error("what came from it was changed on its way, or made by somebody else")]
    Forged,
    #[error("it does not take what it is sent")]
    Stuck,
    #[error("{0}")]
    Os(io::Error),
}
