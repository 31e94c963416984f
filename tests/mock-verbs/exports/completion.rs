//! Completion channels and completion queues.

use super::device::{configured, number_of};
use super::{minus_one, null, number};
use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq, ibv_wc};
use crate::config::config;
use crate::objects::{Armed, CompletionChannel, EventOf, Frees, Handle, Queue};
use crate::world::{World, acknowledged, semaphore, take, wait, with, with_acknowledgements};
use libc::{c_int, c_uint, c_void};
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A completion channel; it begins with the `ibv_comp_channel` that programs see.
#[repr(C)]
struct OpenCompletionChannel {
    ibv: ibv_comp_channel,
    number: u32,
}

/// A completion queue; it begins with the `ibv_cq` that programs see.
#[repr(C)]
struct OpenQueue {
    ibv: ibv_cq,
    /// Number of completions: an empty queue is polled without the lock.
    ready: Arc<AtomicUsize>,
}

unsafe fn channel_number(channel: *mut ibv_comp_channel) -> u32 {
    // SAFETY: handle; it is the beginning of ours.
    unsafe { (*channel.cast::<OpenCompletionChannel>()).number }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    // SAFETY: handle
    let owner = unsafe { number_of(context) };
    let Ok(fd) = semaphore() else { return null(libc::EMFILE) };
    let raw = fd.as_raw_fd();
    let number = with(|world| {
        world.channels.insert(CompletionChannel { context: owner, fd, events: VecDeque::new(), users: 0 })
    });
    let ibv = ibv_comp_channel { context, fd: raw, refcnt: 0 };
    Box::into_raw(Box::new(OpenCompletionChannel { ibv, number })).cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: handle
    let handle = unsafe { channel_number(channel) };
    let result = with(|world| match world.channels.get(handle) {
        None => Err(libc::EINVAL),
        Some(found) if found.users > 0 => Err(libc::EBUSY),
        Some(_) => {
            world.channels.remove(handle);
            Ok(())
        }
    });
    if result.is_ok() {
        // SAFETY: It was made so, and the program gives it up.
        drop(unsafe { Box::from_raw(channel.cast::<OpenCompletionChannel>()) });
    }
    number(result)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    entries: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: handle
    let (owner, device) = unsafe { (number_of(context), configured(context)) };
    let Some(device) = device else { return null(libc::EINVAL) };
    if entries < 1 || entries > device.max_cqe as c_int || vector != 0 {
        return null(libc::EINVAL);
    }
    // SAFETY: handle
    let reports_to = (!channel.is_null()).then(|| unsafe { channel_number(channel) });
    let ready = Arc::new(AtomicUsize::new(0));
    let ibv = ibv_cq {
        context,
        channel,
        cq_context,
        handle: 0,
        cqe: entries,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        comp_events_completed: 0,
        async_events_completed: 0,
    };
    let open = Box::into_raw(Box::new(OpenQueue { ibv, ready: ready.clone() }));
    let queue = Queue {
        context: owner,
        handle: Handle::of(open),
        capacity: entries as usize,
        entries: VecDeque::new(),
        ready,
        channel: reports_to,
        armed: Armed::No,
        users: 0,
        events_delivered: 0,
        async_events_delivered: 0,
        overrun: false,
        failed: false,
    };
    let made = with(|world| {
        if !world.alive(usize::from(device.index)) {
            return None;
        }
        if let Some(channel) = reports_to {
            world.channels.get_mut(channel).filter(|channel| channel.context == owner)?.users += 1;
        }
        Some(world.queues.insert(queue))
    });
    let Some(handle) = made else {
        // SAFETY: It was just made, and nobody else has it.
        drop(unsafe { Box::from_raw(open) });
        return null(libc::EINVAL);
    };
    // SAFETY: It was just made, and nobody else has it.
    unsafe { (*open).ibv.handle = handle };
    open.cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_resize_cq(queue: *mut ibv_cq, entries: c_int) -> c_int {
    // SAFETY: handle
    let (context, handle) = unsafe { ((*queue).context, (*queue).handle) };
    // SAFETY: handle
    let most = unsafe { configured(context) }.map_or(0, |device| device.max_cqe as c_int);
    let result = with(|world| {
        let found = world.queues.get_mut(handle).ok_or(libc::EINVAL)?;
        if entries < 1 || entries > most || (entries as usize) < found.entries.len() {
            return Err(libc::EINVAL);
        }
        found.capacity = entries as usize;
        Ok(())
    });
    if result.is_ok() {
        // SAFETY: handle
        unsafe { (*queue).cqe = entries };
    }
    number(result)
}

/// Destroys a completion queue, and waits until all events about it that programs have got were acknowledged.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(queue: *mut ibv_cq) -> c_int {
    // SAFETY: handle
    let handle = unsafe { (*queue).handle };
    let begun = with(|world| {
        let found = world.queues.get(handle).ok_or(libc::EINVAL)?;
        if found.users > 0 {
            return Err(libc::EBUSY);
        }
        let context = found.context;
        forget_completion_events(world, handle);
        world.forget_events(context, EventOf::Queue(handle));
        Ok(())
    });
    if begun.is_err() {
        return number(begun);
    }
    let gone = with_acknowledgements(|world| {
        let found = world.queues.get(handle)?;
        // SAFETY: handle; acknowledgements are counted under the same lock.
        let settled = unsafe {
            (*queue).comp_events_completed == found.events_delivered
                && (*queue).async_events_completed == found.async_events_delivered
        };
        if !settled {
            return None;
        }
        let found = world.queues.remove(handle)?;
        if let Some(channel) = found.channel.and_then(|channel| world.channels.get_mut(channel)) {
            channel.users -= 1;
        }
        Some(())
    });
    if gone.is_none() {
        eprintln!("udeck-mock-verbs: ibv_destroy_cq waited 10 s for events to be acknowledged");
        return number(Err(libc::EBUSY));
    }
    // SAFETY: It was made so, and the program gives it up.
    drop(unsafe { Box::from_raw(queue.cast::<OpenQueue>()) });
    0
}

