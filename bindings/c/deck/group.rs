//! `deck_group_t`: groups of ranks, and their collective calls.
//!
//! Data that only move are bytes. Reductions work on whole elements, by operators of `udeck::op` that each call chooses.
#![allow(unsafe_code, reason = "calls of C's")]

use std::ffi::{c_char, c_int, c_long, c_ulong, c_ulonglong, c_void};
use std::sync::Arc;

use udeck::op::{ByType, ElementType, Named, WithElements};
use udeck::{Group, Pod};

use super::error::{CallError, Result, call, invalid, of_barrier};
use super::message::size_of_type;
use super::pointer::{self, Number, Structure, check_not_created, slice, slice_mut};
use super::stage::{limit, world};
use super::table::Table;

/// `deck_group_t`, as `deck.h` has it.
#[repr(C)]
pub struct GroupStructure {
    number: Number,
}

impl Structure for GroupStructure {
    type Object = Arc<Group>;
    const TABLE: &'static Table<Arc<Group>> = &GROUPS;

    fn number_in(structure: *mut Self) -> *mut Number {
        structure.cast()
    }
}

static GROUPS: Table<Arc<Group>> = Table::new("deck_group_t", 0x7072_0000);

/// Whether another thread is in a call with a group: that call holds a reference, too.
pub(super) fn is_in_use() -> bool {
    GROUPS.is_in_use(|group| Arc::strong_count(group) > 1)
}

/// Drops all groups at the end of the job.
pub(super) fn clear() {
    GROUPS.clear();
}

/// # Safety
/// A pointer that is not NULL points to a structure.
unsafe fn group(structure: *mut GroupStructure) -> Result<Arc<Group>> {
    // SAFETY: our contract.
    unsafe { pointer::shared(structure) }
}

/// Makes the structure refer to a group.
///
/// # Safety
/// `structure` points to a structure.
unsafe fn keep(structure: *mut GroupStructure, group: Group) -> Result {
    let number = pointer::insert(Arc::new(group), structure)?;
    // SAFETY: our contract; it may be uninitialised.
    unsafe { structure.write(GroupStructure { number }) };
    Ok(())
}

/// `int deck_group_all(deck_group_t *group)`
///
/// # Safety
/// `structure` is NULL or points to a structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_group_all(structure: *mut GroupStructure) -> c_int {
    call("deck_group_all", || {
        let world = world()?;
        // SAFETY: our contract, twice.
        unsafe {
            check_not_created(structure)?;
            keep(structure, world.all()?.within(world.config().deadline))
        }
    })
}

/// `int deck_group_create(deck_group_t *group, const char *name, const unsigned long *ranks, unsigned long n)`
///
/// # Safety
/// `structure` is NULL or points to a structure; `name` is NULL or a string; `ranks` has `n` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_group_create(
    structure: *mut GroupStructure,
    name: *const c_char,
    ranks: *const c_ulong,
    n: c_ulong,
) -> c_int {
    call("deck_group_create", || {
        let world = world()?;
        if n > world.size() as c_ulong {
            return Err(invalid(format!("{n} ranks are named, and the job has {}", world.size())));
        }
        // SAFETY: our contract, for all three.
        let (name, ranks) = unsafe {
            check_not_created(structure)?;
            (pointer::name("name", name)?, slice("ranks", ranks, n as usize)?)
        };
        let ranks: Vec<usize> = ranks.iter().map(|rank| *rank as usize).collect();
        // SAFETY: our contract.
        unsafe { keep(structure, world.group(name, &ranks)?) }
    })
}

/// `int deck_group_split(deck_group_t *group, long colour, long key, deck_group_t *part)`
///
/// # Safety
/// `structure` and `part` are NULL or point to structures.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_group_split(
    structure: *mut GroupStructure,
    colour: c_long,
    key: c_long,
    part: *mut GroupStructure,
) -> c_int {
    call("deck_group_split", || {
        // SAFETY: our contract, for both.
        let group = unsafe {
            check_not_created(part)?;
            group(structure)?
        };
        match group.split(usize::try_from(colour).ok(), key)? {
            // SAFETY: our contract.
            Some(made) => unsafe { keep(part, made) },
            None => Ok(()),
        }
    })
}

/// `int deck_group_survivors(deck_group_t *group)`
///
/// # Safety
/// Same as for [`deck_group_all`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_group_survivors(structure: *mut GroupStructure) -> c_int {
    call("deck_group_survivors", || {
        let world = world()?;
        // SAFETY: our contract, twice.
        unsafe {
            check_not_created(structure)?;
            keep(structure, world.survivors()?)
        }
    })
}

