//! `--off-cache`: messages from memory, and into memory, that no cache holds any more.
//!
//! The sender has a pool of buffers that are together larger than the last-level cache, and takes the oldest for each
//! message. Where the library copies, the receiver keeps as many messages before it drops them. So the memory into which
//! the next message is copied is old, too.

use std::{cell::RefCell, collections::VecDeque, fs, path::Path};

use udeck::{Buf, Protocol, Received, World};

use crate::{experiment::sizes, failure::Result};

/// Size of the pool as a multiple of the last-level cache.
const TIMES: usize = 2;

/// Upper bound of the pool, in bytes.
const MOST_BYTES: usize = 256 << 20;

/// Divisor of the arena's size that bounds the pool: messages under way, and those of the other direction, lie in the arena, too.
const PART_OF_ARENA: usize = 8;

/// Assumed size of the last-level cache, in bytes, where the kernel does not report it.
const ASSUMED_CACHE: usize = 32 << 20;

/// Most buffers in one pool: making more takes longer than a batch lasts.
const MOST_BUFFERS: usize = 1024;

/// Fewest buffers in one pool: with one, the oldest buffer would be the newest.
const FEWEST_BUFFERS: usize = 2;

/// Size of the memory that the messages of a run use in turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extent {
    /// Bytes of the last-level cache; `None` where the kernel does not report them.
    cache: Option<usize>,
    /// Bytes of the pool.
    bytes: usize,
}

/// One rank's pool of buffers and held messages, all of one size at a time.
pub struct Rotation {
    extent: Extent,
    pool: RefCell<Pool>,
}

#[derive(Default)]
struct Pool {
    size: usize,
    buffers: VecDeque<Buf<u8>>,
    held: VecDeque<Received<u8>>,
}

impl Extent {
    /// Extent for this host and an arena of `arena` bytes.
    pub fn of_this_host(arena: Option<usize>) -> Self {
        Self::new(
            last_level_cache(Path::new("/sys/devices/system/cpu/cpu0/cache")),
            arena.or_else(usual_arena),
        )
    }

    fn new(cache: Option<usize>, arena: Option<usize>) -> Self {
        let wanted = TIMES * cache.unwrap_or(ASSUMED_CACHE);
        let room = arena.map_or(MOST_BYTES, |arena| arena / PART_OF_ARENA);
        Extent { cache, bytes: wanted.min(MOST_BYTES).min(room) }
    }

    /// Number of buffers of this size that take turns.
    pub fn buffers(self, size: usize) -> usize {
        (self.bytes / size.max(1)).clamp(FEWEST_BUFFERS, MOST_BUFFERS)
    }

    /// Sentence for the report's method: the pools for messages of these sizes, ascending.
    pub fn sentence(self, sizes: &[usize]) -> String {
        let (known, cache) = (self.cache.is_some(), self.cache.unwrap_or(ASSUMED_CACHE));
        let sizes = || sizes.iter().copied().filter(|&size| size > 0);
        let pools: Vec<String> =
            sizes().map(|size| format!("{} buffers of {}", self.buffers(size), sizes::show(size))).collect();
        let cached: Vec<String> =
            sizes().filter(|&size| self.buffers(size) * size <= cache).map(sizes::show).collect();
        let mut text = format!(
            "off-cache: the sender takes {} in turn, {FEWEST_BUFFERS} to {MOST_BUFFERS} of a size, as many as lie in {}, which is \
             {:.1} x the last-level cache of {}{} (messages by eager or auto that travel inside their descriptor come from the \
             program's own memory); of messages by copy, rdma-write, rdma-read and handshake the receiver holds as many \
             before it drops them, by other protocols none; the raw limits are of memory in the caches",
            pools.join(", "),
            sizes::show(self.bytes),
            self.bytes as f64 / cache as f64,
            sizes::show(cache),
            if known { "" } else { " (assumed: the kernel tells none)" },
        );
        if !cached.is_empty() {
            text += &format!("; too small for that, so still in the caches: {}", cached.join(", "));
        }
        text
    }
}

impl Rotation {
    /// A rotation that has no buffers yet.
    pub fn new(extent: Extent) -> Self {
        Rotation { extent, pool: RefCell::default() }
    }

    /// The same as [`Extent::sentence`].
    pub fn sentence(&self, sizes: &[usize]) -> String {
        self.extent.sentence(sizes)
    }

    /// Makes the buffers of this size, unless they exist. Must be called before the clock starts.
    pub fn prepare(&self, world: &World, size: usize) -> Result {
        let mut pool = self.pool.borrow_mut();
        if pool.size == size && !pool.buffers.is_empty() {
            return Ok(());
        }
        // The old buffers go first, because the old and the new ones together may not fit.
        *pool = Pool { size, ..Pool::default() };
        for _ in 0..self.extent.buffers(size) {
            // A zeroed buffer takes its memory from the kernel now.
            pool.buffers.push_back(world.buf(size)?);
        }
        Ok(())
    }

