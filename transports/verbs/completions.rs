//! Completions of all queue pairs of a NIC: whoever looks takes them, and passes each to its link.
//!
//! The queues have room for every request that may be outstanding, so none overflows: another one is made when those
//! there are have been promised away. Each has room for all buffers of [pools](crate::recv_buffers) besides, whoever fills them.
//! They share one channel, which a thread sleeps on.
//!
//! A request names its link, so whoever takes its completion knows whose it is. A buffer of a pool is nobody's when it is
//! posted: of these the queue pair's number says it.

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
use crate::locks::{ASIDE, POOLS, ROUTES, SHARDS, TAKING};
use crate::queue::SENDS;
use crate::recv_buffers::Pool;

/// Entries of the first queue; each further one is twice as long.
const FIRST: u32 = 4096;
/// What a queue pair may have outstanding; with receives of its own.
const NEED: u32 = SENDS + RECEIVES;
/// Completions that are taken at a time.
const BATCH: usize = 32;
/// Batches in a row from one queue before others have their turn.
const BATCHES: usize = 8;

/// See the module.
pub struct Completions {
    pub channel: Arc<CompletionChannel>,
    most: u32,
    /// Entries of each queue that are kept for buffers of pools.
    pooled: u32,
    shards: RankedMutex<Vec<Shard>>,
    /// Held by whoever takes completions: each link gets its own in order.
    taking: RankedMutex<Taking>,
    /// Held by whoever polls. What was polled for others than those that it is passed on to, oldest first.
    aside: RankedMutex<VecDeque<Wc>>,
    routes: RankedMutex<Numbered<CompletionRoute>>,
    pools: RankedMutex<Pools>,
    next: AtomicU32,
    looks: AtomicU64,
}

/// Hashes the numbers of links: they are ours, and consecutive, so that nothing is gained by mixing them well.
#[derive(Default)]
struct Number(u64);

impl Hasher for Number {
    fn finish(&self) -> u64 {
        self.0
    }

    #[inline]
    fn write_u32(&mut self, number: u32) {
        // The table takes its upper bits for a tag, its lower ones for the place.
        self.0 = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    /// Of a number nothing else is asked.
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }
}

type Numbered<T> = HashMap<u32, T, BuildHasherDefault<Number>>;

/// Whose buffers of pools are.
#[derive(Default)]
struct Pools {
    /// Links, by the numbers of their queue pairs.
    pairs: Numbered<u32>,
    /// By their own.
    pools: Numbered<Weak<Pool>>,
}

/// Where a link's completions go.
enum CompletionRoute {
    /// The link is being made, and its peer may send already: what came meanwhile.
    Awaited(Vec<Wc>),
    Link(Arc<VerbsLink>),
}

/// What whoever takes completions works with.
struct Taking {
    queues: Vec<Arc<Cq>>,
    batch: [Wc; BATCH],
}

/// What has to be dropped or told without the lock, for it may be anything: owners of memory, and a link whose last reference this
/// is, with all that its connection holds.
#[derive(Default)]
struct AfterUnlock {
    events: Vec<Events>,
    /// Few links complete something at a time, so that nothing is allocated for them.
    links: SmallVec<[Arc<VerbsLink>; 8]>,
    /// A queue has failed: all links are to be told, which drops as much.
    has_failed: bool,
}

struct Shard {
    cq: Arc<Cq>,
    free: u32,
}

/// A queue pair's share of a completion queue; given back when dropped.
pub struct Share {
    pub cq: Arc<Cq>,
    /// The link's.
    pub number: u32,
    need: u32,
    /// Where it receives; `None`: in buffers of its own.
    pool: Option<Arc<Pool>>,
    completions: Arc<Completions>,
}

impl Share {
    pub fn pool(&self) -> Option<Arc<Pool>> {
        self.pool.clone()
    }

    /// [`Completions::add_pair`]
    pub fn add_pair(&self, pair: u32) {
        self.completions.add_pair(pair, self.number);
    }

    /// [`Completions::set_aside`]
    pub fn set_aside(&self, pair: u32, pool: &Pool) {
        self.completions.set_aside(&self.cq, pair, pool);
    }
}

