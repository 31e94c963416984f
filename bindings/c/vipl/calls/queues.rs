//! Work queues.

use std::ffi::c_void;

use super::{Outcome, call, put, some};
use crate::vipl::connect::deadline;
use crate::vipl::engine::Notify;
use crate::vipl::handle::Handle;
use crate::vipl::types::{Descriptor, NotifyHandler, Ulong, VipReturn};
use crate::vipl::vi::{VIS, ViObject};
use crate::vipl::work_request::{Place, Queue};

#[inline]
fn post(
    vi: Handle,
    descriptor: *mut Descriptor,
    handle: u32,
    post: impl FnOnce(&mut ViObject, Place) -> VipReturn,
) -> Outcome {
    some(descriptor)?;
    let mut vi = VIS.lock(vi).ok_or(VipReturn::INVALID_PARAMETER)?;
    match post(&mut vi, Place { descriptor, handle }) {
        VipReturn::SUCCESS => Ok(()),
        code => Err(code),
    }
}

/// Posts a send, an RDMA write or an RDMA read.
#[unsafe(no_mangle)]
pub extern "C" fn VipPostSend(vi: Handle, descriptor: *mut Descriptor, memory: u32) -> VipReturn {
    call("VipPostSend", || post(vi, descriptor, memory, ViObject::post_send))
}

/// Posts a receive.
#[unsafe(no_mangle)]
pub extern "C" fn VipPostRecv(vi: Handle, descriptor: *mut Descriptor, memory: u32) -> VipReturn {
    call("VipPostRecv", || post(vi, descriptor, memory, ViObject::post_receive))
}

#[inline]
fn done(
    vi: Handle,
    to: *mut *mut Descriptor,
    done: impl FnOnce(&mut ViObject) -> Option<*mut Descriptor>,
) -> Outcome {
    some(to)?;
    let found = {
        let mut vi = VIS.lock(vi).ok_or(VipReturn::INVALID_PARAMETER)?;
        vi.nic().progress.count_poll();
        done(&mut vi)
    };
    let descriptor = found.ok_or(VipReturn::NOT_DONE)?;
    // SAFETY: not NULL, so valid for writing, as C promises.
    unsafe { put(to, descriptor) }
}

/// Takes the oldest send, if it is over.
///
/// # Safety
/// `descriptor` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipSendDone(vi: Handle, descriptor: *mut *mut Descriptor) -> VipReturn {
    call("VipSendDone", || done(vi, descriptor, ViObject::send_done))
}

/// Takes the oldest receive, if it is over.
///
/// # Safety
/// `descriptor` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipRecvDone(vi: Handle, descriptor: *mut *mut Descriptor) -> VipReturn {
    call("VipRecvDone", || done(vi, descriptor, ViObject::receive_done))
}

fn wait(vi: Handle, timeout: Ulong, to: *mut *mut Descriptor, queue: Queue) -> Outcome {
    some(to)?;
    let (nic, history) = {
        let vi = VIS.lock(vi).ok_or(VipReturn::INVALID_PARAMETER)?;
        (vi.nic().clone(), vi.spin_history(queue))
    };
    let look = |_| {
        nic.progress.count_poll();
        let Some(mut vi) = VIS.lock(vi) else { return Some(Err(VipReturn::INVALID_PARAMETER)) };
        let found = match queue {
            Queue::Send => vi.send_done(),
            Queue::Receive => vi.receive_done(),
        };
        found.map(Ok)
    };
    let found = nic.progress.wait(&history, deadline(timeout), look).unwrap_or(Err(VipReturn::TIMEOUT));
    // SAFETY: not NULL, so valid for writing, as C promises.
    found.and_then(|descriptor| unsafe { put(to, descriptor) })
}

/// Waits for the oldest send.
///
/// # Safety
/// `descriptor` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipSendWait(
    vi: Handle,
    timeout: Ulong,
    descriptor: *mut *mut Descriptor,
) -> VipReturn {
    call("VipSendWait", || wait(vi, timeout, descriptor, Queue::Send))
}

/// Waits for the oldest receive.
///
/// # Safety
/// `descriptor` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipRecvWait(
    vi: Handle,
    timeout: Ulong,
    descriptor: *mut *mut Descriptor,
) -> VipReturn {
    call("VipRecvWait", || wait(vi, timeout, descriptor, Queue::Receive))
}

fn notify(vi: Handle, context: *mut c_void, handler: Option<NotifyHandler>, queue: Queue) -> Outcome {
    let handler = handler.ok_or(VipReturn::INVALID_PARAMETER)?;
    let mut vi = VIS.lock(vi).ok_or(VipReturn::INVALID_PARAMETER)?;
    if vi.has_cq(queue) {
        return Err(VipReturn::ERROR_RESOURCE); // completions go to the completion queue
    }
    match vi.set_notify(queue, Notify { handler, context }) {
        VipReturn::SUCCESS => Ok(()),
        code => Err(code),
    }
}

/// Calls `handler` with the next send that is over.
#[unsafe(no_mangle)]
pub extern "C" fn VipSendNotify(
    vi: Handle,
    context: *mut c_void,
    handler: Option<NotifyHandler>,
) -> VipReturn {
    call("VipSendNotify", || notify(vi, context, handler, Queue::Send))
}

/// Calls `handler` with the next receive that is over.
#[unsafe(no_mangle)]
pub extern "C" fn VipRecvNotify(
    vi: Handle,
    context: *mut c_void,
    handler: Option<NotifyHandler>,
) -> VipReturn {
    call("VipRecvNotify", || notify(vi, context, handler, Queue::Receive))
}
