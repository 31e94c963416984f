//! The NIC: what this process shows to its peers, and the links it has.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use udeck_sys::reactor::{Interest, Reactor, Token};
use udeck_sys::segment::{self, Mapping, PeerAccess};
use udeck_sys::{Deadline, boot_id, descriptor_advice, is_shortage, socket};
use udeck_via::transport::{
    Connected, Device, Hello, Incoming, Inline, Notifier, OnRequest, Owner, Port, Queue, Queues, Ready,
    Waiter,
};
use udeck_via::{
    Arena, Caps, Error, MemHandle, NetAddress, NicAttributes, Ptag, Reliability, Result, Rights,
};

use crate::Options;
use crate::arenas::Arenas;
use crate::board::{BELLS, Board, WINDOWS};
use crate::cell::{MAX_HEAD, MAX_SEGMENTS};
use crate::connection::{Connection, Loss};
use crate::fading::{Fading, Visitor};
use crate::handshake::Handshake;
use crate::layout::{CELLS, CLOSED, CONTROL_BYTES};
use crate::link::{Answer, Event, Link};
use crate::link_wire::{Bells, Datagram, MAX_DATAGRAM, MAX_DISCRIMINATOR, MAX_PRIVATE, Why};
use crate::port::ShmPort;
use crate::waiter::{Attached, QUEUES, ShmNotifier, ShmWaiter};

/// The shared-memory NIC of a process.
pub struct ShmDevice {
    attributes: NicAttributes,
    options: Options,
    boot_id: [u8; 16],
    board: Arc<Board>,
    arenas: Arenas,
    reactor: Arc<Reactor>,
    listeners: Mutex<HashMap<Vec<u8>, Arc<Mutex<OnRequest>>>>,
    links: Mutex<Links>,
    /// Connections whose port is gone while the peer still reads something of ours, or is inside one of our windows.
    retired: Mutex<Vec<Arc<Connection>>>,
    /// Windows that are taken back while a peer is inside.
    fading: Fading,
    /// The last few connections over which something was lent, most recent first.
    recent: Mutex<VecDeque<Weak<Connection>>>,
    /// The first of them, whose place nobody else has as long as it is: so the usual lender takes no lock.
    last_lender: AtomicPtr<Connection>,
    copied: AtomicU64,
    this: Weak<ShmDevice>,
}

/// Sockets accepted before the links that exist are looked at: a burst of strangers does not starve them.
const ACCEPTS: usize = 16;
/// Descriptors of a link beside its socket: the death of the process behind it, both again for the reactor, and, until
/// they are mapped, the three segments of the peer.
const LINK_DESCRIPTORS: usize = 6;
/// A process without descriptors leaves those who connect in the backlog for so long, and tries again.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);
/// Datagrams of one link before the others are looked at.
const DATAGRAMS: usize = 64;
/// Hand-shakes that may be under way, and how long one may take. All ranks of a large job may call on one at the same time,
/// and on few processors each answers late.
const MAX_MEETING: usize = 1024;
const MEETING_TIME: Duration = Duration::from_secs(10);
/// Connections that [`Device::reclaim_recent`] looks at.
const RECENT: usize = 4;

#[derive(Default)]
struct Links {
    /// Made by us, by the peer's address.
    made: HashMap<Vec<u8>, Arc<Link>>,
    /// All, with what runs on the reactor for them.
    all: Vec<(Arc<Link>, Vec<Token>)>,
    listening: Option<Token>,
}

