//! Objects of the library, each destroyed when its last user is gone. A queue pair keeps its domain and its
//! completion queues, these keep the device. So teardown has only one order, whichever object is dropped first.
//!
//! The poster of a work request is responsible for the memory that it names, until the request is complete or the
//! queue pair is destroyed. The device does not access the memory after that.

mod srq;

use std::ffi::c_void;
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use udeck_sys::{open_above_stdio, say};

use crate::ffi::codes::event;
use crate::ffi::{self, Library, Wc};
pub use srq::Srq;

/// An opened device.
#[derive(Debug)]
pub struct Context {
    pub library: Arc<Library>,
    at: NonNull<ffi::RawContext>,
}

// SAFETY: the library's calls are safe from any thread (verbs(3)); the structure does not change.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// An asynchronous event of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Event of a queue pair: kind and number.
    QueuePair(u32, u32),
    /// Event of a port: kind and number.
    Port(u32, u8),
    /// Event of the device, or one that concerns all of it: its kind.
    Device(u32),
}

impl Context {
    /// # Errors
    /// The library's error.
    pub fn open(library: Arc<Library>, device: NonNull<ffi::Device>) -> io::Result<Arc<Self>> {
        // SAFETY: a device of the list, which is not freed yet.
        let at = open_above_stdio(|| unsafe { (library.ibv_open_device)(device.as_ptr()) });
        let context = Context { at: found(at)?, library };
        set_nonblocking(context.async_fd())?;
        Ok(Arc::new(context))
    }

    /// # Errors
    /// The library's error.
    pub fn attributes(&self) -> io::Result<ffi::DeviceAttr> {
        // SAFETY: a structure of numbers; the library fills it in.
        let mut attr = unsafe { std::mem::zeroed::<ffi::DeviceAttr>() };
        // SAFETY: an open device, and our structure.
        check(unsafe { (self.library.ibv_query_device)(self.at.as_ptr(), &mut attr) })?;
        Ok(attr)
    }

    /// # Errors
    /// The library's error: no such port.
    pub fn port(&self, port: u8) -> io::Result<ffi::PortAttr> {
        let mut attr = ffi::PortAttr::default();
        // SAFETY: an open device, and our structure.
        check(unsafe { (self.library.ibv_query_port)(self.at.as_ptr(), port, &mut attr) })?;
        Ok(attr)
    }

    /// Returns an entry of the table of GIDs, and its kind if the library knows it.
    pub fn gid(&self, port: u8, index: u32) -> Option<(ffi::Gid, Option<u32>)> {
        if let Some(query) = self.library._ibv_query_gid_ex {
            let mut entry = ffi::GidEntry::default();
            let size = size_of::<ffi::GidEntry>();
            // SAFETY: an open device, and our structure of that size.
            let failed = unsafe { query(self.at.as_ptr(), port.into(), index, &mut entry, 0, size) };
            if failed == 0 {
                return Some((entry.gid, Some(entry.gid_type)));
            }
        }
        let mut gid = ffi::Gid::default();
        // SAFETY: an open device, and our structure.
        let failed = unsafe { (self.library.ibv_query_gid)(self.at.as_ptr(), port, index as i32, &mut gid) };
        (failed == 0).then_some((gid, None))
    }

    /// Returns an entry of the table of partition keys, in host byte order.
    pub fn pkey(&self, port: u8, index: u16) -> Option<u16> {
        let mut pkey = 0;
        // SAFETY: an open device, and our number.
        let failed =
            unsafe { (self.library.ibv_query_pkey)(self.at.as_ptr(), port, index.into(), &mut pkey) };
        (failed == 0).then_some(u16::from_be(pkey))
    }

    /// Descriptor that is readable when [`Context::next_event`] has an event. No call waits.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the device's descriptor is open as long as the device.
        unsafe { BorrowedFd::borrow_raw(self.at.as_ref().async_fd) }
    }

    /// Takes the device's next event. It is acknowledged at once, because no object is destroyed before that.
    pub fn next_event(&self) -> Option<Event> {
        let mut event = ffi::AsyncEvent { element: ffi::Element { port_num: 0 }, event_type: 0 };
        // SAFETY: an open device, and our structure; its descriptor does not wait.
        if unsafe { (self.library.ibv_get_async_event)(self.at.as_ptr(), &mut event) } != 0 {
            return None;
        }
        let kind = event.event_type;
        // SAFETY: the kind says which element is valid; a queue pair is not destroyed before its event was acknowledged.
        let told = unsafe {
            match kind {
                event::QP_FATAL | event::QP_REQ_ERR | event::QP_ACCESS_ERR => {
                    Event::QueuePair(kind, (*event.element.qp).qp_num)
                }
                event::PORT_ERR | event::PORT_ACTIVE | event::LID_CHANGE | event::GID_CHANGE => {
                    Event::Port(kind, event.element.port_num as u8)
                }
                _ => Event::Device(kind),
            }
        };
        // SAFETY: an event that was taken, acknowledged once.
        unsafe { (self.library.ibv_ack_async_event)(&mut event) };
        Some(told)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        // SAFETY: all objects made of it are gone, because each keeps it.
        unsafe { (self.library.ibv_close_device)(self.at.as_ptr()) };
    }
}

