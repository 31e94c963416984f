//! Completions of all queue pairs of a NIC: any polling thread takes them, and passes each to its link.
//!
//! The completion queues have room for every request that may be outstanding, so none overflows: another queue is
//! made when all room of the existing ones is reserved. Each queue also has room for all buffers of
//! [pools](crate::recv_buffers), whichever queue pair fills them. The queues share one channel, beside which a
//! thread sleeps.
//!
//! A request names its link, so its completion can be passed on. A buffer of a pool belongs to no link when it is
//! posted: its completion is passed on by the queue pair's number.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use smallvec::SmallVec;
use udeck_session::Events;
use udeck_sys::ranked::RankedMutex;

use crate::connection::RECEIVES;
use crate::ffi::Wc;
use crate::hca::objects::{CompletionChannel, Context, Cq};
use crate::link::VerbsLink;
use crate::locks::{ASIDE, POLLING, POOLS, ROUTES, SHARDS};
use crate::queue::SENDS;
use crate::recv_buffers::Pool;

/// Entries of the first queue; each further one is twice as long.
const FIRST: u32 = 4096;
/// Upper bound of the outstanding requests of a queue pair with receive buffers of its own.
const NEED: u32 = SENDS + RECEIVES;
/// Number of completions that are taken at a time.
const BATCH: usize = 32;
/// Number of batches in a row from one queue before others have their turn.
const BATCHES: usize = 8;

/// Completion queues of a NIC, and the routes of their completions.
pub struct Completions {
    pub channel: Arc<CompletionChannel>,
    most: u32,
    /// Number of entries of each queue that are kept for buffers of pools.
    pooled: u32,
    shards: RankedMutex<Vec<Shard>>,
    /// Held by the thread that takes completions, so that each link gets its completions in order.
    poll_state: RankedMutex<PollState>,
    /// Held by the thread that polls. It has completions that were polled while another queue pair was destroyed,
    /// oldest first.
    aside: RankedMutex<VecDeque<Wc>>,
    routes: RankedMutex<Numbered<CompletionRoute>>,
    pools: RankedMutex<Pools>,
    next: AtomicU32,
    looks: AtomicU64,
}

/// Hashes numbers of links. They are ours and consecutive, so mixing them well gains nothing.
#[derive(Default)]
struct Number(u64);

impl Hasher for Number {
    fn finish(&self) -> u64 {
        self.0
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        // The table uses the upper bits as a tag, the lower bits as the place.
        self.0 = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    /// Not used: only numbers of links and pools are hashed.
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }
}

type Numbered<T> = HashMap<u32, T, BuildHasherDefault<Number>>;

/// Owners of the pools' buffers.
#[derive(Default)]
struct Pools {
    /// Links by the numbers of their queue pairs.
    pairs: Numbered<u32>,
    /// Pools by their numbers.
    pools: Numbered<Weak<Pool>>,
}

/// Destination of a link's completions.
enum CompletionRoute {
    /// The link is being made, and its peer may send already: the completions that came meanwhile.
    Awaited(Vec<Wc>),
    Link(Arc<VerbsLink>),
}

/// State of the thread that takes completions.
struct PollState {
    queues: Vec<Arc<Cq>>,
    batch: [Wc; BATCH],
}

/// Objects to drop, and failures to report, after the locks are released: dropping them may run any code. They are
/// owners of memory, and links whose last reference this is, with all that their connections hold.
#[derive(Default)]
struct AfterUnlock {
    events: Vec<Events>,
    /// Few links have completions at a time, so that nothing is allocated for them.
    links: SmallVec<[Arc<VerbsLink>; 8]>,
    /// A completion queue has failed: all links are failed, which drops objects of the same kind.
    has_failed: bool,
}

struct Shard {
    cq: Arc<Cq>,
    free: u32,
}

/// Share of a queue pair in a completion queue. Dropping it gives the share back.
pub struct Share {
    pub cq: Arc<Cq>,
    /// Number of the link.
    pub number: u32,
    need: u32,
    /// Pool from which the queue pair receives; `None`: it has buffers of its own.
    pool: Option<Arc<Pool>>,
    completions: Arc<Completions>,
}

impl Share {
    pub fn pool(&self) -> Option<Arc<Pool>> {
        self.pool.clone()
    }

    /// Calls [`Completions::add_pair`].
    pub fn add_pair(&self, pair: u32) {
        self.completions.add_pair(pair, self.number);
    }

    /// Calls [`Completions::set_aside`].
    pub fn set_aside(&self, pair: u32, pool: &Pool) {
        self.completions.set_aside(&self.cq, pair, pool);
    }
}

