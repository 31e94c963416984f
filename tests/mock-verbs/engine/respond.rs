//! The responder's side of a request.
//!
//! The errors, and who learns them, follow the InfiniBand Architecture Specification, volume 1, section 9.9
//! (release 1.4): a reliable requester learns the responder's refusal; an unreliable one learns nothing.

use super::{Outcome, base, failure, memory, path};
use crate::abi::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_EVENT_COMM_EST,
    IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_SRQ_LIMIT_REACHED, IBV_SEND_SOLICITED,
    IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_PROT_ERR, IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_REM_ACCESS_ERR,
    IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR, IBV_WC_SUCCESS, IBV_WC_WITH_IMM, IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, ibv_wc,
};
use crate::config::config;
use crate::objects::{Entry, Frees, Kind, Obstacle, ReceiveRequest, SendRequest, State};
use crate::world::World;
use memory::Span;

/// Carries out the first request of `number`.
pub fn carry_out(world: &mut World, number: u32, request: &SendRequest) -> Outcome {
    let Some(pair) = world.pairs.get(number) else { return Outcome::Done };
    let (kind, domain, device) = (pair.kind, pair.domain, pair.device);
    let limit = config().devices.as_deref().and_then(|devices| devices.get(device)).map(|d| d.max_message);
    if request.length > u64::from(limit.unwrap_or(u32::MAX)) {
        return Outcome::Failed(IBV_WC_LOC_LEN_ERR);
    }
    let Some(local) = memory::local(world, domain, request) else {
        return Outcome::Failed(IBV_WC_LOC_PROT_ERR);
    };
    let Some(peer) = path::responder(world, number) else { return path::silence(kind) };
    if kind == Kind::Unreliable && world.loss.strikes() {
        lose(world, peer, request, &local);
        return Outcome::Done;
    }
    establish(world, peer);
    let outcome = match request.opcode {
        IBV_WR_SEND | IBV_WR_SEND_WITH_IMM => send(world, peer, request, &local),
        IBV_WR_RDMA_READ => may_read(world, peer, request),
        _ => write(world, peer, request, &local),
    };
    if matches!(outcome, Outcome::Done) {
        count_packets(world, number, peer, request.length);
    }
    match (kind, outcome) {
        // The message is dropped.
        (Kind::Unreliable, Outcome::Blocked(_) | Outcome::Failed(_)) => Outcome::Done,
        (_, outcome) => outcome,
    }
}

/// Loses a packet of the message, which nobody learns. Of an RDMA write, the packets before it are in place.
fn lose(world: &mut World, peer: u32, request: &SendRequest, from: &[Span]) {
    let Some(found) = world.pairs.get(peer) else { return };
    let is_write = matches!(request.opcode, IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM);
    let (allowed, domain) = (found.attributes.qp_access_flags & IBV_ACCESS_REMOTE_WRITE != 0, found.domain);
    let mtu = 128u64 << found.attributes.path_mtu;
    let came = u64::from(world.loss.draw()) % request.length.div_ceil(mtu).max(1) * mtu;
    if is_write
        && allowed
        && let Some(to) = remote(world, domain, request, IBV_ACCESS_REMOTE_WRITE)
    {
        let first: Vec<Span> =
            to.iter().map(|(address, length)| (*address, (*length).min(came as usize))).collect();
        memory::copy(world, from, &first);
    }
}

/// Brings the data of a read when it is acknowledged.
pub fn bring(world: &mut World, number: u32, request: &SendRequest) -> Result<(), u32> {
    let Some(pair) = world.pairs.get(number) else { return Ok(()) };
    let (domain, peer) = (pair.domain, pair.attributes.dest_qp_num);
    let local = memory::local(world, domain, request).ok_or(IBV_WC_LOC_PROT_ERR)?;
    let Some(peer_domain) = world.pairs.get(peer).map(|peer| peer.domain) else {
        return Err(path::verdict(Obstacle::Silence));
    };
    let from = remote(world, peer_domain, request, IBV_ACCESS_REMOTE_READ);
    let Some(from) = from else { return refuse(world, peer, IBV_EVENT_QP_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR) };
    memory::copy(world, &from, &local);
    Ok(())
}

