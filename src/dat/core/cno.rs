//! Consumer notification objects: one wait for several event dispatchers.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};

use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use udeck::via::thread;

use super::bell::Bell;

/// Called with the event dispatcher that has news.
pub type Agent = Box<dyn Fn(usize) + Send>;

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

/// An agent, on its thread.
struct Called {
    news: Sender<usize>,
    /// Until it is replaced, or its object is gone: a call that has begun then ends, and no other begins.
    is_wanted: Arc<AtomicBool>,
}

impl Drop for Called {
    fn drop(&mut self) {
        self.is_wanted.store(false, Ordering::SeqCst);
    }
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
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Cno { fd: Some(fd), ..Cno::new(handle, bell) })
    }

    pub fn fd(&self) -> Option<i32> {
        self.fd.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Who is called from now on, on a thread of the library.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn set_agent(&self, agent: Option<Agent>) -> io::Result<()> {
        let called = match agent {
            None => None,
            Some(agent) => {
                let (sender, news) = mpsc::channel();
                let is_wanted = Arc::new(AtomicBool::new(true));
                let wanted = is_wanted.clone();
                let serve = move || {
                    news.into_iter().take_while(|_| wanted.load(Ordering::SeqCst)).for_each(agent);
                };
                thread::spawn("dat-agent", serve, |_| {})?;
                Some(Called { news: sender, is_wanted })
            }
        };
        *self.agent.lock() = called;
        Ok(())
    }

    /// That event dispatcher has news.
    pub fn trigger(&self, evd: usize) {
        {
            let mut triggered = self.triggered.lock();
            if !triggered.contains(&evd) {
                triggered.push_back(evd);
            }
        }
        if let Some(agent) = &*self.agent.lock() {
            let _ = agent.news.send(evd); // its thread has panicked, which was told
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

    /// That event dispatcher is gone.
    pub fn forget(&self, evd: usize) {
        self.triggered.lock().retain(|other| *other != evd);
    }

    /// Who waits gives up.
    pub fn end(&self) {
        self.dead.store(true, Ordering::Relaxed);
        *self.agent.lock() = None;
        self.bell.ring_loudly();
    }
}
