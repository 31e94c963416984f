//! Pointers from C: checked as far as C allows, then converted to a slice, a name or a structure.
//!
//! Every call of `deck.h` promises for a pointer that is not NULL what its documentation says: it points to the stated number of
//! elements, which nobody else changes during the call. The `unsafe` blocks here rest on this promise.
#![allow(unsafe_code, reason = "C passes pointers")]

use std::ffi::{CStr, c_char, c_ulong};

use super::error::{CallError, Result, invalid};
use super::table::{Locked, Table};

const _: () = assert!(size_of::<c_ulong>() == 8, "the structures of deck.h are those of 64-bit systems");

/// Number of the object behind a structure of `deck.h`.
pub(super) type Number = u64;

/// A structure of the program, with the number of its object in one of its fields.
pub(super) trait Structure: Sized {
    /// Type of the objects behind these structures.
    type Object: 'static;
    /// Table of these objects.
    const TABLE: &'static Table<Self::Object>;

    fn number_in(structure: *mut Self) -> *mut Number;
}

/// The number in the structure. It need not be aligned: C may have copied the structure anywhere.
///
/// # Safety
/// A pointer that is not NULL points to a structure.
#[inline(always)]
pub(super) unsafe fn number<S: Structure>(structure: *mut S) -> Result<Number> {
    if structure.is_null() {
        return Err(no_pointer(S::TABLE.what));
    }
    // SAFETY: it points to a structure, by our contract. What was never made has any bytes, and any are a number.
    Ok(unsafe { S::number_in(structure).read_unaligned() })
}

/// Checks that the structure may be created: it is not NULL, and refers to no object yet.
///
/// # Safety
/// Same as for [`number`].
pub(super) unsafe fn check_not_created<S: Structure>(structure: *mut S) -> Result {
    if structure.is_null() {
        return Err(no_pointer(S::TABLE.what));
    }
    if !structure.is_aligned() {
        return Err(invalid(format!("the pointer to the {} is not aligned", S::TABLE.what)));
    }
    let Some(made) = S::TABLE.made_at(structure.addr())? else { return Ok(()) };
    // SAFETY: it points to a structure, which was written when the object was made. If its memory was given to something else
    // since, any bytes are a number.
    match unsafe { S::number_in(structure).read() } == made {
        true => Err(invalid(format!("the {} was created already: destroy it first", S::TABLE.what))),
        false => Ok(()),
    }
}

/// Stores an object, and returns the structure's new number.
pub(super) fn insert<S: Structure>(object: S::Object, structure: *mut S) -> Result<Number> {
    S::TABLE.insert(object, structure.addr())
}

/// Takes out the object behind the structure. The structure then refers to none.
///
/// # Safety
/// Same as for [`number`].
pub(super) unsafe fn remove<S: Structure>(structure: *mut S) -> Result<S::Object> {
    // SAFETY: our contract.
    let used = S::TABLE.lock(unsafe { number(structure) }?, None)?;
    // SAFETY: our contract.
    unsafe { take_out(structure, used) }
}

/// Takes out an object that the caller has locked, and that is the one behind the structure.
///
/// # Safety
/// Same as for [`number`].
pub(super) unsafe fn take_out<S: Structure>(
    structure: *mut S,
    used: Locked<'_, S::Object>,
) -> Result<S::Object> {
    // SAFETY: our contract.
    let object = S::TABLE.take_out(used, unsafe { number(structure) }?, structure.addr())?;
    // SAFETY: it points to a structure, which has just been read.
    unsafe { S::number_in(structure).write_unaligned(0) };
    Ok(object)
}

/// The object behind the structure, shared with other threads.
///
/// # Safety
/// Same as for [`number`].
pub(super) unsafe fn shared<S: Structure>(structure: *mut S) -> Result<S::Object>
where
    S::Object: Clone,
{
    // SAFETY: our contract.
    let number = unsafe { number(structure) }?;
    S::TABLE.lock(number, None)?.get().cloned().ok_or_else(|| S::TABLE.missing())
}

#[cold]
#[inline(never)]
fn no_pointer(what: &str) -> CallError {
    invalid(format!("the pointer to the {what} is NULL"))
}

/// A C string as a name in UTF-8.
///
/// # Safety
/// A pointer that is not NULL points to a C string, which nobody changes for `'a`.
pub(super) unsafe fn name<'a>(what: &str, text: *const c_char) -> Result<&'a str> {
    if text.is_null() {
        return Err(invalid(format!("{what} is NULL")));
    }
    // SAFETY: it is a string, by our contract.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| invalid(format!("{what} is no UTF-8: {}", text.to_string_lossy())))
}

/// Elements that C allows the library to read.
///
/// # Safety
/// A pointer that is not NULL points to `count` elements, which nobody changes for `'a`.
pub(super) unsafe fn slice<'a, T>(what: &str, first: *const T, count: usize) -> Result<&'a [T]> {
    check(what, first, count)?;
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: it is aligned, not NULL, and points to so many elements, by our contract; their bytes are no more than `isize::MAX`.
    Ok(unsafe { std::slice::from_raw_parts(first, count) })
}

/// Elements that C allows the library to write.
///
/// # Safety
/// A pointer that is not NULL points to `count` elements, which nobody else reads or changes for `'a`.
pub(super) unsafe fn slice_mut<'a, T>(what: &str, first: *mut T, count: usize) -> Result<&'a mut [T]> {
    check(what, first, count)?;
    if count == 0 {
        return Ok(&mut []);
    }
    // SAFETY: it is aligned, not NULL, and points to so many elements, by our contract; their bytes are no more than `isize::MAX`.
    Ok(unsafe { std::slice::from_raw_parts_mut(first, count) })
}

/// Stores one value at an address that C passed.
///
/// # Safety
/// A pointer that is not NULL points to a value.
pub(super) unsafe fn store<T>(what: &str, place: *mut T, value: T) -> Result {
    check(what, place, 1)?;
    // SAFETY: it is aligned, not NULL, and points to a value, by our contract.
    unsafe { place.write(value) };
    Ok(())
}

/// Refuses a pointer that cannot point to `count` elements.
pub(super) fn check<T>(what: &str, first: *const T, count: usize) -> Result {
    match count {
        0 => Ok(()),
        _ if first.is_null() => Err(invalid(format!("{what} is NULL"))),
        _ if !first.is_aligned() => Err(invalid(format!("{what} is not aligned for its type"))),
        _ if count.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX as usize) => {
            Err(invalid(format!("{what} cannot have {count} elements")))
        }
        _ => Ok(()),
    }
}
