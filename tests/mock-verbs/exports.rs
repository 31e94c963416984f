//! The functions that programs call.
//!
//! They take what programs give on trust exactly as libibverbs does: a handle must be one that this library gave out and
//! has not taken back. Each `// SAFETY: handle` below means that contract of the header's.

mod completion;
mod device;
mod events;
mod meeting;
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

/// For functions that return a handle.
fn null<T>(error: c_int) -> *mut T {
    set_errno(error);
    std::ptr::null_mut()
}

/// For functions that return an error's number.
fn number(result: Result<(), c_int>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            set_errno(error);
            error
        }
    }
}

/// For functions that return -1.
fn minus_one(result: Result<(), c_int>) -> c_int {
    if number(result) == 0 { 0 } else { -1 }
}
