//! End points: their attributes, states and connections.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use super::events::{evd_of, limit};
use super::ia::{adapter, address_of};
use super::memory::zone;
use super::srqs::{OwnSrq, SRQS};
use super::types::{EpAttr, EpParam, Handle};
use super::{bytes, call, evd_or_null, object, put, same, some};
use crate::core::address::SockAddr;
use crate::core::code::{Code, Result, Sub};
use crate::core::ep::{EPS, Ep, MAX_DTOS, MAX_SEGMENTS, Settings};
use crate::core::evd::{Evd, stream};
use crate::core::ia::{Ia, MAX_PRIVATE};
use crate::core::qos::Qos;
use crate::core::service::{self, free_ep};
use crate::core::slot::Slot;

/// Most DTOs and segments of an end point without attributes.
const DEFAULT_DTOS: usize = 256;
const DEFAULT_SEGMENTS: usize = 8;

/// # Safety
/// NULL, or a handle that a call has given.
#[inline]
unsafe fn slot(handle: Handle) -> Result<&'static Slot<Ep>> {
    // SAFETY: as promised.
    unsafe { EPS.find(handle) }.ok_or(Code::INVALID_HANDLE.of(Sub::HandleEp))
}

/// Calls `with` with the end point, locked.
///
/// # Safety
/// As [`slot`].
#[inline(always)]
pub unsafe fn with<R>(handle: Handle, with: impl FnOnce(&mut Ep) -> Result<R>) -> Result<R> {
    // SAFETY: as promised.
    match &mut *unsafe { slot(handle) }?.lock() {
        Some(ep) => with(ep),
        None => Err(Code::INVALID_HANDLE.of(Sub::HandleEp)),
    }
}

/// The dispatcher of connection events, or none for NULL. It may be of any adapter: programs use one for several (`dapltest -T L` does).
///
/// # Safety
/// As [`slot`].
unsafe fn connect_evd_of(handle: Handle) -> Result<Option<Arc<Evd>>> {
    let stream = stream::CONNECTION;
    // SAFETY: as promised.
    if handle == 0 { Ok(None) } else { unsafe { evd_of(None, handle, stream, Sub::HandleEvdConn) }.map(Some) }
}

fn within(wanted: c_int, most: usize, default: usize, nth: u32) -> Result<usize> {
    match usize::try_from(wanted) {
        Ok(0) => Ok(default),
        Ok(wanted) if wanted <= most => Ok(wanted),
        _ => Err(Code::argument(nth)),
    }
}

/// Applies the attributes, which are argument `nth` of the call.
fn apply(settings: &mut Settings, attr: &EpAttr, ia: &Ia, nth: u32) -> Result {
    let longest = ia.max_transfer();
    if attr.service_type != 0
        || attr.max_message_size as usize > longest
        || attr.max_rdma_size as usize > longest
    {
        return Err(Code::argument(nth));
    }
    settings.qos = Qos::of(attr.qos).ok_or(Code::argument(nth))?;
    settings.max_receives = within(attr.max_recv_dtos, MAX_DTOS, DEFAULT_DTOS, nth)?;
    settings.max_requests = within(attr.max_request_dtos, MAX_DTOS, DEFAULT_DTOS, nth)?;
    settings.max_receive_segments = within(attr.max_recv_iov, MAX_SEGMENTS, DEFAULT_SEGMENTS, nth)?;
    settings.max_request_segments = within(attr.max_request_iov, MAX_SEGMENTS, DEFAULT_SEGMENTS, nth)?;
    Ok(())
}

