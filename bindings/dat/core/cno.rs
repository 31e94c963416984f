//! Consumer notification objects: one wait for several event dispatchers.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use udeck_rdma::Bell;
use udeck_sys::above_stdio;

use super::agent::{Agent, Called};

pub struct Cno {
    pub handle: usize,
    bell: Arc<Bell>,
    /// Event dispatchers with news, oldest first, each once.
    triggered: Mutex<VecDeque<usize>>,
    agent: Mutex<Option<Called>>,
    fd: Option<OwnedFd>,
    pub waiters: AtomicUsize,
    pub dead: AtomicBool,
}

impl Cno {
    pub fn new(handle: usize, bell: Arc<Bell>) -> Cno {
        Cno {
            handle,
            bell,
            triggered: Mutex::default(),
            agent: Mutex::default(),
            fd: None,
            waiters: AtomicUsize::new(0),
            dead: AtomicBool::new(false),
        }
    }

    /// One whose file descriptor becomes readable with the news.
    ///
    /// # Errors
    /// The system's.
    pub fn with_fd(handle: usize, bell: Arc<Bell>) -> io::Result<Cno> {
        let fd = above_stdio(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK))?;
        Ok(Cno { fd: Some(fd), ..Cno::new(handle, bell) })
    }

    pub fn fd(&self) -> Option<i32> {
        self.fd.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Returns the descriptor, as [`Cno::fd`], for Rust.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(AsFd::as_fd)
    }

    /// Who is called from now on, on a thread of the library: at once with what the one before has yet to hear, or, without one before,
    /// with what nobody has taken by a wait, even if its events are taken by now. Waits for a call of the one before: `false` if that does not return.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn set_agent(&self, agent: Option<Agent>) -> io::Result<bool> {
        let called = agent.map(Called::start).transpose()?;
        let before = {
            // News that come meanwhile wait for this lock, and go to the new one.
            let mut current = self.agent.lock();
            let unheard = match &*current {
                Some(before) => before.retire(),
                None => self.triggered.lock().clone(),
            };
            if let Some(called) = &called {
                unheard.into_iter().for_each(|evd| called.tell(evd));
            }
            std::mem::replace(&mut *current, called)
        };
        Ok(before.is_none_or(Called::end))
    }

    /// Tells that an event dispatcher has news.
    pub fn trigger(&self, evd: usize) {
        {
            let mut triggered = self.triggered.lock();
            if !triggered.contains(&evd) {
                triggered.push_back(evd);
            }
        }
        if let Some(agent) = &*self.agent.lock() {
            agent.tell(evd);
        }
        if let Some(fd) = &self.fd {
            let _ = rustix::io::write(fd, &1_u64.to_ne_bytes()); // full: it is readable already
        }
        self.bell.ring();
    }

    /// The next event dispatcher that has news.
    pub fn take(&self) -> Option<usize> {
        let mut triggered = self.triggered.lock();
        let evd = triggered.pop_front();
        if triggered.is_empty()
            && let Some(fd) = &self.fd
        {
            let _ = rustix::io::read(fd, &mut [0; 8]); // not readable any more
        }
        evd
    }

    /// Forgets news of an event dispatcher that is gone.
    pub fn forget(&self, evd: usize) {
        self.triggered.lock().retain(|other| *other != evd);
        if let Some(agent) = &*self.agent.lock() {
            agent.forget(evd);
        }
    }

    /// Ends the waits.
    pub fn end(&self) {
        self.dead.store(true, Ordering::Relaxed);
        *self.agent.lock() = None; // its end was waited for
        self.bell.ring_all();
    }
}
