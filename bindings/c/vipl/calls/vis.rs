//! VIs.

use udeck::via::Vi;

use super::{call, nic, put, some, take};
use crate::vipl::cq::CQS;
use crate::vipl::engine::NicState;
use crate::vipl::error::code;
use crate::vipl::handle::Handle;
use crate::vipl::types::{Boolean, ViAttributes, ViState, VipReturn};
use crate::vipl::vi::{VIS, ViObject, qos_of};
use crate::vipl::work_request::Queue;

/// Most VIs of a NIC: as many as its completion queue below can watch.
pub(super) fn most(nic: &NicState) -> usize {
    (nic.nic.attributes().max_cq_entries / 2).min(1 << 16)
}

/// Makes a VI, idle.
///
/// # Safety
/// `attributes` and `handle` are NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipCreateVi(
    of: Handle,
    attributes: *const ViAttributes,
    send_cq: Handle,
    receive_cq: Handle,
    handle: *mut Handle,
) -> VipReturn {
    call("VipCreateVi", || {
        let nic = nic(of)?;
        some(handle)?;
        // SAFETY: NULL or valid, as C promises.
        let mut attributes = unsafe { take(attributes) }?;
        let mut cqs = [None, None];
        for (place, cq) in cqs.iter_mut().zip([send_cq, receive_cq]) {
            if cq != Handle::NULL {
                let found = CQS.get(cq).filter(|cq| cq.nic.handle() == of);
                *place = Some(found.ok_or(VipReturn::INVALID_PARAMETER)?);
            }
        }
        let mut wanted = ViObject::below_for(&nic, &attributes)?;
        if attributes.max_transfer == 0 {
            attributes.max_transfer = nic.max_transfer() as _;
        }
        attributes.qos = qos_of(wanted.level);
        if nic.vis.lock().len() >= most(&nic) {
            return Err(VipReturn::ERROR_RESOURCE);
        }
        let mut failed = None;
        let attached = cqs.clone();
        let below = Vi::new(&nic.nic, wanted).map_err(|why| code(&why))?;
        let made = VIS
            .insert(|handle| {
                let mut below = below;
                wanted.context = handle.number();
                failed = below.set_attributes(wanted).err();
                ViObject::new(handle, nic.clone(), attributes, below, cqs)
            })
            .ok_or(VipReturn::ERROR_RESOURCE)?;
        if let Some(why) = failed {
            VIS.remove(made, |_| Ok::<_, ()>(()));
            return Err(code(&why));
        }
        attached.iter().flatten().for_each(|cq| cq.attach(made));
        nic.vis.lock().insert(made);
        // SAFETY: not NULL, so valid for writing, as C promises.
        unsafe { put(handle, made) }
    })
}

/// Ends a VI that is idle and has no descriptors.
#[unsafe(no_mangle)]
pub extern "C" fn VipDestroyVi(handle: Handle) -> VipReturn {
    call("VipDestroyVi", || {
        let gone = VIS.remove(handle, |vi| vi.may_go()).ok_or(VipReturn::INVALID_PARAMETER)??;
        gone.detach(gone.nic());
        Ok(())
    })
}

fn vi<R>(handle: Handle, with: impl FnOnce(&mut ViObject) -> Result<R, VipReturn>) -> Result<R, VipReturn> {
    with(&mut *VIS.lock(handle).ok_or(VipReturn::INVALID_PARAMETER)?)
}

/// Changes an idle VI's attributes.
///
/// # Safety
/// `attributes` is NULL or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipSetViAttributes(handle: Handle, attributes: *const ViAttributes) -> VipReturn {
    call("VipSetViAttributes", || {
        // SAFETY: NULL or valid, as C promises.
        let attributes = unsafe { take(attributes) };
        vi(handle, |vi| vi.set_attributes(attributes?))
    })
}

/// A VI's state and attributes, and whether its queues are empty.
///
/// # Safety
/// All are NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipQueryVi(
    handle: Handle,
    state: *mut ViState,
    attributes: *mut ViAttributes,
    send_empty: *mut Boolean,
    receive_empty: *mut Boolean,
) -> VipReturn {
    call("VipQueryVi", || {
        some(state)?;
        some(attributes)?;
        some(send_empty)?;
        some(receive_empty)?;
        let found = vi(handle, |vi| {
            vi.move_on(crate::vipl::vi::Until::Bound); // the connection may have ended
            let empty = [Queue::Send, Queue::Receive].map(|queue| Boolean::from(vi.is_empty(queue)));
            Ok((vi.state(), *vi.attributes(), empty))
        })?;
        // SAFETY: not NULL, so valid for writing, as C promises.
        unsafe {
            state.write(found.0);
            attributes.write(found.1);
            send_empty.write(found.2[0]);
            receive_empty.write(found.2[1]);
        }
        Ok(())
    })
}
