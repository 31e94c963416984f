//! Posts of work requests: they are checked and queued, nothing else. (But see `STANDIN_ENGINE`.)

use crate::abi::{
    IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
    IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_srq,
};
use crate::connection_manager;
use crate::objects::{Kind, Obstacle, Pair, Payload, ReceiveRequest, SendRequest, State};
use crate::world::{World, with};
use libc::c_int;

/// Implements `ops.post_send`.
pub unsafe extern "C" fn post_send(
    pair: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: handle
    let number = unsafe { (*pair).qp_num };
    with(|world| {
        let mut next = first;
        while !next.is_null() {
            // SAFETY: A list of the caller's.
            let request = unsafe { &*next };
            // SAFETY: As the request says.
            if let Err(error) = unsafe { queue_send(world, number, request) } {
                // SAFETY: The caller's.
                unsafe { bad.write(next) };
                return error;
            }
            next = request.next;
        }
        0
    })
}

/// # Safety
/// The request's list is the caller's, and what it posts inline.
unsafe fn queue_send(world: &mut World, number: u32, wr: &ibv_send_wr) -> Result<(), c_int> {
    let alive = world.pairs.get(number).is_some_and(|pair| world.alive(pair.device));
    let pair = world.pairs.get_mut(number).filter(|_| alive).ok_or(libc::EIO)?;
    if !matches!(pair.state, State::ReadyToSend | State::SendError | State::Error) {
        return Err(libc::EINVAL);
    }
    if pair.posted - pair.retired >= u64::from(pair.cap.max_send_wr) {
        return Err(libc::ENOMEM);
    }
    check_send(pair, wr)?;
    // SAFETY: The caller's.
    let list = unsafe { list(wr.sg_list, wr.num_sge) };
    let length = list.iter().map(|piece| u64::from(piece.length)).sum();
    let payload = if wr.send_flags & IBV_SEND_INLINE == 0 {
        Payload::Gather(list.to_vec())
    } else if length > u64::from(pair.cap.max_inline_data) {
        return Err(libc::EINVAL);
    } else {
        // SAFETY: The caller's.
        Payload::Inline(unsafe { gather(list) })
    };
    let rdma = matches!(wr.opcode, IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_RDMA_READ);
    // SAFETY: It is the part of an RDMA request; of another, any bytes are numbers.
    let target = if rdma { unsafe { wr.wr.rdma } } else { Default::default() };
    pair.pending.push_back(SendRequest {
        id: wr.wr_id,
        number: pair.posted,
        opcode: wr.opcode,
        flags: wr.send_flags,
        signalled: pair.all_signalled || wr.send_flags & IBV_SEND_SIGNALED != 0,
        immediate: wr.imm_data,
        remote: target.remote_addr,
        rkey: target.rkey,
        payload,
        length,
    });
    pair.posted += 1;
    // While the first request waits, those behind it wait, too.
    if pair.waiting.is_none() {
        world.schedule(number);
    }
    Ok(())
}

fn check_send(pair: &Pair, wr: &ibv_send_wr) -> Result<(), c_int> {
    let known = match wr.opcode {
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_SEND | IBV_WR_SEND_WITH_IMM => true,
        IBV_WR_RDMA_READ => pair.kind == Kind::Reliable && wr.send_flags & IBV_SEND_INLINE == 0,
        _ => false,
    };
    let pieces = u32::try_from(wr.num_sge).is_ok_and(|pieces| pieces <= pair.cap.max_send_sge);
    let iwarp = connection_manager::device(pair.device).is_some_and(|device| device.iwarp);
    if known && pieces && (!iwarp || iwarp_takes(pair, wr)) { Ok(()) } else { Err(libc::EINVAL) }
}

/// Whether iWARP accepts the request: no immediate data; a read into one piece only; nothing from the accepting
/// side before it has heard the other.
fn iwarp_takes(pair: &Pair, wr: &ibv_send_wr) -> bool {
    let immediate = matches!(wr.opcode, IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_SEND_WITH_IMM);
    let pieces = wr.opcode != IBV_WR_RDMA_READ || wr.num_sge <= 1;
    !immediate && pieces && !pair.listens
}