fn refuse(world: &mut World, peer: u32, event: u32, status: u32) -> Result<(), u32> {
    world.fail_pair(peer, Some(event));
    Err(status)
}

/// Reports to a pair that is only ready to receive that its peer has begun to send.
fn establish(world: &mut World, peer: u32) {
    if let Some(found) = world.pairs.get_mut(peer) {
        found.listens = false;
    }
    if let Some(found) = world.pairs.get_mut(peer)
        && found.state == State::ReadyToReceive
        && !std::mem::replace(&mut found.established, true)
    {
        world.tell_pair(peer, IBV_EVENT_COMM_EST);
    }
}

fn count_packets(world: &mut World, number: u32, peer: u32, length: u64) {
    let Some(packets) = world.pairs.get(number).map(|pair| path::packets(pair, length)) else { return };
    if let Some(pair) = world.pairs.get_mut(number) {
        pair.sends_from = (pair.sends_from + packets) & 0xff_ffff;
    }
    if let Some(peer) = world.pairs.get_mut(peer) {
        peer.expects = (peer.expects + packets) & 0xff_ffff;
    }
}

fn send(world: &mut World, peer: u32, request: &SendRequest, from: &[Span]) -> Outcome {
    let Some((receive, frees)) = take_receive(world, peer) else { return no_receive(world, peer) };
    let Some(found) = world.pairs.get(peer) else { return Outcome::Done };
    let room: u64 = receive.scatter.iter().map(|piece| u64::from(piece.length)).sum();
    if request.length > room {
        return too_long(world, peer, receive, frees);
    }
    let Some(to) = memory::pieces(world, found.domain, &receive.scatter, IBV_ACCESS_LOCAL_WRITE) else {
        return fail_both(world, peer, &receive, frees, IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR);
    };
    memory::copy(world, from, &to);
    received(world, peer, &receive, frees, request, IBV_WC_RECV);
    Outcome::Done
}

fn write(world: &mut World, peer: u32, request: &SendRequest, from: &[Span]) -> Outcome {
    let Some(found) = world.pairs.get(peer) else { return Outcome::Done };
    if found.attributes.qp_access_flags & IBV_ACCESS_REMOTE_WRITE == 0 {
        return refused(world, peer, IBV_EVENT_QP_REQ_ERR, IBV_WC_REM_INV_REQ_ERR);
    }
    let Some(to) = remote(world, found.domain, request, IBV_ACCESS_REMOTE_WRITE) else {
        return refused(world, peer, IBV_EVENT_QP_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR);
    };
    if request.opcode != IBV_WR_RDMA_WRITE_WITH_IMM {
        memory::copy(world, from, &to);
        return Outcome::Done;
    }
    // Without a receive the last packet waits; here the whole message waits.
    let Some((receive, frees)) = take_receive(world, peer) else { return no_receive(world, peer) };
    memory::copy(world, from, &to);
    received(world, peer, &receive, frees, request, IBV_WC_RECV_RDMA_WITH_IMM);
    Outcome::Done
}

/// Whether the responder allows the read. [`bring`] brings the data.
fn may_read(world: &mut World, peer: u32, request: &SendRequest) -> Outcome {
    let Some(found) = world.pairs.get(peer) else { return Outcome::Done };
    let requester = world.pairs.get(found.attributes.dest_qp_num);
    let under_way = requester.map_or(0, |requester| requester.reads());
    let resources = usize::from(found.attributes.max_dest_rd_atomic) > under_way;
    if found.attributes.qp_access_flags & IBV_ACCESS_REMOTE_READ == 0 || !resources {
        return refused(world, peer, IBV_EVENT_QP_REQ_ERR, IBV_WC_REM_INV_REQ_ERR);
    }
    match remote(world, found.domain, request, IBV_ACCESS_REMOTE_READ) {
        Some(_) => Outcome::Done,
        None => refused(world, peer, IBV_EVENT_QP_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR),
    }
}

