//! Round trips over one clone, while others are idle.

use std::{
    io::Read,
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use udeck::{Mailbox, Postbox, World};

use crate::{
    experiment::{
        baseline::{BaselineSample, Baselines},
        plan::Quantity,
        rank_pair::RankPair,
        rounds::{Contend, Results, Runner, SMALL, Sample, Shape},
    },
    failure::{PerfError, Result},
};

/// Number of clones that a batch runs with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleContender {
    /// Clones of the mailbox; one of them is busy.
    pub clones: usize,
    /// Whether each process also holds an idle TCP connection to the other, for which a thread of its own waits.
    pub tcp: bool,
}

/// Order for one batch of round trips.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IdleOrder {
    contender: IdleContender,
    shape: Shape,
}

impl Contend for IdleContender {
    type Order = IdleOrder;

    fn quantity(&self) -> Quantity {
        Quantity::Time
    }

    fn order(&self, _: usize, shape: Shape) -> IdleOrder {
        IdleOrder { contender: *self, shape }
    }
}

/// Contenders: each number of clones, and one clone beside an idle TCP connection.
pub fn contenders(counts: &[usize]) -> Results<IdleContender> {
    let alone = |&clones| IdleContender { clones, tcp: false };
    let all = counts.iter().map(alone).chain([IdleContender { clones: 1, tcp: true }]);
    Results::empty(&[SMALL], all.map(|contender| (contender, SMALL)))
}

/// Encoded stop order. The words of an order are `[clones, tcp, warm-up, iterations, port]`; 0 clones means stop.
const STOP: [u64; 5] = [0; 5];

impl IdleOrder {
    fn encode(&self, port: u16) -> [u64; 5] {
        let IdleContender { clones, tcp } = self.contender;
        let Shape { warm_up, iterations, .. } = self.shape;
        [clones as u64, u64::from(tcp), warm_up, iterations, u64::from(port)]
    }

    /// Decodes an order; `None` is the stop order.
    fn decode(words: &[u64]) -> Result<Option<(Self, u16)>> {
        let bad = |what: &str| PerfError::BadOrder(format!("{what} in {words:?}"));
        let &[clones, tcp, warm_up, iterations, port] = words else { return Err(bad("not five words")) };
        if clones == 0 {
            return Ok(None);
        }
        let port = u16::try_from(port).map_err(|_| bad("no port"))?;
        let contender = IdleContender { clones: clones as usize, tcp: tcp != 0 };
        Ok(Some((IdleOrder { contender, shape: Shape { warm_up, iterations, messages: 2 } }, port)))
    }
}

/// Mailboxes and clones: for each number of clones, a mailbox of this rank and as many clones of the peer's mailbox.
pub struct CloneSets(Vec<CloneSet>);

struct CloneSet {
    inbox: Mailbox<u8>,
    clones: Vec<Postbox<u8>>,
    batches: usize,
}

impl CloneSets {
    /// Opens all mailboxes and clones. Both ranks call this with the same counts. Every clone is used once, so none is idle
    /// because it is unknown.
    pub fn open(pair: &RankPair<'_>, counts: &[usize]) -> Result<Self> {
        let world = pair.world();
        let (me, peer) = (world.rank(), 1 - world.rank());
        let inboxes = counts.iter().map(|count| Ok(world.mailbox(&format!("clones.{count}.{me}"))?));
        let inboxes = inboxes.collect::<Result<Vec<_>>>()?;
        let open = |(inbox, &count): (Mailbox<u8>, &usize)| -> Result<CloneSet> {
            let name = format!("clones.{count}.{peer}");
            let clones = (0..count).map(|_| Ok(world.postbox(&name)?)).collect::<Result<Vec<_>>>()?;
            for clone in &clones {
                clone.post(world.buf_reused(SMALL)?)?;
            }
            for _ in 0..count {
                inbox.retrieve()?;
            }
            Ok(CloneSet { inbox, clones, batches: 0 })
        };
        inboxes.into_iter().zip(counts).map(open).collect::<Result<_>>().map(CloneSets)
    }

    fn of(&mut self, clones: usize) -> Result<&mut CloneSet> {
        let unknown = || PerfError::BadOrder(format!("no mailbox has {clones} clones in this run"));
        self.0.iter_mut().find(|end| end.clones.len() == clones).ok_or_else(unknown)
    }
}

