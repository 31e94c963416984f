//! The connection between deckrun where the job was started, the *root*, and deckrun on another host, a *node*.
//!
//! ```text
//!   root                                              node
//!    │ starts an agent (ssh), writes secret and spec to its standard input ──► reads them
//!    │ ◄──────────────────────── connects; Hello, Challenge, Proof      (auth.rs)
//!    │ Start ──────────────────────────────────────────► starts its ranks
//!    │ ◄──── Started; then both ways until all of its ranks have ended  (wire.rs)
//!    │       name service, output, input, signals, ends
//!    └ ◄──── Bye, and the connection's end
//! ```
//!
//! What a node runs it learns from its agent only. One TCP connection, the *control connection*, carries everything else of its
//! ranks ([`framed_stream`]), in frames that nobody can make who does not know the host's control key, as ranks do not ([`seal`]).
//! What is not read has a bound for each kind: output and input have a window ([`WINDOW`]), and so have each rank's words with the
//! name service, either way. The root's end is the node's: it ends its ranks when the connection does.

pub(crate) mod auth;
pub(crate) mod framed_stream;
pub(crate) mod over;
pub(crate) mod seal;
pub(crate) mod wire;

use std::time::Duration;

/// What may be under way of output, for each stream and node, or of input, before the receiver has said that it has dealt
/// with it, in bytes; more by one piece at most.
pub(crate) const WINDOW: usize = 64 << 10;

/// After how long without a sign of life the other side counts as gone, unless told otherwise.
pub(crate) const DETECT: Duration = Duration::from_secs(10);
