//! A peer socket: the Unix socket between two processes, and the segments that the peer has passed over it.
//!
//! A peer socket is made by the first connection request in its direction, and is used for the requests of its maker only
//! (so two processes may have two). It is up once both have proved the job's secret; it goes down when the socket
//! closes or the process behind it dies, and takes its connections with it.

mod unsent;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use udeck_sys::closer::{Endpoint, PassedFd};
use udeck_sys::reactor::{Reactor, Token};
use udeck_sys::segment::{self, CHUNK, Mapping, PeerAccess};
use udeck_sys::{Deadline, descriptor_advice, is_shortage, job_time, socket};
use udeck_via::transport::Hello;
use udeck_via::{Error, RejectKind, Rejection, Result, Until};

use self::unsent::{Left, send_all};
use crate::arenas::MAX_ARENA;
use crate::board::BoardView;
use crate::connection::{Connection, Loss};
use crate::handshake::{Handshake, HandshakeError, Step};
use crate::peer_socket_wire::{Datagram, Doorbells};
use crate::space::{Space, Taken};

/// Upper bound of chunks that are entered into our page tables at one access; the others follow when they are first
/// touched.
const POPULATED_AT_ONCE: usize = 64;

/// First interval at which a request that found no room in the socket is tried again; it doubles each time.
const ROOM_PAUSE: Duration = Duration::from_millis(1);
const MAX_ROOM_PAUSE: Duration = Duration::from_millis(32);

/// Upper bound of answers that are kept for a peer which does not read.
const MAX_UNSENT: usize = 1024;
const STUCK: &str = "the peer does not read its socket (it is stopped or stuck)";

/// The socket to another process, and the memory that this process shares with us.
pub struct PeerSocket {
    socket: Endpoint,
    made: Instant,
    /// Process id of the peer; `None` if it is in another pid namespace.
    pub pid: Option<i32>,
    /// Rank that the peer has proved to be, if any. Set once the peer socket is up.
    peer: OnceLock<Option<u32>>,
    segments: OnceLock<PeerSegments>,
    /// Bounds of the address space that peers' arenas take.
    space: Arc<Space>,
    state: Mutex<State>,
    changed: Condvar,
    next_request: AtomicU32,
    /// Answers that found no room in the socket, oldest first.
    unsent: Mutex<VecDeque<Vec<u8>>>,
    /// Registration of the socket, which is asked for news of room.
    watched: OnceLock<(Weak<Reactor>, Token)>,
}

struct State {
    phase: Phase,
    /// Our requests that wait for an answer, by id.
    requests: HashMap<u32, Option<Answer>>,
    connections: Vec<Weak<Connection>>,
    /// The peer has said goodbye: its end is no loss.
    parted: bool,
    /// The peer's process is dead, or has closed the peer socket.
    has_left: bool,
}

enum Phase {
    Meeting(Handshake),
    Up,
    Down(Ended),
}

/// Why a peer socket has ended, as text.
#[derive(Clone, Debug)]
pub enum Ended {
    /// The peer is dead or stuck, or broke the protocol.
    Lost(String),
    /// One of the two processes is short of a resource, and both live.
    Short(String),
}

impl Ended {
    /// Makes the reason from a failed system call of this process.
    pub fn by_call(what: &str, error: &io::Error) -> Self {
        use io::ErrorKind::{OutOfMemory, QuotaExceeded};
        let words = format!("{what}: {error}");
        match error.kind() {
            OutOfMemory => Ended::Short(format!("{words}, or lower DECK_ARENA for all ranks")),
            QuotaExceeded => Ended::Short(words),
            _ if is_shortage(error) => Ended::Short(format!("{words} ({})", descriptor_advice())),
            _ => Ended::Lost(words),
        }
    }

    fn words(&self) -> &str {
        let (Ended::Lost(words) | Ended::Short(words)) = self;
        words
    }

    pub fn into_error(self, pid: Option<i32>) -> Error {
        match self {
            Ended::Lost(why) => Error::Lost(why),
            Ended::Short(why) => {
                Error::Unavailable { what: format!("shared memory with process {}", process(pid)), why }
            }
        }
    }
}

impl From<String> for Ended {
    fn from(why: String) -> Self {
        Ended::Lost(why)
    }
}

impl From<&str> for Ended {
    fn from(why: &str) -> Self {
        Ended::Lost(why.to_owned())
    }
}

/// The answer to a connection request.
pub enum Answer {
    Accepted { doorbells: Doorbells, hello: Hello },
    Refused(Rejection),
}

