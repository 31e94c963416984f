//! Registered memory as the device sees it: it checks keys, bounds and rights, then accesses the bytes.

use crate::abi::{IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, ibv_sge};
use crate::connection_manager;
use crate::objects::{Payload, SendRequest};
use crate::world::World;

/// Bytes of this process that a region covers: address and length.
pub type Span = (usize, usize);

/// Place of `length` bytes from `address` on in the region `key`, if the region is in `domain` and grants all of
/// `access`.
pub fn translate(
    world: &World,
    domain: u32,
    key: u32,
    address: u64,
    length: u64,
    access: u32,
) -> Option<Span> {
    let region = world.regions.get(number(key)?)?;
    let offset = address.checked_sub(region.iova)?;
    let inside = offset.checked_add(length)? <= region.length as u64;
    let allowed = region.domain == domain && region.access & access == access;
    (inside && allowed).then(|| (region.address + offset as usize, length as usize))
}

/// Key of a region: its number, and a byte that shows whether the key was invented.
pub fn key(number: u32) -> u32 {
    number << 8 | (number.wrapping_mul(0x9d) ^ 0x5a) & 0xff
}

fn number(made: u32) -> Option<u32> {
    let number = made >> 8;
    (key(number) == made).then_some(number)
}

/// Translates the pieces of a list; empty ones are skipped, as adapters do.
pub fn pieces(world: &World, domain: u32, list: &[ibv_sge], access: u32) -> Option<Vec<Span>> {
    let filled = list.iter().filter(|piece| piece.length > 0);
    filled
        .map(|piece| translate(world, domain, piece.lkey, piece.addr, u64::from(piece.length), access))
        .collect()
}

/// Memory that a request sends from, or reads into.
pub fn local(world: &World, domain: u32, request: &SendRequest) -> Option<Vec<Span>> {
    match &request.payload {
        Payload::Inline(bytes) => Some(vec![(bytes.as_ptr() as usize, bytes.len())]),
        Payload::Gather(list) => {
            // On iWARP the data of a read arrive as a write of the peer.
            let remote = if is_iwarp(world, domain) { IBV_ACCESS_REMOTE_WRITE } else { 0 };
            let access = if request.is_read() { IBV_ACCESS_LOCAL_WRITE | remote } else { 0 };
            pieces(world, domain, list, access)
        }
    }
}

fn is_iwarp(world: &World, domain: u32) -> bool {
    let context = world.domains.get(domain).and_then(|domain| world.contexts.get(domain.context));
    context.and_then(|context| connection_manager::device(context.device)).is_some_and(|device| device.iwarp)
}

/// Copies all of `from` to the beginning of `to`, which has enough room.
pub fn copy(world: &mut World, from: &[Span], to: &[Span]) {
    let mut places = to.iter().copied().filter(|(_, length)| *length > 0);
    let mut place = (0, 0);
    for &(mut address, mut length) in from {
        while length > 0 {
            if place.1 == 0 {
                let Some(next) = places.next() else { return };
                place = next;
            }
            let now = length.min(place.1);
            // SAFETY: Both lie in regions that are registered, or in a request's own bytes: the program promised at
            // registration to keep the memory, as it does to an adapter. The two may overlap, if it says so.
            unsafe { std::ptr::copy(address as *const u8, place.0 as *mut u8, now) };
            (address, length) = (address + now, length - now);
            place = (place.0 + now, place.1 - now);
            world.bytes += now as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_its_regions_and_no_neighbour_is_one() {
        for region in [1, 2, 77, 65_000] {
            assert_eq!(number(key(region)), Some(region));
            assert_eq!(number(key(region) ^ 1), None);
        }
    }
}