impl Completions {
    /// Makes the object without a queue. `most` is the number of entries that the device allows, `pooled` that of
    /// all pools' buffers.
    ///
    /// # Errors
    /// The kernel's error: no descriptors left.
    pub fn new(context: &Arc<Context>, most: u32, pooled: u32) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Completions {
            channel: CompletionChannel::new(context)?,
            most: most.max(NEED + pooled),
            pooled,
            aside: RankedMutex::new(ASIDE, VecDeque::new()),
            pools: RankedMutex::new(POOLS, Pools::default()),
            shards: RankedMutex::new(SHARDS, Vec::new()),
            poll_state: RankedMutex::new(
                POLLING,
                PollState { queues: Vec::new(), batch: [Wc::default(); BATCH] },
            ),
            routes: RankedMutex::new(ROUTES, Numbered::default()),
            next: AtomicU32::new(1),
            looks: AtomicU64::new(0),
        }))
    }

    /// Reserves room for one more queue pair, which has receive buffers of its own or those of a pool.
    ///
    /// # Errors
    /// The device's error: it has no more queues or entries.
    pub fn share(self: &Arc<Self>, pool: Option<Arc<Pool>>) -> io::Result<Share> {
        let need = if pool.is_none() { NEED } else { SENDS };
        let cq = match self.reserve(need) {
            Ok(cq) => cq,
            Err(queues) => self.add_queue(queues, need)?,
        };
        Ok(Share { cq, number: self.fresh(), need, pool, completions: self.clone() })
    }

    /// Reserves room in one of the queues. If none has room, the error is the number of queues.
    fn reserve(&self, need: u32) -> Result<Arc<Cq>, usize> {
        let mut shards = self.shards.lock();
        let queues = shards.len();
        let shard = shards.iter_mut().find(|shard| shard.free >= need).ok_or(queues)?;
        shard.free -= need;
        Ok(shard.cq.clone())
    }

    /// Adds a queue, with room reserved in it. `queues` is the number of existing ones. If another thread adds one
    /// at the same time, there are two more.
    fn add_queue(&self, queues: usize, need: u32) -> io::Result<Arc<Cq>> {
        let wanted = FIRST.checked_shl(queues as u32).unwrap_or(u32::MAX);
        let cq = Cq::new(&self.channel, wanted.clamp(NEED + self.pooled, self.most))?;
        cq.notify();
        self.poll_state.lock().queues.push(cq.clone());
        let free = cq.entries().saturating_sub(self.pooled + need);
        self.shards.lock().push(Shard { free, cq: cq.clone() });
        Ok(cq)
    }

    /// Returns a number of 30 bits, which is seldom used twice.
    pub fn number(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed) & NUMBERS
    }

    /// Returns a number for a link, from 1. Completions for it are kept until the link is [added](Completions::add).
    fn fresh(&self) -> u32 {
        loop {
            let number = self.number();
            let mut routes = self.routes.lock();
            if number != 0 && !routes.contains_key(&number) {
                routes.insert(number, CompletionRoute::Awaited(Vec::new()));
                return number;
            }
        }
    }

    /// Adds a link. It gets the completions that were kept for it before any others.
    pub fn add(&self, number: u32, link: &Arc<VerbsLink>) {
        let poll_state = self.poll_state.lock();
        let former = self.routes.lock().insert(number, CompletionRoute::Link(link.clone()));
        let events = match former {
            Some(CompletionRoute::Awaited(came)) if !came.is_empty() => Some(link.completed(&came)),
            _ => None,
        };
        drop(poll_state);
        drop(events);
    }

    pub fn remove(&self, number: u32) {
        let route = self.routes.lock().remove(&number);
        drop(route); // never a link's last reference, but dropped outside the lock all the same
    }

    pub fn link(&self, number: u32) -> Option<Arc<VerbsLink>> {
        match self.routes.lock().get(&number) {
            Some(CompletionRoute::Link(link)) => Some(link.clone()),
            Some(CompletionRoute::Awaited(_)) | None => None,
        }
    }

    pub fn links(&self) -> Vec<Arc<VerbsLink>> {
        let routes = self.routes.lock();
        let link = |route: &CompletionRoute| match route {
            CompletionRoute::Link(link) => Some(link.clone()),
            CompletionRoute::Awaited(_) => None,
        };
        routes.values().filter_map(link).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.routes.lock().is_empty()
    }

    /// Number of polls by program threads; the helper's are not counted.
    pub fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    /// Polls once for a program's thread: waits for the thread that takes completions at the moment, so that earlier
    /// completions have been passed on, and then takes some. The caller holds no link's lock.
    pub fn poll(&self) {
        self.looks.fetch_add(1, Ordering::Relaxed);
        let mut after_unlock = None;
        let mut poll_state = self.poll_state.lock();
        self.take_from(&mut poll_state, &mut after_unlock);
        drop(poll_state);
        self.drop_and_report(after_unlock);
    }

    /// Takes all completions, and perhaps some that come meanwhile, but never more than the queues can hold. The
    /// caller holds no link's lock.
    pub fn take_all(&self) {
        let mut after_unlock = None;
        let mut poll_state = self.poll_state.lock();
        let longest = poll_state.queues.iter().map(|cq| cq.entries() as usize).max().unwrap_or(0);
        // The completions set aside come before those in the queues, and each round takes so many of either.
        let there = self.aside.lock().len() + longest;
        for _ in 0..there / (BATCH * BATCHES) + 2 {
            if !self.take_from(&mut poll_state, &mut after_unlock) {
                break;
            }
        }
        drop(poll_state);
        self.drop_and_report(after_unlock);
    }

    /// Drops and reports the results of a poll, without the lock. (Always inlined: otherwise the value, which is
    /// mostly empty, is moved by each fruitless poll.)
    #[inline(always)]
    fn drop_and_report(&self, after_unlock: Option<AfterUnlock>) {
        let Some(after_unlock) = after_unlock else { return };
        let has_failed = after_unlock.has_failed;
        drop(after_unlock);
        if has_failed {
            self.fail();
        }
    }

    /// Takes some completions of each queue. Returns whether there may be more.
    fn take_from(&self, poll_state: &mut PollState, after_unlock: &mut Option<AfterUnlock>) -> bool {
        let PollState { queues, batch } = poll_state;
        let mut more = false;
        for cq in queues {
            let mut batches = 0;
            loop {
                let found = match self.poll_cq(cq, &mut batch[..]) {
                    // Most polls find nothing.
                    Ok(0) => break,
                    Ok(found) => found,
                    Err(_) => {
                        after_unlock.get_or_insert_default().has_failed = true;
                        return false;
                    }
                };
                self.pass_on(&batch[..found], after_unlock.get_or_insert_default());
                batches += 1;
                if found < BATCH || batches == BATCHES {
                    more |= found == BATCH;
                    break;
                }
            }
        }
        more
    }

    #[cold]
    fn fail(&self) {
        for link in self.links() {
            link.give_up("the device's completion queue has failed");
        }
    }

    /// Polls the completions set aside, which are older, and then the queue. Fewer than a batch means that there are
    /// no more.
    fn poll_cq(&self, cq: &Cq, batch: &mut [Wc]) -> io::Result<usize> {
        let mut aside = self.aside.lock();
        if aside.is_empty() {
            return cq.poll(batch);
        }
        let count = batch.len().min(aside.len());
        let (first, rest) = batch.split_at_mut(count);
        first.iter_mut().zip(aside.drain(..count)).for_each(|(to, wc)| *to = wc);
        Ok(count + if rest.is_empty() { 0 } else { cq.poll(rest)? })
    }

    /// Passes completions to their links, several in a row at once.
    fn pass_on(&self, batch: &[Wc], after_unlock: &mut AfterUnlock) {
        let whose = |wc: &Wc| (number_of(wc.wr_id), wc.qp_num);
        for run in batch.chunk_by(|one, next| whose(one) == whose(next)) {
            let name = run[0].wr_id;
            let number = if is_shared(name) { self.link_of_pair(run[0].qp_num) } else { number_of(name) };
            let link = match self.routes.lock().get_mut(&number) {
                Some(CompletionRoute::Link(link)) => Some(link.clone()),
                Some(CompletionRoute::Awaited(came)) => {
                    came.extend_from_slice(run);
                    continue;
                }
                None => None,
            };
            match link {
                Some(link) => {
                    let events = link.completed(run);
                    if events.has_owners() {
                        after_unlock.events.push(events);
                    }
                    if !after_unlock.links.last().is_some_and(|last| Arc::ptr_eq(last, &link)) {
                        after_unlock.links.push(link);
                    }
                }
                // The link is gone, and buffers of pools may have been among its completions.
                None => self.empty(run),
            }
        }
    }

    // ---- pools ----

    /// Number of the link with this queue pair; 0 if there is none any more.
    fn link_of_pair(&self, pair: u32) -> u32 {
        self.pools.lock().pairs.get(&pair).copied().unwrap_or(0)
    }

    /// Gives buffers of pools back to the device: the frames in them are for nobody.
    pub fn empty(&self, completions: &[Wc]) {
        for wc in completions.iter().filter(|wc| is_shared(wc.wr_id)) {
            let pool = self.pools.lock().pools.get(&number_of(wc.wr_id)).and_then(Weak::upgrade);
            if let Some(pool) = pool {
                pool.recycle(request_of(wc.wr_id).1);
            }
        }
    }

    /// Adds a pool.
    pub fn add_pool(&self, pool: &Arc<Pool>) {
        let mut pools = self.pools.lock();
        pools.pools.retain(|_, pool| pool.strong_count() > 0);
        pools.pools.insert(pool.number, Arc::downgrade(pool));
    }

    /// Notes that the queue pair `pair` of link `link` receives out of a pool. The caller holds no link's lock.
    pub fn add_pair(&self, pair: u32, link: u32) {
        // The device may have used this number before. The lock makes sure that completions of the former pair have
        // been passed on.
        let poll_state = self.poll_state.lock();
        self.pools.lock().pairs.insert(pair, link);
        drop(poll_state);
    }

    /// Sets aside the completions of other queue pairs, before a queue pair that receives out of `pool` is
    /// destroyed. That one takes nothing any more. Its own completions vanish with it, those of others keep their
    /// order. The caller may hold a link's lock.
    pub fn set_aside(&self, cq: &Cq, pair: u32, pool: &Pool) {
        self.pools.lock().pairs.remove(&pair);
        let mut aside = self.aside.lock();
        let mut batch = [Wc::default(); BATCH];
        let mut set_aside = |batch: &[Wc]| {
            for wc in batch {
                match (wc.qp_num == pair, is_shared(wc.wr_id)) {
                    (false, _) => aside.push_back(*wc),
                    (true, true) => pool.recycle(request_of(wc.wr_id).1),
                    (true, false) => {}
                }
            }
        };
        // The loop is bounded by the completions that can have come before.
        for _ in 0..=cq.entries() as usize / BATCH {
            let Ok(found) = cq.poll(&mut batch) else { return };
            set_aside(&batch[..found]);
            if found < BATCH {
                return;
            }
        }
    }

    /// Asks for an event on the channel at the next completion. The caller has to poll once more for earlier ones.
    pub fn notify(&self) {
        // A thread that takes completions at this moment polls all queues once more before it sleeps.
        let queues: Vec<Arc<Cq>> = self.shards.lock().iter().map(|shard| shard.cq.clone()).collect();
        queues.iter().for_each(|cq| cq.notify());
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        let mut shards = self.completions.shards.lock();
        if let Some(shard) = shards.iter_mut().find(|shard| Arc::ptr_eq(&shard.cq, &self.cq)) {
            shard.free += self.need;
        }
        drop(shards);
        let mut routes = self.completions.routes.lock();
        if let Some(CompletionRoute::Awaited(_)) = routes.get(&self.number)
            && let Some(CompletionRoute::Awaited(came)) = routes.remove(&self.number)
        {
            drop(routes);
            self.completions.empty(&came);
        }
    }
}

