//! Service points and connection requests.

use std::ffi::{c_int, c_void};

use super::events::evd_of;
use super::ia::{adapter, address_of};
use super::types::{CrParam, Handle, PspParam, RspParam};
use super::{bytes, call, put, same, some};
use crate::core::code::{Code, Result, Sub};
use crate::core::ep::EPS;
use crate::core::evd::stream;
use crate::core::ia::MAX_PRIVATE;
use crate::core::service::{self, CRS, Cr, PSPS, RSPS, ServicePoint};
use crate::core::slot::{Pool, Slot};
use crate::core::state::EpEvent;

/// Makes a service point in this pool, and listens.
///
/// # Safety
/// NULL or handles.
unsafe fn listen(
    pool: &Pool<ServicePoint>,
    ia: Handle,
    qualifier: u64,
    evd: Handle,
    ep: Option<&'static Slot<crate::core::ep::Ep>>,
) -> Result<Handle> {
    // SAFETY: as promised.
    let ia = unsafe { adapter(ia) }?;
    // SAFETY: as promised.
    let evd = unsafe { evd_of(Some(&ia), evd, stream::CR, Sub::HandleEvdCr) }?;
    let address = address_of(&ia.address) as usize;
    let slot = pool.insert(ia.provider, |_| ServicePoint::new(ia.clone(), qualifier, evd, ep));
    let listening =
        slot.lock().as_mut().map_or(Err(Code::INTERNAL_ERROR), |point| point.listen(slot.handle(), address));
    if let Err(why) = listening {
        let _ = pool.remove(slot, (), |_| Ok(()));
        return Err(why);
    }
    ia.objects.lock().insert(slot.handle());
    Ok(slot.handle())
}

/// # Safety
/// NULL or a handle.
unsafe fn close(pool: &Pool<ServicePoint>, handle: Handle, sub: Sub) -> Result {
    let gone = Code::INVALID_HANDLE.of(sub);
    // SAFETY: as promised.
    let slot = unsafe { pool.find(handle) }.ok_or(gone)?;
    let closed = pool.remove(slot, gone, |point| {
        point.close();
        point.ia.forget(handle);
        Ok(())
    });
    closed.map(drop)
}

/// `DAT_PSP_PROVIDER_FLAG`: the provider makes end points.
const PROVIDER: u32 = 1;

/// Checks the flags of a public service point: end points are the program's.
fn owner(flags: u32) -> Result {
    match flags {
        0 => Ok(()),
        PROVIDER => Err(Code::MODEL_NOT_SUPPORTED),
        _ => Err(Code::argument(4)),
    }
}

/// `dat_psp_create`.
///
/// # Safety
/// NULL or what `udat.h` says, here and below.
pub unsafe extern "C" fn psp_create(
    ia: Handle,
    qualifier: u64,
    evd: Handle,
    flags: u32,
    out: *mut Handle,
) -> Code {
    call(|| {
        some(out, 5)?;
        owner(flags)?;
        // SAFETY: as above.
        let handle = unsafe { listen(&PSPS, ia, qualifier, evd, None) }?;
        // SAFETY: not NULL, so valid.
        unsafe { put(out, handle) };
        Ok(())
    })
}

/// `dat_psp_create_any`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn psp_create_any(
    ia: Handle,
    qualifier: *mut u64,
    evd: Handle,
    flags: u32,
    out: *mut Handle,
) -> Code {
    call(|| {
        some(qualifier, 2)?;
        some(out, 5)?;
        owner(flags)?;
        for free in service::free_qualifiers() {
            // SAFETY: as above.
            match unsafe { listen(&PSPS, ia, free, evd, None) } {
                Ok(handle) => {
                    // SAFETY: not NULL, so valid, both.
                    unsafe { (put(qualifier, free), put(out, handle)) };
                    return Ok(());
                }
                Err(Code::CONN_QUAL_IN_USE) => {}
                Err(why) => return Err(why),
            }
        }
        Err(Code::CONN_QUAL_UNAVAILABLE)
    })
}

/// `dat_psp_query`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn psp_query(handle: Handle, _mask: u32, out: *mut PspParam) -> Code {
    call(|| {
        let gone = Code::INVALID_HANDLE.of(Sub::HandlePsp);
        // SAFETY: as above.
        let slot = unsafe { PSPS.find(handle) }.ok_or(gone)?;
        some(out, 3)?;
        let held = slot.lock();
        let point = held.as_ref().ok_or(gone)?;
        let param =
            PspParam { ia: point.ia.handle(), qualifier: point.qualifier, evd: point.evd.handle, flags: 0 };
        // SAFETY: not NULL, so valid.
        unsafe { put(out, param) };
        Ok(())
    })
}

