//! Posting to end points: sends, receives, and RDMA.

use std::ffi::c_int;

use smallvec::SmallVec;

use super::eps::with;
use super::types::Handle;
use super::{call, some};
use crate::core::code::{Code, Result};
use crate::core::ep::{MAX_SEGMENTS, Operation};
use crate::core::event::flags as completion_flags;
use crate::core::memory::Triplet;

/// Checks the completion flags, which are argument `nth` of the call.
#[inline(always)]
pub fn completion(flags: u32, nth: u32) -> Result {
    if flags & !completion_flags::ALL == 0 { Ok(()) } else { Err(Code::argument(nth)) }
}

/// The segments of a DTO.
///
/// # Safety
/// Valid for `count` segments, unless that is refused.
#[inline(always)]
unsafe fn segments<'a>(count: c_int, iov: *const Triplet) -> Result<&'a [Triplet]> {
    if count == 0 {
        return Ok(&[]);
    }
    if count < 0 || count as usize > MAX_SEGMENTS {
        return Err(Code::argument(2));
    }
    if iov.is_null() {
        return Err(Code::argument(3));
    }
    // SAFETY: not NULL, so valid, as promised.
    Ok(unsafe { std::slice::from_raw_parts(iov, count as usize) })
}

/// The segment of a DTO that has only one, as most have, and known flags.
///
/// # Safety
/// As [`segments`].
#[inline(always)]
unsafe fn single(count: c_int, iov: *const Triplet, flags: u32) -> Option<Triplet> {
    let is_one = count == 1 && !iov.is_null() && flags & !completion_flags::ALL == 0;
    // SAFETY: not NULL, so valid.
    is_one.then(|| unsafe { *iov })
}

/// The remote segment of RDMA, which has to have room for `len` bytes.
///
/// # Safety
/// NULL, or valid.
unsafe fn remote(triplet: *const Triplet, len: usize) -> Result<Triplet> {
    some(triplet.cast_mut(), 5)?;
    // SAFETY: not NULL, so valid.
    let triplet = unsafe { *triplet };
    if len > triplet.len as usize { Err(Code::LENGTH_ERROR) } else { Ok(triplet) }
}

/// `dat_ep_post_send`.
///
/// # Safety
/// NULL or what `udat.h` says, here and below.
pub unsafe extern "C" fn post_send(
    ep: Handle,
    count: c_int,
    iov: *const Triplet,
    cookie: u64,
    flags: u32,
) -> Code {
    // SAFETY: as promised.
    if let Some(segment) = unsafe { single(count, iov, flags) } {
        // SAFETY: NULL or a handle.
        return call(|| unsafe { with(ep, |ep| ep.post_send(segment, cookie, flags)) });
    }
    call(|| {
        // SAFETY: valid for so many.
        let segments = unsafe { segments(count, iov) }?;
        completion(flags, 5)?;
        // SAFETY: NULL or a handle.
        unsafe { with(ep, |ep| ep.post_request(Operation::Send, segments, cookie, flags)) }
    })
}

/// `dat_ep_post_send_with_invalidate`.
///
/// # Safety
/// As above.
#[allow(clippy::too_many_arguments, reason = "udat.h's")]
pub unsafe extern "C" fn post_send_with_invalidate(
    ep: Handle,
    count: c_int,
    iov: *const Triplet,
    cookie: u64,
    flags: u32,
    invalidates: u32,
    context: u32,
) -> Code {
    call(|| {
        // SAFETY: valid for so many.
        let segments = unsafe { segments(count, iov) }?;
        completion(flags, 5)?;
        let operation =
            if invalidates != 0 { Operation::SendAndInvalidate(context) } else { Operation::Send };
        // SAFETY: NULL or a handle.
        unsafe { with(ep, |ep| ep.post_request(operation, segments, cookie, flags)) }
    })
}

/// `dat_ep_post_recv`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn post_recv(
    ep: Handle,
    count: c_int,
    iov: *const Triplet,
    cookie: u64,
    flags: u32,
) -> Code {
    // SAFETY: as promised.
    if let Some(segment) = unsafe { single(count, iov, flags) } {
        // SAFETY: NULL or a handle.
        return call(|| unsafe { with(ep, |ep| ep.post_receive_one(segment, cookie)) });
    }
    call(|| {
        // SAFETY: valid for so many.
        let segments = unsafe { segments(count, iov) }?;
        completion(flags, 5)?;
        // SAFETY: NULL or a handle.
        unsafe { with(ep, |ep| ep.post_receive(segments, cookie)) }
    })
}

/// `dat_ep_post_rdma_read`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn post_rdma_read(
    ep: Handle,
    count: c_int,
    iov: *const Triplet,
    cookie: u64,
    from: *const Triplet,
    flags: u32,
) -> Code {
    call(|| {
        // SAFETY: valid for so many.
        let segments = unsafe { segments(count, iov) }?;
        completion(flags, 6)?;
        some(from.cast_mut(), 5)?;
        // SAFETY: not NULL, so valid. A read is as long as what it reads.
        let from = unsafe { *from };
        let mut left = from.len;
        let cut: SmallVec<[Triplet; 2]> = segments
            .iter()
            .map(|segment| {
                let len = segment.len.min(left);
                left -= len;
                Triplet { len, ..*segment }
            })
            .collect();
        if left > 0 {
            return Err(Code::LENGTH_ERROR);
        }
        // SAFETY: NULL or a handle.
        unsafe {
            with(ep, |ep| ep.post_request(Operation::Read(from.address, from.key), &cut, cookie, flags))
        }
    })
}

/// `dat_ep_post_rdma_write`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn post_rdma_write(
    ep: Handle,
    count: c_int,
    iov: *const Triplet,
    cookie: u64,
    to: *const Triplet,
    flags: u32,
) -> Code {
    call(|| {
        // SAFETY: valid for so many.
        let segments = unsafe { segments(count, iov) }?;
        completion(flags, 6)?;
        // SAFETY: NULL or valid.
        let to = unsafe { remote(to, crate::core::event::total(segments)) }?;
        // SAFETY: NULL or a handle.
        unsafe {
            with(ep, |ep| ep.post_request(Operation::Write(to.address, to.key), segments, cookie, flags))
        }
    })
}