struct PeerSegments {
    board: BoardView,
    outbox: PeerMemory,
    landing: PeerMemory,
    /// Share of the address space, given back after the mappings are dropped.
    _space: Taken,
}

/// An arena of the peer, mapped here. Chunks are entered into our page tables when they are first used. The peer
/// says how long the arena is, and may have put no memory behind it. Missing memory is not read by a load, which
/// would take the memory on our account.
struct PeerMemory {
    mapping: Mapping,
    fd: OwnedFd,
    access: PeerAccess,
    /// Bitmap of the chunks that were used.
    used: Vec<AtomicU64>,
}

impl PeerMemory {
    fn adopt(fd: PassedFd, access: PeerAccess) -> std::io::Result<Self> {
        let (fd, mapping) = fd.adopt(1..=MAX_ARENA, access)?;
        let words = mapping.len().div_ceil(CHUNK).div_ceil(64);
        let used = (0..words).map(|_| AtomicU64::new(0)).collect();
        Ok(PeerMemory { mapping, fd, access, used })
    }

    /// Returns the address of a piece of the arena; `None` if some of it has no memory.
    fn at(&self, offset: u64, len: usize) -> Option<NonNull<u8>> {
        let at = self.mapping.at(offset, len)?;
        if len == 0 {
            return Some(at);
        }
        let start = offset as usize;
        let chunks = start / CHUNK..(start + len).div_ceil(CHUNK);
        // The piece nearly always lies in one chunk, which was used before.
        match chunks.clone().find(|chunk| !self.is_used(*chunk)) {
            Some(fresh) => self.use_first(fresh..chunks.end).then_some(at),
            None => Some(at),
        }
    }

    fn is_used(&self, chunk: usize) -> bool {
        self.used[chunk / 64].load(Ordering::Relaxed) & 1 << (chunk % 64) != 0
    }

    /// Marks chunks as used. Returns whether their memory exists: a peer takes memory by chunks.
    #[cold]
    fn use_first(&self, chunks: Range<usize>) -> bool {
        let within = |chunk: usize| (chunk * CHUNK).min(self.mapping.len());
        let (start, end) = (within(chunks.start), within(chunks.end));
        // The chunks of an outbox stay once they exist.
        let is_outbox = self.access == PeerAccess::Read;
        if is_outbox && !segment::is_present(self.fd.as_fd(), start, end).unwrap_or(false) {
            return false;
        }
        for chunk in chunks.clone().filter(|chunk| !self.is_used(*chunk)).take(POPULATED_AT_ONCE) {
            let (start, end) = (within(chunk), within(chunk + 1));
            match is_outbox {
                true => drop(self.mapping.populate(start, end - start)),
                false => self.mapping.populate_resident(start, end - start),
            }
        }
        for chunk in chunks {
            self.used[chunk / 64].fetch_or(1 << (chunk % 64), Ordering::Relaxed);
        }
        true
    }
}

/// Action that a handled datagram asks of the device.
pub enum Event {
    Nothing,
    /// The peer has ended a connection by an error.
    Broken,
    /// A peer asks for a connection.
    Request {
        id: u32,
        doorbells: Doorbells,
        hello: Hello,
        discriminator: Vec<u8>,
        control: Mapping,
    },
}