/// # Safety
/// `count` pieces lie from `first` on.
unsafe fn list<'a>(first: *const ibv_sge, count: c_int) -> &'a [ibv_sge] {
    if first.is_null() || count <= 0 {
        return &[];
    }
    // SAFETY: The caller's contract.
    unsafe { std::slice::from_raw_parts(first, count as usize) }
}

/// # Safety
/// The pieces lie in memory that may be read.
unsafe fn gather(list: &[ibv_sge]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(list.iter().map(|piece| piece.length as usize).sum());
    for piece in list.iter().filter(|piece| piece.length > 0) {
        // SAFETY: The caller's contract; keys are not looked at.
        bytes.extend_from_slice(unsafe {
            std::slice::from_raw_parts(piece.addr as *const u8, piece.length as usize)
        });
    }
    bytes
}

/// Implements `ops.post_recv`.
pub unsafe extern "C" fn post_recv(
    pair: *mut ibv_qp,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: handle
    let number = unsafe { (*pair).qp_num };
    let queue = |world: &mut World, request| {
        let alive = world.pairs.get(number).is_some_and(|pair| world.alive(pair.device));
        let pair = world.pairs.get_mut(number).filter(|_| alive).ok_or(libc::EIO)?;
        if pair.state == State::Reset || pair.shared.is_some() {
            return Err(libc::EINVAL);
        }
        let (most, pieces) = (pair.cap.max_recv_wr, pair.cap.max_recv_sge);
        accept(&mut pair.receives, &mut pair.receives_out, most, pieces, request)?;
        if pair.state == State::Error {
            world.schedule(number);
        }
        Ok(())
    };
    // SAFETY: The caller's contract is ours.
    let result = unsafe { queue_receives(first, bad, queue) };
    with(|world| world.reconsider(|what| what == Obstacle::NoReceive(number)));
    result
}

/// Implements `ops.post_srq_recv`.
pub unsafe extern "C" fn post_srq_recv(
    shared: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: handle
    let number = unsafe { (*shared).handle };
    let queue = |world: &mut World, request| {
        let shared = world.shared.get_mut(number).ok_or(libc::EIO)?;
        let (most, pieces) = (shared.max_wr, shared.max_sge);
        accept(&mut shared.receives, &mut shared.receives_out, most, pieces, request)
    };
    // SAFETY: The caller's contract is ours.
    let result = unsafe { queue_receives(first, bad, queue) };
    with(|world| world.reconsider(|what| what == Obstacle::NoShared(number)));
    result
}

/// # Safety
/// A list of the caller's, and a place for the first that was refused.
unsafe fn queue_receives(
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    mut queue: impl FnMut(&mut World, ReceiveRequest) -> Result<(), c_int>,
) -> c_int {
    with(|world| {
        let mut next = first;
        while !next.is_null() {
            // SAFETY: The caller's contract.
            let wr = unsafe { &*next };
            // SAFETY: The caller's contract.
            let scatter = unsafe { list(wr.sg_list, wr.num_sge) }.to_vec();
            let whole = wr.num_sge >= 0;
            let request = ReceiveRequest { id: wr.wr_id, scatter };
            if let Err(error) = if whole { queue(world, request) } else { Err(libc::EINVAL) } {
                // SAFETY: The caller's.
                unsafe { bad.write(next) };
                return error;
            }
            next = wr.next;
        }
        0
    })
}

fn accept(
    receives: &mut std::collections::VecDeque<ReceiveRequest>,
    out: &mut u32,
    most: u32,
    pieces: u32,
    request: ReceiveRequest,
) -> Result<(), c_int> {
    if *out >= most {
        return Err(libc::ENOMEM);
    }
    if request.scatter.len() > pieces as usize {
        return Err(libc::EINVAL);
    }
    *out += 1;
    receives.push_back(request);
    Ok(())
}
