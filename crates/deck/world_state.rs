//! The state of a rank that its world, mailboxes and postboxes share.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use udeck_boot::{Client, family};
use udeck_via::mem::{Arena, Fill};
use udeck_via::transport::{LinkReport, Retransmissions};
use udeck_via::{Block, Deadline, Error as ViaError, Nic, NicAttributes, host_key, is_forked};

use crate::config::Config;
use crate::connect::wire::{Advert, Endpoint};
use crate::error::{Error, Result, check_process, is_internal};
use crate::exits::log::ExitLog;
use crate::incast::Rules;
use crate::mailbox_options::MailboxOptions;
use crate::memory::accounting::{Accounting, Holders};
use crate::memory::accounting::{Memory, MemoryQuota};
use crate::nics::{Nics, WorldNic};
use crate::progress::Progress;
use crate::route::Explained;
use crate::sharing::service::Sharing;
use crate::stats::{Arrivals, Counters, PeerStats, Stats};

/// Length in bytes from which an allocation first collects buffers that came back: reusing the block that was
/// used last saves more cache misses than the poll costs.
pub(crate) const LARGE: usize = 4096;

thread_local! {
    /// Whether this thread is in the finish of its world.
    static FINISHES: Cell<bool> = const { Cell::new(false) };
}

/// Guard of [`WorldState::finishing`].
pub(crate) struct Finishing;

impl Drop for Finishing {
    fn drop(&mut self) {
        FINISHES.set(false);
    }
}

/// One rank's state, shared by its objects. Everything here may be used from any thread.
pub(crate) struct WorldState {
    rank: usize,
    size: usize,
    client: Client,
    nics: Nics,
    /// The NICs' outbox, kept here because asking the device is a call per message.
    outbox: Arc<Arena>,
    max_transfer: usize,
    /// Identifier of this host; empty if the system gives none.
    host: Vec<u8>,
    /// The routes that were reported to the user, if the user asked for reports.
    explained: Option<Explained>,
    config: Config,
    oversubscribed: bool,
    exit_log: Arc<ExitLog>,
    progress: Arc<Progress>,
    all_counters: Mutex<AllCounters>,
    accounting: Accounting,
    undelivered: Mutex<BTreeMap<u32, Undelivered>>,
    /// Whether a post has to report something before it sends: lost messages, or that this rank has finished.
    has_news_for_posts: AtomicBool,
    /// Whether handles refuse calls: the world has ended, or is about to.
    is_closed: AtomicBool,
    /// Whether handles have ever refused calls.
    is_ending: AtomicBool,
    has_ended: AtomicBool,
    next_postbox: AtomicU32,
    next_call: AtomicU32,
    /// Number of groups made here, by name.
    groups: Mutex<BTreeMap<String, u32>>,
    sharing: Sharing,
    #[cfg(feature = "async")]
    watcher: udeck_via::Watcher,
}

/// Counters of living objects, and sums of the counters of objects that are gone.
#[derive(Default)]
struct AllCounters {
    /// Counters of mailboxes, and of postboxes with the ranks that they lead to.
    living: Vec<LiveCounters>,
    gone: Stats,
    /// Arrival counters of connections, with the ranks of their postboxes.
    arrivals: Vec<(u32, Arc<Arrivals>)>,
    gone_peers: BTreeMap<u32, PeerStats>,
}

struct LiveCounters {
    counters: Arc<Counters>,
    /// For a postbox: its mailbox's rank, and its connection.
    peer: Option<(u32, Option<Weak<dyn LinkReport>>)>,
    /// Whether the object carries the library's own messages.
    is_internal: bool,
}

impl AllCounters {
    fn open(&mut self, one: LiveCounters) {
        self.settle();
        self.living.push(one);
    }

    /// Adds the counters of objects that are gone to the sums.
    fn settle(&mut self) {
        let AllCounters { living, gone, arrivals, gone_peers } = self;
        let mut of = |peer: u32, add: &dyn Fn(&mut PeerStats)| {
            add(gone_peers.entry(peer).or_insert_with(|| PeerStats::new(peer)));
        };
        living.retain(|LiveCounters { counters, peer, is_internal }| {
            let alive = Arc::strong_count(counters) > 1;
            if !alive {
                counters.add_to(gone, *is_internal);
            }
            if let Some((peer, _)) = peer.as_ref().filter(|_| !alive) {
                of(*peer, &|stats| counters.add_to_peer(stats));
            }
            alive
        });
        arrivals.retain(|(peer, arrivals)| {
            let alive = Arc::strong_count(arrivals) > 1;
            if !alive {
                of(*peer, &|stats| arrivals.add_to_peer(stats));
            }
            alive
        });
    }
}

struct Undelivered {
    count: usize,
    name: String,
    owner: u32,
    why: String,
}

