//! Images of messages and of the memory around them, in which each byte shows where it belongs.

use udeck_via::{Descriptor, Nic, Ptag, Segment};

/// Bytes before and after each segment that must stay untouched.
const GUARD: usize = 16;

/// Identifies a message within its sequence by the connection's number, the sender's side, and its index among
/// that side's messages. The tag travels as immediate data, and seeds the contents.
pub fn tag(connection: usize, side: usize, at: usize) -> u32 {
    assert!(connection < 1 << 16 && at < 1 << 15, "a sequence is shorter than that");
    (connection as u32) << 16 | (side as u32) << 15 | at as u32
}

/// The connection, side and index of a tag.
pub fn untag(tag: u32) -> (usize, usize, usize) {
    ((tag >> 16) as usize, (tag >> 15 & 1) as usize, (tag & 0x7fff) as usize)
}

/// Contents of the message with this tag: different bytes for different tags and positions.
pub fn payload(tag: u32, len: usize) -> Vec<u8> {
    let seed = tag.wrapping_mul(0x9e37_79b9);
    (0..len).map(|at| (at as u32).wrapping_mul(31).wrapping_add(seed >> (8 * (at % 4))) as u8).collect()
}

/// The regions of descriptor `id`, with segments of these lengths, when `content` fills the segments from the first
/// on; concatenated.
pub fn image(id: u32, segments: &[usize], content: &[u8]) -> Vec<u8> {
    images(id, segments, content).concat()
}

fn images(id: u32, segments: &[usize], content: &[u8]) -> Vec<Vec<u8>> {
    let mut rest = content;
    let region = |&len: &usize| {
        let mut region: Vec<u8> = (0..GUARD + len + GUARD).map(|at| guard(id, at)).collect();
        let (here, later) = rest.split_at(len.min(rest.len()));
        region[GUARD..GUARD + here.len()].copy_from_slice(here);
        rest = later;
        region
    };
    segments.iter().map(region).collect()
}

fn guard(id: u32, at: usize) -> u8 {
    0xc3 ^ (at as u8).wrapping_mul(7) ^ (id as u8).wrapping_mul(29)
}

/// Whether every other segment of descriptor `id`, from the first on, lies in the program's own memory.
pub fn is_own(id: u32) -> bool {
    id.is_multiple_of(3)
}

/// Segments with the contents of [`image`].
pub fn segments(nic: &Nic, ptag: Ptag, id: u32, lengths: &[usize], content: &[u8]) -> Vec<Segment> {
    let segment = |((at, bytes), &len): ((usize, Vec<u8>), &usize)| {
        let region = if is_own(id) && at.is_multiple_of(2) {
            nic.register(bytes, ptag).map_err(|(error, _)| error).expect("it is registered")
        } else {
            let mut region = nic.region(bytes.len(), ptag).expect("arenas are larger than what is posted");
            region.copy_from_slice(&bytes);
            region
        };
        Segment::new(region, GUARD..GUARD + len).expect("within the region")
    };
    images(id, lengths, content).into_iter().enumerate().zip(lengths).map(segment).collect()
}

/// The regions of a returned descriptor, whole, concatenated.
pub fn regions(descriptor: Descriptor) -> Vec<u8> {
    descriptor.into_segments().into_iter().flat_map(|segment| segment.into_region().to_vec()).collect()
}

/// Contents of the segments of a descriptor.
pub fn contents(descriptor: &Descriptor) -> Vec<u8> {
    descriptor.segments().iter().flat_map(Segment::bytes).copied().collect()
}
