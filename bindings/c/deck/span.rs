//! Spans of the program's own in the trace. C has no guards: each thread has a stack of its open spans.
#![allow(unsafe_code, reason = "calls of C's")]

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int};
use std::mem::ManuallyDrop;

use udeck::Span;

use super::error::{Result, call, invalid};
use super::stage::world;

/// Maximum number of a thread's open spans that are traced. Further ones inside them are counted only.
const MAX_DEPTH: usize = 64;

/// Open spans of a thread.
struct Open {
    /// Spans that are traced, the innermost last. They are never dropped by the thread's end: a span that the program has
    /// not ended has no end that could be recorded.
    traced: Vec<ManuallyDrop<Span>>,
    /// Number of spans that are open inside of these.
    deeper: u64,
}

thread_local! {
    static OPEN: RefCell<Open> = const { RefCell::new(Open { traced: Vec::new(), deeper: 0 }) };
}

/// `int deck_span_begin(const char *name)`
///
/// # Safety
/// `name` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_span_begin(name: *const c_char) -> c_int {
    call("deck_span_begin", || {
        let world = world()?;
        if name.is_null() {
            return Err(invalid("name is NULL"));
        }
        // SAFETY: a string, by our contract. In whatever encoding: a trace does not change what a program does.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        with_open(|open| {
            if open.traced.len() < MAX_DEPTH {
                open.traced.push(ManuallyDrop::new(world.span(&name)));
            } else {
                open.deeper += 1;
            }
            Ok(())
        })
    })
}

/// `int deck_span_end(void)`
#[unsafe(no_mangle)]
pub extern "C" fn deck_span_end() -> c_int {
    call("deck_span_end", || {
        world()?;
        with_open(|open| {
            if open.deeper > 0 {
                open.deeper -= 1;
                return Ok(());
            }
            let Some(span) = open.traced.pop() else {
                return Err(invalid(
                    "this thread has no open span: each deck_span_end ends one deck_span_begin",
                ));
            };
            drop(ManuallyDrop::into_inner(span));
            Ok(())
        })
    })
}

/// Passes the thread's open spans. A thread that is ending has none any more: its spans are not in the trace.
fn with_open(body: impl FnOnce(&mut Open) -> Result) -> Result {
    OPEN.try_with(|open| body(&mut open.borrow_mut())).unwrap_or(Ok(()))
}