impl CloneSet {
    /// Runs the round trips of one batch over one clone, another one in each batch.
    fn ping_pong(&mut self, world: &World, shape: Shape) -> Result<Duration> {
        const STRIDE: usize = 389; // shares no factor with the counts: every clone has its turn
        let clone = &self.clones[self.batches * STRIDE % self.clones.len()];
        self.batches += 1;
        let post = || -> Result { Ok(clone.post(world.buf_reused(SMALL)?)?) };
        let mut started = Instant::now();
        for turn in 0..shape.warm_up + shape.iterations {
            if turn == shape.warm_up {
                started = Instant::now();
            }
            if world.rank() == 0 {
                post()?;
                self.inbox.retrieve()?;
            } else {
                self.inbox.retrieve()?;
                post()?;
            }
        }
        Ok(started.elapsed())
    }
}

/// An idle connection, and the thread that waits to read from it.
struct Idle {
    stream: TcpStream,
    waiting: JoinHandle<()>,
}

impl Idle {
    fn wait_for(stream: TcpStream) -> Result<Self> {
        let mut watched = stream.try_clone().map_err(PerfError::system(TCP))?;
        let waiting = thread::spawn(move || {
            // Nothing is ever sent: this returns when the connection is shut down.
            let _ = watched.read(&mut [0]);
        });
        Ok(Idle { stream, waiting })
    }

    fn end(self) {
        // An error means that the peer has shut the connection down already.
        let _ = self.stream.shutdown(Shutdown::Both);
        let _ = self.waiting.join();
    }
}

const TCP: &str = "an idle TCP connection over loopback";

/// Rank 0's role: it gives the orders and holds the clock.
pub struct IdleConductor<'l, 'w> {
    pair: &'l RankPair<'w>,
    ends: CloneSets,
    raw: Option<Baselines>,
}

impl<'l, 'w> IdleConductor<'l, 'w> {
    /// Makes the conductor; `raw` needs two cores.
    pub fn new(pair: &'l RankPair<'w>, ends: CloneSets, raw: Option<Baselines>) -> Self {
        Self { pair, ends, raw }
    }

    /// Ends rank 1's loop.
    pub fn stop(self) -> Result {
        self.pair.send_words(&STOP)
    }
}

impl Runner for IdleConductor<'_, '_> {
    type Contender = IdleContender;

    fn post(&mut self, order: IdleOrder) -> Result<Sample> {
        let failed = || PerfError::system(TCP);
        let listener = order.contender.tcp.then(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
        let listener = listener.transpose().map_err(failed())?;
        let address = listener.as_ref().map(TcpListener::local_addr).transpose().map_err(failed())?;
        self.pair.send_words(&order.encode(address.map_or(0, |address| address.port())))?;
        let accept = |listener: TcpListener| listener.accept().map(|(stream, _)| stream);
        let stream = listener.map(accept).transpose().map_err(failed())?;
        let idle = stream.map(Idle::wait_for).transpose()?;
        self.pair.receive_words()?; // rank 1 is ready
        let elapsed = self.ends.of(order.contender.clones)?.ping_pong(self.pair.world(), order.shape)?;
        idle.into_iter().for_each(Idle::end);
        Ok(Sample { elapsed, lasted: elapsed, copied: 0 })
    }

    fn raw(&mut self, size: usize) -> Result<Option<BaselineSample>> {
        self.raw.as_mut().map(|raw| raw.measure(size)).transpose()
    }
}

/// Follows orders as rank 1 until there are no more.
pub fn follow(pair: &RankPair<'_>, mut ends: CloneSets) -> Result {
    while let Some((order, port)) = IdleOrder::decode(&pair.receive_words()?)? {
        let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, port));
        let stream = order.contender.tcp.then(connect).transpose().map_err(PerfError::system(TCP))?;
        let idle = stream.map(Idle::wait_for).transpose()?;
        pair.send_words(&[])?;
        ends.of(order.contender.clones)?.ping_pong(pair.world(), order.shape)?;
        idle.into_iter().for_each(Idle::end);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_survive_the_journey() {
        let shape = Shape { warm_up: 3, iterations: 700, messages: 2 };
        for contender in [IdleContender { clones: 1000, tcp: false }, IdleContender { clones: 1, tcp: true }]
        {
            let order = IdleOrder { contender, shape };
            let decoded = IdleOrder::decode(&order.encode(4099)).expect("decodes");
            assert_eq!(decoded, Some((order, 4099)));
        }
        assert_eq!(IdleOrder::decode(&STOP).expect("decodes"), None);
    }

    #[test]
    fn nonsense_is_refused() {
        for (words, part) in [(&[1; 4][..], "not five words"), (&[1, 0, 0, 1, 65_536], "no port")] {
            let error = IdleOrder::decode(words).expect_err("nonsense").to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
