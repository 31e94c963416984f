//! Records every operation of a NIC's endpoints and waiters, with its outcome.
//!
//! A poll that finds nothing (`receive`, `ended`, `receipt` and `poll` without a result) is no event: programs poll
//! millions of times a second, and a record would contain nothing else.

mod endpoint;
mod event;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use super::{Connection, Interpose};
use udeck_via::transport::{ViEndpoint, Waiter};

use endpoint::{TracedEndpoint, TracedWaiter};
pub use event::{Call, Event, Outcome, Who};

/// An [`Interpose`] that records operations. Events of one endpoint or waiter come in order; those of different
/// threads in the order in which they reach the sink.
pub struct Trace {
    sink: Arc<Sink>,
}

/// Destination of events.
struct Sink {
    start: Instant,
    take: Box<dyn Fn(Event) + Send + Sync>,
}

/// The last events, up to its capacity.
#[derive(Debug)]
pub struct Log {
    capacity: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    events: VecDeque<Event>,
    forgotten: u64,
}

impl Trace {
    /// Calls `take` for each event, on the thread of the operation and inside its call to the endpoint: it must not
    /// block, nor call the endpoint or waiter of the event.
    pub fn new(take: impl Fn(Event) + Send + Sync + 'static) -> Self {
        Trace { sink: Arc::new(Sink { start: Instant::now(), take: Box::new(take) }) }
    }

    /// Prints each event as a line, in one write. An event that cannot be written is lost: a full disk must not stop the
    /// program.
    pub fn printing(to: impl io::Write + Send + 'static) -> Self {
        let to = Mutex::new(to);
        Trace::new(move |event| drop(to.lock().write_all(format!("{event}\n").as_bytes())))
    }

    /// Keeps the last `capacity` events in memory.
    pub fn recording(capacity: usize) -> (Self, Arc<Log>) {
        let log = Arc::new(Log { capacity, kept: Mutex::default() });
        let kept = log.clone();
        (Trace::new(move |event| kept.add(event)), log)
    }
}

impl Log {
    fn add(&self, event: Event) {
        let mut kept = self.kept.lock();
        kept.events.push_back(event);
        if kept.events.len() > self.capacity {
            kept.events.pop_front();
            kept.forgotten += 1;
        }
    }

    /// Recorded events, oldest first.
    pub fn events(&self) -> Vec<Event> {
        self.kept.lock().events.iter().cloned().collect()
    }

    /// Number of older events that had to make room.
    pub fn forgotten(&self) -> u64 {
        self.kept.lock().forgotten
    }
}

/// Formats the log, with a line for each event.
impl fmt::Display for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.kept.lock();
        if kept.forgotten > 0 {
            writeln!(f, "({} older events are forgotten)", kept.forgotten)?;
        }
        kept.events.iter().try_for_each(|event| writeln!(f, "{event}"))
    }
}

impl Sink {
    fn note(&self, who: Who, call: Call, outcome: Outcome) {
        (self.take)(Event { at: self.start.elapsed(), who, call, outcome });
    }
}

// SAFETY: its endpoints pass every call on as it came.
unsafe impl Interpose for Trace {
    fn endpoint(&self, endpoint: Box<dyn ViEndpoint>, connection: &Connection<'_>) -> Box<dyn ViEndpoint> {
        let who = Who::Connection(connection.number);
        let call = Call::Connect { reliability: connection.reliability, context: connection.queues.context };
        self.sink.note(who, call, Outcome::Done);
        Box::new(TracedEndpoint { inner: endpoint, who, sink: self.sink.clone() })
    }

    fn waiter(&self, waiter: Box<dyn Waiter>, number: u64) -> Box<dyn Waiter> {
        Box::new(TracedWaiter { inner: waiter, who: Who::Waiter(number), sink: self.sink.clone() })
    }
}

impl fmt::Debug for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sink(since {:?})", self.start.elapsed())
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trace({:?})", self.sink)
    }
}
