//! Functions that no libibverbs has: they cause failures on demand, and give a view inside.

use crate::abi::{
    IBV_EVENT_CLIENT_REREGISTER, IBV_EVENT_COMM_EST, IBV_EVENT_CQ_ERR, IBV_EVENT_DEVICE_FATAL,
    IBV_EVENT_GID_CHANGE, IBV_EVENT_LID_CHANGE, IBV_EVENT_PKEY_CHANGE, IBV_EVENT_PORT_ACTIVE,
    IBV_EVENT_PORT_ERR, IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR,
    IBV_EVENT_SM_CHANGE, IBV_PORT_ACTIVE, IBV_PORT_DOWN,
};
use crate::objects::{Obstacle, State};
use crate::world::{Loss, World, with};
use libc::{c_int, c_uint, c_void};

/// Counts of this process's objects and of the work done. A program that has cleaned up has no objects.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "a field counts what its name says")]
pub struct StandinCounters {
    pub contexts: u64,
    pub domains: u64,
    pub regions: u64,
    pub channels: u64,
    pub queues: u64,
    pub pairs: u64,
    pub shared: u64,
    /// Number of registered bytes.
    pub registered: u64,
    /// Number of send requests that were carried out, and of bytes that they moved.
    pub requests: u64,
    pub bytes: u64,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn standin_counters(counters: *mut StandinCounters) {
    let now = with(|world| StandinCounters {
        contexts: world.contexts.live as u64,
        domains: world.domains.live as u64,
        regions: world.regions.live as u64,
        channels: world.channels.live as u64,
        queues: world.queues.live as u64,
        pairs: world.pairs.live as u64,
        shared: world.shared.live as u64,
        registered: world.registered,
        requests: world.requests,
        bytes: world.bytes,
    });
    // SAFETY: The caller's structure.
    unsafe { counters.write(now) };
}

/// Causes `event` (`IBV_EVENT_…`), with its consequences. To queue pair `number`: `QP_FATAL`, `QP_REQ_ERR`, `QP_ACCESS_ERR` (the
/// pair fails), `COMM_EST` (no consequences). To the device with this index: `DEVICE_FATAL` (nothing works or completes any
/// more), `CQ_ERR` (each of its completion queues fails: polling it is an error), `PORT_ERR` (packets are lost), `PORT_ACTIVE`
/// (ends it), `LID_CHANGE`, `PKEY_CHANGE`, `SM_CHANGE`, `GID_CHANGE`, `CLIENT_REREGISTER` (these are only reported). Returns 0 or
/// an error's number.
#[unsafe(no_mangle)]
extern "C" fn standin_inject(event: c_uint, number: u32) -> c_int {
    with(|world| match event {
        IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR | IBV_EVENT_COMM_EST => {
            pair_event(world, event, number)
        }
        IBV_EVENT_DEVICE_FATAL
        | IBV_EVENT_CQ_ERR
        | IBV_EVENT_PORT_ERR
        | IBV_EVENT_PORT_ACTIVE
        | IBV_EVENT_LID_CHANGE
        | IBV_EVENT_PKEY_CHANGE
        | IBV_EVENT_SM_CHANGE
        | IBV_EVENT_GID_CHANGE
        | IBV_EVENT_CLIENT_REREGISTER => device_event(world, event, number as usize),
        _ => libc::EINVAL,
    })
}

/// Loses, from now on, `per_mille` of a thousand messages of unreliable pairs, chosen at random from `seed`, as
/// `STANDIN_LOSS` does from the start. Returns the number of lost messages since the last call.
#[unsafe(no_mangle)]
extern "C" fn standin_lose(per_mille: u32, seed: u64) -> u64 {
    with(|world| std::mem::replace(&mut world.loss, Loss::new(per_mille, seed)).lost)
}

fn pair_event(world: &mut World, event: u32, number: u32) -> c_int {
    match world.pairs.get(number) {
        None => return libc::ENOENT,
        Some(_) if event == IBV_EVENT_COMM_EST => world.tell_pair(number, event),
        Some(pair) if pair.state == State::Reset => return libc::EINVAL,
        Some(_) => world.fail_pair(number, Some(event)),
    }
    0
}

fn device_event(world: &mut World, event: u32, device: usize) -> c_int {
    let Some(port) = world.ports.get_mut(device) else { return libc::ENODEV };
    match event {
        IBV_EVENT_CQ_ERR => {
            world.fail_queues(device);
            return 0;
        }
        IBV_EVENT_DEVICE_FATAL => port.alive = false,
        IBV_EVENT_PORT_ERR => port.state = IBV_PORT_DOWN,
        IBV_EVENT_PORT_ACTIVE => port.state = IBV_PORT_ACTIVE,
        _ => {}
    }
    world.tell_device(device, event);
    world.reconsider(|what| what == Obstacle::Silence);
    0
}

/// Keeps this library in memory for good: its engine's thread runs until the process ends.
pub fn stay_loaded() {
    // SAFETY: All zeros are an empty answer.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    let here = standin_inject as *const c_void;
    // SAFETY: An address in this library, and a structure of ours.
    if unsafe { libc::dladdr(here, &mut found) } != 0 && !found.dli_fname.is_null() {
        // SAFETY: A name of the loader's. What it returns is not needed: it is never closed.
        unsafe { libc::dlopen(found.dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE) };
    }
}
