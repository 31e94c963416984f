//! The operating system: descriptors, sockets, processes, clocks, limits, and output that cannot block for ever.

#[cfg(not(loom))]
pub mod closer;
pub(crate) mod cpu;
pub(crate) mod deadline;
#[cfg(not(loom))]
pub(crate) mod descriptor;
#[cfg(not(loom))]
pub(crate) mod event_fd;
pub mod fault;
#[cfg(not(loom))]
pub(crate) mod futex;
#[cfg(not(loom))]
pub(crate) mod inherit;
#[cfg(not(loom))]
pub(crate) mod interfaces;
#[cfg(not(loom))]
pub(crate) mod job_clock;
#[cfg(not(loom))]
pub(crate) mod library;
#[cfg(not(loom))]
pub(crate) mod limits;
#[cfg(not(loom))]
pub mod liveness;
#[cfg(not(loom))]
pub(crate) mod ports;
pub mod process;
#[cfg(not(loom))]
pub mod quota;
#[cfg(not(loom))]
pub mod reactor;
#[cfg(not(loom))]
pub(crate) mod say;
#[cfg(not(loom))]
pub mod socket;
#[cfg(not(loom))]
pub mod thread;
#[cfg(not(loom))]
pub mod unauthenticated;
