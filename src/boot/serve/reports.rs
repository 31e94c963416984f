//! What other threads tell the service, in the order in which they did.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};

/// What may lie here of relayed ranks, in bytes, before whoever brings more has to wait.
const RELAYED_BOUND: usize = 4 << 20;

/// The longest such wait. The service only ever computes between two looks at this, so it is not reached.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Tells a running [`Service`](super::Service) how ranks ended, and what relayed ones said. Cheap to clone, usable from any
/// thread; never blocks for long.
#[derive(Debug, Clone)]
pub struct Reporter(pub(super) Arc<Reports>);

#[derive(Debug)]
pub(super) struct Reports {
    queue: Mutex<Queue>,
    taken: Condvar,
    /// Wakes the service's poll.
    bell: OwnedFd,
}

#[derive(Debug, Default)]
struct Queue {
    news: Vec<(u32, News)>,
    relayed: usize,
}

#[derive(Debug)]
pub(super) enum News {
    /// It ended, as these words say, and whether that was without a sign of failure.
    Ended(String, bool),
    /// It said this.
    Said(Vec<u8>),
    /// It has taken so many bytes.
    Taken(usize),
    /// Its connection ended.
    HungUp,
}

impl Reporter {
    /// `rank` has ended, as `how` says: "killed by SIGSEGV". Nothing happens if it had said goodbye.
    pub fn report_ended(&self, rank: u32, how: &str) {
        self.0.add(rank, News::Ended(how.into(), false));
    }

    /// As [`report_ended`](Reporter::report_ended), of a rank that ended without a sign of failure: "exited with code 0". If
    /// it had joined the job and not said goodbye, [`Service::on_desertion`](super::Service::on_desertion) hears of it.
    pub fn report_exited(&self, rank: u32, how: &str) {
        self.0.add(rank, News::Ended(how.into(), true));
    }

    /// A relayed rank said this. Waits while a lot lies unserved.
    pub fn relayed(&self, rank: u32, bytes: Vec<u8>) {
        self.0.add(rank, News::Said(bytes));
    }

    /// A relayed rank has taken so many bytes of what it was sent.
    pub fn taken(&self, rank: u32, bytes: usize) {
        self.0.add(rank, News::Taken(bytes));
    }

    /// A relayed rank closed its connection.
    pub fn hung_up(&self, rank: u32) {
        self.0.add(rank, News::HungUp);
    }
}

impl Reports {
    pub(super) fn new() -> io::Result<Reports> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Reports { queue: Mutex::default(), taken: Condvar::new(), bell })
    }

    pub(super) fn bell(&self) -> &OwnedFd {
        &self.bell
    }

    pub(super) fn take(&self) -> Vec<(u32, News)> {
        // Reset first: a report that comes in between rings again and finds nothing, instead of being missed.
        let _ = rustix::io::read(self.bell.as_fd(), &mut [0; 8]);
        let queue = std::mem::take(&mut *self.queue.lock());
        self.taken.notify_all();
        queue.news
    }

    fn add(&self, rank: u32, news: News) {
        let mut queue = self.queue.lock();
        if let News::Said(bytes) = &news {
            if queue.relayed >= RELAYED_BOUND {
                let _ = self.taken.wait_for(&mut queue, LONGEST_WAIT);
            }
            queue.relayed += bytes.len();
        }
        queue.news.push((rank, news));
        drop(queue);
        // The only failure is a counter at its maximum, and then the service is being woken anyway.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}
