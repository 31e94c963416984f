//! Forked children: processes made by `fork()` while the library is in use.
//!
//! Such a child has copies of all objects, and none of the threads behind them; it shares descriptors and memory with its
//! parent. Its actions there would affect the parent's connections. So it can use nothing of the library, for good: calls ask
//! [`check`] and fail with words, drops ask [`is_forked`] and do nothing. A child that is forked to run another program
//! (`std::process::Command`) is not concerned: all descriptors close when it does.
//!
//! The C library reports a fork (`pthread_atfork`); a child made by a bare system call is not noticed.

use std::io;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Whether this process was forked while something was open.
static FORKED: AtomicBool = AtomicBool::new(false);
/// Number of [`ForkMark`]s.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Mark of an object that must not be used by a forked child: a process that is forked while one exists is such a child.
#[derive(Debug)]
pub struct ForkMark(());

impl Default for ForkMark {
    fn default() -> Self {
        static ONCE: Once = Once::new();
        // SAFETY: the handler stores to an atomic, which is all that a child of a process with threads may do.
        ONCE.call_once(|| _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) });
        OPEN.fetch_add(1, Ordering::Relaxed);
        ForkMark(())
    }
}

impl Drop for ForkMark {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

unsafe extern "C" fn in_child() {
    if OPEN.load(Ordering::Relaxed) > 0 {
        FORKED.store(true, Ordering::Relaxed);
    }
}

/// Whether this process is a forked child of one that had the library open.
#[inline]
pub fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Checks that this process is no forked child of one that had the library open.
///
/// # Errors
/// [`io::ErrorKind::Unsupported`]: it is one.
#[inline]
pub fn check() -> io::Result<()> {
    if is_forked() { Err(forked()) } else { Ok(()) }
}

#[cold]
fn forked() -> io::Error {
    let pid = std::process::id();
    let why = "a child made by fork() while its parent has a world or NIC open can use neither; let it run a program (exec)";
    io::Error::new(io::ErrorKind::Unsupported, format!("process {pid} was forked: {why}"))
}
