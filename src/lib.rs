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

// Its example stands here because it needs a world, which the message layer alone cannot make.
/// # Example
///
/// ```
/// use udeck::Adopted;
/// # fn main() -> udeck::Result {
/// let world = udeck::init()?;
/// let inbox = world.mailbox::<f64>("samples")?;
/// let out = world.postbox::<f64>("samples")?;
///
/// let mut samples = Adopted::new(vec![0.0; 1000]);
/// for round in 1..=3 {
///     samples.fill(f64::from(round));
///     out.post(samples)?;                              // moved, as every message
///     assert_eq!(inbox.retrieve()?[999], f64::from(round));
///     samples = out.returned().expect("copied when it was posted");
/// }
/// let cache = world.stats().registrations;
/// assert_eq!((cache.misses, cache.hits), (1, 2));      // registered once
///
/// let samples: Vec<f64> = samples.into_inner();
/// # assert_eq!(samples, [3.0; 1000]);
/// # drop((inbox, out));
/// # world.finish()
/// # }
/// ```
pub use udeck_deck::Adopted;

/// The Virtual Interface layer, for programs that use it directly.
pub mod via {
    pub use udeck_via::*;
}

/// Processors and pinning.
pub mod sys {
    pub use udeck_sys::{Topology, pin_to_cpu, restrict_to_cpus, usable_cpus};
}