/// A protection domain.
#[derive(Debug)]
pub struct Pd {
    context: Arc<Context>,
    at: NonNull<ffi::RawPd>,
}

// SAFETY: as for the context.
unsafe impl Send for Pd {}
// SAFETY: as for the context.
unsafe impl Sync for Pd {}

impl Pd {
    /// # Errors
    /// The device's error: it has no more.
    pub fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: an open device.
        let at = found(unsafe { (context.library.ibv_alloc_pd)(context.at.as_ptr()) })?;
        Ok(Arc::new(Pd { context: context.clone(), at }))
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        // SAFETY: all objects made of it are gone, because each keeps it.
        unsafe { (self.context.library.ibv_dealloc_pd)(self.at.as_ptr()) };
    }
}

/// A memory region: pinned memory that the device may access.
#[derive(Debug)]
pub struct Mr {
    pd: Arc<Pd>,
    at: NonNull<ffi::RawMr>,
    /// Address by which peers name its first byte.
    pub iova: u64,
}

// SAFETY: as for the context.
unsafe impl Send for Mr {}
// SAFETY: as for the context.
unsafe impl Sync for Mr {}

impl Mr {
    /// Registers memory. With `hidden`, peers name its first byte by its offset in its page instead of its address
    /// (the kernel insists on that offset), if the library can do so.
    ///
    /// # Errors
    /// The kernel's error; [`io::ErrorKind::OutOfMemory`] usually means `RLIMIT_MEMLOCK`.
    ///
    /// # Safety
    /// The memory stays mapped until this is dropped. Whoever gives the keys to peers or to the device is
    /// responsible for the accesses that `access` allows them.
    pub unsafe fn new(pd: &Arc<Pd>, memory: NonNull<[u8]>, access: i32, hidden: bool) -> io::Result<Self> {
        let library = &pd.context.library;
        let (base, len) = (memory.as_ptr().cast::<c_void>(), memory.len());
        let (at, iova) = match library.ibv_reg_mr_iova {
            Some(register) if hidden => {
                let iova = base.addr() as u64 & 0xfff;
                // SAFETY: the caller's contract.
                (unsafe { register(pd.at.as_ptr(), base, len, iova, access) }, iova)
            }
            // SAFETY: the caller's contract.
            _ => (unsafe { (library.ibv_reg_mr)(pd.at.as_ptr(), base, len, access) }, base.addr() as u64),
        };
        Ok(Mr { pd: pd.clone(), at: found(at)?, iova })
    }

    pub fn lkey(&self) -> u32 {
        // SAFETY: the library's structure, alive and constant.
        unsafe { self.at.as_ref().lkey }
    }

    pub fn rkey(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.at.as_ref().rkey }
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        // SAFETY: registered once, and deregistered here only.
        let failed = unsafe { (self.pd.context.library.ibv_dereg_mr)(self.at.as_ptr()) };
        insist(failed, "a memory region cannot be deregistered");
    }
}

/// A completion channel: its descriptor is readable when one of its completion queues, asked to report, has a completion.
#[derive(Debug)]
pub struct CompletionChannel {
    context: Arc<Context>,
    at: NonNull<ffi::CompChannel>,
}

// SAFETY: as for the context.
unsafe impl Send for CompletionChannel {}
// SAFETY: as for the context.
unsafe impl Sync for CompletionChannel {}

impl CompletionChannel {
    /// # Errors
    /// The kernel's error: no descriptors left.
    pub fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: an open device.
        let at =
            open_above_stdio(|| unsafe { (context.library.ibv_create_comp_channel)(context.at.as_ptr()) });
        let at = found(at)?;
        let channel = CompletionChannel { context: context.clone(), at };
        set_nonblocking(channel.as_fd())?;
        Ok(Arc::new(channel))
    }

    /// Takes all events of the channel. Returns whether there were any. Never waits.
    pub fn hush(&self) -> bool {
        let mut any = false;
        loop {
            let (mut cq, mut cq_context) = (null_mut(), null_mut());
            // SAFETY: an open channel that does not wait, and our pointers.
            if unsafe { (self.context.library.ibv_get_cq_event)(self.at.as_ptr(), &mut cq, &mut cq_context) }
                != 0
            {
                return any;
            }
            // SAFETY: the event's queue is not destroyed before its events were acknowledged.
            unsafe { (self.context.library.ibv_ack_cq_events)(cq, 1) };
            any = true;
        }
    }
}

impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(self.at.as_ref().fd) }
    }
}

impl Drop for CompletionChannel {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        // SAFETY: its completion queues are gone, because each keeps it.
        unsafe { (self.context.library.ibv_destroy_comp_channel)(self.at.as_ptr()) };
    }
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    channel: Arc<CompletionChannel>,
    at: NonNull<ffi::RawCq>,
    poll: unsafe extern "C" fn(*mut ffi::RawCq, i32, *mut Wc) -> i32,
    notify: unsafe extern "C" fn(*mut ffi::RawCq, i32) -> i32,
}

// SAFETY: as for the context.
unsafe impl Send for Cq {}
// SAFETY: as for the context.
unsafe impl Sync for Cq {}

impl Cq {
    /// # Errors
    /// The device's error: more entries than it has.
    pub fn new(channel: &Arc<CompletionChannel>, entries: u32) -> io::Result<Arc<Self>> {
        let context = &channel.context;
        let at = unsafe {
            // SAFETY: an open device and channel.
            (context.library.ibv_create_cq)(
                context.at.as_ptr(),
                entries as i32,
                null_mut(),
                channel.at.as_ptr(),
                0,
            )
        };
        let at = found(at)?;
        // SAFETY: the device's table is constant.
        let ops = unsafe { context.at.as_ref().ops };
        let (Some(poll), Some(notify)) = (ops.poll_cq, ops.req_notify_cq) else {
            return Err(io::Error::other("the device's provider has no poll_cq"));
        };
        Ok(Arc::new(Cq { channel: channel.clone(), at, poll, notify }))
    }

    /// Number of entries that the queue has room for.
    pub fn entries(&self) -> u32 {
        // SAFETY: the library's structure; the number is constant, because the queue is never resized.
        unsafe { self.at.as_ref().cqe as u32 }
    }

    /// Takes the next completions. Returns their number.
    ///
    /// # Errors
    /// The queue has failed, for good.
    pub fn poll(&self, into: &mut [Wc]) -> io::Result<usize> {
        // SAFETY: a living queue, and our structures.
        let found = unsafe { (self.poll)(self.at.as_ptr(), into.len() as i32, into.as_mut_ptr()) };
        usize::try_from(found).map_err(|_| io::Error::other("the completion queue has failed"))
    }

    /// Asks for an event on the channel at the next completion from now on.
    pub fn notify(&self) {
        // SAFETY: a living queue. The call fails only for devices that are gone, which are reported otherwise.
        unsafe { (self.notify)(self.at.as_ptr(), 0) };
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        // SAFETY: its queue pairs are gone, because each keeps it.
        unsafe { (self.channel.context.library.ibv_destroy_cq)(self.at.as_ptr()) };
    }
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    pd: Arc<Pd>,
    _cq: Arc<Cq>,
    _srq: Option<Arc<Srq>>,
    at: NonNull<ffi::RawQp>,
    post_send: unsafe extern "C" fn(*mut ffi::RawQp, *mut ffi::SendWr, *mut *mut ffi::SendWr) -> i32,
    post_recv: unsafe extern "C" fn(*mut ffi::RawQp, *mut ffi::RecvWr, *mut *mut ffi::RecvWr) -> i32,
}

// SAFETY: as for the context.
unsafe impl Send for Qp {}
// SAFETY: as for the context.
unsafe impl Sync for Qp {}

impl Qp {
    /// Makes a queue pair with a receive queue of its own, or one that takes from `srq`.
    ///
    /// # Errors
    /// The device's error.
    pub fn new(
        pd: &Arc<Pd>,
        cq: &Arc<Cq>,
        srq: Option<&Arc<Srq>>,
        qp_type: u32,
        cap: ffi::QpCap,
    ) -> io::Result<Self> {
        let context = &pd.context;
        // SAFETY: the device's table is constant.
        let ops = unsafe { context.at.as_ref().ops };
        let (Some(post_send), Some(post_recv)) = (ops.post_send, ops.post_recv) else {
            return Err(io::Error::other("the device's provider has no post_send"));
        };
        let mut attr = ffi::QpInitAttr {
            qp_context: null_mut(),
            send_cq: cq.at.as_ptr(),
            recv_cq: cq.at.as_ptr(),
            srq: srq.map_or(null_mut(), |srq| srq.at.as_ptr()),
            cap,
            qp_type,
            sq_sig_all: 0,
        };
        // SAFETY: a living domain and completion queue, of one device; our structure.
        let at = found(unsafe { (context.library.ibv_create_qp)(pd.at.as_ptr(), &mut attr) })?;
        Ok(Qp { pd: pd.clone(), _cq: cq.clone(), _srq: srq.cloned(), at, post_send, post_recv })
    }