    /// Takes the oldest buffer, and puts a new one into the pool.
    pub fn take(&self, world: &World) -> Result<Buf<u8>> {
        let mut pool = self.pool.borrow_mut();
        let fresh = world.buf_reused(pool.size)?;
        pool.buffers.push_back(fresh);
        Ok(pool.buffers.pop_front().expect("one has been pushed"))
    }

    /// Drops the message, or keeps it and drops the oldest one that was kept.
    pub fn keep(&self, protocol: Protocol, message: Received<u8>) {
        if !lands_in_own_memory(protocol) {
            return;
        }
        let mut pool = self.pool.borrow_mut();
        pool.held.push_back(message);
        if pool.held.len() > self.extent.buffers(pool.size) {
            pool.held.pop_front();
        }
    }
}

/// Whether a received message lies in the receiver's own memory, so that holding it delays nobody.
fn lands_in_own_memory(protocol: Protocol) -> bool {
    matches!(protocol, Protocol::Copy | Protocol::RdmaWrite | Protocol::RdmaRead | Protocol::Handshake)
}

/// The library's default size of an arena, in bytes.
fn usual_arena() -> Option<usize> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some((kib << 10) / 2)
}

/// Size of the largest unified cache of the highest level, as `/sys` reports it.
fn last_level_cache(folder: &Path) -> Option<usize> {
    let read = |index: &Path, file: &str| fs::read_to_string(index.join(file)).ok();
    let caches = fs::read_dir(folder).ok()?.flatten().filter_map(|index| {
        let index = index.path();
        let level: u32 = read(&index, "level")?.trim().parse().ok()?;
        (read(&index, "type")?.trim() == "Unified").then_some(())?;
        Some((level, kernels_size(read(&index, "size")?.trim())?))
    });
    caches.max().map(|(_, bytes)| bytes)
}

/// Parses a size such as `1024K`.
fn kernels_size(text: &str) -> Option<usize> {
    let digits = text.trim_end_matches(char::is_alphabetic);
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        _ => return None,
    };
    digits.parse::<usize>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_larger_than_the_cache_unless_something_bounds_it() {
        let usual = Extent::new(Some(32 << 20), Some(4 << 30));
        assert_eq!((usual.bytes, usual.buffers(1 << 20)), (64 << 20, 64));
        assert_eq!(Extent::new(None, None).bytes, 2 * ASSUMED_CACHE);
        assert_eq!(Extent::new(Some(1 << 30), None).bytes, MOST_BYTES);
        assert_eq!(Extent::new(Some(32 << 20), Some(64 << 20)).bytes, 8 << 20, "an eighth of the arena");
        assert_eq!((usual.buffers(8), usual.buffers(0)), (MOST_BUFFERS, MOST_BUFFERS));
        assert_eq!(usual.buffers(256 << 20), FEWEST_BUFFERS);
    }

    #[test]
    fn the_method_says_what_still_fits_into_the_cache() {
        let said = Extent::new(Some(32 << 20), None).sentence(&[0, 4 << 10, 1 << 20]);
        let pools = "takes 1024 buffers of 4K, 64 buffers of 1M in turn, 2 to 1024 of a size, as many as lie in 64M, which is \
                     2.0 x the last-level cache of 32M ";
        assert!(said.contains(pools), "{said}");
        assert!(said.ends_with("still in the caches: 4K"), "{said}");
        let bounded = Extent::new(Some(32 << 20), Some(64 << 20)).sentence(&[1 << 20]);
        assert!(
            bounded.contains("takes 8 buffers of 1M") && bounded.ends_with("in the caches: 1M"),
            "{bounded}"
        );
    }

    #[test]
    fn cache_sizes_are_read_as_the_kernel_writes_them() {
        assert_eq!(kernels_size("1024K"), Some(1 << 20));
        assert_eq!(kernels_size("480M"), Some(480 << 20));
        assert_eq!((kernels_size("7"), kernels_size("7X"), kernels_size("")), (Some(7), None, None));
    }

    #[test]
    fn buffers_come_back_only_after_all_others() {
        udeck::run_local(1, |world| {
            let rotation = Rotation::new(Extent { cache: None, bytes: 5 << 10 });
            rotation.prepare(&world, 1 << 10).expect("memory");
            let mut seen = Vec::new();
            for _ in 0..5 {
                let buffer = rotation.take(&world).expect("memory");
                assert!(!seen.contains(&buffer.as_ptr()), "{seen:?}");
                seen.push(buffer.as_ptr());
            }
            world.finish()
        })
        .expect("a rank");
    }
}
