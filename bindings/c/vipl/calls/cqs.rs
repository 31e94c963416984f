//! Completion queues.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Outcome, call, nic, put, some};
use crate::vipl::connect::deadline;
use crate::vipl::cq::{CQS, CqState};
use crate::vipl::engine::CqNotify;
use crate::vipl::handle::Handle;
use crate::vipl::types::{Boolean, CqHandler, Ulong, VipReturn};

/// Most entries of a queue, as `VipQueryNic` reports. (There is no bound: a queue grows.)
pub(super) const MAX_ENTRIES: Ulong = 1 << 20;
/// Most completion queues of a NIC.
pub(super) const MAX_CQS: usize = 1 << 16;

fn cq(handle: Handle) -> Result<Arc<CqState>, VipReturn> {
    CQS.get(handle).ok_or(VipReturn::INVALID_PARAMETER)
}

/// Makes a completion queue.
///
/// # Safety
/// `handle` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipCreateCQ(of: Handle, entries: Ulong, handle: *mut Handle) -> VipReturn {
    call("VipCreateCQ", || {
        let nic = nic(of)?;
        some(handle)?;
        check(entries)?;
        if nic.cqs.fetch_add(1, Ordering::Relaxed) >= MAX_CQS {
            nic.cqs.fetch_sub(1, Ordering::Relaxed);
            return Err(VipReturn::ERROR_RESOURCE);
        }
        let made = CQS.insert(|_| Arc::new(CqState::new(nic))).ok_or(VipReturn::ERROR_RESOURCE)?;
        // SAFETY: not NULL, so valid for writing, as C promises.
        unsafe { put(handle, made) }
    })
}

fn check(entries: Ulong) -> Outcome {
    match entries {
        0 => Err(VipReturn::INVALID_PARAMETER),
        1..=MAX_ENTRIES => Ok(()),
        _ => Err(VipReturn::ERROR_RESOURCE),
    }
}

/// Ends a completion queue that no VI uses.
#[unsafe(no_mangle)]
pub extern "C" fn VipDestroyCQ(handle: Handle) -> VipReturn {
    call("VipDestroyCQ", || {
        let unused =
            |cq: &mut Arc<CqState>| if cq.is_attached() { Err(VipReturn::ERROR_RESOURCE) } else { Ok(()) };
        let gone = CQS.remove(handle, unused).ok_or(VipReturn::INVALID_PARAMETER)??;
        gone.nic.cqs.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    })
}

/// Changes how many entries it has.
#[unsafe(no_mangle)]
pub extern "C" fn VipResizeCQ(handle: Handle, entries: Ulong) -> VipReturn {
    call("VipResizeCQ", || {
        let cq = cq(handle)?;
        check(entries)?;
        // The entries of the queue stay.
        if cq.len() as Ulong > entries { Err(VipReturn::ERROR_RESOURCE) } else { Ok(()) }
    })
}

/// # Safety
/// Both are valid for writing.
unsafe fn give(vi: *mut Handle, receives: *mut Boolean, found: (Handle, bool)) -> Outcome {
    // SAFETY: as promised.
    unsafe {
        put(vi, found.0)?;
        put(receives, Boolean::from(found.1))
    }
}

/// Takes the next completion: the VI, and which of its queues.
///
/// # Safety
/// `vi` and `receives` are NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipCQDone(handle: Handle, vi: *mut Handle, receives: *mut Boolean) -> VipReturn {
    call("VipCQDone", || {
        let cq = cq(handle)?;
        some(vi)?;
        some(receives)?;
        let found = cq.done().ok_or(VipReturn::NOT_DONE)?;
        // SAFETY: not NULL, so valid for writing, as C promises.
        unsafe { give(vi, receives, found) }
    })
}

/// Waits for the next completion.
///
/// # Safety
/// `vi` and `receives` are NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipCQWait(
    handle: Handle,
    timeout: Ulong,
    vi: *mut Handle,
    receives: *mut Boolean,
) -> VipReturn {
    call("VipCQWait", || {
        let cq = cq(handle)?;
        some(vi)?;
        some(receives)?;
        let found = cq.nic.progress.wait(&cq.spin_history, deadline(timeout), |_| cq.done());
        let found = found.ok_or(VipReturn::TIMEOUT)?;
        // SAFETY: not NULL, so valid for writing, as C promises.
        unsafe { give(vi, receives, found) }
    })
}

/// Calls `handler` with the next completion.
#[unsafe(no_mangle)]
pub extern "C" fn VipCQNotify(handle: Handle, context: *mut c_void, handler: Option<CqHandler>) -> VipReturn {
    call("VipCQNotify", || {
        let handler = handler.ok_or(VipReturn::INVALID_PARAMETER)?;
        let notified = cq(handle)?.notify(CqNotify { handler, context });
        if notified { Ok(()) } else { Err(VipReturn::ERROR_RESOURCE) }
    })
}