/// Mask for numbers of links and pools.
const NUMBERS: u32 = u32::MAX >> 2;
const RECEIVE: u64 = 1 << 63;
const SHARED: u64 = 1 << 62;

/// Name of a work request: its link's number, and below that the link's number for it. The first bit marks receives.
pub fn name_of(link: u32, request: u32, is_receive: bool) -> u64 {
    u64::from(is_receive) << 63 | u64::from(link) << 32 | u64::from(request)
}

/// Name of a posted buffer of a pool. The second bit marks these.
pub fn name_of_shared(pool: u32, slot: u32) -> u64 {
    SHARED | name_of(pool, slot, true)
}

fn is_shared(name: u64) -> bool {
    name & SHARED != 0
}

/// Number of the link or pool in a name.
pub fn number_of(name: u64) -> u32 {
    (name >> 32) as u32 & NUMBERS
}

/// Whether the name is a receive, and the number that the link or pool gave it.
pub fn request_of(name: u64) -> (bool, u32) {
    (name & RECEIVE != 0, name as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for link in [1, 7, NUMBERS] {
            for request in [0, 1, u32::MAX] {
                let shared = name_of_shared(link, request);
                assert_eq!((number_of(shared), request_of(shared)), (link, (true, request)));
                assert!(is_shared(shared));
                for is_receive in [false, true] {
                    let name = name_of(link, request, is_receive);
                    assert_eq!((number_of(name), request_of(name)), (link, (is_receive, request)));
                    assert!(!is_shared(name));
                }
            }
        }
    }
}
