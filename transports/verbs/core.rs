//! Shared state of a NIC's objects: the device, its links, its listeners. It lives as long as any of them.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use udeck_session::admission::{Admission, Admitted, MAX_DISCRIMINATOR};
use udeck_session::completion_queue::CompletionQueues;
use udeck_session::poll::{Bell, EventFlags, Poller};
use udeck_session::{Listeners, Memory, Watch};
use udeck_sys::{say, thread};
use udeck_via::transport::{Hello, Queue as WorkQueue, Queues, Ready, ViEndpoint};
use udeck_via::{Error, Reliability, Result};

use crate::completion_queue::{BesideChannel, Slots};
use crate::completions::Completions;
use crate::connect_method::ConnectMethod;
use crate::connection::Connection;
use crate::domain::Domain;
use crate::endpoint::VerbsEndpoint;
use crate::hca::Hca;
use crate::link::VerbsLink;
use crate::oob::{Oob, Word};
use crate::qp_address::{QpAddress, UnreliableQpAddress};
use crate::queue::{Kind, Queue, Tags};
use crate::recv_buffers::{Pool, RecvBufferQuota};
use crate::settings::Settings;
use crate::windows::Windows;

/// Kind and number of a descriptor in the helper's poller, encoded as its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    Bell,
    Listener,
    Channel,
    Events,
    Manager,
    Link(u32),
}

impl Token {
    pub fn encode(self) -> u64 {
        match self {
            Token::Bell => 0,
            Token::Listener => 1,
            Token::Channel => 2,
            Token::Events => 3,
            Token::Manager => 4,
            Token::Link(number) => 1 << 32 | u64::from(number),
        }
    }

    /// Decodes a token that [`Token::encode`] made. Tokens come from the kernel only.
    pub fn decode(token: u64) -> Token {
        match token {
            0 => Token::Bell,
            1 => Token::Listener,
            2 => Token::Channel,
            3 => Token::Events,
            4 => Token::Manager,
            number => Token::Link(number as u32),
        }
    }
}

/// Shared state of a NIC's objects.
pub struct Core {
    pub hca: Hca,
    /// Method by which queue pairs are joined.
    pub connect_method: ConnectMethod,
    pub settings: Settings,
    pub admission: Admission,
    pub memory: Memory,
    pub max_transfer: usize,
    pub completions: Arc<Completions>,
    pub windows: Arc<Windows>,
    pub listeners: Listeners,
    /// Poller in which the helper sleeps.
    pub control: Poller,
    bell: Bell,
    domains: Mutex<HashMap<u32, Weak<Domain>>>,
    /// Quota of the pools' receive buffers.
    receives: Arc<RecvBufferQuota>,
    pinned: Arc<AtomicUsize>,
    pub completion_queues: CompletionQueues<BesideChannel>,
    /// Number of threads that sleep beside the completion channel.
    sleepers: AtomicUsize,
    /// A thread waits for the helper to take completions.
    attends: AtomicBool,
    /// The NIC is closed: remaining data are sent, then the links are forgotten.
    closing: AtomicBool,
    /// The helper is to check links soon.
    hurries: AtomicBool,
    /// Number of messages to unreliable VIs that did not come.
    pub dropped: AtomicU64,
    /// The device makes no unreliable queue pairs.
    lacks_unreliable: AtomicBool,
}

/// Guard of a thread that sleeps beside the completion channel.
pub struct Sleeping<'a>(&'a AtomicUsize);

