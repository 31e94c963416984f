//! A simulated fabric: several NICs in one process, with every ability of VIA. Its links lose, duplicate, reorder,
//! corrupt, delay and stall frames, and its NICs die, where a test wants it or a seed decides it.
//!
//! ```
//! use udeck_sim::{Fabric, Link, Options, When};
//!
//! let fabric = Fabric::new(42);
//! let (a, b) = (fabric.nic("a", Options::default())?, fabric.nic("b", Options::default())?);
//! fabric.set_link("a", "b", Link { lose: When::Frames(vec![3]), ..Link::default() });
//! # Ok::<(), udeck_via::Error>(())
//! ```
//!
//! **Time is virtual.** A frame in transit arrives at its moment. The clock advances from event to event whenever a
//! thread has nothing to do ([`Pace`]), or by [`Fabric::advance`]. A program driven by one thread does the same for
//! the same seed, down to the [`Fabric::trace`]; [`replay`] runs a test over seeds and says which one failed.
//!
//! **Guarantees hold, or the connection breaks.** A reliable connection puts frames in order, drops duplicates, and
//! breaks at both ends when a frame is lost (VIA: "loss detected, connection broken"). An unreliable one delivers
//! messages as they come, each at most once. A frame carries a checksum of its header and payload; corruption flips
//! a bit of the copy in transit, and the receiver's sum does not match. On an unreliable connection the frame is
//! dropped; a reliable one breaks.
//!
//! **Reliable reception has a way back.** When a program has placed a message (copied it, dropped what it was lent,
//! or found no descriptor), the receipt travels to the sender as a frame of the other direction, with all the faults
//! of that link. The send is not complete until the receipt is back. A lost or corrupt receipt breaks the
//! connection, and the send ends with a transport error although the message arrived: the sender cannot know. Where
//! nobody waits (a hand-off), no receipt is sent.
//!
//! **RDMA travels like messages.** A write is a frame with its data, in order with the messages of a reliable
//! connection. A read is a question and an answer, with the data as they are when the question comes. Messages
//! behind a fence wait at their sender until the reads before it are complete.
//!
//! Simplifications:
//! * Credits take no time, nor do returned buffers for which no receipt is owed.
//! * A refusal of RDMA takes no way back: the target notices forbidden RDMA when it comes, and both ends of a
//!   reliable connection break at that same moment.
//! * Requests, answers and ends of connections are delayed and stalled but never lost or corrupted.
//!
//! Only these block: a connection request, a sleep on a completion queue, and [`Fabric::advance`] while a listener works.
//!
//! | file | what it is |
//! |---|---|
//! | `world/turns` | ranks that take turns, one running at a time, and networks that decide when frames arrive |
//! | `world` | all state, under one lock: time, NICs, due events |
//! | `link` | the faults that a link does to frames |
//! | `frame`, `checksum` | frames and their contents |
//! | `transit` | the way of a message: posted, in transit, arrived |
//! | `loans` | lent buffers, and receipts for senders that wait for them |
//! | `connection` | the two ends, and how they end |
//! | `rdma`, `fence` | RDMA, and messages that wait for reads |
//! | `endpoint`, `borrowed`, `waiter`, `device`, `request` | the contract of `udeck_via::transport` |
//! | `memory` | heap-backed arenas |
//! | `trace`, `replay` | the record of events, and how to repeat a run |

#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro))]

mod borrowed;
mod checksum;
mod connection;
mod device;
mod endpoint;
mod fence;
mod frame;
mod link;
mod loans;
mod memory;
mod rdma;
pub mod replay;
mod request;
pub mod trace;
mod transit;
mod waiter;
mod world;

use std::sync::{Arc, mpsc};
use std::time::Duration;

use udeck_via::auth::Keys;
use udeck_via::{Caps, Nic, Result, thread};

use device::SimDevice;
pub use link::{Link, When};
use request::RequestJob;
use world::Shared;
use world::turns;
pub use world::turns::{Network, Turn};

/// A fabric: NICs, and the links between them. Clones are the same fabric.
#[derive(Clone)]
pub struct Fabric {
    shared: Arc<Shared>,
}

/// Options of a NIC ([`Fabric::nic`]).
#[derive(Clone, Debug)]
pub struct Options {
    /// Keys by which the NIC proves that it belongs to the job, and which rank it is. Only NICs of one job connect.
    pub keys: Keys,
    /// Upper bound in bytes of its outbox, and of its landing arena.
    pub arena_limit: usize,
    /// Abilities of the NIC, all or some of them. Without hand-off, messages are copied in transit.
    pub caps: Caps,
}

impl Options {
    /// All abilities that a simulated NIC can have.
    pub fn all_caps() -> Caps {
        let levels = Caps::UNRELIABLE | Caps::RELIABLE_DELIVERY | Caps::RELIABLE_RECEPTION;
        Caps::RDMA_WRITE | Caps::RDMA_READ | Caps::HAND_OFF | levels
    }
}

impl Default for Options {
    /// All abilities, arenas of 16 MiB, one job.
    fn default() -> Self {
        Options { keys: Keys::from([0; 32]), arena_limit: 16 << 20, caps: Options::all_caps() }
    }
}

