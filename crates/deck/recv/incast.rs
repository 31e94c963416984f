//! A mailbox's grants under incast control: how long its postboxes have to wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use udeck_qos::pacing::{Account, Scheduler};
use udeck_via::job_time;

use crate::incast::{GRANTED, Rules};
use crate::memory::accounting::{MEMORIES, MemoryQuota};
use crate::protocol::side::RecvSide;
use crate::stats::Counters;
use crate::wire::Malformed;
use crate::world_state::WorldState;

/// Interval between two scans of all connections, of which there may be thousands. Messages that arrive in
/// between still count as outstanding.
const SCAN_INTERVAL: Duration = Duration::from_micros(100);

/// Grants of a mailbox to its postboxes.
pub(crate) struct Grants {
    /// Quota of memory that postboxes fill.
    pub quota: Arc<MemoryQuota>,
    /// Schedule of transmission times, under incast control.
    schedule: Option<Box<Schedule>>,
}

struct Schedule {
    scheduler: Scheduler,
    begun: Instant,
    /// Counters of the mailbox.
    counters: Arc<Counters>,
    /// Bytes of short messages that were granted and had not arrived at the last scan, plus bytes granted
    /// since.
    outstanding: u64,
    /// Time of the last scan.
    last_scan: Option<Duration>,
    rules: Rules,
}

impl Schedule {
    fn takes_reservations(&self) -> bool {
        matches!(self.rules, Rules::Smsrp { .. })
    }

    /// Whether incast control applies to this connection.
    fn paces(&self, side: &RecvSide) -> bool {
        self.rules.over(side.vi.nic().attributes()) != Rules::Off
    }

    fn elapsed(&self) -> Duration {
        job_time().saturating_duration_since(self.begun)
    }
}

impl Grants {
    pub fn new(quota: Arc<MemoryQuota>, rules: Rules, world: &WorldState, counters: &Arc<Counters>) -> Self {
        let schedule = || Schedule {
            scheduler: Scheduler::new(Rules::terms(world.config().incast_rate, world.size()), Duration::ZERO),
            begun: job_time(),
            counters: counters.clone(),
            outstanding: 0,
            last_scan: None,
            rules,
        };
        Grants { quota, schedule: (rules != Rules::Off).then(|| Box::new(schedule())) }
    }

    /// Maximum memory, in bytes, granted to messages that are announced on that connection and have not
    /// arrived.
    pub fn most_memory(&self, side: &RecvSide, world: &WorldState) -> usize {
        let is_bounded = self.schedule.as_ref().is_some_and(|schedule| schedule.paces(side));
        world.max_granted().min(if is_bounded { GRANTED } else { usize::MAX })
    }

    /// Delay, in microseconds, for the poster of an announced message that has memory.
    pub fn delay(&mut self, len: usize, side: &RecvSide) -> Option<u32> {
        let schedule = self.schedule.as_mut().filter(|schedule| schedule.paces(side))?;
        let outstanding =
            schedule.outstanding.saturating_add(granted(&self.quota).saturating_sub(len) as u64);
        let (now, drained) = (schedule.elapsed(), schedule.counters.weight_retrieved());
        let grant = schedule.scheduler.reserve_whole(now, len as u64, outstanding, drained);
        Some(micros(grant.after))
    }

    /// Scans all connections for granted messages that have not arrived. Does nothing if there are no such
    /// grants, or if the last scan was just now.
    pub fn note_outstanding<'c>(&mut self, of: impl Iterator<Item = (&'c Reservations, &'c RecvSide)>) {
        let Some(schedule) = self.schedule.as_mut().filter(|schedule| schedule.takes_reservations()) else {
            return;
        };
        let now = schedule.elapsed();
        if schedule.last_scan.is_some_and(|last_scan| now < last_scan + SCAN_INTERVAL) {
            return;
        }
        schedule.last_scan = Some(now);
        let outstanding =
            of.map(|(reserved, side)| reserved.account.outstanding(now, side.arrivals.weight()));
        schedule.outstanding = outstanding.fold(0, u64::saturating_add);
    }

    /// Answers a postbox's reservation for short messages: how many bytes, and after how many microseconds
    /// they may come. A postbox breaks the protocol if it was not told to reserve, or has not sent its
    /// previous reservation.
    pub fn reserve(
        &mut self,
        asked: u64,
        reserved: &mut Reservations,
        side: &RecvSide,
    ) -> Result<(u32, u32), Malformed> {
        let schedule =
            self.schedule.as_mut().filter(|schedule| schedule.takes_reservations() && schedule.paces(side));
        let schedule = schedule.ok_or(Malformed)?;
        let (now, arrived) = (schedule.elapsed(), side.arrivals.weight());
        if !reserved.account.may_ask(now, arrived) {
            return Err(Malformed);
        }
        let outstanding = schedule.outstanding.saturating_add(granted(&self.quota) as u64);
        let is_lost_beyond = side.vi.nic().attributes().shares_receive_buffer;
        let most = if is_lost_beyond { schedule.scheduler.within_threshold(outstanding) } else { u64::MAX };
        let grant = schedule.scheduler.reserve(
            now,
            asked.min(most),
            outstanding,
            schedule.counters.weight_retrieved(),
        );
        reserved.account.grant(now, arrived, grant);
        schedule.outstanding = schedule.outstanding.saturating_add(grant.bytes);
        // Never saturates: at most `largest`, which is far below.
        Ok((u32::try_from(grant.bytes).unwrap_or(u32::MAX), micros(grant.after)))
    }
}

/// Bytes of announced messages that were granted and have not arrived.
fn granted(quota: &MemoryQuota) -> usize {
    MEMORIES.iter().map(|memory| quota.bytes(*memory)).sum()
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

/// Reservations of one postbox.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    /// The reservation that is not answered yet, in bytes.
    pub asked: Option<u64>,
    account: Account,
}
