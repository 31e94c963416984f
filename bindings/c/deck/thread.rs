//! `deck_thread_t`: POSIX threads. Such a thread has no frame of Rust, so `pthread_exit` and C++ exceptions that are caught there
//! are the program's own affair.
#![allow(unsafe_code, reason = "calls of C's")]

use std::ffi::{c_int, c_void};
use std::io::Error;
use std::mem::MaybeUninit;

use super::error::{FAILED, Result, call, failure, invalid};
use super::pointer::{self, Number, Structure};
use super::stage::world;
use super::table::Table;

/// `deck_thread_t`, as `deck.h` has it.
#[repr(C)]
pub struct Thread {
    number: Number,
}

impl Structure for Thread {
    type Object = libc::pthread_t;
    const TABLE: &'static Table<libc::pthread_t> = &THREADS;

    fn number_in(structure: *mut Self) -> *mut Number {
        structure.cast()
    }
}

static THREADS: Table<libc::pthread_t> = Table::new("deck_thread_t", 0x7268_0000);

/// Body of a thread.
type Body = extern "C" fn(*mut c_void) -> *mut c_void;

/// `int deck_thread_create(deck_thread_t *thread, void *(*body)(void *), void *arg)`
///
/// # Safety
/// `thread` is NULL or points to a structure; `body` may be called with `arg`, on a thread of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_thread_create(
    thread: *mut Thread,
    body: Option<Body>,
    arg: *mut c_void,
) -> c_int {
    call("deck_thread_create", || {
        world()?;
        // SAFETY: our contract.
        unsafe { pointer::check_not_created(thread) }?;
        let body = body.ok_or_else(|| invalid("body is NULL"))?;
        let mut native = MaybeUninit::uninit();
        // SAFETY: there is a place for the thread's number, and `body` may be called with `arg`, by our contract.
        let result = unsafe { libc::pthread_create(native.as_mut_ptr(), std::ptr::null(), body, arg) };
        succeeded("the system starts no thread", result)?;
        // SAFETY: it succeeded, so the number is there.
        let number = pointer::insert(unsafe { native.assume_init() }, thread)?;
        // SAFETY: our contract; it may be uninitialised.
        unsafe { thread.write(Thread { number }) };
        Ok(())
    })
}

/// `int deck_thread_join(deck_thread_t *thread, void **result)`
///
/// # Safety
/// `thread` is NULL or points to a structure, and `result` is NULL or points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_thread_join(thread: *mut Thread, result: *mut *mut c_void) -> c_int {
    call("deck_thread_join", || {
        // SAFETY: our contract.
        let number = unsafe { pointer::number(thread) }?;
        // SAFETY: it only says which thread this is.
        if THREADS.lock(number, None)?.get().is_some_and(|native| *native == unsafe { libc::pthread_self() })
        {
            return Err(invalid("a thread cannot join itself"));
        }
        // SAFETY: our contract.
        let native = unsafe { pointer::remove(thread) }?;
        // SAFETY: a thread that was created here, and is joined once, because the table has it no more. `result` is our contract.
        succeeded("the thread cannot be joined", unsafe { libc::pthread_join(native, result) })
    })
}

fn succeeded(what: &str, result: c_int) -> Result {
    match result {
        0 => Ok(()),
        code => Err(failure(FAILED, format!("{what}: {}", Error::from_raw_os_error(code)))),
    }
}
