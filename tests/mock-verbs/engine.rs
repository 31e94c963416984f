//! The engine, which moves the data: one work request of one queue pair at a time, in the pair's order.
//!
//! A request passes through three stages. It is *pending* until the engine reaches it and carries it out at the
//! responder; then *unacknowledged*, while an RDMA read has not brought its data yet; then it completes, if it has a
//! completion. Between the two steps the engine serves other pairs: completions lag behind, and a missing fence can
//! cause its error.

pub mod corrupt_sender;
mod memory;
mod path;
mod respond;

use crate::abi::{
    IBV_EVENT_QP_LAST_WQE_REACHED, IBV_SEND_FENCE, IBV_WC_DRIVER3, IBV_WC_RDMA_READ, IBV_WC_RDMA_WRITE,
    IBV_WC_SEND, IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, IBV_WR_RDMA_READ, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM,
    ibv_wc,
};
use crate::objects::{Entry, Frees, Kind, Obstacle, SendRequest, State, Waiting};
use crate::world::{Task, World};
use std::time::Instant;

pub use memory::key;
pub use path::lid;

/// Outcome of a request that was carried out.
#[derive(Debug)]
enum Outcome {
    /// The responder has the message. (From an unreliable pair, perhaps nobody has.)
    Done,
    /// The completion has this status, and the pair fails.
    Failed(u32),
    /// Nothing happened, because of this obstacle.
    Blocked(Obstacle),
}

/// Carries out one step.
pub fn step(world: &mut World, task: Task) {
    match task {
        Task::Send(pair) => send(world, pair),
        Task::Acknowledge(pair) => acknowledge(world, pair),
    }
}

fn send(world: &mut World, number: u32) {
    let Some(pair) = world.pairs.get_mut(number) else { return };
    pair.scheduled = false;
    if !world.alive(world.pairs.get(number).map_or(0, |pair| pair.device)) {
        return;
    }
    let Some(pair) = world.pairs.get_mut(number) else { return };
    match pair.state {
        State::Error => return flush(world, number),
        State::SendError => return flush_sends(world, number),
        State::ReadyToSend => {}
        _ => return,
    }
    let Some(request) = pair.pending.front() else { return };
    let fenced = request.flags & IBV_SEND_FENCE != 0 && pair.reads() > 0;
    let reads_full = request.is_read() && pair.reads() >= usize::from(pair.attributes.max_rd_atomic.max(1));
    if fenced || reads_full {
        // The acknowledgement of a read schedules the pair again.
        return;
    }
    let Some(mut request) = pair.pending.pop_front() else { return };
    if pair.corrupts_sends {
        corrupt_sender::request(world, number, &mut request);
    }
    match respond::carry_out(world, number, &request) {
        Outcome::Done => done(world, number, request),
        Outcome::Failed(status) => fail(world, number, &request, status),
        Outcome::Blocked(what) => blocked(world, number, request, what),
    }
}

fn done(world: &mut World, number: u32, request: SendRequest) {
    world.requests += 1;
    let Some(pair) = world.pairs.get_mut(number) else { return };
    pair.waiting = None;
    pair.unacknowledged.push_back(request);
    let more = !pair.pending.is_empty();
    if more {
        world.schedule(number);
    }
    world.tasks.push_back(Task::Acknowledge(number));
}

/// Keeps the request at its place until the obstacle is gone, or the time limit has passed.
fn blocked(world: &mut World, number: u32, request: SendRequest, what: Obstacle) {
    let now = Instant::now();
    let Some(pair) = world.pairs.get(number) else { return };
    let until = match pair.waiting {
        Some(waiting) if waiting.what == what => waiting.until,
        _ => path::patience(world, pair, what).map(|time| now + time),
    };
    if until.is_some_and(|until| until <= now) {
        return fail(world, number, &request, path::verdict(what));
    }
    if let Some(until) = until {
        world.timers.insert((until, number));
    }
    world.blocked.insert(number);
    let Some(pair) = world.pairs.get_mut(number) else { return };
    pair.waiting = Some(Waiting { what, until });
    pair.pending.push_front(request);
}

/// Completes the oldest request that was carried out.
fn acknowledge(world: &mut World, number: u32) {
    let Some(pair) = world.pairs.get(number) else { return };
    if !matches!(pair.state, State::ReadyToSend | State::SendError) || !world.alive(pair.device) {
        return;
    }
    let Some(request) = pair.unacknowledged.front().cloned() else { return };
    if request.is_read()
        && let Err(status) = respond::bring(world, number, &request)
    {
        if let Some(pair) = world.pairs.get_mut(number) {
            pair.unacknowledged.pop_front();
        }
        return fail(world, number, &request, status);
    }
    let Some(pair) = world.pairs.get_mut(number) else { return };
    pair.unacknowledged.pop_front();
    succeed(world, number, &request);
    // The next request may have waited for a fence, or for the limit of reads.
    world.schedule(number);
}

