//! Objects of `librdmacm`: an event channel, and identifiers on it, each destroyed when its last user is gone. An
//! identifier keeps its channel. The library makes no queue pairs: ours belong to our own opening of the device, and
//! the library learns only their numbers.

use std::ffi::{CStr, c_void};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use udeck_sys::open_above_stdio;

use crate::ffi::cm::{CmEvent, CmId, ConnParam, EventChannel, cm_event, port_space};
use crate::ffi::{CmLibrary, QpAttr};

/// Bytes of private data in a request. Every network carries so many (InfiniBand 56).
pub const PRIVATE: usize = 20;

/// An event channel. Its descriptor is readable when [`CmChannel::next`] has an event; no call waits.
#[derive(Debug)]
pub struct CmChannel {
    pub library: Arc<CmLibrary>,
    at: NonNull<EventChannel>,
}

// SAFETY: the library's calls are safe from any thread (rdma_cm(7)); the structure does not change.
unsafe impl Send for CmChannel {}
// SAFETY: as above.
unsafe impl Sync for CmChannel {}

/// An event. It has been acknowledged already, so that the destruction of an object does not wait for that.
#[derive(Debug)]
pub struct EventNotice {
    /// Name that the identifier was given when it was made.
    pub name: u32,
    /// One of [`cm_event`].
    pub kind: u32,
    /// 0, a negative error number, or the reason of a rejection.
    pub status: i32,
    /// Connection request of a peer, with an identifier that is ours.
    pub request: Option<Request>,
}

/// A connection request. Dropping it rejects it.
#[derive(Debug)]
pub struct Request {
    pub id: Id,
    /// Private data of the request; `None` if there are fewer bytes.
    pub private: Option<[u8; PRIVATE]>,
    pub depths: Depths,
}

/// Numbers of RDMA reads: of the peer's that are served at a time, and of ours that may be in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depths {
    pub served: u8,
    pub asked: u8,
}

/// Properties of a queue pair that rdma_cm is told.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    pub qp_num: u32,
    pub depths: Depths,
    pub retry: u8,
    pub rnr_retry: u8,
    /// The queue pair receives out of a shared queue.
    pub shares: bool,
}

impl CmChannel {
    /// # Errors
    /// The kernel's error: no `/dev/infiniband/rdma_cm` (its module, `rdma_ucm`, is not loaded), or no right to it.
    pub fn open(library: Arc<CmLibrary>) -> io::Result<Arc<Self>> {
        // SAFETY: a call without arguments.
        let at = found(open_above_stdio(|| unsafe { (library.rdma_create_event_channel)() }))?;
        let channel = CmChannel { library, at };
        let fd = channel.as_fd();
        fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?;
        Ok(Arc::new(channel))
    }

    /// Takes the next event, if there is one.
    pub fn next(self: &Arc<Self>) -> Option<EventNotice> {
        let mut event = null_mut();
        // SAFETY: an open channel that does not wait, and our pointer.
        if unsafe { (self.library.rdma_get_cm_event)(self.at.as_ptr(), &mut event) } != 0 {
            return None;
        }
        let event = NonNull::new(event)?;
        // SAFETY: an event that was taken and not acknowledged yet.
        let told = unsafe { self.read(event) };
        // SAFETY: as above, once.
        unsafe { (self.library.rdma_ack_cm_event)(event.as_ptr()) };
        Some(told)
    }

    /// # Safety
    /// The event was taken, and is not acknowledged.
    unsafe fn read(self: &Arc<Self>, event: NonNull<CmEvent>) -> EventNotice {
        // SAFETY: the caller's contract; the event's identifier lives until the event is acknowledged.
        let (event, name) = unsafe {
            let event = event.as_ref();
            (event, event.id.as_ref().map_or(0, |id| id.context.addr() as u32))
        };
        let id = NonNull::new(event.id).filter(|_| event.event == cm_event::CONNECT_REQUEST);
        let request = id.map(|at| {
            // SAFETY: a connection request has these parameters; their bytes exist until it is acknowledged.
            let (param, private) = unsafe {
                let param = event.param.conn;
                let long = !param.private_data.is_null() && usize::from(param.private_data_len) >= PRIVATE;
                (param, long.then(|| param.private_data.cast::<[u8; PRIVATE]>().read_unaligned()))
            };
            let depths = Depths { served: param.responder_resources, asked: param.initiator_depth };
            Request { id: Id { channel: self.clone(), at }, private, depths }
        });
        EventNotice { name, kind: event.event, status: event.status, request }
    }
}

