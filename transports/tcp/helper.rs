//! The helper thread: it works for a NIC while no other thread polls.
//!
//! The helper serves callers, and links whose program has left. It serves a completion queue's sockets only while
//! the queue's owner neither polls nor sleeps beside them. The kernel cannot be asked to
//! report only in that case. So it reports the first arrival, and the helper then naps as long as the owner polls by
//! itself ([`udeck_session::nap`]). A process in which nothing comes costs only a check every two seconds, for hosts
//! that may have died.

use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use udeck_session::admission::RequestListener;
use udeck_session::completion_queue::Sleep;
use udeck_session::nap::Nap;
use udeck_session::poll::{EventFlags, Found};
use udeck_sys::{job_time, thread};

use crate::completion_queue::{CompletionQueue, Served, serve_link};
use crate::core::{Core, Token};
use crate::incoming::IncomingRequest;

/// Rounds over one completion queue's sockets before others have their turn.
const ROUNDS: usize = 16;
/// Interval between two checks of the links for conditions that no event reports.
const CHECK: Duration = Duration::from_secs(2);
/// Check interval after the NIC was closed, when the thread shall end.
const LAST_CHECK: Duration = Duration::from_millis(50);
/// Upper bound of the time that the links of a closed NIC may take to end.
const LAST_PATIENCE: Duration = Duration::from_secs(1);

struct Helper {
    core: Arc<Core>,
    listener: Option<RequestListener>,
    /// Completion queues on whose sockets something came. They are not watched until they are served.
    due: Vec<Due>,
    next_check: Instant,
    found: Found,
    cq_found: Found,
}

struct Due {
    /// Number of the completion queue.
    number: u64,
    cq: Weak<CompletionQueue>,
    /// The owner's poll count at the last check.
    looks: u64,
    /// The owner was asleep beside its sockets at the last check.
    parked: bool,
    /// Time during which the owner is left alone.
    nap: Nap,
}

/// Starts the helper thread, `deck-tcp-PORT`. It ends when the NIC is closed and its links are over.
///
/// # Errors
/// The kernel's error.
pub fn start(core: Arc<Core>, listener: RequestListener) -> io::Result<()> {
    core.control.add(&listener, Token::Listener.encode(), EventFlags::IN)?;
    let name = format!("tcp-{}", listener.address().port());
    let next_check = job_time() + CHECK;
    let (failing, its_name) = (core.clone(), name.clone());
    let mut helper = Helper {
        core,
        listener: Some(listener),
        due: Vec::new(),
        next_check,
        found: Found::default(),
        cq_found: Found::default(),
    };
    thread::spawn(name, move || helper.run(), move |why| failing.fail(&its_name, why)).map(drop)
}

impl Helper {
    fn run(&mut self) {
        while !self.core.is_closing() || self.core.has_links() {
            if self.core.is_closing() {
                self.listener = None;
            }
            let limit = self.limit();
            self.core.control.poll(&mut self.found, limit);
            let tokens: Vec<u64> = self.found.tokens().collect();
            tokens.into_iter().map(Token::decode).for_each(|token| self.on(token));
            self.serve_due();
            self.check();
        }
    }

    /// How long the helper may sleep.
    fn limit(&mut self) -> Duration {
        let now = job_time();
        let listener = self.listener.as_mut().and_then(|listener| listener.tick(now));
        let naps = self.due.iter().map(|due| due.nap.until());
        let next = naps.chain(listener).fold(self.next_check, Instant::min);
        next.saturating_duration_since(now)
    }

    fn on(&mut self, token: Token) {
        match token {
            Token::Bell => self.core.reset_bell(),
            Token::Listener => {
                if let Some(listener) = &mut self.listener {
                    listener.serve(&mut |pending| IncomingRequest::deliver(&self.core, pending));
                }
            }
            Token::CompletionQueue(number) => {
                if let Some(cq) = self.core.completion_queues.get(number) {
                    let (looks, cq) = (cq.backend.polls_when_armed(), Arc::downgrade(&cq));
                    // The owner has asked again, perhaps before it went to sleep.
                    self.due.retain(|due| due.number != number);
                    self.due.push(Due { number, cq, looks, parked: false, nap: Nap::over(job_time()) });
                }
            }
            Token::Link(number) => {
                if let Some(link) = self.core.link(number) {
                    serve_link(&link);
                }
            }
        }
    }

    /// Serves the completion queues whose owners do not poll, and has their sockets watched again.
    fn serve_due(&mut self) {
        let found = &mut self.cq_found;
        let now = job_time();
        self.due.retain_mut(|due| {
            if now < due.nap.until() {
                return true;
            }
            let Some(cq) = due.cq.upgrade() else { return false };
            let looks = cq.poll_count();
            let looked = std::mem::replace(&mut due.looks, looks) != looks;
            match cq.sleeps() {
                Sleep::Awake | Sleep::Parked if looked => {
                    due.nap.lengthen(now);
                    return true;
                }
                // The owner has been woken by the arrival, or is about to be: a nap is time enough for that.
                Sleep::Parked if !std::mem::replace(&mut due.parked, true) => {
                    due.nap.shorten(now);
                    return true;
                }
                Sleep::Parked => {}
                Sleep::Awake | Sleep::Armed => {
                    let mut rounds = (0..ROUNDS).map(|_| cq.backend.serve(found, Duration::ZERO));
                    // The thread at work there may be waiting for this processor. If the helper asked for news at
                    // once, it would be told of the same socket at once.
                    if rounds.find(|served| *served != Served::Some) == Some(Served::Busy) {
                        due.nap.shorten(now);
                        return true;
                    }
                }
            }
            cq.backend.arm_helper(looks);
            false
        });
    }

    fn check(&mut self) {
        let now = job_time();
        if now < self.next_check {
            return;
        }
        let closing = self.core.is_closing();
        let patience = if closing { LAST_PATIENCE } else { self.core.admission.detect };
        self.next_check = now + if closing { LAST_CHECK } else { CHECK.min(self.core.admission.detect / 4) };
        for link in self.core.links() {
            link.try_with(|connection, driver| driver.check(connection, now, patience));
        }
    }
}
