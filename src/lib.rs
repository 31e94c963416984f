//! µDECK: user-level messaging for parallel programs.
//!
//! A rank posts messages to named mailboxes of other ranks. Messages move without being copied, over shared memory, RDMA
//! (InfiniBand, RoCE), TCP or UDP. The transports have one interface, the Virtual Interface layer (`udeck-via`).
//!
//! ```
//! # fn main() -> udeck::Result {
//! # udeck::run_local(3, |world| {
//! // let world = udeck::init()?;
//! if world.rank() == 0 {
//!     let inbox = world.mailbox::<f64>("sums")?;
//!     for part in inbox.iter().take(world.size() - 1) {
//!         let part = part?;                                // &[f64] where it lies
//!         println!("{} sent {:.1}", part.source(), part.iter().sum::<f64>());
//!     }                                                    // dropped: the sender gets the buffer back
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
//!
//! # Several mailboxes, several tasks
//!
//! A thread waits at several mailboxes, of whatever types, by [`select`]. With the feature `async`, tasks of any executor
//! wait by `Mailbox::retrieve_async`, `Mailbox::stream` (a `futures_core::Stream`), `Postbox::post_async` and
//! `Postbox::flush_async`. A waiting task blocks no thread of the executor: a thread of the library (`deck-via-watch`, one for 127
//! waiting tasks) sleeps for it. These calls have no deadlines of their own; use the executor's timeouts. A future that is dropped
//! before it is ready has taken no message.
//!
//! ```
//! # #[cfg(feature = "async")]
//! # fn main() -> udeck::Result {
//! # use std::{pin::pin, sync::Arc, task::{Context, Poll, Wake}, thread::{self, Thread}};
//! # struct Unpark(Thread);
//! # impl Wake for Unpark {
//! #     fn wake(self: Arc<Self>) { self.0.unpark() }
//! # }
//! # fn block_on<F: Future>(future: F) -> F::Output {
//! #     let (mut future, waker) = (pin!(future), Arc::new(Unpark(thread::current())).into());
//! #     loop {
//! #         match future.as_mut().poll(&mut Context::from_waker(&waker)) {
//! #             Poll::Ready(output) => return output,
//! #             Poll::Pending => thread::park(),
//! #         }
//! #     }
//! # }
//! # udeck::run_local(2, |world| {
//! if world.rank() == 0 {
//!     let mut inbox = world.mailbox::<u64>("numbers")?;
//!     let sum = block_on(async {                           // or a task of the executor that you have
//!         let mut sum = 0;
//!         for _ in 0..3 {
//!             sum += inbox.retrieve_async().await?[0];
//!         }
//!         Ok::<_, udeck::Error>(sum)
//!     });
//!     assert_eq!(sum?, 6);
//! } else {
//!     let mut numbers = world.postbox::<u64>("numbers")?;
//!     block_on(async {
//!         for number in 1..=3 {
//!             let mut buf = world.buf::<u64>(1)?;
//!             buf[0] = number;
//!             numbers.post_async(buf).await?;              // waits for room, if it must, as a task
//!         }
//!         Ok::<_, udeck::Error>(())
//!     })?;
//! }
//! world.finish()
//! # })
//! # }
//! # #[cfg(not(feature = "async"))]
//! # fn main() {}
//! ```
//!
//! # Panics in the library's threads
//!
//! The library has threads of its own, and some of them call closures of the program. A panic in such a thread does not end the
//! process. It is printed to stderr, and the calls that it concerns return an error.
//!
//! std prints a panic before it can be caught, and blocks if stderr is a pipe that nobody reads. So the library installs a panic hook
//! ([`std::panic::set_hook`]) once, when it starts its first thread: in [`init`], or when the first NIC is opened. For panics of the
//! library's threads the hook prints one line without blocking. For all other threads it calls the hook that was installed before. A
//! hook that a program installs later gets all panics. If that hook blocks, so does the thread of the library.

#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro))]