fn succeed(world: &mut World, number: u32, request: &SendRequest) {
    if !request.signalled {
        return;
    }
    let opcode = match request.opcode {
        IBV_WR_SEND | IBV_WR_SEND_WITH_IMM => IBV_WC_SEND,
        IBV_WR_RDMA_READ => IBV_WC_RDMA_READ,
        _ => IBV_WC_RDMA_WRITE,
    };
    // In a request's completion, the length is defined for reads only.
    let byte_len = if request.is_read() { request.length as u32 } else { NONSENSE };
    let wc = ibv_wc { status: IBV_WC_SUCCESS, opcode, byte_len, ..base(number, request.id) };
    push_send(world, number, request, wc, false);
}

/// Lets the request fail: the requests before it have been carried out, those behind it are flushed.
fn fail(world: &mut World, number: u32, request: &SendRequest, status: u32) {
    let Some(pair) = world.pairs.get_mut(number) else { return };
    pair.waiting = None;
    let before: Vec<_> = pair.unacknowledged.drain(..).collect();
    let kind = pair.kind;
    for earlier in &before {
        // A refusal acknowledges everything before it, except reads whose data have not arrived.
        let brought = !earlier.is_read() || respond::bring(world, number, earlier).is_ok();
        if brought {
            succeed(world, number, earlier);
        } else {
            push_send(world, number, earlier, failure(number, earlier.id, IBV_WC_WR_FLUSH_ERR), true);
        }
    }
    push_send(world, number, request, failure(number, request.id, status), true);
    match kind {
        Kind::Reliable => world.fail_pair(number, None),
        Kind::Unreliable => {
            if let Some(pair) = world.pairs.get_mut(number) {
                pair.state = State::SendError;
            }
            world.schedule(number);
        }
    }
}

/// Flushes a failed pair: all its requests complete, without having been carried out (or without knowledge of
/// it).
fn flush(world: &mut World, number: u32) {
    flush_sends(world, number);
    let Some(pair) = world.pairs.get_mut(number) else { return };
    let (queue, shared) = (pair.receive_queue, pair.shared);
    for receive in std::mem::take(&mut pair.receives) {
        let wc = failure(number, receive.id, IBV_WC_WR_FLUSH_ERR);
        world.complete(queue, Entry { wc, frees: Frees::Receive { pair: number } }, true);
    }
    // No receive of a shared queue is lost: this event says that no more of them come for this pair.
    let Some(pair) = world.pairs.get_mut(number) else { return };
    if shared.is_some() && !std::mem::replace(&mut pair.flushed, true) {
        world.tell_pair(number, IBV_EVENT_QP_LAST_WQE_REACHED);
    }
}

fn flush_sends(world: &mut World, number: u32) {
    let Some(pair) = world.pairs.get_mut(number) else { return };
    pair.waiting = None;
    let carried_out = std::mem::take(&mut pair.unacknowledged);
    let pending = std::mem::take(&mut pair.pending);
    for request in carried_out.into_iter().chain(pending) {
        let wc = failure(number, request.id, IBV_WC_WR_FLUSH_ERR);
        push_send(world, number, &request, wc, true);
    }
}

fn push_send(world: &mut World, number: u32, request: &SendRequest, wc: ibv_wc, solicited: bool) {
    let Some(pair) = world.pairs.get(number) else { return };
    let frees = Frees::Send { pair: number, upto: request.number + 1 };
    world.complete(pair.send_queue, Entry { wc, frees }, solicited);
}

/// Value of fields that the specification leaves undefined: a program that relies on one should notice.
const NONSENSE: u32 = 0xdead_beef;

fn base(pair: u32, id: u64) -> ibv_wc {
    ibv_wc { wr_id: id, qp_num: pair, imm_data: NONSENSE, ..Default::default() }
}

/// In a completion with an error only `wr_id`, `status`, `qp_num` and `vendor_err` are defined.
fn failure(pair: u32, id: u64, status: u32) -> ibv_wc {
    ibv_wc {
        status,
        opcode: IBV_WC_DRIVER3,
        vendor_err: 0x5700 | status,
        byte_len: NONSENSE,
        src_qp: NONSENSE,
        ..base(pair, id)
    }
}
