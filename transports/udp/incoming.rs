//! A request that waits for its answer.

use std::sync::Arc;
use std::time::Duration;

use udeck_via::transport::{Hello, Incoming, Port, Queues};
use udeck_via::{Error, Result};
use udeck_wired::Side;

use crate::core::{Core, Made};
use crate::door::Caller;
use crate::flow::Names;
use crate::station::take_seats;
use crate::tombs::Tomb;
use crate::wire::greeting::Answer;

/// See the module. Dropped unanswered, it is refused.
pub struct IncomingRequest {
    core: Arc<Core>,
    caller: Caller,
    round_trip: Duration,
    pub discriminator: Vec<u8>,
    hello: Hello,
    answered: bool,
}

impl IncomingRequest {
    pub fn new(
        core: Arc<Core>,
        caller: Caller,
        round_trip: Duration,
        discriminator: Vec<u8>,
        hello: Hello,
    ) -> Self {
        IncomingRequest { core, caller, round_trip, discriminator, hello, answered: false }
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
        let seats = take_seats(&self.core, &queues)?;
        let core = self.core.clone();
        let names = Names { ours: core.fresh()?, theirs: self.caller.exchange.number };
        let made = Made {
            names,
            peer: self.caller.from,
            ours: hello,
            theirs: &self.hello,
            side: Side::Accepted,
            round_trip: self.round_trip,
        };
        // Before the answer: what follows that finds the link.
        let link = core.establish(&made);
        if !self.answer(&Answer::Accepted { number: names.ours, hello: hello.clone() }) {
            core.forget_link(names.ours, Tomb { theirs: names.theirs, peer: self.caller.from });
            return Err(Error::Lost("the requester has given up".into()));
        }
        Ok(Core::port(link, seats, &queues))
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
