//! `deck_msg_t`: memory for a message, into which the program packs or writes.
//!
//! The memory is this process's own, not a block of the world: its address stays the same over all posts and retrieves, because
//! the program may keep pointers into it. A post therefore copies it, as it copies a slice. The forms without a copy are in
//! `buffer`.
//!
//! Items lie one behind the other, in C's representation, without headers or gaps: the message is exactly what the program
//! sees at `buf`.
#![allow(unsafe_code, reason = "memory that C reads and writes")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};
use std::ptr::copy_nonoverlapping;

use super::error::{CallError, NO_MEMORY, Result, call, failure, invalid};
use super::pointer::{self, Number, Structure};
use super::stage::world;
use super::table::Table;

/// `deck_msg_t`, as `deck.h` has it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Message {
    buf: *mut c_char,
    size: c_ulong,
    datalen: c_ulong,
    cursor: *mut c_char,
    source: c_ulong,
    tag: c_uint,
    number: Number,
}

impl Structure for Message {
    type Object = Memory;
    const TABLE: &'static Table<Memory> = &MESSAGES;

    #[inline(always)]
    fn number_in(structure: *mut Self) -> *mut Number {
        structure.wrapping_byte_add(std::mem::offset_of!(Message, number)).cast()
    }
}

/// The memory of a message; freed when it is dropped.
pub struct Memory {
    base: *mut u8,
    layout: Layout,
}

// SAFETY: the memory belongs to whoever has this, on whatever thread; nothing of it is a thread's own.
unsafe impl Send for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated by this layout in `create`, and freed only here.
        unsafe { dealloc(self.base, self.layout) };
    }
}

static MESSAGES: Table<Memory> = Table::new("deck_msg_t", 0x6773_0000);

/// Alignment in bytes, the same as of blocks of the world.
const ALIGN: usize = 64;
/// From this size in bytes on, memory comes from the system, and the library does not touch its pages.
const LARGE: usize = 256 << 10;

/// A message whose structure was checked.
#[derive(Clone, Copy)]
pub(super) struct Checked {
    message: *mut Message,
    pub size: usize,
}

/// Check value of a structure's fields: it shows whether the structure is as the library made it.
#[inline(always)]
fn seal_of(buf: *mut c_char, size: c_ulong, number: Number) -> u64 {
    (buf.addr() as u64).rotate_left(7) ^ size ^ number
}

/// # Safety
/// A pointer that is not NULL points to a structure, which no other thread uses during the call.
#[inline(always)]
pub(super) unsafe fn checked(message: *mut Message) -> Result<Checked> {
    // SAFETY: our contract.
    let number = unsafe { pointer::number(message) }?;
    // SAFETY: our contract; fields of plain data, of which any bytes are a value.
    let (buf, size) = unsafe {
        ((&raw const (*message).buf).read_unaligned(), (&raw const (*message).size).read_unaligned())
    };
    match MESSAGES.is_sealed(number, seal_of(buf, size, number)) {
        true => Ok(Checked { message, size: size as usize }),
        false => Err(not_sealed(number)),
    }
}

#[cold]
#[inline(never)]
fn not_sealed(number: Number) -> CallError {
    match MESSAGES.lock(number, None) {
        Ok(_) => invalid(
            "buf or size of the deck_msg_t was changed, or it lies at an odd address: both are the library's",
        ),
        Err(failure) => failure,
    }
}

impl Checked {
    /// A field of the structure, which need not be aligned: C may have copied it anywhere.
    ///
    /// # Safety
    /// Same as for [`checked`]; `field` lies in the structure.
    #[inline(always)]
    unsafe fn get<F>(field: *const F) -> F {
        // SAFETY: our contract; fields of plain data, of which any bytes are a value.
        unsafe { field.read_unaligned() }
    }

    /// Address of the memory.
    ///
    /// # Safety
    /// Same as for [`checked`].
    #[inline(always)]
    unsafe fn buf(self) -> *mut u8 {
        // SAFETY: our contract.
        unsafe { Self::get(&raw const (*self.message).buf) }.cast()
    }

    /// Number of bytes in use.
    ///
    /// # Safety
    /// Same as for [`checked`].
    #[inline(always)]
    pub unsafe fn used(self) -> Result<usize> {
        // SAFETY: our contract.
        let used = unsafe { Self::get(&raw const (*self.message).datalen) } as usize;
        if used > self.size { Err(too_long(used, self.size)) } else { Ok(used) }
    }