#[cfg(doctest)]
mod book;
pub mod doctor;
mod init;
pub mod names;
mod registry;
mod settings;
pub mod trace;

pub use init::{init, init_with, run_local};
pub use registry::{NicOptions, open_nic, transports};
pub use udeck_deck::*;

/// # Example
///
/// ```
/// # fn main() -> udeck::Result {
/// let world = udeck::init()?;
/// let inboxes = [world.mailbox::<u8>("one")?, world.mailbox::<u8>("two")?];
/// let outs = [world.postbox::<u8>("one")?, world.postbox::<u8>("two")?];
///
/// let mut buf = world.buf::<u8>(100_000)?;
/// buf.fill(7);
/// let message = buf.share();                           // sealed: read-only from here on
/// udeck::post_all(&outs, &message)?;                   // lent twice, copied nowhere
/// assert_eq!(world.stats().bytes_copied, 0);
///
/// let received = [inboxes[0].retrieve()?, inboxes[1].retrieve()?];
/// let message = world.unshare(message).expect_err("both still read it");
/// drop(received);
/// let buf = world.unshare(message).expect("the program's alone again");
/// # drop((inboxes, outs, buf));
/// # world.finish()
/// # }
/// ```
pub use udeck_deck::SharedBuf;

/// # Example
///
/// ```
/// # fn main() -> udeck::Result {
/// # udeck::run_local(2, |world| {
/// if world.rank() == 0 {
///     let inbox = world.mailbox::<f64>("rows")?;
///     assert_eq!(inbox.retrieve()?.len(), 100_000);
/// } else {
///     let out = world.postbox::<f64>("rows")?;
///     let row = out.post_nonblocking(world.buf(100_000)?)?;  // never waits
///     let sum: u64 = (0..1_000_000).sum();             // meanwhile, it travels
///     row.wait()?;                                     // sent, or why not
/// #     assert_eq!(sum, 499_999_500_000);
/// }
/// # world.finish()
/// # })
/// # }
/// ```
pub use udeck_deck::PostRequest;

/// # Deriving it
///
/// A type of the program's own derives it with [`bytemuck`], which this package exports: no dependency of the
/// program's own is needed, but the derive has to be told where it is.
///
/// ```
/// use udeck::bytemuck::{Pod, Zeroable};
///
/// #[derive(Clone, Copy, Pod, Zeroable)]
/// #[repr(C)]
/// #[bytemuck(crate = "udeck::bytemuck")]
/// struct Particle {
///     place: [f64; 3],
///     charge: i64,
/// }
///
/// # fn main() -> udeck::Result {
/// let world = udeck::init()?;
/// let inbox = world.mailbox::<Particle>("particles")?;
/// world.postbox("particles")?.post(&[Particle { place: [0.0; 3], charge: -1 }])?;
/// assert_eq!(inbox.retrieve()?[0].charge, -1);
/// # drop(inbox);
/// # world.finish()
/// # }
/// ```
pub use udeck_deck::Pod;

// The example stands here because it needs a world, which the message layer alone cannot make.
/// # Example
///
/// ```
/// use udeck::ExternalBuf;
/// # fn main() -> udeck::Result {
/// let world = udeck::init()?;
/// let inbox = world.mailbox::<f64>("samples")?;
/// let out = world.postbox::<f64>("samples")?;
///
/// let mut samples = ExternalBuf::new(vec![0.0; 1000]);
/// for round in 1..=3 {
///     samples.fill(f64::from(round));
///     out.post(samples)?;                              // moved, as every message
///     assert_eq!(inbox.retrieve()?[999], f64::from(round));
///     samples = out.take_returned().expect("copied when it was posted");
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
pub use udeck_deck::ExternalBuf;

/// The Virtual Interface layer, for programs that use it directly.
pub mod via {
    pub use udeck_via::*;
}

/// Processors and pinning.
pub mod sys {
    pub use udeck_sys::{Topology, pin_to_cpu, restrict_to_cpus, usable_cpus};
}
