//! States of a VI.

/// State of a VI, as VIA has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not connected. Receives may be posted, sends not.
    Idle,
    /// A connection was asked for and the program does not have it yet: from [`crate::Vi::peer_request`] until
    /// [`crate::Vi::peer_done`] or [`crate::Vi::peer_wait`] gives it out, even if the peers have met before.
    /// [`crate::Vi::connect`] and [`crate::Request::accept`] hold the VI until they return, so the program never sees this
    /// state in them. Receives may be posted, sends not.
    ConnectPending,
    /// Connected.
    Connected,
    /// The connection broke; everything posted has been flushed. [`crate::Vi::disconnect`] leads back to idle.
    Error,
}
