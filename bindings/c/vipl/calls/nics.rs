//! NICs.

use std::ffi::{CStr, c_char};
use std::sync::{Arc, Weak};

use udeck::via::Caps;

use super::{OPEN, call, cqs, nic, put, some, vis};
use crate::vipl::address::HOST;
use crate::vipl::cq::CQS;
use crate::vipl::engine::{MAX_DISCRIMINATOR, NICS, NicState, PTAGS};
use crate::vipl::error::{code, tell};
use crate::vipl::handle::Handle;
use crate::vipl::types::{self, NicAttributes, Ulong, VipReturn};
use crate::vipl::vi::{MAX_DESCRIPTORS, VIS, VISITS};
use crate::vipl::work_request::MAX_SEGMENTS;
use crate::vipl::{connect, memory};

/// Opens a NIC: `VINIC0`, or a transport's by name (`shm0`, `tcp0`, `udp0`, `verbs0`).
///
/// # Safety
/// `name` is NULL or a C string, `handle` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipOpenNic(name: *const c_char, handle: *mut Handle) -> VipReturn {
    call("VipOpenNic", || {
        some(handle)?;
        some(name.cast_mut())?;
        // SAFETY: not NULL, so a C string, as C promises.
        let name = unsafe { CStr::from_ptr(name) }.to_str().map_err(|_| VipReturn::INVALID_PARAMETER)?;
        let names = udeck::names::open().map_err(|why| {
            tell("VipOpenNic", &why);
            VipReturn::ERROR_RESOURCE
        })?;
        // Programs of the literature name the device file that their system had.
        let short = name.rsplit('/').next().unwrap_or(name);
        let transport = if short.eq_ignore_ascii_case("VINIC0") { names.default_nic() } else { short };
        let opened = udeck::open_nic(transport, &names.options()).map_err(|why| {
            tell("VipOpenNic", &format!("{name:?}: {why}; VINIC0 is the default one"));
            code(&why)
        })?;
        let mut failed = None;
        let made = NICS.insert(|handle| {
            NicState::new(handle, opened.clone(), names.clone(), &VISITS)
                .inspect_err(|why| failed = Some(code(why)))
                .ok()
        });
        let made = made.ok_or(VipReturn::ERROR_RESOURCE)?;
        let Some(state) = NICS.get(made).flatten() else {
            NICS.remove(made, |_| Ok::<_, ()>(()));
            return Err(failed.unwrap_or(VipReturn::ERROR_RESOURCE));
        };
        let mut open = OPEN.lock();
        open.retain(|nic| nic.strong_count() > 0);
        open.push(Arc::downgrade(&state));
        // SAFETY: not NULL, so valid for writing, as C promises.
        unsafe { put(handle, made) }
    })
}

/// Closes a NIC, and ends all objects on it.
#[unsafe(no_mangle)]
pub extern "C" fn VipCloseNic(handle: Handle) -> VipReturn {
    call("VipCloseNic", || {
        let state = NICS.remove(handle, |_| Ok(())).ok_or(VipReturn::INVALID_PARAMETER)??;
        let Some(state) = state else { return Err(VipReturn::INVALID_PARAMETER) };
        OPEN.lock().retain(|nic| !Weak::ptr_eq(nic, &Arc::downgrade(&state)));
        connect::listen_nowhere(&state);
        state.close();
        let vis: Vec<Handle> = state.vis.lock().iter().copied().collect();
        for vi in vis {
            if let Some(Ok(vi)) = VIS.remove(vi, |_| Ok::<_, ()>(())) {
                vi.detach(&state);
            }
        }
        memory::forget(|ptag| PTAGS.get(ptag).is_some_and(|own| own.nic == handle));
        CQS.retain(|cq| cq.nic.handle() != handle);
        PTAGS.retain(|own| own.nic != handle);
        connect::CONNS.retain(|conn| conn.nic.handle() != handle);
        Ok(())
    })
}

/// Describes a NIC.
///
/// # Safety
/// `attributes` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipQueryNic(handle: Handle, attributes: *mut NicAttributes) -> VipReturn {
    call("VipQueryNic", || {
        let nic = nic(handle)?;
        some(attributes)?;
        // SAFETY: not NULL, so valid for writing, as C promises.
        unsafe { put(attributes, describe(&nic)) }
    })
}

fn describe(nic: &NicState) -> NicAttributes {
    let below = nic.nic.attributes();
    let levels = [
        (Caps::UNRELIABLE, types::UNRELIABLE),
        (Caps::RELIABLE_DELIVERY, types::RELIABLE_DELIVERY),
        (Caps::RELIABLE_RECEPTION, types::RELIABLE_RECEPTION),
    ];
    let offered =
        levels.iter().filter(|(cap, _)| below.caps.has(*cap)).fold(0, |all, (_, level)| all | level);
    let mut name = [0; 64];
    for (to, from) in name.iter_mut().zip(below.name.bytes().take(63)) {
        *to = from as c_char;
    }
    NicAttributes {
        name,
        hardware_version: 0,
        provider_version: 0x0100,
        nic_address_len: HOST as u16,
        local_nic_address: nic.address.as_ptr(),
        thread_safe: 1,
        max_discriminator_len: MAX_DISCRIMINATOR as u16,
        max_register_bytes: below.max_registered_bytes as Ulong,
        max_register_regions: below.max_registrations.min(memory::MAX) as Ulong,
        max_register_block_bytes: below.max_registered_bytes as Ulong,
        max_vi: vis::most(nic) as Ulong,
        max_descriptors_per_queue: MAX_DESCRIPTORS as Ulong,
        max_segments_per_desc: MAX_SEGMENTS as Ulong,
        max_cq: cqs::MAX_CQS as Ulong,
        max_cq_entries: cqs::MAX_ENTRIES,
        max_transfer_size: nic.max_transfer() as Ulong,
        native_mtu: nic.max_transfer() as Ulong,
        max_ptags: 1 << 20,
        reliability_level_support: offered,
        rdma_read_support: offered & !types::UNRELIABLE,
    }
}