fn forget_completion_events(world: &mut World, queue: u32) {
    let Some(channel) = world.queues.get(queue).and_then(|found| found.channel) else { return };
    let Some(channel) = world.channels.get_mut(channel) else { return };
    let before = channel.events.len();
    channel.events.retain(|of| *of != queue);
    (channel.events.len()..before).for_each(|_| take(&channel.fd));
}

/// Implements `ops.poll_cq`.
pub unsafe extern "C" fn poll_cq(queue: *mut ibv_cq, most: c_int, completions: *mut ibv_wc) -> c_int {
    let open = queue.cast::<OpenQueue>();
    // SAFETY: handle; it is the beginning of ours.
    let (handle, ready) = unsafe { ((*open).ibv.handle, &(*open).ready) };
    if config().endless {
        // SAFETY: The caller has room for `most`.
        (0..most as usize).for_each(|at| unsafe { completions.add(at).write(ibv_wc::default()) });
        return most;
    }
    if ready.load(Ordering::Acquire) == 0 {
        return 0;
    }
    with(|world| {
        let mut polled = 0;
        while polled < most {
            let Some(found) = world.queues.get_mut(handle) else { return -libc::EINVAL };
            if found.failed {
                return -libc::EIO;
            }
            let Some(entry) = found.entries.pop_front() else { break };
            found.ready.store(found.entries.len(), Ordering::Release);
            // SAFETY: The caller has room for `most`.
            unsafe { completions.add(polled as usize).write(entry.wc) };
            free(world, entry.frees);
            polled += 1;
        }
        polled
    })
}

fn free(world: &mut World, frees: Frees) {
    match frees {
        Frees::Send { pair, upto } => {
            if let Some(pair) = world.pairs.get_mut(pair) {
                pair.retired = pair.retired.max(upto);
            }
        }
        Frees::Receive { pair } => {
            if let Some(pair) = world.pairs.get_mut(pair) {
                pair.receives_out -= 1;
            }
        }
        Frees::Shared { shared, .. } => {
            if let Some(shared) = world.shared.get_mut(shared) {
                shared.receives_out -= 1;
            }
        }
    }
}

/// Implements `ops.req_notify_cq`: reports later completions, not those that are already there, which is the
/// harder reading for programs.
pub unsafe extern "C" fn req_notify_cq(queue: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: handle
    let handle = unsafe { (*queue).handle };
    with(|world| {
        let Some(found) = world.queues.get_mut(handle) else { return libc::EINVAL };
        found.armed = match found.armed {
            Armed::Any => Armed::Any,
            _ if solicited_only != 0 => Armed::Solicited,
            _ => Armed::Any,
        };
        0
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    queue: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: handle
    let (handle, fd) = unsafe { (channel_number(channel), (*channel).fd) };
    loop {
        if let Err(problem) = wait(fd) {
            return minus_one(Err(problem.raw_os_error().unwrap_or(libc::EIO)));
        }
        let found = with(|world| {
            let number = world.channels.get_mut(handle)?.events.pop_front()?;
            let found = world.queues.get_mut(number)?;
            found.events_delivered += 1;
            Some(found.handle.pointer::<ibv_cq>())
        });
        // None: the event's queue was destroyed in between.
        if let Some(found) = found {
            // SAFETY: The caller's places, and a queue that lives until this event is acknowledged.
            unsafe {
                queue.write(found);
                cq_context.write((*found).cq_context);
            }
            return 0;
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(queue: *mut ibv_cq, count: c_uint) {
    // SAFETY: handle; under the lock that readers take.
    with(|_| unsafe { (*queue).comp_events_completed += count });
    acknowledged();
}
