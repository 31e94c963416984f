//! What mailboxes, postboxes and the world have in common.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use udeck_boot::{BootError, Client, Maker};
use udeck_via::mem::{Arena, Fill};
use udeck_via::{Block, Deadline, Error as ViaError, Nic, host_key, is_forked};

use crate::channel::{Channel, Whom};
use crate::config::Config;
use crate::ends::Ends;
use crate::error::{Error, Result};
use crate::holders::Registry;
use crate::inbox::grants::Grants;
use crate::item::Item;
use crate::nics::{Line, Nics};
use crate::progress::Progress;
use crate::routes::Explained;
use crate::routes::wire::{Advert, Door};
use crate::stats::{Counters, Stats};
use crate::wire::{Introduction, Role};

/// Names of the library's own mailboxes begin so.
pub(crate) const INTERNAL: &str = "\u{1}deck/";
/// How long the launcher's word of a rank's end is waited for.
pub(crate) const WORD: Duration = Duration::from_secs(1);
/// The same where the launcher has no sign of it.
pub(crate) const SIGN: Duration = Duration::from_millis(100);

/// How a mailbox is looked for.
#[derive(Clone, Copy)]
pub(crate) enum Sought {
    /// It exists, or not.
    Now,
    /// It is waited for as long as it may be made.
    Of(Maker),
}

/// From this many bytes on, an allocation first collects buffers that came back: reusing the block that was used last
/// saves more cache misses than looking costs.
pub(crate) const LARGE: usize = 4096;

pub(crate) fn is_internal(name: &str) -> bool {
    name.starts_with(INTERNAL)
}

/// One rank's state, shared by its objects. Everything here may be used from any thread.
pub(crate) struct Shared {
    rank: usize,
    size: usize,
    client: Client,
    nics: Nics,
    /// The NICs', close at hand: asking the device is a call per message.
    outbox: Arc<Arena>,
    max_transfer: usize,
    /// What names this host; empty where the system does not say.
    host: Vec<u8>,
    /// Which ways were told to the user, if he wants to know.
    explained: Option<Explained>,
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
    pub fn new(client: Client, nics: Nics, config: Config, oversubscribed: bool) -> Self {
        let first = &nics.first.nic;
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
            explained: config.explain.then(|| Explained::new(client.welcome().rank)),
            client,
            outbox: first.outbox().clone(),
            max_transfer: nics.max_transfer(),
            nics,
            host: host_key().map_or(Vec::new(), Vec::from),
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

    /// The one that is preferred. Its memory is that of all.
    pub fn nic(&self) -> &Nic {
        &self.nics.first.nic
    }

    pub fn nics(&self) -> &Nics {
        &self.nics
    }

    /// What names this host; empty where the system does not say.
    pub fn host(&self) -> &[u8] {
        &self.host
    }

    pub fn explained(&self) -> Option<&Explained> {
        self.explained.as_ref()
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
        let door = |line: &Line| {
            let (transport, address) = (line.transport.clone(), line.nic.attributes().address.clone());
            Door { transport, address }
        };
        let advert = Advert {
            host: self.host.clone(),
            doors: self.nics.iter().map(door).collect(),
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
    pub fn connect<T: Item>(
        self: &Arc<Self>,
        name: &str,
        sought: Sought,
        deadline: Deadline,
    ) -> Result<Channel> {
        let record = match sought {
            Sought::Now => self.client.lookup(name, false, deadline.instant()),
            Sought::Of(maker) => self.client.lookup_of(name, maker, deadline.instant()),
        };
        let record = record.map_err(|error| self.lookup_error(name, error))?;
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
        let number = self.next_postbox.fetch_add(1, Ordering::Relaxed);
        let whom = Whom { mailbox: name.to_owned(), owner: record.owner, number };
        self.reach(whom, &advert, deadline)
    }

    /// Why a mailbox could not be found.
    #[cold]
    fn lookup_error(&self, name: &str, error: BootError) -> Error {
        let name = name.to_owned();
        match error {
            BootError::PeerDone { rank, .. } => Error::MailboxGone { name, owner: rank as usize },
            BootError::NoSuchName { existing, waited, .. } => {
                let existing = existing.into_iter().filter(|name| !is_internal(name)).collect();
                Error::NoSuchMailbox { name, existing, waited, lost: self.ends.lost() }
            }
            // Whoever was to make it has ended. If one was lost, it may have been that one.
            BootError::NobodyLeft { .. } => match self.ends.lost_beyond(&BTreeSet::new()) {
                Some((rank, how)) => Error::PeerLost { node: rank as usize, how },
                None => Error::NobodyLeft { name },
            },
            other => other.into(),
        }
    }

    /// What a connection of postbox `number` says of itself.
    pub fn introduce(&self, number: u32, role: Role) -> [u8; 8] {
        Introduction { postbox: number, role }.encode()
    }

    // ---- memory ----

    /// A block; when the arena is full, first collects what receivers have given back.
    #[inline]
    pub fn allocate(&self, len: usize, fill: Fill) -> Result<Block, ViaError> {
        if len >= LARGE {
            self.nics.reclaim_recent();
        }
        match self.outbox.block(len, fill) {
            Err(ViaError::NoMemory { .. }) => self.allocate_reclaimed(len, fill),
            other => other,
        }
    }

    #[cold]
    fn allocate_reclaimed(&self, len: usize, fill: Fill) -> Result<Block, ViaError> {
        self.nics.reclaim();
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
        stats.bytes_copied += self.nics.bytes_copied();
        stats.registrations = self.nics.registrations();
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

    /// Moves announced messages of other postboxes along. Whether any moved: then whoever waits is not idle.
    #[inline]
    pub fn help_others(&self) -> bool {
        self.progress.is_busy() && !is_forked() && self.progress.help()
    }

    /// How long a wait may sleep before it should help others again.
    pub fn slice(&self, deadline: Deadline) -> Deadline {
        if self.progress.is_busy() { deadline.min(Deadline::after(self.progress.rest())) } else { deadline }
    }

    // ---- ranks that ended ----

    pub fn ends(&self) -> &Ends {
        &self.ends
    }

    /// Whether all other ranks have ended.
    pub fn is_deserted(&self) -> bool {
        self.size > 1 && self.ends.count() >= self.size - 1
    }

    /// Whether a rank whose connection broke has finished in order. Who finishes tells the launcher before it leaves, but the
    /// launcher's word of that may come later than the connection's end: so it is asked. Waits for the answer, a second at most;
    /// 100 ms if the rank seems to be there.
    #[cold]
    pub fn has_finished(&self, rank: u32) -> bool {
        if !self.ends.is_done(rank) && self.ends.how_lost(rank).is_none() {
            // Without an answer, what is known has to do.
            let _ = self.client.fate(rank, SIGN, Deadline::after(WORD).instant());
        }
        self.ends.is_done(rank)
    }

    /// An error for a connection that broke: the peer's loss, or, if it finished in order, what `gone` says.
    pub fn lost_or_closed(&self, node: usize, how: String, gone: impl FnOnce() -> Error) -> Error {
        if self.has_finished(node as u32) {
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
