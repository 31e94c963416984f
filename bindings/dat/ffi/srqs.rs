//! Shared receive queues.

use std::ffi::c_int;
use std::sync::Arc;

use super::ia::adapter;
use super::memory::{OwnPz, zone};
use super::types::{Handle, SrqAttr, SrqParam};
use super::{call, object, put, some};
use crate::core::code::{Code, Sub};
use crate::core::ep::MAX_SEGMENTS;
use crate::core::evd;
use crate::core::memory::Triplet;
use crate::core::slot::Pool;
use crate::core::srq::{Receive, Srq};

/// `DAT_HANDLE_TYPE_SRQ` + 1.
pub static SRQS: Pool<OwnSrq> = Pool::new(11);

#[derive(Clone)]
pub struct OwnSrq {
    pub srq: Arc<Srq>,
    pub pz: OwnPz,
}

/// `dat_srq_create`.
///
/// # Safety
/// NULL or what `udat.h` says, here and below.
pub unsafe extern "C" fn srq_create(ia: Handle, pz: Handle, attr: *const SrqAttr, out: *mut Handle) -> Code {
    call(|| {
        // SAFETY: as above.
        let ia = unsafe { adapter(ia) }?;
        // SAFETY: as above.
        let pz = unsafe { zone(&ia, pz) }?;
        some(attr.cast_mut(), 3)?;
        some(out, 4)?;
        // SAFETY: not NULL, so valid.
        let attr = unsafe { &*attr };
        let is_right = attr.max_recv_dtos > 0
            && attr.max_recv_dtos as usize <= evd::MOST
            && attr.max_recv_iov >= 0
            && attr.max_recv_iov as usize <= MAX_SEGMENTS
            && (0..=attr.max_recv_dtos).contains(&attr.low_watermark);
        if !is_right {
            return Err(Code::argument(3));
        }
        let (max, low) = (attr.max_recv_dtos as usize, attr.low_watermark as usize);
        let slot = SRQS.insert(ia.provider, |slot| OwnSrq {
            srq: Arc::new(Srq::new(slot.handle(), pz.pz.id, max, low, ia.asynchronous())),
            pz: pz.clone(),
        });
        ia.objects.lock().insert(slot.handle());
        // SAFETY: not NULL, so valid.
        unsafe { put(out, slot.handle()) };
        Ok(())
    })
}

/// `dat_srq_free`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn srq_free(handle: Handle) -> Code {
    call(|| {
        let gone = Code::INVALID_HANDLE.of(Sub::HandleSrq);
        // SAFETY: as above.
        let slot = unsafe { SRQS.find(handle) }.ok_or(gone)?;
        let freed = SRQS.remove(slot, gone, |own| {
            if Arc::strong_count(&own.srq) > 1 {
                return Err(Code::INVALID_STATE.of(Sub::SrqInUse));
            }
            own.pz.ia.forget(handle);
            Ok(())
        });
        freed.map(drop)
    })
}

/// `dat_srq_post_recv`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn srq_post_recv(
    handle: Handle,
    count: c_int,
    iov: *const Triplet,
    cookie: u64,
) -> Code {
    call(|| {
        // SAFETY: as above.
        let own = unsafe { object(&SRQS, handle, Sub::HandleSrq) }?;
        if !(0..=MAX_SEGMENTS as c_int).contains(&count) {
            return Err(Code::argument(2));
        }
        let segments: &[Triplet] = if count == 0 {
            &[]
        } else {
            some(iov.cast_mut(), 3)?;
            // SAFETY: not NULL, so valid for so many.
            unsafe { std::slice::from_raw_parts(iov, count as usize) }
        };
        own.srq.post(Receive::new(segments, cookie))?;
        // A message may wait for this receive.
        own.pz.ia.progress.bell().ring();
        Ok(())
    })
}

/// `dat_srq_query`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn srq_query(handle: Handle, _mask: u32, out: *mut SrqParam) -> Code {
    call(|| {
        // SAFETY: as above.
        let own = unsafe { object(&SRQS, handle, Sub::HandleSrq) }?;
        some(out, 3)?;
        let (posted, max, low) = own.srq.counts();
        let param = SrqParam {
            ia: own.pz.ia.handle(),
            // `DAT_SRQ_STATE_OPERATIONAL`.
            state: 1,
            pz: own.pz.pz.handle,
            max_recv_dtos: max as c_int,
            max_recv_iov: MAX_SEGMENTS as c_int,
            low_watermark: low as c_int,
            available: posted as c_int,
            // `DAT_VALUE_UNKNOWN`: a receive that an end point has taken is over at once.
            outstanding: -2,
        };
        // SAFETY: not NULL, so valid.
        unsafe { put(out, param) };
        Ok(())
    })
}

/// `dat_srq_resize`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn srq_resize(handle: Handle, max: c_int) -> Code {
    call(|| {
        // SAFETY: as above.
        let own = unsafe { object(&SRQS, handle, Sub::HandleSrq) }?;
        if max <= 0 || max as usize > evd::MOST {
            return Err(Code::argument(2));
        }
        own.srq.resize(max as usize)
    })
}

/// `dat_srq_set_lw`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn srq_set_lw(handle: Handle, low: c_int) -> Code {
    call(|| {
        // SAFETY: as above.
        let own = unsafe { object(&SRQS, handle, Sub::HandleSrq) }?;
        if low < 0 || low as usize > own.srq.counts().1 {
            return Err(Code::argument(2));
        }
        own.srq.set_low(low as usize);
        Ok(())
    })
}
