//! A job as one rank sees it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytemuck::Pod;
use parking_lot::Mutex;
use udeck_boot::{Client, Event};
use udeck_via::mem::Fill;
use udeck_via::{
    Block, Cq, CqHandle, Deadline, Error as ViaError, NetAddress, Nic, Receive, Vi, ViAttributes,
};

use crate::barrier::Barrier;
use crate::buffer::Buf;
use crate::channel::Channel;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::item::Item;
use crate::mailbox::Mailbox;
use crate::message::Message;
use crate::postbox::Postbox;
use crate::progress::Progress;
use crate::stats::{Counters, Stats};
use crate::wire::{self, Advert};

/// Names of the library's own mailboxes begin so.
pub(crate) const INTERNAL: &str = "\u{1}deck/";
/// While other channels need a hand, no sleep is longer.
const HELPING: Duration = Duration::from_micros(200);
/// From this many bytes on, an allocation first collects buffers that came back: reusing the block that was used last
/// saves more cache misses than looking costs.
const LARGE: usize = 4096;
/// Longest name of a mailbox, in bytes.
const MAX_NAME: usize = 200;

pub(crate) fn is_internal(name: &str) -> bool {
    name.starts_with(INTERNAL)
}

/// A job as one rank sees it: its rank, its size, and the mailboxes in it. A value, not a global: one process may hold
/// several ranks (tests do).
///
/// `Send + Sync`. Mailboxes and postboxes may outlive it, but [`World::finish`] ends this rank's part in the job.
pub struct World {
    shared: Arc<Shared>,
    barrier: Mutex<Option<Barrier>>,
}

impl World {
    /// The world of the rank that `client` speaks for, with messages over `nic`. (Programs call `udeck::init`.)
    /// `ranks_per_cpu_exceeded`: more ranks run on this host than it has processors.
    pub fn new(client: Client, nic: Nic, config: Config, oversubscribed: bool) -> Self {
        let ends = Arc::new(Ends::default());
        let listener = Arc::downgrade(&ends);
        client.on_event(Box::new(move |event| {
            if let Some(ends) = listener.upgrade() {
                ends.note(event);
            }
        }));
        let shared = Shared {
            rank: client.welcome().rank as usize,
            size: client.welcome().size as usize,
            client,
            nic,
            config,
            oversubscribed,
            ends,
            progress: Arc::default(),
            books: Mutex::default(),
            undelivered: Mutex::default(),
            has_undelivered: AtomicBool::new(false),
            next_postbox: AtomicU32::new(0),
        };
        World { shared: Arc::new(shared), barrier: Mutex::new(None) }
    }

    /// This rank's number, from 0.
    #[doc(alias = "deck_node")]
    pub fn rank(&self) -> usize {
        self.shared.rank
    }

