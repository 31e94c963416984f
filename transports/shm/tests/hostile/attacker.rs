//! A peer that knows the secret and the formats, and breaks the rules.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::FallocateFlags;
use udeck_sys::atomic::{AtomicU32, AtomicU64, Ordering};
use udeck_sys::closer::{Endpoint, PassedFd};
use udeck_sys::ring::Producer;
use udeck_sys::segment::{self, Mapping, PeerAccess};
use udeck_sys::tokens::Returner;
use udeck_sys::{boot_id, socket};
use udeck_via::auth::Keys;
use udeck_via::mem::Fill;
use udeck_via::transport::Hello;
use udeck_via::{MemHandle, Ptag, Reliability, Vi, Window};

use super::victim::{NAME, SECRET, Victim};
use crate::arenas::Segment;
use crate::board::{Board, BoardView};
use crate::handshake::{Handshake, Step};
use crate::layout::{CONTROL_BYTES, Direction};
use crate::peer_socket_wire::{Datagram, DoorbellBit, Doorbells, MAX_DATAGRAM};

pub const OUTBOX: usize = 4 << 20;
pub const LANDING: usize = 2 << 20;
pub const PTAG: Ptag = Ptag(5);

/// Offset of the credit for the victim's messages (see `layout`): the consumer's line of direction 1.
const CREDIT: usize = 9216;
/// Offset of the count of messages that the attacker has read.
const READ: usize = CREDIT + 128;

/// A peer socket to the victim.
pub struct Attacker {
    socket: Endpoint,
    pub board: Board,
    outbox: Segment,
    landing: Segment,
    victim_board: Option<BoardView>,
    requests: u32,
}

/// A connection over the attacker's peer socket. The attacker is its requester.
pub struct Grip {
    pub control: Arc<Mapping>,
    pub producer: Producer<Direction>,
    pub returner: Returner<Direction>,
    /// Doorbells on which the victim listens.
    pub doorbells: Doorbells,
}

impl Attacker {
    /// Connects and sends no datagram.
    pub fn silent(address: &[u8]) -> Self {
        Self::over(socket::connect_to(address).unwrap())
    }

    fn over(socket: Endpoint) -> Self {
        let outbox = Segment::outbox(OUTBOX).unwrap();
        outbox.commit_all();
        Attacker {
            socket,
            board: Board::new().unwrap(),
            outbox,
            landing: Segment::landing(LANDING).unwrap(),
            victim_board: None,
            requests: 0,
        }
    }

    /// Admits the victim, which connects to `listener`, and receives its request. Returns the control segment of that, too.
    pub fn asked(listener: &Endpoint) -> (Self, Arc<Mapping>) {
        socket::wait_readable(listener.as_fd(), Duration::from_secs(60)).unwrap();
        let socket = socket::accept_from(listener.as_fd()).unwrap().expect("the victim comes");
        let mut attacker = Self::over(socket);
        let mut handshake = Handshake::accept(SECRET.into(), boot_id().unwrap(), [2; 32]);
        loop {
            let Received { datagram, mut fds } = attacker.receive().expect("the victim goes on");
            if let Datagram::Request { .. } = datagram {
                let control =
                    segment::adopt(fds[0].as_fd(), CONTROL_BYTES..=CONTROL_BYTES, PeerAccess::Write);
                return (attacker, Arc::new(control.unwrap()));
            }
            match handshake.input(&datagram).unwrap() {
                Step::Send(answer) => attacker.send(&answer, &[]),
                Step::Authenticated { answer: Some(answer), .. } => {
                    attacker.victim_board = Some(BoardView::adopt(fds.swap_remove(0)).unwrap());
                    attacker
                        .send(&answer, &[attacker.board.fd(), attacker.outbox.fd(), attacker.landing.fd()]);
                }
                Step::SendSegments(_) | Step::Authenticated { answer: None, .. } => {
                    unreachable!("that is the connector's part")
                }
            }
        }
    }

    /// Connects and completes the hand-shake.
    pub fn admitted(address: &[u8]) -> Self {
        Self::silent(address).let_in()
    }

    /// Connects as [`Attacker::admitted`], with an outbox of `len` bytes of which only the first chunk has memory.
    pub fn sparse(address: &[u8], len: usize) -> Self {
        let mut attacker = Self::silent(address);
        attacker.outbox = Segment::outbox(len).unwrap();
        drop(attacker.outbox.arena.block(64, Fill::Zero).unwrap());
        attacker.let_in()
    }