impl WorldState {
    pub fn new(client: Client, nics: Nics, config: Config, oversubscribed: bool) -> Self {
        let first = &nics.first.nic;
        let exit_log = Arc::new(ExitLog::default());
        let listener = Arc::downgrade(&exit_log);
        client.on_event(Box::new(move |event| {
            if let Some(exit_log) = listener.upgrade() {
                exit_log.record(event);
            }
        }));
        WorldState {
            rank: client.welcome().rank as usize,
            size: client.welcome().size as usize,
            explained: config.explain.then(|| Explained::new(client.welcome().rank)),
            client,
            outbox: first.outbox().clone(),
            max_transfer: nics.max_transfer(),
            nics,
            host: host_key().map_or(Vec::new(), Vec::from),
            progress: Arc::new(Progress::new(config.progress_thread)),
            config,
            oversubscribed,
            exit_log,
            all_counters: Mutex::default(),
            accounting: Accounting::default(),
            undelivered: Mutex::default(),
            has_news_for_posts: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            next_postbox: AtomicU32::new(0),
            next_call: AtomicU32::new(0),
            groups: Mutex::default(),
            sharing: Sharing::default(),
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

    /// The preferred NIC. All NICs use the same memory.
    pub fn nic(&self) -> &Nic {
        &self.nics.first.nic
    }

    pub fn nics(&self) -> &Nics {
        &self.nics
    }

    /// Identifier of this host; empty if the system gives none.
    pub fn host(&self) -> &[u8] {
        &self.host
    }

    /// The ranks whose messages may come by this NIC; `None` if all may. If messages between hosts have to be
    /// encrypted and this NIC does not encrypt, only the ranks of this host. The launcher, not the rank, says
    /// where a rank runs.
    pub fn admitted_by(&self, attributes: &NicAttributes) -> Option<Vec<u32>> {
        let may_cross = attributes.host_only || attributes.encrypted || !self.config.encrypt;
        (!may_cross).then(|| self.client.welcome().neighbours().collect())
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

    /// The thread that wakes tasks.
    #[cfg(feature = "async")]
    pub fn watcher(&self) -> &udeck_via::Watcher {
        &self.watcher
    }

    // ---- names ----

    /// Registers a mailbox of this rank at the name service.
    pub fn advertise(&self, registered: &str, kind: &str, size: usize, options: &MailboxOptions) -> Result {
        let endpoint = |world_nic: &WorldNic| {
            let (transport, address) =
                (world_nic.transport.clone(), world_nic.nic.attributes().address.clone());
            Endpoint { transport, address }
        };
        let advert = Advert {
            encrypt: self.config.encrypt,
            level: options.level,
            queue: options.queue.map(|bytes| bytes as u64),
            depth: options.depth.map(|messages| messages.max(1)),
            incast: self.incast_rules(registered),
            host: self.host.clone(),
            endpoints: self.nics.iter().map(endpoint).collect(),
            kind: kind.to_owned(),
            size: size as u32,
        };
        let deadline = Deadline::after(self.config.setup);
        Ok(self.client.register(registered, &advert.encode(), deadline.instant())?)
    }

    /// The error of a mailbox that could not be made: most likely its name is taken, perhaps by this very
    /// rank.
    #[cold]
    pub fn taken_or(&self, registered: &str, error: Error) -> Error {
        match self.client.lookup(registered, false, Deadline::after(self.config.setup).instant()) {
            Ok(record) => {
                let name = family::parts(registered).0.to_owned();
                Error::NameTaken { name, rank: record.owner as usize }
            }
            Err(_) => error,
        }
    }

    /// Removes a mailbox of this rank from the name service. After `finish` the service is gone, and the name
    /// with it.
    pub fn withdraw(&self, registered: &str) {
        let _ = self.client.unregister(registered, Deadline::after(self.config.setup).instant());
    }

    /// Incast rules of a mailbox of this rank. The library's own mailboxes have none: their messages answer
    /// one another.
    pub fn incast_rules(&self, registered: &str) -> Rules {
        if is_internal(registered) { Rules::Off } else { Rules::new(self.config.incast, self.size()) }
    }

    // ---- memory ----

    /// Allocates a block. If the arena is full, first collects the blocks that receivers have given back.
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

    /// Longest message, in bytes.
    #[inline]
    pub fn max_transfer(&self) -> usize {
        self.max_transfer
    }

    /// The arena of this kind of memory.
    pub fn arena(&self, memory: Memory) -> &Arc<Arena> {
        match memory {
            Memory::Outbox => self.nic().outbox(),
            Memory::Landing => self.nic().landing(),
        }
    }

    /// Most bytes of one arena that a mailbox grants at a time: half of the longest message. (No message is
    /// longer than an arena.)
    pub fn max_granted(&self) -> usize {
        self.nic().attributes().max_transfer / 2
    }

    /// Bound of a postbox's queue, in bytes: what its mailbox says, or else this rank's setting, but at most
    /// a quarter of the message memory. The rest is left to new messages, to received ones, and to copies on
    /// their way.
    pub fn queue_limit(&self, said: Option<u64>) -> usize {
        let wanted = said.map_or(self.config.queue, |said| usize::try_from(said).unwrap_or(usize::MAX));
        wanted.min(self.outbox.usage().limit / 4)
    }

    /// The holders of message memory.
    pub fn accounting(&self) -> &Accounting {
        &self.accounting
    }

    /// The holders of `memory` at this moment.
    pub fn holders(&self, memory: Memory) -> Holders {
        self.accounting.holders(memory, self.arena(memory).usage().used)
    }

    /// Opens the quota of a new mailbox.
    pub fn open_quota(&self, mailbox: &str) -> Arc<MemoryQuota> {
        self.accounting.open_mailbox(mailbox)
    }

    // ---- counts ----

    /// Makes the counters of a mailbox.
    pub fn mailbox_counters(&self, mailbox: &str) -> Arc<Counters> {
        let counters = Arc::<Counters>::default();
        let is_internal = is_internal(mailbox);
        self.all_counters.lock().open(LiveCounters { counters: counters.clone(), peer: None, is_internal });
        counters
    }

    /// Makes the counters of a postbox that leads to a mailbox of rank `peer`. `link` reports on its
    /// connection.
    pub fn postbox_counters(
        &self,
        mailbox: &str,
        peer: u32,
        link: Option<Weak<dyn LinkReport>>,
    ) -> Arc<Counters> {
        let counters = Arc::<Counters>::default();
        let peer = Some((peer, link));
        let is_internal = is_internal(mailbox);
        self.all_counters.lock().open(LiveCounters { counters: counters.clone(), peer, is_internal });
        counters
    }

    /// Registers the arrival counters of a connection from rank `peer`.
    pub fn count_arrivals(&self, peer: u32, arrivals: &Arc<Arrivals>) {
        let mut all_counters = self.all_counters.lock();
        all_counters.settle();
        all_counters.arrivals.push((peer, arrivals.clone()));
    }

    /// Counters of the messages between this rank and each other one, and itself, in the order of their
    /// ranks.
    pub fn peers(&self) -> Vec<PeerStats> {
        if is_forked() {
            return Vec::new(); // another thread of the parent's may have had the lock
        }
        let all_counters = self.all_counters.lock();
        let mut peers = all_counters.gone_peers.clone();
        let of = |peers: &mut BTreeMap<u32, PeerStats>, peer: u32, add: &dyn Fn(&mut PeerStats)| {
            add(peers.entry(peer).or_insert_with(|| PeerStats::new(peer)));
        };
        let mut links = Vec::new();
        for LiveCounters { counters, peer, .. } in &all_counters.living {
            let Some((peer, link)) = peer else { continue };
            of(&mut peers, *peer, &|stats| counters.add_to_peer(stats));
            links.extend(link.as_ref().and_then(Weak::upgrade).map(|link| (*peer, link)));
        }
        for (peer, arrivals) in &all_counters.arrivals {
            of(&mut peers, *peer, &|stats| arrivals.add_to_peer(stats));
        }
        // Links have locks of their own.
        drop(all_counters);
        let mut seen = BTreeSet::new();
        for (peer, link) in links {
            if let Some(Retransmissions { connection, packets }) = link.retransmissions()
                && seen.insert((peer, connection))
            {
                of(&mut peers, peer, &|stats| stats.retransmissions += packets);
            }
        }
        peers.into_values().collect()
    }

    pub fn stats(&self) -> Stats {
        if is_forked() {
            return Stats::default();
        }
        let all_counters = self.all_counters.lock();
        let mut stats = all_counters.gone;
        all_counters.living.iter().for_each(|one| one.counters.add_to(&mut stats, one.is_internal));
        stats.bytes_copied += self.nics.bytes_copied();
        stats.registrations = self.nics.registrations();
        stats
    }

    // ---- messages that were lost ----

    #[inline]
    pub fn has_news_for_posts(&self) -> bool {
        self.has_news_for_posts.load(Ordering::Relaxed)
    }

    pub fn note_undelivered(&self, postbox: u32, count: usize, name: &str, owner: u32, why: &str) {
        // Skips the library's own: a group's call reports by itself that it failed.
        if is_internal(name) {
            return;
        }
        let mut all = self.undelivered.lock();
        let entry = all.entry(postbox).or_insert_with(|| Undelivered {
            count: 0,
            name: name.to_owned(),
            owner,
            why: why.to_owned(),
        });
        entry.count += count;
        self.has_news_for_posts.store(true, Ordering::Relaxed);
    }

    /// Reports the lost messages of one postbox, once.
    pub fn take_undelivered(&self, postbox: u32) -> Result {
        let mut all = self.undelivered.lock();
        let found = all.remove(&postbox);
        self.has_news_for_posts.store(!all.is_empty() || self.is_closed(), Ordering::Relaxed);
        drop(all);
        found.map_or(Ok(()), |undelivered| Err(self.undelivered_error(undelivered)))
    }

    /// Reports all lost messages, once.
    pub fn take_all_undelivered(&self) -> Result {
        let mut all = self.undelivered.lock();
        let undelivered = std::mem::take(&mut *all);
        self.has_news_for_posts.store(self.is_closed(), Ordering::Relaxed);
        drop(all);
        let mut errors: Vec<Error> =
            undelivered.into_values().map(|one| self.undelivered_error(one)).collect();
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Error::Multiple(errors)),
        }
    }

    fn undelivered_error(&self, Undelivered { count, name, owner, why }: Undelivered) -> Error {
        let why = self.exit_log.how_lost(owner).unwrap_or(why);
        Error::Undelivered { count, name, rank: owner as usize, why }
    }

    // ---- waiting ----

    /// Whether a message of any postbox waits for an answer, so that a wait has to progress it.
    #[inline]
    pub fn has_pending_progress(&self) -> bool {
        self.progress.is_busy()
    }

    /// Progresses the announced messages of other postboxes. Returns whether any moved; then the caller is
    /// not idle.
    #[inline]
    pub fn progress_other_postboxes(&self) -> bool {
        self.progress.is_busy() && !is_forked() && self.progress.help()
    }

    /// Whether messages wait for answers while no thread of the library progresses them.
    pub fn lacks_progress(&self) -> bool {
        self.progress.is_busy() && !self.progress.has_helper()
    }

    /// Time until which a wait may sleep before it should progress other postboxes again.
    pub fn slice(&self, deadline: Deadline) -> Deadline {
        if self.progress.is_busy() {
            deadline.min(Deadline::after(self.progress.sleep_limit()))
        } else {
            deadline
        }
    }

    // ---- ranks that ended ----

    /// The shared objects that this rank has.
    pub fn sharing(&self) -> &Sharing {
        &self.sharing
    }

    /// Returns a number for a new postbox.
    pub fn next_postbox(&self) -> u32 {
        self.next_postbox.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the number of this rank's next call by a service. A service that is made anew has new numbers, so that it
    /// does not take a late reply to the old one.
    pub fn next_call(&self) -> u32 {
        self.next_call.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns how many groups of that name were made here before, and counts one more.
    pub fn next_group(&self, name: &str) -> u32 {
        let mut groups = self.groups.lock();
        let made = groups.entry(name.to_owned()).or_default();
        *made += 1;
        *made - 1
    }

    pub fn exit_log(&self) -> &ExitLog {
        &self.exit_log
    }

    /// Whether all other ranks have ended.
    pub fn is_deserted(&self) -> bool {
        self.size > 1 && self.exit_log.count() >= self.size - 1
    }

    /// Ends the handles of this world: none posts, waits or takes part in a collective call from now on. Lost
    /// messages have been reported before.
    pub fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
        self.close(true);
    }

    /// Sets whether handles refuse calls from now on, and wakes those that wait.
    pub fn close(&self, is_closed: bool) {
        let undelivered = self.undelivered.lock();
        self.is_closed.store(is_closed, Ordering::Relaxed);
        self.is_ending.fetch_or(is_closed, Ordering::Relaxed);
        self.has_news_for_posts.store(is_closed || !undelivered.is_empty(), Ordering::Relaxed);
        drop(undelivered);
        self.exit_log.wake();
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Whether waits in this world are to end: the world was closed, even if its handles work again for its
    /// finish, and this thread is not the one that finishes it.
    #[inline]
    pub fn is_wait_over(&self) -> bool {
        self.is_ending.load(Ordering::Relaxed) && !FINISHES.get()
    }

    /// Checks that a long wait may go on.
    ///
    /// # Errors
    /// The errors of [`WorldState::check`].
    pub fn check_wait(&self) -> Result {
        self.check()?;
        if self.is_wait_over() { Err(Error::WorldFinished) } else { Ok(()) }
    }

    /// Marks this thread as finishing a world, until the returned guard is dropped.
    pub fn finishing() -> Finishing {
        FINISHES.set(true);
        Finishing
    }

    /// Checks that a handle of this world may take a lock, wait or send.
    ///
    /// # Errors
    /// This process is a forked child; [`Error::WorldFinished`].
    #[inline]
    pub fn check(&self) -> Result {
        check_process()?;
        if self.is_closed() { Err(Error::WorldFinished) } else { Ok(()) }
    }

    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Says goodbye to the launcher.
    pub fn sign_off(&self, deadline: Deadline) -> Result {
        Ok(self.client.finish(deadline.instant())?)
    }
}