    /// The bytes to be posted, of which `used` are [in use](Checked::used), and the tag.
    ///
    /// # Safety
    /// Same as for [`checked`], for `'a`.
    #[inline(always)]
    pub unsafe fn contents<'a>(self, used: usize) -> (&'a [u8], u32) {
        // SAFETY: the contract of `checked`. It is the library's own memory, of at least so many bytes, initialised when it was made;
        // nobody writes it during the call.
        unsafe { (std::slice::from_raw_parts(self.buf(), used), Self::get(&raw const (*self.message).tag)) }
    }

    /// Sets the number of bytes in use, and the cursor to the start.
    ///
    /// # Safety
    /// Same as for [`checked`].
    #[inline(always)]
    unsafe fn set_used(self, used: usize) {
        // SAFETY: our contract.
        unsafe {
            (&raw mut (*self.message).datalen).write_unaligned(used as c_ulong);
            self.set_cursor(self.buf());
        }
    }

    /// # Safety
    /// Same as for [`checked`].
    #[inline(always)]
    unsafe fn set_cursor(self, cursor: *mut u8) {
        // SAFETY: our contract.
        unsafe { (&raw mut (*self.message).cursor).write_unaligned(cursor.cast()) };
    }

    /// Copies an arrived message into this one, which has room for it.
    ///
    /// # Safety
    /// Same as for [`checked`].
    #[inline(always)]
    pub unsafe fn fill(self, arrived: &[u8], source: usize, tag: u32) {
        debug_assert!(arrived.len() <= self.size);
        // SAFETY: `buf` has room for it, by the caller's comparison, and is memory that no message arrives in. The structure is ours
        // during the call.
        unsafe {
            copy_nonoverlapping(arrived.as_ptr(), self.buf(), arrived.len());
            self.set_used(arrived.len());
            (&raw mut (*self.message).source).write_unaligned(source as c_ulong);
            (&raw mut (*self.message).tag).write_unaligned(tag);
        }
    }
}

#[cold]
#[inline(never)]
fn too_long(len: usize, size: usize) -> CallError {
    invalid(format!("datalen is {len}, and the deck_msg_t has {size} bytes"))
}

/// Allocates zeroed memory, and returns it with the address where a message begins.
fn zeroed(size: usize) -> Result<(Memory, *mut c_char)> {
    // The allocator takes zeroed pages of the system only at its own alignment: at another alignment it writes
    // them all.
    let (bytes, align) = match size < LARGE {
        true => (Some(size.max(1)), ALIGN),
        false => (size.checked_add(ALIGN), align_of::<u64>()),
    };
    let layout = bytes.and_then(|bytes| Layout::from_size_align(bytes, align).ok());
    let layout = layout.ok_or_else(|| invalid(format!("no message can have {size} bytes")))?;
    // SAFETY: the size is not 0.
    let base = unsafe { alloc_zeroed(layout) };
    if base.is_null() {
        return Err(failure(NO_MEMORY, format!("the system has no memory for {size} bytes")));
    }
    // `buf` is less than `ALIGN` bytes behind `base`, and `ALIGN` more bytes were allocated where this is not
    // 0.
    let buf = base.map_addr(|addr| addr.next_multiple_of(ALIGN)).cast();
    Ok((Memory { base, layout }, buf))
}

/// `int deck_msg_create(deck_msg_t *msg, unsigned long size)`
///
/// # Safety
/// `message` is NULL or points to a structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_msg_create(message: *mut Message, size: c_ulong) -> c_int {
    call("deck_msg_create", || {
        world()?;
        // SAFETY: our contract.
        unsafe { pointer::check_not_created(message) }?;
        let (memory, buf) = zeroed(size as usize)?;
        let number = pointer::insert(memory, message)?;
        MESSAGES.seal(number, seal_of(buf, size, number));
        let made = Message { buf, size, datalen: 0, cursor: buf, source: 0, tag: 0, number };
        // SAFETY: our contract; it may be uninitialised.
        unsafe { message.write(made) };
        Ok(())
    })
}

/// `int deck_msg_destroy(deck_msg_t *msg)`
///
/// # Safety
/// Same as for [`deck_msg_create`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_msg_destroy(message: *mut Message) -> c_int {
    call("deck_msg_destroy", || {
        // SAFETY: our contract.
        drop(unsafe { pointer::remove(message) }?);
        let none = Checked { message, size: 0 };
        // SAFETY: our contract; so that no pointer to freed memory is left.
        unsafe {
            (&raw mut (*message).buf).write_unaligned(std::ptr::null_mut());
            (&raw mut (*message).size).write_unaligned(0);
            none.set_used(0);
        }
        Ok(())
    })
}

