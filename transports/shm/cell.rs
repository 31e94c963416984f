//! Encoding of ring cells. Every decoded value comes from the peer and is checked.
//!
//! ```text
//! meta   0      8       16      24      32
//!        | kind | count | head  | flags |        count: bytes (inline) or segments (lent)
//! aux    0                      32      48      64
//!        | immediate            | token | 0    |        token: lent; written, where its sender waits for a receipt
//! words  inline:  the bytes
//!        lent:    per segment offset, length; then the header's bytes
//!        written: length
//! ```

use udeck_sys::ring::{CellCopy, CellRef, PAYLOAD_BYTES, PAYLOAD_WORDS};
use udeck_via::mem::Lent;
use udeck_via::transport::Inline;

/// Segments that a lent message may have.
pub const MAX_SEGMENTS: usize = 3;
/// Header bytes that travel with a lent message of one segment.
pub const MAX_HEAD: usize = PAYLOAD_BYTES - 16;

const INLINE: u8 = 1;
const LENT: u8 = 2;
const WRITTEN: u8 = 3;
const HAS_IMMEDIATE: u8 = 1;
const HAS_TOKEN: u8 = 2;

/// A cell, decoded.
#[derive(Debug, Clone, Copy)]
pub enum Content {
    /// The message itself.
    Inline(Inline),
    /// A message in the sender's outbox.
    Lent { segments: [(u64, usize); MAX_SEGMENTS], count: usize, head: Inline, token: u16 },
    /// The end of an RDMA write: its length in bytes, and the token under which its sender waits for the receipt, if
    /// it does.
    Written(usize, Option<u16>),
}

/// Error: the peer wrote a cell that no correct peer writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer wrote a malformed cell (meta {0:#010x})")]
pub struct MalformedCell(pub u32);

/// Contents of an encoded cell: meta, aux, the payload, and how many words of the payload are used.
pub type Encoded = (u32, u64, [u64; PAYLOAD_WORDS], usize);

#[inline]
fn meta(kind: u8, count: usize, head: usize, immediate: Option<u32>) -> u32 {
    let flags = if immediate.is_some() { HAS_IMMEDIATE } else { 0 };
    u32::from_le_bytes([kind, count as u8, head as u8, flags])
}

#[inline]
fn aux(immediate: Option<u32>, token: u16) -> u64 {
    u64::from(immediate.unwrap_or(0)) | u64::from(token) << 32
}

/// Returns the immediate data and the length in bytes of an inline message; `None` if the cell is of another kind.
#[inline]
pub fn as_inline(message: &CellRef<'_>) -> Option<(Option<u32>, usize)> {
    let [kind, count, _, flags] = message.meta.to_le_bytes();
    let len = usize::from(count);
    let is_inline = kind == INLINE && len <= PAYLOAD_BYTES;
    is_inline.then(|| ((flags & HAS_IMMEDIATE != 0).then(|| message.aux() as u32), len))
}

/// Fields of a lent message of one segment, without its payload words.
#[derive(Clone, Copy)]
pub struct LentOne {
    pub immediate: Option<u32>,
    pub head_len: usize,
    pub token: u16,
}

/// Decodes a lent message of one segment; `None` if the cell is of another kind. Its first two words are offset and
/// length, the words behind them are its head.
#[inline]
pub fn as_lent_one(message: &CellRef<'_>) -> Option<LentOne> {
    let [kind, count, head, flags] = message.meta.to_le_bytes();
    let head_len = usize::from(head);
    if kind != LENT || count != 1 || head_len > MAX_HEAD {
        return None;
    }
    let aux = message.aux();
    let immediate = (flags & HAS_IMMEDIATE != 0).then_some(aux as u32);
    Some(LentOne { immediate, head_len, token: (aux >> 32) as u16 })
}

/// Copies the first bytes of a message into `to`, as many as both have.
#[inline]
pub fn unpack(message: &CellRef<'_>, to: &mut [u8]) {
    let (whole, rest) = to.as_chunks_mut::<8>();
    let mut words = message.words();
    for (place, word) in whole.iter_mut().zip(&mut words) {
        *place = word.to_ne_bytes();
    }
    if !rest.is_empty()
        && let Some(word) = words.next()
    {
        rest.copy_from_slice(&word.to_ne_bytes()[..rest.len()]);
    }
}

/// Returns meta and aux of an inline message of `len` bytes.
#[inline]
pub fn inline(len: usize, immediate: Option<u32>) -> (u32, u64) {
    (meta(INLINE, len, 0, immediate), aux(immediate, 0))
}

/// Returns meta and aux of a lent message of one segment.
#[inline]
pub fn lent_one(head: usize, token: u16, immediate: Option<u32>) -> (u32, u64) {
    (meta(LENT, 1, head, immediate), aux(immediate, token))
}

/// Encodes a lent message. The caller has checked that segments and head fit.
pub fn lent(segments: &[(u64, usize)], head: &[u8], token: u16, immediate: Option<u32>) -> Encoded {
    let mut words = [0u64; PAYLOAD_WORDS];
    for (pair, &(offset, len)) in words.chunks_exact_mut(2).zip(segments) {
        pair.copy_from_slice(&[offset, len as u64]);
    }
    let at = 2 * segments.len();
    let packed = Inline::gather(head, &[]);
    words[at..at + packed.words().len()].copy_from_slice(packed.words());
    let used = at + packed.words().len();
    (meta(LENT, segments.len(), head.len(), immediate), aux(immediate, token), words, used)
}

