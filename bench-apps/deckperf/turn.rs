//! The timed loops of one batch, over any level at which memory is posted and completions are taken: virtual interfaces
//! ([`vi`](crate::vi)) and uDAPL's end points ([`dat`](crate::dat)).

use std::{
    thread,
    time::{Duration, Instant},
};

use udeck::via::Deadline;

use crate::{
    failure::{Failure, Result},
    rounds::Shape,
};

/// Connections, and the moves that are timed on them.
pub trait Lane {
    /// What a post moves, and its completion gives back: memory, and what is done with it.
    type Post;

    /// Posts a receive on connection `on`.
    fn post_receive(&mut self, on: usize, post: Self::Post) -> Result;

    /// Posts a request on connection `on`; waits for room until the deadline. Requests that are over go to `idle`.
    fn post_send(
        &mut self,
        on: usize,
        post: Self::Post,
        idle: &mut Vec<Self::Post>,
        deadline: Deadline,
    ) -> Result;

    /// The next message. Its receive must have ended with `size` bytes.
    fn receive(&mut self, size: usize, deadline: Deadline) -> Result<Self::Post>;

    /// Waits until a request is over, whichever connection it went on.
    fn reclaim(&mut self, idle: &mut Vec<Self::Post>, deadline: Deadline) -> Result<Self::Post>;

    /// Waits until all requests are over: they go to `idle`.
    fn settle(&mut self, idle: &mut Vec<Self::Post>, deadline: Deadline) -> Result;
}

/// Who does what in an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Round trips: each takes two messages.
    PingPong,
    /// Windows of messages from rank 0 to rank 1, each answered by one empty message.
    Stream,
    /// RDMA reads by rank 0, one after another. Rank 1 waits, as it would for a message.
    Read,
    /// The same, a window at a time.
    ReadStream,
}

impl Pattern {
    fn reads(self) -> bool {
        matches!(self, Pattern::Read | Pattern::ReadStream)
    }
}

/// One rank's part in one order.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// What happens.
    pub pattern: Pattern,
    /// Whether this is rank 0.
    pub leads: bool,
    /// Bytes with which a receive of a message ends.
    pub arrives: usize,
    /// How many.
    pub shape: Shape,
    /// The peer falls asleep before each message.
    pub rests: bool,
    /// For each wait.
    pub deadline: Deadline,
}

/// What is made before the clock starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fresh {
    /// The place of a message.
    Receive,
    /// What is timed: a message, or RDMA.
    Request,
    /// The place of an empty message.
    EmptyReceive,
    /// An empty message.
    EmptyRequest,
}

/// So many receives are posted when the first message of a ping-pong comes, and when each later one does.
const RECEIVES_AHEAD: u64 = 2;

/// In a ping-pong: the peer has read a message when it answers it, but it may not have said so.
const SENDS_UNDER_WAY: u64 = 2;

/// Far beyond what a waiting rank spins and yields before it sleeps.
const PEER_FALLS_ASLEEP: Duration = Duration::from_micros(600);

/// A part that is played. All posts are made before the clock starts and taken apart after it has stopped.
pub struct Turn<'l, L: Lane, F> {
    part: Part,
    lane: &'l mut L,
    /// On which connection a direction's message with this number travels.
    on: F,
    /// To send with: as many as may be under way.
    idle: Vec<L::Post>,
    /// Of the message that came last, until the answer is on its way.
    taken: Option<L::Post>,
    /// Receives that no more messages come for.
    spent: Vec<L::Post>,
    /// Tells the rank that waits that all reads are over.
    last: Option<L::Post>,
    /// The connection that the next message is sent on.
    next_on: usize,
    sent: u64,
    /// Receives: exactly as many as messages come, so that none is left over for a batch of another size.
    posted: u64,
    incoming: u64,
    /// Under the clock.
    rested: Duration,
}

