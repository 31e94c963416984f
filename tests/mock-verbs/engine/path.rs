//! Paths: whether a queue pair's packets arrive at the named peer, and how long the pair repeats them.

use super::Outcome;
use crate::abi::{
    IBV_LINK_LAYER_INFINIBAND, IBV_PORT_ACTIVE, IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR, ibv_gid,
};
use crate::config::{Device, config};
use crate::objects::{Kind, Obstacle, Pair};
use crate::world::World;
use std::time::Duration;

/// LID of a port on an InfiniBand link: its device's index in the list, plus one.
pub fn lid(device: usize) -> u16 {
    device as u16 + 1
}

/// The responder, if the pair's packets reach it, and its answers reach the pair. The sequence number is checked,
/// too, if the transport counts packets.
pub fn responder(world: &World, number: u32) -> Option<u32> {
    let pair = world.pairs.get(number)?;
    let peer_number = pair.attributes.dest_qp_num;
    let peer = world.pairs.get(peer_number)?;
    let up = |pair: &Pair| {
        let port = world.ports.get(pair.device);
        port.is_some_and(|port| port.alive && port.state == IBV_PORT_ACTIVE)
    };
    let meets = up(pair)
        && up(peer)
        && peer.kind == pair.kind
        && peer.state.receives()
        && peer.attributes.dest_qp_num == number
        && (is_iwarp(pair) || (leads_to(pair, peer) && leads_to(peer, pair)));
    // An unreliable responder accepts any message from its first packet on.
    let in_sequence = pair.kind == Kind::Unreliable || pair.sends_from == peer.expects;
    (meets && in_sequence).then_some(peer_number)
}

/// Whether the address of `from`'s path leads to `to`.
fn leads_to(from: &Pair, to: &Pair) -> bool {
    let (Some(from_device), Some(to_device)) = (device(from), device(to)) else { return false };
    if from_device.link != to_device.link {
        return false;
    }
    let path = from.path();
    if from_device.link == IBV_LINK_LAYER_INFINIBAND {
        let local = path.dlid == lid(to.device);
        return local && (path.is_global == 0 || to_device.gids.iter().any(|(gid, _)| *gid == path.grh.dgid));
    }
    let (Some(source), Some(target)) = (source(from, from_device), source(to, to_device)) else {
        return false;
    };
    // The two versions of RoCE use different packets; and a responder identifies its peer by the address.
    source.1 == target.1 && path.grh.dgid == target.0
}

/// Address that the pair sends from, and its type.
fn source(pair: &Pair, device: &Device) -> Option<(ibv_gid, u32)> {
    device.gids.get(usize::from(pair.path().grh.sgid_index)).copied()
}

/// Whether the pair's path is a TCP connection.
fn is_iwarp(pair: &Pair) -> bool {
    device(pair).is_some_and(|device| device.iwarp)
}

fn device(pair: &Pair) -> Option<&'static Device> {
    config().devices.as_deref()?.get(pair.device)
}

/// Number of packets of a message of `length` bytes.
pub fn packets(pair: &Pair, length: u64) -> u32 {
    let mtu = 128u64 << pair.attributes.path_mtu;
    length.div_ceil(mtu).max(1) as u32
}

/// Outcome of a request if nobody answers.
pub fn silence(kind: Kind) -> Outcome {
    match kind {
        Kind::Reliable => Outcome::Blocked(Obstacle::Silence),
        // The requester expects no answer.
        Kind::Unreliable => Outcome::Done,
    }
}

/// Time for which a request is repeated; `None`: for ever.
pub fn patience(world: &World, pair: &Pair, what: Obstacle) -> Option<Duration> {
    let attributes = &pair.attributes;
    match what {
        // The time-out is 4.096 µs times two to the power of `timeout`; 0 is infinite.
        Obstacle::Silence if attributes.timeout == 0 => None,
        Obstacle::Silence => {
            let once = Duration::from_nanos(4096 << attributes.timeout);
            Some(once * (u32::from(attributes.retry_cnt) + 1))
        }
        // The count 7 is infinite. Between two attempts the requester waits as long as the responder requests.
        Obstacle::NoReceive(_) | Obstacle::NoShared(_) if attributes.rnr_retry == 7 => None,
        Obstacle::NoReceive(_) | Obstacle::NoShared(_) => {
            let asked =
                world.pairs.get(attributes.dest_qp_num).map_or(0, |peer| peer.attributes.min_rnr_timer);
            Some(rnr_timer(asked) * u32::from(attributes.rnr_retry))
        }
    }
}

/// Values of InfiniBand Architecture Specification, volume 1, table 45, in units of 10 µs.
const RNR_TIMERS: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

fn rnr_timer(code: u8) -> Duration {
    Duration::from_micros(10) * RNR_TIMERS[usize::from(code & 31)]
}

/// Status of the completion after this time.
pub fn verdict(what: Obstacle) -> u32 {
    match what {
        Obstacle::Silence => IBV_WC_RETRY_EXC_ERR,
        Obstacle::NoReceive(_) | Obstacle::NoShared(_) => IBV_WC_RNR_RETRY_EXC_ERR,
    }
}
