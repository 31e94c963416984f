//! The C side: functions that the registry calls.
//!
//! | file | what it is |
//! |---|---|
//! | `provider.rs` | `DAT_PROVIDER`, the table of all calls, and how the registry loads it |
//! | `types.rs` | the structures of `udat.h` |
//! | `ia.rs`, `events.rs`, `eps.rs`, `posts.rs`, `memory.rs`, `srqs.rs`, `service.rs` | the calls, by object |

#![allow(unsafe_code, reason = "C's pointers, checked for NULL, and handles, checked for their kind")]

mod eps;
mod events;
mod ia;
mod memory;
mod posts;
mod provider;
mod service;
mod srqs;
mod types;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::core::code::{Code, Result, Sub};
use crate::core::evd::Evd;
use crate::core::ia::Ia;
use crate::core::slot::Pool;

/// The `DAT_PROVIDER` of this name for a transport, as the registry gets it: for the counted paths, which call as programs in C do.
pub fn provider_table(name: &str, transport: &str) -> Option<*const ()> {
    provider::load(name, transport, 0).map(|provider| std::ptr::from_ref(provider).cast())
}

/// Runs a call's body. A panic ends here, and becomes an error of the call: unwinding through C's frames is undefined.
#[inline(always)]
fn call(body: impl FnOnce() -> Result) -> Code {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Code::SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => Code::INTERNAL_ERROR,
    }
}

/// Writes an out-parameter, unless it is NULL.
///
/// # Safety
/// NULL, or valid for writing.
unsafe fn put<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: not NULL, so valid for writing.
        unsafe { to.write(value) }
    }
}

/// Checks an out-parameter, argument `nth` of the call, for NULL.
fn some<T>(pointer: *mut T, nth: u32) -> Result<*mut T> {
    if pointer.is_null() { Err(Code::argument(nth)) } else { Ok(pointer) }
}

/// Borrows `len` bytes of the program's.
///
/// # Safety
/// Valid for reading `len` bytes, unless that is refused.
unsafe fn bytes<'a>(at: *const u8, len: i32, nth: u32) -> Result<&'a [u8]> {
    match usize::try_from(len) {
        Err(_) => Err(Code::argument(nth)),
        Ok(0) => Ok(&[]),
        Ok(_) if at.is_null() => Err(Code::argument(nth + 1)),
        // SAFETY: not NULL, so valid, as promised.
        Ok(len) => Ok(unsafe { std::slice::from_raw_parts(at, len) }),
    }
}

/// The object of a handle.
///
/// # Safety
/// NULL, or a handle that a call has given.
unsafe fn object<T: Clone>(pool: &Pool<T>, handle: usize, sub: Sub) -> Result<T> {
    // SAFETY: as promised.
    unsafe { pool.find(handle) }.and_then(|slot| slot.get()).ok_or(Code::INVALID_HANDLE.of(sub))
}

/// Checks that two objects are of one adapter.
fn same(ia: &Arc<Ia>, others: &Arc<Ia>, sub: Sub) -> Result {
    if Arc::ptr_eq(ia, others) { Ok(()) } else { Err(Code::INVALID_HANDLE.of(sub)) }
}

/// The event dispatcher of a handle, or none for NULL. It has to be of this adapter, and to have the stream.
///
/// # Safety
/// As [`object`].
unsafe fn evd_or_null(ia: &Arc<Ia>, handle: usize, stream: u32, sub: Sub) -> Result<Option<Arc<Evd>>> {
    if handle == 0 {
        return Ok(None);
    }
    // SAFETY: as promised.
    Ok(Some(unsafe { events::evd_of(Some(ia), handle, stream, sub) }?))
}