/// Encodes the end of an RDMA write of `len` bytes. With a token in `receipt`, the sender waits for the receipt.
pub fn written(len: usize, immediate: Option<u32>, receipt: Option<u16>) -> Encoded {
    let mut words = [0u64; PAYLOAD_WORDS];
    words[0] = len as u64;
    let [kind, count, head, flags] = meta(WRITTEN, 0, 0, immediate).to_le_bytes();
    let flags = flags | if receipt.is_some() { HAS_TOKEN } else { 0 };
    let meta = u32::from_le_bytes([kind, count, head, flags]);
    (meta, aux(immediate, receipt.unwrap_or(0)), words, 1)
}

/// Decodes a cell.
///
/// # Errors
/// [`MalformedCell`]: an unknown kind, or counts that do not fit the cell.
#[inline]
pub fn decode(taken: &CellCopy) -> Result<(Option<u32>, Content), MalformedCell> {
    let [kind, count, head, flags] = taken.meta.to_le_bytes();
    let immediate = (flags & HAS_IMMEDIATE != 0).then_some(taken.aux as u32);
    let count = usize::from(count);
    let content = match kind {
        INLINE if count <= PAYLOAD_BYTES => Content::Inline(Inline::new(taken.payload, count)),
        LENT => decode_lent(taken, count, usize::from(head)).ok_or(MalformedCell(taken.meta))?,
        WRITTEN => {
            let len = usize::try_from(taken.payload[0]).map_err(|_| MalformedCell(taken.meta))?;
            Content::Written(len, (flags & HAS_TOKEN != 0).then_some(token_of(taken)))
        }
        _ => return Err(MalformedCell(taken.meta)),
    };
    Ok((immediate, content))
}

fn token_of(taken: &CellCopy) -> u16 {
    (taken.aux >> 32) as u16
}

fn decode_lent(taken: &CellCopy, count: usize, head_len: usize) -> Option<Content> {
    let at = 2 * count;
    if count > MAX_SEGMENTS || at * 8 + head_len > PAYLOAD_BYTES {
        return None;
    }
    let mut segments = [(0, 0); MAX_SEGMENTS];
    for (segment, pair) in segments.iter_mut().zip(taken.payload.chunks_exact(2)).take(count) {
        *segment = (pair[0], usize::try_from(pair[1]).ok()?);
    }
    let mut words = [0u64; PAYLOAD_WORDS];
    words[..PAYLOAD_WORDS - at].copy_from_slice(&taken.payload[at..]);
    Some(Content::Lent { segments, count, head: Inline::new(words, head_len), token: token_of(taken) })
}

const _: () = assert!(MAX_SEGMENTS * 16 <= PAYLOAD_BYTES);
const _: () = {
    // A lent message keeps its segments without allocation.
    assert!(MAX_SEGMENTS <= Lent::MAX_PARTS);
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn taken((meta, aux, payload, _): Encoded) -> CellCopy {
        CellCopy { meta, aux, payload }
    }

    #[test]
    fn an_inline_message_is_as_long_as_a_cell_at_most() {
        for (len, fits) in [(PAYLOAD_BYTES, true), (PAYLOAD_BYTES + 1, false), (255, false)] {
            let cell = CellCopy { meta: meta(INLINE, len, 0, None), aux: 0, payload: [0; PAYLOAD_WORDS] };
            assert_eq!(decode(&cell).is_ok(), fits, "{len} bytes");
        }
    }

    proptest! {
        #[test]
        fn prop_lent_cells_round_trip(
            segments in prop::collection::vec((any::<u64>(), any::<u32>()), 1..=MAX_SEGMENTS),
            head in prop::collection::vec(any::<u8>(), 0..=MAX_HEAD),
            token: u16, immediate: Option<u32>,
        ) {
            let segments: Vec<_> = segments.into_iter().map(|(o, l)| (o, l as usize)).collect();
            let head = &head[..head.len().min(PAYLOAD_BYTES - 16 * segments.len())];
            let (got_immediate, content) = decode(&taken(lent(&segments, head, token, immediate))).unwrap();
            let Content::Lent { segments: got, count, head: got_head, token: got_token, .. } = content else { panic!() };
            prop_assert_eq!(&got[..count], &segments[..]);
            prop_assert_eq!(got_head.bytes(), head);
            prop_assert_eq!((got_token, got_immediate), (token, immediate));
        }

        #[test]
        fn prop_written_cells_round_trip(len: u32, token: Option<u16>, immediate: Option<u32>) {
            let (got_immediate, content) = decode(&taken(written(len as usize, immediate, token))).unwrap();
            let Content::Written(got, got_token) = content else { panic!() };
            prop_assert_eq!((got, got_token, got_immediate), (len as usize, token, immediate));
        }

        /// Any bytes decode to something in bounds, or to an error.
        #[test]
        fn prop_garbage_cells_are_contained(
            kind in 0..=WRITTEN + 1, count in prop_oneof![0..=MAX_SEGMENTS as u8 + 1, any::<u8>()], head: u8, flags: u8,
            aux: u64, payload: [u64; PAYLOAD_WORDS],
        ) {
            let meta = u32::from_le_bytes([kind, count, head, flags]);
            if let Ok((_, content)) = decode(&CellCopy { meta, aux, payload }) {
                match content {
                    Content::Inline(bytes) => prop_assert!(bytes.bytes().len() <= PAYLOAD_BYTES),
                    Content::Lent { count, head, .. } => {
                        prop_assert!(count <= MAX_SEGMENTS && count * 16 + head.bytes().len() <= PAYLOAD_BYTES);
                    }
                    Content::Written(..) => {}
                }
            }
        }
    }
}
