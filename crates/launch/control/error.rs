//! Errors of a control connection.

use std::io;
use std::time::Duration;

use udeck_auth::StreamError;
use udeck_boot::wire::WireError;

/// Reasons why a control connection has ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    #[error("no answer for {} s", .0.as_secs_f32())]
    Silent(Duration),
    #[error("its deckrun has ended")]
    Closed,
    #[error("it sent {0}")]
    Malformed(#[from] WireError),
    #[error("it broke the protocol: {0}")]
    ProtocolBroken(&'static str),
    #[error("a frame from it was changed in transit or forged")]
    Forged,
    #[error("it has stopped reading")]
    NotReading,
    #[error("{0}")]
    Os(io::Error),
}

impl From<StreamError> for ControlError {
    fn from(why: StreamError) -> ControlError {
        match why {
            StreamError::TooLong { length } => WireError::FrameTooLong { length: length as u64 }.into(),
            _ => ControlError::Forged,
        }
    }
}
