//! Memory of the program's that the library may touch: local and remote memory regions, by their contexts.
//!
//! The library copies from and to it, with the table locked for reading: a region that `dat_lmr_free` has ended is not touched any
//! more when the call returns.

#![allow(unsafe_code, reason = "the program's memory, at addresses that it has registered")]

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::ptr::NonNull;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use parking_lot::RwLock;
use udeck_sys::{copy_in, copy_out};

use super::code::{Code, Result, Sub};

/// `DAT_MEM_PRIV_FLAGS`, each of which is one way to touch memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Right {
    LocalRead = 0x01,
    RemoteRead = 0x02,
    LocalWrite = 0x10,
    RemoteWrite = 0x20,
}

/// All of them.
pub const ALL_RIGHTS: u32 = 0x33;

/// A protection zone.
#[derive(Debug)]
pub struct Pz {
    /// Tells it from others; never 0.
    pub id: u32,
    pub handle: usize,
}

/// The number of a new one.
pub fn next_zone() -> u32 {
    static NUMBER: AtomicU32 = AtomicU32::new(1);
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// A piece of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// By which address it is named: its own, or 0.
    pub named: u64,
    /// Where it lies.
    pub start: usize,
    pub len: usize,
    /// Number of the protection zone.
    pub pz: u32,
    /// [`Right`]s.
    pub rights: u32,
    /// The LMR of an RMR, otherwise 0.
    pub of: u32,
}

/// A segment of the program's: `DAT_LMR_TRIPLET` and `DAT_RMR_TRIPLET`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Triplet {
    pub address: u64,
    pub len: u32,
    pub context: u32,
}

struct Place {
    generation: u32,
    piece: Option<Piece>,
    /// Whether it may be touched: an RMR's part may when its bind has come to its turn.
    is_open: bool,
}

static TABLE: RwLock<Vec<Place>> = RwLock::new(Vec::new());
/// RMRs that name a part of some LMR.
static BOUND: AtomicUsize = AtomicUsize::new(0);
static FREE: parking_lot::Mutex<VecDeque<u32>> = parking_lot::Mutex::new(VecDeque::new());
/// Where the generations of a place begin: a peer that knows one context does not know the others.
static RANDOM: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// So many places stay free for others: each has few contexts, and those of one alone would soon come round.
const RESTING: usize = 4096;

const INDEX_BITS: u32 = 20;
/// Regions at a time.
pub const MAX: usize = 1 << INDEX_BITS;
/// Contexts that a place has one after another.
const GENERATIONS: u32 = (1 << (32 - INDEX_BITS)) - 1;

fn split(context: u32) -> (usize, u32) {
    ((context & (MAX as u32 - 1)) as usize, context >> INDEX_BITS)
}

impl Place {
    #[inline]
    fn of(&self, generation: u32) -> Option<&Piece> {
        self.piece.as_ref().filter(|_| self.generation == generation && self.is_open)
    }
}

/// Registers it: its context.
///
/// # Errors
/// No place is left; or it is a part of an LMR that is gone.
pub fn add(piece: Piece) -> Result<u32> {
    put(piece, true)
}

/// Gives it a context by which nobody reaches it until it is [opened](open).
///
/// # Errors
/// As [`add`].
pub fn reserve(piece: Piece) -> Result<u32> {
    put(piece, false)
}

/// What was reserved may be touched, unless it has ended.
pub fn open(context: u32) {
    let (at, generation) = split(context);
    if let Some(place) = TABLE.write().get_mut(at).filter(|place| place.generation == generation) {
        place.is_open = true;
    }
}