/// Responder's memory of an RDMA request; for zero bytes, no key is checked.
fn remote(world: &World, domain: u32, request: &SendRequest, access: u32) -> Option<Vec<Span>> {
    if request.length == 0 {
        return Some(Vec::new());
    }
    memory::translate(world, domain, request.rkey, request.remote, request.length, access)
        .map(|span| vec![span])
}

/// Refuses the message: a reliable responder fails, and reports this to its program; an unreliable one drops the
/// message.
fn refused(world: &mut World, peer: u32, event: u32, status: u32) -> Outcome {
    if world.pairs.get(peer).is_some_and(|peer| peer.kind == Kind::Reliable) {
        world.fail_pair(peer, Some(event));
    }
    Outcome::Failed(status)
}

/// Handles a message that is longer than its receive.
fn too_long(world: &mut World, peer: u32, receive: ReceiveRequest, frees: Frees) -> Outcome {
    let Some(found) = world.pairs.get_mut(peer) else { return Outcome::Done };
    if found.kind == Kind::Unreliable && found.shared.is_none() {
        // The message is dropped, and the receive stays in place.
        found.receives.push_front(receive);
        return Outcome::Done;
    }
    fail_both(world, peer, &receive, frees, IBV_WC_LOC_LEN_ERR, IBV_WC_REM_INV_REQ_ERR)
}

/// Completes the receive with an error, and lets the pair fail.
fn fail_both(
    world: &mut World,
    peer: u32,
    receive: &ReceiveRequest,
    frees: Frees,
    here: u32,
    there: u32,
) -> Outcome {
    if let Some(queue) = world.pairs.get(peer).map(|peer| peer.receive_queue) {
        world.complete(queue, Entry { wc: failure(peer, receive.id, here), frees }, true);
    }
    world.fail_pair(peer, None);
    Outcome::Failed(there)
}

fn no_receive(world: &World, peer: u32) -> Outcome {
    let shared = world.pairs.get(peer).and_then(|peer| peer.shared);
    Outcome::Blocked(shared.map_or(Obstacle::NoReceive(peer), Obstacle::NoShared))
}

fn take_receive(world: &mut World, peer: u32) -> Option<(ReceiveRequest, Frees)> {
    let found = world.pairs.get_mut(peer)?;
    let Some(number) = found.shared else {
        return Some((found.receives.pop_front()?, Frees::Receive { pair: peer }));
    };
    let shared = world.shared.get_mut(number)?;
    let receive = shared.receives.pop_front()?;
    if (shared.receives.len() as u32) < shared.limit {
        // The event comes once, until the limit is armed again.
        shared.limit = 0;
        world.tell_shared(number, IBV_EVENT_SRQ_LIMIT_REACHED);
    }
    Some((receive, Frees::Shared { shared: number, pair: peer }))
}

fn received(
    world: &mut World,
    peer: u32,
    receive: &ReceiveRequest,
    frees: Frees,
    request: &SendRequest,
    opcode: u32,
) {
    let Some(found) = world.pairs.get(peer) else { return };
    let (queue, from) = (found.receive_queue, found.attributes.dest_qp_num);
    let immediate = matches!(request.opcode, IBV_WR_SEND_WITH_IMM | IBV_WR_RDMA_WRITE_WITH_IMM);
    let mut wc = ibv_wc {
        status: IBV_WC_SUCCESS,
        opcode,
        byte_len: request.length as u32,
        src_qp: from,
        ..base(peer, receive.id)
    };
    if immediate {
        wc.wc_flags = IBV_WC_WITH_IMM;
        wc.imm_data = request.immediate;
    }
    world.complete(queue, Entry { wc, frees }, request.flags & IBV_SEND_SOLICITED != 0);
}
