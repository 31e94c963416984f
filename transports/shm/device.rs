//! The shared-memory NIC: windows, listeners and connections of this process.
//!
//! | file | what it is |
//! |---|---|
//! | here | windows, listeners, connecting, returned buffers |
//! | `accept` | the listening socket: processes that connect to this one |
//! | `peer_sockets` | the sockets to other processes, and the datagrams on them |
//! | `request` | an incoming connection request |

mod accept;
mod peer_sockets;
mod request;

use std::collections::{HashMap, VecDeque};
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use udeck_sys::reactor::Reactor;
use udeck_sys::segment::{self, Mapping, PeerAccess};
use udeck_sys::{Deadline, boot_id, socket, thread};
use udeck_via::transport::{
    Connected, Device, Hello, Inline, Notifier, OnRequest, Owner, Queue, Queues, Ready, ViEndpoint, Waiter,
};
use udeck_via::{
    Arena, Caps, Error, MemHandle, NetAddress, NicAttributes, Pause, Ptag, Reliability, Result, Rights,
    Spinner,
};

#[cfg(test)]
pub(crate) use self::accept::MAX_PEER_SOCKETS;
use self::accept::own_address;
use self::peer_sockets::PeerSockets;
use crate::Options;
use crate::arenas::Arenas;
use crate::board::{Board, DOORBELLS, WINDOWS};
use crate::cell::{MAX_HEAD, MAX_SEGMENTS};
use crate::connection::{Connection, Loss};
use crate::endpoint::ShmEndpoint;
use crate::layout::{CELLS, CLOSED, CONTROL_BYTES};
use crate::peer_socket::{Answer, PeerSocket, process};
use crate::peer_socket_wire::{Doorbells, MAX_DISCRIMINATOR, MAX_PRIVATE};
use crate::revoking::{Revoking, Visitor};
use crate::space::Space;
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
    peer_sockets: Mutex<PeerSockets>,
    /// Address space that the arenas of peers take.
    space: Arc<Space>,
    /// Connections whose endpoint is gone while the peer still reads a buffer of ours, or is inside one of our windows.
    retired: Mutex<Vec<Arc<Connection>>>,
    /// Windows that are revoked while a peer is inside.
    revoking: Revoking,
    /// The last few connections over which a buffer was lent, most recent first.
    recent: Mutex<VecDeque<Weak<Connection>>>,
    /// The first entry of `recent`. Its `Weak` keeps the address unique, so the usual lender is recognised without a
    /// lock.
    last_lender: AtomicPtr<Connection>,
    copied: AtomicU64,
    this: Weak<ShmDevice>,
}

