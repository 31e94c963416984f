//! Signals as a queue to wait on, instead of handlers that interrupt.
//!
//! The signals are blocked in the calling thread, and so in the threads that it starts afterwards; the kernel keeps them
//! pending until [`Signals::take_next`] takes them. Ranks are started with the mask of before.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
};

/// The signals that end a job. One that this process was started to ignore (`nohup`, a shell's `&`) stays ignored.
const ENDING: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Takes SIGCHLD and the [`ENDING`] signals until dropped.
pub(crate) struct Signals {
    awaited: libc::sigset_t,
    before: Mask,
    child_before: libc::sigaction,
    /// Readable while one is pending.
    pending: OwnedFd,
}

/// A signal mask, to be put in force in a child that is about to exec.
#[derive(Clone, Copy)]
pub(crate) struct Mask(libc::sigset_t);

impl Signals {
    pub(crate) fn take() -> io::Result<Signals> {
        let mut awaited = empty_set();
        add(&mut awaited, libc::SIGCHLD);
        for signal in ENDING {
            if action(signal)?.sa_sigaction != libc::SIG_IGN {
                add(&mut awaited, signal);
            }
        }
        let pending = descriptor_of(&awaited)?;
        // A SIGCHLD that is ignored would have the kernel throw the exit codes away.
        let child_before = action(libc::SIGCHLD)?;
        let mut default = child_before;
        default.sa_sigaction = libc::SIG_DFL;
        set_action(libc::SIGCHLD, &default)?;
        let mut before = empty_set();
        // SAFETY: both sets are initialised, and only this thread's mask changes.
        let error = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &awaited, &mut before) };
        match error {
            0 => Ok(Signals { awaited, before: Mask(before), child_before, pending }),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Readable for the thread that called [`take`](Signals::take) while there is a signal to be taken.
    pub(crate) fn pending(&self) -> BorrowedFd<'_> {
        self.pending.as_fd()
    }

    /// The next signal that has come, if one has.
    pub(crate) fn take_next(&self) -> Option<i32> {
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the set is initialised, no information is asked for, and the timespec lives through the call.
        let signal = unsafe { libc::sigtimedwait(&self.awaited, ptr::null_mut(), &at_once) };
        (signal > 0).then_some(signal)
    }

    pub(crate) fn before(&self) -> Mask {
        self.before
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // Neither can fail with arguments that the system gave out itself.
        let _ = set_action(libc::SIGCHLD, &self.child_before);
        let _ = self.before.restore();
    }
}

impl Mask {
    /// Puts this mask in force for the calling thread. Async-signal-safe.
    pub(crate) fn restore(&self) -> io::Result<()> {
        // SAFETY: the set is initialised; a null pointer asks for no old mask.
        match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, ptr::null_mut()) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

fn descriptor_of(set: &libc::sigset_t) -> io::Result<OwnedFd> {
    // SAFETY: the set is initialised, and -1 asks for a new descriptor.
    match unsafe { libc::signalfd(-1, set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: just opened, and nobody else knows it.
        fd => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
    }
}

fn empty_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set that it is given, and cannot fail on a valid pointer.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

fn add(set: &mut libc::sigset_t, signal: i32) {
    // SAFETY: the set is initialised, and the signals of this file exist.
    unsafe { libc::sigaddset(set, signal) };
}

fn action(signal: i32) -> io::Result<libc::sigaction> {
    let mut action = MaybeUninit::uninit();
    // SAFETY: a null new action only asks; on success the old one is written whole.
    match unsafe { libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) } {
        // SAFETY: just written.
        0 => Ok(unsafe { action.assume_init() }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_action(signal: i32, action: &libc::sigaction) -> io::Result<()> {
    // SAFETY: `action` came from the system, with at most its handler replaced by the default.
    match unsafe { libc::sigaction(signal, action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
