//! The functions that programs call.
//!
//! These functions trust programs' arguments exactly as libibverbs does: a handle must be one that this library returned and that
//! was not given back. Each `// SAFETY: handle` below refers to this contract of the header.

mod completion;
mod connection_manager;
mod device;
mod events;
mod memory;
mod names;
mod pair;
mod port;
mod post;
mod shared;
pub mod standin;

use libc::c_int;

pub use completion::{poll_cq, req_notify_cq};
pub use post::{post_recv, post_send, post_srq_recv};

fn set_errno(error: c_int) {
    // SAFETY: The address is this thread's own variable.
    unsafe { *libc::__errno_location() = error };
}

/// Result of a function that returns a handle: null, with `errno`.
fn null<T>(error: c_int) -> *mut T {
    set_errno(error);
    std::ptr::null_mut()
}

/// Result of a function that returns an error's number.
fn number(result: Result<(), c_int>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            set_errno(error);
            error
        }
    }
}

/// Result of a function that returns -1, with `errno`.
fn minus_one(result: Result<(), c_int>) -> c_int {
    if number(result) == 0 { 0 } else { -1 }
}