/// `int deck_agree(unsigned long long *flags, unsigned long *numnodes)`
///
/// # Safety
/// `flags` and `numnodes` are NULL or point to numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_agree(flags: *mut c_ulonglong, numnodes: *mut c_ulong) -> c_int {
    call("deck_agree", || {
        let world = world()?;
        // SAFETY: our contract, for all of it.
        unsafe {
            let mine = slice("flags", flags.cast_const(), 1)?[0];
            // Checked before the call of the other ranks.
            pointer::store("numnodes", numnodes, 0)?;
            let agreement = world.agree(mine)?;
            pointer::store("numnodes", numnodes, agreement.ranks.len() as c_ulong)?;
            pointer::store("flags", flags, agreement.flags)
        }
    })
}

/// `int deck_group_destroy(deck_group_t *group)`
///
/// # Safety
/// Same as for [`deck_group_all`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_group_destroy(structure: *mut GroupStructure) -> c_int {
    // SAFETY: our contract.
    call("deck_group_destroy", || unsafe { pointer::remove(structure) }.map(drop))
}

/// `int deck_group_timeout(deck_group_t *group, unsigned long microseconds)`
///
/// # Safety
/// Same as for [`deck_group_all`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_group_timeout(structure: *mut GroupStructure, microseconds: c_ulong) -> c_int {
    call("deck_group_timeout", || {
        // SAFETY: our contract.
        let number = unsafe { pointer::number(structure) }?;
        let mut used = GROUPS.lock(number, None)?;
        let group = used.get().ok_or_else(|| GROUPS.missing())?;
        *group = Arc::new(group.within(limit(microseconds)));
        Ok(())
    })
}

/// `int deck_group_node(deck_group_t *group, unsigned long *node)`
///
/// # Safety
/// `structure` is NULL or points to a structure, and `node` to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_group_node(structure: *mut GroupStructure, node: *mut c_ulong) -> c_int {
    // SAFETY: our contract, for both.
    call("deck_group_node", || unsafe { pointer::store("node", node, group(structure)?.rank() as c_ulong) })
}

/// `int deck_group_numnodes(deck_group_t *group, unsigned long *numnodes)`
///
/// # Safety
/// Same as for [`deck_group_node`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_group_numnodes(
    structure: *mut GroupStructure,
    numnodes: *mut c_ulong,
) -> c_int {
    call("deck_group_numnodes", || {
        // SAFETY: our contract, for both.
        unsafe { pointer::store("numnodes", numnodes, group(structure)?.size() as c_ulong) }
    })
}

/// `int deck_group_barrier(deck_group_t *group)`
///
/// # Safety
/// Same as for [`deck_group_all`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_group_barrier(structure: *mut GroupStructure) -> c_int {
    // SAFETY: our contract.
    call("deck_group_barrier", || unsafe { group(structure) }?.barrier().map_err(of_barrier))
}

/// Bytes of `n` elements for each of `members` members.
fn bytes(code: c_int, n: c_ulong, members: usize) -> Result<usize> {
    let bytes = (n as usize).checked_mul(size_of_type(code)?).and_then(|bytes| bytes.checked_mul(members));
    bytes.ok_or_else(|| invalid(format!("{n} elements of {members} members are more than any memory has")))
}

/// Memory of the program: the name of its argument, its address, and its length in bytes.
type Argument<P> = (&'static str, P, usize);

/// Memory that is read and memory that is written, which must not overlap.
///
/// # Safety
/// Each is NULL or has as many bytes as given.
unsafe fn apart<'a>(
    read: Argument<*const c_void>,
    written: Argument<*mut c_void>,
) -> Result<(&'a [u8], &'a mut [u8])> {
    let ends = |first: usize, bytes: usize| (first, first.saturating_add(bytes));
    let (from, to) = (ends(read.1.addr(), read.2), ends(written.1.addr(), written.2));
    let is_empty = read.2 == 0 || written.2 == 0;
    if !(is_empty || from.1 <= to.0 || to.1 <= from.0) {
        return Err(invalid(format!("{} and {} overlap", read.0, written.0)));
    }
    // SAFETY: our contract, for both.
    unsafe { Ok((slice(read.0, read.1.cast(), read.2)?, slice_mut(written.0, written.1.cast(), written.2)?)) }
}

/// Bytes of `n` elements, and bytes of the elements of all members at the root (elsewhere 0).
fn bytes_at_root(group: &Group, root: c_ulong, code: c_int, n: c_ulong) -> Result<(usize, usize)> {
    let here = if root as usize == group.rank() { group.size() } else { 0 };
    Ok((bytes(code, n, 1)?, bytes(code, n, here)?))
}

