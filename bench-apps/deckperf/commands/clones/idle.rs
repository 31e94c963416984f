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
        rank_pair::RankPair,
        rounds::{Contend, Results, SMALL, Shape, Trial},
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

impl Contend for IdleContender {}

/// Contenders: each number of clones, and one clone beside an idle TCP connection.
pub fn contenders(counts: &[usize]) -> Results<IdleContender> {
    let alone = |&clones| IdleContender { clones, tcp: false };
    let all = counts.iter().map(alone).chain([IdleContender { clones: 1, tcp: true }]);
    Results::empty(&[SMALL], all.map(|contender| (contender, SMALL)))
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
        messages::turns(shape.warm_up, shape.iterations, |_| {
            if world.rank() == 0 {
                post()?;
                self.inbox.retrieve()?;
                return Ok(());
            }
            self.inbox.retrieve()?;
            post()
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
        let IdleContender { clones, tcp } = trial.contender;
        let idle = tcp.then(|| Idle::wait_for(self.connect()?)).transpose()?;
        self.pair.meet()?;
        let lasted = self.sets.of(clones)?.ping_pong(self.pair.world(), trial.shape)?;
        idle.into_iter().for_each(Idle::end);
        Ok(lasted.into())
    }
}