    /// How many ranks there are.
    #[doc(alias = "deck_numnodes")]
    pub fn size(&self) -> usize {
        self.shared.size
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// The NIC that carries messages, for its attributes.
    pub fn nic(&self) -> &Nic {
        &self.shared.nic
    }

    /// Waits until all ranks have come here, at most the world's deadline. Collective.
    ///
    /// # Errors
    /// [`Error::PeerLost`], [`Error::Deadline`] (says for whom it waited).
    #[doc(alias = "deck_barrier")]
    pub fn barrier(&self) -> Result {
        if self.size() == 1 {
            return Ok(());
        }
        let mut barrier = self.barrier.lock();
        if barrier.is_none() {
            *barrier = Some(Barrier::new(&self.shared)?);
        }
        barrier.as_mut().expect("just made").wait(&self.shared)
    }

    /// Creates a mailbox, owned by this rank. Names are unique within the job.
    ///
    /// # Errors
    /// [`Error::NameTaken`] says who has it; [`Error::BadName`].
    #[doc(alias = "deck_mbox_create")]
    pub fn mailbox<T: Item>(&self, name: &str) -> Result<Mailbox<T>> {
        check_name(name)?;
        check_item::<T>()?;
        Mailbox::create(&self.shared, name)
    }

    /// Makes a postbox of the mailbox `name`; waits until it exists, at most `DECK_SETUP_TIMEOUT`.
    ///
    /// # Errors
    /// [`Error::NoSuchMailbox`] lists the names that exist; [`Error::WrongType`]; [`Error::PeerLost`];
    /// [`Error::Unsupported`] when the connection cannot carry the world's protocol (`DECK_PROTOCOL`).
    #[doc(alias = "deck_mbox_clone")]
    pub fn postbox<T: Item>(&self, name: &str) -> Result<Postbox<T>> {
        self.postbox_within(name, self.shared.config.setup)
    }

    /// Makes a postbox, waiting at most `limit` for the mailbox.
    ///
    /// # Errors
    /// As [`World::postbox`].
    pub fn postbox_within<T: Item>(&self, name: &str, limit: Duration) -> Result<Postbox<T>> {
        self.make_postbox(name, true, Deadline::after(limit))
    }

    /// Makes a postbox if the mailbox exists.
    ///
    /// # Errors
    /// As [`World::postbox`], at once.
    pub fn try_postbox<T: Item>(&self, name: &str) -> Result<Postbox<T>> {
        self.make_postbox(name, false, Deadline::after(self.shared.config.setup))
    }

    fn make_postbox<T: Item>(&self, name: &str, wait: bool, deadline: Deadline) -> Result<Postbox<T>> {
        check_name(name)?;
        check_item::<T>()?;
        let channel = self.shared.connect::<T>(name, wait, deadline)?;
        channel.check(self.shared.config.protocol)?;
        Ok(Postbox::new(&self.shared, name, channel))
    }

    /// A typed message of `len` elements, zeroed, 64-byte aligned.
    ///
    /// # Errors
    /// [`Error::TooLarge`], or what is wrong with the arena.
    pub fn buf<T: Pod>(&self, len: usize) -> Result<Buf<T>> {
        self.new_buf(len, Fill::Zero)
    }

    /// A typed message whose contents are whatever this rank last left in that memory: for those who overwrite it
    /// anyway. (Plain data of our own: nothing undefined, nothing of others.)
    ///
    /// # Errors
    /// As [`World::buf`].
    pub fn buf_reused<T: Pod>(&self, len: usize) -> Result<Buf<T>> {
        self.new_buf(len, Fill::Keep)
    }

    fn new_buf<T: Pod>(&self, len: usize, fill: Fill) -> Result<Buf<T>> {
        check_item::<T>()?;
        let limit = self.shared.nic.attributes().max_transfer;
        let bytes = len.checked_mul(size_of::<T>()).ok_or(Error::TooLarge { asked: usize::MAX, limit })?;
        Ok(Buf::new(self.shared.allocate_or_error(bytes, fill)?))
    }

    /// A packed message with room for `capacity` bytes (each item takes 8 more than its data).
    ///
    /// # Errors
    /// As [`World::buf`].
    #[doc(alias = "deck_msg_create")]
    pub fn message(&self, capacity: usize) -> Result<Message> {
        Ok(Message::new(self.shared.allocate_or_error(capacity, Fill::Zero)?))
    }

    /// What the library did so far on this rank.
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Ends this rank's part in the job: delivers what was posted and waits for an answer, then says goodbye. Other
    /// ranks still read what was posted to them.
    ///
    /// # Errors
    /// [`Error::Undelivered`] says what was lost, and to whom; [`Error::Several`] lists them all.
    #[doc(alias = "deck_done")]
    pub fn finish(self) -> Result {
        let deadline = Deadline::after(self.shared.config.setup);
        let start = Instant::now();
        while self.shared.progress.is_busy() && !deadline.passed() {
            self.shared.progress.help();
            std::thread::yield_now();
        }
        let late = self.shared.progress.is_busy();
        let undelivered = self.shared.take_all_undelivered();
        *self.barrier.lock() = None;
        let parted = self.shared.client.done(Deadline::after(self.shared.config.setup).instant());
        undelivered?;
        if late {
            let whom = "ranks that have not retrieved messages announced to them".into();
            return Err(Error::Deadline { what: "finishing".into(), waited: start.elapsed(), whom });
        }
        Ok(parted?)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.shared.progress.stop();
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "World(rank {} of {})", self.rank(), self.size())
    }
}

