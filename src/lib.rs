//! µDECK: user-level messaging for parallel programs.
//!
//! Named mailboxes and messages that move without being copied, over a Virtual Interface layer, over shared memory (and,
//! in later versions, networks).
//!
//! ```
//! # fn main() -> udeck::Result {
//! # udeck::run_local(3, |world| {
//! // let world = udeck::init()?;
//! if world.rank() == 0 {
//!     let inbox = world.mailbox::<f64>("sums")?;
//!     for part in inbox.iter().take(world.size() - 1) {
//!         let part = part?;                                // &[f64] where it lies
//!         println!("{} sent {:.1}", part.from(), part.iter().sum::<f64>());
//!     }                                                    // dropped: the buffer goes home
//! } else {
//!     let sums = world.postbox::<f64>("sums")?;            // waits until it exists
//!     let mut buf = world.buf::<f64>(1 << 17)?;            // registered, zeroed
//!     buf.fill(world.rank() as f64);
//!     sums.post(buf)?;                                     // moved: no copy, no wait
//! }
//! world.barrier()?;
//! world.finish()
//! # })
//! # }
//! ```

mod init;
pub mod names;
mod registry;

pub use init::{init, init_with, run_local};
pub use registry::{open_nic, transports};
pub use udeck_deck::*;

/// The Virtual Interface layer, for programs that use it directly.
pub mod via {
    pub use udeck_via::*;
}

/// Processors and pinning.
pub mod sys {
    pub use udeck_sys::{Topology, pin_to_cpu, usable_cpus};
}
