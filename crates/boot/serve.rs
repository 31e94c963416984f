//! I/O of a [`Server`]: one thread, one `epoll`, for all ranks' sockets and for the relayed ranks of other
//! hosts. An event of one rank costs no check of other connections: connections with work are kept in a list.
//!
//! The thread never blocks on a rank. Unsent bytes are kept in a bounded buffer. A rank that does not read its
//! answers is neither served nor read meanwhile (`Peer::is_held`): its requests wait where they are. If its
//! buffer fills all the same, with awaited answers and with news, the rank is declared lost. No rank can
//! therefore hold up another. [`Service::run`] returns when every connection has ended.

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

/// Upper bound of unsent bytes for one rank, before the rank counts as one that has stopped reading.
pub const OUT_BOUND: usize = 4 * MAX_FRAME;

/// Number of unsent bytes from which on a rank's requests wait until it has read.
const HELD: usize = OUT_BOUND / 4;

/// Window of a relayed rank, in bytes, for each direction: bytes in flight that the other side has not
/// acknowledged ([`Outlet::consumed`], [`Reporter::taken`]).
pub const WINDOW: usize = 64 << 10;

/// Number of bytes after which an acknowledgement is sent, instead of one for each message.
pub const ACK_THRESHOLD: usize = WINDOW / 4;

/// Maximum number of bytes read from one rank before the others have their turn.
const READ_SIZE: usize = 64 << 10;

/// Maximum number of reads from a rank that has ended: more than a socket's buffer holds.
const LAST_READS: usize = 64;

/// Upper bound of unserved bytes of a relayed rank: its window, and the reads at its end.
const RELAYED_BOUND: usize = WINDOW + (LAST_READS + 2) * READ_SIZE;

/// Maximum number of events that one poll returns. The remaining ones come before these again.
const MAX_EVENTS: usize = 64;

/// Upper bound of one sleep: `epoll` counts it in milliseconds of 31 bits.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// Number that stands for the wakeup descriptor among the ranks.
const WAKEUP: u64 = u64::MAX;

/// The running name service. Owns the launcher's ends of the connections.
#[derive(Debug)]
pub struct Service {
    server: Server,
    /// Connections by rank; `None` once the connection has ended.
    peers: Vec<Option<Peer>>,
    /// Number of connections that have not ended.
    connected: usize,
    /// Watches the sockets, and the wakeup descriptor.
    poller: OwnedFd,
    /// Ranks that may have bytes to send or a changed interest; each is in here once.
    touched: Vec<u32>,
    /// Ranks that were held, have read meanwhile, and still have requests.
    resumable: Vec<u32>,
    outlet: Box<dyn Outlet>,
    reports: Arc<Reports>,
    on_desertion: Desertion,
    on_abort: Aborts,
    /// The job's clock, which the ranks use, too.
    clock: Option<Arc<JobClock>>,
    /// Questions for a rank's end: the asking rank, the other rank, the request. They are answered when
    /// everything else has been read.
    exit_questions: Vec<(u32, u32, Request)>,
}

/// Callback for ranks that leave without goodbye.
struct Desertion(Box<Tell>);

type Tell = dyn Fn(u32, &str) + Send;

