//! Interface adapters, and the calls for all kinds of handles.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::types::{Handle, IaAttr, NAME, NamedAttr, ProviderAttr};
use super::{call, events, object, provider, put, some};
use crate::core::address::SockAddr;
use crate::core::code::{Code, Result, Sub};
use crate::core::ep::{self, MAX_DTOS, MAX_SEGMENTS};
use crate::core::evd::{self, stream};
use crate::core::ia::{Ia, MAX_PRIVATE};
use crate::core::memory as regions;
use crate::core::qos::Qos;
use crate::core::slot::{Pool, context_of, kind_of};

/// `DAT_HANDLE_TYPE_IA` + 1.
pub static IAS: Pool<Arc<Ia>> = Pool::new(4);

/// Addresses that programs have pointers to, for good: one for each adapter's host.
static ADDRESSES: Mutex<Vec<&'static SockAddr>> = Mutex::new(Vec::new());

pub fn address_of(host: &udeck::names::address::Host) -> *const c_void {
    let wanted = SockAddr::of(host);
    let mut all = ADDRESSES.lock();
    let known = all.iter().find(|known| ***known == wanted).copied();
    let address = known.unwrap_or_else(|| {
        let made: &'static SockAddr = Box::leak(Box::new(wanted));
        all.push(made);
        made
    });
    std::ptr::from_ref(address).cast()
}

/// # Safety
/// As `object`.
pub unsafe fn adapter(handle: Handle) -> Result<Arc<Ia>> {
    // SAFETY: as promised.
    unsafe { object(&IAS, handle, Sub::HandleIa) }
}

/// `dat_ia_open`.
///
/// # Safety
/// NULL or what `udat.h` says, here and below.
pub unsafe extern "C" fn open(
    name: *const c_char,
    qlen: c_int,
    asynchronous: *mut Handle,
    out: *mut Handle,
) -> Code {
    call(|| {
        some(name.cast_mut(), 1)?;
        some(asynchronous, 3)?;
        some(out, 4)?;
        if qlen < 0 || qlen as usize > evd::MOST {
            return Err(Code::argument(2));
        }
        // SAFETY: not NULL, so a C string.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        let (device, provider) = provider::loaded(&name).ok_or(Code::PROVIDER_NOT_FOUND)?;
        // SAFETY: not NULL, so valid.
        let given = unsafe { *asynchronous };
        // SAFETY: NULL, 1 (`DAT_EVD_ASYNC_EXISTS`), or a handle.
        let existing = unsafe {
            match given {
                0 | 1 => None,
                // The dispatcher may be of any adapter: one may serve several.
                given => Some(events::evd_of(None, given, stream::ASYNC, Sub::HandleEvdAsync)?),
            }
        };
        let failed = |why: &dyn std::fmt::Display| {
            udeck::via::say!("uDAPL: dat_ia_open {name:?} ({device}): {why}");
            Code::INSUFFICIENT_RESOURCES.of(Sub::ResourceDevice)
        };
        let names = udeck::names::open().map_err(|why| failed(&why))?;
        let nic = udeck::open_nic(device, &names.options()).map_err(|why| failed(&why))?;
        let ia =
            Ia::new(provider, name.clone(), device, nic, names, ep::move_on).map_err(|why| failed(&why))?;
        let slot = IAS.insert(provider, |_| ia.clone());
        let _ = ia.handle.set(slot.handle());
        let evd = match existing {
            Some(evd) => Some((evd, false)),
            None if given == 1 => None,
            None => {
                let evd = events::make(&ia, qlen as usize, None, stream::ASYNC, Weak::new());
                Some((evd, true))
            }
        };
        if let Some((evd, own)) = evd {
            let handle = evd.handle;
            let _ = ia.asynchronous.set((evd, own));
            // SAFETY: not NULL, so valid.
            unsafe { put(asynchronous, handle) };
        }
        // SAFETY: as above.
        unsafe { put(out, slot.handle()) };
        Ok(())
    })
}

