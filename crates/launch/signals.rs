//! Signals as a queue to wait on, instead of handlers that interrupt.
//!
//! The signals are blocked in the calling thread, and so in the threads that it starts afterwards; the kernel
//! keeps them pending until [`Signals::take_next`] takes them. Ranks are started with the earlier mask.
//!
//! A process that watches over a job has a guard ([`crate::guard`]), in one process group with it. The guard
//! passes its signals on. A signal that was sent to both therefore comes twice, and counts once ([`Tally`]).

#![allow(unsafe_code, reason = "processes and signals, for which rustix has no safe call")]

use std::{
    cell::RefCell,
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
    time::{Duration, Instant},
};

use rustix::process::{Pid, getppid};

/// Signals that end a job. If this process was started to ignore one (`nohup`, a shell's `&`), it stays
/// ignored.
const ENDING: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Signals that come twice if they are sent to both processes.
const COUNTED: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// Signals that the terminal sends to a process group in the background when one of its processes reads, or
/// writes where that is not allowed (`stty tostop`). They stop a process as SIGTSTP does. If they were blocked
/// they would not be sent at all, and the access would fail or be allowed. A handler therefore turns them into
/// SIGTSTP, and the access is tried again when the process goes on. (The kernel also retries it before, over
/// and over, which takes a processor until the ranks have been stopped and then this process.)
const BACKGROUND: [i32; 2] = [libc::SIGTTIN, libc::SIGTTOU];

extern "C" fn stop_alike(_: i32) {
    // SAFETY: two system calls on numbers, which a handler may do; they do not fail, and leave `errno` alone.
    unsafe { libc::kill(libc::getpid(), libc::SIGTSTP) };
}

/// Maximum number of senders that are told apart.
const MAX_SENDERS: usize = 64;

/// The signal that the kernel sends when the guard dies. A real-time signal, because nobody else sends it, nor
/// tells us to ignore it.
pub(crate) fn abandoned() -> i32 {
    libc::SIGRTMIN()
}

/// The signal by which a guard passes a signal on. (Real-time signals are queued, never merged.)
pub(crate) fn relay() -> i32 {
    libc::SIGRTMIN() + 1
}

/// A signal that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) number: i32,
    /// The process that sent the signal; 0 for the kernel.
    pub(crate) by: i32,
    /// The signal came through the guard.
    pub(crate) relayed: bool,
}

/// Takes SIGCHLD, the [`ENDING`] signals and those of a guard, until dropped.
pub(crate) struct Signals {
    awaited: libc::sigset_t,
    tally: RefCell<Tally>,
    before: Mask,
    child_before: libc::sigaction,
    /// [`BACKGROUND`] signals that become SIGTSTP, with their actions from before.
    background_before: Vec<(i32, libc::sigaction)>,
    /// Readable while a signal is pending.
    pending: OwnedFd,
}

/// A signal mask, to be put in force in a child that is about to exec.
#[derive(Clone, Copy)]
pub(crate) struct Mask(libc::sigset_t);

impl Signals {
    pub(crate) fn take() -> io::Result<Signals> {
        Signals::take_also(&[])
    }