/// Callback for ranks that abort the job.
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
    /// Makes a service in which `streams[r]` leads to rank `r`.
    ///
    /// # Errors
    /// When the job's size is not the number of streams, or no event descriptor is to be had.
    pub fn new(config: Config, streams: Vec<UnixStream>) -> io::Result<Service> {
        Service::over(config, streams.into_iter().map(Connection::Socket).collect(), Box::new(NoOutlet))
    }

    /// Makes a service in which `connections[r]` leads to rank `r`; bytes for relayed ranks go to `outlet`.
    /// Their welcome carries neither the secret nor a key nor an address: the relaying node puts them in.
    ///
    /// # Errors
    /// Those of [`new`](Service::new).
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
            exit_questions: Vec::new(),
        })
    }

    /// Sets a callback for a rank that had joined the job and leaves without goodbye, and without a failure
    /// that another part reports. `tell` gets the rank and how it ended. It is called on the service's thread
    /// and must not block.
    pub fn on_desertion(&mut self, tell: impl Fn(u32, &str) + Send + 'static) {
        self.on_desertion = Desertion(Box::new(tell));
    }

    /// Sets a callback for a rank that aborts the job. `tell` gets the rank, the code, and a text for both. It
    /// is called on the service's thread and must not block.
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

    /// Returns the reporter, which tells this service how ranks ended, and brings the bytes of relayed ranks.
    pub fn reporter(&self) -> Reporter {
        Reporter(Arc::clone(&self.reports))
    }

    /// Serves until every connection has ended; sleeps while there is nothing to do.
    ///
    /// # Errors
    /// When the system cannot poll. Nothing that a rank does ends the service.
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
            self.answer_exit_questions(now, &mut scratch);
            let actions = self.server.tick(now);
            self.perform(actions);
            self.flush(now, &mut scratch)?;
        }
        Ok(())
    }

    fn peer(&mut self, rank: u32) -> Option<&mut Peer> {
        self.peers.get_mut(rank as usize).and_then(Option::as_mut)
    }

    /// Lists a rank that may have bytes to send or a changed interest: it is handled before the next sleep.
    fn touch(&mut self, rank: u32) {
        if let Some(peer) = self.peer(rank)
            && !std::mem::replace(&mut peer.is_touched, true)
        {
            self.touched.push(rank);
        }
    }

    /// Serves the requests of ranks that have read meanwhile.
    fn resume(&mut self, now: Instant) {
        for rank in std::mem::take(&mut self.resumable) {
            if self.peer(rank).is_some_and(|peer| peer.is_to_be_resumed()) {
                self.serve(now, rank, &[]);
            }
        }
    }

    /// Answers questions for ends, after reading from the rank in question: it may have said goodbye, or closed
    /// its connection, before the question.
    fn answer_exit_questions(&mut self, now: Instant, scratch: &mut [u8]) {
        for (rank, of, request) in std::mem::take(&mut self.exit_questions) {
            self.drain(now, of, scratch);
            let actions = self.server.handle(now, rank, request);
            self.perform(actions);
        }
    }

    /// Serves the remaining requests of a rank that has ended, or that takes nothing any more: the last one may
    /// be goodbye.
    fn drain_ended(&mut self, now: Instant, rank: u32, scratch: &mut [u8]) {
        if let Some(peer) = self.peer(rank) {
            peer.stop_sending();
            self.serve(now, rank, &[]);
            self.drain(now, rank, scratch);
        }
    }

    /// Serves the requests that a rank has sent so far. Bounded, because it may go on.
    fn drain(&mut self, now: Instant, rank: u32, scratch: &mut [u8]) {
        for _ in 0..LAST_READS {
            if !self.receive(now, rank, scratch) {
                break;
            }
        }
    }

    /// Sleeps until an event or a deadline, for a bounded time. Returns the ranks whose connections can be
    /// read.
    fn wait(&mut self) -> io::Result<Vec<u32>> {
        // There is no sleep if questions came while other ranks were drained, or if requests of resumed ranks
        // are left.
        let is_busy = !self.exit_questions.is_empty() || !self.resumable.is_empty();
        let due = if is_busy { Some(self.now()) } else { self.server.next_deadline() };
        let until_due = due.map(|due| {
            let left = due.saturating_duration_since(self.now()).min(LONGEST_SLEEP);
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        let mut events = [const { MaybeUninit::uninit() }; MAX_EVENTS];
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
                // A process that the rank left behind may hold the socket and go on writing.
                self.drain_ended(now, rank, scratch);
                if well && self.server.owes_goodbye(rank) {
                    (self.on_desertion.0)(rank, &how);
                }
                self.server.ended(rank, &how)
            }
        };
        self.perform(actions);
    }

    /// Reads once from a rank and serves its requests. Returns `false` if there was nothing, if the rank may
    /// not be read now, or if nothing more will come.
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

    /// Serves a rank's requests, until it is held.
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
                    self.exit_questions.push((rank, of, request));
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
                        remove_secrets(&mut message);
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
            // A process that is just being started may have a copy of the socket for a moment, and would keep
            // it watched.
            Some(socket) => _ = epoll::delete(&self.poller, socket),
            None => self.outlet.close(rank),
        }
    }

    /// Sends what the ranks take, and also what comes up meanwhile: the last requests of a rank that cannot be
    /// sent anything.
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

    /// Sets the events for which a rank's socket is watched, and lists the rank if it is to be resumed.
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

/// Returns the text for the loss of a rank that does not read.
pub fn stopped_reading() -> String {
    format!("stopped reading: over {OUT_BOUND} bytes from its launcher lie unread")
}

/// Removes what must not cross a network in the clear, and what only the rank's own host knows.
fn remove_secrets(message: &mut FromServer) {
    if let FromServer::Reply { reply: Reply::Welcome(welcome), .. } = message {
        welcome.secret = [0; 32];
        welcome.key = RankKey::BLANK;
        welcome.address = None;
    }
}

#[cfg(test)]
mod tests;