impl<'l, L: Lane, F: Fn(u64) -> usize> Turn<'l, L, F> {
    /// Makes the posts, and posts the first receives: as many as the peer may send before it hears from us.
    pub fn prepare(
        part: Part,
        lane: &'l mut L,
        on: F,
        mut fresh: impl FnMut(Fresh) -> Result<L::Post>,
    ) -> Result<Self> {
        let Part { pattern, leads, shape: Shape { warm_up, iterations, messages }, .. } = part;
        let repeats = warm_up + iterations;
        let (incoming, ahead, under_way) = match (pattern, leads) {
            (Pattern::PingPong, _) => (repeats, RECEIVES_AHEAD, SENDS_UNDER_WAY),
            (Pattern::Stream, true) => (repeats, 1, messages),
            (Pattern::Stream, false) => (repeats * messages, messages, 1),
            (Pattern::Read, true) => (0, 0, 1),
            (Pattern::ReadStream, true) => (0, 0, messages),
            (Pattern::Read | Pattern::ReadStream, false) => (1, 1, 0),
        };
        let (receive, request) = match (pattern, leads) {
            (Pattern::Stream, true) => (Fresh::EmptyReceive, Fresh::Request),
            (Pattern::Stream, false) => (Fresh::Receive, Fresh::EmptyRequest),
            (Pattern::PingPong, _) => (Fresh::Receive, Fresh::Request),
            (Pattern::Read | Pattern::ReadStream, _) => (Fresh::EmptyReceive, Fresh::Request),
        };
        let ahead = ahead.min(incoming);
        let last = if pattern.reads() && leads { Some(fresh(Fresh::EmptyRequest)?) } else { None };
        let mut turn = Self {
            part,
            lane,
            next_on: on(0),
            on,
            idle: Vec::with_capacity(under_way as usize),
            taken: None,
            spent: Vec::with_capacity(ahead as usize),
            last,
            sent: 0,
            posted: 0,
            incoming,
            rested: Duration::ZERO,
        };
        for _ in 0..ahead {
            turn.post_receive(fresh(receive)?)?;
        }
        for _ in 0..under_way {
            turn.idle.push(fresh(request)?);
        }
        Ok(turn)
    }

    /// How long the timed iterations lasted.
    pub fn perform(&mut self) -> Result<Duration> {
        match (self.part.pattern, self.part.leads) {
            (Pattern::PingPong, true) => self.timed(|turn| {
                turn.send()?;
                turn.receive()
            }),
            (Pattern::PingPong, false) => self.timed(|turn| {
                turn.receive()?;
                turn.send()
            }),
            (Pattern::Stream, true) => self.timed(Self::send_window),
            (Pattern::Stream, false) => self.timed(Self::receive_window),
            (Pattern::Read, true) => self.reads(Self::read),
            (Pattern::ReadStream, true) => self.reads(Self::read_window),
            (Pattern::Read | Pattern::ReadStream, false) => {
                self.taken = Some(self.lane.receive(0, self.part.deadline)?);
                Ok(Duration::ZERO)
            }
        }
    }

    #[inline]
    fn timed(&mut self, mut iteration: impl FnMut(&mut Self) -> Result) -> Result<Duration> {
        let Shape { warm_up, iterations, .. } = self.part.shape;
        let mut lasted = Duration::ZERO;
        // One loop for both: the warm-up warms the very instructions that are timed.
        for iterations in [warm_up, iterations] {
            self.rested = Duration::ZERO;
            let started = Instant::now();
            for _ in 0..iterations {
                iteration(self)?;
            }
            lasted = started.elapsed();
        }
        Ok(lasted)
    }

    /// Posts the next message; all that can wait is done while it is under way.
    #[inline]
    fn send(&mut self) -> Result {
        if self.part.rests {
            self.rest();
        }
        self.post()?;
        match self.taken.take() {
            Some(taken) => self.post_receive(taken),
            None => Ok(()),
        }
    }

    #[inline]
    fn post(&mut self) -> Result {
        let post = match self.idle.pop() {
            Some(post) => post,
            None => self.lane.reclaim(&mut self.idle, self.part.deadline)?,
        };
        self.lane.post_send(self.next_on, post, &mut self.idle, self.part.deadline)?;
        self.sent += 1;
        self.next_on = (self.on)(self.sent);
        Ok(())
    }