fn check_name(name: &str) -> Result {
    let bad = |why| Err(Error::BadName { name: name.to_owned(), why });
    match name {
        "" => bad("it is empty"),
        _ if name.len() > MAX_NAME => bad("it is longer than 200 bytes"),
        _ if name.chars().any(char::is_control) => bad("it contains control characters"),
        _ => Ok(()),
    }
}

fn check_item<T: Item>() -> Result {
    let why = match (T::SIZE, T::ALIGN) {
        (0, _) => "its elements have no size",
        (_, align) if align > 64 => "its elements need more than 64-byte alignment",
        _ => return Ok(()),
    };
    Err(Error::BadName { name: T::kind().to_owned(), why })
}

/// What mailboxes, postboxes and the world have in common.
pub(crate) struct Shared {
    rank: usize,
    size: usize,
    client: Client,
    nic: Nic,
    config: Config,
    oversubscribed: bool,
    ends: Arc<Ends>,
    progress: Arc<Progress>,
    books: Mutex<Books>,
    undelivered: Mutex<BTreeMap<u32, Undelivered>>,
    has_undelivered: AtomicBool,
    next_postbox: AtomicU32,
}

/// Counters of living objects, and the sum of those that are gone.
#[derive(Default)]
struct Books {
    living: Vec<Arc<Counters>>,
    gone: Stats,
}

struct Undelivered {
    count: usize,
    name: String,
    owner: u32,
    why: String,
}

impl Shared {
    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn size(&self) -> usize {
        self.size
    }

