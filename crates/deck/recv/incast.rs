//! A mailbox's answers under incast control: how long its postboxes wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use udeck_qos::pacing::{Account, Scheduler};
use udeck_via::job_time;

use super::memory_quota::{MEMORIES, MemoryQuota};
use crate::incast::{GRANTED, Rules};
use crate::protocol::side::RecvSide;
use crate::stats::Counters;
use crate::wire::Malformed;
use crate::world_state::WorldState;

/// So often it is looked at all connections, of which there may be thousands. What comes meanwhile is counted as if it had not come.
const LOOK_EVERY: Duration = Duration::from_micros(100);

/// What a mailbox gives its postboxes leave for.
pub(crate) struct Grants {
    /// Memory, which they fill.
    pub quota: Arc<MemoryQuota>,
    /// Time, under incast control.
    schedule: Option<Box<Schedule>>,
}

struct Schedule {
    scheduler: Scheduler,
    begun: Instant,
    /// The mailbox's.
    counters: Arc<Counters>,
    /// What was granted of short messages and had not come at the last look, and what was granted since.
    outstanding: u64,
    /// When that was.
    looked: Option<Duration>,
    rules: Rules,
}

impl Schedule {
    fn takes_reservations(&self) -> bool {
        matches!(self.rules, Rules::Smsrp { .. })
    }

    /// Whether it concerns this connection.
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
            looked: None,
            rules,
        };
        Grants { quota, schedule: (rules != Rules::Off).then(|| Box::new(schedule())) }
    }

    /// How much memory may be granted to messages that are announced on that connection, and have not come.
    pub fn most_memory(&self, side: &RecvSide, world: &WorldState) -> usize {
        let is_bounded = self.schedule.as_ref().is_some_and(|schedule| schedule.paces(side));
        world.max_granted().min(if is_bounded { GRANTED } else { usize::MAX })
    }

    /// How long the poster of a message that was announced and has memory is to wait, in microseconds.
    pub fn delay(&mut self, len: usize, side: &RecvSide) -> Option<u32> {
        let schedule = self.schedule.as_mut().filter(|schedule| schedule.paces(side))?;
        let outstanding =
            schedule.outstanding.saturating_add(granted(&self.quota).saturating_sub(len) as u64);
        let (now, drained) = (schedule.elapsed(), schedule.counters.weight_retrieved());
        let grant = schedule.scheduler.reserve_whole(now, len as u64, outstanding, drained);
        Some(micros(grant.after))
    }

    /// Looks how much of what was granted has not come, of all connections; unless there are no such grants, or it has looked just now.
    pub fn note_outstanding<'c>(&mut self, of: impl Iterator<Item = (&'c Reservations, &'c RecvSide)>) {
        let Some(schedule) = self.schedule.as_mut().filter(|schedule| schedule.takes_reservations()) else {
            return;
        };
        let now = schedule.elapsed();
        if schedule.looked.is_some_and(|looked| now < looked + LOOK_EVERY) {
            return;
        }
        schedule.looked = Some(now);
        let outstanding =
            of.map(|(reserved, side)| reserved.account.outstanding(now, side.arrivals.weight()));
        schedule.outstanding = outstanding.fold(0, u64::saturating_add);
    }

    /// What a postbox gets that reserves for short messages: bytes, and in how many microseconds they may come. One that was not told to
    /// reserve, or that has not sent what it reserved before, breaks the protocol.
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
        // At most `largest`, which is far below.
        Ok((u32::try_from(grant.bytes).unwrap_or(u32::MAX), micros(grant.after)))
    }
}

/// Bytes of announced messages that were granted and have not come.
fn granted(quota: &MemoryQuota) -> usize {
    MEMORIES.iter().map(|memory| quota.bytes(*memory)).sum()
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

/// What a postbox has reserved.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    /// That was not answered yet.
    pub asked: Option<u64>,
    account: Account,
}
