//! A simulated network: switches with virtual lanes, credits and arbitration tables, adapters with congestion
//! control, and the workloads over them, in virtual time and in one thread.
//!
//! - Networks: [`topology`] has switches, hosts and cables, with a route for each pair, and [`deadlock`] shows that no
//!   circle of channels can wait for itself.
//! - Simulation: [`engine`] moves packets; [`config`] describes switches and adapters, [`stages`] switches with
//!   buffers at their outputs and several crossbars, [`arbitration`] which packet goes first, [`congestion`] what adapters and switches do when many send to one.
//! - Workloads ([`workload::Workload`]): [`traffic`] of random messages, [`connections`] at constant rates, [`program`]s
//!   of ranks that wait for one another, or a trace in the format [`vef`], alone or [`beside`] traffic.
//! - Tables of a network: [`admission`] reads a list of connections, and gives each its entries along its route.
//! - Results: [`measure`].
//!
//! Not simulated: links of different kinds, and routes that adapt to load. (Switches choose at random among the links of a
//! trunk, or the ways up in a tree.)
//!
//! Time is counted in *cycles*: a link moves a *flit* in each. Packets move by virtual cut-through: a packet goes on
//! when its head has arrived, if the next buffer has room for all of it. Nothing depends on the machine's time,
//! threads or addresses: the same configuration and seed give the same bytes.

#![forbid(unsafe_code)]

pub mod admission;
pub mod arbitration;
pub mod beside;
pub mod config;
pub mod congestion;
pub mod connections;
pub mod deadlock;
pub mod engine;
pub mod measure;
mod packet;
mod ports;
pub mod program;
pub mod stages;
pub mod topology;
pub mod traffic;
pub mod vef;
mod wheel;
pub mod workload;