/// Number of connections that [`Device::reclaim_recent`] examines.
const RECENT: usize = 4;
/// Upper bound of the connections with one peer that we have closed and over which it still uses our memory. At the
/// bound, no connection to this peer is made until it has let go of one.
pub(crate) const MAX_RETIRED: usize = 1024;
/// Longest time in which a NIC that closes waits for room in the sockets of its peers, together.
const GOODBYE_TIME: Duration = Duration::from_secs(1);
/// Poll interval while a writer is still inside a window that is being revoked.
const VISIT_PAUSE: Duration = Duration::from_micros(100);

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
        attributes.identity = options.keys.rank();
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
        attributes.max_cq = DOORBELLS as usize;
        attributes.max_cq_entries = QUEUES as usize;
        attributes.max_windows = WINDOWS as usize;
        attributes.max_connections = attributes.max_connections.min(mappings() / 2);
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
            peer_sockets: Mutex::default(),
            space: Arc::default(),
            retired: Mutex::default(),
            revoking: Revoking::default(),
            recent: Mutex::default(),
            last_lender: AtomicPtr::default(),
            copied: AtomicU64::new(0),
            this: this.clone(),
        });
        let failing = Arc::downgrade(&device);
        device.reactor.on_failure(Box::new(move |why| {
            failing.upgrade().into_iter().for_each(|device| device.fail(why));
        }));
        device
            .serve(listener)
            .map_err(|e| Error::os("watching the socket where peers find this process", e))?;
        Ok(device)
    }

    /// Ends all peer sockets and listeners: the reactor has failed.
    fn fail(&self, why: &str) {
        let listeners = std::mem::take(&mut *self.listeners.lock());
        let peer_sockets: Vec<_> =
            self.peer_sockets.lock().all.iter().map(|(peer_socket, _)| peer_socket.clone()).collect();
        for peer_socket in peer_sockets {
            thread::attempt(|| peer_socket.down(why, Loss::Unresponsive));
        }
        drop(listeners);
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

    /// Returns the address of a piece of our outbox.
    pub fn outbox_at(&self, offset: u64, len: usize) -> Option<NonNull<u8>> {
        self.arenas.outbox.at(offset, len)
    }

    /// Notes that a buffer was lent over `connection`.
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
        // The store happens under the lock: the pointer names the first entry, whose `Weak` keeps its address from
        // being reused.
        self.last_lender.store(Arc::as_ptr(connection).cast_mut(), Ordering::Relaxed);
    }

    /// Keeps the connection of a dropped endpoint while the peer reads a buffer of ours or is inside one of our
    /// windows: whoever revokes the window has to see the peer there. The endpoint has closed the connection.
    pub fn retire(&self, connection: &Arc<Connection>) {
        let mut retired = self.retired.lock();
        retired.retain(|connection| is_in_use(connection));
        if is_in_use(connection) {
            retired.push(connection.clone());
        }
    }

    /// Fails if a process that we connect to still uses the memory of too many connections that we have closed.
    /// Connections that the process itself made count as its own in the VI layer.
    fn check_retired(&self, peer_socket: &PeerSocket) -> Result {
        let mut retired = self.retired.lock();
        retired.retain(|connection| is_in_use(connection));
        let of_it = retired.iter().filter(|other| {
            other.peer_socket.pid == peer_socket.pid && other.peer_socket.peer() == peer_socket.peer()
        });
        if of_it.count() < MAX_RETIRED {
            return Ok(());
        }
        let bound = format!(
            "process {} has messages over {MAX_RETIRED} of them, and has to drop some first",
            process(peer_socket.pid)
        );
        let what = "the list of connections that are closed here and that the peer still uses";
        Err(Error::Full { what, bound: bound.into() })
    }

    /// Takes a window off the board. Returns the peers that were inside when it was first withdrawn.
    fn withdraw(&self, handle: MemHandle) -> Vec<Visitor> {
        self.revoking.resume(handle).unwrap_or_else(|| {
            self.board.withdraw(handle);
            Visitor::all_of(handle, self.all_connections())
        })
    }

    fn all_connections(&self) -> Vec<Arc<Connection>> {
        let peer_sockets: Vec<_> =
            self.peer_sockets.lock().all.iter().map(|(peer_socket, _)| peer_socket.clone()).collect();
        peer_sockets.iter().flat_map(|peer_socket| peer_socket.connections()).collect()
    }
}

/// Upper bound of this process's memory mappings. Each connection is one.
fn mappings() -> usize {
    const USUAL: usize = 65_530;
    let told = std::fs::read_to_string("/proc/sys/vm/max_map_count");
    told.ok().and_then(|told| told.trim().parse().ok()).unwrap_or(USUAL)
}

/// Whether the peer still uses our memory over a connection that we have closed.
fn is_in_use(connection: &Connection) -> bool {
    !connection.has_left() && (connection.reclaim() || connection.has_visitor())
}

/// Reserves places for a connection's two queues on our doorbells.
fn attach(board: &Arc<Board>, queues: Queues<'_>) -> Result<(Attached, Attached, Doorbells)> {
    let reserve = |notifier: &Arc<dyn Notifier>| {
        let shm = notifier.clone().into_any().downcast::<ShmNotifier>();
        match shm {
            Ok(shm) if shm.is_on(board) => shm.reserve(),
            _ => Err(Error::InvalidParameter("the completion queue belongs to another NIC".into())),
        }
    };
    let (send, receive) = (reserve(queues.send)?, reserve(queues.receive)?);
    let doorbells = Doorbells { send: send.doorbell_bit(), receive: receive.doorbell_bit() };
    Ok((send, receive, doorbells))
}

/// Makes the endpoint of a connection from its parts.
fn establish(
    device: &Arc<ShmDevice>,
    connection: &Arc<Connection>,
    (send, receive): (Attached, Attached),
    context: u64,
    reliability: Reliability,
) -> Box<dyn ViEndpoint> {
    send.occupy(Ready { context, queue: Queue::Send }, connection.clone());
    receive.occupy(Ready { context, queue: Queue::Receive }, connection.clone());
    connection.attach(send, receive);
    connection.peer_socket.carry(connection);
    Box::new(ShmEndpoint::new(connection.clone(), device.clone(), reliability))
}

