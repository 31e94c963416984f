//! Asynchronous events: how programs get and acknowledge them.

use super::device::number_of;
use super::minus_one;
use crate::abi::{
    IBV_EVENT_COMM_EST, IBV_EVENT_CQ_ERR, IBV_EVENT_PATH_MIG, IBV_EVENT_PATH_MIG_ERR,
    IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_QP_REQ_ERR,
    IBV_EVENT_SQ_DRAINED, IBV_EVENT_SRQ_ERR, IBV_EVENT_SRQ_LIMIT_REACHED, ibv_async_element, ibv_async_event,
    ibv_context,
};
use crate::objects::EventOf;
use crate::world::{World, acknowledged, wait, with};
use libc::c_int;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    // SAFETY: handle
    let (handle, fd) = unsafe { (number_of(context), (*context).async_fd) };
    loop {
        if let Err(problem) = wait(fd) {
            return minus_one(Err(problem.raw_os_error().unwrap_or(libc::EIO)));
        }
        let found = with(|world| {
            let event = world.contexts.get_mut(handle)?.events.pop_front()?;
            count(world, event.of);
            let element = match event.about {
                Some(object) => ibv_async_element { qp: object.pointer() },
                None => ibv_async_element { port_num: 1 },
            };
            Some(ibv_async_event { element, event_type: event.what })
        });
        // None: the object of the event was destroyed in between.
        if let Some(found) = found {
            // SAFETY: The caller's structure.
            unsafe { event.write(found) };
            return 0;
        }
    }
}

fn count(world: &mut World, of: EventOf) {
    let count = match of {
        EventOf::Pair(pair) => world.pairs.get_mut(pair).map(|pair| &mut pair.events_delivered),
        EventOf::Queue(queue) => world.queues.get_mut(queue).map(|queue| &mut queue.async_events_delivered),
        EventOf::Shared(shared) => world.shared.get_mut(shared).map(|shared| &mut shared.events_delivered),
        EventOf::Device => None,
    };
    count.into_iter().for_each(|count| *count += 1);
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: One that `ibv_get_async_event` gave out; what it is about lives until now. Under the lock that readers take.
    with(|_| unsafe {
        let element = (*event).element;
        match (*event).event_type {
            IBV_EVENT_CQ_ERR => (*element.cq).async_events_completed += 1,
            IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_COMM_EST
            | IBV_EVENT_SQ_DRAINED
            | IBV_EVENT_PATH_MIG
            | IBV_EVENT_PATH_MIG_ERR
            | IBV_EVENT_QP_LAST_WQE_REACHED => (*element.qp).events_completed += 1,
            IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => (*element.srq).events_completed += 1,
            _ => {}
        }
    });
    acknowledged();
}
