//! Traces of a job, in the Trace Event Format that Perfetto and Chrome show, or for simulators. Internal: no promise of stability.
//!
//! The library describes its work by events and spans of the `tracing` crate. A [`TraceLayer`] records them,
//! and those of the program, in a buffer of each thread. The buffers go to a file of the process, its *part*;
//! in the end one rank *merges* the parts of all ranks into the job's file.
//!
//! | file | what it is |
//! |---|---|
//! | `layer` | what becomes of an event or a span |
//! | `record`, `part/buffer` | what is noted of it, and where, until it is written |
//! | `part` | the process's file, and who writes it |
//! | `file` | how the files are opened, in folders that others write to |
//! | `names` | names of the program's spans, a bounded table |
//! | `json` | an event as a line of JSON |
//! | `merge` | one file of all parts; clocks; arrows |
//! | `merge/vef` | the same for simulators: messages, and what each waits for |
//!
//! No code here knows worlds, messages or connections: `udeck-deck` has the call sites, gathers the parts of
//! other hosts, and compares the clocks.

#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout, clippy::dbg_macro))]

mod file;
mod json;
mod layer;
mod merge;
mod names;
mod part;
mod record;

pub use file::{NewFile, create_private, open_own};
pub use layer::{TraceLayer, install, layer};
pub use merge::{
    Clock, ClockSample, Lane, Merged, check_place, is_merged, merge, names_its_job, parts_beside,
};
pub use names::{MAX_SPAN_NAME, MAX_SPAN_NAMES, OTHER_SPANS, UNNAMED_SPAN, span_name};
pub use part::buffer::{RecordingPaused, pause_recording};
pub use part::{MAX_BYTES, MAX_EVENTS, Opening, Part, PartError, part_path, received_path};

/// The variable that names the trace's file.
pub const VARIABLE: &str = "DECK_TRACE";

/// Target of events that are messages, waits and steps of protocols. Their fields `start_ns` and `end_ns` are
/// their times.
pub const MESSAGES: &str = "udeck::message";
/// Target of spans that are collective calls.
pub const CALLS: &str = "udeck::call";
/// Target of events that are spans of the program's own (`World::span`): one event at a span's end, with its times as
/// for [`MESSAGES`]. Its field `span` is the span's name, by [`span_name`].
pub const SPANS: &str = "udeck::span";

/// Returns the time in nanoseconds of the clock that all processes of a host share (`CLOCK_MONOTONIC`).
#[inline]
pub fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
