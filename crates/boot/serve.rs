//! Moves the bytes of a [`Server`]: one thread, one `epoll`, over all the ranks' sockets and what is relayed for ranks on
//! other hosts. What happens to one rank costs no look at the connections of others: those of which something may be to be
//! passed on are listed.
//!
//! The thread never blocks on a rank. What cannot be written at once is kept in a bounded buffer. A rank that does not
//! read its answers is not served meanwhile, nor read from (`Peer::is_held`): its requests wait where they are. A rank
//! whose buffer fills all the same, with what it has waited for and with news, is declared lost. So none holds up another.
//! [`Service::run`] returns when every connection has ended.

mod peer;
mod reports;

use std::{
    collections::VecDeque,
    io,
    mem::MaybeUninit,
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::{
    event::{
        Timespec,
        epoll::{self, EventData, EventFlags},
    },
    io::Errno,
};

use self::{
    peer::{NoOutlet, Peer, Read},
    reports::{RankReport, Reports},
};
use udeck_auth::RankKey;
use udeck_sys::{JobClock, above_stdio};

use crate::{
    server::{Action, Config, Server, aborted},
    wire::{Call, FromServer, MAX_FRAME, Reply, Request, encode},
};

pub use self::{
    peer::{Connection, Outlet},
    reports::Reporter,
};

/// What may lie unsent for one rank, in bytes, before it counts as one that has stopped reading.
pub const OUT_BOUND: usize = 4 * MAX_FRAME;

/// From how many unsent bytes on a rank's requests are left waiting, until it has read.
const HELD: usize = OUT_BOUND / 4;

/// What may be under way to a relayed rank, and from it, in bytes, before the other side has said that it has dealt with
/// it ([`Outlet::consumed`], [`Reporter::taken`]).
pub const WINDOW: usize = 64 << 10;

/// It is said when so much has been dealt with, and not for each message.
pub const TELL: usize = WINDOW / 4;

/// How much is read from one rank before the others have their turn.
const READ_SIZE: usize = 64 << 10;

/// How often a rank that has ended is still read from: more than a socket's buffer holds.
const LAST_READS: usize = 64;

/// What may come from a relayed rank that is not served: its window, and what was read at its end.
const RELAYED_BOUND: usize = WINDOW + (LAST_READS + 2) * READ_SIZE;

/// Ranks whose sockets are named at a time. Those that are left are named before these again.
const NAMED: usize = 64;

/// The longest sleep at a time: `epoll` counts it in milliseconds of 31 bits.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// The number of the wakeup descriptor among the ranks.
const WAKEUP: u64 = u64::MAX;

/// The name service at work. Owns the launcher's ends of the connections.
#[derive(Debug)]
pub struct Service {
    server: Server,
    /// By rank; `None` once the connection has ended.
    peers: Vec<Option<Peer>>,
    /// How many of them there are still.
    connected: usize,
    /// Watches their sockets, and the wakeup descriptor.
    poller: OwnedFd,
    /// Those of which something may be to be passed on; each is in here once.
    touched: Vec<u32>,
    /// Those that have read meanwhile, and of which something is left to be served.
    resumable: Vec<u32>,
    outlet: Box<dyn Outlet>,
    reports: Arc<Reports>,
    on_desertion: Desertion,
    on_abort: Aborts,
    /// The job's clock, which the ranks use, too.
    clock: Option<Arc<JobClock>>,
    /// Who asks, of whom, and how: answered when everything else has been heard.
    fates: Vec<(u32, u32, Request)>,
}

/// Who hears of ranks that leave without goodbye.
struct Desertion(Box<Tell>);

type Tell = dyn Fn(u32, &str) + Send;

/// Who hears of ranks that abort the job.
struct Aborts(Box<TellAbort>);

type TellAbort = dyn Fn(u32, u8, &str) + Send;

impl std::fmt::Debug for Aborts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Aborts")
    }
}

impl std::fmt::Debug for Desertion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Desertion")
    }
}

