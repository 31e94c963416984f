//! Shared receive queues.

use super::device::{configured, number_of};
use super::{null, number};
use crate::abi::{IBV_SRQ_LIMIT, ibv_pd, ibv_srq, ibv_srq_attr, ibv_srq_init_attr};
use crate::objects::{EventOf, Handle, Shared};
use crate::world::{with, with_acknowledgements};
use libc::c_int;
use std::collections::VecDeque;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_srq(domain: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: handle, and the caller's structure.
    let (context, domain_number, asked) = unsafe { ((*domain).context, (*domain).handle, *init) };
    // SAFETY: handle
    let (owner, device) = unsafe { (number_of(context), configured(context)) };
    let fits =
        |most: u32, pieces: u32| (1..=most).contains(&asked.attr.max_wr) && asked.attr.max_sge <= pieces;
    let Some(device) = device.filter(|device| fits(device.max_qp_wr, device.max_sge)) else {
        return null(libc::EINVAL);
    };
    let open = Box::into_raw(Box::new(ibv_srq {
        context,
        srq_context: asked.srq_context,
        pd: domain,
        handle: 0,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    }));
    let shared = Shared {
        context: owner,
        handle: Handle::of(open),
        domain: domain_number,
        max_wr: asked.attr.max_wr,
        max_sge: asked.attr.max_sge,
        limit: 0,
        receives: VecDeque::new(),
        receives_out: 0,
        users: 0,
        events_delivered: 0,
    };
    let made = with(|world| {
        if !world.alive(usize::from(device.index)) {
            return Err(libc::EIO);
        }
        world.domains.get_mut(domain_number).ok_or(libc::EINVAL)?.users += 1;
        Ok(world.shared.insert(shared))
    });
    match made {
        Ok(handle) => {
            // SAFETY: It was just made.
            unsafe { (*open).handle = handle };
            open
        }
        Err(error) => {
            // SAFETY: It was just made, and nobody else has it.
            drop(unsafe { Box::from_raw(open) });
            null(error)
        }
    }
}

/// Arms the limit; the queue's size stays.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(
    shared: *mut ibv_srq,
    attributes: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: handle, and the caller's structure.
    let (handle, given) = unsafe { ((*shared).handle, *attributes) };
    number(with(|world| {
        let found = world.shared.get_mut(handle).ok_or(libc::EINVAL)?;
        if mask != IBV_SRQ_LIMIT || given.srq_limit > found.max_wr {
            return Err(libc::EINVAL);
        }
        found.limit = given.srq_limit;
        Ok(())
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(shared: *mut ibv_srq, attributes: *mut ibv_srq_attr) -> c_int {
    // SAFETY: handle
    let handle = unsafe { (*shared).handle };
    let found = with(|world| {
        let found = world.shared.get(handle)?;
        Some(ibv_srq_attr { max_wr: found.max_wr, max_sge: found.max_sge, srq_limit: found.limit })
    });
    number(found.ok_or(libc::EINVAL).map(|found| {
        // SAFETY: The caller's structure.
        unsafe { attributes.write(found) }
    }))
}

/// Destroys a shared receive queue, and waits until all asynchronous events about it that programs have got
/// were acknowledged.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_srq(shared: *mut ibv_srq) -> c_int {
    // SAFETY: handle
    let handle = unsafe { (*shared).handle };
    let begun = with(|world| {
        let found = world.shared.get(handle).ok_or(libc::EINVAL)?;
        if found.users > 0 {
            return Err(libc::EBUSY);
        }
        let context = found.context;
        world.forget_events(context, EventOf::Shared(handle));
        Ok(())
    });
    if begun.is_err() {
        return number(begun);
    }
    let gone = with_acknowledgements(|world| {
        // SAFETY: handle; acknowledgements are counted under the same lock.
        let completed = unsafe { (*shared).events_completed };
        if world.shared.get(handle)?.events_delivered != completed {
            return None;
        }
        let found = world.shared.remove(handle)?;
        if let Some(domain) = world.domains.get_mut(found.domain) {
            domain.users -= 1;
        }
        Some(())
    });
    if gone.is_none() {
        eprintln!("udeck-mock-verbs: ibv_destroy_srq waited 10 s for events to be acknowledged");
        return number(Err(libc::EBUSY));
    }
    // SAFETY: It was made so, and the program gives it up.
    drop(unsafe { Box::from_raw(shared) });
    0
}