/// `int deck_msg_clear(deck_msg_t *msg)`
///
/// # Safety
/// Same as for [`deck_msg_create`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_msg_clear(message: *mut Message) -> c_int {
    call("deck_msg_clear", || {
        // SAFETY: our contract.
        unsafe { checked(message)?.set_used(0) };
        Ok(())
    })
}

/// `int deck_msg_reset(deck_msg_t *msg)`
///
/// # Safety
/// Same as for [`deck_msg_create`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_msg_reset(message: *mut Message) -> c_int {
    call("deck_msg_reset", || {
        // SAFETY: our contract.
        unsafe {
            let message = checked(message)?;
            message.set_cursor(message.buf());
        }
        Ok(())
    })
}

/// Code of `DECK_MSG`; the other codes are in [`size_of_type`].
const NESTED: c_int = 13;
/// Bytes of the length that stands before a nested message.
const LENGTH: usize = size_of::<u64>();

/// Bytes of an element of a type.
pub(super) fn size_of_type(code: c_int) -> Result<usize> {
    Ok(match code {
        1 | 2 => 1,
        3 | 4 => size_of::<std::ffi::c_short>(),
        5 | 6 => size_of::<c_int>(),
        7 | 8 => size_of::<std::ffi::c_long>(),
        9 | 10 => size_of::<std::ffi::c_longlong>(),
        11 => size_of::<f32>(),
        12 => size_of::<f64>(),
        NESTED => {
            return Err(invalid("DECK_MSG has no size: only deck_msg_pack and deck_msg_unpack take it"));
        }
        _ => return Err(invalid(format!("{code} is no type of DECK's (DECK_CHAR to DECK_MSG)"))),
    })
}

/// `int deck_msg_pack(deck_msg_t *msg, int type, const void *datum, unsigned long n)`
///
/// # Safety
/// Same as for [`deck_msg_create`]; `datum` has `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_msg_pack(
    message: *mut Message,
    code: c_int,
    datum: *const c_void,
    count: c_ulong,
) -> c_int {
    call("deck_msg_pack", || {
        // SAFETY: our contract.
        let to = unsafe { checked(message) }?;
        if code == NESTED {
            // SAFETY: our contract: `count` messages.
            return unsafe { pack_messages(to, datum.cast_mut().cast(), count as usize) };
        }
        let bytes = bytes_of(code, count)?;
        // SAFETY: our contract.
        unsafe { append(to, datum.cast(), bytes) }
    })
}

/// `int deck_msg_unpack(deck_msg_t *msg, int type, void *datum, unsigned long n)`
///
/// # Safety
/// Same as for [`deck_msg_create`]; `datum` has room for `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_msg_unpack(
    message: *mut Message,
    code: c_int,
    datum: *mut c_void,
    count: c_ulong,
) -> c_int {
    call("deck_msg_unpack", || {
        // SAFETY: our contract.
        let from = unsafe { checked(message) }?;
        if code == NESTED {
            // SAFETY: our contract: `count` messages.
            return unsafe { unpack_messages(from, datum.cast(), count as usize) };
        }
        let bytes = bytes_of(code, count)?;
        // SAFETY: our contract.
        unsafe { take(from, datum.cast(), bytes) }
    })
}

fn bytes_of(code: c_int, count: c_ulong) -> Result<usize> {
    let bytes = (count as usize).checked_mul(size_of_type(code)?);
    bytes.ok_or_else(|| invalid(format!("{count} elements are more than any memory has")))
}

/// Appends bytes behind the packed ones.
///
/// # Safety
/// Same as for [`checked`]; `datum` has that many bytes.
unsafe fn append(to: Checked, datum: *const u8, bytes: usize) -> Result {
    // SAFETY: our contract.
    let used = unsafe { to.used() }?;
    let free = to.size - used;
    if bytes > free {
        let what = format!("the item has {bytes} bytes, and the deck_msg_t has {free} left of {}", to.size);
        return Err(invalid(what));
    }
    if bytes > 0 && datum.is_null() {
        return Err(invalid("datum is NULL"));
    }
    // SAFETY: so many bytes are free behind `used`. `datum` may lie in the message itself, so `copy`.
    unsafe {
        std::ptr::copy(datum, to.buf().add(used), bytes);
        (&raw mut (*to.message).datalen).write_unaligned((used + bytes) as c_ulong);
    }
    Ok(())
}

