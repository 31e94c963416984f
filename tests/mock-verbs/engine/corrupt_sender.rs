//! Spoilt pairs, which send anything that an adapter's library, or a program that bypasses it, could send to a connected
//! peer.
//!
//! `STANDIN_SPOIL` selects the pairs by the name of the thread that makes them. Their messages change in bytes, length, immediate
//! data, address and key, are sent twice, or again later.

use super::{memory, respond};
use crate::config::config;
use crate::objects::{Payload, SendRequest};
use crate::world::World;

/// Average number of requests of such a pair for each spoilt one.
const ONE_IN: u32 = 8;
/// Length above which the bytes are not changed.
const LONGEST: u64 = 1 << 14;
/// Number of bytes that contain headers.
const FRONT: usize = 64;

/// Whether a pair made by this thread is spoilt.
pub fn is_meant() -> bool {
    let Some((meant, _)) = &config().corrupt_sender else { return false };
    let mut name = [0_u8; 16];
    // SAFETY: Room for the longest name that a thread has, and its end.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name.split(|byte| *byte == 0).next() == Some(meant.as_bytes())
}

/// Changes the request, or leaves it.
pub fn request(world: &mut World, number: u32, request: &mut SendRequest) {
    if !world.corruption.draw().is_multiple_of(ONE_IN) {
        return;
    }
    match world.corruption.draw() % 8 {
        0 => request.immediate ^= 1 << (world.corruption.draw() % 32),
        1 => request.immediate = value(world) as u32,
        2 => request.remote = request.remote.wrapping_add(value(world)),
        3 => request.rkey ^= 1 << (world.corruption.draw() % 32),
        4 => {
            // The request is carried out once more, whatever became of the first time.
            let _ = respond::carry_out(world, number, request);
        }
        _ => bytes(world, number, request),
    }
}

fn bytes(world: &mut World, number: u32, request: &mut SendRequest) {
    let Some(domain) = world.pairs.get(number).map(|pair| pair.domain) else { return };
    if request.is_read() || request.length == 0 || request.length > LONGEST {
        return;
    }
    let Some(spans) = memory::local(world, domain, request) else { return };
    let mut bytes = Vec::new();
    for (address, length) in spans {
        // SAFETY: It lies in regions that are registered, or in the request's own bytes, as in `memory::copy`.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(address as *const u8, length) });
    }
    for _ in 0..=world.corruption.draw() % 3 {
        let front = bytes.len().min(FRONT);
        let at = world.corruption.draw() as usize % front.max(1);
        match world.corruption.draw() % 5 {
            0 if front > 0 => bytes[at] ^= 1 << (world.corruption.draw() % 8),
            1 if front > 0 => bytes[at] = value(world) as u8,
            2 if front >= 8 => bytes[at & !7..][..8.min(front - (at & !7))]
                .copy_from_slice(&value(world).to_le_bytes()[..8.min(front - (at & !7))]),
            3 => bytes.truncate(world.corruption.draw() as usize % (bytes.len() + 1)),
            4 => bytes.resize(bytes.len() + world.corruption.draw() as usize % 100, 0xa5),
            _ => {}
        }
    }
    request.length = bytes.len() as u64;
    request.payload = Payload::Inline(bytes);
}

/// A number that is small, near the largest one, or arbitrary.
fn value(world: &mut World) -> u64 {
    let [small, rest] = [(); 2].map(|()| u64::from(world.corruption.draw()));
    match rest % 4 {
        0 | 1 => small % 70,
        2 => u64::MAX - small % 70,
        _ => small << 32 | rest,
    }
}