impl Drop for Sleeping<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Core {
    /// # Errors
    /// The error of the kernel or of the device: no descriptors left.
    pub fn new(
        hca: Hca,
        connect_method: ConnectMethod,
        settings: Settings,
        admission: Admission,
        memory: Memory,
        windows: usize,
        max_transfer: usize,
    ) -> std::io::Result<Arc<Self>> {
        let (entries, receives) = (hca.attributes.max_cqe.max(0) as u32, pooled(&hca, &settings));
        let completions = Completions::new(&hca.context, entries, receives)?;
        let (control, bell) = (Poller::new()?, Bell::new()?);
        control.add(&bell, Token::Bell.encode(), EventFlags::IN)?;
        control.add(hca.context.async_fd(), Token::Events.encode(), EventFlags::IN)?;
        control.add(&*completions.channel, Token::Channel.encode(), EventFlags::IN | EventFlags::ONESHOT)?;
        if let Some(manager) = connect_method.manager() {
            control.add(manager, Token::Manager.encode(), EventFlags::IN)?;
        }
        Ok(Arc::new(Core {
            lacks_unreliable: AtomicBool::new(!settings.uc),
            connect_method,
            settings,
            admission,
            max_transfer,
            completions,
            windows: Arc::new(Windows::new(&memory, windows)),
            listeners: Listeners::new(MAX_DISCRIMINATOR),
            control,
            bell,
            domains: Mutex::default(),
            receives: RecvBufferQuota::new(receives),
            pinned: Arc::default(),
            completion_queues: CompletionQueues::default(),
            sleepers: AtomicUsize::new(0),
            attends: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            hurries: AtomicBool::new(false),
            dropped: AtomicU64::new(0),
            memory,
            hca,
        }))
    }

    /// Returns the domain of the VIs with this tag, or of VIs without remote access.
    fn domain(&self, tag: u32) -> Result<Arc<Domain>> {
        let mut domains = self.domains.lock();
        if let Some(domain) = domains.get(&tag).and_then(Weak::upgrade) {
            return Ok(domain);
        }
        domains.retain(|_, domain| domain.strong_count() > 0);
        let domain = Domain::new(&self.hca.context, &self.memory, &self.pinned);
        let domain = Arc::new(domain.map_err(|error| Error::os("making a protection domain", error))?);
        domains.insert(tag, Arc::downgrade(&domain));
        Ok(domain)
    }

    /// Makes a queue pair, under a number of its own, for a connection in which this side sends `ours`. For an
    /// unreliable VI it has an unreliable one beside it, if the device makes such.
    ///
    /// # Errors
    /// The device's error.
    pub fn queue(&self, ours: &Hello) -> Result<(u32, Queue)> {
        let tags = Tags { writable: ours.writable_ptag, readable: ours.readable_ptag };
        let tag = tags.writable.or(tags.readable).map_or(0, |tag| tag.0);
        let failed = |error| Error::os(format!("making a queue pair on {}", self.hca.name), error);
        // Untaken completions of destroyed queue pairs take room.
        self.completions.take_all();
        let domain = self.domain(tag)?;
        let share = self.completions.share(self.pool(&domain)).map_err(failed)?;
        let number = share.number;
        let windows = self.windows.clone();
        let (hca, settings) = (&self.hca, &self.settings);
        let queue = Queue::new(hca, settings, domain.clone(), share, windows, number, tags, Kind::Reliable);
        let mut queue = queue.map_err(failed)?;
        if ours.reliability == Reliability::Unreliable {
            queue.set_unreliable(self.unreliable(domain, tags).map_err(failed)?);
        }
        Ok((number, queue))
    }