impl PeerSocket {
    /// Makes a peer socket over a fresh Unix socket.
    pub fn new(socket: Endpoint, pid: Option<i32>, handshake: Handshake, space: &Arc<Space>) -> Arc<Self> {
        let state = State {
            phase: Phase::Meeting(handshake),
            requests: HashMap::new(),
            connections: Vec::new(),
            parted: false,
            has_left: false,
        };
        Arc::new(PeerSocket {
            socket,
            made: job_time(),
            pid,
            peer: OnceLock::new(),
            segments: OnceLock::new(),
            space: space.clone(),
            state: Mutex::new(state),
            unsent: Mutex::default(),
            watched: OnceLock::new(),
            changed: Condvar::new(),
            next_request: AtomicU32::new(0),
        })
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Rank that the peer has proved to be; `None`: any process of the job.
    pub fn peer(&self) -> Option<u32> {
        self.peer.get().copied().flatten()
    }

    fn segments(&self) -> &PeerSegments {
        self.segments.get().expect("connections are made over links that are up")
    }

    pub fn peer_board(&self) -> &BoardView {
        &self.segments().board
    }

    pub fn outbox_at(&self, offset: u64, len: usize) -> Option<NonNull<u8>> {
        self.segments().outbox.at(offset, len)
    }

    /// Returns an address in the peer's landing arena for writing. (A load from there would take memory that the
    /// peer never had, or has given up: [`PeerSocket::read_landing`].)
    pub fn landing_at(&self, offset: u64, len: usize) -> Option<NonNull<u8>> {
        self.segments().landing.at(offset, len)
    }

    /// Reads from the peer's landing arena. `None` if the range is outside, or the system cannot read it.
    pub fn read_landing(&self, offset: u64, to: &mut [u8]) -> Option<()> {
        segment::read_at(self.segments().landing.fd.as_fd(), offset, to).ok()
    }

    /// Says which registration of the reactor has this socket.
    pub fn watched_by(&self, reactor: &Arc<Reactor>, token: Token) {
        let _ = self.watched.set((Arc::downgrade(reactor), token));
    }

    /// Sends an answer, or news, without waiting. A busy host may let the peer read late, and the system may be short
    /// of memory: what the socket does not take now is sent later, in order.
    ///
    /// # Errors
    /// Why the peer socket must end. A peer that leaves [`MAX_UNSENT`] answers unread is stuck.
    pub fn answer(&self, datagram: &Datagram) -> std::result::Result<(), Ended> {
        let mut unsent = self.unsent.lock();
        if unsent.is_empty() {
            match socket::send(self.socket(), &datagram.encode(), &[]) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) if is_shortage(&error) => {}
                Err(error) => return Err(writing(&error)),
            }
        }
        if unsent.len() >= MAX_UNSENT {
            return Err(STUCK.into());
        }
        unsent.push_back(datagram.encode());
        drop(unsent);
        self.watch_room();
        Ok(())
    }

    /// Sends what [`PeerSocket::answer`] kept. Runs on the reactor, at each event of the socket.
    pub fn send_unsent(&self) {
        match self.send_kept() {
            Left::Nothing => return,
            Left::NoRoom => {}
            // The socket has room, so the reactor calls again at once: the pause leaves others the processor.
            Left::Shortage => std::thread::sleep(ROOM_PAUSE),
        }
        self.watch_room();
    }

    /// Says goodbye behind the answers that were kept, and waits until the deadline for room. A peer for which there is
    /// none by then is not told: to it, this process has closed the socket or died.
    pub fn say_goodbye(&self, deadline: Deadline) {
        self.unsent.lock().push_back(Datagram::Goodbye.encode());
        while self.send_kept() != Left::Nothing && !self.is_down() && !deadline.passed() {
            std::thread::sleep(ROOM_PAUSE);
        }
    }

    fn send_kept(&self) -> Left {
        send_all(&mut self.unsent.lock(), |datagram| socket::send(self.socket(), datagram, &[]))
    }

    fn watch_room(&self) {
        if let Some((reactor, token)) = self.watched.get()
            && let Some(reactor) = reactor.upgrade()
        {
            reactor.watch_room(*token);
        }
    }

    /// Sends a datagram of the hand-shake, or the last one, without waiting. A hand-shake has a few datagrams, so a peer
    /// whose socket has no room for one of them is stuck.
    pub fn send(&self, datagram: &Datagram, fds: &[BorrowedFd<'_>]) -> std::result::Result<(), Ended> {
        match self.try_send(datagram, fds)? {
            true => Ok(()),
            false => Err(STUCK.into()),
        }
    }

    /// Sends a datagram if the socket has room for it. `false`: it has none.
    fn try_send(&self, datagram: &Datagram, fds: &[BorrowedFd<'_>]) -> std::result::Result<bool, Ended> {
        socket::send(self.socket(), &datagram.encode(), fds).map_err(|error| writing(&error))
    }

    /// Handles one datagram. Runs on the reactor.
    ///
    /// # Errors
    /// Why the peer socket must end.
    pub fn input(
        &self,
        datagram: Datagram,
        fds: Vec<PassedFd>,
        ours: [BorrowedFd<'_>; 3],
    ) -> std::result::Result<Event, Ended> {
        let (carried, due) = (fds.len(), datagram.descriptors());
        if carried > due {
            return Err(format!("sent {carried} descriptors where {due} belong").into());
        }
        let mut state = self.state.lock();
        match &mut state.phase {
            Phase::Meeting(handshake) => {
                let step = handshake.input(&datagram).map_err(|refusal| match refusal {
                    HandshakeError::Short(why) => Ended::Short(format!("it says: {why}")),
                    other => Ended::Lost(other.to_string()),
                })?;
                match step {
                    Step::Send(answer) => self.send(&answer, &[])?,
                    Step::SendSegments(answer) => self.send(&answer, &ours)?,
                    Step::Authenticated { answer, peer } => {
                        let _ = self.peer.set(peer);
                        self.adopt_segments(fds)
                            .map_err(|error| Ended::by_call("mapping the other process's arenas", &error))?;
                        if let Some(answer) = answer {
                            self.send(&answer, &ours)?;
                        }
                        state.phase = Phase::Up;
                        self.changed.notify_all();
                    }
                }
                return Ok(Event::Nothing);
            }
            Phase::Up => {}
            // Another thread ended the peer socket after this datagram was read, so its sender is no longer believed.
            Phase::Down(_) => return Ok(Event::Nothing),
        }
        match datagram {
            Datagram::Request { id, doorbells, hello, discriminator } => {
                let [fd] =
                    <[PassedFd; 1]>::try_from(fds).map_err(|_| "a request without its control segment")?;
                let bytes = crate::layout::CONTROL_BYTES;
                let control = match fd.adopt(bytes..=bytes, PeerAccess::Write) {
                    Ok((_, control)) => control,
                    Err(error) => match Ended::by_call("mapping a control segment", &error) {
                        Ended::Short(text) => {
                            let rejection = Rejection::new(RejectKind::Failed, text);
                            self.answer(&Datagram::Refuse { id, rejection })?;
                            return Ok(Event::Nothing);
                        }
                        lost => return Err(lost),
                    },
                };
                return Ok(Event::Request { id, doorbells, hello, discriminator, control });
            }
            Datagram::Accept { id, doorbells, hello } => match state.requests.get_mut(&id) {
                Some(answer) => *answer = Some(Answer::Accepted { doorbells, hello }),
                // The requester gave up, and marked the control segment closed. The ring makes the acceptor find that.
                None => self.peer_board().doorbell(doorbells.receive.doorbell).ring(doorbells.receive.bit),
            },
            Datagram::Refuse { id, rejection } => {
                if let Some(answer) = state.requests.get_mut(&id) {
                    *answer = Some(Answer::Refused(rejection));
                }
            }
            Datagram::Goodbye => state.parted = true,
            Datagram::Broken => return Ok(Event::Broken),
            Datagram::Meet { .. } | Datagram::Prove { .. } | Datagram::Join { .. } | Datagram::Welcome => {
                return Err("a second hand-shake on its socket".into());
            }
        }
        self.changed.notify_all();
        Ok(Event::Nothing)
    }

    fn adopt_segments(&self, fds: Vec<PassedFd>) -> std::io::Result<()> {
        let [board, outbox, landing] = <[PassedFd; 3]>::try_from(fds)
            .map_err(|fds| std::io::Error::other(format!("{} descriptors instead of 3", fds.len())))?;
        let bytes = outbox.check(1..=MAX_ARENA, PeerAccess::Read)?
            + landing.check(1..=MAX_ARENA, PeerAccess::Write)?;
        let segments = PeerSegments {
            _space: self.space.take(self.pid, bytes as u64)?,
            board: BoardView::adopt(board)?,
            outbox: PeerMemory::adopt(outbox, PeerAccess::Read)?,
            landing: PeerMemory::adopt(landing, PeerAccess::Write)?,
        };
        let _ = self.segments.set(segments);
        Ok(())
    }

    /// Waits until the peer socket is up.
    ///
    /// # Errors
    /// [`Error::Lost`] when the peer socket went down, [`Error::Unavailable`] if a shortage was the reason,
    /// [`Error::Timeout`].
    pub fn wait_up(&self, until: &Until) -> Result {
        let start = Instant::now();
        let mut state = self.state.lock();
        loop {
            match &state.phase {
                Phase::Up => return Ok(()),
                Phase::Down(ended) => return Err(ended.clone().into_error(self.pid)),
                Phase::Meeting(_) => {}
            }
            if self.changed.wait_until(&mut state, until.instant()).timed_out() && until.passed() {
                let what = format!("the hand-shake with process {}", process(self.pid));
                return Err(Error::Timeout { what, waited: start.elapsed() });
            }
        }
    }

    /// How long the hand-shake has been going on; `None` once it is over.
    pub fn meeting_for(&self) -> Option<Duration> {
        matches!(self.state.lock().phase, Phase::Meeting(_))
            .then(|| job_time().saturating_duration_since(self.made))
    }

    /// Whether connections can be made over the peer socket, now or when the hand-shake ends.
    pub fn is_usable(&self) -> bool {
        let state = self.state.lock();
        !state.parted && !matches!(state.phase, Phase::Down(_))
    }

    /// Sends a connection request and waits for the answer.
    ///
    /// # Errors
    /// The errors of [`PeerSocket::wait_up`].
    pub fn request(
        &self,
        doorbells: Doorbells,
        hello: Hello,
        discriminator: &[u8],
        control: BorrowedFd<'_>,
        until: &Until,
    ) -> Result<Answer> {
        let start = Instant::now();
        let id = self.next_request.fetch_add(1, Ordering::Relaxed);
        let datagram = Datagram::Request { id, doorbells, hello, discriminator: discriminator.to_vec() };
        let mut state = self.state.lock();
        let (mut is_sent, mut next_try, mut pause) = (false, start, ROOM_PAUSE);
        loop {
            if let Some(answer) = state.requests.get_mut(&id).and_then(Option::take) {
                state.requests.remove(&id);
                return Ok(answer);
            }
            if let Phase::Down(ended) = &state.phase {
                let ended = ended.clone();
                state.requests.remove(&id);
                return Err(ended.into_error(self.pid));
            }
            // Many threads may ask at once, faster than a busy host lets the peer read. A full socket is no reason
            // to give the peer up.
            if !is_sent && next_try <= Instant::now() {
                is_sent = self.try_send(&datagram, &[control]).map_err(|ended| ended.into_error(self.pid))?;
                if is_sent {
                    state.requests.insert(id, None);
                }
                (next_try, pause) = (Instant::now() + pause, (2 * pause).min(MAX_ROOM_PAUSE));
            }
            let wake = if is_sent { until.instant() } else { until.instant().min(next_try) };
            if self.changed.wait_until(&mut state, wake).timed_out() && until.passed() {
                state.requests.remove(&id);
                // The text leaves out the discriminator: the caller knows it, and it may be a name that no user has
                // given.
                let peer = process(self.pid);
                let what = match is_sent {
                    true => format!("an answer from process {peer} to a connection request"),
                    false => format!("process {peer} to read earlier connection requests"),
                };
                return Err(Error::Timeout { what, waited: start.elapsed() });
            }
        }
    }

    /// Makes the connection end with this peer socket.
    pub fn carry(&self, connection: &Arc<Connection>) {
        let mut state = self.state.lock();
        state.connections.retain(|connection| connection.strong_count() > 0);
        state.connections.push(Arc::downgrade(connection));
        if let Phase::Down(ended) = &state.phase {
            let (why, how) =
                (ended.words().to_owned(), if state.has_left { Loss::Dead } else { Loss::Unresponsive });
            drop(state);
            connection.mark_lost(&why, how);
        }
    }

    /// Returns the connections made over this peer socket that still exist.
    pub fn connections(&self) -> Vec<Arc<Connection>> {
        self.state.lock().connections.iter().filter_map(Weak::upgrade).collect()
    }

    /// Whether the peer socket is down.
    pub fn is_down(&self) -> bool {
        matches!(self.state.lock().phase, Phase::Down(_))
    }

    /// Ends the peer socket and its connections. The first reason counts. A peer socket whose peer lives keeps its
    /// connections. They are ended once more when the peer is dead, because only then it has certainly left our
    /// memory.
    pub fn down(&self, why: impl Into<Ended>, how: Loss) {
        let mut state = self.state.lock();
        let was_down = matches!(state.phase, Phase::Down(_));
        if state.has_left || (was_down && how != Loss::Dead) {
            return;
        }
        state.has_left = how == Loss::Dead;
        let parted = state.parted;
        let ended = if parted { "the process has left the job".into() } else { why.into() };
        if !was_down {
            state.phase = Phase::Down(ended.clone());
        }
        let connections: Vec<_> = state.connections.iter().filter_map(Weak::upgrade).collect();
        if state.has_left {
            state.connections.clear();
        }
        drop(state);
        self.changed.notify_all();
        for connection in connections {
            match (parted, how) {
                (true, Loss::Dead) => connection.close_for_peer(),
                // The peer has said goodbye, but has not left yet.
                (true, Loss::ProtocolError | Loss::Unresponsive) => {}
                (false, how) => connection.mark_lost(ended.words(), how),
            }
        }
    }
}

impl std::fmt::Debug for PeerSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Link(process {})", process(self.pid))
    }
}

/// Returns the end of a peer socket that cannot be written to.
fn writing(error: &io::Error) -> Ended {
    Ended::by_call("writing to its socket", error)
}

/// Names a peer's process in error texts.
pub(crate) fn process(pid: Option<i32>) -> String {
    pid.map_or("(in another pid namespace)".into(), |pid| pid.to_string())
}
