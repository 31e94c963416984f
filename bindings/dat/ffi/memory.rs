//! Protection zones and memory regions.

use std::sync::Arc;

use super::ia::adapter;
use super::posts::completion;
use super::types::{Handle, LmrParam, Region, RmrParam};
use super::{call, object, put, same, some};
use crate::core::code::{Code, Result, Sub};
use crate::core::ep::{EPS, Operation};
use crate::core::ia::Ia;
use crate::core::memory::{self, ALL_RIGHTS, Piece, Pz, Triplet};
use crate::core::slot::Pool;

/// Kinds are `DAT_HANDLE_TYPE`s + 1.
pub static PZS: Pool<OwnPz> = Pool::new(7);
static LMRS: Pool<Lmr> = Pool::new(5);
static RMRS: Pool<Rmr> = Pool::new(8);

#[derive(Clone)]
pub struct OwnPz {
    pub pz: Arc<Pz>,
    pub ia: Arc<Ia>,
}

#[derive(Clone)]
struct Lmr {
    pz: OwnPz,
    piece: Piece,
    mem_type: u32,
    region: Region,
    context: u32,
}

#[derive(Clone)]
struct Rmr {
    pz: OwnPz,
    triplet: Triplet,
    rights: u32,
    va_type: u32,
    /// The RMR context; 0: the region is not bound.
    context: u32,
}

/// The protection zone of a handle. It has to be of this adapter.
///
/// # Safety
/// As `object`.
pub unsafe fn zone(ia: &Arc<Ia>, handle: Handle) -> Result<OwnPz> {
    // SAFETY: as promised.
    let pz = unsafe { object(&PZS, handle, Sub::HandlePz) }?;
    same(ia, &pz.ia, Sub::HandlePz).map(|()| pz)
}

/// `dat_pz_create`.
///
/// # Safety
/// NULL or what `udat.h` says, here and below.
pub unsafe extern "C" fn pz_create(ia: Handle, out: *mut Handle) -> Code {
    call(|| {
        // SAFETY: NULL or a handle, here and below.
        let ia = unsafe { adapter(ia) }?;
        some(out, 2)?;
        let id = memory::next_zone();
        let slot = PZS.insert(ia.provider, |slot| OwnPz {
            pz: Arc::new(Pz { id, handle: slot.handle() }),
            ia: ia.clone(),
        });
        ia.objects.lock().insert(slot.handle());
        // SAFETY: not NULL, so valid.
        unsafe { put(out, slot.handle()) };
        Ok(())
    })
}

/// `dat_pz_query`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn pz_query(pz: Handle, _mask: u32, out: *mut Handle) -> Code {
    call(|| {
        // SAFETY: as above.
        let pz = unsafe { object(&PZS, pz, Sub::HandlePz) }?;
        some(out, 3)?;
        // SAFETY: not NULL, so valid.
        unsafe { put(out, pz.ia.handle()) };
        Ok(())
    })
}

/// `dat_pz_free`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn pz_free(handle: Handle) -> Code {
    call(|| {
        let gone = Code::INVALID_HANDLE.of(Sub::HandlePz);
        // SAFETY: as above.
        let slot = unsafe { PZS.find(handle) }.ok_or(gone)?;
        let freed = PZS.remove(slot, gone, |own| {
            if Arc::strong_count(&own.pz) > 1 {
                return Err(Code::INVALID_STATE.of(Sub::PzInUse));
            }
            own.ia.forget(handle);
            Ok(())
        });
        freed.map(drop)
    })
}

/// `DAT_MEM_TYPE`s: virtual memory, or the memory of an LMR.
const VIRTUAL: u32 = 0;
const OF_LMR: u32 = 1;