    /// Makes an unreliable queue pair. Returns `None` if the device does not support them, or the settings do not
    /// want them.
    fn unreliable(&self, domain: Arc<Domain>, tags: Tags) -> std::io::Result<Option<Queue>> {
        // iWARP has no unreliable queue pairs.
        if self.hca.iwarp || self.lacks_unreliable.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let share = self.completions.share(None)?;
        let (windows, link) = (self.windows.clone(), share.number);
        let (hca, settings) = (&self.hca, &self.settings);
        let queue = Queue::new(hca, settings, domain, share, windows, link, tags, Kind::Unreliable);
        match queue {
            Ok(queue) => Ok(Some(queue)),
            // Kernels and libraries report an unknown kind by these errors.
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EINVAL)) =>
            {
                if !self.lacks_unreliable.swap(true, Ordering::Relaxed) {
                    let name = &self.hca.name;
                    say!(
                        "{name} makes no unreliable queue pairs ({error}): unreliable VIs \
                         have reliable ones, and lose nothing (DECK_VERBS_UC=0 says so beforehand)"
                    );
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the pool from which a queue pair of this domain receives. `None` if it gets buffers of its own: the
    /// device has no shared queue or no more of them, other domains have reached the NIC's bound, or the setting
    /// says so.
    fn pool(&self, domain: &Domain) -> Option<Arc<Pool>> {
        let most = self.hca.attributes.max_srq_wr.max(0) as u32;
        if self.receives.bound() == 0 {
            return None;
        }
        let make = || {
            let pool = Pool::new(&domain.pd, self.completions.number(), &self.receives, most)?;
            self.completions.add_pool(&pool);
            Ok(pool)
        };
        domain.pool(make).ok()
    }

    /// Bytes of memory pinned for frames: the receive buffers, and the headers of outgoing frames.
    pub fn pinned(&self) -> usize {
        self.pinned.load(Ordering::Relaxed)
    }

    /// Encodes the addresses of a queue pair for the peer.
    pub fn parameters(&self, queue: &Queue) -> Vec<u8> {
        let mut parameters =
            queue.qp_address(&self.hca, &self.settings, self.connect_method.is_cm()).encode().to_vec();
        if let Some(unreliable) = queue.unreliable_queue() {
            let QpAddress { qpn, psn, .. } = unreliable.qp_address(&self.hca, &self.settings, false);
            parameters.extend(UnreliableQpAddress { qpn, psn }.encode());
        }
        parameters
    }

    /// Joins a queue pair to the peer's, whose address is in `parameters`.
    ///
    /// # Errors
    /// [`Error::Lost`] when the parameters are invalid, or the address cannot be reached; otherwise the device's error.
    pub fn join(&self, queue: &mut Queue, parameters: &[u8]) -> Result {
        let (peer, unreliable) = self.peer(queue, parameters)?;
        self.join_one(queue, &peer)?;
        self.join_unreliable(queue, &peer, unreliable)
    }

    fn join_one(&self, queue: &Queue, peer: &QpAddress) -> Result {
        let (name, qpn) = (&self.hca.name, peer.qpn);
        queue.join(&self.hca, &self.settings, peer).map_err(|error| {
            Error::os(format!("joining a queue pair of {name} to the peer's {qpn:#x}"), error)
        })
    }

    /// Joins the unreliable queue pair to the peer's. Their addresses are always exchanged, because rdma_cm has no
    /// such connections. Both sides have one, or none.
    ///
    /// # Errors
    /// The errors of [`Core::join`].
    pub fn join_unreliable(
        &self,
        queue: &mut Queue,
        peer: &QpAddress,
        unreliable: Option<UnreliableQpAddress>,
    ) -> Result {
        match (queue.unreliable_queue(), unreliable) {
            (Some(unreliable_queue), Some(UnreliableQpAddress { qpn, psn })) => {
                self.join_one(unreliable_queue, &QpAddress { qpn, psn, ..*peer })
            }
            _ => {
                queue.set_unreliable(None);
                Ok(())
            }
        }
    }

    /// Makes the endpoint of an admitted connection, with the places of its two queues.
    ///
    /// # Errors
    /// The kernel's error: no descriptors left.
    pub fn establish(
        self: &Arc<Self>,
        made: AgreedConnection<'_>,
        slots: Slots,
        queues: &Queues<'_>,
    ) -> Result<Box<dyn ViEndpoint>> {
        let AgreedConnection { number, queue, admitted, ours, requested } = made;
        let mut connection = Connection::new(&self.memory, ours, &admitted.theirs, self.max_transfer);
        if self.hca.iwarp {
            connection.without_immediates();
        }
        let unreliable = queue.unreliable_queue().map(Queue::link);
        if unreliable.is_some() {
            connection.go_unreliable();
        }
        let oob = Oob::new(admitted.socket);
        if requested && self.connect_method.is_cm() {
            connection.greet();
        } else if requested {
            oob.send(&Word::Ready);
        }
        let link = VerbsLink::new(self, number, connection, queue, oob, requested);
        self.completions.add(number, &link);
        unreliable.iter().for_each(|unreliable| self.completions.add(*unreliable, &link));
        let watched = link.watch_oob(|fd| {
            self.control.add(fd, Token::Link(number).encode(), EventFlags::IN | EventFlags::RDHUP)
        });
        if let Some(Err(error)) = watched {
            self.completions.remove(number);
            unreliable.iter().for_each(|unreliable| self.completions.remove(*unreliable));
            return Err(Error::os("watching a new connection", error));
        }
        if let Some(manager) = self.connect_method.manager().filter(|_| !requested) {
            manager.admit(self, number);
        }
        let Slots { send, receive } = slots;
        let context = queues.context;
        send.occupy(Ready { context, queue: WorkQueue::Send }, link.clone(), ());
        receive.occupy(Ready { context, queue: WorkQueue::Receive }, link.clone(), ());
        let (send, receive, reporter) = (Arc::new(send), Arc::new(receive), queues.reporter.clone());
        link.attach(Watch { send, receive, reporter }.into());
        Ok(Box::new(VerbsEndpoint::new(link)))
    }

    /// Stops watching a link's out-of-band connection, which is about to be closed.
    pub fn unwatch(&self, oob: &Oob) {
        self.control.remove(oob);
    }

    // ---- sleep ----

    pub fn sleeps_beside_channel(&self) -> Sleeping<'_> {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        Sleeping(&self.sleepers)
    }

    pub fn has_sleepers(&self) -> bool {
        self.sleepers.load(Ordering::Relaxed) > 0
    }

    /// Makes the helper stay awake: a sleeping thread cannot take completions itself.
    pub fn attend(&self) {
        self.attends.store(true, Ordering::Release);
        self.rouse();
    }

    /// Takes the flag that [`Core::attend`] has set.
    pub fn take_attention(&self) -> bool {
        self.attends.swap(false, Ordering::Acquire)
    }

    /// Wakes the helper.
    pub fn rouse(&self) {
        self.bell.ring();
    }

    /// Makes the helper check links soon.
    pub fn hurry(&self) {
        self.hurries.store(true, Ordering::Release);
        self.rouse();
    }

    /// Takes the flag that [`Core::hurry`] has set.
    pub fn take_hurry(&self) -> bool {
        self.hurries.swap(false, Ordering::Acquire)
    }

    pub fn reset_bell(&self) {
        self.bell.reset();
    }

    /// Closes the NIC: its last object is gone.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.listeners.clear();
        self.rouse();
    }