    /// Takes the next message, and does nothing else: the answer comes first.
    #[inline]
    fn receive(&mut self) -> Result {
        self.taken = Some(self.lane.receive(self.part.arrives, self.part.deadline)?);
        Ok(())
    }

    /// For the next message that has none yet, unless no more come.
    #[inline]
    fn post_receive(&mut self, post: L::Post) -> Result {
        if self.posted == self.incoming {
            self.spent.push(post);
            return Ok(());
        }
        let on = (self.on)(self.posted);
        self.posted += 1;
        self.lane.post_receive(on, post)
    }

    fn send_window(&mut self) -> Result {
        for _ in 0..self.part.shape.messages {
            self.send()?;
        }
        let acknowledgement = self.lane.receive(0, self.part.deadline)?;
        self.post_receive(acknowledgement)
    }

    fn receive_window(&mut self) -> Result {
        for _ in 0..self.part.shape.messages {
            let taken = self.lane.receive(self.part.arrives, self.part.deadline)?;
            self.post_receive(taken)?;
        }
        self.send() // "Everything so far has arrived."
    }

    /// Reads, and lets the peer go on when they are over.
    fn reads(&mut self, iteration: fn(&mut Self) -> Result) -> Result<Duration> {
        let lasted = self.timed(iteration)?;
        match self.last.take() {
            Some(last) => self.lane.post_send(self.next_on, last, &mut self.idle, self.part.deadline)?,
            None => return Err(Failure::BadOrder("reads have no last message".into())),
        }
        Ok(lasted)
    }

    #[inline]
    fn read(&mut self) -> Result {
        self.post()?;
        let read = self.lane.reclaim(&mut self.idle, self.part.deadline)?;
        self.idle.push(read);
        Ok(())
    }

    fn read_window(&mut self) -> Result {
        for _ in 0..self.part.shape.messages {
            self.post()?;
        }
        self.lane.settle(&mut self.idle, self.part.deadline)
    }

    /// Keeps this rank awake, and the other one waiting.
    fn rest(&mut self) {
        let started = Instant::now();
        while started.elapsed() < PEER_FALLS_ASLEEP {
            std::hint::spin_loop();
        }
        self.rested += started.elapsed();
    }

    /// Gives all memory back. How long this rank rested.
    pub fn finish(mut self, give_back: impl FnMut(L::Post)) -> Result<Duration> {
        self.lane.settle(&mut self.idle, self.part.deadline)?;
        self.idle.into_iter().chain(self.spent).chain(self.taken).chain(self.last).for_each(give_back);
        Ok(self.rested)
    }
}

/// Looks until there is something, without ever sleeping.
#[inline]
pub fn poll<T>(
    deadline: Deadline,
    what: &'static str,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let mut patience = Patience::new(deadline, what);
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        patience.next_look()?;
    }
}

/// A rank that polls gives its core away after so many looks, about 0.1 ms: the peer may need it.
const PATIENCE: u32 = 1 << 14;

/// And then once per so many.
const LOOKS_PER_YIELD: u32 = 64;

/// Of a rank that polls.
pub struct Patience {
    deadline: Deadline,
    what: &'static str,
    looks: u32,
}

impl Patience {
    /// For this, until then.
    pub fn new(deadline: Deadline, what: &'static str) -> Self {
        Self { deadline, what, looks: 0 }
    }

    /// Comes back at once, or when others have had the core; fails at the deadline.
    #[inline]
    pub fn next_look(&mut self) -> Result {
        self.looks += 1;
        if self.looks == PATIENCE { self.run_out() } else { Ok(()) }
    }

    #[cold]
    fn run_out(&mut self) -> Result {
        if self.deadline.passed() {
            return Err(Failure::Overdue(self.what));
        }
        thread::yield_now();
        self.looks -= LOOKS_PER_YIELD;
        Ok(())
    }
}
