//! Messages without a copy: `deck_buf_t` is given away by its post, `deck_view_t` is an arrived message in place.
#![allow(unsafe_code, reason = "structures of C's")]

use std::ffi::{c_char, c_int, c_uint, c_ulong};

use udeck::{Buf, Received};

use super::error::{CallError, Result, call};
use super::mailbox::{MailboxStructure, Wait, post_buf, retrieve_view};
use super::pointer::{self, Number, Structure};
use super::stage::{limit, world};
use super::table::Table;

/// `deck_buf_t`, as `deck.h` has it.
#[repr(C)]
pub struct Buffer {
    data: *mut c_char,
    size: c_ulong,
    tag: c_uint,
    number: Number,
}

/// `deck_view_t`, as `deck.h` has it.
#[repr(C)]
pub struct View {
    data: *const c_char,
    size: c_ulong,
    source: c_ulong,
    tag: c_uint,
    number: Number,
}

impl Structure for Buffer {
    type Object = Buf<u8>;
    const TABLE: &'static Table<Buf<u8>> = &BUFFERS;

    fn number_in(structure: *mut Self) -> *mut Number {
        structure.wrapping_byte_add(std::mem::offset_of!(Buffer, number)).cast()
    }
}

impl Structure for View {
    /// The message is boxed, because a short one lies in its `Received`, and C has its address.
    type Object = Box<Received<u8>>;
    const TABLE: &'static Table<Box<Received<u8>>> = &VIEWS;

    fn number_in(structure: *mut Self) -> *mut Number {
        structure.wrapping_byte_add(std::mem::offset_of!(View, number)).cast()
    }
}

static BUFFERS: Table<Buf<u8>> = Table::new("deck_buf_t", 0x6675_0000);
static VIEWS: Table<Box<Received<u8>>> = Table::new("deck_view_t", 0x7765_0000);

/// Drops all objects at the end of the job; their memory goes with it.
pub(super) fn clear() {
    BUFFERS.clear();
    VIEWS.clear();
}

/// `int deck_buf_alloc(deck_buf_t *buf, unsigned long size)`
///
/// # Safety
/// `buffer` is NULL or points to a structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_buf_alloc(buffer: *mut Buffer, size: c_ulong) -> c_int {
    call("deck_buf_alloc", || {
        let world = world()?;
        // SAFETY: our contract.
        unsafe { pointer::check_not_created(buffer) }?;
        // SAFETY: our contract.
        unsafe { keep(buffer, world.buf::<u8>(size as usize)?) }
    })
}

/// Makes the structure refer to the buffer.
///
/// # Safety
/// `buffer` points to a structure.
unsafe fn keep(buffer: *mut Buffer, mut buf: Buf<u8>) -> Result {
    let (data, size, tag) = (buf.as_mut_ptr().cast(), buf.len() as c_ulong, buf.tag());
    let number = pointer::insert(buf, buffer)?;
    // SAFETY: our contract; it may be uninitialised, and one that came back may lie at an odd address.
    unsafe { buffer.write_unaligned(Buffer { data, size, tag, number }) };
    Ok(())
}

/// `int deck_buf_free(deck_buf_t *buf)`
///
/// # Safety
/// Same as for [`deck_buf_alloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_buf_free(buffer: *mut Buffer) -> c_int {
    // SAFETY: our contract.
    call("deck_buf_free", || unsafe { taken(buffer) }.map(drop))
}

/// Takes the buffer out of the structure.
///
/// # Safety
/// Same as for [`deck_buf_alloc`].
unsafe fn taken(buffer: *mut Buffer) -> Result<Buf<u8>> {
    // SAFETY: our contract.
    let buf = unsafe { pointer::remove(buffer) }?;
    // SAFETY: our contract; so that no pointer to it is left.
    unsafe {
        (&raw mut (*buffer).data).write_unaligned(std::ptr::null_mut());
        (&raw mut (*buffer).size).write_unaligned(0);
    }
    Ok(buf)
}

