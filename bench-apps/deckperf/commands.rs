//! Commands of deckperf, a module for each.

pub mod clones;
pub mod compare;
pub mod costs;
pub mod cpu;
pub mod dat;
pub mod explain;
pub mod ft;
pub mod jobs;
pub mod messages;
pub mod overlap;
pub mod page;
pub mod peers;
pub mod percentiles;
pub mod registration;
pub mod verify;
pub mod vi;