/// Makes an end point, for both calls.
///
/// # Safety
/// NULL or what `udat.h` says.
unsafe fn make(
    ia: Handle,
    pz: Handle,
    [recv, request, connect]: [Handle; 3],
    srq: Option<OwnSrq>,
    attr: *const EpAttr,
    out: *mut Handle,
) -> Result {
    // SAFETY: NULL or handles, here and below.
    let ia = unsafe { adapter(ia) }?;
    // SAFETY: as above.
    let pz = if pz == 0 { None } else { Some(unsafe { zone(&ia, pz) }?.pz) };
    // SAFETY: as above.
    let [receive_evd, request_evd, connect_evd] = unsafe {
        [
            evd_or_null(&ia, recv, stream::DTO, Sub::HandleEvdRecv)?,
            evd_or_null(&ia, request, stream::DTO | stream::RMR_BIND, Sub::HandleEvdRequest)?,
            connect_evd_of(connect)?,
        ]
    };
    let srq = srq.map(|own| same(&ia, &own.pz.ia, Sub::HandleSrq).map(|()| own.srq)).transpose()?;
    // The attributes come behind the shared queue, if there is one.
    let attr_nth = if srq.is_some() { 7 } else { 6 };
    some(out, attr_nth + 1)?;
    let mut settings = Settings {
        pz,
        receive_evd,
        request_evd,
        connect_evd,
        srq,
        max_receives: DEFAULT_DTOS,
        max_requests: DEFAULT_DTOS,
        max_receive_segments: DEFAULT_SEGMENTS,
        max_request_segments: DEFAULT_SEGMENTS,
        qos: Qos::BestEffort,
    };
    if !attr.is_null() {
        // SAFETY: not NULL, so valid.
        apply(&mut settings, unsafe { &*attr }, &ia, attr_nth)?;
    }
    let made = EPS.insert(ia.provider, |slot| Ep::new(slot.id(), slot.handle(), ia.clone(), settings));
    ia.objects.lock().insert(made.handle());
    // SAFETY: not NULL, so valid.
    unsafe { put(out, made.handle()) };
    Ok(())
}

/// `dat_ep_create`.
///
/// # Safety
/// NULL or what `udat.h` says, here and below.
pub unsafe extern "C" fn create(
    ia: Handle,
    pz: Handle,
    recv: Handle,
    request: Handle,
    connect: Handle,
    attr: *const EpAttr,
    out: *mut Handle,
) -> Code {
    // SAFETY: as above.
    call(|| unsafe { make(ia, pz, [recv, request, connect], None, attr, out) })
}

/// `dat_ep_create_with_srq`.
///
/// # Safety
/// As above.
#[allow(clippy::too_many_arguments, reason = "udat.h's")]
pub unsafe extern "C" fn create_with_srq(
    ia: Handle,
    pz: Handle,
    recv: Handle,
    request: Handle,
    connect: Handle,
    srq: Handle,
    attr: *const EpAttr,
    out: *mut Handle,
) -> Code {
    call(|| {
        // SAFETY: as above.
        let srq = unsafe { object(&SRQS, srq, Sub::HandleSrq) }?;
        // SAFETY: as above.
        unsafe { make(ia, pz, [recv, request, connect], Some(srq), attr, out) }
    })
}

fn describe(ep: &Ep) -> EpParam {
    let settings = &ep.face.settings;
    let evd = |evd: &Option<Arc<Evd>>| evd.as_ref().map_or(0, |evd| evd.handle);
    let longest = ep.face.ia.max_transfer() as u32;
    let attr = EpAttr {
        service_type: 0,
        max_message_size: longest,
        max_rdma_size: longest,
        qos: ep.qos() as u32,
        recv_completion_flags: 0,
        request_completion_flags: 0,
        max_recv_dtos: settings.max_receives as c_int,
        max_request_dtos: settings.max_requests as c_int,
        max_recv_iov: settings.max_receive_segments as c_int,
        max_request_iov: settings.max_request_segments as c_int,
        max_rdma_read_in: settings.max_requests as c_int,
        max_rdma_read_out: settings.max_requests as c_int,
        srq_soft_hw: -1,
        max_rdma_read_iov: settings.max_request_segments as c_int,
        max_rdma_write_iov: settings.max_request_segments as c_int,
        transport_specific_count: 0,
        transport_specific: std::ptr::null(),
        provider_specific_count: 0,
        provider_specific: std::ptr::null(),
    };
    let peer = ep.face.peer.as_ref();
    EpParam {
        ia: ep.face.ia.handle(),
        state: ep.state() as u32,
        comm: [0; 3],
        local_address: address_of(&ep.face.ia.address),
        local_port: ep.port,
        remote_address: peer.map_or(std::ptr::null(), |_| Arc::as_ptr(&ep.remote).cast()),
        remote_port: peer.map_or(0, |peer| peer.asked_at.map_or(peer.port, |asked| asked.1)),
        pz: settings.pz.as_ref().map_or(0, |pz| pz.handle),
        recv_evd: evd(&settings.receive_evd),
        request_evd: evd(&settings.request_evd),
        connect_evd: evd(&settings.connect_evd),
        srq: settings.srq.as_ref().map_or(0, |srq| srq.handle),
        attr,
    }
}

