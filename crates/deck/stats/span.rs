//! Spans of the program's own in the trace ([`World::span`]).
//!
//! A span is one event at its end ([`udeck_trace::SPANS`]), as a message is. Slices of a thread have to lie inside each
//! other. So each thread knows its open spans, and a span that cannot be a slice of the thread is shown apart from it.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::Level;
use tracing::level_filters::LevelFilter;
use udeck_trace::{SPANS, now};

use crate::world::World;

/// Maximum number of a thread's open spans that are known. Guards that were leaked count until then.
const MAX_OPEN: usize = 64;

thread_local! {
    /// Numbers of the thread's open spans, the innermost last.
    static OPEN: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// A span of the program's own in the trace ([`World::span`]), from its making until it is dropped.
///
/// A span is a slice of the thread that made it. A span that ends on another thread, or before a span that began later on
/// its thread, crosses other slices: it is shown apart from the threads, in its rank. So is the outer one of more than
/// 64 spans inside each other. A guard that is never dropped (`std::mem::forget`) is not in the trace, and keeps no
/// memory.
#[derive(Debug)]
#[must_use = "the span ends when its guard is dropped: `let _solve = world.span(\"solve\");`"]
pub struct Span(Option<Open>);

/// A span that has begun, and is traced.
#[derive(Debug)]
struct Open {
    name: &'static str,
    rank: u32,
    start: u64,
    /// Number of the span, unique in its process.
    number: u64,
}

impl World {
    /// Begins a span of the program's own, which ends when the returned guard is dropped. A trace of the job
    /// (`DECK_TRACE`) shows it beside the messages and calls of its thread. Spans may lie inside each other.
    ///
    /// Without a trace the call costs a load and a branch. With one, it waits for nothing but other threads that
    /// look up names. The call never fails, because a trace must not change what a program does:
    ///
    /// | case | in the trace |
    /// |---|---|
    /// | An empty name | `unnamed span` |
    /// | A name of more than 128 bytes | Its first 128 bytes, or up to 3 fewer, so that no character is cut |
    /// | More than 1024 different names in a process | `other spans`; the first one is named on standard error |
    /// | A span that has not ended when its world finishes, or when its process dies | Nothing |
    /// | A child made by `fork()` | Nothing |
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn example(world: &udeck_deck::World) -> udeck_deck::Result {
    /// for _ in 0..3 {
    ///     let _step = world.span("step");
    ///     {
    ///         let _solve = world.span("solve");
    ///         // … computes
    ///     }
    ///     world.barrier()?; // inside of "step"
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    #[doc(alias = "deck_span_begin")]
    pub fn span(&self, name: &str) -> Span {
        Span(if Level::DEBUG <= LevelFilter::current() { begin(name, self.rank() as u32) } else { None })
    }
}

#[cold]
fn begin(name: &str, rank: u32) -> Option<Open> {
    if udeck_via::is_forked() {
        return None;
    }
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let (name, number) = (udeck_trace::span_name(name), NUMBER.fetch_add(1, Ordering::Relaxed));
    // A span of a destructor may begin when its thread has none any more: it is shown apart.
    let _ = OPEN.try_with(|open| {
        let mut open = open.borrow_mut();
        if open.len() == MAX_OPEN {
            open.remove(0);
        }
        open.push(number);
    });
    Some(Open { name, rank, start: now(), number })
}

impl Drop for Span {
    #[inline]
    fn drop(&mut self) {
        if let Some(open) = self.0.take() {
            end(&open);
        }
    }
}

/// Records a span that has ended.
#[cold]
fn end(span: &Open) {
    if udeck_via::is_forked() {
        return;
    }
    let Open { name, rank, start, number } = *span;
    let (rank, is_innermost) = (u64::from(rank), leave(number));
    let apart = (!is_innermost).then_some(number);
    tracing::event!(
        name: "span",
        target: SPANS,
        Level::DEBUG,
        start_ns = start,
        end_ns = now(),
        rank,
        apart,
        span = name,
    );
}

/// Takes a span off the thread's open ones. Returns whether it was the innermost.
fn leave(number: u64) -> bool {
    let left = OPEN.try_with(|open| {
        let mut open = open.borrow_mut();
        let at = open.iter().rposition(|other| *other == number)?;
        open.remove(at);
        Some(at == open.len())
    });
    matches!(left, Ok(Some(true)))
}
