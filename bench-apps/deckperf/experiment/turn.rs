//! The timed loops of one batch, over any layer at which memory is posted and completions are taken: virtual interfaces
//! ([`vi`](crate::commands::vi)) and uDAPL's endpoints ([`dat`](crate::commands::dat)).

use std::{
    collections::HashMap,
    fmt, thread,
    time::{Duration, Instant},
};

use udeck::via::Deadline;

use crate::{
    experiment::rounds::Shape,
    failure::{PerfError, Result},
};

/// Connections, and the operations that are timed on them.
pub trait Lane {
    /// A post, which its completion gives back: memory, and the operation on it.
    type Post;

    /// Posts a receive on connection `on`.
    fn post_receive(&mut self, on: usize, post: Self::Post) -> Result;

    /// Posts a request on connection `on`; waits for room until the deadline. Completed requests go to `idle`.
    fn post_send(
        &mut self,
        on: usize,
        post: Self::Post,
        idle: &mut Vec<Self::Post>,
        deadline: Deadline,
    ) -> Result;

    /// Receives the next message. Its receive must have ended with `size` bytes.
    fn receive(&mut self, size: usize, deadline: Deadline) -> Result<Self::Post>;

    /// Waits until a request on any connection is complete.
    fn reclaim(&mut self, idle: &mut Vec<Self::Post>, deadline: Deadline) -> Result<Self::Post>;

    /// Waits until all requests are complete, and puts them into `idle`.
    fn settle(&mut self, idle: &mut Vec<Self::Post>, deadline: Deadline) -> Result;
}

/// Roles of the two ranks in an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Round trips: each takes two messages.
    PingPong,
    /// Windows of messages from rank 0 to rank 1, each answered by one empty message.
    Stream,
    /// RDMA reads by rank 0, one after another. Rank 1 waits as for a message.
    Read,
    /// RDMA reads by rank 0, a window at a time.
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
    /// Pattern of the iterations.
    pub pattern: Pattern,
    /// Whether this is rank 0.
    pub leads: bool,
    /// Bytes of each message that this rank receives.
    pub arrives: usize,
    /// Numbers of iterations and messages.
    pub shape: Shape,
    /// Whether this rank rests before each message, so that the peer falls asleep.
    pub rests: bool,
    /// Deadline of each wait.
    pub deadline: Deadline,
}

/// Kinds of posts that are made before the clock starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostKind {
    /// Receive of a message.
    Receive,
    /// Timed request: a message, or RDMA.
    Request,
    /// Receive of an empty message.
    EmptyReceive,
    /// Send of an empty message.
    EmptyRequest,
}

/// Receives that are posted before the first message of a ping-pong arrives, and before each later one.
const RECEIVES_AHEAD: u64 = 2;

/// Requests under way in a ping-pong: when the peer answers a message it has read it, but its completion may still be missing.
const SENDS_UNDER_WAY: u64 = 2;

/// Rest after which a waiting peer sleeps for sure: far longer than it spins and yields.
const PEER_FALLS_ASLEEP: Duration = Duration::from_micros(600);

/// A part in progress. All posts are made before the clock starts, and released after it has stopped.
pub struct Turn<'l, L: Lane, F> {
    part: Part,
    lane: &'l mut L,
    /// Maps the number of a message in its direction to the connection on which it travels.
    on: F,
    /// Posts to send with: as many as may be under way.
    idle: Vec<L::Post>,
    /// Receive of the last message, until the answer is on its way.
    taken: Option<L::Post>,
    /// Receives for which no more messages come.
    unused_receives: Vec<L::Post>,
    /// Message by which the waiting rank learns that all reads are complete.
    last: Option<L::Post>,
    /// Connection of the next message to send.
    next_on: usize,
    sent: u64,
    /// Receives posted: in the end exactly as many as messages come, so that none is left over for a batch of another size.
    posted: u64,
    incoming: u64,
    /// Time of the rests under the clock.
    rested: Duration,
}