    pub fn number(&self) -> u32 {
        // SAFETY: the library's structure, alive; the number is constant.
        unsafe { self.at.as_ref().qp_num }
    }

    /// # Errors
    /// The device's error, with the requested state.
    pub fn modify(&self, attr: &mut ffi::QpAttr, mask: i32) -> io::Result<()> {
        // SAFETY: a living queue pair, and our structure.
        check(unsafe { (self.pd.context.library.ibv_modify_qp)(self.at.as_ptr(), attr, mask) })
    }

    /// # Errors
    /// The device's error: the queue is full, or in a state that takes no requests.
    ///
    /// # Safety
    /// The device may access the named memory until the request is complete or this is dropped.
    pub unsafe fn post_send(&self, wr: &mut ffi::SendWr) -> io::Result<()> {
        let mut bad = null_mut();
        // SAFETY: a living queue pair, one request; the caller's contract.
        check(unsafe { (self.post_send)(self.at.as_ptr(), wr, &mut bad) })
    }

    /// # Errors
    /// The errors of [`Qp::post_send`].
    ///
    /// # Safety
    /// As [`Qp::post_send`], for a chain of requests: the device may write the memory.
    pub unsafe fn post_recv(&self, chain: NonNull<ffi::RecvWr>) -> io::Result<()> {
        let mut bad = null_mut();
        // SAFETY: a living queue pair; the caller's contract.
        check(unsafe { (self.post_recv)(self.at.as_ptr(), chain.as_ptr(), &mut bad) })
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        // SAFETY: made once, and destroyed here only.
        let failed = unsafe { (self.pd.context.library.ibv_destroy_qp)(self.at.as_ptr()) };
        insist(failed, "a queue pair cannot be destroyed");
    }
}

/// Aborts the process if a device keeps memory that it may still write: it must not be used for anything else. (A
/// device that is gone writes nothing.)
fn insist(failed: i32, what: impl Display) {
    if !matches!(failed, 0 | libc::EIO | libc::ENODEV) {
        // The process aborts even if printing fails.
        let _abort = Abort;
        let error = io::Error::from_raw_os_error(failed);
        say!("{what} ({error}): this process ends, for the device may write into its memory");
    }
}

/// Ends the process when it is dropped, even by a panic.
struct Abort;

impl Drop for Abort {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// Checks a pointer that the library returned. A null pointer becomes the error in `errno`.
fn found<T>(at: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(at).ok_or_else(io::Error::last_os_error)
}

/// Checks a number that the library returned: 0, or the error (some providers return -1 and set `errno`).
fn check(returned: i32) -> io::Result<()> {
    match returned {
        0 => Ok(()),
        error if error > 0 => Err(io::Error::from_raw_os_error(error)),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    /// Set in the process that is to abort.
    const IS_DOOMED: &str = "UDECK_TEST_DEVICE_KEEPS_MEMORY";

    /// Runs the test of this name again, in a process that is to abort.
    fn aborts(name: &str, stderr: impl Into<Stdio>) {
        let mut doomed = Command::new(std::env::current_exe().unwrap());
        doomed.args([&format!("hca::objects::tests::{name}"), "--exact", "--nocapture"]);
        let ended = doomed.env(IS_DOOMED, "1").stderr(stderr).output().unwrap();
        assert_eq!(ended.status.signal(), Some(libc::SIGABRT), "{ended:?}");
    }

    #[test]
    fn a_device_that_keeps_memory_ends_the_process_though_nobody_reads_why() {
        if std::env::var_os(IS_DOOMED).is_some() {
            return insist(libc::EBUSY, "a queue pair cannot be destroyed");
        }
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        aborts("a_device_that_keeps_memory_ends_the_process_though_nobody_reads_why", writer);
    }

    /// A value whose printing panics.
    struct Unspeakable;

    impl Display for Unspeakable {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            panic!("while printing")
        }
    }

    #[test]
    fn a_device_that_keeps_memory_ends_the_process_though_saying_so_panics() {
        if std::env::var_os(IS_DOOMED).is_some() {
            return insist(libc::EBUSY, Unspeakable);
        }
        aborts("a_device_that_keeps_memory_ends_the_process_though_saying_so_panics", Stdio::piped());
    }
}