/// `dat_ep_query`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn query(ep: Handle, _mask: u64, out: *mut EpParam) -> Code {
    call(|| {
        some(out, 3)?;
        // SAFETY: as above.
        let param = unsafe { with(ep, |ep| Ok(describe(ep))) }?;
        // SAFETY: not NULL, so valid.
        unsafe { put(out, param) };
        Ok(())
    })
}

/// `DAT_EP_FIELD_*` of what can be changed.
mod field {
    pub const PZ: u64 = 0x80;
    pub const RECV_EVD: u64 = 0x100;
    pub const REQUEST_EVD: u64 = 0x200;
    pub const CONNECT_EVD: u64 = 0x400;
    pub const SRQ: u64 = 0x800;
    pub const ATTR: u64 = 0x7fff_f000;
    /// Fields that only the provider sets.
    pub const FIXED: u64 = 0x7f;
}

/// `dat_ep_modify`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn modify(handle: Handle, mask: u64, param: *const EpParam) -> Code {
    call(|| {
        some(param.cast_mut(), 3)?;
        if mask & field::FIXED != 0 {
            return Err(Code::argument(2));
        }
        // SAFETY: not NULL, so valid.
        let param = unsafe { &*param };
        // SAFETY: a handle.
        let (ia, mut settings) =
            unsafe { with(handle, |ep| Ok((ep.face.ia.clone(), ep.face.settings.clone()))) }?;
        // SAFETY: NULL or handles, throughout.
        unsafe {
            if mask & field::PZ != 0 {
                settings.pz = Some(zone(&ia, param.pz)?.pz);
            }
            if mask & field::RECV_EVD != 0 {
                settings.receive_evd = evd_or_null(&ia, param.recv_evd, stream::DTO, Sub::HandleEvdRecv)?;
            }
            if mask & field::REQUEST_EVD != 0 {
                settings.request_evd =
                    evd_or_null(&ia, param.request_evd, stream::DTO, Sub::HandleEvdRequest)?;
            }
            if mask & field::CONNECT_EVD != 0 {
                settings.connect_evd = connect_evd_of(param.connect_evd)?;
            }
            if mask & field::SRQ != 0 {
                let own = object(&SRQS, param.srq, Sub::HandleSrq)?;
                same(&ia, &own.pz.ia, Sub::HandleSrq)?;
                settings.srq = Some(own.srq);
            }
        }
        if mask & field::ATTR != 0 {
            // Attributes that the mask does not name stay.
            let keep =
                |bit: u32, asked: c_int, had: usize| if mask >> bit & 1 != 0 { asked } else { had as c_int };
            let mut attr = param.attr;
            attr.service_type = if mask >> 12 & 1 != 0 { attr.service_type } else { 0 };
            attr.max_message_size = if mask >> 13 & 1 != 0 { attr.max_message_size } else { 0 };
            attr.max_rdma_size = if mask >> 14 & 1 != 0 { attr.max_rdma_size } else { 0 };
            attr.qos = if mask >> 15 & 1 != 0 { attr.qos } else { settings.qos as u32 };
            attr.max_recv_dtos = keep(18, attr.max_recv_dtos, settings.max_receives);
            attr.max_request_dtos = keep(19, attr.max_request_dtos, settings.max_requests);
            attr.max_recv_iov = keep(20, attr.max_recv_iov, settings.max_receive_segments);
            attr.max_request_iov = keep(21, attr.max_request_iov, settings.max_request_segments);
            apply(&mut settings, &attr, &ia, 3)?;
        }
        // SAFETY: a handle.
        unsafe { with(handle, |ep| ep.modify(settings)) }
    })
}

/// The quality that a call asks for. `None` for `DAT_QOS_BEST_EFFORT`: the quality of the end point's attributes holds.
fn quality(asked: u32, nth: u32) -> Result<Option<Qos>> {
    let qos = Qos::of(asked).ok_or(Code::argument(nth))?;
    Ok(Some(qos).filter(|qos| *qos != Qos::BestEffort))
}