    pub fn nic(&self) -> &Nic {
        &self.nic
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn oversubscribed(&self) -> bool {
        self.oversubscribed
    }

    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    // ---- names ----

    /// Makes a mailbox of ours known.
    pub fn advertise<T: Item>(&self, name: &str) -> Result {
        let advert = Advert {
            address: self.nic.attributes().address.clone(),
            kind: T::kind().to_owned(),
            size: T::SIZE as u32,
        };
        let deadline = Deadline::after(self.config.setup);
        Ok(self.client.register(name, &advert.encode(), deadline.instant())?)
    }

    /// Why a mailbox could not be opened: most likely the name is taken, perhaps by this very rank.
    #[cold]
    pub fn taken_or(&self, name: &str, error: Error) -> Error {
        match self.client.lookup(name, false, Deadline::after(self.config.setup).instant()) {
            Ok(record) => Error::NameTaken { name: name.to_owned(), owner: record.owner as usize },
            Err(_) => error,
        }
    }

    /// A mailbox of ours is gone. After `finish`, so is the name service, and the name with it.
    pub fn withdraw(&self, name: &str) {
        let _ = self.client.unregister(name, Deadline::after(self.config.setup).instant());
    }

    /// Connects to a mailbox.
    pub fn connect<T: Item>(self: &Arc<Self>, name: &str, wait: bool, deadline: Deadline) -> Result<Channel> {
        let record = self.client.lookup(name, wait, deadline.instant())?;
        let Ok(advert) = Advert::decode(&record.value) else {
            return Err(Error::BadName {
                name: name.to_owned(),
                why: "what is registered there is no mailbox",
            });
        };
        if advert.kind != T::kind() || advert.size as usize != T::SIZE {
            let ours = T::kind().to_owned();
            return Err(Error::WrongType { name: name.to_owned(), theirs: advert.kind, ours });
        }
        let owner = record.owner;
        let failed = |error| self.connect_error(name, owner, error);
        let number = self.next_postbox.fetch_add(1, Ordering::Relaxed);
        let mut cq = Cq::new(&self.nic).map_err(failed)?;
        cq.set_oversubscribed(self.oversubscribed);
        let mut attributes = ViAttributes::new(self.nic.ptag());
        attributes.receive = Receive::Lent;
        let mut vi = Vi::new(&self.nic, attributes).map_err(failed)?;
        let to = NetAddress { host: advert.address, discriminator: name.as_bytes().to_vec() };
        let introduction = wire::introduce(self.rank as u32, number);
        vi.connect(&to, &cq.handle(), &cq.handle(), &introduction, deadline).map_err(failed)?;
        Ok(Channel::new(vi, cq, self.clone(), name, owner, number))
    }

    fn connect_error(&self, name: &str, owner: u32, error: ViaError) -> Error {
        let (name, node) = (name.to_owned(), owner as usize);
        match (self.how_lost(owner), error) {
            (Some(how), _) | (None, ViaError::Lost(how)) => Error::PeerLost { node, how },
            (None, ViaError::NoMatch(_)) => Error::MailboxGone { name, owner: node },
            (None, ViaError::Timeout { waited, .. }) => {
                let what = format!("connecting to mailbox {name:?}");
                Error::Deadline { what, waited, whom: format!("rank {node} to answer") }
            }
            (None, error) => Error::via(format!("connecting to mailbox {name:?} on rank {node}"), error),
        }
    }

    // ---- memory ----

    /// A block; when the arena is full, first collects what receivers have given back.
    #[inline]
    pub fn allocate(&self, len: usize, fill: Fill) -> Result<Block, ViaError> {
        let outbox = self.nic.device().outbox();
        if len >= LARGE {
            self.nic.device().reclaim_recent();
        }
        match outbox.block(len, fill) {
            Err(ViaError::NoMemory { .. }) => {
                self.nic.device().reclaim();
                outbox.block(len, fill)
            }
            other => other,
        }
    }

    pub fn allocate_or_error(&self, len: usize, fill: Fill) -> Result<Block> {
        let limit = self.nic.attributes().max_transfer;
        if len > limit {
            return Err(Error::TooLarge { asked: len, limit });
        }
        self.allocate(len, fill)
            .map_err(|error| Error::via(format!("making a message of {len} bytes"), error))
    }

    // ---- counts ----

    /// Counters for one end of `mailbox`. The library's own messages are not counted.
    pub fn counters(&self, mailbox: &str) -> Arc<Counters> {
        let counters = Arc::new(Counters::default());
        if is_internal(mailbox) {
            return counters;
        }
        let mut books = self.books.lock();
        let Books { living, gone } = &mut *books;
        living.retain(|counters| {
            let alive = Arc::strong_count(counters) > 1;
            if !alive {
                counters.add_to(gone);
            }
            alive
        });
        living.push(counters.clone());
        counters
    }

    fn stats(&self) -> Stats {
        let books = self.books.lock();
        let mut stats = books.gone;
        books.living.iter().for_each(|counters| counters.add_to(&mut stats));
        stats.bytes_copied += self.nic.device().bytes_copied();
        stats
    }

    // ---- messages that were lost ----

    #[inline]
    pub fn has_undelivered(&self) -> bool {
        self.has_undelivered.load(Ordering::Relaxed)
    }

    pub fn note_undelivered(&self, postbox: u32, count: usize, name: &str, owner: u32, why: &str) {
        let mut all = self.undelivered.lock();
        let entry = all.entry(postbox).or_insert_with(|| Undelivered {
            count: 0,
            name: name.to_owned(),
            owner,
            why: why.to_owned(),
        });
        entry.count += count;
        self.has_undelivered.store(true, Ordering::Relaxed);
    }

    /// Tells of one postbox's lost messages.
    pub fn take_undelivered(&self, postbox: u32) -> Result {
        let mut all = self.undelivered.lock();
        let found = all.remove(&postbox);
        self.has_undelivered.store(!all.is_empty(), Ordering::Relaxed);
        drop(all);
        found.map_or(Ok(()), |undelivered| Err(self.undelivered_error(undelivered)))
    }

    /// Tells of all lost messages.
    fn take_all_undelivered(&self) -> Result {
        let all = std::mem::take(&mut *self.undelivered.lock());
        self.has_undelivered.store(false, Ordering::Relaxed);
        let mut errors: Vec<Error> = all.into_values().map(|one| self.undelivered_error(one)).collect();
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Error::Several(errors)),
        }
    }

    fn undelivered_error(&self, Undelivered { count, name, owner, why }: Undelivered) -> Error {
        let why = self.how_lost(owner).unwrap_or(why);
        Error::Undelivered { count, name, owner: owner as usize, why }
    }

    // ---- waiting ----

    /// Moves announced messages of other postboxes along.
    #[inline]
    pub fn help_others(&self) {
        if self.progress.is_busy() {
            self.progress.help();
        }
    }

    /// How long a wait may sleep before it should help others again.
    pub fn slice(&self, deadline: Deadline) -> Deadline {
        if self.progress.is_busy() && deadline.remaining() > HELPING {
            Deadline::after(HELPING)
        } else {
            deadline
        }
    }

    // ---- ranks that ended ----

    /// Grows with every rank that ends.
    pub fn ends_seen(&self) -> u64 {
        self.ends.seen.load(Ordering::Acquire)
    }

    /// A lost rank that is not in `reported`.
    pub fn lost_beyond(&self, reported: &BTreeSet<u32>) -> Option<(u32, String)> {
        if self.ends_seen() == 0 {
            return None;
        }
        let ranks = self.ends.ranks.lock();
        let lost = ranks.lost.iter().find(|(rank, _)| !reported.contains(rank));
        lost.map(|(rank, how)| (*rank, how.clone()))
    }

    /// What became of a lost rank.
    pub fn how_lost(&self, rank: u32) -> Option<String> {
        self.ends.ranks.lock().lost.get(&rank).cloned()
    }

    /// Whether a rank has finished in order.
    pub fn is_done(&self, rank: u32) -> bool {
        self.ends.ranks.lock().done.contains(&rank)
    }

    /// Whether all other ranks have ended.
    pub fn is_deserted(&self) -> bool {
        let ranks = self.ends.ranks.lock();
        self.size > 1 && ranks.lost.len() + ranks.done.len() >= self.size - 1
    }

    /// An error for a connection that broke: the peer's loss, or, if it finished in order, what `gone` says.
    pub fn lost_or_closed(&self, node: usize, how: String, gone: impl FnOnce() -> Error) -> Error {
        if self.is_done(node as u32) {
            return gone();
        }
        let how = self.how_lost(node as u32).unwrap_or(how);
        Error::PeerLost { node, how }
    }

    pub fn add_waker(&self, waker: CqHandle) -> u64 {
        let id = self.ends.next_waker.fetch_add(1, Ordering::Relaxed);
        self.ends.wakers.lock().insert(id, waker);
        id
    }

    pub fn remove_waker(&self, id: u64) {
        self.ends.wakers.lock().remove(&id);
    }
}

/// Ranks that ended, and who wants to be woken then.
#[derive(Default)]
struct Ends {
    seen: AtomicU64,
    ranks: Mutex<Ended>,
    wakers: Mutex<HashMap<u64, CqHandle>>,
    next_waker: AtomicU64,
}

#[derive(Default)]
struct Ended {
    lost: BTreeMap<u32, String>,
    done: BTreeSet<u32>,
}

impl Ends {
    /// On the launcher connection's thread.
    fn note(&self, event: &Event) {
        let mut ranks = self.ranks.lock();
        match event {
            Event::RankLost { rank, how } => {
                ranks.lost.insert(*rank, how.clone());
            }
            Event::RankDone { rank } => {
                ranks.done.insert(*rank);
            }
            _ => {}
        }
        drop(ranks);
        self.seen.fetch_add(1, Ordering::Release);
        for waker in self.wakers.lock().values() {
            waker.wake();
        }
    }
}

const _: () = {
    const fn is_send_and_sync<T: Send + Sync>() {}
    const fn is_send<T: Send>() {}
    is_send_and_sync::<World>();
    is_send_and_sync::<Error>();
    is_send::<Mailbox<f64>>();
    is_send::<Postbox<f64>>();
    is_send::<crate::Received<f64>>();
};
