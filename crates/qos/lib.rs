//! Quality of service and congestion, as state machines without I/O, clocks or threads.
//!
//! - Schedulers: [`vl_arbiter`] (InfiniBand's high and low table), [`dtable`] (a table with deficits), [`sbt`] and
//!   [`wrr`] (a weight in packets for each level). The caller says which levels may send; the scheduler chooses one.
//! - Contents of the tables: [`planner`] admits connections with a bandwidth and a latency, over [`sequences`], which
//!   finds entries at a distance; [`route`] admits them along a route with a deadline from end to end; [`dtable::Plan`] gives each level its share.
//! - Guarantees of the tables: [`analysis`] computes the shares and latencies of any of them. [`opensm`] writes and
//!   reads them as options of the subnet manager.
//! - Text form: [`levels`] makes a table of `5:50,3:30,0:20`.
//! - Many senders to one receiver: [`incast`] has the grants of SRP and SMSRP, [`pacing`] adapts them to connections
//!   that drop nothing.
//!
//! `docs/qos.md` names the works from which these come. This crate knows no transport, so that the library, the
//! simulator and the program `deckqos` can all use it.

#![forbid(unsafe_code)]

pub mod analysis;
pub mod dtable;
pub mod incast;
pub mod levels;
pub mod opensm;
pub mod pacing;
pub mod planner;
pub mod route;
pub mod sbt;
pub mod sequences;
pub mod table;
pub mod vl_arbiter;
pub mod wrr;
