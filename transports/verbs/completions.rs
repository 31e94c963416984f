//! Completions of all queue pairs of a NIC: whoever looks takes them, and passes each to its link.
//!
//! The queues have room for every request that may be outstanding, so none overflows: another one is made when those
//! there are have been promised away. They share one channel, which a thread sleeps on.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::connection::{News, RECEIVES};
use crate::ffi::Wc;
use crate::hca::objects::{Channel, Context, Cq};
use crate::link::VerbsLink;
use crate::queue::SENDS;

/// Entries of the first queue; each further one is twice as long.
const FIRST: u32 = 4096;
/// What a queue pair may have outstanding.
const NEED: u32 = SENDS + RECEIVES;
/// Completions that are taken at a time.
const BATCH: usize = 32;
/// Batches in a row from one queue before others have their turn.
const BATCHES: usize = 8;

/// See the module.
pub struct Completions {
    pub channel: Arc<Channel>,
    most: u32,
    shards: Mutex<Vec<Shard>>,
    /// Held by whoever takes completions: each link gets its own in order.
    taking: Mutex<Taking>,
    routes: Mutex<HashMap<u32, Route, BuildHasherDefault<Number>>>,
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

/// Where a link's completions go.
enum Route {
    /// The link is being made, and its peer may send already: what came meanwhile.
    Awaited(Vec<Wc>),
    Link(Arc<VerbsLink>),
}

/// What whoever takes completions works with.
struct Taking {
    queues: Vec<Arc<Cq>>,
    batch: [Wc; BATCH],
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
    completions: Arc<Completions>,
}

impl Completions {
    /// # Errors
    /// The kernel's: no descriptors left.
    pub fn new(context: &Arc<Context>, most: u32) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Completions {
            channel: Channel::new(context)?,
            most: most.max(NEED),
            shards: Mutex::default(),
            taking: Mutex::new(Taking { queues: Vec::new(), batch: [Wc::default(); BATCH] }),
            routes: Mutex::default(),
            next: AtomicU32::new(1),
            looks: AtomicU64::new(0),
        }))
    }

    /// Room for one more queue pair.
    ///
    /// # Errors
    /// The device's: it has no more.
    pub fn share(self: &Arc<Self>) -> io::Result<Share> {
        let mut shards = self.shards.lock();
        let shard = match shards.iter_mut().find(|shard| shard.free >= NEED) {
            Some(shard) => shard,
            None => {
                let entries =
                    FIRST.checked_shl(shards.len() as u32).unwrap_or(u32::MAX).clamp(NEED, self.most);
                let cq = Cq::new(&self.channel, entries)?;
                cq.notify();
                self.taking.lock().queues.push(cq.clone());
                shards.push(Shard { free: cq.entries(), cq });
                shards.last_mut().expect("just pushed")
            }
        };
        shard.free -= NEED;
        Ok(Share { cq: shard.cq.clone(), number: self.fresh(), completions: self.clone() })
    }

    /// A number for a link, from 1, of 31 bits. What comes for it is kept until the link is [added](Completions::add).
    fn fresh(&self) -> u32 {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed) & (u32::MAX >> 1);
            let mut routes = self.routes.lock();
            if number != 0 && !routes.contains_key(&number) {
                routes.insert(number, Route::Awaited(Vec::new()));
                return number;
            }
        }
    }

    /// The link has been made. It is given what has come already, before anybody brings it more.
    pub fn add(&self, number: u32, link: &Arc<VerbsLink>) {
        let taking = self.taking.lock();
        let former = self.routes.lock().insert(number, Route::Link(link.clone()));
        let news = match former {
            Some(Route::Awaited(came)) if !came.is_empty() => Some(link.completed(&came)),
            _ => None,
        };
        drop(taking);
        drop(news);
    }

    pub fn remove(&self, number: u32) {
        let route = self.routes.lock().remove(&number);
        drop(route); // never a link's last reference; outside the lock all the same
    }

    pub fn link(&self, number: u32) -> Option<Arc<VerbsLink>> {
        match self.routes.lock().get(&number) {
            Some(Route::Link(link)) => Some(link.clone()),
            Some(Route::Awaited(_)) | None => None,
        }
    }

    pub fn links(&self) -> Vec<Arc<VerbsLink>> {
        let routes = self.routes.lock();
        let link = |route: &Route| match route {
            Route::Link(link) => Some(link.clone()),
            Route::Awaited(_) => None,
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
        let mut told = Vec::new();
        let mut taking = self.taking.lock();
        self.take_from(&mut taking, &mut told);
        drop(taking);
        drop(told);
    }

    /// Takes all that has completed. Not with a link's lock held.
    pub fn take_all(&self) {
        let mut told = Vec::new();
        let mut taking = self.taking.lock();
        while self.take_from(&mut taking, &mut told) {}
        drop(taking);
        drop(told);
    }

    /// Whether there may be more. What links have to drop goes to `told`: it may be anything, so it goes without the lock.
    fn take_from(&self, taking: &mut Taking, told: &mut Vec<News>) -> bool {
        let Taking { queues, batch } = taking;
        let mut more = false;
        for cq in queues {
            let mut batches = 0;
            loop {
                let found = match cq.poll(&mut batch[..]) {
                    // Most looks find nothing.
                    Ok(0) => break,
                    Ok(found) => found,
                    Err(_) => {
                        self.fail();
                        return false;
                    }
                };
                self.pass_on(&batch[..found], told);
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

    /// To each link its own, those in a row at once.
    fn pass_on(&self, batch: &[Wc], told: &mut Vec<News>) {
        for run in batch.chunk_by(|one, next| number_of(one.wr_id) == number_of(next.wr_id)) {
            let link = match self.routes.lock().get_mut(&number_of(run[0].wr_id)) {
                Some(Route::Link(link)) => link.clone(),
                Some(Route::Awaited(came)) => {
                    came.extend_from_slice(run);
                    continue;
                }
                // Of one that is gone, something may have lain there still.
                None => continue,
            };
            let news = link.completed(run);
            if news.has_owners() {
                told.push(news);
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
        let mut shards = self.completions.shards.lock();
        if let Some(shard) = shards.iter_mut().find(|shard| Arc::ptr_eq(&shard.cq, &self.cq)) {
            shard.free += NEED;
        }
        drop(shards);
        let mut routes = self.completions.routes.lock();
        if let Some(Route::Awaited(_)) = routes.get(&self.number) {
            routes.remove(&self.number);
        }
    }
}

/// What a work request is called: its link's number, and below that what the link calls it; the first bit tells receives.
pub fn name_of(link: u32, request: u32, is_receive: bool) -> u64 {
    u64::from(is_receive) << 63 | u64::from(link) << 32 | u64::from(request)
}

/// The link's number.
pub fn number_of(name: u64) -> u32 {
    (name >> 32) as u32 & (u32::MAX >> 1)
}

/// Whether it is a receive, and what the link calls it.
pub fn request_of(name: u64) -> (bool, u32) {
    (name >> 63 == 1, name as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for link in [1, 7, u32::MAX >> 1] {
            for request in [0, 1, u32::MAX] {
                for is_receive in [false, true] {
                    let name = name_of(link, request, is_receive);
                    assert_eq!((number_of(name), request_of(name)), (link, (is_receive, request)));
                }
            }
        }
    }
}
