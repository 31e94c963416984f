//! Registered memory: which of the program's bytes the library may touch, and until when.
//!
//! Memory is registered with a protection zone and rights, and has a key: an index and a generation. A *part* names a piece of other
//! registered memory, with rights of its own: uDAPL's remote memory regions. Each touch looks the key up, and checks zone, range and
//! right. There are two ways to keep the memory registered meanwhile:
//!
//! - [`access`] and the functions on it hold the table locked for reading. When a key has ended, nobody is in its memory.
//! - [`locate`] takes no lock. Its caller holds an end point's lock for as long as it touches the memory. To end the registration,
//!   [`end`] makes the key invalid, then each end point's lock is taken once, and only then is the [`Ended`] key dropped.
//!
//! ```text
//!   word of a place: its registration; 0: nothing may be touched
//!   63..32 protection zone   31..18 generation   5..0 rights, LOCAL_READ always
//! ```

#![allow(unsafe_code, reason = "the program's memory, at addresses that it has registered")]

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::ptr::NonNull;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use udeck_sys::{copy_in, copy_out};

/// A way to touch memory, with the right that it needs. Registered memory may always be read locally, as with hardware: programs do not ask for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Right {
    /// By this process, to send it.
    LocalRead = LOCAL_READ,
    /// By the peer's reads.
    RemoteRead = REMOTE_READ,
    /// By this process, to receive there.
    LocalWrite = LOCAL_WRITE,
    /// By the peer's writes.
    RemoteWrite = REMOTE_WRITE,
}

/// Right to send the memory. (Rights are bits, with uDAPL's numbers.)
pub const LOCAL_READ: u32 = 0x01;
/// Right of peers to read the memory.
pub const REMOTE_READ: u32 = 0x02;
/// Right to receive into the memory.
pub const LOCAL_WRITE: u32 = 0x10;
/// Right of peers to write the memory.
pub const REMOTE_WRITE: u32 = 0x20;
/// All rights.
pub const ALL_RIGHTS: u32 = LOCAL_READ | REMOTE_READ | LOCAL_WRITE | REMOTE_WRITE;

/// A piece of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The address that names its first byte for RDMA: the real one, or 0.
    pub named: u64,
    /// The address of its first byte.
    pub start: usize,
    /// Length in bytes.
    pub len: usize,
    /// Protection zone; never 0.
    pub zone: u32,
    /// Bits: [`LOCAL_READ`] and the others.
    pub rights: u32,
    /// The key of the memory that this is a part of; 0: this is no part.
    pub of: u32,
}

/// Bytes that an operation names, as uDAPL has them (`DAT_LMR_TRIPLET`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Segment {
    /// Address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub len: u32,
    /// Key of the registered memory.
    pub key: u32,
}

/// Why memory may not be touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No bytes at this address are registered with this key and zone.
    Protection,
    /// The bytes are registered without this right.
    Privileges,
}

/// Why memory was not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unregistered {
    /// [`MAX`] pieces are registered.
    Full,
    /// The memory that the piece is a part of is gone.
    NoWhole,
}

const INDEX_BITS: u32 = 18;
/// Most pieces that can be registered at a time.
pub const MAX: usize = 1 << INDEX_BITS;
/// Number of keys that a place has, one after another.
const GENERATIONS: u32 = (1 << (32 - INDEX_BITS)) - 1;
/// Places that are kept free: each has few keys, and the keys of a single free place would soon come round.
const RESTING: usize = 4096;

/// The part of a registration that [`locate`] reads.
struct Place {
    word: AtomicU64,
    named: AtomicU64,
    start: AtomicUsize,
    len: AtomicUsize,
}

/// All places. Zeros take no memory before they are used.
static PLACES: [Place; MAX] = [const {
    Place {
        word: AtomicU64::new(0),
        named: AtomicU64::new(0),
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
    }
}; MAX];

struct Entry {
    generation: u32,
    piece: Option<Piece>,
}

static TABLE: RwLock<Vec<Entry>> = RwLock::new(Vec::new());
/// Number of parts.
static PARTS: AtomicUsize = AtomicUsize::new(0);
static FREE: Mutex<VecDeque<u32>> = Mutex::new(VecDeque::new());
/// Seed of the first generation of each place: a peer that knows one key does not know the others.
static RANDOM: LazyLock<RandomState> = LazyLock::new(RandomState::new);