/// `dat_ia_query`. Fills a whole structure if any part of it is asked for.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn query(
    ia: Handle,
    asynchronous: *mut Handle,
    ia_mask: u64,
    ia_attr: *mut IaAttr,
    provider_mask: u64,
    provider_attr: *mut ProviderAttr,
) -> Code {
    call(|| {
        // SAFETY: NULL or a handle.
        let ia = unsafe { adapter(ia) }?;
        if ia_mask != 0 {
            some(ia_attr, 4)?;
        }
        if provider_mask != 0 {
            some(provider_attr, 6)?;
        }
        // `DAT_EVD_OUT_OF_SCOPE`, if there is none.
        let evd = ia.asynchronous.get().map_or(2, |(evd, _)| evd.handle);
        // SAFETY: NULL, or valid, here and below.
        unsafe { put(asynchronous, evd) };
        if ia_mask != 0 {
            // SAFETY: as above.
            unsafe { put(ia_attr, describe(&ia)) };
        }
        if provider_mask != 0 {
            // SAFETY: as above.
            unsafe { put(provider_attr, describe_provider(&ia)) };
        }
        Ok(())
    })
}

/// Provider attributes; some programs look for them.
struct Attributes([NamedAttr; 1]);

// SAFETY: constant strings.
unsafe impl Sync for Attributes {}

static ATTRIBUTES: Attributes =
    Attributes([NamedAttr { name: c"DAT_IB_RDMA_READ".as_ptr(), value: c"TRUE".as_ptr() }]);

fn name(text: &str) -> [c_char; NAME] {
    let mut characters = [0; NAME];
    for (to, byte) in characters.iter_mut().zip(text.bytes().take(NAME - 1)) {
        *to = byte as c_char;
    }
    characters
}

/// Reported number of objects of a kind that only memory bounds.
const MANY: c_int = 1 << 16;

fn version() -> [u32; 2] {
    let part = |text: &str| text.parse().unwrap_or(0);
    [part(env!("CARGO_PKG_VERSION_MAJOR")), part(env!("CARGO_PKG_VERSION_MINOR"))]
}

fn describe(ia: &Ia) -> IaAttr {
    let (dtos, segments) = (MAX_DTOS as c_int, MAX_SEGMENTS as c_int);
    let longest = ia.max_transfer() as u32;
    IaAttr {
        adapter_name: name(ia.device),
        vendor_name: name("udeck"),
        hardware_version: [0, 0],
        firmware_version: version(),
        address: address_of(&ia.address),
        max_eps: MANY,
        max_dto_per_ep: dtos,
        max_rdma_read_per_ep_in: dtos,
        max_rdma_read_per_ep_out: dtos,
        max_evds: MANY,
        max_evd_qlen: evd::MOST as c_int,
        max_iov_segments_per_dto: segments,
        max_lmrs: regions::MAX as c_int,
        max_lmr_block_size: u32::MAX,
        max_lmr_virtual_address: u64::MAX,
        max_pzs: MANY,
        max_message_size: longest,
        max_rdma_size: longest,
        max_rmrs: regions::MAX as c_int,
        max_rmr_target_address: u64::MAX,
        max_srqs: MANY,
        max_ep_per_srq: MANY,
        max_recv_per_srq: evd::MOST as c_int,
        max_iov_segments_per_rdma_read: segments,
        max_iov_segments_per_rdma_write: segments,
        max_rdma_read_in: MANY,
        max_rdma_read_out: MANY,
        read_per_ep_in_guaranteed: 1,
        read_per_ep_out_guaranteed: 1,
        zb_supported: 1,
        extension_supported: 0,
        extension_version: 0,
        num_transport_attr: 1,
        transport_attr: ATTRIBUTES.0.as_ptr(),
        num_vendor_attr: 0,
        vendor_attr: std::ptr::null(),
    }
}

fn describe_provider(ia: &Ia) -> ProviderAttr {
    ProviderAttr {
        provider_name: name("udeck"),
        provider_version: version(),
        dapl_version: [2, 0],
        // Virtual memory, and LMRs of it.
        lmr_mem_types_supported: 1,
        iov_ownership_on_return: 0,
        dat_qos_supported: Qos::ALL.into_iter().fold(0, |all, qos| all | ia.quality(qos) as u32),
        // Suppressed, solicited, unsignalled, fenced: all but thresholds of receives.
        completion_flags_supported: 0x0f,
        is_thread_safe: provider::is_thread_safe(&ia.name),
        max_private_data_size: MAX_PRIVATE as c_int,
        supports_multipath: 0,
        ep_creator: 0,
        pz_support: 0,
        optimal_buffer_alignment: 64,
        evd_stream_merging: [[1; 6]; 6],
        srq_supported: 1,
        srq_watermarks_supported: 1,
        srq_ep_pz_difference_supported: 1,
        srq_info_supported: 1,
        ep_recv_info_supported: 1,
        lmr_sync_req: 0,
        dto_async_return_guaranteed: 0,
        rdma_write_for_rdma_read_req: 0,
        rdma_read_lmr_rmr_context_exposure: 0,
        // The scope of a protection zone.
        rmr_scope_supported: 1,
        is_signal_safe: 0,
        ha_supported: 0,
        ha_loadbalancing: 0,
        num_provider_specific_attr: 1,
        provider_specific_attr: ATTRIBUTES.0.as_ptr(),
    }
}

