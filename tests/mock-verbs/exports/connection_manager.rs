//! Functions of librdmacm that a program needs if it makes its queue pairs itself. A handle is followed by its number.

use super::device::{self, ibv_open_device};
use super::{minus_one, null};
use crate::abi::*;
use crate::config::{CmBehavior, config};
use crate::connection_manager::{
    self, CmChannel, CmEvent, ConnectionManager, Id, Stage, acknowledge, device as configured, lock, psn,
};
use crate::engine::lid;
use crate::objects::Handle;
use crate::world::{self, semaphore};
use libc::{c_int, c_void, sockaddr};
use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};

#[repr(C)]
struct OpenCmChannel {
    channel: rdma_event_channel,
    number: u32,
}

#[repr(C)]
struct OpenId {
    id: rdma_cm_id,
    number: u32,
}

#[repr(C)]
struct OpenEvent {
    event: rdma_cm_event,
    of: u32,
    private: [u8; 256],
}

/// # Safety
/// An identifier that lives.
unsafe fn number_of(id: *mut rdma_cm_id) -> u32 {
    // SAFETY: handle; it is the beginning of ours.
    unsafe { (*id.cast::<OpenId>()).number }
}

/// Context of a device, which the library opens once for itself, as long as the process lives.
fn opened(index: usize) -> *mut ibv_context {
    static OPENED: Mutex<Option<HashMap<usize, usize>>> = Mutex::new(None);
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let place = opened.get_or_insert_default().entry(index).or_insert_with(|| {
        // SAFETY: a device of the list.
        unsafe { ibv_open_device(device::handle(index)) }.addr()
    });
    std::ptr::with_exposed_provenance_mut(*place)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    if config().devices.as_ref().is_none_or(Vec::is_empty) {
        return null(libc::ENODEV);
    }
    let Ok(fd) = semaphore() else { return null(libc::EMFILE) };
    let channel = rdma_event_channel { fd: fd.as_raw_fd() };
    let open = Box::into_raw(Box::new(OpenCmChannel { channel, number: 0 }));
    let made = CmChannel { fd, events: VecDeque::new() };
    let number = lock().channels.insert(made);
    // SAFETY: It was just made.
    unsafe { (*open).number = number };
    open.cast()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: It was made so, and the program gives it up.
    let open = unsafe { Box::from_raw(channel.cast::<OpenCmChannel>()) };
    lock().channels.remove(open.number);
}

