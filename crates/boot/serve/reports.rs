//! Reports of other threads for the service, in their order.

use std::{io, sync::Arc, time::Duration};

use parking_lot::{Condvar, Mutex};
use udeck_sys::EventFd;

/// Upper bound of unserved bytes of relayed ranks, before a caller with more has to wait.
const RELAYED_BOUND: usize = 4 << 20;

/// Upper bound of such a wait. The service only ever computes between two checks of the queue, and so it is not
/// reached.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Tells a running [`Service`](super::Service) how ranks ended, and brings it the bytes of relayed ranks. Cheap
/// to clone, usable from any thread; never blocks for long.
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
    /// The rank has ended, as the text says; the flag is `true` if there was no sign of failure.
    Ended(String, bool),
    /// Bytes from a relayed rank.
    Said(Vec<u8>),
    /// The number of bytes that a relayed rank has taken.
    Taken(usize),
    /// The connection of a relayed rank has ended.
    HungUp,
}

impl Reporter {
    /// Reports that `rank` has ended, as `how` says: "killed by SIGSEGV". Nothing happens if it had said
    /// goodbye.
    pub fn report_ended(&self, rank: u32, how: &str) {
        self.0.add(rank, RankReport::Ended(how.into(), false));
    }

    /// Does as [`report_ended`](Reporter::report_ended), for a rank that ended without a sign of failure:
    /// "exited with code 0". If it had joined the job and not said goodbye,
    /// [`Service::on_desertion`](super::Service::on_desertion) is told.
    pub fn report_exited(&self, rank: u32, how: &str) {
        self.0.add(rank, RankReport::Ended(how.into(), true));
    }

    /// Brings bytes of a relayed rank. Waits while a lot is unserved.
    pub fn relayed(&self, rank: u32, bytes: Vec<u8>) {
        self.0.add(rank, RankReport::Said(bytes));
    }

    /// Notes that a relayed rank has taken `bytes`.
    pub fn taken(&self, rank: u32, bytes: usize) {
        self.0.add(rank, RankReport::Taken(bytes));
    }

    /// Reports that a relayed rank closed its connection.
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
        // The call fails only if the counter is at its maximum, and then the service is being woken anyway.
        self.wakeup.signal();
    }
}