impl AsFd for CmChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(self.at.as_ref().fd) }
    }
}

impl Drop for CmChannel {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        // SAFETY: the channel's identifiers are gone, because each keeps it; every event was acknowledged.
        unsafe { (self.library.rdma_destroy_event_channel)(self.at.as_ptr()) };
    }
}

/// An identifier: the end of a connection, or a listener. Dropping it ends the connection, and the network tells the
/// peer.
#[derive(Debug)]
pub struct Id {
    channel: Arc<CmChannel>,
    at: NonNull<CmId>,
}

// SAFETY: as for the channel. The library writes into it only before the event that reports the change.
unsafe impl Send for Id {}
// SAFETY: as above.
unsafe impl Sync for Id {}

impl Id {
    /// Makes an identifier. Its events carry `name`.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn new(channel: &Arc<CmChannel>, name: u32) -> io::Result<Self> {
        let mut at = null_mut();
        let context = std::ptr::without_provenance_mut::<c_void>(name as usize);
        // SAFETY: an open channel, and our pointer. The context is a number, and nobody dereferences it.
        let made = unsafe {
            (channel.library.rdma_create_id)(channel.at.as_ptr(), &mut at, context, port_space::TCP)
        };
        check(made)?;
        Ok(Id { channel: channel.clone(), at: found(at)? })
    }

    /// Binds the identifier to an address.
    ///
    /// # Errors
    /// The kernel's error: no device has this address; the port is taken.
    pub fn bind(&self, to: SocketAddr) -> io::Result<()> {
        let mut storage = storage(to);
        // The call opens the device, and keeps it open.
        check(open_above_stdio(|| {
            // SAFETY: a living identifier, and our structure.
            unsafe { (self.library().rdma_bind_addr)(self.at.as_ptr(), (&raw mut storage).cast()) }
        }))
    }

    /// # Errors
    /// The kernel's error.
    pub fn listen(&self, backlog: i32) -> io::Result<()> {
        // SAFETY: a living identifier.
        check(unsafe { (self.library().rdma_listen)(self.at.as_ptr(), backlog) })
    }

    /// Port to which the identifier is bound.
    pub fn port(&self) -> u16 {
        // SAFETY: a living identifier.
        u16::from_be(unsafe { (self.library().rdma_get_src_port)(self.at.as_ptr()) })
    }

    /// Name and port of the device to which the identifier is bound.
    pub fn device(&self) -> Option<(String, u8)> {
        // SAFETY: living structures of the libraries; the device's name is a terminated string in its structure, and
        // is constant.
        unsafe {
            let id = self.at.as_ref();
            let device = id.verbs.as_ref()?.device.as_ref()?;
            let name = CStr::from_ptr((&raw const device.name).cast());
            Some((name.to_string_lossy().into_owned(), id.port_num))
        }
    }

    /// # Errors
    /// The kernel's error.
    pub fn resolve_address(&self, from: SocketAddr, to: SocketAddr, millis: i32) -> io::Result<()> {
        let (mut from, mut to) = (storage(from), storage(to));
        // SAFETY: a living identifier, and our structures.
        check(unsafe {
            (self.library().rdma_resolve_addr)(
                self.at.as_ptr(),
                (&raw mut from).cast(),
                (&raw mut to).cast(),
                millis,
            )
        })
    }

    /// # Errors
    /// The kernel's error.
    pub fn resolve_route(&self, millis: i32) -> io::Result<()> {
        // SAFETY: a living identifier whose address was found.
        check(unsafe { (self.library().rdma_resolve_route)(self.at.as_ptr(), millis) })
    }

    /// Returns the attributes that the queue pair needs for this state, and their mask.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn attributes(&self, state: u32) -> io::Result<(QpAttr, i32)> {
        let (mut attr, mut mask) = (QpAttr { qp_state: state, ..QpAttr::default() }, 0);
        // SAFETY: a living identifier, and our structures.
        check(unsafe { (self.library().rdma_init_qp_attr)(self.at.as_ptr(), &mut attr, &mut mask) })?;
        Ok((attr, mask))
    }

    /// Sends a request to the listener at the resolved address.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn connect(&self, terms: Terms, private: &[u8; PRIVATE]) -> io::Result<()> {
        let mut param = param(terms, private);
        // SAFETY: a living identifier whose route was found; our structure, which is copied.
        check(unsafe { (self.library().rdma_connect)(self.at.as_ptr(), &mut param) })
    }

    /// Accepts a request.
    ///
    /// # Errors
    /// The kernel's error: the requester is gone.
    pub fn accept(&self, terms: Terms) -> io::Result<()> {
        let mut param = param(terms, &[]);
        // SAFETY: the identifier of a request; our structure, which is copied.
        check(unsafe { (self.library().rdma_accept)(self.at.as_ptr(), &mut param) })
    }

    /// Rejects a request.
    pub fn reject(&self) {
        // SAFETY: the identifier of a request. A requester that is gone needs no answer.
        let _ = unsafe { (self.library().rdma_reject)(self.at.as_ptr(), null_mut(), 0) };
    }

    /// Takes the requester's last step, after the request was accepted and the queue pair can receive.
    ///
    /// # Errors
    /// The kernel's error: the peer is gone.
    pub fn establish(&self) -> io::Result<()> {
        // SAFETY: a living identifier without a queue pair of its own.
        check(unsafe { (self.library().rdma_establish)(self.at.as_ptr()) })
    }

    fn library(&self) -> &CmLibrary {
        &self.channel.library
    }
}