impl Service {
    /// A service in which `streams[r]` leads to rank `r`.
    ///
    /// # Errors
    /// When the job's size is not the number of streams, or no event descriptor is to be had.
    pub fn new(config: Config, streams: Vec<UnixStream>) -> io::Result<Service> {
        Service::over(config, streams.into_iter().map(Connection::Socket).collect(), Box::new(NoOutlet))
    }

    /// A service in which `connections[r]` leads to rank `r`; what is said to relayed ones goes to `outlet`. Their
    /// welcome carries neither the secret nor a key nor an address: whoever relays it puts them in.
    ///
    /// # Errors
    /// As [`new`](Service::new).
    pub fn over(
        config: Config,
        connections: Vec<Connection>,
        outlet: Box<dyn Outlet>,
    ) -> io::Result<Service> {
        if config.size() as usize != connections.len() {
            let why = format!("a job of {} ranks with {} connections", config.size(), connections.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let poller = above_stdio(epoll::create(epoll::CreateFlags::CLOEXEC))?;
        let reports = Reports::new()?;
        epoll::add(&poller, reports.wakeup(), EventData::new_u64(WAKEUP), EventFlags::IN)?;
        let peers: Vec<_> = connections.into_iter().map(|connection| Some(Peer::new(connection))).collect();
        for (rank, peer) in (0u64..).zip(peers.iter().flatten()) {
            if let Some(socket) = peer.socket() {
                epoll::add(&poller, socket, EventData::new_u64(rank), peer.watched)?;
            }
        }
        Ok(Service {
            server: Server::new(config),
            connected: peers.len(),
            peers,
            poller,
            touched: Vec::new(),
            resumable: Vec::new(),
            outlet,
            reports: Arc::new(reports),
            on_desertion: Desertion(Box::new(|_, _| {})),
            on_abort: Aborts(Box::new(|_, _, _| {})),
            clock: None,
            fates: Vec::new(),
        })
    }

    /// Calls `tell` with a rank and how it ended when one that had joined the job leaves without goodbye, and without a sign
    /// of failure that somebody else would tell of. On the service's thread: it must not block.
    pub fn on_desertion(&mut self, tell: impl Fn(u32, &str) + Send + 'static) {
        self.on_desertion = Desertion(Box::new(tell));
    }

    /// Calls `tell` with a rank that aborts the job, the code, and its words for both. On the service's thread: it must not block.
    pub fn on_abort(&mut self, tell: impl Fn(u32, u8, &str) + Send + 'static) {
        self.on_abort = Aborts(Box::new(tell));
    }

    /// Measures time limits by the job's clock. Without it they are measured by the system's.
    pub fn set_clock(&mut self, clock: Arc<JobClock>) {
        self.clock = Some(clock);
    }

    fn now(&self) -> Instant {
        self.clock.as_ref().map_or_else(Instant::now, |clock| clock.now())
    }

    /// The way to tell this service how ranks ended, and what relayed ones said.
    pub fn reporter(&self) -> Reporter {
        Reporter(Arc::clone(&self.reports))
    }

    /// Serves until every connection has ended; asleep while there is nothing to do.
    ///
    /// # Errors
    /// When the system cannot poll. What a rank does never ends the service.
    pub fn run(mut self) -> io::Result<()> {
        let mut scratch = vec![0; READ_SIZE];
        while self.connected > 0 {
            let ready = self.wait()?;
            let now = self.now();
            self.resume(now);
            for (rank, report) in self.reports.take() {
                self.handle_report(now, rank, report, &mut scratch);
            }
            for rank in ready {
                self.receive(now, rank, &mut scratch);
            }
            self.answer_fates(now, &mut scratch);
            let actions = self.server.tick(now);
            self.perform(actions);
            self.flush(now, &mut scratch)?;
        }
        Ok(())
    }

    fn peer(&mut self, rank: u32) -> Option<&mut Peer> {
        self.peers.get_mut(rank as usize).and_then(Option::as_mut)
    }

    /// Something may be to be passed on of this rank, or to be watched for: it is looked at before the next sleep.
    fn touch(&mut self, rank: u32) {
        if let Some(peer) = self.peer(rank)
            && !std::mem::replace(&mut peer.is_touched, true)
        {
            self.touched.push(rank);
        }
    }

    /// Serves what those have said who have read meanwhile.
    fn resume(&mut self, now: Instant) {
        for rank in std::mem::take(&mut self.resumable) {
            if self.peer(rank).is_some_and(|peer| peer.is_to_be_resumed()) {
                self.serve(now, rank, &[]);
            }
        }
    }

    /// A rank that another one asks about may have said goodbye, or closed its connection, before it was asked about.
    fn answer_fates(&mut self, now: Instant, scratch: &mut [u8]) {
        for (rank, of, request) in std::mem::take(&mut self.fates) {
            self.drain(now, of, scratch);
            let actions = self.server.handle(now, rank, request);
            self.perform(actions);
        }
    }

    /// Serves what a rank has said that has ended, or hears nothing any more: its last word may have been goodbye.
    fn drain_ended(&mut self, now: Instant, rank: u32, scratch: &mut [u8]) {
        if let Some(peer) = self.peer(rank) {
            peer.stop_sending();
            self.serve(now, rank, &[]);
            self.drain(now, rank, scratch);
        }
    }

    /// Serves what a rank has said so far. Bounded, because it may go on.
    fn drain(&mut self, now: Instant, rank: u32, scratch: &mut [u8]) {
        for _ in 0..LAST_READS {
            if !self.receive(now, rank, scratch) {
                break;
            }
        }
    }

    /// Sleeps until something happens or is due, or a while. Returns the ranks whose connections have something to say.
    fn wait(&mut self) -> io::Result<Vec<u32>> {
        // What was asked while others were drained is next, and what was left of who has read meanwhile.
        let is_busy = !self.fates.is_empty() || !self.resumable.is_empty();
        let due = if is_busy { Some(self.now()) } else { self.server.next_deadline() };
        let until_due = due.map(|due| {
            let left = due.saturating_duration_since(self.now()).min(LONGEST_SLEEP);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        let mut events = [const { MaybeUninit::uninit() }; NAMED];
        let events = match epoll::wait(&self.poller, &mut events, until_due.as_ref()) {
            Ok((events, _)) => &*events,
            Err(Errno::INTR) => &[],
            Err(error) => return Err(error.into()),
        };
        let mut ready = Vec::new();
        for epoll::Event { flags, data } in events.iter().copied() {
            // The wakeup descriptor is no rank.
            let Ok(rank) = u32::try_from(data.u64()) else { continue };
            self.touch(rank);
            if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
                ready.push(rank);
            }
        }
        Ok(ready)
    }

    fn handle_report(&mut self, now: Instant, rank: u32, report: RankReport, scratch: &mut [u8]) {
        let actions = match report {
            RankReport::Said(bytes) => return self.serve(now, rank, &bytes),
            RankReport::Taken(bytes) => {
                if let Some(peer) = self.peer(rank) {
                    peer.taken(bytes);
                    self.touch(rank);
                }
                return;
            }
            RankReport::HungUp => {
                self.drain_ended(now, rank, scratch);
                self.server.disconnected(now, rank)
            }
            RankReport::Ended(how, well) => {
                // A process that it left behind may hold the socket and go on writing.
                self.drain_ended(now, rank, scratch);
                if well && self.server.owes_goodbye(rank) {
                    (self.on_desertion.0)(rank, &how);
                }
                self.server.ended(rank, &how)
            }
        };
        self.perform(actions);
    }

    /// Reads once from a rank and serves what came. False when there was nothing, nothing is to be read now, or nothing more
    /// will come.
    fn receive(&mut self, now: Instant, rank: u32, scratch: &mut [u8]) -> bool {
        let Some(peer) = self.peers.get(rank as usize).and_then(Option::as_ref) else { return false };
        if peer.is_held() {
            return false;
        }
        match peer.read(scratch) {
            Read::Nothing => return false,
            Read::Bytes(length) => self.serve(now, rank, &scratch[..length]),
            Read::End => {
                let actions = self.server.disconnected(now, rank);
                self.perform(actions);
                return false;
            }
        }
        self.peers[rank as usize].is_some()
    }

    /// Serves what a rank said, until it is held.
    fn serve(&mut self, now: Instant, rank: u32, bytes: &[u8]) {
        let Some(peer) = self.peer(rank) else { return };
        let too_much = !peer.push(bytes);
        self.touch(rank);
        while let Some(peer) = &mut self.peers[rank as usize] {
            if too_much {
                let actions = self.server.ended(rank, "was relayed in excess of its window");
                return self.perform(actions);
            }
            let actions = match peer.next() {
                Ok(None) => return,
                Ok(Some(request @ Request { call: Call::AwaitExit { rank: of, .. }, .. })) => {
                    self.fates.push((rank, of, request));
                    continue;
                }
                Ok(Some(request)) => {
                    if let Call::Abort { code, why } = &request.call {
                        (self.on_abort.0)(rank, *code, &aborted(*code, why));
                    }
                    self.server.handle(now, rank, request)
                }
                Err(error) => self.server.ended(rank, &format!("sent its launcher {error}")),
            };
            self.perform(actions);
        }
    }

    fn perform(&mut self, actions: Vec<Action>) {
        let mut queue = VecDeque::from(actions);
        while let Some(action) = queue.pop_front() {
            match action {
                Action::Close { rank } => self.close(rank),
                Action::Send { to, mut message } => {
                    let Some(peer) = &mut self.peers[to as usize] else { continue };
                    if peer.is_relayed() {
                        blank(&mut message);
                    }
                    let mut frame = Vec::new();
                    let sendable = encode(&message, &mut frame).is_ok();
                    peer.queue(&frame);
                    let is_behind = peer.out.len() > OUT_BOUND;
                    self.touch(to);
                    if !sendable || is_behind {
                        queue.extend(self.server.ended(to, &stopped_reading()));
                    }
                }
            }
        }
    }

    fn close(&mut self, rank: u32) {
        let Some(peer) = self.peers[rank as usize].take() else { return };
        self.connected -= 1;
        match peer.socket() {
            // A process that is just being started may have a copy of it for a moment, and would keep it watched.
            Some(socket) => _ = epoll::delete(&self.poller, socket),
            None => self.outlet.close(rank),
        }
    }

    /// Passes on what can be passed on, also what comes up meanwhile: the last words of a rank that cannot be sent anything.
    fn flush(&mut self, now: Instant, scratch: &mut [u8]) -> io::Result<()> {
        while let Some(rank) = self.touched.pop() {
            let Some(peer) = &mut self.peers[rank as usize] else { continue };
            peer.is_touched = false;
            if peer.flush(rank, &mut *self.outlet).is_err() {
                self.drain_ended(now, rank, scratch);
                let actions = self.server.disconnected(now, rank);
                self.perform(actions);
            }
            self.watch(rank)?;
        }
        Ok(())
    }

    /// Has a rank watched for what it is waited for now, and remembers it if it is to be served.
    fn watch(&mut self, rank: u32) -> io::Result<()> {
        let Some(peer) = &mut self.peers[rank as usize] else { return Ok(()) };
        if peer.is_to_be_resumed() {
            self.resumable.push(rank);
        }
        let wanted = peer.wanted();
        if std::mem::replace(&mut peer.watched, wanted) != wanted
            && let Some(socket) = peer.socket()
        {
            epoll::modify(&self.poller, socket, EventData::new_u64(rank.into()), wanted)?;
        }
        Ok(())
    }
}

/// How a rank ended that does not read what it is sent.
pub fn stopped_reading() -> String {
    format!("stopped reading: over {OUT_BOUND} bytes from its launcher lie unread")
}

/// What must not cross a network in the clear, and what only the rank's own host knows.
fn blank(message: &mut FromServer) {
    if let FromServer::Reply { reply: Reply::Welcome(welcome), .. } = message {
        welcome.secret = [0; 32];
        welcome.key = RankKey::BLANK;
        welcome.address = None;
    }
}

#[cfg(test)]
mod tests;
