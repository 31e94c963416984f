//! The connection between deckrun where the job was started, the *root*, and deckrun on another host, a *node*.
//!
//! ```text
//!   root                                              node
//!    │ starts an agent (ssh), writes secret and spec to its standard input ──► reads them
//!    │ ◄──────────────────────── connects; both prove themselves        (secure.rs)
//!    │ Start ──────────────────────────────────────────► starts its ranks
//!    │ ◄──── Started; then both ways until all of its ranks have ended  (wire.rs)
//!    │       name service, output, input, signals, ends
//!    └ ◄──── Bye, and the connection's end
//! ```
//!
//! A node learns from its agent alone what to run. One TCP connection, the *control connection*, carries
//! everything else of its ranks ([`framed_stream`]). Its frames can be made and read only with the host's control
//! key, which ranks do not have ([`secure`]). Unread data is bounded for each kind: output and input have a window
//! ([`WINDOW`]), and so have each rank's data for and from the name service. When the root dies,
//! the connection ends, and the node ends its ranks.

pub(crate) mod error;
pub(crate) mod framed_stream;
pub(crate) mod secure;
pub(crate) mod wire;

use std::time::Duration;

/// Window of unacknowledged output, for each stream and node, and of unacknowledged input, in bytes. One piece
/// more may be in flight.
pub(crate) const WINDOW: usize = 64 << 10;

/// Default time without a sign of life after which the other side counts as lost.
pub(crate) const DETECT: Duration = Duration::from_secs(10);