impl Drop for Id {
    /// Waits at most until the thread that takes events has acknowledged the one that it holds, which it does at once.
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        // SAFETY: made once, and destroyed here only. The call fails only if the kernel does not know the identifier
        // (any more).
        let _ = unsafe { (self.library().rdma_destroy_id)(self.at.as_ptr()) };
    }
}

fn param(terms: Terms, private: &[u8]) -> ConnParam {
    let Terms { qp_num, depths, retry, rnr_retry, shares } = terms;
    ConnParam {
        private_data: private.as_ptr().cast(),
        private_data_len: private.len() as u8,
        responder_resources: depths.served,
        initiator_depth: depths.asked,
        flow_control: 1,
        retry_count: retry,
        rnr_retry_count: rnr_retry,
        srq: shares.into(),
        qp_num,
    }
}

/// Converts an address to C's structure.
fn storage(address: SocketAddr) -> libc::sockaddr_storage {
    // SAFETY: a structure of numbers, for which zeros are valid.
    let mut storage = unsafe { std::mem::zeroed::<libc::sockaddr_storage>() };
    let to = &raw mut storage;
    // SAFETY: our structure, large and aligned enough for every family.
    unsafe {
        match address {
            SocketAddr::V4(v4) => {
                let to = &mut *to.cast::<libc::sockaddr_in>();
                to.sin_family = libc::AF_INET as _;
                to.sin_port = v4.port().to_be();
                to.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
            }
            SocketAddr::V6(v6) => {
                let to = &mut *to.cast::<libc::sockaddr_in6>();
                to.sin6_family = libc::AF_INET6 as _;
                to.sin6_port = v6.port().to_be();
                to.sin6_addr.s6_addr = v6.ip().octets();
                to.sin6_scope_id = v6.scope_id();
            }
        }
    }
    storage
}

/// Checks a pointer that the library returned. A null pointer becomes the error in `errno`.
fn found<T>(at: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(at).ok_or_else(io::Error::last_os_error)
}

/// Checks a returned number: 0, or -1 with `errno`.
fn check(returned: i32) -> io::Result<()> {
    if returned == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