/// Condition under which virtual time passes by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Pace {
    /// When a thread polls and finds nothing: until it finds something, or nothing is in transit any more.
    #[default]
    Looks,
    /// Only while a thread is blocked, in `connect` or asleep on a completion queue. For tests that check what has
    /// not happened yet.
    Blocked,
}

impl Fabric {
    /// Makes an empty fabric whose links are all perfect. `seed` decides all random events.
    ///
    /// # Panics
    /// When the system cannot start a thread.
    pub fn new(seed: u64) -> Self {
        let (jobs, requests) = mpsc::channel::<RequestJob>();
        // The thread ends when the fabric does, because the fabric holds the sender.
        let work = move || requests.into_iter().for_each(RequestJob::run);
        // Listeners' handlers catch their panics. A panic of our own code makes the next request fail, in a test.
        thread::spawn("sim-listen", work, |_| {}).expect("a thread");
        Fabric { shared: Shared::new(seed, jobs) }
    }

    /// Seed of the random numbers.
    pub fn seed(&self) -> u64 {
        self.shared.with(|world| world.seed)
    }

    /// Opens a NIC; `name` is its address.
    ///
    /// # Errors
    /// [`udeck_via::Error::InvalidParameter`] when an open NIC has that name.
    pub fn nic(&self, name: &str, options: Options) -> Result<Nic> {
        Ok(Nic::new(SimDevice::open(&self.shared, name, &options)?))
    }

    /// Sets the faults and delays of the link from one NIC to another from now on. Its frames are counted from 0 again.
    ///
    /// # Panics
    /// When there is no such NIC.
    pub fn set_link(&self, from: &str, to: &str, link: Link) {
        self.shared.with(|world| {
            let [from, to] =
                [from, to].map(|name| world.node(name).unwrap_or_else(|| panic!("no NIC is named {name:?}")));
            world.set_link((from, to), link);
        });
    }

    /// Sets the faults and delays of links that have carried no frame yet.
    pub fn set_default_link(&self, link: Link) {
        self.shared.with(|world| world.default_link = link);
    }

    /// Kills a NIC: its connections break at once, at all ends, and it takes no requests.
    ///
    /// # Panics
    /// When there is no such NIC.
    pub fn kill(&self, name: &str) {
        self.shared.with(|world| {
            let node = world.node(name).unwrap_or_else(|| panic!("no NIC is named {name:?}"));
            world.remove_node(node, true);
        });
    }

    /// Sets when virtual time passes by itself.
    pub fn set_pace(&self, pace: Pace) {
        self.shared.with(|world| world.pace = pace);
    }

    /// Gives the next `ranks` opened NICs to ranks that take turns from [`Fabric::enter`] on: each has a thread, and
    /// one thread runs at a time. If there is a `network`, it decides when frames arrive. Call this before any NIC
    /// is opened.
    ///
    /// # Errors
    /// [`udeck_via::Error::Os`]: the system has no memory for a clock, or this process uses its launcher's clock.
    pub fn take_turns(&self, ranks: usize, network: Option<Box<dyn Network>>) -> Result<()> {
        let turns = turns::Turns::new(ranks, network)
            .map_err(|error| udeck_via::Error::os("a clock of one's own", error))?;
        self.shared.with(|world| {
            world.turns = Some(turns);
            world.pace = Pace::Blocked;
        });
        Ok(())
    }

    /// Waits until every rank that [takes turns](Fabric::take_turns) has entered, and it is this one's turn. The
    /// trace begins anew then, and ends when all have left.
    ///
    /// # Panics
    /// When there is no such NIC, or it takes no turns. When another rank does not enter, or keeps its turn, for two
    /// minutes. When ranks of another fabric of this process take turns.
    pub fn enter(&self, name: &str) -> Turn {
        let node = self.shared.with(|world| world.node(name));
        Turn::enter(&self.shared, node.unwrap_or_else(|| panic!("no NIC is named {name:?}")))
    }

    /// Virtual time since the fabric was made.
    pub fn now(&self) -> Duration {
        self.shared.with(|world| world.now)
    }

    /// Lets `time` of virtual time pass, with all events that are due in it. (Not from a listener's handler: time
    /// stands still in it.)
    pub fn advance(&self, time: Duration) {
        self.shared.advance(time);
    }

    /// Whether a frame waits at the end of a stalled link.
    pub fn has_stalled(&self) -> bool {
        self.shared.with(|world| world.has_stalled())
    }

    /// Records events from now on, for [`Fabric::trace`].
    pub fn record_trace(&self) {
        self.shared.with(|world| world.record_trace());
    }

    /// Events recorded so far.
    pub fn trace(&self) -> Vec<trace::Event> {
        self.shared.with(|world| world.trace().to_vec())
    }
}

impl std::fmt::Debug for Fabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.shared.with(|world| {
            write!(f, "Fabric(seed {}, {} NICs, {:?} passed)", world.seed, world.nodes.len(), world.now)
        })
    }
}