impl ShmDevice {
    pub fn open(options: Options, reactor: Arc<Reactor>) -> Result<Arc<Self>> {
        let boot_id = boot_id().map_err(|e| Error::os("reading this kernel's boot id", e))?;
        let address = own_address()?;
        let listener = socket::listen_at(&address)
            .map_err(|e| Error::os("opening the socket where peers find this process", e))?;
        let mut attributes = NicAttributes::new("shm0");
        let levels = Caps::UNRELIABLE | Caps::RELIABLE_DELIVERY | Caps::RELIABLE_RECEPTION;
        let mut caps = Caps::RDMA_WRITE | Caps::RDMA_READ | Caps::HAND_OFF | levels;
        if !options.trusting {
            caps = caps.without(Caps::RDMA_WRITE | Caps::RDMA_READ | Caps::HAND_OFF);
        }
        attributes.address = address;
        attributes.caps = caps;
        attributes.host_only = true;
        attributes.max_discriminator = MAX_DISCRIMINATOR;
        attributes.max_private_data = MAX_PRIVATE;
        attributes.max_descriptors_per_queue = CELLS as usize;
        attributes.max_segments = MAX_SEGMENTS;
        attributes.max_transfer = options.arena_limit;
        attributes.max_inline = Inline::CAPACITY;
        attributes.max_head = MAX_HEAD;
        attributes.max_queues_per_cq = QUEUES as usize;
        attributes.max_cq = BELLS as usize;
        attributes.max_cq_entries = QUEUES as usize;
        attributes.max_windows = WINDOWS as usize;
        let board = Arc::new(Board::new()?);
        let arenas = match &options.arenas {
            Some(arenas) => arenas.clone(),
            None => Arenas::new(options.arena_limit)?,
        };
        let device = Arc::new_cyclic(|this| ShmDevice {
            attributes,
            options,
            boot_id,
            board,
            arenas,
            reactor,
            listeners: Mutex::default(),
            links: Mutex::default(),
            retired: Mutex::default(),
            fading: Fading::default(),
            recent: Mutex::default(),
            last_lender: AtomicPtr::default(),
            copied: AtomicU64::new(0),
            this: this.clone(),
        });
        device
            .serve(listener)
            .map_err(|e| Error::os("watching the socket where peers find this process", e))?;
        Ok(device)
    }

    /// Accepts links.
    fn serve(&self, listener: OwnedFd) -> io::Result<()> {
        let weak = self.this.clone();
        let watched = listener.as_fd().try_clone_to_owned()?;
        let mut told = false;
        let token = self.reactor.add(
            &listener,
            Box::new(move || {
                let Some(device) = weak.upgrade() else { return Interest::Done };
                match device.accept(watched.as_fd()) {
                    Ok(()) => Interest::Keep,
                    Err(error) => {
                        if !std::mem::replace(&mut told, true) {
                            tell_shortage(&error);
                        }
                        Interest::Rest(SHORTAGE_PAUSE)
                    }
                }
            }),
        )?;
        self.links.lock().listening = Some(token);
        Ok(())
    }