fn split(key: u32) -> (usize, u32) {
    ((key & (MAX as u32 - 1)) as usize, key >> INDEX_BITS)
}

impl Entry {
    fn key(&self, at: usize) -> u32 {
        self.generation << INDEX_BITS | at as u32
    }

    fn publish(&self, at: usize, is_open: bool) {
        let place = &PLACES[at];
        let Some(piece) = self.piece.filter(|_| is_open) else {
            return place.word.store(0, Ordering::Relaxed);
        };
        place.named.store(piece.named, Ordering::Relaxed);
        place.start.store(piece.start, Ordering::Relaxed);
        place.len.store(piece.len, Ordering::Relaxed);
        let key = u64::from(self.generation << INDEX_BITS);
        let word = u64::from(piece.zone) << 32 | key | u64::from(piece.rights & ALL_RIGHTS | LOCAL_READ);
        // SYNC POINT registered: publishes the place's address and length.
        place.word.store(word, Ordering::Release);
    }
}

/// Registers a piece, and returns its key.
///
/// # Errors
/// No place is left, or the piece is a part of memory that is gone.
pub fn add(piece: Piece) -> Result<u32, Unregistered> {
    put(piece, true)
}

/// Gives a piece a key by which nobody reaches it until it is [opened](open).
///
/// # Errors
/// As [`add`].
pub fn reserve(piece: Piece) -> Result<u32, Unregistered> {
    put(piece, false)
}

/// Lets a reserved piece be touched, unless it has ended.
pub fn open(key: u32) {
    let (at, generation) = split(key);
    if let Some(entry) = TABLE.write().get(at).filter(|entry| entry.generation == generation) {
        entry.publish(at, true);
    }
}

fn put(piece: Piece, is_open: bool) -> Result<u32, Unregistered> {
    let mut table = TABLE.write();
    if piece.of != 0 && find_in(&table, piece.of).is_none() {
        return Err(Unregistered::NoWhole);
    }
    let mut free = FREE.lock();
    let may_be_used = free.len() > RESTING || table.len() >= MAX;
    let at = match may_be_used.then(|| free.pop_front()).flatten() {
        Some(at) => at as usize,
        None if table.len() < MAX => {
            let generation = RANDOM.hash_one(table.len()) as u32 % GENERATIONS;
            table.push(Entry { generation, piece: None });
            table.len() - 1
        }
        None => return Err(Unregistered::Full),
    };
    drop(free);
    let entry = &mut table[at];
    // Never 0; an ended key does not come back soon.
    entry.generation = entry.generation % GENERATIONS + 1;
    entry.piece = Some(piece);
    entry.publish(at, is_open);
    PARTS.fetch_add(usize::from(piece.of != 0), Ordering::Relaxed);
    Ok(entry.key(at))
}

/// Changes zone and rights of the memory with this key.
pub fn change(key: u32, zone: u32, rights: u32) {
    let mut table = TABLE.write();
    let (at, generation) = split(key);
    if let Some(entry) = table.get_mut(at).filter(|entry| entry.generation == generation)
        && let Some(piece) = &mut entry.piece
    {
        (piece.zone, piece.rights) = (zone, rights);
        entry.publish(at, true);
    }
}

/// A key that has ended. Dropping it frees its place for others.
pub struct Ended(u32);

impl Drop for Ended {
    fn drop(&mut self) {
        FREE.lock().push_back(self.0);
    }
}

/// Ends a key: nobody finds its memory any more. `None`: it has ended before.
pub fn end(key: u32) -> Option<Ended> {
    end_in(&mut TABLE.write(), key)
}

/// Ends a key that was only used under the table's lock; does nothing if it has ended.
pub fn remove(key: u32) {
    drop(end(key));
}

fn end_in(table: &mut [Entry], key: u32) -> Option<Ended> {
    let (at, generation) = split(key);
    let entry = table.get_mut(at).filter(|entry| entry.generation == generation)?;
    let piece = entry.piece.take()?;
    entry.publish(at, false);
    PARTS.fetch_sub(usize::from(piece.of != 0), Ordering::Relaxed);
    Some(Ended(at as u32))
}

fn parts_of(table: &[Entry], key: u32) -> Vec<u32> {
    if PARTS.load(Ordering::Relaxed) == 0 {
        return Vec::new();
    }
    let parts = table.iter().enumerate();
    let parts = parts.filter(|(_, entry)| entry.piece.is_some_and(|piece| piece.of == key));
    parts.map(|(at, entry)| entry.key(at)).collect()
}

