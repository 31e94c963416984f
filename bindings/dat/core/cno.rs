//! Consumer notification objects: one wait for several event dispatchers.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use udeck::via::AtomicSpinHistory;
use udeck_rdma::Bell;
use udeck_sys::above_stdio;

use super::agent::{Agent, Called};

pub struct Cno {
    pub handle: usize,
    bell: Arc<Bell>,
    /// Handles of event dispatchers that have notified, oldest first, each once.
    triggered: Mutex<VecDeque<usize>>,
    agent: Mutex<Option<Called>>,
    fd: Option<OwnedFd>,
    pub spin_history: AtomicSpinHistory,
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
            spin_history: AtomicSpinHistory::default(),
            waiters: AtomicUsize::new(0),
            dead: AtomicBool::new(false),
        }
    }

    /// Makes one with a file descriptor, which is readable while a dispatcher has notified.
    ///
    /// # Errors
    /// The system's error.
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

    /// Sets the agent, which is called on a thread of the library: at once with the dispatchers that the previous agent had still to be called
    /// with, or, without a previous agent, with those that no wait has taken, even if their events are taken by now. Waits for a running
    /// call of the previous agent; `false`: that call does not return.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn set_agent(&self, agent: Option<Agent>) -> io::Result<bool> {
        let called = agent.map(Called::start).transpose()?;
        let before = {
            // Notifications that come meanwhile wait for this lock, and go to the new agent.
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

    /// Notifies that an event dispatcher has events.
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

    /// Takes the next event dispatcher that has notified.
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

    /// Forgets the notification of an event dispatcher that is gone.
    pub fn forget(&self, evd: usize) {
        self.triggered.lock().retain(|other| *other != evd);
        if let Some(agent) = &*self.agent.lock() {
            agent.forget(evd);
        }
    }

    /// Ends the object: its agent is called no more, and its waits end.
    pub fn end(&self) {
        self.dead.store(true, Ordering::Relaxed);
        *self.agent.lock() = None; // no call of the agent begins any more
        self.bell.ring_all();
    }
}
