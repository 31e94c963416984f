//! A simulated fabric: several NICs in one process, on links that lose, duplicate, reorder, corrupt, delay and stall
//! frames, and NICs that die, where a test wants it or a seed says so. Its NICs have every ability of VIA.
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
//! **Time is virtual.** What is under way arrives at its moment; the clock goes from moment to moment whenever somebody
//! has nothing to do ([`Pace`]), or by [`Fabric::advance`]. A program driven by one thread does the same for the same
//! seed, down to the [`Fabric::trace`]; [`replay`] runs a test over seeds and says which one failed.
//!
//! **Guarantees hold, or the connection breaks.** A reliable connection puts frames in order, drops duplicates, and
//! breaks at both ends when a frame is lost (VIA: "loss detected, connection broken"). An unreliable one delivers what
//! comes, as it comes, each at most once. A frame carries a checksum of its header and payload; corruption flips a bit
//! of the copy under way, and the receiver's sum does not match: on an unreliable connection the frame is dropped, a
//! reliable one breaks.
//!
//! **Reliable reception takes a way back.** When a program has placed a message (copied it, dropped what it was lent,
//! or found no descriptor), the receipt travels to the sender as a frame of the other direction, with all that can
//! happen to one. Until it is back, the send is not done; lost or corrupt, it breaks the connection, and the sender ends
//! with a transport error although the message arrived: it cannot know. Where nobody waits (a hand-off), none is sent.
//!
//! **RDMA takes the way that messages take.** A write is a frame with its data, in order with the messages of a reliable
//! connection; a read is a question and an answer, with the data as they are when the question comes. What is behind a
//! fence waits at its sender until the reads before it are over.
//!
//! What it does not simulate:
//! * Credits take no time, nor do returned buffers for which no receipt is owed.
//! * That RDMA is not allowed is noticed by the target when it comes, and by both ends of a reliable connection, which
//!   breaks, at that same moment.
//! * Requests, answers and ends of connections are delayed and stalled but never lost or corrupted.
//!
//! Nothing blocks but a connection request, a sleep on a completion queue, and [`Fabric::advance`] while a listener works.
//!
//! | file | what it is |
//! |---|---|
//! | `world/turns` | ranks of which one runs at a time, and networks that decide when frames arrive |
//! | `world` | everything under one lock: time, NICs, what is due |
//! | `link` | what becomes of a frame |
//! | `frame`, `checksum` | what travels |
//! | `transit` | the way of a message: posted, under way, arrived |
//! | `loans` | lent buffers, and receipts for those who wait for them |
//! | `connection` | the two ends, and how they end |
//! | `rdma`, `fence` | RDMA, and what waits for reads |
//! | `endpoint`, `borrowed`, `waiter`, `device`, `request` | the contract of `udeck_via::transport` |
//! | `memory` | heap-backed arenas |
//! | `trace`, `replay` | what happened, and how to see it again |

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

/// NICs, and what lies between them. Clones are the same fabric.
#[derive(Clone)]
pub struct Fabric {
    shared: Arc<Shared>,
}

/// How to open a NIC.
#[derive(Clone, Debug)]
pub struct Options {
    /// What it proves by that it is of the job, and which of its ranks: only NICs of one job connect.
    pub keys: Keys,
    /// Most memory that its messages may take, and most that peers may write, in bytes each.
    pub arena_limit: usize,
    /// Its abilities: all that there are, or some of them. Without hand-off, messages are copied on the way.
    pub caps: Caps,
}

impl Options {
    /// All that a simulated NIC can do.
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

/// When virtual time passes by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Pace {
    /// Whenever somebody looks for news and there are none: until there are, or nothing is under way any more.
    #[default]
    Looks,
    /// Only while a thread is blocked, in `connect` or asleep on a completion queue. For tests that look at what has
    /// not happened yet.
    Blocked,
}

impl Fabric {
    /// An empty fabric on which all links are perfect. What chance decides, `seed` decides.
    ///
    /// # Panics
    /// When the system has no thread left.
    pub fn new(seed: u64) -> Self {
        let (jobs, requests) = mpsc::channel::<RequestJob>();
        // Ends when the fabric does, which holds the sender.
        let work = move || requests.into_iter().for_each(RequestJob::run);
        // Listeners' handlers catch their panics; one of ours meets the next request, in a test.
        thread::spawn("sim-listeners", work, |_| {}).expect("a thread");
        Fabric { shared: Shared::new(seed, jobs) }
    }

    /// What decides about chance.
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

    /// Sets what happens to frames from one NIC to another from now on; its frames are counted from 0 again.
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

    /// Sets what links are like that nothing has travelled on yet.
    pub fn set_default_link(&self, link: Link) {
        self.shared.with(|world| world.default_link = link);
    }

    /// A NIC dies: its connections break at once, at all ends, and it takes no requests.
    ///
    /// # Panics
    /// When there is no such NIC.
    pub fn kill(&self, name: &str) {
        self.shared.with(|world| {
            let node = world.node(name).unwrap_or_else(|| panic!("no NIC is named {name:?}"));
            world.remove_node(node, true);
        });
    }

    /// Sets when time passes by itself.
    pub fn set_pace(&self, pace: Pace) {
        self.shared.with(|world| world.pace = pace);
    }

    /// The NICs that are opened from now on, so many of them, belong to ranks that take turns from [`Fabric::enter`] on: a thread for each,
    /// of which one runs at a time. Frames arrive then when `network` says, if there is one. To be called before any NIC is opened.
    ///
    /// # Errors
    /// [`udeck_via::Error::Os`]: the system has no memory for a clock, or this process goes by a launcher's.
    pub fn take_turns(&self, ranks: usize, network: Option<Box<dyn Network>>) -> Result<()> {
        let turns = turns::Turns::new(ranks, network)
            .map_err(|error| udeck_via::Error::os("a clock of one's own", error))?;
        self.shared.with(|world| {
            world.turns = Some(turns);
            world.pace = Pace::Blocked;
        });
        Ok(())
    }

    /// Waits until each of those that [take turns](Fabric::take_turns) has entered, and it is this one's turn. The trace
    /// begins anew then, and ends when all have left.
    ///
    /// # Panics
    /// When there is no such NIC, or it takes no turns. When another one does not come, or keeps its turn, for two minutes. When ranks of another
    /// fabric of this process take turns.
    pub fn enter(&self, name: &str) -> Turn {
        let node = self.shared.with(|world| world.node(name));
        Turn::enter(&self.shared, node.unwrap_or_else(|| panic!("no NIC is named {name:?}")))
    }

    /// Virtual time since the fabric was made.
    pub fn now(&self) -> Duration {
        self.shared.with(|world| world.now)
    }

    /// Lets virtual time pass, and what is due in it happen. (Not from a listener's handler: time stands still in it.)
    pub fn advance(&self, time: Duration) {
        self.shared.advance(time);
    }

    /// Whether something waits at the end of a stalled link.
    pub fn has_stalled(&self) -> bool {
        self.shared.with(|world| world.has_stalled())
    }

    /// Keeps a record from now on, for [`Fabric::trace`].
    pub fn record_trace(&self) {
        self.shared.with(|world| world.record_trace());
    }

    /// What has happened.
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
