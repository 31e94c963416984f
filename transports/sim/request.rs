//! Connection requests, and their answers.

use std::sync::Arc;

use parking_lot::Mutex;
use udeck_via::transport::{Hello, Incoming, OnRequest, Queues, ViEndpoint};
use udeck_via::{Error, RejectKind, Rejection, Result};

use crate::connection::{Connection, End};
use crate::device::{SimDevice, endpoint, waiters_of};
use crate::trace::Happening;
use crate::world::{Due, Shared, World};

/// A requester that waits for its answer.
pub struct Pending {
    pub link: (usize, usize),
    /// Rank that the requester has proved to be.
    pub peer: Option<u32>,
    pub hello: Hello,
    pub discriminator: Vec<u8>,
    pub answer: Option<Verdict>,
}

/// An answer in transit.
pub struct Answer {
    pub link: (usize, usize),
    pub verdict: Verdict,
}

pub enum Verdict {
    Accepted { connection: u64, hello: Hello },
    Refused(Rejection),
    Lost(String),
}

/// A request for a listener's handler. Virtual time stands still while the handler runs.
pub struct RequestJob {
    shared: Arc<Shared>,
    listener: Arc<Mutex<OnRequest>>,
    request: Box<dyn Incoming>,
}

impl RequestJob {
    pub fn run(self) {
        let RequestJob { shared, listener, request } = self;
        (listener.lock())(request);
        drop(listener); // this may be the last reference, after an `unlisten`: dropping it may run the program's code
        shared.with(|world| {
            world.handling -= 1;
            world.news();
            world.run_due();
            world.run_next();
        });
    }
}

impl World {
    pub fn request_arrives(&mut self, number: u64) {
        let Some(pending) = self.pending.get(&number) else { return };
        let (to, shared) = (&self.nodes[pending.link.1], self.this.upgrade());
        let (Some(listener), Some(shared)) = (to.listeners.get(&pending.discriminator).cloned(), shared)
        else {
            return self.answer(number, Verdict::Refused(RejectKind::NoListener.into()));
        };
        let request = IncomingRequest {
            shared: shared.clone(),
            number,
            link: pending.link,
            peer: pending.peer,
            hello: pending.hello.clone(),
            answered: false,
        };
        self.handling += 1;
        let job = RequestJob { shared, listener, request: Box::new(request) };
        assert!(self.jobs.send(job).is_ok(), "the listeners' thread lives as long as the fabric");
    }

    /// Sends the answer to the request `number`.
    pub fn answer(&mut self, number: u64, verdict: Verdict) {
        let Some(pending) = self.pending.get(&number) else { return };
        let link = (pending.link.1, pending.link.0);
        let travels = self.travel_time(link);
        self.schedule(travels, Due::Answer(number, Answer { link, verdict }));
        self.run_due();
    }

    pub fn answer_arrives(&mut self, number: u64, answer: Answer) {
        let awaited = self.is_awaited(number);
        match (self.pending.get_mut(&number), answer.verdict) {
            (Some(pending), verdict) if awaited => {
                pending.answer = Some(verdict);
                let asker = pending.link.0;
                self.wake(asker);
            }
            (_, Verdict::Accepted { connection, .. }) => self.abandon(connection),
            (_, Verdict::Refused(_) | Verdict::Lost(_)) => {}
        }
    }

    /// Whether the requester still waits for its answer.
    fn is_awaited(&self, number: u64) -> bool {
        self.pending.get(&number).is_some_and(|pending| pending.answer.is_none())
    }

    /// Closes a connection whose requester has given up: the side that accepted it learns that.
    pub fn abandon(&mut self, connection: u64) {
        self.close(connection, 0, None);
        self.endpoint_gone(connection, 0);
    }

    /// Fails the requests to and from a NIC that is gone: nobody will answer them, or wait for their answers.
    pub fn refuse_pending_at(&mut self, node: usize) {
        let concerned = |p: &&mut Pending| (p.link.0 == node || p.link.1 == node) && p.answer.is_none();
        for pending in self.pending.values_mut().filter(concerned) {
            let why = format!("{} is gone", self.nodes[node].name);
            pending.answer = Some(Verdict::Lost(why));
        }
        // Any of the NICs may have asked.
        (0..self.nodes.len()).for_each(|node| self.wake(node));
    }
}

/// A connection request that waits for its answer.
struct IncomingRequest {
    shared: Arc<Shared>,
    number: u64,
    link: (usize, usize),
    peer: Option<u32>,
    hello: Hello,
    answered: bool,
}

impl IncomingRequest {
    fn refuse(&mut self, rejection: Rejection) {
        self.answered = true;
        self.shared.with(|world| world.answer(self.number, Verdict::Refused(rejection)));
    }

    /// Makes the connection, with the acceptor's end in place.
    fn establish(
        &self,
        world: &mut World,
        acceptor: &Hello,
        waiters: [u64; 2],
        queues: &Queues<'_>,
    ) -> Result<u64> {
        world.reserve(waiters)?;
        let ends = [End::new(self.link.0, acceptor), End::new(self.link.1, &self.hello)];
        let connection = world.fresh_number();
        world.connections.insert(connection, Connection { level: self.hello.reliability, ends, lost: None });
        world.note(self.link, Happening::Connected);
        world.attach(connection, 1, waiters, queues);
        Ok(connection)
    }
}

impl Incoming for IncomingRequest {
    fn hello(&self) -> &Hello {
        &self.hello
    }

    fn peer(&self) -> Option<u32> {
        self.peer
    }

    fn accept(mut self: Box<Self>, hello: &Hello, queues: Queues<'_>) -> Result<Box<dyn ViEndpoint>> {
        let notifiers = waiters_of(&self.shared, self.link.1, &queues)?;
        let waiters = [notifiers[0].number, notifiers[1].number];
        let device = self.shared.with(|world| world.nodes[self.link.1].device.clone());
        let device: Arc<SimDevice> =
            device.upgrade().ok_or_else(|| Error::Lost("this NIC is closed".into()))?;
        self.answered = true;
        let connection = self.shared.with(|world| {
            let made = self.establish(world, hello, waiters, &queues);
            match &made {
                // The requester has given up meanwhile. The acceptor is told as by a requester that closes at once.
                Ok(connection) if !world.is_awaited(self.number) => world.abandon(*connection),
                Ok(connection) => {
                    let verdict = Verdict::Accepted { connection: *connection, hello: hello.clone() };
                    world.answer(self.number, verdict);
                }
                Err(_) => {
                    let rejection = Rejection::new(RejectKind::Failed, "no resources");
                    world.answer(self.number, Verdict::Refused(rejection));
                }
            }
            made
        })?;
        Ok(endpoint(device, connection, 1, notifiers))
    }

    fn reject(mut self: Box<Self>, rejection: Rejection) {
        self.refuse(rejection);
    }
}

impl Drop for IncomingRequest {
    fn drop(&mut self) {
        if udeck_via::is_forked() {
            return;
        }
        if !self.answered {
            self.refuse(RejectKind::Unanswered.into());
        }
    }
}