// SAFETY: the arenas are fixed when the NIC opens; peers map the outbox for reading only, and enter the landing arena by a
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
        self.revoking.sweep(&self.board);
        self.board.expose(offset, len, ptag, rights)
    }

    fn expose_outbox(&self, offset: u64, len: usize, ptag: Ptag) -> Result<MemHandle> {
        self.revoking.sweep(&self.board);
        self.board.expose_outbox(offset, len, ptag)
    }

    fn revoke(&self, handle: MemHandle, deadline: Deadline) -> Result {
        let start = Instant::now();
        let mut visitors = self.withdraw(handle);
        // A writer is inside for as long as its copy takes. A writer that is stopped there is waited for until the
        // deadline.
        let mut spinner = Spinner::new(false);
        while let Some(visitor) = visitors.last() {
            if !visitor.is_inside() {
                visitors.pop();
                continue;
            }
            if deadline.passed() {
                let pid = process(visitor.connection.peer_socket.pid);
                let what = format!("process {pid} to finish an RDMA write or read");
                self.revoking.interrupt(handle, visitors);
                return Err(Error::Timeout { what, waited: start.elapsed() });
            }
            if spinner.pause() == Pause::Sleep {
                std::thread::sleep(VISIT_PAUSE.min(deadline.remaining()));
            }
        }
        self.board.forget_window(handle);
        Ok(())
    }

    fn revoke_later(&self, handle: MemHandle, memory: Owner) {
        let visitors = self.withdraw(handle);
        self.revoking.keep(handle, visitors, memory);
        self.revoking.sweep(&self.board);
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
            return Err(Error::InvalidParameter(format!("discriminator {name:?} has a listener already")));
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
        peer: Option<u32>,
        hello: &Hello,
        queues: Queues<'_>,
        deadline: Deadline,
    ) -> Result<Connected> {
        let device = self.this.upgrade().expect("called on a live device");
        let until = queues.until(deadline);
        let peer_socket = self.peer_socket_to(&to.host, peer, &until)?;
        self.check_retired(&peer_socket)?;
        let (fd, control) = segment::create("udeck-control", CONTROL_BYTES, PeerAccess::Write)
            .and_then(|(fd, control)| {
                control.commit(fd.as_fd(), 0, CONTROL_BYTES).map(|()| (fd, Arc::new(control)))
            })
            .map_err(|e| Error::os("creating a connection's control segment", e))?;
        let (send, receive, doorbells) = attach(&self.board, queues)?;
        // The peer may be inside our windows before we have its answer, and still when we no longer wait for it.
        // This object serves only to show the peer to whoever revokes a window.
        let asked =
            Connection::new(control.clone(), 0, peer_socket.clone(), doorbells, hello, queues.reporter);
        peer_socket.carry(&asked);
        match peer_socket.request(doorbells, hello.clone(), &to.discriminator, fd.as_fd(), &until) {
            Ok(Answer::Accepted { doorbells, hello }) => {
                let connection = Connection::new(control, 0, peer_socket, doorbells, &hello, queues.reporter);
                let endpoint =
                    establish(&device, &connection, (send, receive), queues.context, hello.reliability);
                Ok((endpoint, hello))
            }
            Ok(Answer::Refused(rejection)) => Err(Error::of_rejection(rejection, &to.discriminator)),
            Err(error) => {
                // An answer that comes too late finds the connection closed.
                mark_closed(&control);
                self.retire(&asked);
                Err(error)
            }
        }
    }

    fn reclaim(&self) {
        self.revoking.sweep(&self.board);
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

    fn failure(&self) -> Option<String> {
        self.reactor.check().err().map(|why| why.to_string())
    }

    fn bytes_copied(&self) -> u64 {
        self.copied.load(Ordering::Relaxed)
    }

    fn count_copied(&self, bytes: usize) {
        ShmDevice::count_copied(self, bytes);
    }
}

fn mark_closed(control: &Arc<Mapping>) {
    crate::layout::Direction::new(control, 0).sender().state.store(CLOSED, Ordering::Release);
}

impl Drop for ShmDevice {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        let peer_sockets = std::mem::take(&mut *self.peer_sockets.lock());
        peer_sockets.listening.into_iter().for_each(|token| self.reactor.remove(token));
        let deadline = Deadline::after(GOODBYE_TIME);
        for (peer_socket, tokens) in peer_sockets.all {
            peer_socket.say_goodbye(deadline);
            tokens.into_iter().for_each(|token| self.reactor.remove(token));
        }
    }
}

impl std::fmt::Debug for ShmDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ShmDevice({})", String::from_utf8_lossy(&self.attributes.address))
    }
}
