//! Makes a transport be unlucky, or lie, as a seed decides.
//!
//! *Unlucky* ([`Fault::honest`]) means behaviour that a correct transport may show at any time, and that programs must
//! tolerate: it refuses a post because it is busy, names a queue that has nothing, loses the connection and reports
//! this; and at the unreliable level, where VIA promises neither arrival nor order, it loses and reorders messages.
//!
//! *Lying* ([`Fault::lying`]) breaks a promise silently, which no transport may do. Its purpose is to prove that a test
//! suite notices. No lie is unsound: a buffer that a completion gives back early has been copied before.
//!
//! Messages are dropped, doubled, repeated, held back and altered where they *arrive*, at the wrapped NIC. Posts are refused,
//! split, and completed too early where they are posted. Wrap both NICs of a connection for both directions.
//!
//! Each connection has a random stream of its own, from the seed and its number: for the same order of connections, and
//! of calls to an endpoint, the same things go wrong. The seed is in `Debug` and in the text of a loss.

mod arrivals;
mod endpoint;
mod news_queue;

use std::time::Duration;

use parking_lot::Mutex;

use udeck_via::transport::{ViEndpoint, Waiter};
use udeck_via::{Error, Reliability, Result};

use super::random::Dice;
use super::{Connection, Interpose, When};
use endpoint::FaultyEndpoint;
use news_queue::{FaultyWaiter, NewsQueues};

/// An [`Interpose`] that makes things go wrong.
#[derive(Debug)]
pub struct Fault {
    seed: u64,
    kind: FaultKind,
    news_queues: NewsQueues,
    /// Random decisions about windows.
    dice: Mutex<Dice>,
}

/// Number of the random stream for windows: no connection and no waiter has this number.
const WINDOWS: u64 = u64::MAX;

#[derive(Debug)]
enum FaultKind {
    Honest(PermittedFaults),
    Lying(BrokenPromises),
}

/// Faults that break no promise. The default is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PermittedFaults {
    /// Posts, including refused ones, that are refused as [`udeck_via::transport::Refused::Busy`]. A caller that then asks
    /// for room ([`ViEndpoint::request_send_notify`]) is notified at once.
    pub busy: When,
    /// Polls for news that find none, and name the last named queue again. At 1 a queue is never empty.
    pub spurious_news: When,
    /// Number of messages of a connection, posted and arrived together, after which it is lost.
    pub lose_after: Option<u64>,
    /// Posts, including refused ones, that find the connection lost.
    pub lose_at: When,
    /// Attempts to revoke a window that fail, as if a peer stayed in the middle of an access (without a wait for the
    /// deadline). At 1 none ever succeeds.
    pub linger: When,
    /// Arrivals of unreliable connections that are lost.
    pub lose: When,
    /// Arrivals of unreliable connections that the next one overtakes, if it has arrived when they are taken.
    pub reorder: When,
}

/// Promises that are broken silently, at every reliability level. The default is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BrokenPromises {
    /// Arrivals that vanish; their senders are told that they arrived.
    pub drop: When,
    /// Arrivals that are delivered twice.
    pub duplicate: When,
    /// Arrivals that the next one overtakes, if it has arrived when they are taken.
    pub reorder: When,
    /// Arrivals in which one bit is changed (those without a byte are spared).
    pub corrupt: When,
    /// Arrivals that are repeated without end: a peer that floods. Nothing else arrives on this connection any more.
    pub repeat: When,
    /// Lent messages that leave in two pieces, although they lie in one: the header stays the same.
    pub split: When,
    /// Posts that are reported done at once, if the receiver ends them.
    pub complete_early: When,
    /// News, counted per waiter, that are withheld: their queue is not named again before it has been empty.
    pub forget_wakeup: When,
}

/// Permitted faults or broken promises, in the form that an endpoint and a waiter need.
#[derive(Clone, Debug, Default)]
struct Plan {
    busy: When,
    spurious_news: When,
    lose_after: Option<u64>,
    lose_at: When,
    drop: When,
    duplicate: When,
    reorder: When,
    corrupt: When,
    repeat: When,
    split: When,
    complete_early: When,
    forget_wakeup: When,
}

impl Fault {
    /// A transport that keeps its promises and has `luck`.
    pub fn honest(luck: PermittedFaults, seed: u64) -> Self {
        Fault::new(FaultKind::Honest(luck), seed)
    }

    /// A transport that breaks its promises. For tests of tests.
    pub fn lying(lies: BrokenPromises, seed: u64) -> Self {
        Fault::new(FaultKind::Lying(lies), seed)
    }

    fn new(kind: FaultKind, seed: u64) -> Self {
        Fault { seed, kind, news_queues: NewsQueues::default(), dice: Mutex::new(Dice::new(seed, WINDOWS)) }
    }
}

impl FaultKind {
    /// Plan for a connection of this level, or for a waiter.
    fn plan(&self, level: Option<Reliability>) -> Plan {
        match self {
            FaultKind::Honest(luck) => {
                let if_allowed = |when: &When| match level {
                    Some(Reliability::Unreliable) => when.clone(),
                    _ => When::Never,
                };
                Plan {
                    busy: luck.busy.clone(),
                    spurious_news: luck.spurious_news.clone(),
                    lose_after: luck.lose_after,
                    lose_at: luck.lose_at.clone(),
                    drop: if_allowed(&luck.lose),
                    reorder: if_allowed(&luck.reorder),
                    ..Plan::default()
                }
            }
            FaultKind::Lying(lies) => Plan {
                drop: lies.drop.clone(),
                duplicate: lies.duplicate.clone(),
                reorder: lies.reorder.clone(),
                corrupt: lies.corrupt.clone(),
                repeat: lies.repeat.clone(),
                split: lies.split.clone(),
                complete_early: lies.complete_early.clone(),
                forget_wakeup: lies.forget_wakeup.clone(),
                ..Plan::default()
            },
        }
    }
}

// SAFETY: its endpoints pass calls on as they came, or a copy in their place.
unsafe impl Interpose for Fault {
    fn endpoint(&self, endpoint: Box<dyn ViEndpoint>, connection: &Connection<'_>) -> Box<dyn ViEndpoint> {
        let plan = self.kind.plan(Some(connection.reliability));
        Box::new(FaultyEndpoint::new(endpoint, plan, self.seed, connection, &self.news_queues))
    }

    fn waiter(&self, waiter: Box<dyn Waiter>, number: u64) -> Box<dyn Waiter> {
        Box::new(FaultyWaiter::new(waiter, self.kind.plan(None), self.seed, number, &self.news_queues))
    }

    fn revokes(&self) -> Result {
        match &self.kind {
            FaultKind::Honest(luck) if self.dice.lock().throw([&luck.linger])[0] => {
                let what = "a peer that lingers in a window".into();
                Err(Error::Timeout { what, waited: Duration::ZERO })
            }
            _ => Ok(()),
        }
    }
}
