//! Queue pairs: made, moved through their states, queried, destroyed.

use super::device::{configured, number_of};
use super::{null, number};
use crate::abi::*;
use crate::config::Device;
use crate::connection_manager;
use crate::engine::corrupt_sender;
use crate::objects::{EventOf, Frees, Handle, Kind, Obstacle, Pair, State};
use crate::transitions::{allowed, allowed_by_iwarp, state, state_number};
use crate::world::{World, with, with_acknowledgements};
use libc::c_int;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(domain: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: handle, and the caller's structure.
    let (context, domain_number, asked) = unsafe { ((*domain).context, (*domain).handle, *init) };
    // SAFETY: handle
    let (owner, device) = unsafe { (number_of(context), configured(context)) };
    let kind = match asked.qp_type {
        IBV_QPT_RC => Kind::Reliable,
        IBV_QPT_UC if !device.is_some_and(|device| device.iwarp) => Kind::Unreliable,
        _ => return null(libc::EOPNOTSUPP),
    };
    let Some(device) = device.filter(|device| fits(device, &asked)) else { return null(libc::EINVAL) };
    if kind == Kind::Unreliable && !device.uc {
        return null(libc::EOPNOTSUPP);
    }
    let open = Box::into_raw(Box::new(ibv_qp {
        context,
        qp_context: asked.qp_context,
        pd: domain,
        send_cq: asked.send_cq,
        recv_cq: asked.recv_cq,
        srq: asked.srq,
        handle: 0,
        qp_num: 0,
        state: IBV_QPS_RESET,
        qp_type: asked.qp_type,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    }));
    // SAFETY: handles
    let (send_queue, receive_queue, shared) = unsafe {
        let shared = (!asked.srq.is_null()).then(|| (*asked.srq).handle);
        ((*asked.send_cq).handle, (*asked.recv_cq).handle, shared)
    };
    let mut cap = asked.cap;
    if shared.is_some() {
        (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
    }
    let pair = Pair {
        context: owner,
        device: usize::from(device.index),
        handle: Handle::of(open),
        kind,
        domain: domain_number,
        send_queue,
        receive_queue,
        shared,
        cap,
        all_signalled: asked.sq_sig_all != 0,
        state: State::Reset,
        attributes: ibv_qp_attr::default(),
        pending: VecDeque::new(),
        unacknowledged: VecDeque::new(),
        posted: 0,
        retired: 0,
        receives: VecDeque::new(),
        receives_out: 0,
        scheduled: false,
        waiting: None,
        sends_from: 0,
        expects: 0,
        flushed: false,
        established: false,
        listens: false,
        events_delivered: 0,
        corrupts_sends: corrupt_sender::is_meant(),
    };
    match with(|world| enlist(world, pair, device)) {
        // SAFETY: It was just made, and the caller's structure.
        Ok(made) => unsafe {
            ((*open).qp_num, (*open).handle) = (made, made);
            (*init).cap = cap;
            open
        },
        Err(error) => {
            // SAFETY: It was just made, and nobody else has it.
            drop(unsafe { Box::from_raw(open) });
            null(error)
        }
    }
}

fn fits(device: &Device, asked: &ibv_qp_init_attr) -> bool {
    let cap = &asked.cap;
    cap.max_send_wr <= device.max_qp_wr
        && cap.max_recv_wr <= device.max_qp_wr
        && cap.max_send_sge <= device.max_sge
        && cap.max_recv_sge <= device.max_sge
        && cap.max_inline_data <= device.max_inline
        && !asked.send_cq.is_null()
        && !asked.recv_cq.is_null()
}

/// Adds the pair to the world, and counts it as a user of its objects.
fn enlist(world: &mut World, pair: Pair, device: &Device) -> Result<u32, c_int> {
    if !world.alive(pair.device) {
        return Err(libc::EIO);
    }
    if world.pairs.live >= device.max_qp as usize {
        return Err(libc::ENOMEM);
    }
    let context = pair.context;
    let here = |owner: Option<u32>| if owner == Some(context) { Ok(()) } else { Err(libc::EINVAL) };
    here(world.domains.get(pair.domain).map(|domain| domain.context))?;
    here(world.queues.get(pair.send_queue).map(|queue| queue.context))?;
    here(world.queues.get(pair.receive_queue).map(|queue| queue.context))?;
    if let Some(shared) = pair.shared {
        here(world.shared.get(shared).map(|shared| shared.context))?;
    }
    count_users(world, &pair, 1);
    Ok(world.pairs.insert(pair))
}

fn count_users(world: &mut World, pair: &Pair, change: i32) {
    let add = |users: &mut u32| *users = users.wrapping_add_signed(change);
    for queue in [pair.send_queue, pair.receive_queue] {
        world.queues.get_mut(queue).into_iter().for_each(|queue| add(&mut queue.users));
    }
    world.domains.get_mut(pair.domain).into_iter().for_each(|domain| add(&mut domain.users));
    let shared = pair.shared.and_then(|shared| world.shared.get_mut(shared));
    shared.into_iter().for_each(|shared| add(&mut shared.users));
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_qp(pair: *mut ibv_qp, attributes: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: handles, and the caller's structure.
    let (qp, given, device) = unsafe { ((*pair).qp_num, *attributes, configured((*pair).context)) };
    let result = with(|world| modify(world, qp, &given, mask, device.ok_or(libc::EINVAL)?));
    if let Ok(state) = result {
        // SAFETY: handle; programs read it in the thread that modifies.
        unsafe { (*pair).state = state_number(state) };
    }
    number(result.map(|_| ()))
}

fn modify(
    world: &mut World,
    number: u32,
    given: &ibv_qp_attr,
    mask: i32,
    device: &Device,
) -> Result<State, c_int> {
    if !world.alive(usize::from(device.index)) {
        return Err(libc::EIO);
    }
    let pair = world.pairs.get_mut(number).ok_or(libc::EINVAL)?;
    let from = if mask & IBV_QP_CUR_STATE != 0 {
        state(given.cur_qp_state).ok_or(libc::EINVAL)?
    } else {
        pair.state
    };
    let to = if mask & IBV_QP_STATE != 0 { state(given.qp_state).ok_or(libc::EINVAL)? } else { from };
    let legal = from == pair.state
        && if device.iwarp {
            allowed_by_iwarp(from, to, mask & !IBV_QP_STATE)
        } else {
            allowed(pair.kind, from, to, mask & !IBV_QP_STATE)
        };
    if !legal || !sensible(given, mask, device) {
        return Err(libc::EINVAL);
    }
    take_over(pair, given, mask);
    // iWARP has no such state: the pair waits for the connection.
    let to = if device.iwarp && to == State::ReadyToReceive { State::Init } else { to };
    pair.state = to;
    match to {
        State::Reset => reset(world, number),
        State::Error => world.fail_pair(number, None),
        _ => world.schedule(number),
    }
    // Pairs that send to this one, or waited for its state, try again.
    world.reconsider(|what| what == Obstacle::Silence);
    Ok(to)
}

/// Checks values as the kernel and the adapter do.
fn sensible(given: &ibv_qp_attr, mask: i32, device: &Device) -> bool {
    let not = |bit: i32, wrong: bool| mask & bit == 0 || !wrong;
    let path = &given.ah_attr;
    let ethernet = device.link != IBV_LINK_LAYER_INFINIBAND;
    let gid_there = usize::from(path.grh.sgid_index) < device.gids.len();
    let bad_path = path.port_num != 1
        || (ethernet && path.is_global == 0)
        || (path.is_global != 0 && !gid_there)
        || (!ethernet && path.dlid == 0);
    not(IBV_QP_PORT, given.port_num != 1)
        && not(IBV_QP_PKEY_INDEX, given.pkey_index != 0)
        && not(IBV_QP_AV, bad_path)
        && not(IBV_QP_PATH_MTU, !(1..=device.mtu_number()).contains(&given.path_mtu))
        && not(IBV_QP_TIMEOUT, given.timeout > 31)
        && not(IBV_QP_RETRY_CNT, given.retry_cnt > 7)
        && not(IBV_QP_RNR_RETRY, given.rnr_retry > 7)
        && not(IBV_QP_MIN_RNR_TIMER, given.min_rnr_timer > 31)
        && not(IBV_QP_MAX_QP_RD_ATOMIC, given.max_rd_atomic > device.max_reads)
        && not(IBV_QP_MAX_DEST_RD_ATOMIC, given.max_dest_rd_atomic > device.max_reads)
        && not(IBV_QP_DEST_QPN, given.dest_qp_num > 0xff_ffff)
}

fn take_over(pair: &mut Pair, given: &ibv_qp_attr, mask: i32) {
    let known = &mut pair.attributes;
    macro_rules! take {
        ($($bit:ident: $field:ident),* $(,)?) => {
            $(if mask & $bit != 0 { known.$field = given.$field; })*
        };
    }
    take! {
        IBV_QP_ACCESS_FLAGS: qp_access_flags,
        IBV_QP_PKEY_INDEX: pkey_index,
        IBV_QP_PORT: port_num,
        IBV_QP_AV: ah_attr,
        IBV_QP_PATH_MTU: path_mtu,
        IBV_QP_TIMEOUT: timeout,
        IBV_QP_RETRY_CNT: retry_cnt,
        IBV_QP_RNR_RETRY: rnr_retry,
        IBV_QP_RQ_PSN: rq_psn,
        IBV_QP_MAX_QP_RD_ATOMIC: max_rd_atomic,
        IBV_QP_MIN_RNR_TIMER: min_rnr_timer,
        IBV_QP_SQ_PSN: sq_psn,
        IBV_QP_MAX_DEST_RD_ATOMIC: max_dest_rd_atomic,
        IBV_QP_DEST_QPN: dest_qp_num,
    }
    if mask & IBV_QP_RQ_PSN != 0 {
        pair.expects = given.rq_psn & 0xff_ffff;
    }
    if mask & IBV_QP_SQ_PSN != 0 {
        pair.sends_from = given.sq_psn & 0xff_ffff;
    }
}

/// Resets the pair: its requests are forgotten, and so are completions that were not polled.
fn reset(world: &mut World, number: u32) {
    let Some(pair) = world.pairs.get_mut(number) else { return };
    pair.attributes = ibv_qp_attr::default();
    pair.pending.clear();
    pair.unacknowledged.clear();
    pair.receives.clear();
    (pair.receives_out, pair.retired, pair.waiting) = (0, pair.posted, None);
    (pair.flushed, pair.established) = (false, false);
    let queues = [pair.send_queue, pair.receive_queue];
    queues.into_iter().for_each(|queue| forget_completions(world, queue, number));
}

fn forget_completions(world: &mut World, queue: u32, pair: u32) {
    let Some(found) = world.queues.get_mut(queue) else { return };
    let mut places = Vec::new();
    found.entries.retain(|entry| {
        if let Frees::Shared { shared, .. } = entry.frees
            && entry.frees.pair() == pair
        {
            places.push(shared);
        }
        entry.frees.pair() != pair
    });
    found.ready.store(found.entries.len(), Ordering::Release);
    for shared in places {
        world.shared.get_mut(shared).into_iter().for_each(|shared| shared.receives_out -= 1);
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    pair: *mut ibv_qp,
    attributes: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: handle
    let qp = unsafe { &mut *pair };
    let found = with(|world| {
        let found = world.pairs.get(qp.qp_num)?;
        let mut now = found.attributes;
        now.qp_state = state_number(found.state);
        now.cur_qp_state = now.qp_state;
        now.cap = found.cap;
        Some((now, found.all_signalled))
    });
    let Some((now, all_signalled)) = found else { return number(Err(libc::EINVAL)) };
    qp.state = now.qp_state;
    let as_made = ibv_qp_init_attr {
        qp_context: qp.qp_context,
        send_cq: qp.send_cq,
        recv_cq: qp.recv_cq,
        srq: qp.srq,
        cap: now.cap,
        qp_type: qp.qp_type,
        sq_sig_all: c_int::from(all_signalled),
    };
    // SAFETY: The caller's structures.
    unsafe {
        attributes.write(now);
        init.write(as_made);
    }
    0
}

/// Destroys a pair, and waits until all asynchronous events about it that programs have got were acknowledged.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(pair: *mut ibv_qp) -> c_int {
    // SAFETY: handle
    let qp = unsafe { (*pair).qp_num };
    let begun = with(|world| {
        let found = world.pairs.get_mut(qp).ok_or(libc::EINVAL)?;
        // From now on the pair neither receives nor sends.
        found.state = State::Reset;
        let (context, queues) = (found.context, [found.send_queue, found.receive_queue]);
        queues.into_iter().for_each(|queue| forget_completions(world, queue, qp));
        world.forget_events(context, EventOf::Pair(qp));
        Ok(())
    });
    if begun.is_err() {
        return number(begun);
    }
    connection_manager::pair_gone(qp);
    let gone = with_acknowledgements(|world| {
        // SAFETY: handle; acknowledgements are counted under the same lock.
        let completed = unsafe { (*pair).events_completed };
        if world.pairs.get(qp)?.events_delivered != completed {
            return None;
        }
        let found = world.pairs.remove(qp)?;
        count_users(world, &found, -1);
        Some(())
    });
    if gone.is_none() {
        eprintln!("udeck-mock-verbs: ibv_destroy_qp waited 10 s for events to be acknowledged");
        return number(Err(libc::EBUSY));
    }
    // SAFETY: It was made so, and the program gives it up.
    drop(unsafe { Box::from_raw(pair) });
    0
}