    /// Does as [`take`](Signals::take), and takes the signals of `others` that are not ignored. If SIGTSTP is
    /// one of them, the [`BACKGROUND`] signals come as SIGTSTP.
    pub(crate) fn take_also(others: &[i32]) -> io::Result<Signals> {
        let mut awaited = empty_set();
        for signal in [libc::SIGCHLD, abandoned(), relay()] {
            add(&mut awaited, signal);
        }
        for &signal in ENDING.iter().chain(others) {
            if action(signal)?.sa_sigaction != libc::SIG_IGN {
                add(&mut awaited, signal);
            }
        }
        let pending = descriptor_of(&awaited)?;
        // If SIGCHLD were ignored, the kernel would throw the exit codes away.
        let child_before = action(libc::SIGCHLD)?;
        let mut default = child_before;
        default.sa_sigaction = libc::SIG_DFL;
        set_action(libc::SIGCHLD, &default)?;
        let mut before = empty_set();
        // SAFETY: both sets are initialised, and only this thread's mask changes.
        let error = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &awaited, &mut before) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        let (tally, background_before) = (RefCell::default(), Vec::new());
        let mut signals =
            Signals { awaited, tally, before: Mask(before), child_before, background_before, pending };
        // If SIGTSTP is ignored, the signals that become SIGTSTP would be ignored, too, and the terminal would
        // send them over and over.
        if others.contains(&libc::SIGTSTP) && action(libc::SIGTSTP)?.sa_sigaction != libc::SIG_IGN {
            signals.take_background()?;
        }
        Ok(signals)
    }

    fn take_background(&mut self) -> io::Result<()> {
        for signal in BACKGROUND {
            let before = action(signal)?;
            if before.sa_sigaction == libc::SIG_DFL {
                let mut ours = before;
                ours.sa_sigaction = stop_alike as extern "C" fn(i32) as usize;
                ours.sa_flags = libc::SA_RESTART;
                set_action(signal, &ours)?;
                self.background_before.push((signal, before));
            }
        }
        Ok(())
    }

    /// Returns a descriptor that is readable for the thread that called [`take`](Signals::take) while a signal
    /// is pending.
    pub(crate) fn pending(&self) -> BorrowedFd<'_> {
        self.pending.as_fd()
    }

    /// Returns the next pending signal, if there is one: SIGCHLD, a signal to end the job, or [`abandoned`].
    pub(crate) fn take_next(&self) -> Option<i32> {
        while let Some(sent) = self.take_sent() {
            let counted = COUNTED.contains(&sent.number);
            if !counted || self.tally.borrow_mut().is_news(sent) {
                return Some(sent.number);
            }
        }
        None
    }

    /// Returns the next pending signal with its sender, also one that [`take_next`](Signals::take_next) would
    /// count as a repetition.
    pub(crate) fn take_sent(&self) -> Option<Sent> {
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        loop {
            let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
            // SAFETY: the set is initialised, `info` is valid for writing, and the timespec lives through the call.
            let number = unsafe { libc::sigtimedwait(&self.awaited, info.as_mut_ptr(), &at_once) };
            if number <= 0 {
                return None;
            }
            // SAFETY: the call succeeded and so has written it (over zeroes, which are a value); whatever the signal, the
            // fields below lie inside, and are numbers.
            let (code, by, value) = unsafe {
                let info = info.assume_init();
                (info.si_code, info.si_pid(), info.si_value().sival_ptr as u64)
            };
            if number != relay() {
                // Positive codes are the kernel's, whose signals have no sender.
                return Some(Sent { number, by: if code > 0 { 0 } else { by }, relayed: false });
            }
            // Only the guard may speak for other senders.
            if by == getppid().map_or(0, |guard| guard.as_raw_nonzero().get()) {
                return Some(Sent { number: value as u8 as i32, by: (value >> 8) as i32, relayed: true });
            }
        }
    }

    pub(crate) fn before(&self) -> Mask {
        self.before
    }

    /// Makes this signal pending again, for the next call that takes one.
    pub(crate) fn put_back(&self, number: i32) {
        // SAFETY: a system call on a number. The signal is blocked, and so stays pending.
        unsafe { libc::raise(number) };
    }

    /// Does what an untaken SIGTSTP does: this process stops until SIGCONT, or goes on at once if no process
    /// could continue it (an orphaned process group). Returns the length of the pause. The death of our guard
    /// continues us, too.
    pub(crate) fn suspend(&self) -> Duration {
        let began = Instant::now();
        let on_guards_death = OnParentsDeath::continue_us();
        if on_guards_death.as_ref().is_none_or(|before| !before.has_come()) {
            let mut stop = empty_set();
            add(&mut stop, libc::SIGTSTP);
            // SAFETY: the set is initialised, a null pointer asks for no old mask, and the rest are numbers. Raised for this
            // thread and let through: it has come, and been dealt with, when the second call returns.
            unsafe {
                libc::raise(libc::SIGTSTP);
                libc::pthread_sigmask(libc::SIG_UNBLOCK, &stop, ptr::null_mut());
                libc::pthread_sigmask(libc::SIG_BLOCK, &stop, ptr::null_mut());
            }
        }
        drop(on_guards_death);
        began.elapsed()
    }
}

impl Sent {
    /// Passes this signal on to `to`, whose guard this process is.
    pub(crate) fn pass_on(self, to: Pid) {
        let pid = to.as_raw_nonzero().get();
        if COUNTED.contains(&self.number) {
            let value = u64::from(self.by as u32) << 8 | self.number as u64;
            let value = libc::sigval { sival_ptr: ptr::without_provenance_mut(value as usize) };
            // SAFETY: a system call on numbers. It fails for a process that has ended, which is noticed otherwise.
            unsafe { libc::sigqueue(pid, relay(), value) };
        } else {
            // SAFETY: as above.
            unsafe { libc::kill(pid, self.number) };
        }
    }
}