/// `dat_lmr_create`. Nothing is pinned: the library copies from and to it.
///
/// # Safety
/// As above.
#[allow(clippy::too_many_arguments, reason = "udat.h's")]
pub unsafe extern "C" fn lmr_create(
    ia: Handle,
    mem_type: u32,
    region: Region,
    length: u64,
    pz: Handle,
    rights: u32,
    va_type: u32,
    out: *mut Handle,
    lmr_context: *mut u32,
    rmr_context: *mut u32,
    registered_size: *mut u64,
    registered_address: *mut u64,
) -> Code {
    call(|| {
        // SAFETY: as above.
        let ia = unsafe { adapter(ia) }?;
        // SAFETY: as above.
        let pz = unsafe { zone(&ia, pz) }?;
        some(out, 8)?;
        if rights & !ALL_RIGHTS != 0 {
            return Err(Code::argument(6));
        }
        let (start, most) = match mem_type {
            VIRTUAL => (region.first, u64::MAX),
            OF_LMR => {
                // SAFETY: as above.
                let of = unsafe { object(&LMRS, region.first, Sub::HandleLmr) }?;
                same(&ia, &of.pz.ia, Sub::HandleLmr)?;
                (of.piece.start, of.piece.len as u64)
            }
            _ => return Err(Code::MODEL_NOT_SUPPORTED),
        };
        let len = usize::try_from(length)
            .ok()
            .filter(|len| *len > 0 && length <= most && start.checked_add(*len).is_some());
        let (Some(len), true) = (len, start != 0) else {
            return Err(Code::argument(if start == 0 { 3 } else { 4 }));
        };
        let named = match va_type {
            0 => start as u64,
            1 => 0,
            _ => return Err(Code::argument(7)),
        };
        let piece = Piece { named, start, len, zone: pz.pz.id, rights, of: 0 };
        let context = memory::add(piece)?;
        let slot = LMRS.insert(ia.provider, |_| Lmr { pz, piece, mem_type, region, context });
        ia.objects.lock().insert(slot.handle());
        // SAFETY: NULL or valid.
        unsafe {
            put(out, slot.handle());
            put(lmr_context, context);
            put(rmr_context, context);
            put(registered_size, length);
            put(registered_address, start as u64);
        }
        Ok(())
    })
}

/// `dat_lmr_query`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn lmr_query(lmr: Handle, _mask: u32, out: *mut LmrParam) -> Code {
    call(|| {
        // SAFETY: as above.
        let lmr = unsafe { object(&LMRS, lmr, Sub::HandleLmr) }?;
        some(out, 3)?;
        let Piece { named, start, len, rights, .. } = lmr.piece;
        let param = LmrParam {
            ia: lmr.pz.ia.handle(),
            mem_type: lmr.mem_type,
            region: lmr.region,
            length: len as u64,
            pz: lmr.pz.pz.handle,
            mem_priv: rights,
            va_type: u32::from(named == 0),
            lmr_context: lmr.context,
            rmr_context: lmr.context,
            registered_size: len as u64,
            registered_address: start as u64,
        };
        // SAFETY: not NULL, so valid.
        unsafe { put(out, param) };
        Ok(())
    })
}

/// `dat_lmr_free`. When it returns, nobody touches the memory any more.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn lmr_free(handle: Handle) -> Code {
    call(|| {
        let gone = Code::INVALID_HANDLE.of(Sub::HandleLmr);
        // SAFETY: as above.
        let slot = unsafe { LMRS.find(handle) }.ok_or(gone)?;
        let freed = LMRS.remove(slot, gone, |lmr| {
            if !memory::remove_without_parts(lmr.context) {
                return Err(Code::INVALID_STATE.of(Sub::LmrInUse));
            }
            lmr.pz.ia.forget(handle);
            Ok(())
        });
        freed.map(drop)
    })
}

/// `dat_lmr_sync_rdma_read` and `_write`: memory is coherent, so there is nothing to do.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn lmr_sync(ia: Handle, segments: *const Triplet, count: u64) -> Code {
    call(|| {
        // SAFETY: as above.
        unsafe { adapter(ia) }?;
        if count > 0 {
            some(segments.cast_mut(), 2)?;
        }
        Ok(())
    })
}

/// `dat_rmr_create`. (`dat_rmr_create_for_ep`, a region for one end point, is not served: all end points of the zone would reach its memory.)
///
/// # Safety
/// As above.
pub unsafe extern "C" fn rmr_create(pz: Handle, out: *mut Handle) -> Code {
    call(|| {
        // SAFETY: as above.
        let pz = unsafe { object(&PZS, pz, Sub::HandlePz) }?;
        some(out, 2)?;
        let ia = pz.ia.clone();
        let slot = RMRS.insert(ia.provider, |_| Rmr {
            pz,
            triplet: Triplet::default(),
            rights: 0,
            va_type: 0,
            context: 0,
        });
        ia.objects.lock().insert(slot.handle());
        // SAFETY: not NULL, so valid.
        unsafe { put(out, slot.handle()) };
        Ok(())
    })
}

/// `dat_rmr_query`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn rmr_query(rmr: Handle, _mask: u32, out: *mut RmrParam) -> Code {
    call(|| {
        // SAFETY: as above.
        let rmr = unsafe { object(&RMRS, rmr, Sub::HandleRmr) }?;
        some(out, 3)?;
        let param = RmrParam {
            ia: rmr.pz.ia.handle(),
            pz: rmr.pz.pz.handle,
            triplet: rmr.triplet,
            mem_priv: rmr.rights,
            rmr_context: rmr.context,
            rmr_scope: 1,
            va_type: rmr.va_type,
        };
        // SAFETY: not NULL, so valid.
        unsafe { put(out, param) };
        Ok(())
    })
}

