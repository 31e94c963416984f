//! Worlds, mailboxes and messages: what an application sees of µDECK.
//!
//! A parallel program is a [`World`] of ranks. A rank creates named [`Mailbox`]es, from which only it retrieves; any
//! rank makes a [`Postbox`] (DECK's *clone*) of a mailbox and posts messages to it. Posting *moves* the message: nobody
//! can touch it afterwards, so it needs no copy and the poster no wait.
//!
//! | file | what it is |
//! |---|---|
//! | `world`, `barrier` | the job as one rank sees it |
//! | `shared`, `ends` | what its objects have in common; ranks that ended |
//! | `mailbox`, `inbox` | retrieving: typed surface, and the engine behind it |
//! | `postbox`, `channel` | posting: typed surface, and the engine behind it |
//! | `protocol`, `auto` | ways for a message to travel, and how one is chosen |
//! | `wire` | what the two engines say to each other |
//! | `nics`, `routes` | the NICs of a world, and which of them leads to a mailbox |
//! | `progress` | moves rendezvous along while the application computes |
//! | `buffer`, `message`, `pack`, `received` | messages of either kind, before and after the journey |
//! | `memory`, `holders` | memory for messages: waiting for it, and who has it |
//! | `posting` | posts that return at once, and their handles |
//! | `select` | waiting at several mailboxes |
//! | `share` | one message to many mailboxes |
//! | `tasks`, `mailbox/tasks`, `postbox/tasks` | futures (feature `async`) |
//! | `adopted`, `postable` | messages in memory of the program's own; all that can be posted |
//! | `exchange` | deadlock-free orders for all-to-all patterns |
//!
//! This crate names no transport: it decides by the abilities (`Caps`) that a NIC has.
//!
//! Source of the model: DECK (*Distributed Execution and Communication Kernel*), and its port to the Virtual Interface
//! Architecture (2005).

#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro))]
#![forbid(unsafe_code)]

mod adopted;
mod auto;
mod barrier;
mod buffer;
mod channel;
mod config;
mod ends;
mod error;
pub mod exchange;
mod holders;
mod inbox;
mod item;
mod mailbox;
mod memory;
mod message;
mod nics;
mod pack;
mod postable;
mod postbox;
mod posting;
mod progress;
mod protocol;
mod received;
mod routes;
mod select;
mod share;
mod shared;
mod stats;
#[cfg(feature = "async")]
mod tasks;
mod wire;
mod world;

pub use adopted::Adopted;
pub use auto::{Choice, Thresholds};
pub use buffer::Buf;
pub use bytemuck::Pod;
pub use config::Config;
pub use ends::{End, Ended, Endings};
pub use error::{Error, PostError, Result};
pub use item::{Item, Packed};
#[cfg(feature = "async")]
pub use mailbox::tasks::{Messages, Retrieve};
pub use mailbox::{Iter, Mailbox};
pub use message::Message;
pub use pack::{ItemType, PackError, PackType};
pub use postable::Postable;
pub use postbox::Postbox;
#[cfg(feature = "async")]
pub use postbox::tasks::{Flush, Post};
pub use posting::Posting;
pub use protocol::{Protocol, ReceiveModel};
pub use received::{Nested, Received};
pub use routes::{Lacking, Passed, Route};
pub use select::{Selectable, select, select_within, try_select};
pub use share::{PostAllError, SharedBuf, post_all, post_all_within};
pub use stats::Stats;
pub use world::World;