/// `dat_ep_connect`: an event reports the outcome.
///
/// # Safety
/// As above.
#[allow(clippy::too_many_arguments, reason = "udat.h's")]
pub unsafe extern "C" fn connect(
    ep: Handle,
    address: *const c_void,
    qualifier: u64,
    timeout: u32,
    size: c_int,
    private_data: *const u8,
    qos: u32,
    flags: u32,
) -> Code {
    call(|| {
        // SAFETY: NULL or a handle.
        let slot = unsafe { slot(ep) }?;
        some(address.cast_mut(), 2)?;
        // SAFETY: not NULL, so an address, which begins with its family.
        let family = unsafe { address.cast::<u16>().read_unaligned() };
        let len = SockAddr::len_of(family).ok_or(Code::INVALID_ADDRESS.of(Sub::AddressUnsupported))?;
        // SAFETY: an address of that family.
        let host = SockAddr::host(unsafe { std::slice::from_raw_parts(address.cast(), len) })
            .ok_or(Code::INVALID_ADDRESS.of(Sub::AddressMalformed))?;
        if timeout == 0 {
            return Err(Code::argument(4));
        }
        if flags & 2 != 0 {
            return Err(Code::MODEL_NOT_SUPPORTED); // several paths
        }
        // The wish for several paths, without the requirement, is accepted and has no effect.
        if flags > 1 {
            return Err(Code::argument(8));
        }
        let qos = quality(qos, 7)?;
        // SAFETY: valid for so many bytes.
        let private_data = unsafe { bytes(private_data, size, 5) }?;
        service::connect(slot, host, qualifier, limit(timeout), qos, private_data)
    })
}

/// `dat_ep_dup_connect`: connects to the address that another end point has asked.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn dup_connect(
    ep: Handle,
    other: Handle,
    timeout: u32,
    size: c_int,
    private_data: *const u8,
    qos: u32,
) -> Code {
    call(|| {
        // SAFETY: NULL or handles.
        let slot = unsafe { slot(ep) }?;
        // SAFETY: as above.
        let own = unsafe { with(ep, |ep| Ok(ep.face.ia.clone())) }?;
        // SAFETY: as above.
        let peer = unsafe {
            with(other, |ep| {
                same(&own, &ep.face.ia, Sub::HandleEp)?;
                ep.face.peer.as_ref().and_then(|peer| peer.asked_at).ok_or(ep.state().refusal())
            })
        }?;
        if timeout == 0 {
            return Err(Code::argument(3));
        }
        // SAFETY: valid for so many bytes.
        let private_data = unsafe { bytes(private_data, size, 4) }?;
        if private_data.len() > MAX_PRIVATE {
            return Err(Code::argument(4));
        }
        service::connect(slot, peer.0, peer.1, limit(timeout), quality(qos, 6)?, private_data)
    })
}

/// `dat_ep_disconnect`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn disconnect(ep: Handle, flags: u32) -> Code {
    call(|| {
        if flags > 1 {
            return Err(Code::argument(2));
        }
        // SAFETY: NULL or a handle.
        unsafe { with(ep, |ep| ep.disconnect(flags == 1)) }
    })
}

/// `dat_ep_get_status`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn get_status(
    ep: Handle,
    state: *mut u32,
    recv_idle: *mut u32,
    request_idle: *mut u32,
) -> Code {
    call(|| {
        // SAFETY: NULL or a handle.
        let (at, (receives, requests)) = unsafe { with(ep, |ep| Ok((ep.state(), ep.idle()))) }?;
        // SAFETY: NULL or valid.
        unsafe {
            put(state, at as u32);
            put(recv_idle, receives.into());
            put(request_idle, requests.into());
        }
        Ok(())
    })
}

/// `dat_ep_recv_query`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn recv_query(ep: Handle, allocated: *mut c_int, span: *mut c_int) -> Code {
    call(|| {
        // SAFETY: NULL or a handle.
        let posted = unsafe { with(ep, |ep| Ok(ep.receives_posted() as c_int)) }?;
        // SAFETY: NULL or valid.
        unsafe { (put(allocated, posted), put(span, posted)) };
        Ok(())
    })
}

/// `dat_ep_reset`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn reset(ep: Handle) -> Code {
    // SAFETY: NULL or a handle.
    call(|| unsafe { with(ep, Ep::reset) })
}

/// `dat_ep_free`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn free(ep: Handle) -> Code {
    // SAFETY: NULL or a handle.
    call(|| free_ep(unsafe { slot(ep) }?, false))
}

/// Frees an end point in any state, because its adapter closes.
pub fn free_at_any_rate(ep: Handle) -> Code {
    // SAFETY: a handle of ours.
    call(|| free_ep(unsafe { slot(ep) }?, true))
}