/// `int deck_group_broadcast(deck_group_t *group, unsigned long root, int type, void *data, unsigned long n)`
///
/// # Safety
/// `structure` is NULL or points to a structure; `data` has `n` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_group_broadcast(
    structure: *mut GroupStructure,
    root: c_ulong,
    code: c_int,
    data: *mut c_void,
    n: c_ulong,
) -> c_int {
    call("deck_group_broadcast", || {
        // SAFETY: our contract, for both.
        let (group, data) =
            unsafe { (group(structure)?, slice_mut("data", data.cast::<u8>(), bytes(code, n, 1)?)?) };
        Ok(moving(&group, code).broadcast(root as usize, data)?)
    })
}

/// `int deck_group_gather(deck_group_t *group, unsigned long root, int type, const void *mine, unsigned long n, void *all)`
///
/// # Safety
/// `structure` is NULL or points to a structure; `mine` has `n` elements, and at the root `all` as many for each member.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_group_gather(
    structure: *mut GroupStructure,
    root: c_ulong,
    code: c_int,
    mine: *const c_void,
    n: c_ulong,
    all: *mut c_void,
) -> c_int {
    call("deck_group_gather", || {
        // SAFETY: our contract.
        let group = unsafe { group(structure) }?;
        let (each, whole) = bytes_at_root(&group, root, code, n)?;
        // SAFETY: our contract, for both.
        let (mine, all) = unsafe { apart(("mine", mine, each), ("all", all, whole)) }?;
        Ok(moving(&group, code).gather(root as usize, mine, all)?)
    })
}

/// `int deck_group_scatter(deck_group_t *group, unsigned long root, int type, const void *all, void *mine, unsigned long n)`
///
/// # Safety
/// `structure` is NULL or points to a structure; `mine` has `n` elements, and at the root `all` as many for each member.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_group_scatter(
    structure: *mut GroupStructure,
    root: c_ulong,
    code: c_int,
    all: *const c_void,
    mine: *mut c_void,
    n: c_ulong,
) -> c_int {
    call("deck_group_scatter", || {
        // SAFETY: our contract.
        let group = unsafe { group(structure) }?;
        let (each, whole) = bytes_at_root(&group, root, code, n)?;
        // SAFETY: our contract, for both.
        let (all, mine) = unsafe { apart(("all", all, whole), ("mine", mine, each)) }?;
        Ok(moving(&group, code).scatter(root as usize, all, mine)?)
    })
}

/// `int deck_group_allgather(deck_group_t *group, int type, const void *mine, unsigned long n, void *all)`
///
/// # Safety
/// `structure` is NULL or points to a structure; `mine` has `n` elements, and `all` as many for each member.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_group_allgather(
    structure: *mut GroupStructure,
    code: c_int,
    mine: *const c_void,
    n: c_ulong,
    all: *mut c_void,
) -> c_int {
    call("deck_group_allgather", || {
        // SAFETY: our contract.
        let group = unsafe { group(structure) }?;
        let (each, whole) = (bytes(code, n, 1)?, bytes(code, n, group.size())?);
        // SAFETY: our contract, for both.
        let (mine, all) = unsafe { apart(("mine", mine, each), ("all", all, whole)) }?;
        Ok(moving(&group, code).all_gather(mine, all)?)
    })
}

/// `int deck_group_alltoall(deck_group_t *group, int type, const void *from, void *to, unsigned long n)`
///
/// # Safety
/// `structure` is NULL or points to a structure; `from` and `to` have `n` elements for each member.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_group_alltoall(
    structure: *mut GroupStructure,
    code: c_int,
    from: *const c_void,
    to: *mut c_void,
    n: c_ulong,
) -> c_int {
    call("deck_group_alltoall", || {
        // SAFETY: our contract.
        let group = unsafe { group(structure) }?;
        let whole = bytes(code, n, group.size())?;
        // SAFETY: our contract, for both.
        let (from, to) = unsafe { apart(("from", from, whole), ("to", to, whole)) }?;
        Ok(moving(&group, code).all_to_all(from, to)?)
    })
}

/// Returns the group with calls that declare elements of this type as moved.
fn moving(group: &Group, code: c_int) -> Group {
    match element(code) {
        Some(known) => group.moving(known.name()),
        None => group.moving(&format!("type {code} of deck.h")),
    }
}

/// Element type of a code of `deck.h`.
fn element(code: c_int) -> Option<ElementType> {
    Some(match code {
        1 if c_char::MIN == 0 => ElementType::U8,
        1 => ElementType::I8,
        2 => ElementType::U8,
        3 => ElementType::I16,
        4 => ElementType::U16,
        5 => ElementType::I32,
        6 => ElementType::U32,
        7 | 9 => ElementType::I64,
        8 | 10 => ElementType::U64,
        11 => ElementType::F32,
        12 => ElementType::F64,
        _ => return None,
    })
}