/// Removes a key, unless there are parts of its memory; nobody can make one meanwhile. Returns whether it has ended.
pub fn remove_without_parts(key: u32) -> bool {
    let mut table = TABLE.write();
    let is_whole = parts_of(&table, key).is_empty();
    if is_whole {
        end_in(&mut table, key);
    }
    is_whole
}

/// Removes a key and all parts of its memory.
pub fn remove_with_parts(key: u32) {
    let mut table = TABLE.write();
    for part in parts_of(&table, key) {
        end_in(&mut table, part);
    }
    end_in(&mut table, key);
}

/// Removes a part of this zone, because a peer invalidates it. `false`: there is no such part.
pub fn invalidate(key: u32, zone: u32) -> bool {
    let is_part = find(key).is_some_and(|piece| piece.of != 0 && piece.zone == zone);
    if is_part {
        remove(key);
    }
    is_part
}

/// Returns the piece with this key, if it may be touched.
pub fn find(key: u32) -> Option<Piece> {
    find_in(&TABLE.read(), key)
}

fn find_in(table: &[Entry], key: u32) -> Option<Piece> {
    let (at, generation) = split(key);
    let entry = table.get(at).filter(|entry| entry.generation == generation)?;
    entry.piece.filter(|_| PLACES[at].word.load(Ordering::Relaxed) != 0)
}

/// Returns the address of `len` bytes at `address`, if they may be touched so. They stay registered as long as the module says.
#[inline(always)]
pub fn locate(address: u64, len: u64, key: u32, zone: u32, right: Right) -> Option<NonNull<u8>> {
    let place = &PLACES[key as usize & (MAX - 1)];
    // SYNC POINT registered: address and length are of this registration.
    let word = place.word.load(Ordering::Acquire);
    let other = word ^ (u64::from(zone) << 32 | u64::from(key));
    if other >> INDEX_BITS != 0 || word & right as u64 == 0 {
        return None;
    }
    let offset = address.wrapping_sub(place.named.load(Ordering::Relaxed));
    let room = place.len.load(Ordering::Relaxed) as u64;
    let start = place.start.load(Ordering::Relaxed);
    if offset > room || len > room - offset {
        return None;
    }
    NonNull::new((start + offset as usize) as *mut u8)
}

#[inline(always)]
fn locate_segment(segment: Segment, zone: u32, right: Right) -> Option<NonNull<u8>> {
    locate(segment.address, segment.len.into(), segment.key, zone, right)
}

/// Calls `with` with the address of a segment's bytes, if they may be touched so, while the table is locked.
///
/// # Errors
/// The bytes may not be touched so.
#[inline(always)]
pub fn access<R>(
    segment: Segment,
    zone: u32,
    right: Right,
    with: impl FnOnce(NonNull<u8>) -> R,
) -> Result<R, Refusal> {
    let table = TABLE.read();
    match locate_segment(segment, zone, right) {
        Some(at) => Ok(with(at)),
        // The segment is passed by its fields: as a whole it would be stored in memory on the fast path, too.
        None => Err(refusal(&table, segment.address, segment.len, segment.key, zone)),
    }
}

#[cold]
fn refusal(table: &[Entry], address: u64, len: u32, key: u32, zone: u32) -> Refusal {
    let is_registered =
        find_in(table, key).is_some() && locate(address, len.into(), key, zone, Right::LocalRead).is_some();
    if is_registered { Refusal::Privileges } else { Refusal::Protection }
}

/// Copies out of a segment, as many bytes as both have.
///
/// # Errors
/// As [`access`].
#[inline(always)]
pub fn read(from: Segment, zone: u32, right: Right, to: &mut [u8]) -> Result<(), Refusal> {
    let len = to.len().min(from.len as usize);
    // SAFETY: registered for so many bytes, and it stays so while the table is locked; `to` is memory of ours. Peers
    // and threads of the program may write there meanwhile, which `copy_in` is for.
    access(from, zone, right, |at| unsafe { copy_in(&mut to[..len], at) })
}

