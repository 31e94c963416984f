//! What the trace has of messages, waits and calls (`DECK_TRACE`): our call sites of the `tracing` crate.
//!
//! Whoever comes by asks [`is_on`], which is a load and a comparison. What it takes to tell is elsewhere, and cold. A message is one
//! event that says when it began and ended ([`udeck_trace::MESSAGES`]), a collective call is a span ([`udeck_trace::CALLS`]).
//!
//! # Arrows
//! An arrow goes from the post of a message to its retrieve, and both sides have to call it by one name. Nothing is sent for that:
//! the messages of a postbox come in the order of posting. So both sides count them, and the name is the poster's rank, its number for
//! the postbox, which the mailbox knows since the connection was made, and the number of the message.

use std::sync::atomic::{AtomicU64, Ordering};

use tracing::Level;
use tracing::level_filters::LevelFilter;
use tracing::span::EnteredSpan;
use udeck_trace::{CALLS, MESSAGES, now};

use crate::error::INTERNAL;
use crate::parcel::Parcel;
use crate::protocol::Protocol;

/// Whether anybody wants to know.
#[inline(always)]
pub(crate) fn is_on() -> bool {
    Level::TRACE <= LevelFilter::current()
}

/// When something begins that may be told later; 0 if nobody wants to know.
#[inline]
pub(crate) fn begin() -> u64 {
    if is_on() { now() } else { 0 }
}

/// A message that was posted.
pub(crate) struct Posted<'a> {
    pub start: u64,
    pub rank: usize,
    pub peer: u32,
    pub postbox: u32,
    /// Which message of the postbox it is.
    pub number: u64,
    pub mailbox: &'a str,
    pub protocol: Protocol,
    pub bytes: usize,
    pub tag: u32,
}

/// What both sides call a message.
fn arrow(rank: u32, postbox: u32, number: u32) -> u64 {
    u64::from(rank & 0xFFFF) << 48 | u64::from(postbox & 0xFFFF) << 32 | u64::from(number)
}

/// A mailbox as the trace names it.
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

/// A step of a protocol that was taken after a post, or before a retrieve.
#[cold]
pub(crate) fn step(start: u64, rank: usize, step: &'static str, (protocol, bytes): (Protocol, usize)) {
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

/// A wait that has ended. `on`: what the call was.
#[cold]
pub(crate) fn waited(start: u64, on: &'static str) {
    tracing::event!(name: "wait", target: MESSAGES, Level::TRACE, start_ns = start, end_ns = now(), on);
}

/// What is told of a rank that begins, so that what its thread does next is known to be its own.
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

/// A part of finishing that may take long.
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

/// The inside of a collective call, until what is returned is dropped.
#[inline]
pub(crate) fn call(name: &str, rank: usize, group: &str, members: usize) -> Option<EnteredSpan> {
    if Level::DEBUG <= LevelFilter::current() { entered(name, rank, group, members) } else { None }
}

/// A collective call that returned at once, and is over now. Its thread did other things meanwhile.
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

/// A call site for each name: a span's name is its call site's.
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