fn put(piece: Piece, is_open: bool) -> Result<u32> {
    let mut table = TABLE.write();
    if piece.of != 0 && find_in(&table, piece.of).is_none() {
        return Err(Code::INVALID_HANDLE.of(Sub::HandleLmr));
    }
    let mut free = FREE.lock();
    let may_be_used = free.len() > RESTING || table.len() >= MAX;
    let at = match may_be_used.then(|| free.pop_front()).flatten() {
        Some(at) => at as usize,
        None if table.len() < MAX => {
            let generation = RANDOM.hash_one(table.len()) as u32 % GENERATIONS;
            table.push(Place { generation, piece: None, is_open: false });
            table.len() - 1
        }
        None => return Err(Code::INSUFFICIENT_RESOURCES.of(Sub::ResourceMemoryRegion)),
    };
    drop(free);
    let place = &mut table[at];
    // Never 0; a context that was freed is not given again soon.
    place.generation = place.generation % GENERATIONS + 1;
    place.piece = Some(piece);
    place.is_open = is_open;
    BOUND.fetch_add(usize::from(piece.of != 0), Ordering::Relaxed);
    Ok(place.generation << INDEX_BITS | at as u32)
}

/// Ends it; nothing, if it has ended.
pub fn remove(context: u32) {
    remove_from(&mut TABLE.write(), context);
}

fn remove_from(table: &mut [Place], context: u32) {
    let (at, generation) = split(context);
    if let Some(place) = table.get_mut(at).filter(|place| place.generation == generation)
        && let Some(piece) = place.piece.take()
    {
        BOUND.fetch_sub(usize::from(piece.of != 0), Ordering::Relaxed);
        FREE.lock().push_back(at as u32);
    }
}

/// Ends an LMR, unless an RMR names a part of it: nobody can bind one meanwhile. Whether it has ended.
pub fn remove_unbound(context: u32) -> bool {
    let mut table = TABLE.write();
    let is_bound = BOUND.load(Ordering::Relaxed) > 0
        && table.iter().any(|place| place.piece.is_some_and(|piece| piece.of == context));
    if !is_bound {
        remove_from(&mut table, context);
    }
    !is_bound
}

/// Ends an LMR and whatever names a part of it.
pub fn remove_with_parts(context: u32) {
    let mut table = TABLE.write();
    if BOUND.load(Ordering::Relaxed) > 0 {
        let parts = table
            .iter()
            .enumerate()
            .filter(|(_, place)| place.piece.is_some_and(|piece| piece.of == context));
        let parts: Vec<u32> = parts.map(|(at, place)| place.generation << INDEX_BITS | at as u32).collect();
        parts.into_iter().for_each(|part| remove_from(&mut table, part));
    }
    remove_from(&mut table, context);
}

/// Ends an RMR that a peer of this protection zone invalidates. `false`: that is none.
pub fn invalidate(context: u32, pz: u32) -> bool {
    let is_rmr = find(context).is_some_and(|piece| piece.of != 0 && piece.pz == pz);
    if is_rmr {
        remove(context);
    }
    is_rmr
}

/// What is registered by that context.
pub fn find(context: u32) -> Option<Piece> {
    find_in(&TABLE.read(), context).copied()
}

#[inline]
fn find_in(table: &[Place], context: u32) -> Option<&Piece> {
    let (at, generation) = split(context);
    table.get(at)?.of(generation)
}

/// Calls `with` with the address of so many bytes, if they may be touched so.
///
/// # Errors
/// `DAT_PROTECTION_VIOLATION` or `DAT_PRIVILEGES_VIOLATION`, with what was tried.
#[inline(always)]
pub fn access<R>(triplet: Triplet, pz: u32, right: Right, with: impl FnOnce(*mut u8) -> R) -> Result<R> {
    let table = TABLE.read();
    let Some(piece) = find_in(&table, triplet.context) else { return Err(refused(right, true)) };
    let offset = triplet.address.wrapping_sub(piece.named);
    let fits = offset <= piece.len as u64 && u64::from(triplet.len) <= piece.len as u64 - offset;
    if piece.pz != pz || !fits {
        return Err(refused(right, true));
    }
    // What is registered can be sent, as with hardware: programs do not ask for that right.
    if piece.rights & right as u32 == 0 && right != Right::LocalRead {
        return Err(refused(right, false));
    }
    Ok(with((piece.start + offset as usize) as *mut u8))
}