/// Ends the object of a handle, whatever its kind.
fn end(handle: Handle) {
    // SAFETY: handles of ours, which the adapter has noted, throughout.
    unsafe {
        match kind_of(handle) {
            1 => drop(super::service::cr_reject(handle, 0, std::ptr::null())),
            2 => drop(super::eps::free_at_any_rate(handle)),
            3 => drop(events::free(handle)),
            5 => drop(super::memory::lmr_free(handle)),
            6 => drop(super::service::psp_free(handle)),
            7 => drop(super::memory::pz_free(handle)),
            8 => drop(super::memory::rmr_free(handle)),
            9 => drop(super::service::rsp_free(handle)),
            10 => drop(events::cno_free(handle)),
            11 => drop(super::srqs::srq_free(handle)),
            _ => {}
        }
    }
}

/// `dat_ia_close`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn close(handle: Handle, flags: u32) -> Code {
    call(|| {
        // SAFETY: NULL or a handle.
        let slot = unsafe { IAS.find(handle) }.ok_or(Code::INVALID_HANDLE.of(Sub::HandleIa))?;
        let ia = slot.get().ok_or(Code::INVALID_HANDLE.of(Sub::HandleIa))?;
        let own = ia.asynchronous.get().filter(|(_, own)| *own).map(|(evd, _)| evd.handle);
        let left = |ia: &Ia| -> Vec<Handle> {
            ia.objects.lock().iter().copied().filter(|handle| Some(*handle) != own).collect()
        };
        match flags {
            0 => {
                // Objects go before those that they need: first service points, from which requests come, then requests, then connections,
                // queues and zones.
                for kinds in [&[6, 9][..], &[1], &[2], &[8], &[5, 11], &[7, 3], &[10]] {
                    for object in left(&ia) {
                        // SAFETY: a handle of ours.
                        if kinds.contains(&unsafe { kind_of(object) }) {
                            end(object);
                        }
                    }
                }
            }
            1 if left(&ia).is_empty() => {}
            1 => return Err(Code::INVALID_STATE.of(Sub::IaInUse)),
            _ => return Err(Code::argument(2)),
        }
        IAS.remove(slot, Code::INVALID_HANDLE.of(Sub::HandleIa), |_| Ok(()))?;
        ia.progress.close();
        if let Some(handle) = own {
            events::free_own(handle);
        }
        Ok(())
    })
}

/// `dat_set_consumer_context`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn set_consumer_context(handle: Handle, context: u64) -> Code {
    call(|| {
        some(handle as *mut c_void, 1).map_err(|_| Code::INVALID_HANDLE)?;
        // SAFETY: not NULL, so a handle, here and below.
        if unsafe { kind_of(handle) } == 0 {
            return Err(Code::INVALID_HANDLE);
        }
        // SAFETY: as above.
        unsafe { context_of(handle) }.store(context, Ordering::Relaxed);
        Ok(())
    })
}

/// `dat_get_consumer_context`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn get_consumer_context(handle: Handle, out: *mut u64) -> Code {
    call(|| {
        some(handle as *mut c_void, 1).map_err(|_| Code::INVALID_HANDLE)?;
        some(out, 2)?;
        // SAFETY: not NULL, so a handle.
        if unsafe { kind_of(handle) } == 0 {
            return Err(Code::INVALID_HANDLE);
        }
        // SAFETY: not NULL, so a handle, and valid.
        unsafe { put(out, context_of(handle).load(Ordering::Relaxed)) };
        Ok(())
    })
}

/// `dat_get_handle_type`.
///
/// # Safety
/// As above.
pub unsafe extern "C" fn get_handle_type(handle: Handle, out: *mut u32) -> Code {
    call(|| {
        some(handle as *mut c_void, 1).map_err(|_| Code::INVALID_HANDLE)?;
        some(out, 2)?;
        // SAFETY: not NULL, so a handle.
        let kind = unsafe { kind_of(handle) };
        // SAFETY: not NULL, so valid.
        unsafe { put(out, kind.checked_sub(1).ok_or(Code::INVALID_HANDLE)?) };
        Ok(())
    })
}