/// `dat_psp_free`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn psp_free(handle: Handle) -> Code {
    // SAFETY: as above.
    call(|| unsafe { close(&PSPS, handle, Sub::HandlePsp) })
}

/// `dat_rsp_create`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn rsp_create(
    ia: Handle,
    qualifier: u64,
    ep: Handle,
    evd: Handle,
    out: *mut Handle,
) -> Code {
    call(|| {
        // SAFETY: as above.
        let own = unsafe { adapter(ia) }?;
        let gone = Code::INVALID_HANDLE.of(Sub::HandleEp);
        // SAFETY: as above.
        let slot = unsafe { EPS.find(ep) }.ok_or(gone)?;
        some(out, 5)?;
        let mut held = slot.lock();
        let reserved = held.as_mut().ok_or(gone)?;
        same(&own, &reserved.face.ia, Sub::HandleEp)?;
        reserved.reserve(EpEvent::Reserved)?;
        drop(held);
        // SAFETY: as above.
        let listening = unsafe { listen(&RSPS, ia, qualifier, evd, Some(slot)) };
        if listening.is_err()
            && let Some(ep) = &mut *slot.lock()
        {
            let _ = ep.reserve(EpEvent::Unreserved); // undoes the reservation
        }
        // SAFETY: not NULL, so valid.
        unsafe { put(out, listening?) };
        Ok(())
    })
}

/// `dat_rsp_query`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn rsp_query(handle: Handle, _mask: u32, out: *mut RspParam) -> Code {
    call(|| {
        let gone = Code::INVALID_HANDLE.of(Sub::HandleRsp);
        // SAFETY: as above.
        let slot = unsafe { RSPS.find(handle) }.ok_or(gone)?;
        some(out, 3)?;
        let held = slot.lock();
        let point = held.as_ref().ok_or(gone)?;
        let ep = point.ep.map_or(0, Slot::handle);
        let param = RspParam { ia: point.ia.handle(), qualifier: point.qualifier, evd: point.evd.handle, ep };
        // SAFETY: not NULL, so valid.
        unsafe { put(out, param) };
        Ok(())
    })
}

/// `dat_rsp_free`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn rsp_free(handle: Handle) -> Code {
    // SAFETY: as above.
    call(|| unsafe { close(&RSPS, handle, Sub::HandleRsp) })
}

/// # Safety
/// NULL or a handle.
unsafe fn request(handle: Handle) -> Result<&'static Slot<Cr>> {
    // SAFETY: as promised.
    unsafe { CRS.find(handle) }.ok_or(Code::INVALID_HANDLE.of(Sub::HandleCr))
}

/// `dat_cr_query`. The pointers in `out` are valid until the request is answered.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn cr_query(handle: Handle, _mask: u32, out: *mut CrParam) -> Code {
    call(|| {
        // SAFETY: as above.
        let slot = unsafe { request(handle) }?;
        some(out, 3)?;
        let held = slot.lock();
        let cr = held.as_ref().ok_or(Code::INVALID_HANDLE.of(Sub::HandleCr))?;
        let param = CrParam {
            remote_address: std::ptr::from_ref(&*cr.address).cast::<c_void>(),
            remote_port: cr.theirs.port,
            private_data_size: cr.theirs.private_data.len() as c_int,
            private_data: cr.theirs.private_data.as_ptr().cast(),
            local_ep: cr.local_ep,
        };
        // SAFETY: not NULL, so valid.
        unsafe { put(out, param) };
        Ok(())
    })
}

/// `dat_cr_accept`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn cr_accept(handle: Handle, ep: Handle, size: c_int, private_data: *const u8) -> Code {
    call(|| {
        // SAFETY: as above.
        let slot = unsafe { request(handle) }?;
        let ep = match ep {
            0 => None,
            // SAFETY: as above.
            ep => Some(unsafe { EPS.find(ep) }.ok_or(Code::INVALID_HANDLE.of(Sub::HandleEp))?),
        };
        // SAFETY: valid for so many bytes.
        let private_data = unsafe { bytes(private_data, size, 3) }?;
        if private_data.len() > MAX_PRIVATE {
            return Err(Code::argument(3));
        }
        service::accept(slot, ep, private_data)
    })
}

/// `dat_cr_reject`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn cr_reject(handle: Handle, size: c_int, private_data: *const u8) -> Code {
    call(|| {
        // SAFETY: as above.
        let slot = unsafe { request(handle) }?;
        // SAFETY: valid for so many bytes.
        let private_data = unsafe { bytes(private_data, size, 2) }?;
        if private_data.len() > MAX_PRIVATE {
            return Err(Code::argument(2));
        }
        service::reject(slot, private_data)
    })
}
