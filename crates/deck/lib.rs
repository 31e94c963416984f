//! Worlds, mailboxes and messages: what an application sees of µDECK.
//!
//! A parallel program is a [`World`] of ranks. A rank creates named [`Mailbox`]es, from which only it retrieves; any
//! rank makes a [`Postbox`] (DECK's *clone*) of a mailbox and posts messages to it. Posting *moves* the message: the poster
//! cannot touch it afterwards, so neither a copy nor a wait is needed.
//!
//! | file | contents |
//! |---|---|
//! | `world` | the job as one rank sees it |
//! | `group` | groups of ranks, and collective calls |
//! | `world_state`, `exit_log` | the state that a world's objects share; the launcher's reports of exits |
//! | `mailbox`, `matching`, `recv` | retrieving: typed interface, and the engine behind it |
//! | `postbox`, `send` | posting: typed interface, and the engine behind it |
//! | `protocol` | ways for a message to travel, and how one is chosen |
//! | `wire` | the messages between the two engines |
//! | `connect` | how a postbox finds its mailbox and connects to it |
//! | `nics`, `route` | the NICs of a world, and which of them leads to a mailbox |
//! | `progress` | progress of announced messages while the application computes |
//! | `buffer`, `message`, `pack`, `received`, `parcel` | typed and packed messages: before the post, on their way, and received |
//! | `message_memory`, `memory_accounting` | memory for messages: waiting for it, and its holders |
//! | `post_request` | posts that return at once, and their handles |
//! | `select`, `rank_exits` | waiting at several mailboxes, and for the exit of ranks |
//! | `shared_buf` | one message to many mailboxes |
//! | `shared_segment`, `shared_mutex`, `semaphore` | objects that the ranks of a host share beside messages: typed interface |
//! | `shared`, `sharing` | what the three have in common; a rank's list of its shared objects |
//! | `tasks`, `mailbox/tasks`, `postbox/tasks` | futures (feature `async`) |
//! | `external_buf`, `payload`, `postable` | messages in memory of the program; types that mailboxes carry; types that can be posted |
//! | `exit_check` | whether a rank whose connection broke has finished or is lost |
//! | `exchange` | deadlock-free orders for all-to-all patterns |
//! | `wait_policy`, `interrupt` | how long a call may wait; waits that a signal may end |
//! | `trace`, `tracing_job` | events of messages in the trace; how a trace is begun, and gathered from all ranks |
//! | `config`, `stats`, `metrics`, `error` | settings of a world, counters, counters as text, errors |
//!
//! This crate names no transport. It chooses protocols by the capabilities (`Caps`) of a NIC.
//!
//! Source of the model: DECK (*Distributed Execution and Communication Kernel*), and its port to the Virtual Interface
//! Architecture (2005).

#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro))]
#![forbid(unsafe_code)]

mod buffer;
mod config;
mod connect;
mod error;
pub mod exchange;
mod exit_check;
mod exit_log;
mod external_buf;
mod group;
mod incast;
mod interrupt;
mod long_wait;
mod mailbox;
mod mailbox_options;
mod matching;
mod memory_accounting;
mod message;
mod message_memory;
mod metrics;
mod nics;
mod pack;
mod parcel;
mod payload;
mod post_request;
mod postable;
mod postbox;
mod progress;
mod protocol;
mod rank_exits;
mod received;
mod recv;
mod route;
mod select;
mod semaphore;
mod send;
mod shared;
mod shared_buf;
mod shared_mutex;
mod shared_segment;
mod sharing;
mod stats;
#[cfg(feature = "async")]
mod tasks;
mod trace;
mod tracing_job;
mod turns;
mod wait_policy;
mod wire;
mod world;
mod world_state;

pub use buffer::Buf;
pub use bytemuck::{self, Pod};
pub use config::Config;
pub use error::{Error, FailureCause, PostEachError, PostError, Result};
pub use exit_log::{ExitKind, RankExit};
pub use external_buf::ExternalBuf;
pub use group::{Algorithm, AlgorithmChoice, Group, Request, op};
pub use incast::IncastControl;
pub use interrupt::interruptible;
#[cfg(feature = "async")]
pub use mailbox::tasks::{Messages, Retrieve};
pub use mailbox::{Iter, Mailbox, Retrieved};
pub use mailbox_options::MailboxOptions;
pub use matching::Match;
pub use message::{Message, Packed};
pub use pack::{ItemType, PackError, PackType};
pub use payload::Payload;
pub use post_request::PostRequest;
pub use postable::{Postable, Tagged};
pub use postbox::Postbox;
#[cfg(feature = "async")]
pub use postbox::tasks::{Flush, Post};
pub use protocol::auto::{Choice, Thresholds};
pub use protocol::{Protocol, ReceiveModel};
pub use rank_exits::RankExits;
pub use received::{Nested, Received};
pub use route::{Route, RouteLevel, SkippedTransport, UnavailableTransport};
pub use select::{Selectable, select, select_timeout, try_select};
pub use semaphore::{Permit, Semaphore};
pub use shared_buf::{PostAllError, SharedBuf, post_all, post_all_timeout};
pub use shared_mutex::{SharedMutex, SharedMutexGuard};
pub use shared_segment::{AtomicElement, SegmentLock, SharedSegment};
pub use stats::{PeerStats, Stats};
pub use turns::{Turns, in_turn, lock_within};
pub use udeck_via::ServiceLevel;
pub use world::World;
