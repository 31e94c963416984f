//! A request that waits for its answer, and those that wait for the helper.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use udeck_session::Side;
use udeck_via::transport::{Hello, Incoming, Port, Queues};
use udeck_via::{Error, Result};

use crate::completion_queue::take_slots;
use crate::core::{Core, Made};
use crate::door::Caller;
use crate::flow::Names;
use crate::shares::Shares;
use crate::tombs::Tomb;
use crate::wire::greeting::{Answer, Ask, Process};

/// How many wait for the helper.
pub const REQUESTS: usize = 1024;

/// Those that wait for the helper.
#[derive(Default)]
pub struct Requests {
    waiting: VecDeque<Box<IncomingRequest>>,
    shares: Shares,
}

impl Requests {
    /// The one for which there is no place now: the last one of whoever has most of them, or this one.
    pub fn put(&mut self, request: Box<IncomingRequest>) -> Option<Box<IncomingRequest>> {
        let mut without_place = None;
        if self.waiting.len() >= REQUESTS {
            let mine = self.shares.of(request.caller.origin());
            let largest = self.shares.largest().filter(|&largest| self.shares.of(largest) > mine + 1);
            let Some(largest) = largest else { return Some(request) };
            let last = self.waiting.iter().rposition(|other| other.caller.origin() == largest);
            without_place = last.and_then(|at| self.waiting.remove(at));
            self.shares.remove(largest);
        }
        self.shares.add(request.caller.origin());
        self.waiting.push_back(request);
        without_place
    }

    pub fn take(&mut self) -> Option<Box<IncomingRequest>> {
        let request = self.waiting.pop_front()?;
        self.shares.remove(request.caller.origin());
        Some(request)
    }
}

/// See the module. Dropped unanswered, it is refused.
pub struct IncomingRequest {
    core: Arc<Core>,
    caller: Caller,
    round_trip: Duration,
    process: Process,
    pub discriminator: Vec<u8>,
    hello: Hello,
    answered: bool,
}

impl IncomingRequest {
    pub fn new(core: Arc<Core>, caller: Caller, ask: Ask) -> Self {
        let Ask { round_trip, process, discriminator, hello, .. } = ask;
        IncomingRequest { core, caller, round_trip, process, discriminator, hello, answered: false }
    }

    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Gives it to whoever listens.
    pub fn deliver(self: Box<Self>) {
        match self.core.listeners.get(&self.discriminator) {
            Some(listener) => (listener.lock())(self),
            None => self.refuse(&Answer::NoMatch),
        }
    }

    pub fn refuse(mut self, answer: &Answer) {
        self.answer(answer);
    }

    /// It is dropped without an answer.
    pub fn forget(mut self) {
        self.answered = true;
    }

    fn answer(&mut self, answer: &Answer) -> bool {
        !std::mem::replace(&mut self.answered, true)
            && self.core.door.answer(&self.core, &self.caller, answer)
    }
}

impl Incoming for IncomingRequest {
    fn hello(&self) -> &Hello {
        &self.hello
    }

    fn peer(&self) -> Option<u32> {
        self.caller.pair.caller()
    }

    fn accept(mut self: Box<Self>, hello: &Hello, queues: Queues<'_>) -> Result<Box<dyn Port>> {
        let slots = take_slots(&self.core, &queues)?;
        let core = self.core.clone();
        let names = Names { ours: core.fresh()?, theirs: self.caller.exchange.number };
        let made = Made {
            names,
            peer: self.caller.from,
            process: self.process,
            ours: hello,
            theirs: &self.hello,
            side: Side::Accepted,
            round_trip: self.round_trip,
        };
        // Before the answer: what follows that finds the link.
        let link = core.establish(&made);
        let accepted = Answer::Accepted { number: names.ours, process: core.process, hello: hello.clone() };
        if !self.answer(&accepted) {
            core.forget_link(names.ours, Tomb { theirs: names.theirs, peer: self.caller.from });
            return Err(Error::Lost("the requester has given up".into()));
        }
        Ok(Core::port(link, slots, &queues))
    }

    fn reject(mut self: Box<Self>, reason: &str) {
        self.answer(&Answer::Rejected(reason.to_owned()));
    }

    fn reject_reliability(mut self: Box<Self>) {
        self.answer(&Answer::Reliability);
    }
}

impl Drop for IncomingRequest {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        if !self.answered {
            self.answer(&Answer::Rejected("the request was dropped unanswered".into()));
        }
    }
}