#[cold]
fn refused(right: Right, protection: bool) -> Code {
    match (right, protection) {
        (Right::LocalRead, true) => Code::PROTECTION_VIOLATION.of(Sub::ProtectionRead),
        (Right::LocalWrite, true) => Code::PROTECTION_VIOLATION.of(Sub::ProtectionWrite),
        (Right::RemoteRead, true) => Code::PROTECTION_VIOLATION.of(Sub::ProtectionRdmaRead),
        (Right::RemoteWrite, true) => Code::PROTECTION_VIOLATION.of(Sub::ProtectionRdmaWrite),
        (Right::LocalRead, false) => Code::PRIVILEGES_VIOLATION.of(Sub::PrivilegesRead),
        (Right::LocalWrite, false) => Code::PRIVILEGES_VIOLATION.of(Sub::PrivilegesWrite),
        (Right::RemoteRead, false) => Code::PRIVILEGES_VIOLATION.of(Sub::PrivilegesRdmaRead),
        (Right::RemoteWrite, false) => Code::PRIVILEGES_VIOLATION.of(Sub::PrivilegesRdmaWrite),
    }
}

/// Copies out of the program's memory.
///
/// # Errors
/// As [`access`].
#[inline(always)]
pub fn read(from: Triplet, pz: u32, right: Right, to: &mut [u8]) -> Result {
    let len = to.len().min(from.len as usize);
    access(from, pz, right, |at| {
        if let Some(at) = NonNull::new(at) {
            // SAFETY: registered for so many bytes, and it stays so while the table is locked; `to` is memory of ours. Peers, by other
            // end points, and threads of the program may write there meanwhile, which `copy_in` is for.
            unsafe { copy_in(&mut to[..len], at) }
        }
    })
}

/// Copies into the program's memory.
///
/// # Errors
/// As [`access`].
#[inline]
pub fn write(to: Triplet, pz: u32, right: Right, from: &[u8]) -> Result {
    let len = from.len().min(to.len as usize);
    access(to, pz, right, |at| {
        if let Some(at) = NonNull::new(at) {
            // SAFETY: as above; `from` is memory of ours, or what the transport has received.
            unsafe { copy_out(at, &from[..len]) }
        }
    })
}

/// Copies all segments to `to`, which has room for all.
///
/// # Errors
/// As [`access`].
pub fn gather(segments: &[Triplet], pz: u32, mut to: &mut [u8]) -> Result {
    for segment in segments {
        let (now, later) = to.split_at_mut_checked(segment.len as usize).ok_or(Code::LENGTH_ERROR)?;
        to = later;
        if !now.is_empty() {
            read(*segment, pz, Right::LocalRead, now)?;
        }
    }
    Ok(())
}