    /// Accepts links that wait.
    ///
    /// # Errors
    /// The process, or the system, is short of descriptors: those who wait go on waiting. So as not to hang up on one whom
    /// there is a socket for and nothing else, a link's descriptors are reserved first.
    fn accept(&self, listener: BorrowedFd<'_>) -> io::Result<()> {
        for _ in 0..ACCEPTS {
            let reserve = std::iter::repeat_with(|| listener.try_clone_to_owned()).take(LINK_DESCRIPTORS);
            let reserve: Vec<OwnedFd> = reserve.collect::<io::Result<_>>()?;
            let Some(socket) = socket::accept_from(listener)? else { break };
            drop(reserve);
            match self.admit(socket) {
                Err(error) if is_shortage(&error) => return Err(error),
                // A stranger's socket is simply closed.
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// A process connects to us.
    fn admit(&self, socket: OwnedFd) -> io::Result<()> {
        if !self.has_room_to_meet() {
            return Err(io::Error::other("too many processes are in the middle of a hand-shake"));
        }
        let (uid, pid) = socket::peer_identity(socket.as_fd())?;
        if uid != socket::own_uid() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let handshake = Handshake::accept(self.options.secret, self.boot_id, nonce()?);
        self.watch(Link::new(socket, pid, handshake))
    }

    /// Whether one more hand-shake may begin. Ends those that take too long: they keep descriptors for nothing.
    fn has_room_to_meet(&self) -> bool {
        let links: Vec<_> = self.links.lock().all.iter().map(|(link, _)| link.clone()).collect();
        self.forget_spent(&links);
        let mut meeting = 0;
        for link in links {
            match link.meeting_for() {
                Some(age) if age > MEETING_TIME => {
                    link.down("the hand-shake took too long", Loss::Stuck);
                    self.forget_link(&link);
                }
                Some(_) => meeting += 1,
                None => {}
            }
        }
        meeting < MAX_MEETING
    }

    /// The link that our requests to `address` take, made if need be.
    fn link_to(&self, address: &[u8], deadline: Deadline) -> Result<Arc<Link>> {
        if let Some(link) = self.made_to(address) {
            link.wait_up(deadline)?;
            return Ok(link);
        }
        // May wait: without the lock, which the reactor takes, and whoever takes a window back.
        let socket = connect_socket(address, deadline)?;
        let (uid, pid) =
            socket::peer_identity(socket.as_fd()).map_err(|e| Error::os("asking who the peer is", e))?;
        if uid != socket::own_uid() {
            return Err(Error::Rejected(format!("process {pid:?} there belongs to another user (id {uid})")));
        }
        let nonce = nonce().map_err(|e| Error::os("drawing a nonce", e))?;
        let (handshake, meet) = Handshake::connect(self.options.secret, self.boot_id, nonce);
        let mut links = self.links.lock();
        if let Some(others) = links.made.get(address).filter(|link| link.is_usable()).cloned() {
            drop(links);
            others.wait_up(deadline)?;
            return Ok(others);
        }
        let link = Link::new(socket, pid, handshake);
        links.made.insert(address.to_vec(), link.clone());
        drop(links);
        self.watch(link.clone()).map_err(|e| Error::os("watching a new link", e))?;
        link.send(&meet, &[]).map_err(Error::Lost)?;
        link.wait_up(deadline)?;
        Ok(link)
    }

    fn made_to(&self, address: &[u8]) -> Option<Arc<Link>> {
        self.links.lock().made.get(address).filter(|link| link.is_usable()).cloned()
    }

    /// Lets the reactor run a link: its datagrams, and the death of the process behind it.
    fn watch(&self, link: Arc<Link>) -> io::Result<()> {
        let mut tokens = Vec::new();
        if let Some(pid) = link.pid
            && let Ok(death) = socket::death_of(pid)
        {
            let link = link.clone();
            tokens.push(self.reactor.add(
                &death,
                Box::new(move || {
                    link.down(&format!("process {pid} died"), Loss::Dead);
                    Interest::Done
                }),
            )?);
        }
        let (weak, served) = (self.this.clone(), link.clone());
        tokens.push(self.reactor.add(
            link.socket(),
            Box::new(move || match weak.upgrade() {
                Some(device) => device.on_link(&served),
                None => Interest::Done,
            }),
        )?);
        self.links.lock().all.push((link, tokens));
        Ok(())
    }

    /// A link has something to read. One that went down while its process lives is watched for that process's end.
    fn on_link(&self, link: &Arc<Link>) -> Interest {
        let mut buffer = [0; MAX_DATAGRAM];
        for _ in 0..DATAGRAMS {
            let was_down = link.is_down();
            let (why, how) = match socket::receive(link.socket(), &mut buffer) {
                Ok(socket::Received::Nothing) => return Interest::Keep,
                Ok(socket::Received::Closed) => ("closed its link or died".to_owned(), Loss::Dead),
                // Nobody believes it any more.
                Ok(socket::Received::Datagram { .. }) if was_down => continue,
                Ok(socket::Received::Datagram { len, truncated: false, fds }) => {
                    match self.on_datagram(link, &buffer[..len], fds) {
                        Ok(()) => continue,
                        Err(why) => (why, Loss::Lied),
                    }
                }
                Ok(socket::Received::Datagram { .. }) => {
                    ("sent an oversized datagram".to_owned(), Loss::Lied)
                }
                // There is the watch for its death.
                Err(_) if was_down => return Interest::Done,
                Err(error) => (format!("its link cannot be read: {error}"), Loss::Stuck),
            };
            link.down(&format!("process {}: {why}", name(link.pid)), how);
            if how == Loss::Dead || link.connections().is_empty() {
                self.forget_link(link);
                self.fading.sweep(&self.board);
                return Interest::Done;
            }
        }
        Interest::Keep
    }

    /// Forgets links that are down and were kept for connections, which are gone now.
    fn forget_spent(&self, links: &[Arc<Link>]) {
        for link in links.iter().filter(|link| link.is_down() && link.connections().is_empty()) {
            self.forget_link(link);
        }
    }

    fn forget_link(&self, link: &Arc<Link>) {
        let mut links = self.links.lock();
        links.made.retain(|_, made| !Arc::ptr_eq(made, link));
        let at = links.all.iter().position(|(one, _)| Arc::ptr_eq(one, link));
        let tokens = at.map(|at| links.all.swap_remove(at).1);
        drop(links);
        tokens.into_iter().flatten().for_each(|token| self.reactor.remove(token));
    }

    fn on_datagram(
        &self,
        link: &Arc<Link>,
        bytes: &[u8],
        fds: Vec<OwnedFd>,
    ) -> std::result::Result<(), String> {
        let datagram = Datagram::decode(bytes).map_err(|malformed| malformed.to_string())?;
        let ours = [self.board.fd(), self.arenas.outbox.fd(), self.arenas.landing.fd()];
        match link.input(datagram, fds, ours)? {
            Event::Nothing => {}
            Event::Broken => link.connections().iter().for_each(|connection| connection.report_broken()),
            Event::Request { id, bells, hello, discriminator, control } => {
                let device = self.this.upgrade().ok_or("the NIC is closing")?;
                let request = IncomingRequest {
                    device,
                    link: link.clone(),
                    id,
                    bells,
                    hello,
                    control: Arc::new(control),
                    answered: false,
                };
                let listener = self.listeners.lock().get(&discriminator).cloned();
                match listener {
                    Some(listener) => (listener.lock())(Box::new(request)),
                    None => request.refuse(Why::NoMatch, ""),
                }
            }
        }
        Ok(())
    }

    pub fn max_transfer(&self) -> usize {
        self.attributes.max_transfer
    }

    pub fn is_trusting(&self) -> bool {
        self.options.trusting
    }

    pub fn count_copied(&self, bytes: usize) {
        self.copied.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The address of a piece of our outbox.
    pub fn outbox_at(&self, offset: u64, len: usize) -> Option<NonNull<u8>> {
        self.arenas.outbox.at(offset, len)
    }

    /// Something was lent over `connection`.
    #[inline]
    pub fn note_lender(&self, connection: &Arc<Connection>) {
        if !std::ptr::eq(self.last_lender.load(Ordering::Relaxed), Arc::as_ptr(connection)) {
            self.note_other_lender(connection);
        }
    }

    #[cold]
    fn note_other_lender(&self, connection: &Arc<Connection>) {
        let mut recent = self.recent.lock();
        recent.retain(|other| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(connection)));
        recent.truncate(RECENT - 1);
        recent.push_front(Arc::downgrade(connection));
        // Under the lock: it names the first entry, whose `Weak` keeps its address from being another's.
        self.last_lender.store(Arc::as_ptr(connection).cast_mut(), Ordering::Relaxed);
    }

    /// A port is gone, and has closed its connection. Keeps that while the peer reads something of ours, or is inside
    /// one of our windows: who takes the window back has to see it there.
    pub fn retire(&self, connection: &Arc<Connection>) {
        let mut retired = self.retired.lock();
        retired.retain(|connection| is_in_use(connection));
        if is_in_use(connection) {
            retired.push(connection.clone());
        }
    }

    /// Takes a window off the board. Who may be inside: as it was when that was first done.
    fn withdraw(&self, handle: MemHandle) -> Vec<Visitor> {
        self.fading.resume(handle).unwrap_or_else(|| {
            self.board.withdraw(handle);
            Visitor::all_of(self.all_connections())
        })
    }

    fn all_connections(&self) -> Vec<Arc<Connection>> {
        let links: Vec<_> = self.links.lock().all.iter().map(|(link, _)| link.clone()).collect();
        links.iter().flat_map(|link| link.connections()).collect()
    }
}

/// Whether the peer still uses something of ours over a connection that we have closed.
fn is_in_use(connection: &Connection) -> bool {
    !connection.is_gone() && (connection.reclaim() || connection.has_visitor())
}

/// A control segment, and the places of its two queues on our bells.
fn attach(board: &Arc<Board>, queues: Queues<'_>) -> Result<(Attached, Attached, Bells)> {
    let reserve = |notifier: &Arc<dyn Notifier>| {
        let shm = notifier.clone().into_any().downcast::<ShmNotifier>();
        match shm {
            Ok(shm) if shm.is_on(board) => shm.reserve(),
            _ => Err(Error::InvalidParameter("the completion queue belongs to another NIC".into())),
        }
    };
    let (send, receive) = (reserve(queues.send)?, reserve(queues.receive)?);
    let bells = Bells { send: send.bell_bit(), receive: receive.bell_bit() };
    Ok((send, receive, bells))
}

/// The parts of a connection come together.
fn establish(
    device: &Arc<ShmDevice>,
    connection: &Arc<Connection>,
    (send, receive): (Attached, Attached),
    context: u64,
    reliability: Reliability,
) -> Box<dyn Port> {
    send.occupy(Ready { context, queue: Queue::Send }, connection.clone());
    receive.occupy(Ready { context, queue: Queue::Receive }, connection.clone());
    connection.attach(send, receive);
    connection.link.carry(connection);
    Box::new(ShmPort::new(connection.clone(), device.clone(), reliability))
}

// SAFETY: the arenas are fixed when it opens; peers map the outbox for reading only, and enter the landing arena by a
// window that `board` still lists; a window is quiet once no connection has a visitor in it. `open` gives out the NIC only.
unsafe impl Device for ShmDevice {
    fn attributes(&self) -> &NicAttributes {
        &self.attributes
    }

    fn outbox(&self) -> &Arc<Arena> {
        &self.arenas.outbox.arena
    }

    fn landing(&self) -> &Arc<Arena> {
        &self.arenas.landing.arena
    }

    fn expose(&self, offset: u64, len: usize, ptag: Ptag) -> Result<MemHandle> {
        self.expose_for(offset, len, ptag, Rights::WRITE)
    }

    fn expose_for(&self, offset: u64, len: usize, ptag: Ptag, rights: Rights) -> Result<MemHandle> {
        self.fading.sweep(&self.board);
        self.board.expose(offset, len, ptag, rights)
    }

    fn share(&self, offset: u64, len: usize, ptag: Ptag) -> Result<MemHandle> {
        self.fading.sweep(&self.board);
        self.board.share(offset, len, ptag)
    }

    fn conceal(&self, handle: MemHandle, deadline: Deadline) -> Result {
        let start = Instant::now();
        let mut visitors = self.withdraw(handle);
        while let Some(visitor) = visitors.last() {
            if !visitor.is_inside() {
                visitors.pop();
                continue;
            }
            if deadline.passed() {
                let pid = name(visitor.connection.link.pid);
                let what = format!("process {pid} to finish an RDMA write or read");
                self.fading.interrupt(handle, visitors);
                return Err(Error::Timeout { what, waited: start.elapsed() });
            }
            std::thread::yield_now();
        }
        self.board.forget_window(handle);
        Ok(())
    }

    fn conceal_later(&self, handle: MemHandle, memory: Owner) {
        let visitors = self.withdraw(handle);
        self.fading.keep(handle, visitors, memory);
        self.fading.sweep(&self.board);
    }

    fn waiter(&self) -> Result<Box<dyn Waiter>> {
        Ok(Box::new(ShmWaiter::new(&self.board)?))
    }

    fn listen(&self, discriminator: &[u8], on_request: OnRequest) -> Result {
        if discriminator.len() > MAX_DISCRIMINATOR {
            let what =
                format!("a discriminator of {} bytes, at most {MAX_DISCRIMINATOR}", discriminator.len());
            return Err(Error::InvalidParameter(what));
        }
        let mut listeners = self.listeners.lock();
        if listeners.contains_key(discriminator) {
            let name = String::from_utf8_lossy(discriminator);
            return Err(Error::InvalidParameter(format!(
                "somebody listens at discriminator {name:?} already"
            )));
        }
        listeners.insert(discriminator.to_vec(), Arc::new(Mutex::new(on_request)));
        Ok(())
    }

    fn unlisten(&self, discriminator: &[u8]) {
        let listener = self.listeners.lock().remove(discriminator);
        drop(listener); // may drop what the program put into it: outside the lock
    }

    fn connect(
        &self,
        to: &NetAddress,
        hello: &Hello,
        queues: Queues<'_>,
        deadline: Deadline,
    ) -> Result<Connected> {
        let device = self.this.upgrade().expect("called on a live device");
        let link = self.link_to(&to.host, deadline)?;
        let (fd, control) = segment::create("udeck-control", CONTROL_BYTES, PeerAccess::Write)
            .and_then(|(fd, control)| {
                control.commit(fd.as_fd(), 0, CONTROL_BYTES).map(|()| (fd, Arc::new(control)))
            })
            .map_err(|e| Error::os("creating a connection's control segment", e))?;
        let (send, receive, bells) = attach(&self.board, queues)?;
        // The peer may be inside our windows before we have its answer, and still when we no longer wait for it. Who
        // takes a window back sees it by this, which nothing else is done with.
        let asked = Connection::new(control.clone(), 0, link.clone(), bells, hello, queues.reporter);
        link.carry(&asked);
        match link.request(bells, hello.clone(), &to.discriminator, fd.as_fd(), deadline) {
            Ok(Answer::Accepted { bells, hello }) => {
                let connection = Connection::new(control, 0, link, bells, &hello, queues.reporter);
                let port =
                    establish(&device, &connection, (send, receive), queues.context, hello.reliability);
                Ok((port, hello))
            }
            Ok(Answer::Refused { why: Why::NoMatch, .. }) => {
                Err(Error::NoMatch(String::from_utf8_lossy(&to.discriminator).into_owned()))
            }
            Ok(Answer::Refused { why: Why::Rejected, text }) => Err(Error::Rejected(text)),
            Ok(Answer::Refused { why: Why::Reliability, .. }) => Err(Error::InvalidReliability),
            Err(error) => {
                // An answer that comes too late finds the connection closed.
                mark_closed(&control);
                self.retire(&asked);
                Err(error)
            }
        }
    }

    fn reclaim(&self) {
        self.fading.sweep(&self.board);
        for connection in self.all_connections() {
            connection.reclaim();
        }
        self.retired.lock().retain(|connection| is_in_use(connection));
    }

    fn reclaim_recent(&self) {
        for connection in self.recent.lock().iter().filter_map(Weak::upgrade) {
            connection.reclaim();
        }
    }

    fn bytes_copied(&self) -> u64 {
        self.copied.load(Ordering::Relaxed)
    }

    fn count_copied(&self, bytes: usize) {
        ShmDevice::count_copied(self, bytes);
    }
}

/// No call of the program is there to return it: those who connect wait, and only they would say so.
#[cold]
fn tell_shortage(error: &io::Error) {
    let (pid, advice) = (std::process::id(), descriptor_advice());
    eprintln!("udeck: process {pid} cannot accept connections and keeps trying: {error} ({advice})");
}

fn mark_closed(control: &Arc<Mapping>) {
    crate::layout::Direction::new(control, 0).sender().state.store(CLOSED, Ordering::Release);
}

/// A request that waits for its answer.
struct IncomingRequest {
    device: Arc<ShmDevice>,
    link: Arc<Link>,
    id: u32,
    bells: Bells,
    hello: Hello,
    control: Arc<Mapping>,
    answered: bool,
}

impl IncomingRequest {
    fn refuse(mut self, why: Why, text: &str) {
        self.answer_refusal(why, text);
    }

    fn answer_refusal(&mut self, why: Why, text: &str) {
        self.answered = true;
        let refusal = Datagram::Refuse { id: self.id, why, text: text.to_owned() };
        if let Err(why) = self.link.send(&refusal, &[]) {
            self.link.down(&why, Loss::Stuck);
        }
    }
}

impl Incoming for IncomingRequest {
    fn hello(&self) -> &Hello {
        &self.hello
    }

    fn accept(mut self: Box<Self>, hello: &Hello, queues: Queues<'_>) -> Result<Box<dyn Port>> {
        let (send, receive, bells) = attach(&self.device.board, queues)?;
        let (control, link) = (self.control.clone(), self.link.clone());
        let connection = Connection::new(control, 1, link, self.bells, &self.hello, queues.reporter);
        let port = establish(&self.device, &connection, (send, receive), queues.context, hello.reliability);
        self.answered = true;
        let accept = Datagram::Accept { id: self.id, bells, hello: hello.clone() };
        self.link.send(&accept, &[]).map_err(|why| {
            self.link.down(&why, Loss::Stuck);
            Error::Lost(why)
        })?;
        Ok(port)
    }

    fn reject(mut self: Box<Self>, reason: &str) {
        self.answer_refusal(Why::Rejected, reason);
    }

    fn reject_reliability(self: Box<Self>) {
        self.refuse(Why::Reliability, "");
    }
}

impl Drop for IncomingRequest {
    fn drop(&mut self) {
        if !self.answered {
            self.answer_refusal(Why::Rejected, "the request was dropped unanswered");
        }
    }
}

impl Drop for ShmDevice {
    fn drop(&mut self) {
        let links = std::mem::take(&mut *self.links.lock());
        links.listening.into_iter().for_each(|token| self.reactor.remove(token));
        for (link, tokens) in links.all {
            let _ = link.send(&Datagram::Goodbye, &[]);
            tokens.into_iter().for_each(|token| self.reactor.remove(token));
        }
    }
}

impl std::fmt::Debug for ShmDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ShmDevice({})", String::from_utf8_lossy(&self.attributes.address))
    }
}

/// A name that nobody else has: random, so that it cannot be squatted.
fn own_address() -> Result<Vec<u8>> {
    let mut random = [0u8; 16];
    getrandom::fill(&mut random).map_err(|e| Error::os("drawing a random address", io::Error::other(e)))?;
    let hex: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("udeck-{hex}").into_bytes())
}

fn nonce() -> io::Result<[u8; 32]> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(io::Error::other)?;
    Ok(nonce)
}

/// Connects, waiting while the peer's backlog is full.
fn connect_socket(address: &[u8], deadline: Deadline) -> Result<OwnedFd> {
    loop {
        match socket::connect_to(address) {
            Ok(socket) => return Ok(socket),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !deadline.passed() => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => {
                let what = format!("connecting to the process at {:?}", String::from_utf8_lossy(address));
                return Err(Error::os(what, error));
            }
        }
    }
}

fn name(pid: Option<i32>) -> String {
    pid.map_or("(in another pid namespace)".into(), |pid| pid.to_string())
}