/// Copies into a segment, as many bytes as both have.
///
/// # Errors
/// As [`access`].
#[inline]
pub fn write(to: Segment, zone: u32, right: Right, from: &[u8]) -> Result<(), Refusal> {
    let len = from.len().min(to.len as usize);
    // SAFETY: as above; `from` is memory of ours, or what the transport has received.
    access(to, zone, right, |at| unsafe { copy_out(at, &from[..len]) })
}

/// Copies all segments to `to`, which has room for all.
///
/// # Errors
/// As [`access`].
pub fn gather(segments: &[Segment], zone: u32, to: &mut [u8]) -> Result<(), Refusal> {
    let _table = TABLE.read();
    // SAFETY: the table is locked.
    unsafe { gather_located(segments, zone, Right::LocalRead, to) }
}

/// Copies as [`gather`] does, without a lock.
///
/// # Safety
/// The memory that is found stays registered until this returns, as for [`locate`].
///
/// # Errors
/// As [`access`].
pub unsafe fn gather_located(
    segments: &[Segment],
    zone: u32,
    right: Right,
    mut to: &mut [u8],
) -> Result<(), Refusal> {
    for segment in segments {
        let (now, later) = to.split_at_mut_checked(segment.len as usize).ok_or(Refusal::Protection)?;
        to = later;
        if !now.is_empty() {
            let at = locate_segment(*segment, zone, right).ok_or(Refusal::Protection)?;
            // SAFETY: registered for so many bytes, and it stays so, as promised.
            unsafe { copy_in(now, at) }
        }
    }
    Ok(())
}

/// Copies pieces to the segments, as far as they reach. Returns how many bytes did not fit.
///
/// # Errors
/// As [`access`].
pub fn scatter<'a>(
    segments: &[Segment],
    zone: u32,
    from: impl Iterator<Item = &'a [u8]>,
) -> Result<usize, Refusal> {
    let _table = TABLE.read();
    // SAFETY: the table is locked.
    unsafe { scatter_located(segments, zone, Right::LocalWrite, from) }
}

