//! A simulated network: switches with virtual lanes, credits and arbitration tables, adapters with congestion control, and what runs
//! over them, in virtual time and in one thread.
//!
//! - What there is: [`topology`] has switches, hosts and cables, with a route for each pair, and [`deadlock`] shows that no cycle of
//!   channels can wait for itself.
//! - What happens: [`engine`] moves packets; [`config`] has what switches and adapters are like, [`arbitration`] who goes first,
//!   [`congestion`] what adapters and switches do when many send to one.
//! - What is sent: a [`workload::Workload`]: [`traffic`] of random messages, [`program`]s of ranks that wait for one another, or a trace
//!   in the format [`vef`].
//! - What comes out: [`measure`].
//!
//! Left out: all links are alike, and routes do not adapt to load.
//!
//! Time is counted in *cycles*: a link moves a *flit* in each. Packets move by virtual cut-through: a packet goes on when its head has
//! arrived, if the next buffer has room for all of it. Nothing depends on the machine's time, threads or addresses: the same
//! configuration and seed give the same bytes.

#![forbid(unsafe_code)]

pub mod arbitration;
pub mod config;
pub mod congestion;
pub mod deadlock;
pub mod engine;
pub mod measure;
mod packet;
mod ports;
pub mod program;
pub mod topology;
pub mod traffic;
pub mod vef;
mod wheel;
pub mod workload;
