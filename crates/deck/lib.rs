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
//! | `world_state` | the state that a world's objects share |
//! | `mailbox`, `mailbox_options`, `matching`, `recv` | retrieving: typed interface, and the engine behind it |
//! | `postbox`, `send` | posting: typed interface, and the engine behind it |
//! | `turns` | threads that share a mailbox |
//! | `protocol` | ways for a message to travel, and how one is chosen |
//! | `incast` | incast control: when the messages of many posters to one mailbox may come |
//! | `wire` | the messages between the two engines |
//! | `connect` | how a postbox finds its mailbox and connects to it |
//! | `nics`, `route` | the NICs of a world, and which of them leads to a mailbox |
//! | `progress` | progress of announced messages while the application computes |
//! | `memory` | typed messages before their post, and the memory of messages, with its holders |
//! | `message`, `pack` | packed messages |
//! | `received`, `parcel` | received messages |
//! | `post_request` | posts that return at once, and their handles |
//! | `select` | waiting at several mailboxes |
//! | `service` | calls to other ranks: requests and replies |
//! | `exits` | the exits of ranks: the launcher's reports, checks after a connection broke, and waiting for them |
//! | `sharing` | objects that the ranks of a host share beside messages: segments, locks, semaphores |
//! | `tasks`, `mailbox/tasks`, `postbox/tasks` | futures (feature `async`) |
//! | `payload`, `postable` | types that mailboxes carry; types that can be posted |
//! | `exchange` | deadlock-free orders for all-to-all patterns |
//! | `wait_policy`, `interrupt` | how long a call may wait; waits that a signal may end |
//! | `long_wait` | long waits, published to the launcher |
//! | `stats` | counters, and counters as text; events of messages and spans of the program in the trace, and how a trace is gathered |
//! | `config`, `error` | settings of a world, errors |
//!
//! This crate names no transport. It chooses protocols by the capabilities (`Caps`) of a NIC.
//!
//! Source of the model: DECK (*Distributed Execution and Communication Kernel*), and its port to the Virtual Interface
//! Architecture (2005).

#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro))]
#![forbid(unsafe_code)]

mod config;
mod connect;
mod error;
pub mod exchange;
mod exits;
mod group;
mod incast;
mod interrupt;
mod long_wait;
mod mailbox;
mod mailbox_options;
mod matching;
mod memory;
mod message;
mod nics;
mod pack;
mod parcel;
mod payload;
mod post_request;
mod postable;
mod postbox;
mod progress;
mod protocol;
mod received;
mod recv;
mod route;
mod select;
mod send;
mod service;
mod sharing;
mod stats;
#[cfg(feature = "async")]
mod tasks;
mod turns;
mod wait_policy;
mod wire;
mod world;
mod world_state;

pub use bytemuck::{self, Pod};
pub use config::Config;
pub use error::{Error, FailureCause, PostEachError, PostError, Result};
pub use exits::log::{ExitKind, RankExit};
pub use exits::rank_exits::RankExits;
/// For `deckfabric`, which simulates the barriers of a job.
#[doc(hidden)]
pub use group::plan as barrier_plan;
pub use group::{
    Algorithm, AlgorithmChoice, AnyRequest, Grid, Group, Request, op, wait_all, wait_all_timeout, wait_any,
    wait_any_timeout,
};
pub use incast::IncastControl;
pub use interrupt::interruptible;
#[cfg(feature = "async")]
pub use mailbox::tasks::{Messages, Retrieve};
pub use mailbox::{Iter, Mailbox, Retrieval, Retrieved};
pub use mailbox_options::MailboxOptions;
pub use matching::Match;
pub use memory::buffer::Buf;
pub use memory::external_buf::ExternalBuf;
pub use memory::shared_buf::{PostAllError, SharedBuf, post_all, post_all_timeout};
pub use message::{Message, Packed};
pub use pack::{ItemType, PackError, PackType};
pub use payload::Payload;
pub use post_request::PostRequest;
pub use postable::{Postable, Tagged, WithTag};
pub use postbox::Postbox;
#[cfg(feature = "async")]
pub use postbox::tasks::{Flush, Post};
pub use protocol::auto::{Choice, Thresholds};
pub use protocol::{Protocol, ReceiveModel};
pub use received::{Nested, Received};
pub use route::{Route, RouteLevel, SkippedTransport, UnavailableTransport};
pub use select::{Selectable, select, select_timeout, try_select};
pub use service::{Reply, Service};
pub use sharing::mutex::{SharedMutex, SharedMutexGuard};
pub use sharing::segment::{AtomicElement, SegmentLock, SharedSegment};
pub use sharing::semaphore::{Permit, Semaphore};
pub use stats::span::Span;
pub use stats::{PeerStats, Stats};
pub use turns::{Turns, in_turn, lock_within};
pub use udeck_via::ServiceLevel;
pub use world::World;
pub use world::survivors::Agreement;