/// The operator `op` for elements of this type.
fn operator(code: c_int, op: c_int) -> Result<ByType> {
    let no_numbers = || invalid(format!("{code} is no type of numbers (DECK_CHAR to DECK_DOUBLE)"));
    let element = element(code).ok_or_else(no_numbers)?;
    let named = match op {
        1 => Named::Sum,
        2 => Named::Product,
        3 => Named::Min,
        4 => Named::Max,
        5 => Named::BitAnd,
        6 => Named::BitOr,
        7 => Named::BitXor,
        _ => return Err(invalid(format!("{op} is no operator (DECK_SUM to DECK_BXOR)"))),
    };
    let none = || invalid("floating-point numbers have no DECK_BAND, DECK_BOR and DECK_BXOR");
    ByType::new(named, element).ok_or_else(none)
}

/// The program's elements, which become the result.
struct InPlace {
    group: Arc<Group>,
    data: *mut c_void,
    n: c_ulong,
    which: Reduction,
}

/// Reductions that combine in place.
enum Reduction {
    Reduce(usize),
    AllReduce,
    Scan,
}

impl WithElements for InPlace {
    type Output = Result;

    fn run<T: Pod + Send + Sync>(self, op: ByType) -> Result {
        // SAFETY: the call that made this promises so many elements of this width.
        let data = unsafe { slice_mut("data", self.data.cast::<T>(), self.n as usize) }?;
        let done = match self.which {
            Reduction::Reduce(root) => self.group.reduce(root, data, op),
            Reduction::AllReduce => self.group.all_reduce(data, op),
            Reduction::Scan => self.group.scan(data, op),
        };
        done.map_err(CallError::from)
    }
}

/// `int deck_group_reduce(deck_group_t *group, unsigned long root, int type, int op, void *data, unsigned long n)`
///
/// # Safety
/// `structure` is NULL or points to a structure; `data` has `n` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_group_reduce(
    structure: *mut GroupStructure,
    root: c_ulong,
    code: c_int,
    op: c_int,
    data: *mut c_void,
    n: c_ulong,
) -> c_int {
    call("deck_group_reduce", || {
        // SAFETY: our contract.
        let group = unsafe { group(structure) }?;
        operator(code, op)?.for_elements(InPlace { group, data, n, which: Reduction::Reduce(root as usize) })
    })
}

/// `int deck_group_allreduce(deck_group_t *group, int type, int op, void *data, unsigned long n)`
///
/// # Safety
/// Same as for [`deck_group_reduce`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_group_allreduce(
    structure: *mut GroupStructure,
    code: c_int,
    op: c_int,
    data: *mut c_void,
    n: c_ulong,
) -> c_int {
    call("deck_group_allreduce", || {
        // SAFETY: our contract.
        let group = unsafe { group(structure) }?;
        operator(code, op)?.for_elements(InPlace { group, data, n, which: Reduction::AllReduce })
    })
}

/// `int deck_group_scan(deck_group_t *group, int type, int op, void *data, unsigned long n)`
///
/// # Safety
/// Same as for [`deck_group_reduce`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_group_scan(
    structure: *mut GroupStructure,
    code: c_int,
    op: c_int,
    data: *mut c_void,
    n: c_ulong,
) -> c_int {
    call("deck_group_scan", || {
        // SAFETY: our contract.
        let group = unsafe { group(structure) }?;
        operator(code, op)?.for_elements(InPlace { group, data, n, which: Reduction::Scan })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_operators_are_those_of_the_header() {
        struct Width;
        impl WithElements for Width {
            type Output = usize;
            fn run<T: Pod + Send + Sync>(self, _: ByType) -> usize {
                size_of::<T>()
            }
        }
        for code in 1..=12 {
            let width = operator(code, 1).unwrap().for_elements(Width);
            assert_eq!(width, size_of_type(code).unwrap(), "{code}");
        }
        let names = [1, 2, 3, 4, 5, 6, 7].map(|op| format!("{:?}", operator(5, op).unwrap()));
        let expected = ["Sum", "Product", "Min", "Max", "BitAnd", "BitOr", "BitXor"];
        assert_eq!(names, expected.map(|name| format!("{name} of i32")));
    }

    #[test]
    fn what_is_no_operator_or_no_number_is_an_error() {
        assert!(operator(12, 5).is_err() && operator(5, 0).is_err() && operator(5, 8).is_err());
        assert!(operator(13, 1).is_err() && operator(0, 1).is_err());
    }
}