/// Number of bytes that have been unpacked, and number of bytes that are left.
///
/// # Safety
/// Same as for [`checked`].
unsafe fn unpacked(from: Checked) -> Result<(usize, usize)> {
    // SAFETY: our contract.
    let (used, cursor) = unsafe { (from.used()?, Checked::get(&raw const (*from.message).cursor)) };
    // SAFETY: our contract.
    let at = cursor.addr().wrapping_sub(unsafe { from.buf() }.addr());
    let left = used.checked_sub(at);
    let left =
        left.ok_or_else(|| invalid("cursor of the deck_msg_t lies outside of its used bytes (datalen)"))?;
    Ok((at, left))
}

/// Copies the next bytes, and moves the cursor behind them.
///
/// # Safety
/// Same as for [`checked`]; `datum` has room for that many bytes.
unsafe fn take(from: Checked, datum: *mut u8, bytes: usize) -> Result {
    // SAFETY: our contract.
    let (at, left) = unsafe { unpacked(from) }?;
    if bytes > left {
        return Err(invalid(format!(
            "{bytes} bytes are to be unpacked, and {left} are left: unpack what was packed"
        )));
    }
    if bytes > 0 && datum.is_null() {
        return Err(invalid("datum is NULL"));
    }
    // SAFETY: `at + bytes` is at most what is in use, which is at most `size`. `datum` may lie in the message itself, so `copy`.
    unsafe {
        std::ptr::copy(from.buf().add(at), datum, bytes);
        from.set_cursor(from.buf().add(at + bytes));
    }
    Ok(())
}

/// Appends whole messages: the length of each, then its bytes. Appends all of them, or none.
///
/// # Safety
/// Same as for [`checked`]; `messages` points to `count` structures.
unsafe fn pack_messages(to: Checked, messages: *mut Message, count: usize) -> Result {
    // SAFETY: our contract.
    let before = unsafe { to.used() }?;
    for nth in 0..count {
        let nested = messages.wrapping_add(nth);
        // SAFETY: our contract; a message that is packed into itself is read while it grows, so it is refused. A copy of its structure
        // is it, too: the memory tells.
        let packed = unsafe {
            checked(nested).and_then(|nested| match nested.buf() == to.buf() {
                true => Err(invalid("a deck_msg_t cannot be packed into itself")),
                false => Ok(nested.contents(nested.used()?)),
            })
        };
        // SAFETY: `contents` has so many bytes; a number has eight.
        let packed = packed.and_then(|(bytes, _)| unsafe {
            append(to, (bytes.len() as u64).to_ne_bytes().as_ptr(), LENGTH)?;
            append(to, bytes.as_ptr(), bytes.len())
        });
        if let Err(failure) = packed {
            // SAFETY: our contract.
            unsafe { (&raw mut (*to.message).datalen).write_unaligned(before as c_ulong) };
            return Err(failure);
        }
    }
    Ok(())
}

/// Unpacks whole messages into created structures. If one has too little room, the cursor stays before its
/// message.
///
/// # Safety
/// Same as for [`pack_messages`].
unsafe fn unpack_messages(from: Checked, messages: *mut Message, count: usize) -> Result {
    for nth in 0..count {
        // SAFETY: our contract.
        let nested = unsafe { checked(messages.wrapping_add(nth)) }?;
        // SAFETY: our contract, for both.
        if unsafe { nested.buf() == from.buf() } {
            return Err(invalid("a deck_msg_t cannot be unpacked into itself"));
        }
        // SAFETY: our contract.
        let before = unsafe { Checked::get(&raw const (*from.message).cursor) };
        let mut length = [0; LENGTH];
        // SAFETY: our contract; a number has eight bytes.
        let taken = unsafe { take(from, length.as_mut_ptr(), LENGTH) }.and_then(|()| {
            let bytes = u64::from_ne_bytes(length);
            if bytes > nested.size as u64 {
                return Err(invalid(format!(
                    "the nested message has {bytes} bytes, there is room for {}",
                    nested.size
                )));
            }
            // SAFETY: `nested` has so much room, and is another message's memory.
            unsafe { take(from, nested.buf(), bytes as usize) }
        });
        // SAFETY: our contract, for both structures.
        unsafe {
            if let Err(failure) = taken {
                from.set_cursor(before.cast());
                return Err(failure);
            }
            nested.set_used(u64::from_ne_bytes(length) as usize);
        }
    }
    Ok(())
}