impl<'l, L: Lane, F: Fn(u64) -> usize> Turn<'l, L, F> {
    /// Makes the posts, and posts the first receives: as many as messages the peer may send before it hears from this rank.
    pub fn prepare(
        part: Part,
        lane: &'l mut L,
        on: F,
        mut fresh: impl FnMut(PostKind) -> Result<L::Post>,
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
            (Pattern::Stream, true) => (PostKind::EmptyReceive, PostKind::Request),
            (Pattern::Stream, false) => (PostKind::Receive, PostKind::EmptyRequest),
            (Pattern::PingPong, _) => (PostKind::Receive, PostKind::Request),
            (Pattern::Read | Pattern::ReadStream, _) => (PostKind::EmptyReceive, PostKind::Request),
        };
        let ahead = ahead.min(incoming);
        let last = if pattern.reads() && leads { Some(fresh(PostKind::EmptyRequest)?) } else { None };
        let mut turn = Self {
            part,
            lane,
            next_on: on(0),
            on,
            idle: Vec::with_capacity(under_way as usize),
            taken: None,
            unused_receives: Vec::with_capacity(ahead as usize),
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

    /// Runs the part, and returns the time of the timed iterations.
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
        // The same loop runs both, so that the warm-up warms the very instructions that are timed.
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

    /// Posts the next message; work that can wait is done while the message is under way.
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

    /// Receives the next message, and does nothing else, because the answer comes first.
    #[inline]
    fn receive(&mut self) -> Result {
        self.taken = Some(self.lane.receive(self.part.arrives, self.part.deadline)?);
        Ok(())
    }

    /// Posts the next receive, unless enough are posted.
    #[inline]
    fn post_receive(&mut self, post: L::Post) -> Result {
        if self.posted == self.incoming {
            self.unused_receives.push(post);
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

    /// Runs the reads, and lets the peer go on when they are complete.
    fn reads(&mut self, iteration: fn(&mut Self) -> Result) -> Result<Duration> {
        let lasted = self.timed(iteration)?;
        match self.last.take() {
            Some(last) => self.lane.post_send(self.next_on, last, &mut self.idle, self.part.deadline)?,
            None => return Err(PerfError::Internal("reads have no last message".into())),
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

    /// Spins until a waiting peer has fallen asleep; this rank stays awake.
    fn rest(&mut self) {
        let started = Instant::now();
        while started.elapsed() < PEER_FALLS_ASLEEP {
            std::hint::spin_loop();
        }
        self.rested += started.elapsed();
    }

    /// Gives all memory back, and returns the time that this rank rested.
    pub fn finish(mut self, give_back: impl FnMut(L::Post)) -> Result<Duration> {
        self.lane.settle(&mut self.idle, self.part.deadline)?;
        self.idle
            .into_iter()
            .chain(self.unused_receives)
            .chain(self.taken)
            .chain(self.last)
            .for_each(give_back);
        Ok(self.rested)
    }
}

/// Lanes of each kind, which batches use in turn. The distance of a connection's cache lines from the cores depends on their
/// addresses: with a single connection, a kind would be fast or slow by luck, in all rounds of a run.
pub struct Lanes<K, L>(Vec<LanesOfKind<K, L>>);

struct LanesOfKind<K, L> {
    kind: K,
    lanes: Vec<L>,
    batches: u64,
}

impl<K: Copy + PartialEq + fmt::Debug, L> Lanes<K, L> {
    /// Opens as many lanes of each kind as `count` says.
    pub fn open(
        kinds: &[K],
        count: impl Fn(K) -> usize,
        mut open: impl FnMut(K) -> Result<L>,
    ) -> Result<Self> {
        let of = |&kind: &K| {
            let lanes = (0..count(kind)).map(|_| open(kind)).collect::<Result<_>>()?;
            Ok(LanesOfKind { kind, lanes, batches: 0 })
        };
        kinds.iter().map(of).collect::<Result<_>>().map(Self)
    }

    /// The lane for the next batch of a kind, and the number of this batch among those of its kind.
    pub fn next(&mut self, kind: K) -> Result<(&mut L, u64)> {
        let unknown = || PerfError::BadOrder(format!("{kind:?} is not among those of this run"));
        let LanesOfKind { lanes, batches, .. } =
            self.0.iter_mut().find(|known| known.kind == kind).ok_or_else(unknown)?;
        let number = *batches;
        *batches += 1;
        let at = number as usize % lanes.len();
        Ok((&mut lanes[at], number))
    }
}

/// Registered memory between two batches, by size. It is kept, so that no figure pays for fresh pages.
pub struct Pool<M> {
    idle: HashMap<usize, Vec<M>>,
    /// Bytes that are idle.
    bytes: usize,
}

/// Most idle bytes: more than two windows of the largest messages hold. Before another size would exceed the bound, all
/// memory is freed.
const MAX_IDLE: usize = 256 << 20;

impl<M> Pool<M> {
    /// An empty pool.
    pub fn new() -> Self {
        Self { idle: HashMap::new(), bytes: 0 }
    }

    /// Takes memory for a message of `size` bytes; `make` makes some if none is idle.
    pub fn take(&mut self, size: usize, make: impl FnOnce() -> Result<M>) -> Result<M> {
        if let Some(memory) = self.idle.get_mut(&size).and_then(Vec::pop) {
            self.bytes -= size;
            return Ok(memory);
        }
        if self.bytes + size > MAX_IDLE {
            *self = Self::new();
        }
        make()
    }

    /// Takes the memory of a message back.
    pub fn give_back(&mut self, size: usize, memory: M) {
        self.bytes += size;
        self.idle.entry(size).or_default().push(memory);
    }
}

/// Polls until there is a result, without ever sleeping.
#[inline]
pub fn poll<T>(
    deadline: Deadline,
    what: &'static str,
    mut look: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let mut budget = PollBudget::new(deadline, what);
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        budget.next_poll()?;
    }
}

/// Polls after which a rank gives its core away, about 0.1 ms: the peer may need it.
const POLLS_BEFORE_YIELD: u32 = 1 << 14;

/// Polls between two further yields.
const POLLS_PER_YIELD: u32 = 64;

/// Poll budget of a rank that polls.
pub struct PollBudget {
    deadline: Deadline,
    what: &'static str,
    polls: u32,
}

impl PollBudget {
    /// Budget for a wait for `what`, until `deadline`.
    pub fn new(deadline: Deadline, what: &'static str) -> Self {
        Self { deadline, what, polls: 0 }
    }

    /// Counts a poll: returns at once, or when others have had the core; fails at the deadline.
    #[inline]
    pub fn next_poll(&mut self) -> Result {
        self.polls += 1;
        if self.polls == POLLS_BEFORE_YIELD { self.run_out() } else { Ok(()) }
    }

    #[cold]
    fn run_out(&mut self) -> Result {
        if self.deadline.passed() {
            return Err(PerfError::Overdue(self.what));
        }
        thread::yield_now();
        self.polls -= POLLS_PER_YIELD;
        Ok(())
    }
}