/// Copies pieces to the segments, as far as they reach: how many bytes did not fit.
///
/// # Errors
/// As [`access`].
pub fn scatter<'a>(segments: &[Triplet], pz: u32, from: impl Iterator<Item = &'a [u8]>) -> Result<usize> {
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
                write(Triplet { len: now as u32, ..*segment }, pz, Right::LocalWrite, &piece[..now])?;
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

    /// A piece of the memory, and its context.
    fn register(memory: &mut [u8], pz: u32, rights: u32) -> (u64, u32) {
        let start = memory.as_mut_ptr() as usize;
        let piece = Piece { named: start as u64, start, len: memory.len(), pz, rights, of: 0 };
        (start as u64, add(piece).unwrap())
    }

    #[test]
    fn only_what_is_registered_is_touched_and_only_so() {
        let mut memory = vec![1_u8; 64];
        let (address, context) = register(&mut memory, 5, Right::LocalRead as u32);
        let at = |address, len| Triplet { address, len, context };
        let mut to = [0; 64];
        assert_eq!(read(at(address, 64), 5, Right::LocalRead, &mut to), Ok(()));
        assert_eq!(to, [1; 64]);
        let denied = Err(Code::PROTECTION_VIOLATION.of(Sub::ProtectionRead));
        assert_eq!(read(at(address, 64), 6, Right::LocalRead, &mut to), denied, "another zone");
        assert_eq!(read(at(address + 1, 64), 5, Right::LocalRead, &mut to), denied, "beyond its end");
        assert_eq!(read(at(address - 1, 1), 5, Right::LocalRead, &mut to), denied, "before its start");
        let denied = Err(Code::PRIVILEGES_VIOLATION.of(Sub::PrivilegesWrite));
        assert_eq!(write(at(address, 1), 5, Right::LocalWrite, &[2]), denied, "to be read only");
        remove(context);
        assert_eq!(
            read(at(address, 1), 5, Right::LocalRead, &mut to),
            Err(Code::PROTECTION_VIOLATION.of(Sub::ProtectionRead))
        );
        let again = register(&mut memory, 5, ALL_RIGHTS).1;
        assert_ne!(again, context);
        remove(again);
    }

    #[test]
    fn a_part_and_its_whole_depend_on_each_other() {
        let mut memory = vec![0_u8; 64];
        let (address, whole) = register(&mut memory, 5, ALL_RIGHTS);
        let part =
            Piece { named: address, start: address as usize, len: 8, pz: 5, rights: ALL_RIGHTS, of: whole };
        let bound = add(part).unwrap();
        assert!(!remove_unbound(whole) && find(whole).is_some(), "a part is bound");
        remove(bound);
        assert!(remove_unbound(whole) && find(whole).is_none());
        assert_eq!(add(part), Err(Code::INVALID_HANDLE.of(Sub::HandleLmr)), "of what is gone");
    }

    #[test]
    fn a_place_rests_before_it_is_used_again() {
        let mut memory = [0_u8; 8];
        let mut seen = std::collections::HashSet::new();
        // Other tests use places, too.
        for nth in 0..2000 {
            let context = register(&mut memory, 5, ALL_RIGHTS).1;
            assert!(
                seen.insert(split(context).0),
                "the place of {context:#x} comes again after {nth} others"
            );
            remove(context);
        }
    }

    #[test]
    fn what_is_reserved_is_reached_once_it_is_open() {
        let mut memory = vec![0_u8; 64];
        let (address, whole) = register(&mut memory, 5, ALL_RIGHTS);
        let part =
            Piece { named: address, start: address as usize, len: 8, pz: 5, rights: ALL_RIGHTS, of: whole };
        let context = reserve(part).unwrap();
        let triplet = Triplet { address, len: 8, context };
        let denied = Err(Code::PROTECTION_VIOLATION.of(Sub::ProtectionRdmaWrite));
        assert_eq!(write(triplet, 5, Right::RemoteWrite, &[1; 8]), denied);
        assert!(find(context).is_none() && !invalidate(context, 5), "a peer cannot end it either");
        assert!(!remove_unbound(whole), "it is about to be bound");
        open(context);
        assert_eq!(write(triplet, 5, Right::RemoteWrite, &[1; 8]), Ok(()));
        remove(context);
        open(context);
        assert_eq!(write(triplet, 5, Right::RemoteWrite, &[1; 8]), denied, "it has ended");
        assert!(remove_unbound(whole));
    }

    proptest! {
        #[test]
        fn what_is_scattered_is_gathered(lens in prop::collection::vec(0..20_u32, 1..6), data in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut memory = vec![0_u8; 200];
            let (address, context) = register(&mut memory, 9, ALL_RIGHTS);
            let mut next = address;
            let segments: Vec<Triplet> = lens.iter().map(|len| {
                next += u64::from(*len) + 3;
                Triplet { address: next - u64::from(*len), len: *len, context }
            }).collect();
            let room: usize = lens.iter().map(|len| *len as usize).sum();
            let (head, tail) = data.split_at(data.len() / 3);
            let left = scatter(&segments, 9, [head, tail].into_iter()).unwrap();
            prop_assert_eq!(left, data.len().saturating_sub(room));
            let mut back = vec![0; room];
            gather(&segments, 9, &mut back).unwrap();
            let fitted = data.len().min(room);
            prop_assert_eq!(&back[..fitted], &data[..fitted]);
            remove(context);
        }
    }
}
