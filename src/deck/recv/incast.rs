//! A mailbox's answers under incast control: how long its postboxes wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use udeck_qos::pacing::{Account, Seller};
use udeck_via::Caps;

use super::Inbox;
use super::memory_quota::{MEMORIES, MemoryQuota};
use crate::error::Result;
use crate::incast::Rules;
use crate::parcel::Parcel;
use crate::protocol::side::RecvSide;
use crate::stats::Counters;
use crate::wire::{Kind, Malformed};
use crate::world_state::WorldState;

/// What a mailbox gives its postboxes leave for.
pub(crate) struct Grants {
    /// Memory, which they fill.
    pub quota: Arc<MemoryQuota>,
    /// Time, under incast control.
    sales: Option<Box<Sales>>,
}

struct Sales {
    seller: Seller,
    begun: Instant,
    /// The mailbox's.
    counters: Arc<Counters>,
    /// What was granted of short messages and had not come at the last look.
    outstanding: u64,
    takes_reservations: bool,
}

impl Grants {
    pub fn new(quota: Arc<MemoryQuota>, rules: Rules, world: &WorldState, counters: &Arc<Counters>) -> Self {
        let sales = || Sales {
            seller: Seller::new(Rules::terms(world.config().incast_rate), Duration::ZERO),
            begun: Instant::now(),
            counters: counters.clone(),
            outstanding: 0,
            takes_reservations: matches!(rules, Rules::Smsrp { .. }),
        };
        Grants { quota, sales: (rules != Rules::Off).then(|| Box::new(sales())) }
    }

    /// How long the poster of a message that was announced and has memory is to wait, in microseconds.
    pub fn delay(&mut self, len: usize, side: &RecvSide) -> Option<u32> {
        let sales = self.sales.as_mut().filter(|_| is_paced(side))?;
        let granted: usize = MEMORIES.iter().map(|memory| self.quota.bytes(*memory)).sum();
        let outstanding = sales.outstanding.saturating_add(granted.saturating_sub(len) as u64);
        let drained = sales.counters.weight_retrieved();
        let grant = sales.seller.reserve_whole(sales.begun.elapsed(), len as u64, outstanding, drained);
        Some(micros(grant.after))
    }
}

/// Whether incast control concerns this connection.
fn is_paced(side: &RecvSide) -> bool {
    !side.vi.nic().caps().has(Caps::HAND_OFF)
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

/// What a postbox has reserved.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    /// That was not answered yet.
    pub asked: Option<u64>,
    account: Account,
}

impl Inbox {
    /// Looks how much of what was granted has not come.
    pub(super) fn note_outstanding(&mut self) {
        let Some(sales) = &mut self.grants.sales else { return };
        let now = sales.begun.elapsed();
        let of = |connection: &super::Connection| {
            connection.reservations.account.outstanding(now, connection.side.arrivals.weight())
        };
        sales.outstanding = self.connections.iter().flatten().map(of).fold(0, u64::saturating_add);
    }

    /// Answers a postbox that reserves for short messages. One that was not told to, or that has not sent what it reserved before, is none
    /// of ours.
    #[cold]
    pub(super) fn answer_reservation(&mut self, context: usize, asked: u64) -> Result<Option<Parcel>> {
        self.note_outstanding();
        let Some(Some(connection)) = self.connections.get_mut(context) else { return Ok(None) };
        let (side, account) = (&mut connection.side, &mut connection.reservations.account);
        let is_paced = is_paced(side);
        let sales = self.grants.sales.as_mut().filter(|sales| sales.takes_reservations && is_paced);
        let Some(sales) = sales else { return self.end_malformed(context) };
        let (now, arrived) = (sales.begun.elapsed(), side.arrivals.weight());
        if !account.may_ask(arrived, sales.seller.largest()) {
            return self.end_malformed(context);
        }
        let granted: usize = MEMORIES.iter().map(|memory| self.grants.quota.bytes(*memory)).sum();
        let outstanding = sales.outstanding.saturating_add(granted as u64);
        let grant = sales.seller.reserve(now, asked, outstanding, sales.counters.weight_retrieved());
        account.grant(now, arrived, grant);
        // At most `largest`, which is far below.
        let bytes = u32::try_from(grant.bytes).unwrap_or(u32::MAX);
        match side.answer(Some(micros(grant.after)), Kind::Grant, bytes, &[]) {
            Ok(()) => Ok(None),
            Err(Malformed) => self.end_malformed(context),
        }
    }
}