impl Completions {
    /// `most`: entries that the device allows; `pooled`: buffers of all pools.
    ///
    /// # Errors
    /// The kernel's: no descriptors left.
    pub fn new(context: &Arc<Context>, most: u32, pooled: u32) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Completions {
            channel: CompletionChannel::new(context)?,
            most: most.max(NEED + pooled),
            pooled,
            aside: RankedMutex::new(ASIDE, VecDeque::new()),
            pools: RankedMutex::new(POOLS, Pools::default()),
            shards: RankedMutex::new(SHARDS, Vec::new()),
            taking: RankedMutex::new(TAKING, Taking { queues: Vec::new(), batch: [Wc::default(); BATCH] }),
            routes: RankedMutex::new(ROUTES, Numbered::default()),
            next: AtomicU32::new(1),
            looks: AtomicU64::new(0),
        }))
    }

    /// Room for one more queue pair, which has receives of its own or those of a pool.
    ///
    /// # Errors
    /// The device's: it has no more.
    pub fn share(self: &Arc<Self>, pool: Option<Arc<Pool>>) -> io::Result<Share> {
        let need = if pool.is_none() { NEED } else { SENDS };
        let cq = match self.reserve(need) {
            Ok(cq) => cq,
            Err(queues) => self.add_queue(queues, need)?,
        };
        Ok(Share { cq, number: self.fresh(), need, pool, completions: self.clone() })
    }

    /// Room in one of the queues. `Err`: none has any, and so many there are.
    fn reserve(&self, need: u32) -> Result<Arc<Cq>, usize> {
        let mut shards = self.shards.lock();
        let queues = shards.len();
        let shard = shards.iter_mut().find(|shard| shard.free >= need).ok_or(queues)?;
        shard.free -= need;
        Ok(shard.cq.clone())
    }

    /// One more queue behind so many, with room in it. Another thread may add one at the same time: then there are two more.
    fn add_queue(&self, queues: usize, need: u32) -> io::Result<Arc<Cq>> {
        let wanted = FIRST.checked_shl(queues as u32).unwrap_or(u32::MAX);
        let cq = Cq::new(&self.channel, wanted.clamp(NEED + self.pooled, self.most))?;
        cq.notify();
        self.taking.lock().queues.push(cq.clone());
        let free = cq.entries().saturating_sub(self.pooled + need);
        self.shards.lock().push(Shard { free, cq: cq.clone() });
        Ok(cq)
    }

    /// A number of 30 bits; seldom used twice.
    pub fn number(&self) -> u32 {
        self.next.fetch_add(1, Ordering::Relaxed) & NUMBERS
    }

    /// A number for a link, from 1. What comes for it is kept until the link is [added](Completions::add).
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

    /// The link has been made. It is given what has come already, before anybody brings it more.
    pub fn add(&self, number: u32, link: &Arc<VerbsLink>) {
        let taking = self.taking.lock();
        let former = self.routes.lock().insert(number, CompletionRoute::Link(link.clone()));
        let events = match former {
            Some(CompletionRoute::Awaited(came)) if !came.is_empty() => Some(link.completed(&came)),
            _ => None,
        };
        drop(taking);
        drop(events);
    }

    pub fn remove(&self, number: u32) {
        let route = self.routes.lock().remove(&number);
        drop(route); // never a link's last reference; outside the lock all the same
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

    /// How often somebody has looked, the helper's looks not counted.
    pub fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    /// A look by a program's thread: takes some of what has completed, after whoever is at it, so that what completed before
    /// has been passed on. Not with a link's lock held.
    pub fn look(&self) {
        self.looks.fetch_add(1, Ordering::Relaxed);
        let mut told = None;
        let mut taking = self.taking.lock();
        self.take_from(&mut taking, &mut told);
        drop(taking);
        self.tell(told);
    }

    /// Takes all that has completed, and perhaps some of what completes meanwhile: no more than can lie there. Not with a
    /// link's lock held.
    pub fn take_all(&self) {
        let mut told = None;
        let mut taking = self.taking.lock();
        let longest = taking.queues.iter().map(|cq| cq.entries() as usize).max().unwrap_or(0);
        // What was set aside comes before what lies in the queues, and each round takes so many of either.
        let there = self.aside.lock().len() + longest;
        for _ in 0..there / (BATCH * BATCHES) + 2 {
            if !self.take_from(&mut taking, &mut told) {
                break;
            }
        }
        drop(taking);
        self.tell(told);
    }

    /// What follows from a look, without the lock. (Always inline: otherwise what mostly is empty is moved by each empty look.)
    #[inline(always)]
    fn tell(&self, told: Option<AfterUnlock>) {
        let Some(told) = told else { return };
        let has_failed = told.has_failed;
        drop(told);
        if has_failed {
            self.fail();
        }
    }

    /// Whether there may be more.
    fn take_from(&self, taking: &mut Taking, told: &mut Option<AfterUnlock>) -> bool {
        let Taking { queues, batch } = taking;
        let mut more = false;
        for cq in queues {
            let mut batches = 0;
            loop {
                let found = match self.poll(cq, &mut batch[..]) {
                    // Most looks find nothing.
                    Ok(0) => break,
                    Ok(found) => found,
                    Err(_) => {
                        told.get_or_insert_default().has_failed = true;
                        return false;
                    }
                };
                self.pass_on(&batch[..found], told.get_or_insert_default());
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

    /// What was set aside, which was polled before, and then what the queue has: fewer than a batch are all that there is.
    fn poll(&self, cq: &Cq, batch: &mut [Wc]) -> io::Result<usize> {
        let mut aside = self.aside.lock();
        if aside.is_empty() {
            return cq.poll(batch);
        }
        let count = batch.len().min(aside.len());
        let (first, rest) = batch.split_at_mut(count);
        first.iter_mut().zip(aside.drain(..count)).for_each(|(to, wc)| *to = wc);
        Ok(count + if rest.is_empty() { 0 } else { cq.poll(rest)? })
    }

    /// To each link its own, those in a row at once.
    fn pass_on(&self, batch: &[Wc], told: &mut AfterUnlock) {
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
                        told.events.push(events);
                    }
                    if !told.links.last().is_some_and(|last| Arc::ptr_eq(last, &link)) {
                        told.links.push(link);
                    }
                }
                // Of one that is gone, something may have lain there still.
                None => self.empty(run),
            }
        }
    }

    // ---- pools ----

    /// 0: none, or it is gone.
    fn link_of_pair(&self, pair: u32) -> u32 {
        self.pools.lock().pairs.get(&pair).copied().unwrap_or(0)
    }

    /// What came to buffers of pools is for nobody: the device gets them again.
    pub fn empty(&self, completions: &[Wc]) {
        for wc in completions.iter().filter(|wc| is_shared(wc.wr_id)) {
            let pool = self.pools.lock().pools.get(&number_of(wc.wr_id)).and_then(Weak::upgrade);
            if let Some(pool) = pool {
                pool.emptied(request_of(wc.wr_id).1);
            }
        }
    }

    /// A pool has been made.
    pub fn add_pool(&self, pool: &Arc<Pool>) {
        let mut pools = self.pools.lock();
        pools.pools.retain(|_, pool| pool.strong_count() > 0);
        pools.pools.insert(pool.number, Arc::downgrade(pool));
    }

    /// A queue pair has been made that receives out of a pool, for the link of this number. Not with a link's lock held.
    pub fn add_pair(&self, pair: u32, link: u32) {
        // The device may have used this number before: what came for that pair has been passed on then.
        let taking = self.taking.lock();
        self.pools.lock().pairs.insert(pair, link);
        drop(taking);
    }

    /// A queue pair that receives out of `pool` is about to be destroyed, and takes nothing any more. Its own completions vanish
    /// with it, those of others keep their order. A link's lock may be held.
    pub fn set_aside(&self, cq: &Cq, pair: u32, pool: &Pool) {
        self.pools.lock().pairs.remove(&pair);
        let mut aside = self.aside.lock();
        let mut batch = [Wc::default(); BATCH];
        let mut set_aside = |batch: &[Wc]| {
            for wc in batch {
                match (wc.qp_num == pair, is_shared(wc.wr_id)) {
                    (false, _) => aside.push_back(*wc),
                    (true, true) => pool.emptied(request_of(wc.wr_id).1),
                    (true, false) => {}
                }
            }
        };
        // As much as can have completed before.
        for _ in 0..=cq.entries() as usize / BATCH {
            let Ok(found) = cq.poll(&mut batch) else { return };
            set_aside(&batch[..found]);
            if found < BATCH {
                return;
            }
        }
    }

    /// The channel is told of the next completion. What has come before is to be looked for once more.
    pub fn notify(&self) {
        // Whoever takes completions at this moment looks at all of them once more before it sleeps.
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

/// Numbers of links and pools.
const NUMBERS: u32 = u32::MAX >> 2;
const RECEIVE: u64 = 1 << 63;
const SHARED: u64 = 1 << 62;

/// What a work request is called: its link's number, and below that what the link calls it; the first bit tells receives.
pub fn name_of(link: u32, request: u32, is_receive: bool) -> u64 {
    u64::from(is_receive) << 63 | u64::from(link) << 32 | u64::from(request)
}

/// What the posting of a pool's buffer is called; the second bit tells those.
pub fn name_of_shared(pool: u32, slot: u32) -> u64 {
    SHARED | name_of(pool, slot, true)
}

fn is_shared(name: u64) -> bool {
    name & SHARED != 0
}

/// The link's number, or the pool's.
pub fn number_of(name: u64) -> u32 {
    (name >> 32) as u32 & NUMBERS
}

/// Whether it is a receive, and what the link or the pool calls it.
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
