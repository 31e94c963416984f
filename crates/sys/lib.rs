//! Raw operating system and atomics for µDECK. Internal: no promise of stability.
//!
//! Everything that two *processes* share is built here, once, and checked here: the [`ring`] that carries
//! messages, the [`doorbell`] that wakes a sleeper, sealed memory [`segment`]s, and the one racy copy
//! ([`copy_in`]). The crates above never touch an atomic in shared memory except through these types.
//!
//! Atomics come from [`atomic`], so that `--cfg loom` swaps in the model checker's, and the feature `access-trace` swaps in
//! atomics whose accesses a test can see.

#![allow(unsafe_code, reason = "shared memory, system calls and atomics are built here")]
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro))]

#[cfg(all(feature = "access-trace", not(loom)))]
pub mod access_trace;
pub mod atomic;
#[cfg(not(loom))]
pub mod closer;
mod copy;
mod copy_bytes;
mod cpu;
mod deadline;
#[cfg(not(loom))]
mod descriptor;
pub mod doorbell;
#[cfg(not(loom))]
mod elements;
pub mod event_count;
#[cfg(not(loom))]
mod event_fd;
pub mod fault;
#[cfg(not(loom))]
mod futex;
#[cfg(not(loom))]
mod inherit;
#[cfg(not(loom))]
mod interfaces;
#[cfg(not(loom))]
mod job_clock;
pub mod leader_follower;
#[cfg(not(loom))]
mod library;
#[cfg(not(loom))]
mod limits;
#[cfg(not(loom))]
pub mod liveness;
mod member_barrier;
pub mod member_table;
mod missed;
pub mod parker;
mod poll_budget;
pub mod position;
mod prefetch;
pub mod process;
#[cfg(not(loom))]
pub mod quota;
#[cfg(not(loom))]
pub mod ranked;
#[cfg(not(loom))]
pub mod reactor;
pub mod ring;
pub mod robust_lock;
#[cfg(not(loom))]
mod say;
#[cfg(not(loom))]
pub mod segment;
mod semaphore;
#[cfg(not(loom))]
pub mod shared_memory;
#[cfg(not(loom))]
pub mod socket;
mod streamed;
#[cfg(not(loom))]
pub mod thread;
pub mod tokens;
mod wait;
pub mod window;

pub use copy::copy_in;
#[cfg(not(loom))]
pub use copy::copy_out;
pub use copy_bytes::copy_bytes;
pub use cpu::{Home, Topology, boot_id, host_key, pin_to_cpu, restrict_to_cpus, usable_cpus};
pub use deadline::Deadline;
#[cfg(not(loom))]
pub use descriptor::{above_stdio, open_above_stdio, stream_pair, tcp_connect, tcp_socket};
#[cfg(not(loom))]
pub use elements::Elements;
#[cfg(not(loom))]
pub use event_fd::EventFd;
#[cfg(not(loom))]
pub use futex::{MOST_WORDS, sleep_any, wake as wake_sleepers};
#[cfg(not(loom))]
pub use inherit::{inherited_channel, inherited_segment, inherited_stream};
#[cfg(not(loom))]
pub use interfaces::{
    Interface, LINK_LOCAL, address_of, advise_route, interfaces, is_link_local, listed, route_advice,
};
#[cfg(not(loom))]
pub use job_clock::{JobClock, job_time, join_job_clock};
#[cfg(not(loom))]
pub use library::library;
#[cfg(not(loom))]
pub use limits::{
    check_file_size, descriptor_advice, file_system_size, is_shortage, longest_file,
    make_room_for_descriptors, name_limits, spare_address_space,
};
pub use missed::missed;
#[cfg(feature = "missed-look")]
pub use missed::on_next_miss;
pub use poll_budget::PollBudget;
#[cfg(not(loom))]
pub use say::stderr_line;
pub use semaphore::MAX_PERMITS;
pub use wait::{Habit, Pause, Spinner};