/// Counts of each signal from each sender, directly and through the guard. A signal that was sent once to the
/// whole process group comes both ways, in any order; one that was sent to the guard or to us alone comes one
/// way. The number of signals is therefore the larger of both counts.
#[derive(Default)]
struct Tally(Vec<Count>);

struct Count {
    number: i32,
    by: i32,
    ways: [u32; 2],
}

impl Tally {
    fn is_news(&mut self, sent: Sent) -> bool {
        let same = |count: &Count| (count.number, count.by) == (sent.number, sent.by);
        let at = self.0.iter().position(same).unwrap_or_else(|| {
            if self.0.len() == MAX_SENDERS {
                self.0.remove(0);
            }
            self.0.push(Count { number: sent.number, by: sent.by, ways: [0; 2] });
            self.0.len() - 1
        });
        let ways = &mut self.0[at].ways;
        let before = ways[0].max(ways[1]);
        ways[usize::from(sent.relayed)] += 1;
        ways[0].max(ways[1]) > before
    }
}

/// While it exists, the kernel sends SIGCONT when our guard dies: a stopped process takes no signal but SIGKILL
/// and SIGCONT. Dropping it sets [`abandoned`] again, and raises that signal if the guard has died.
struct OnParentsDeath {
    guard: Option<Pid>,
}

impl OnParentsDeath {
    /// Returns `None` if this process has no guard.
    fn continue_us() -> Option<OnParentsDeath> {
        let guard = guard()?;
        set_parents_death(libc::SIGCONT);
        Some(OnParentsDeath { guard: Some(guard) })
    }

    fn has_come(&self) -> bool {
        getppid() != self.guard
    }
}

impl Drop for OnParentsDeath {
    fn drop(&mut self) {
        set_parents_death(abandoned());
        if self.has_come() {
            // SAFETY: a system call on a number; the signal is blocked and taken later.
            unsafe { libc::raise(abandoned()) };
        }
    }
}

/// Returns the guard of this process, if this process watches over a job.
pub(crate) fn guard() -> Option<Pid> {
    let mut signal = 0;
    // SAFETY: the kernel writes a number to where the pointer leads.
    let known = unsafe { libc::prctl(libc::PR_GET_PDEATHSIG, &raw mut signal) } == 0;
    (known && signal == abandoned()).then(getppid).flatten()
}

fn set_parents_death(signal: i32) {
    // SAFETY: a system call on numbers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) };
}

impl Drop for Signals {
    fn drop(&mut self) {
        // Neither call can fail with arguments that the system gave out itself.
        let _ = set_action(libc::SIGCHLD, &self.child_before);
        for (signal, before) in &self.background_before {
            let _ = set_action(*signal, before);
        }
        let _ = self.before.restore();
    }
}

impl Mask {
    /// Returns the calling thread's mask.
    pub(crate) fn current() -> io::Result<Mask> {
        let mut mask = empty_set();
        // SAFETY: a null pointer changes nothing, and `mask` is valid for writing a set.
        match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, ptr::null(), &mut mask) } {
            0 => Ok(Mask(mask)),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Sets this mask for the calling thread. Async-signal-safe.
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
        // SAFETY: the descriptor was just opened, and no other code has it.
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
    // SAFETY: `action` came from the system, with at most its handler replaced by the default, or by a function for it that does
    // only what a handler may.
    match unsafe { libc::sigaction(signal, action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(number: i32, by: i32, relayed: bool) -> Sent {
        Sent { number, by, relayed }
    }

    #[test]
    fn what_comes_both_ways_counts_once() {
        const TERM: i32 = libc::SIGTERM;
        for first in [false, true] {
            let mut tally = Tally::default();
            assert!(tally.is_news(sent(TERM, 7, first)));
            assert!(!tally.is_news(sent(TERM, 7, !first)), "the same one by the other way");
            assert!(tally.is_news(sent(TERM, 7, first)), "a second one");
            assert!(tally.is_news(sent(TERM, 7, first)), "a third one");
            assert!(!tally.is_news(sent(TERM, 7, !first)), "the second one by the other way");
            assert!(tally.is_news(sent(TERM, 8, !first)), "of somebody else");
            assert!(tally.is_news(sent(libc::SIGINT, 7, !first)), "another one");
        }
    }

    #[test]
    fn senders_are_bounded() {
        let mut tally = Tally::default();
        for by in 0..3 * MAX_SENDERS as i32 {
            assert!(tally.is_news(sent(libc::SIGINT, by, false)));
        }
        assert_eq!(tally.0.len(), MAX_SENDERS);
    }
}