fn handle(channel: *mut rdma_event_channel, context: *mut c_void, number: u32) -> *mut OpenId {
    // SAFETY: Numbers and pointers, for which zeros are nothing.
    let empty: rdma_cm_id = unsafe { std::mem::zeroed() };
    let id = rdma_cm_id { channel, context, ps: RDMA_PS_TCP, qp_type: IBV_QPT_RC, ..empty };
    Box::into_raw(Box::new(OpenId { id, number }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: u32,
) -> c_int {
    if ps != RDMA_PS_TCP || channel.is_null() {
        return minus_one(Err(libc::EOPNOTSUPP));
    }
    // SAFETY: handle
    let of = unsafe { (*channel.cast::<OpenCmChannel>()).number };
    let mut manager = lock();
    let number = manager.ids.insert(Id::new(of, context.addr()));
    let open = handle(channel, context, number);
    manager.ids.get_mut(number).into_iter().for_each(|id| id.handle = Some(Handle::of(open)));
    // SAFETY: The caller's.
    unsafe { id.write(open.cast()) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: handle
    let number = unsafe { number_of(id) };
    let mut manager = lock();
    manager.leave(number);
    manager.forget(number);
    drop(manager);
    if !connection_manager::wait_for_acknowledgements(number) {
        eprintln!("udeck-mock-verbs: rdma_destroy_id waited 10 s for events to be acknowledged");
        return minus_one(Err(libc::EBUSY));
    }
    lock().ids.remove(number);
    // SAFETY: It was made so, and the program gives it up.
    drop(unsafe { Box::from_raw(id.cast::<OpenId>()) });
    0
}

/// # Safety
/// An address of the family that it names, or null.
unsafe fn address(at: *const sockaddr) -> Option<SocketAddr> {
    // SAFETY: The caller's contract.
    unsafe {
        match c_int::from(at.as_ref()?.sa_family) {
            libc::AF_INET => {
                let v4 = &*at.cast::<libc::sockaddr_in>();
                let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddr::from((ip, u16::from_be(v4.sin_port))))
            }
            libc::AF_INET6 => {
                let v6 = &*at.cast::<libc::sockaddr_in6>();
                Some(SocketAddr::from((Ipv6Addr::from(v6.sin6_addr.s6_addr), u16::from_be(v6.sin6_port))))
            }
            _ => None,
        }
    }
}

/// Binds `number` to the device with this address.
fn bind(manager: &mut ConnectionManager, number: u32, address: Option<SocketAddr>) -> Result<usize, c_int> {
    let mut address = address.ok_or(libc::EINVAL)?;
    let device = connection_manager::device_at(&address).ok_or(libc::ENODEV)?;
    if address.port() == 0 {
        address.set_port(manager.free_port());
    } else if manager.ids.iter().any(|(_, id)| id.address == Some(address)) {
        return Err(libc::EADDRINUSE);
    }
    let id = manager.ids.get_mut(number).filter(|id| id.stage == Stage::Fresh).ok_or(libc::EINVAL)?;
    (id.device, id.address, id.stage) = (Some(device), Some(address), Stage::Bound);
    Ok(device)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_bind_addr(id: *mut rdma_cm_id, at: *mut sockaddr) -> c_int {
    // SAFETY: handle, and the caller's address.
    let (number, at) = unsafe { (number_of(id), address(at)) };
    let bound = bind(&mut lock(), number, at);
    minus_one(bound.map(|device| {
        // SAFETY: handle
        unsafe { ((*id).verbs, (*id).port_num) = (opened(device), 1) };
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_listen(id: *mut rdma_cm_id, _backlog: c_int) -> c_int {
    // SAFETY: handle
    let number = unsafe { number_of(id) };
    let mut manager = lock();
    let found = manager.ids.get_mut(number).filter(|id| id.stage == Stage::Bound);
    minus_one(found.map(|id| id.stage = Stage::Listening).ok_or(libc::EINVAL))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: handle
    let number = unsafe { number_of(id) };
    lock().ids.get(number).and_then(|id| id.address).map_or(0, |address| address.port()).to_be()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_resolve_addr(
    id: *mut rdma_cm_id,
    from: *mut sockaddr,
    to: *mut sockaddr,
    _millis: c_int,
) -> c_int {
    // SAFETY: handle, and the caller's addresses.
    let (number, from, to) = unsafe { (number_of(id), address(from), address(to)) };
    let mut manager = lock();
    let bound = bind(&mut manager, number, from).and_then(|device| Ok((device, to.ok_or(libc::EINVAL)?)));
    minus_one(bound.map(|(device, to)| {
        let fails = configured(device).is_some_and(|device| device.cm == CmBehavior::Address);
        if fails || connection_manager::device_at(&to).is_none() {
            return manager.tell(number, RDMA_CM_EVENT_ADDR_ERROR, -libc::ENODEV);
        }
        // SAFETY: handle
        unsafe { ((*id).verbs, (*id).port_num) = (opened(device), 1) };
        if let Some(id) = manager.ids.get_mut(number) {
            (id.to, id.stage) = (Some(to), Stage::Addressed);
        }
        manager.tell(number, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_resolve_route(id: *mut rdma_cm_id, _millis: c_int) -> c_int {
    // SAFETY: handle
    let number = unsafe { number_of(id) };
    let mut manager = lock();
    let Some(found) = manager.ids.get_mut(number).filter(|id| id.stage == Stage::Addressed) else {
        return minus_one(Err(libc::EINVAL));
    };
    if found.device.and_then(configured).is_some_and(|device| device.cm == CmBehavior::Route) {
        manager.tell(number, RDMA_CM_EVENT_ROUTE_ERROR, -libc::ETIMEDOUT);
        return 0;
    }
    found.stage = Stage::Routed;
    manager.tell(number, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: handle, and the caller's structure.
    let (number, param) = unsafe { (number_of(id), *param) };
    let len = usize::from(param.private_data_len);
    if len > 56 {
        return minus_one(Err(libc::EINVAL));
    }
    let mut private = vec![0; len];
    if len > 0 {
        // SAFETY: The caller's bytes.
        unsafe { std::ptr::copy_nonoverlapping(param.private_data.cast(), private.as_mut_ptr(), len) };
    }
    let depths = (param.responder_resources, param.initiator_depth);
    minus_one(lock().connect(number, param.qp_num, depths, &private))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    // SAFETY: handle, and the caller's structure.
    let (number, param) = unsafe { (number_of(id), *param) };
    let depths = (param.responder_resources, param.initiator_depth);
    minus_one(lock().accept(number, param.qp_num, depths))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, _private: *const c_void, _len: u8) -> c_int {
    // SAFETY: handle
    let number = unsafe { number_of(id) };
    lock().leave(number);
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: handle
    let number = unsafe { number_of(id) };
    minus_one(lock().establish(number))
}

/// Returns attributes for the state, with the kernel's knowledge of the path.
#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut rdma_cm_id,
    attributes: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    // SAFETY: handle, and the caller's structure.
    let (number, state) = unsafe { (number_of(id), (*attributes).qp_state) };
    let found = attributes_for(&lock(), number, state);
    minus_one(found.map(|(found, bits)| {
        // SAFETY: The caller's.
        unsafe {
            attributes.write(found);
            mask.write(bits);
        }
    }))
}

fn attributes_for(
    manager: &ConnectionManager,
    number: u32,
    state: u32,
) -> Result<(ibv_qp_attr, c_int), c_int> {
    let id = manager.ids.get(number).ok_or(libc::EINVAL)?;
    let device = id.device.and_then(configured).ok_or(libc::EINVAL)?;
    let mut attr = ibv_qp_attr {
        qp_state: state,
        port_num: 1,
        qp_access_flags: IBV_ACCESS_REMOTE_WRITE,
        ..Default::default()
    };
    if device.iwarp {
        let bits = IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PORT;
        return Ok((attr, if state == IBV_QPS_RTS { IBV_QP_PORT } else { bits }));
    }
    if state == IBV_QPS_INIT {
        return Ok((attr, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT));
    }
    // There is no path before the other end is known.
    let peer = id.peer.and_then(|peer| manager.ids.get(peer)).ok_or(libc::EINVAL)?;
    let known = matches!(id.stage, Stage::Asked | Stage::Answered | Stage::Connected);
    let to = peer.device.filter(|_| known).and_then(|at| Some((at, configured(at)?))).ok_or(libc::EINVAL)?;
    if state == IBV_QPS_RTS {
        (attr.sq_psn, attr.max_rd_atomic) = (psn(number), id.depths.1);
        (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (14, 7, 7);
        let bits = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN;
        return Ok((attr, IBV_QP_STATE | bits | IBV_QP_MAX_QP_RD_ATOMIC));
    }
    let infiniband = device.link == IBV_LINK_LAYER_INFINIBAND;
    attr.ah_attr.port_num = 1;
    if infiniband {
        attr.ah_attr.dlid = lid(to.0);
    } else {
        // The last entry of the table has the device's address in the newest version.
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.dgid = to.1.gids.last().map(|gid| gid.0).unwrap_or_default();
        (attr.ah_attr.grh.sgid_index, attr.ah_attr.grh.hop_limit) = (device.gids.len() as u8 - 1, 64);
    }
    (attr.path_mtu, attr.dest_qp_num) = (device.mtu_number().min(to.1.mtu_number()), peer.pair);
    let there = id.peer.unwrap_or_default();
    (attr.rq_psn, attr.max_dest_rd_atomic, attr.min_rnr_timer) = (psn(there), id.depths.0, 0);
    let bits = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    Ok((attr, IBV_QP_STATE | bits | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_get_cm_event(
    channel: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    // SAFETY: handle
    let (number, fd) = unsafe { ((*channel.cast::<OpenCmChannel>()).number, (*channel).fd) };
    loop {
        if let Err(problem) = world::wait(fd) {
            return minus_one(Err(problem.raw_os_error().unwrap_or(libc::EIO)));
        }
        let mut manager = lock();
        let Some(next) = manager.channels.get_mut(number).and_then(|channel| channel.events.pop_front())
        else {
            continue;
        };
        let Some(of) = manager.ids.get_mut(next.of) else { continue };
        of.events_delivered += 1;
        let mut id: *mut rdma_cm_id = of.handle.map_or(std::ptr::null_mut(), Handle::pointer);
        let listener = id;
        if let Some(new) = next.new.and_then(|new| manager.ids.get_mut(new)) {
            let context = std::ptr::without_provenance_mut(new.context);
            let open = handle(channel, context, next.new.unwrap_or_default());
            new.handle = Some(Handle::of(open));
            let device = new.device;
            drop(manager);
            id = open.cast();
            // SAFETY: It was just made.
            unsafe { ((*id).verbs, (*id).port_num) = (device.map_or(std::ptr::null_mut(), opened), 1) };
        }
        // SAFETY: The caller's pointer.
        unsafe { event.write(cm_event(next, id, listener)) };
        return 0;
    }
}

fn cm_event(next: CmEvent, id: *mut rdma_cm_id, listener: *mut rdma_cm_id) -> *mut rdma_cm_event {
    // SAFETY: Numbers and pointers, for which zeros are nothing.
    let mut open: Box<OpenEvent> = Box::new(unsafe { std::mem::zeroed() });
    let len = next.private.len().min(open.private.len());
    open.private[..len].copy_from_slice(&next.private[..len]);
    open.of = next.of;
    let listen_id = if next.new.is_some() { listener } else { std::ptr::null_mut() };
    // SAFETY: As above.
    let empty: rdma_conn_param = unsafe { std::mem::zeroed() };
    let open = Box::into_raw(open);
    // SAFETY: It was just made.
    unsafe {
        let conn = rdma_conn_param {
            private_data: (&raw const (*open).private).cast(),
            private_data_len: len as u8,
            responder_resources: next.depths.0,
            initiator_depth: next.depths.1,
            ..empty
        };
        let (event, status) = (next.kind, next.status);
        (*open).event = rdma_cm_event { id, listen_id, event, status, param: rdma_param { conn } };
        &raw mut (*open).event
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    // SAFETY: One that `rdma_get_cm_event` gave out, once.
    let open = unsafe { Box::from_raw(event.cast::<OpenEvent>()) };
    acknowledge(open.of);
    0
}
