//! Quality of service and congestion, as state machines without I/O, clocks or threads.
//!
//! - Who sends next: [`vl_arbiter`] (InfiniBand's high and low table), [`dtable`] (a table with deficits), [`sbt`] (a weight in
//!   packets for each level). A caller says what waits; the arbiter says who goes.
//! - What stands in the tables: [`planner`] admits connections with a bandwidth and a latency, over [`sequences`], which finds
//!   entries at a distance; [`dtable::Plan`] gives each level its share.
//! - What tables promise: [`analysis`] has the shares and latencies of any of them. [`opensm`] writes and reads them as the
//!   subnet manager's options.
//! - What a user says: [`levels`] makes a table of `5:50,3:30,0:20`.
//! - Many senders to one receiver: [`incast`] has the grants of SRP and SMSRP, [`pacing`] what becomes of them over connections that
//!   drop nothing.
//!
//! `docs/qos.md` names the works that these come from. Nothing here knows a transport, so that the library, the simulator and the
//! program `deckqos` can all use it.

#![forbid(unsafe_code)]

pub mod analysis;
pub mod dtable;
pub mod incast;
pub mod levels;
pub mod opensm;
pub mod pacing;
pub mod planner;
pub mod sbt;
pub mod sequences;
pub mod table;
pub mod vl_arbiter;