    fn let_in(self) -> Self {
        let mut attacker = self;
        let welcome = attacker.meet(SECRET, None).expect("an answer");
        let Received { datagram: Datagram::Welcome, mut fds } = welcome else { panic!("no welcome") };
        attacker.victim_board = Some(BoardView::adopt(fds.swap_remove(0)).unwrap());
        attacker
    }

    /// Goes through the hand-shake, with `segments` instead of its own if given. Returns the victim's last datagram;
    /// `None` if the victim hung up.
    pub fn meet(&mut self, secret: [u8; 32], segments: Option<[BorrowedFd<'_>; 3]>) -> Option<Received> {
        let (mut handshake, meet) =
            Handshake::connect(Keys::from(secret).call(None).unwrap(), boot_id().unwrap(), [1; 32]);
        // The victim may have hung up already, here and below.
        let _ = socket::send(self.socket.as_fd(), &meet.encode(), &[]);
        let Received { datagram, .. } = self.receive()?;
        let join = match (handshake.input(&datagram), &datagram) {
            (Ok(Step::SendSegments(join)), _) => join,
            // Without the secret the attacker can check and prove nothing, so it echoes the proof.
            (Err(_), Datagram::Prove { mac, .. }) => Datagram::Join { mac: *mac },
            other => panic!("{other:?}"),
        };
        let own = [self.board.fd(), self.outbox.fd(), self.landing.fd()];
        let segments = segments.unwrap_or(own);
        let _ = socket::send(self.socket.as_fd(), &join.encode(), &segments);
        self.receive()
    }

    pub fn send(&self, datagram: &Datagram, fds: &[BorrowedFd<'_>]) {
        assert!(socket::send(self.socket.as_fd(), &datagram.encode(), fds).unwrap());
    }

    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns the victim's next datagram; `None` once the victim has hung up.
    pub fn receive(&self) -> Option<Received> {
        let mut buffer = [0; MAX_DATAGRAM];
        loop {
            match socket::receive(self.socket.as_fd(), &mut buffer).unwrap() {
                socket::Received::Datagram { len, fds, .. } => {
                    return Some(Received { datagram: Datagram::decode(&buffer[..len]).unwrap(), fds });
                }
                socket::Received::Closed => return None,
                socket::Received::Nothing => {
                    let readable = socket::wait_readable(self.socket.as_fd(), Duration::from_secs(60));
                    assert!(readable.unwrap(), "the victim neither answers nor hangs up");
                }
            }
        }
    }

    /// Sends a connection request with this control segment.
    pub fn request(&mut self, control: BorrowedFd<'_>) {
        let bit = DoorbellBit { doorbell: 0, bit: 0 };
        let hello = Hello {
            reliability: Reliability::Delivery,
            writable_ptag: Some(PTAG),
            readable_ptag: Some(PTAG),
            private_data: Vec::new(),
        };
        self.requests += 1;
        let doorbells = Doorbells { send: bit, receive: bit };
        let request = Datagram::Request { id: self.requests, doorbells, hello, discriminator: NAME.to_vec() };
        self.send(&request, &[control]);
    }

    /// Sends a request to an unknown discriminator, if the victim's queue has room, and does not read the answer.
    /// Returns whether it was sent.
    pub fn ask_in_vain(&self) -> bool {
        let (fd, _) = segment::create("attacker-control", CONTROL_BYTES, PeerAccess::Write).unwrap();
        let bit = DoorbellBit { doorbell: 0, bit: 0 };
        let hello = Hello {
            reliability: Reliability::Delivery,
            writable_ptag: None,
            readable_ptag: None,
            private_data: Vec::new(),
        };
        let doorbells = Doorbells { send: bit, receive: bit };
        let request = Datagram::Request { id: 0, doorbells, hello, discriminator: b"nobody".to_vec() };
        socket::send(self.socket(), &request.encode(), &[fd.as_fd()]).unwrap_or(false)
    }

    /// Makes a connection. Returns its own end, and the victim's.
    pub fn connect(&mut self, victim: &Victim) -> (Grip, Vi) {
        self.connect_to(victim, 0)
    }

    /// Makes a connection as [`Attacker::connect`], to a VI of this context.
    pub fn connect_to(&mut self, victim: &Victim, context: u64) -> (Grip, Vi) {
        self.connect_by(|| victim.accept(context))
    }

    /// Makes a connection as [`Attacker::connect`]. The closure `accept` accepts it.
    pub fn connect_by(&mut self, accept: impl FnOnce() -> Vi) -> (Grip, Vi) {
        let (fd, control) = segment::create("attacker-control", CONTROL_BYTES, PeerAccess::Write).unwrap();
        self.request(fd.as_fd());
        let vi = accept();
        let doorbells = loop {
            match self.receive().expect("an answer").datagram {
                Datagram::Accept { doorbells, .. } => break doorbells,
                // The victim has ended an earlier connection by an error.
                Datagram::Broken => {}
                other => panic!("not accepted: {other:?}"),
            }
        };
        let control = Arc::new(control);
        let grip = Grip {
            producer: Producer::new(Direction::new(&control, 0)),
            // Buffers that the victim lends come back in the lane of its own direction.
            returner: Returner::new(Direction::new(&control, 1)),
            control,
            doorbells,
        };
        (grip, vi)
    }

    /// Bytes of memory that its outbox has taken.
    pub fn outbox_memory(&self) -> u64 {
        memory_of(&self.outbox)
    }

    pub fn landing_memory(&self) -> u64 {
        memory_of(&self.landing)
    }

    /// Fills its landing arena with 0xee.
    pub fn fill_landing(&self) {
        let file = std::fs::File::from(self.landing.fd().try_clone_to_owned().unwrap());
        file.write_all_at(&vec![0xee; LANDING], 0).unwrap();
    }

    /// Gives all memory of its landing arena back to the system.
    pub fn punch_landing(&self) {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(self.landing.fd(), hole, 0, LANDING as u64).unwrap();
    }

    /// Counts the bytes of its landing arena that are not zero.
    pub fn bytes_in_landing(&self) -> usize {
        let view = segment::adopt(self.landing.fd(), LANDING..=LANDING, PeerAccess::Write).unwrap();
        let word = |at: usize| view.structure::<AtomicU64>(at).load(Ordering::Relaxed);
        (0..LANDING).step_by(8).flat_map(|at| word(at).to_ne_bytes()).filter(|byte| *byte != 0).count()
    }

    /// Returns the victim's board, mapped by the attacker.
    pub fn victim_board(&self) -> &BoardView {
        self.victim_board.as_ref().expect("admitted")
    }
}

fn memory_of(segment: &Segment) -> u64 {
    rustix::fs::fstat(segment.fd()).unwrap().st_blocks as u64 * 512
}

impl Grip {
    /// Writes a word of the control segment.
    pub fn scribble(&self, word: usize, value: u64) {
        self.control.structure::<AtomicU64>(word % (CONTROL_BYTES / 8) * 8).store(value, Ordering::Release);
    }

    /// Returns the direction that the attacker writes.
    pub fn direction(&self) -> Direction {
        Direction::new(&self.control, 0)
    }

    /// Enters a window of the victim, like a process that is stopped in the middle of a copy.
    pub fn stay_in(&self, window: &Window) {
        self.stay_at(window.remote().handle);
    }

    pub fn stay_at(&self, handle: MemHandle) {
        std::mem::forget(self.direction().sender().gate.enter(handle.0));
    }

    /// Leaves the window: the gate names no window any more.
    pub fn leave(&self) {
        drop(self.direction().sender().gate.enter(0));
    }

    /// Claims to have read `credit` of the victim's messages.
    pub fn claim_credit(&self, credit: u32) {
        self.control.structure::<AtomicU32>(CREDIT).store(credit, Ordering::Release);
    }

    pub fn claim_read(&self, read: u32) {
        self.control.structure::<AtomicU32>(READ).store(read, Ordering::Release);
    }

    /// Overwrites the victim's published count of messages that it has read.
    pub fn forge_read(&self, read: u32) {
        self.control.structure::<AtomicU32>(READ - 1024).store(read, Ordering::Release);
    }

    /// Sends a cell of the attacker's making. (The doorbell is not rung: the victim polls by itself.)
    pub fn push(&mut self, meta: u32, aux: u64, words: &[u64]) {
        assert!(self.producer.has_room().unwrap());
        let _ = self.producer.push(meta, aux, words);
    }
}

/// A datagram of the victim.
#[derive(Debug)]
pub struct Received {
    pub datagram: Datagram,
    pub fds: Vec<PassedFd>,
}