/// `dat_rmr_bind`: in order with what is posted to the end point. A length of 0 unbinds.
///
/// # Safety
/// As above.
#[allow(clippy::too_many_arguments, reason = "udat.h's")]
pub unsafe extern "C" fn rmr_bind(
    handle: Handle,
    lmr: Handle,
    triplet: *const Triplet,
    rights: u32,
    va_type: u32,
    ep: Handle,
    cookie: u64,
    flags: u32,
    out: *mut u32,
) -> Code {
    call(|| {
        // SAFETY: as above.
        let slot = unsafe { RMRS.find(handle) }.ok_or(Code::INVALID_HANDLE.of(Sub::HandleRmr))?;
        // SAFETY: as above.
        let ep = unsafe { EPS.find(ep) }.ok_or(Code::INVALID_HANDLE.of(Sub::HandleEp))?;
        some(triplet.cast_mut(), 3)?;
        // SAFETY: not NULL, so valid.
        let triplet = unsafe { *triplet };
        if rights & !ALL_RIGHTS != 0 {
            return Err(Code::argument(4));
        }
        completion(flags, 8)?;
        let mut held = slot.lock();
        let rmr = held.as_mut().ok_or(Code::INVALID_HANDLE.of(Sub::HandleRmr))?;
        let mut context = 0;
        if triplet.len > 0 {
            // SAFETY: as above.
            let lmr = unsafe { object(&LMRS, lmr, Sub::HandleLmr) }?;
            same(&rmr.pz.ia, &lmr.pz.ia, Sub::HandleLmr)?;
            // Otherwise peers of one zone would reach memory of another.
            if lmr.pz.pz.id != rmr.pz.pz.id {
                return Err(Code::PROTECTION_VIOLATION.of(Sub::ProtectionRdmaRead));
            }
            context = memory::reserve(part(&lmr, triplet, rights, va_type)?)?;
        }
        let operation = Operation::Bind { rmr: handle, old: rmr.context, new: context };
        let posted = match &mut *ep.lock() {
            Some(ep) if !Arc::ptr_eq(&ep.face.ia, &rmr.pz.ia) => Err(Code::INVALID_HANDLE.of(Sub::HandleEp)),
            Some(ep) if ep.pz() == rmr.pz.pz.id => ep.post_request(operation, &[], cookie, flags),
            Some(_) => Err(Code::PROTECTION_VIOLATION.of(Sub::ProtectionRdmaRead)),
            None => Err(Code::INVALID_HANDLE.of(Sub::HandleEp)),
        };
        if posted.is_err() {
            memory::remove(context);
            return posted;
        }
        (rmr.context, rmr.triplet, rmr.rights, rmr.va_type) = (context, triplet, rights, va_type);
        // SAFETY: NULL or valid.
        unsafe { put(out, context) };
        Ok(())
    })
}

/// A part of an LMR, with rights that the LMR has, too.
fn part(lmr: &Lmr, triplet: Triplet, rights: u32, va_type: u32) -> Result<Piece> {
    let whole = lmr.piece;
    let offset = triplet.address.wrapping_sub(whole.named);
    let fits = offset <= whole.len as u64 && u64::from(triplet.len) <= whole.len as u64 - offset;
    if !fits || triplet.key != lmr.context {
        return Err(Code::argument(3));
    }
    // A remote right needs the LMR's local right of the same kind: the library reads and writes for the peer.
    let local = rights & 0x33 | (rights >> 1) & 0x11;
    if local & 0x11 & !whole.rights != 0 {
        return Err(Code::PRIVILEGES_VIOLATION);
    }
    let start = whole.start + offset as usize;
    let named = match va_type {
        0 => triplet.address,
        1 => 0,
        _ => return Err(Code::argument(5)),
    };
    Ok(Piece { named, start, len: triplet.len as usize, zone: whole.zone, rights, of: lmr.context })
}

/// `dat_rmr_free`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn rmr_free(handle: Handle) -> Code {
    call(|| {
        let gone = Code::INVALID_HANDLE.of(Sub::HandleRmr);
        // SAFETY: as above.
        let slot = unsafe { RMRS.find(handle) }.ok_or(gone)?;
        let freed = RMRS.remove(slot, gone, |rmr| {
            memory::remove(rmr.context);
            rmr.pz.ia.forget(handle);
            Ok(())
        });
        freed.map(drop)
    })
}