    /// Fails all links: the helper has panicked.
    pub fn fail(&self, thread: &str, why: &str) {
        let why = self.listeners.fail(thread, why);
        for link in self.completions.links() {
            thread::attempt(|| link.give_up(&why));
        }
    }

    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// How long another host may be silent.
    pub fn detect(&self) -> Duration {
        self.admission.detect
    }
}

impl AsFd for Core {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.control.as_fd()
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Hca { name, port, .. } = &self.hca;
        write!(f, "Core({name}, port {port}, {} bytes pinned for frames)", self.pinned())
    }
}

/// Number of receive buffers that connections share; 0 if each has its own. Completion queues need room for them,
/// besides that for each connection's requests. iWARP ends the connection of a frame that finds no buffer, instead
/// of sending it again, so there they are not shared.
fn pooled(hca: &Hca, settings: &Settings) -> u32 {
    let entries = hca.attributes.max_cqe.max(0) as u32;
    let can = hca.attributes.max_srq > 0 && !hca.iwarp && settings.receives <= entries / 2;
    if can { settings.receives } else { 0 }
}

/// A connection on which both sides have agreed.
pub struct AgreedConnection<'a> {
    pub number: u32,
    pub queue: Queue,
    pub admitted: Admitted,
    pub ours: &'a Hello,
    /// Whether this side requested it.
    pub requested: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_round_trip() {
        for token in [
            Token::Bell,
            Token::Listener,
            Token::Channel,
            Token::Events,
            Token::Manager,
            Token::Link(0),
            Token::Link(u32::MAX),
        ] {
            assert_eq!(Token::decode(token.encode()), token);
        }
    }
}
