//! What other threads tell the service, in the order in which they did.

use std::{io, sync::Arc, time::Duration};

use parking_lot::{Condvar, Mutex};
use udeck_sys::EventFd;

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
    wakeup: EventFd,
}

#[derive(Debug, Default)]
struct Queue {
    reports: Vec<(u32, RankReport)>,
    relayed: usize,
}

#[derive(Debug)]
pub(super) enum RankReport {
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
        self.0.add(rank, RankReport::Ended(how.into(), false));
    }

    /// As [`report_ended`](Reporter::report_ended), of a rank that ended without a sign of failure: "exited with code 0". If
    /// it had joined the job and not said goodbye, [`Service::on_desertion`](super::Service::on_desertion) hears of it.
    pub fn report_exited(&self, rank: u32, how: &str) {
        self.0.add(rank, RankReport::Ended(how.into(), true));
    }

    /// A relayed rank said this. Waits while a lot lies unserved.
    pub fn relayed(&self, rank: u32, bytes: Vec<u8>) {
        self.0.add(rank, RankReport::Said(bytes));
    }

    /// A relayed rank has taken so many bytes of what it was sent.
    pub fn taken(&self, rank: u32, bytes: usize) {
        self.0.add(rank, RankReport::Taken(bytes));
    }

    /// A relayed rank closed its connection.
    pub fn hung_up(&self, rank: u32) {
        self.0.add(rank, RankReport::HungUp);
    }
}

impl Reports {
    pub(super) fn new() -> io::Result<Reports> {
        Ok(Reports { queue: Mutex::default(), taken: Condvar::new(), wakeup: EventFd::new()? })
    }

    pub(super) fn wakeup(&self) -> &EventFd {
        &self.wakeup
    }

    pub(super) fn take(&self) -> Vec<(u32, RankReport)> {
        // Reset first: a report that comes in between signals again, instead of being missed.
        self.wakeup.reset();
        let queue = std::mem::take(&mut *self.queue.lock());
        self.taken.notify_all();
        queue.reports
    }

    fn add(&self, rank: u32, report: RankReport) {
        let mut queue = self.queue.lock();
        if let RankReport::Said(bytes) = &report {
            if queue.relayed >= RELAYED_BOUND {
                let _ = self.taken.wait_for(&mut queue, LONGEST_WAIT);
            }
            queue.relayed += bytes.len();
        }
        queue.reports.push((rank, report));
        drop(queue);
        // The only failure is a counter at its maximum, and then the service is being woken anyway.
        self.wakeup.signal();
    }
}
