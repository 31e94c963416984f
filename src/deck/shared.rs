//! What mailboxes, postboxes and the world have in common.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use udeck_boot::Client;
use udeck_via::mem::{Arena, Fill, StableBuffer, UserMemory};
use udeck_via::{Block, Caps, Cq, Deadline, Error as ViaError, NetAddress, Nic, Ptag, Receive, Region};
use udeck_via::{Vi, ViAttributes};

use crate::channel::{Channel, Whom};
use crate::config::Config;
use crate::ends::Ends;
use crate::error::{Error, Result};
use crate::holders::Registry;
use crate::inbox::grants::Grants;
use crate::item::Item;
use crate::progress::Progress;
use crate::stats::{Counters, Stats};
use crate::wire::{Advert, Introduction, Role};

/// Names of the library's own mailboxes begin so.
pub(crate) const INTERNAL: &str = "\u{1}deck/";
/// While other channels need a hand, no sleep is longer.
const HELPING: Duration = Duration::from_micros(200);
/// From this many bytes on, an allocation first collects buffers that came back: reusing the block that was used last
/// saves more cache misses than looking costs.
const LARGE: usize = 4096;

pub(crate) fn is_internal(name: &str) -> bool {
    name.starts_with(INTERNAL)
}

/// One rank's state, shared by its objects. Everything here may be used from any thread.
pub(crate) struct Shared {
    rank: usize,
    size: usize,
    client: Client,
    nic: Nic,
    /// The NIC's, close at hand: asking the device is a call per message.
    outbox: Arc<Arena>,
    max_transfer: usize,
    /// Of all postboxes' VIs, and of adopted memory. (One each would stay with the NIC when they are gone.)
    postboxes: Ptag,
    config: Config,
    oversubscribed: bool,
    ends: Arc<Ends>,
    progress: Arc<Progress>,
    books: Mutex<Books>,
    registry: Registry,
    undelivered: Mutex<BTreeMap<u32, Undelivered>>,
    has_undelivered: AtomicBool,
    next_postbox: AtomicU32,
    #[cfg(feature = "async")]
    watcher: udeck_via::Watcher,
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
    pub fn new(client: Client, nic: Nic, config: Config, oversubscribed: bool) -> Self {
        let ends = Arc::new(Ends::default());
        let listener = Arc::downgrade(&ends);
        client.on_event(Box::new(move |event| {
            if let Some(ends) = listener.upgrade() {
                ends.note(event);
            }
        }));
        Shared {
            rank: client.welcome().rank as usize,
            size: client.welcome().size as usize,
            client,
            postboxes: nic.ptag(),
            outbox: nic.outbox().clone(),
            max_transfer: nic.attributes().max_transfer,
            nic,
            config,
            oversubscribed,
            ends,
            progress: Arc::default(),
            books: Mutex::default(),
            registry: Registry::default(),
            undelivered: Mutex::default(),
            has_undelivered: AtomicBool::new(false),
            next_postbox: AtomicU32::new(0),
            #[cfg(feature = "async")]
            watcher: udeck_via::Watcher::default(),
        }
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn size(&self) -> usize {
        self.size
    }

    pub fn client(&self) -> &Client {
        &self.client
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

    /// Wakes tasks.
    #[cfg(feature = "async")]
    pub fn watcher(&self) -> &udeck_via::Watcher {
        &self.watcher
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
        let mut attributes = ViAttributes::new(self.postboxes);
        attributes.receive = Receive::Lent;
        attributes.enable_rdma_read = self.nic.caps().has(Caps::RDMA_READ);
        let mut vi = Vi::new(&self.nic, attributes).map_err(failed)?;
        let to = NetAddress { host: advert.address, discriminator: name.as_bytes().to_vec() };
        let introduction = self.introduce(number, Role::Control);
        vi.connect(&to, &cq.handle(), &cq.handle(), &introduction, deadline).map_err(failed)?;
        Ok(Channel::new(vi, cq, self.clone(), to, Whom { mailbox: name.to_owned(), owner, number }))
    }

    /// What a connection of postbox `number` says of itself.
    pub fn introduce(&self, number: u32, role: Role) -> [u8; 12] {
        Introduction { rank: self.rank as u32, postbox: number, role }.encode()
    }

    /// The tag of all postboxes' VIs.
    pub fn postboxes(&self) -> Ptag {
        self.postboxes
    }

    pub fn connect_error(&self, name: &str, owner: u32, error: ViaError) -> Error {
        let (name, node) = (name.to_owned(), owner as usize);
        match (self.ends.how_lost(owner), error) {
            (Some(how), _) | (None, ViaError::Lost(how)) => Error::PeerLost { node, how },
            // It registered the mailbox, and now nobody is there: the launcher's word of its end is on the way.
            (None, ViaError::Os { what, source }) if source.kind() == io::ErrorKind::ConnectionRefused => {
                Error::PeerLost { node, how: format!("{what}: {source}") }
            }
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
        if len >= LARGE {
            self.nic.reclaim_recent();
        }
        match self.outbox.block(len, fill) {
            Err(ViaError::NoMemory { .. }) => self.allocate_reclaimed(len, fill),
            other => other,
        }
    }

    #[cold]
    fn allocate_reclaimed(&self, len: usize, fill: Fill) -> Result<Block, ViaError> {
        self.nic.reclaim();
        self.outbox.block(len, fill)
    }

    /// Most bytes of a message.
    #[inline]
    pub fn max_transfer(&self) -> usize {
        self.max_transfer
    }

    /// Who may hold memory.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The books of a new mailbox.
    pub fn open_grants(&self, mailbox: &str) -> Arc<Grants> {
        self.registry.open_mailbox(mailbox)
    }

    /// Makes memory of the program's known to the NIC, or finds that it is still known.
    #[allow(clippy::result_large_err, reason = "refused memory comes back by value; refusals are rare")]
    pub fn register<B: StableBuffer>(
        &self,
        memory: UserMemory<B>,
    ) -> Result<Region, (ViaError, UserMemory<B>)> {
        self.nic.register_memory(memory, self.postboxes)
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

    pub fn stats(&self) -> Stats {
        let books = self.books.lock();
        let mut stats = books.gone;
        books.living.iter().for_each(|counters| counters.add_to(&mut stats));
        stats.bytes_copied += self.nic.bytes_copied();
        stats.registrations = self.nic.registrations();
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
    pub fn take_all_undelivered(&self) -> Result {
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
        let why = self.ends.how_lost(owner).unwrap_or(why);
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

    pub fn ends(&self) -> &Ends {
        &self.ends
    }

    /// Whether all other ranks have ended.
    pub fn is_deserted(&self) -> bool {
        self.size > 1 && self.ends.count() >= self.size - 1
    }

    /// An error for a connection that broke: the peer's loss, or, if it finished in order, what `gone` says.
    pub fn lost_or_closed(&self, node: usize, how: String, gone: impl FnOnce() -> Error) -> Error {
        if self.ends.is_done(node as u32) {
            return gone();
        }
        let how = self.ends.how_lost(node as u32).unwrap_or(how);
        Error::PeerLost { node, how }
    }

    /// Says goodbye to the launcher.
    pub fn part(&self, deadline: Deadline) -> Result {
        Ok(self.client.done(deadline.instant())?)
    }
}