/// # Safety
/// `mailbox` and `buffer` are NULL or point to structures.
unsafe fn post(mailbox: *mut MailboxStructure, buffer: *mut Buffer, wait: Wait) -> Result {
    // SAFETY: our contract.
    unsafe { pointer::number(buffer) }?;
    // SAFETY: our contract; it has just been read.
    let tag = unsafe { (&raw const (*buffer).tag).read_unaligned() };
    // SAFETY: our contract.
    let buf = unsafe { taken(buffer) }?.with_tag(tag);
    // SAFETY: our contract.
    match unsafe { post_buf(mailbox, buf, wait) } {
        Ok(()) => Ok(()),
        Err((failure, None)) => Err(lost(failure)),
        Err((failure, Some(back))) => {
            // SAFETY: our contract.
            unsafe { keep(buffer, back) }?;
            Err(failure)
        }
    }
}

#[cold]
fn lost(failure: CallError) -> CallError {
    failure.with_words(|words| format!("{words}; the buffer is gone"))
}

/// `int deck_mbox_post_buf(deck_mbox_t *mbox, deck_buf_t *buf)`
///
/// # Safety
/// `mailbox` and `buffer` are NULL or point to structures.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_mbox_post_buf(mailbox: *mut MailboxStructure, buffer: *mut Buffer) -> c_int {
    // SAFETY: our contract.
    call("deck_mbox_post_buf", || unsafe { post(mailbox, buffer, Wait::Usual) })
}

/// `int deck_mbox_post_buf_timeout(deck_mbox_t *mbox, deck_buf_t *buf, unsigned long microseconds)`
///
/// # Safety
/// Same as for [`deck_mbox_post_buf`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_mbox_post_buf_timeout(
    mailbox: *mut MailboxStructure,
    buffer: *mut Buffer,
    microseconds: c_ulong,
) -> c_int {
    let wait = Wait::Until(limit(microseconds));
    // SAFETY: our contract.
    call("deck_mbox_post_buf_timeout", || unsafe { post(mailbox, buffer, wait) })
}

/// # Safety
/// `mailbox` and `view` are NULL or point to structures.
unsafe fn retrieve(mailbox: *mut MailboxStructure, view: *mut View, wait: Wait) -> Result {
    // SAFETY: our contract.
    unsafe { pointer::check_not_created(view) }?;
    // SAFETY: our contract.
    let received = Box::new(unsafe { retrieve_view(mailbox, wait) }?);
    let (data, size) = (received.as_ptr().cast(), received.len() as c_ulong);
    let (source, tag) = (received.source() as c_ulong, received.tag());
    let number = pointer::insert(received, view)?;
    // SAFETY: our contract; it may be uninitialised.
    unsafe { view.write(View { data, size, source, tag, number }) };
    Ok(())
}

/// `int deck_mbox_retrv_view(deck_mbox_t *mbox, deck_view_t *view)`
///
/// # Safety
/// `mailbox` and `view` are NULL or point to structures.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_mbox_retrv_view(mailbox: *mut MailboxStructure, view: *mut View) -> c_int {
    // SAFETY: our contract.
    call("deck_mbox_retrv_view", || unsafe { retrieve(mailbox, view, Wait::Usual) })
}

/// `int deck_mbox_retrv_view_timeout(deck_mbox_t *mbox, deck_view_t *view, unsigned long microseconds)`
///
/// # Safety
/// Same as for [`deck_mbox_retrv_view`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_mbox_retrv_view_timeout(
    mailbox: *mut MailboxStructure,
    view: *mut View,
    microseconds: c_ulong,
) -> c_int {
    let wait = Wait::Until(limit(microseconds));
    // SAFETY: our contract.
    call("deck_mbox_retrv_view_timeout", || unsafe { retrieve(mailbox, view, wait) })
}

/// `int deck_view_release(deck_view_t *view)`
///
/// # Safety
/// `view` is NULL or points to a structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn deck_view_release(view: *mut View) -> c_int {
    call("deck_view_release", || {
        // SAFETY: our contract.
        drop(unsafe { pointer::remove(view) }?);
        // SAFETY: our contract; so that no pointer to it is left.
        unsafe {
            (&raw mut (*view).data).write_unaligned(std::ptr::null());
            (&raw mut (*view).size).write_unaligned(0);
        }
        Ok(())
    })
}
