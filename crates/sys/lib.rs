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

mod memory;
mod os;
mod sync;

pub use memory::copy::copy_in;
#[cfg(not(loom))]
pub use memory::copy::copy_out;
pub use memory::copy_bytes::copy_bytes;
#[cfg(not(loom))]
pub use memory::elements::Elements;
#[cfg(not(loom))]
pub use memory::{segment, shared_memory};
pub use os::cpu::{PreferredCpu, Topology, boot_id, host_key, pin_to_cpu, restrict_to_cpus, usable_cpus};
pub use os::deadline::Deadline;
#[cfg(not(loom))]
pub use os::descriptor::{above_stdio, open_above_stdio, stream_pair, tcp_connect, tcp_socket};
#[cfg(not(loom))]
pub use os::event_fd::EventFd;
#[cfg(not(loom))]
pub use os::futex::{MOST_WORDS, sleep_any, wake as wake_sleepers};
#[cfg(not(loom))]
pub use os::inherit::{inherited_channel, inherited_segment, inherited_stream};
#[cfg(not(loom))]
pub use os::interfaces::{
    Interface, LINK_LOCAL, address_of, advise_route, interfaces, is_link_local, listed, route_advice,
};
#[cfg(not(loom))]
pub use os::job_clock::{JobClock, job_time, join_job_clock};
#[cfg(not(loom))]
pub use os::library::library;
#[cfg(not(loom))]
pub use os::limits::{
    check_file_size, descriptor_advice, file_system_size, is_shortage, longest_file,
    make_room_for_descriptors, name_limits, spare_address_space,
};
#[cfg(not(loom))]
pub use os::ports::free_port;
#[cfg(not(loom))]
pub use os::say::stderr_line;
#[cfg(not(loom))]
pub use os::{closer, liveness, quota, reactor, socket, thread, unauthenticated};
pub use os::{fault, process};
#[cfg(all(feature = "access-trace", not(loom)))]
pub use sync::access_trace;
pub use sync::missed::missed;
#[cfg(feature = "missed-look")]
pub use sync::missed::on_next_miss;
pub use sync::poll_budget::PollBudget;
#[cfg(not(loom))]
pub use sync::ranked;
pub use sync::semaphore::MAX_PERMITS;
pub use sync::wait::{AtomicSpinHistory, Pause, SpinHistory, Spinner};
pub use sync::{
    atomic, doorbell, event_count, leader_follower, member_table, parker, position, ring, robust_lock,
    tokens, window,
};
