//! The helper thread: it works for a NIC while no other thread polls.
//!
//! Only the helper serves callers, out-of-band connections and the device's own events. It takes completions only
//! while no other thread does. The device cannot be asked to report only in that case. So it reports the first
//! completion, and the helper naps as long as another thread polls by itself ([`udeck_session::nap`]). A process in
//! which nothing comes costs only a check of the links each second, for peers that may have gone in silence.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use udeck_session::admission::RequestListener;
use udeck_session::nap::Nap;
use udeck_session::poll::{EventFlags, Found};
use udeck_sys::{PollBudget, job_time, thread};
use udeck_via::RejectKind;

use crate::core::{Core, Token};
use crate::ffi::codes::event;
use crate::hca::objects::Event;
use crate::incoming::IncomingRequest;

/// Interval between two checks of the links for conditions that no event reports.
const CHECK: Duration = Duration::from_secs(1);
/// Check interval after the NIC was closed, when the thread shall end.
const LAST_CHECK: Duration = Duration::from_millis(50);
/// Check interval when a link asks for an early check.
const EARLY_CHECK: Duration = Duration::from_millis(50);
/// Upper bound of the time that the links of a closed NIC may take to end.
const LAST_PATIENCE: Duration = Duration::from_secs(1);

struct Helper {
    core: Arc<Core>,
    listener: Option<RequestListener>,
    /// Set when a completion has come and the channel is not watched until it has been served: the poll count at
    /// that time, and the nap during which polling threads are left alone.
    due: Option<(u64, Nap)>,
    next_check: Instant,
    found: Found,
}

/// Starts the helper thread, `deck-verbs`. It ends when the NIC is closed and its links are over.
///
/// # Errors
/// The kernel's error.
pub fn start(core: Arc<Core>, listener: RequestListener) -> io::Result<()> {
    core.control.add(&listener, Token::Listener.encode(), EventFlags::IN)?;
    let next_check = job_time() + CHECK;
    let failing = core.clone();
    let mut helper =
        Helper { core, listener: Some(listener), due: None, next_check, found: Found::default() };
    thread::spawn("verbs", move || helper.run(), move |why| failing.fail("verbs", why)).map(drop)
}

impl Helper {
    fn run(&mut self) {
        while !self.core.is_closing() || !self.core.completions.is_empty() {
            if self.core.is_closing()
                && let Some(listener) = self.listener.take()
            {
                self.core.control.remove(&listener);
            }
            let limit = self.limit();
            let mut found = std::mem::take(&mut self.found);
            self.core.control.poll(&mut found, limit);
            found.tokens().map(Token::decode).for_each(|token| self.on(token));
            self.found = found;
            self.serve_due();
            self.check();
        }
    }

    /// How long the helper may sleep.
    fn limit(&mut self) -> Duration {
        let now = job_time();
        let listener = self.listener.as_mut().and_then(|listener| listener.tick(now));
        let nap = self.due.map(|(_, nap)| nap.until());
        let next = listener.into_iter().chain(nap).fold(self.next_check, Instant::min);
        next.saturating_duration_since(now)
    }

    fn on(&mut self, token: Token) {
        match token {
            Token::Bell => self.core.reset_bell(),
            Token::Listener => {
                let core = &self.core;
                self.listener
                    .iter_mut()
                    .for_each(|listener| listener.serve(&mut |pending| pass_on(core, pending)));
            }
            Token::Channel => {
                let looks = self.core.completions.looks();
                // This is the first notice of a sleeping thread. It is served at once if no thread has polled since
                // the last one.
                let looks = if self.core.has_sleepers() { looks.wrapping_sub(1) } else { looks };
                self.due = Some((looks, Nap::over(job_time())));
            }
            Token::Events => self.take_events(),
            Token::Manager => {
                self.core
                    .connect_method
                    .manager()
                    .into_iter()
                    .for_each(|manager| manager.take_events(&self.core));
            }
            Token::Link(number) => {
                if let Some(link) = self.core.completions.link(number) {
                    link.listen();
                }
            }
        }
    }

    /// Takes completions, unless other threads do, and has the channel watched again.
    fn serve_due(&mut self) {
        let completions = &self.core.completions;
        let wanted = self.core.take_attention();
        let Some((looks, nap)) = &mut self.due else { return };
        let now = job_time();
        if !wanted {
            if now < nap.until() {
                return;
            }
            let looks_now = completions.looks();
            if std::mem::replace(looks, looks_now) != looks_now {
                return nap.lengthen(now);
            }
        }
        self.due = None;
        completions.channel.hush();
        completions.notify();
        completions.take_all();
        let events = EventFlags::IN | EventFlags::ONESHOT;
        self.core.control.set(&*completions.channel, Token::Channel.encode(), events);
    }

    /// Takes a bounded round of the device's events; the rest keep its descriptor readable.
    fn take_events(&self) {
        let mut budget = PollBudget::once();
        while budget.take()
            && let Some(told) = self.core.hca.context.next_event()
        {
            let links = self.core.completions.links();
            match told {
                Event::QueuePair(kind, number) => {
                    // Frames and completions that came before the event are handled first.
                    self.core.completions.take_all();
                    links.iter().for_each(|link| link.on_event(kind, number));
                }
                Event::Port(event::PORT_ERR, port) if port == self.core.hca.port => {
                    let why = format!("port {port} of {} went down", self.core.hca.name);
                    links.iter().for_each(|link| link.give_up(&why));
                }
                Event::Device(event::DEVICE_FATAL | event::CQ_ERR | event::SRQ_ERR) => {
                    let why = format!("the device {} has failed or was removed", self.core.hca.name);
                    links.iter().for_each(|link| link.give_up(&why));
                }
                Event::Port(..) | Event::Device(_) => {}
            }
        }
    }

    fn check(&mut self) {
        let now = job_time();
        if self.core.take_hurry() {
            self.next_check = self.next_check.min(now + EARLY_CHECK);
        }
        if now < self.next_check {
            return;
        }
        let closing = self.core.is_closing();
        let patience = if closing { LAST_PATIENCE } else { self.core.detect() };
        self.next_check = now + if closing { LAST_CHECK } else { CHECK };
        for link in self.core.completions.links() {
            link.check(now, patience);
        }
    }
}

fn pass_on(core: &Arc<Core>, pending: udeck_session::admission::PendingRequest) {
    match core.listeners.get(pending.discriminator()) {
        Some(listener) => (listener.lock())(Box::new(IncomingRequest::new(core.clone(), pending))),
        None => pending.reject(RejectKind::NoListener),
    }
}