/// Copies as [`scatter`] does, without a lock.
///
/// # Safety
/// The memory that is found stays registered until this returns, as for [`locate`].
///
/// # Errors
/// As [`access`].
pub unsafe fn scatter_located<'a>(
    segments: &[Segment],
    zone: u32,
    right: Right,
    from: impl Iterator<Item = &'a [u8]>,
) -> Result<usize, Refusal> {
    let mut room = segments.iter().copied();
    let mut current = room.next();
    let mut left_over = 0;
    for mut piece in from {
        while !piece.is_empty() {
            let Some(segment) = &mut current else {
                left_over += piece.len();
                break;
            };
            let now = piece.len().min(segment.len as usize);
            if now > 0 {
                let at = locate_segment(Segment { len: now as u32, ..*segment }, zone, right)
                    .ok_or(Refusal::Protection)?;
                // SAFETY: registered for so many bytes, and it stays so, as promised.
                unsafe { copy_out(at, &piece[..now]) }
            }
            segment.address += now as u64;
            segment.len -= now as u32;
            piece = &piece[now..];
            if segment.len == 0 {
                current = room.next();
            }
        }
    }
    Ok(left_over)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Registers the memory. Returns its address and its key.
    fn register(memory: &mut [u8], zone: u32, rights: u32) -> (u64, u32) {
        let start = memory.as_mut_ptr() as usize;
        let piece = Piece { named: start as u64, start, len: memory.len(), zone, rights, of: 0 };
        (start as u64, add(piece).unwrap())
    }

    #[test]
    fn only_what_is_registered_is_touched_and_only_so() {
        let mut memory = vec![1_u8; 64];
        let (address, key) = register(&mut memory, 5, LOCAL_READ);
        let at = |address, len| Segment { address, len, key };
        let mut to = [0; 64];
        assert_eq!(read(at(address, 64), 5, Right::LocalRead, &mut to), Ok(()));
        assert_eq!(to, [1; 64]);
        let denied = Err(Refusal::Protection);
        assert_eq!(read(at(address, 64), 6, Right::LocalRead, &mut to), denied, "another zone");
        assert_eq!(read(at(address + 1, 64), 5, Right::LocalRead, &mut to), denied, "beyond its end");
        assert_eq!(read(at(address - 1, 1), 5, Right::LocalRead, &mut to), denied, "before its start");
        let denied = Err(Refusal::Privileges);
        assert_eq!(write(at(address, 1), 5, Right::LocalWrite, &[2]), denied, "to be read only");
        remove(key);
        assert_eq!(read(at(address, 1), 5, Right::LocalRead, &mut to), Err(Refusal::Protection));
        let again = register(&mut memory, 5, ALL_RIGHTS).1;
        assert_ne!(again, key);
        remove(again);
    }

    #[test]
    fn a_part_and_its_whole_depend_on_each_other() {
        let mut memory = vec![0_u8; 64];
        let (address, whole) = register(&mut memory, 5, ALL_RIGHTS);
        let part =
            Piece { named: address, start: address as usize, len: 8, zone: 5, rights: ALL_RIGHTS, of: whole };
        let bound = add(part).unwrap();
        assert!(!remove_without_parts(whole) && find(whole).is_some(), "a part is bound");
        remove(bound);
        assert!(remove_without_parts(whole) && find(whole).is_none());
        assert_eq!(add(part), Err(Unregistered::NoWhole), "of what is gone");
    }

    #[test]
    fn a_place_waits_for_its_ended_key() {
        let mut memory = [0_u8; 8];
        let (address, key) = register(&mut memory, 5, ALL_RIGHTS);
        let locate = |right| locate(address, 8, key, 5, right).is_some();
        assert!(locate(Right::LocalRead) && locate(Right::RemoteWrite));
        change(key, 5, LOCAL_READ | LOCAL_WRITE);
        assert!(locate(Right::LocalWrite) && !locate(Right::RemoteRead) && !locate(Right::RemoteWrite));
        change(key, 6, ALL_RIGHTS);
        assert!(!locate(Right::LocalRead), "of another zone");
        change(key, 5, ALL_RIGHTS);
        let at = split(key).0 as u32;
        let ended = end(key).unwrap();
        assert!(!locate(Right::LocalRead) && end(key).is_none());
        assert!(!FREE.lock().contains(&at));
        drop(ended);
        assert!(FREE.lock().contains(&at));
    }

    #[test]
    fn a_place_rests_before_it_is_used_again() {
        let mut memory = [0_u8; 8];
        let mut seen = std::collections::HashSet::new();
        // Other tests use places, too.
        for nth in 0..2000 {
            let key = register(&mut memory, 5, ALL_RIGHTS).1;
            assert!(seen.insert(split(key).0), "the place of {key:#x} comes again after {nth} others");
            remove(key);
        }
    }

    #[test]
    fn what_is_reserved_is_reached_once_it_is_open() {
        let mut memory = vec![0_u8; 64];
        let (address, whole) = register(&mut memory, 5, ALL_RIGHTS);
        let part =
            Piece { named: address, start: address as usize, len: 8, zone: 5, rights: ALL_RIGHTS, of: whole };
        let key = reserve(part).unwrap();
        let triplet = Segment { address, len: 8, key };
        let denied = Err(Refusal::Protection);
        assert_eq!(write(triplet, 5, Right::RemoteWrite, &[1; 8]), denied);
        assert!(find(key).is_none() && !invalidate(key, 5), "a peer cannot end it either");
        assert!(!remove_without_parts(whole), "it is about to be bound");
        open(key);
        assert_eq!(write(triplet, 5, Right::RemoteWrite, &[1; 8]), Ok(()));
        remove(key);
        open(key);
        assert_eq!(write(triplet, 5, Right::RemoteWrite, &[1; 8]), denied, "it has ended");
        assert!(remove_without_parts(whole));
    }

    proptest! {
        #[test]
        fn what_is_scattered_is_gathered(lens in prop::collection::vec(0..20_u32, 1..6), data in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut memory = vec![0_u8; 200];
            let (address, key) = register(&mut memory, 9, ALL_RIGHTS);
            let mut next = address;
            let segments: Vec<Segment> = lens.iter().map(|len| {
                next += u64::from(*len) + 3;
                Segment { address: next - u64::from(*len), len: *len, key }
            }).collect();
            let room: usize = lens.iter().map(|len| *len as usize).sum();
            let (head, tail) = data.split_at(data.len() / 3);
            let left = scatter(&segments, 9, [head, tail].into_iter()).unwrap();
            prop_assert_eq!(left, data.len().saturating_sub(room));
            let mut back = vec![0; room];
            gather(&segments, 9, &mut back).unwrap();
            let fitted = data.len().min(room);
            prop_assert_eq!(&back[..fitted], &data[..fitted]);
            remove(key);
        }
    }
}
