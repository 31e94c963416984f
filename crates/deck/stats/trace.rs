//! Events of messages, waits and calls in the trace (`DECK_TRACE`): this package's call sites of the
//! `tracing` crate.
//!
//! A message is one event with its beginning and end ([`udeck_trace::MESSAGES`]), a collective call is a span
//! ([`udeck_trace::CALLS`]).
//!
//! The entry that a program calls records the event ([`crate::Mailbox`], `send::poster`); the queue that takes a
//! step of a protocol records the step. The functions below them know no traces. An entry checks [`is_on`] once, which is
//! a load and a comparison. The code that records is elsewhere, and cold.
//!
//! # Arrows
//! An arrow goes from the post of a message to its retrieve, and both sides have to give it the same name.
//! Nothing is sent for that: the messages of a postbox arrive in the order of posting. Both sides count them,
//! and the name consists of the poster's rank, its number for the postbox, which the mailbox knows since the
//! connection was made, and the message's sequence number.

use std::sync::atomic::{AtomicU64, Ordering};

use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing::span::EnteredSpan;
use udeck_trace::{CALLS, MESSAGES, now};

use crate::error::INTERNAL;
use crate::parcel::Parcel;
use crate::protocol::Protocol;

/// Whether tracing is on.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    Level::TRACE <= LevelFilter::current()
}

/// Time at the beginning of something that may be recorded later; 0 if tracing is off.
#[inline]
pub(crate) fn begin() -> u64 {
    if is_on() { now() } else { 0 }
}

/// A posted message.
pub(crate) struct Posted<'a> {
    pub start: u64,
    pub rank: usize,
    pub peer: u32,
    pub postbox: u32,
    /// Sequence number of the message in its postbox.
    pub number: u64,
    pub mailbox: &'a str,
    pub protocol: Protocol,
    pub bytes: usize,
    pub tag: u32,
}

/// Name of a message's arrow, the same on both sides.
fn arrow(rank: u32, postbox: u32, number: u32) -> u64 {
    u64::from(rank & 0xFFFF) << 48 | u64::from(postbox & 0xFFFF) << 32 | u64::from(number)
}

/// Name of a mailbox in the trace.
fn shown(mailbox: &str) -> &str {
    mailbox.strip_prefix(INTERNAL).unwrap_or(mailbox)
}

#[cold]
pub(crate) fn posted(message: &Posted<'_>) {
    let Posted { start, rank, peer, postbox, number, mailbox, protocol, bytes, tag } = *message;
    tracing::event!(
        name: "post",
        target: MESSAGES,
        Level::TRACE,
        start_ns = start,
        end_ns = now(),
        rank = rank as u64,
        flow_out = arrow(rank as u32, postbox, number as u32),
        mailbox = shown(mailbox),
        to = u64::from(peer),
        bytes = bytes as u64,
        tag = u64::from(tag),
        protocol = protocol.name(),
    );
}

#[cold]
pub(crate) fn retrieved(start: u64, rank: usize, mailbox: &str, parcel: &Parcel) {
    tracing::event!(
        name: "retrieve",
        target: MESSAGES,
        Level::TRACE,
        start_ns = start,
        end_ns = now(),
        rank = rank as u64,
        flow_in = arrow(parcel.rank, parcel.postbox, parcel.number),
        mailbox = shown(mailbox),
        from = u64::from(parcel.rank),
        bytes = parcel.bytes().len() as u64,
        tag = u64::from(parcel.tag),
        lies = parcel.place_in_words(),
    );
}

/// Step of a protocol that is being taken: its start, its protocol, and its message's length in bytes.
pub(crate) type TracedStep = (u64, Protocol, usize);

/// Begins a step of a protocol, after a post or before a retrieve; `None` if tracing is off.
#[inline]
pub(crate) fn begin_step(described: impl FnOnce() -> (Protocol, usize)) -> Option<TracedStep> {
    is_on().then(|| {
        let (protocol, bytes) = described();
        (now(), protocol, bytes)
    })
}

/// Records a step that was taken.
#[inline]
pub(crate) fn end_step(step: Option<TracedStep>, rank: usize, name: &'static str) {
    if let Some(step) = step {
        record_step(step, rank, name);
    }
}

#[cold]
fn record_step((start, protocol, bytes): TracedStep, rank: usize, step: &'static str) {
    tracing::event!(
        name: "step",
        target: MESSAGES,
        Level::TRACE,
        start_ns = start,
        end_ns = now(),
        rank = rank as u64,
        step,
        protocol = protocol.name(),
        bytes = bytes as u64,
    );
}

/// Records a wait that has ended. `on` names the call.
#[cold]
pub(crate) fn waited(start: u64, on: &'static str) {
    tracing::event!(name: "wait", target: MESSAGES, Level::TRACE, start_ns = start, end_ns = now(), on);
}

/// Records the beginning of a rank, so that later events of its thread are known to be its own.
#[cold]
pub(crate) fn began(start: u64, rank: usize, size: usize) {
    tracing::event!(
        name: "world",
        target: MESSAGES,
        Level::TRACE,
        start_ns = start,
        end_ns = now(),
        rank = rank as u64,
        size = size as u64,
    );
}

/// Records a part of finishing that may take long.
#[cold]
pub(crate) fn finished(start: u64, rank: usize) {
    tracing::event!(
        name: "finish",
        target: MESSAGES,
        Level::TRACE,
        start_ns = start,
        end_ns = now(),
        rank = rank as u64,
    );
}

/// Enters the span of a collective call, until the returned guard is dropped.
#[inline]
pub(crate) fn call(name: &str, rank: usize, group: &str, members: usize) -> Option<EnteredSpan> {
    if Level::DEBUG <= LevelFilter::current() { entered(name, rank, group, members) } else { None }
}

/// Records a collective call that returned at once, and is over now. Its thread did other things meanwhile.
#[cold]
pub(crate) fn call_over(start: u64, name: &str, rank: usize, (group, members): (&str, usize)) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let (number, end) = (NUMBER.fetch_add(1, Ordering::Relaxed), now());
    macro_rules! sites {
        ($($call:literal)*) => {
            match name {
                $($call => site!($call),)*
                _ => site!("collective call"),
            }
        };
    }
    macro_rules! site {
        ($call:literal) => {
            tracing::event!(
                name: $call,
                target: MESSAGES,
                Level::TRACE,
                start_ns = start,
                end_ns = end,
                rank = rank as u64,
                apart = number,
                group,
                members = members as u64,
            )
        };
    }
    sites!("barrier" "broadcast" "reduce" "all_reduce" "all_gather" "all_to_all");
}

/// Enters a span by a call site for each name: a span's name is its call site's.
#[cold]
fn entered(name: &str, rank: usize, group: &str, members: usize) -> Option<EnteredSpan> {
    let (rank, members) = (rank as u64, members as u64);
    macro_rules! sites {
        ($($call:literal)*) => {
            match name {
                $($call => tracing::debug_span!(target: CALLS, $call, rank, group, members),)*
                other => tracing::debug_span!(target: CALLS, "collective call", rank, group, members, call = other),
            }
        };
    }
    let span = sites!("barrier" "broadcast" "broadcast_buf" "reduce" "all_reduce" "gather" "gather_v" "gather_buf"
        "scatter" "scatter_v" "scatter_buf" "all_gather" "all_gather_v" "all_gather_buf" "all_to_all" "all_to_all_v"
        "all_to_all_buf" "reduce_scatter" "reduce_scatter_v" "scan" "exscan" "neighbours" "split");
    (!span.is_disabled()).then(|| span.entered())
}
