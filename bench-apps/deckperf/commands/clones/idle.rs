//! Round trips over one clone, while others are idle.

use std::{
    io::Read,
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    thread::{self, JoinHandle},
    time::Duration,
};

use udeck::{Mailbox, Postbox, World};

use crate::{
    experiment::{
        Experiment, Timing, messages,
        plan::{Quantity, Test},
        rank_pair::RankPair,
        rounds::{Contend, Results, SMALL, Trial},
    },
    failure::{PerfError, Result},
};

use super::ClonesPlan;

/// Test, and number of clones that a batch runs with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleContender {
    /// Test that is timed.
    pub test: Test,
    /// Clones of the mailbox; one of them is busy.
    pub clones: usize,
    /// Whether each process also holds an idle TCP connection to the other, for which a thread of its own waits.
    pub tcp: bool,
}

impl Contend for IdleContender {
    fn quantity(&self) -> Quantity {
        self.test.quantity()
    }
}

impl IdleContender {
    /// One busy clone among `clones`, of which the others are idle.
    pub fn among(test: Test, clones: usize) -> Self {
        Self { test, clones, tcp: false }
    }

    /// One clone beside an idle TCP connection.
    pub const BESIDE_TCP: Self = Self { test: Test::Latency, clones: 1, tcp: true };
}

/// Contenders: each number of clones by each test, and one clone beside an idle TCP connection, where one clone is measured at
/// all.
pub fn contenders(plan: &ClonesPlan) -> Results<IdleContender> {
    let tests = [Some(Test::Latency), plan.stream.then_some(Test::Bandwidth)];
    let among = |test| plan.counts.iter().map(move |&clones| IdleContender::among(test, clones));
    let tcp = plan.counts.contains(&1).then_some(IdleContender::BESIDE_TCP);
    let all: Vec<_> = tests.into_iter().flatten().flat_map(among).chain(tcp).collect();
    let sizes = |contender: IdleContender| {
        let has_payload = move |size: &&usize| contender.test == Test::Latency || **size > 0;
        plan.busy_sizes.iter().filter(has_payload).map(move |&size| (contender, size))
    };
    Results::empty(&plan.busy_sizes, all.into_iter().flat_map(sizes))
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
            let clones = super::connect(world, &name, count)?;
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
    /// Runs one batch over one clone, another one in each batch.
    fn run(&mut self, world: &World, trial: &Trial<IdleContender>) -> Result<Duration> {
        /// A prime number: clones have their turns in a scattered order.
        const STRIDE: usize = 389;
        let stride = if self.clones.len().is_multiple_of(STRIDE) { 1 } else { STRIDE };
        let clone = &self.clones[self.batches * stride % self.clones.len()];
        self.batches += 1;
        let post = |bytes| -> Result { Ok(clone.post(world.buf_reused(bytes)?)?) };
        let retrieve = || -> Result {
            self.inbox.retrieve()?;
            Ok(())
        };
        let &Trial { contender, size, shape } = trial;
        let (leads, is_stream) = (world.rank() == 0, contender.test != Test::Latency);
        messages::turns(shape.warm_up, shape.iterations, |_| match (is_stream, leads) {
            (false, true) => post(size).and_then(|()| retrieve()),
            (false, false) => retrieve().and_then(|()| post(size)),
            // A window, and an empty message back.
            (true, true) => (0..shape.messages).try_for_each(|_| post(size)).and_then(|()| retrieve()),
            (true, false) => (0..shape.messages).try_for_each(|_| retrieve()).and_then(|()| post(0)),
        })
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

/// Round trips over one clone of many.
pub struct IdleExperiment<'l, 'w> {
    /// Link to the other rank.
    pub pair: &'l RankPair<'w>,
    /// This rank's mailboxes and clones.
    pub sets: CloneSets,
}

impl IdleExperiment<'_, '_> {
    /// Connects the two ranks by TCP: rank 1 to a port that rank 0 names.
    fn connect(&self) -> Result<TcpStream> {
        let failed = || PerfError::system(TCP);
        if self.pair.leads() {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed())?;
            let address = listener.local_addr().map_err(failed())?;
            self.pair.send_words(&[u64::from(address.port())])?;
            return Ok(listener.accept().map_err(failed())?.0);
        }
        let [port] = self.pair.receive_report()?;
        let port = u16::try_from(port).map_err(|_| PerfError::BadOrder(format!("no port in {port}")))?;
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map_err(failed())
    }
}

impl Experiment for IdleExperiment<'_, '_> {
    type Contender = IdleContender;

    fn perform(&mut self, trial: &Trial<IdleContender>) -> Result<Timing> {
        let IdleContender { clones, tcp, .. } = trial.contender;
        let idle = tcp.then(|| Idle::wait_for(self.connect()?)).transpose()?;
        self.pair.meet()?;
        let lasted = self.sets.of(clones)?.run(self.pair.world(), trial)?;
        idle.into_iter().for_each(Idle::end);
        Ok(lasted.into())
    }
}
