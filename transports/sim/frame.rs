//! Frames: messages, receipts and ends in transit, with a checksum that the receiver verifies.

#![allow(unsafe_code, reason = "memory that the NIC at the other end reads or writes")]

use std::ptr::NonNull;
use std::sync::Arc;

use udeck_via::RemoteBuffer;
use udeck_via::mem::{LentSlice, PrivateCopy};
use udeck_via::transport::{Inline, TransferStatus};

use crate::borrowed::Bytes;
use crate::checksum::Crc32;
use crate::memory::Memory;

pub struct Message {
    pub immediate: Option<u32>,
    pub content: Content,
}

/// Content of a message. A `token` names the loan whose completion its sender waits for.
pub enum Content {
    Inline(Inline),
    /// RDMA write.
    Write {
        to: RemoteBuffer,
        bytes: Bytes,
        token: Option<u16>,
    },
    /// RDMA write of `len` bytes that has arrived and is in place.
    Written {
        len: usize,
        token: Option<u16>,
    },
    /// Question of an RDMA read: it asks for `len` bytes.
    ReadRequest {
        from: RemoteBuffer,
        len: usize,
        token: u16,
    },
    /// Answer of an RDMA read.
    ReadResponse {
        copy: LentSlice,
        token: u16,
    },
    /// Message in the sender's memory.
    Lent {
        head: Inline,
        memory: Arc<Memory>,
        segments: Vec<(u64, usize)>,
        token: u16,
    },
    /// Message that was copied in transit.
    Copied {
        head: Inline,
        copy: LentSlice,
        token: Option<u16>,
    },
    /// Receipt: the status that the receiver gave the message of this token.
    Receipt {
        token: u16,
        status: TransferStatus,
    },
    /// End of the connection, after which nothing follows. `Some` gives the reason of an error.
    End(Option<String>),
}

impl Content {
    pub fn len(&self) -> usize {
        match self {
            Content::Inline(bytes) => bytes.bytes().len(),
            Content::Write { bytes, .. } => bytes.len(),
            Content::Written { len, .. } => *len,
            Content::Lent { segments, .. } => segments.iter().map(|segment| segment.1).sum(),
            Content::Copied { copy, .. } | Content::ReadResponse { copy, .. } => copy.len(),
            Content::ReadRequest { from, len, .. } => question(*from, *len).len(),
            Content::Receipt { .. } | Content::End(_) => 0,
        }
    }

    /// Number of bytes that travel behind the frame's header.
    pub fn on_the_wire(&self) -> usize {
        match self {
            Content::Lent { head, .. } | Content::Copied { head, .. } => head.bytes().len() + self.len(),
            Content::Write { to, bytes, .. } => question(*to, bytes.len()).len() + self.len(),
            _ => self.len(),
        }
    }

    /// Whether the content is for the peer's engine, not for its program.
    pub fn is_control(&self) -> bool {
        matches!(
            self,
            Content::ReadRequest { .. }
                | Content::ReadResponse { .. }
                | Content::Receipt { .. }
                | Content::End(_)
        )
    }

    pub fn is_receipt(&self) -> bool {
        matches!(self, Content::Receipt { .. })
    }

    fn kind(&self) -> u8 {
        match self {
            Content::Inline(_) => 0,
            Content::Written { .. } => 1,
            Content::Lent { .. } => 2,
            Content::Copied { .. } => 3,
            Content::Receipt { .. } => 4,
            Content::End(_) => 5,
            Content::Write { .. } => 6,
            Content::ReadRequest { .. } => 7,
            Content::ReadResponse { .. } => 8,
        }
    }

    fn token(&self) -> Option<u16> {
        match self {
            Content::Lent { token, .. }
            | Content::Receipt { token, .. }
            | Content::ReadRequest { token, .. }
            | Content::ReadResponse { token, .. } => Some(*token),
            Content::Write { token, .. } | Content::Written { token, .. } | Content::Copied { token, .. } => {
                *token
            }
            Content::Inline(_) | Content::End(_) => None,
        }
    }
}

/// A message in transit.
pub struct Frame {
    sequence: u64,
    message: Message,
    /// Checksum over header and payload, as they were sent.
    checksum: u32,
    /// Header and payload as they arrive, if one of their bits flipped.
    damaged: Option<Vec<u8>>,
}

impl Frame {
    pub fn new(sequence: u64, message: Message) -> Self {
        let mut frame = Frame { sequence, message, checksum: 0, damaged: None };
        frame.checksum = frame.sum();
        frame
    }

    pub fn content(&self) -> &Content {
        &self.message.content
    }

    /// Flips one bit of the frame's copy in transit. `dice` chooses the bit.
    pub fn damage(&mut self, dice: u64) {
        let mut bytes = Vec::new();
        self.each_piece(|piece| bytes.extend_from_slice(piece));
        let bit = dice % (bytes.len() as u64 * 8);
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
        self.damaged = Some(bytes);
    }

    /// Returns the message, if the checksum matches the bytes that arrived.
    pub fn open(self) -> Option<Message> {
        (self.sum() == self.checksum).then_some(self.message)
    }

    /// Checksum of the bytes in transit.
    fn sum(&self) -> u32 {
        let mut sum = Crc32::new();
        match &self.damaged {
            Some(bytes) => sum.add(bytes),
            None => self.each_piece(|piece| sum.add(piece)),
        }
        sum.sum()
    }

    /// Calls `take` with header and payload, piece by piece.
    fn each_piece(&self, mut take: impl FnMut(&[u8])) {
        let Message { immediate, content } = &self.message;
        take(&self.sequence.to_le_bytes());
        take(&[content.kind(), u8::from(immediate.is_some()), u8::from(content.token().is_some())]);
        take(&immediate.unwrap_or_default().to_le_bytes());
        take(&content.token().unwrap_or_default().to_le_bytes());
        take(&(content.len() as u64).to_le_bytes());
        match content {
            Content::Inline(bytes) => take(bytes.bytes()),
            Content::Lent { head, memory, segments, .. } => {
                take(head.bytes());
                each_part(memory, segments, take);
            }
            Content::Copied { head, copy, .. } => {
                take(head.bytes());
                take(copy);
            }
            Content::Write { to, bytes, .. } => {
                take(&question(*to, bytes.len()));
                match bytes {
                    Bytes::InPlace(memory, segments) => each_part(memory, segments, take),
                    Bytes::Copied(copy) => take(copy),
                }
            }
            Content::ReadRequest { from, len, .. } => take(&question(*from, *len)),
            Content::ReadResponse { copy, .. } => take(copy),
            Content::Receipt { status, .. } => take(&[*status as u8]),
            Content::End(broken) => take(broken.as_deref().unwrap_or_default().as_bytes()),
            Content::Written { .. } => {}
        }
    }
}

/// Encodes a place in the peer's memory, and a length in bytes.
fn question(place: RemoteBuffer, len: usize) -> [u8; 28] {
    let mut question = [0; 28];
    let [offset, most, len] = [place.offset, place.len, len].map(|number| (number as u64).to_le_bytes());
    let pieces = [&place.handle.0.to_le_bytes()[..], &offset, &most, &len];
    question.iter_mut().zip(pieces.into_iter().flatten()).for_each(|(to, from)| *to = *from);
    question
}

/// Calls `take` with each piece of the sender's memory that a frame refers to.
fn each_part(memory: &Memory, segments: &[(u64, usize)], mut take: impl FnMut(&[u8])) {
    for (at, len) in parts(memory, segments) {
        // SAFETY: inside `memory`, checked by `parts`; a frame does not outlive the loan, which keeps the blocks from
        // being written.
        take(unsafe { std::slice::from_raw_parts(at.as_ptr(), len) });
    }
}

/// Copies the bytes of `memory` at `segments`.
pub fn copy_of(memory: &Memory, segments: &[(u64, usize)]) -> LentSlice {
    // SAFETY: `parts` checks the bounds; the sender's loan, or its endpoint in the middle of a post, keeps the blocks from
    // being written.
    unsafe { PrivateCopy::take(&parts(memory, segments)) }
}

/// Returns address and length of each segment.
pub fn parts(memory: &Memory, segments: &[(u64, usize)]) -> Vec<(NonNull<u8>, usize)> {
    let part =
        |&(offset, len): &(u64, usize)| (memory.at(offset, len).expect("blocks lie in their arena"), len);
    segments.iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> Vec<Message> {
        let memory = Memory::new(256);
        let segments = vec![(0, 100), (128, 28)];
        let head = Inline::gather(b"head", b"");
        let to = RemoteBuffer { handle: udeck_via::MemHandle(9), offset: 8, len: 700 };
        let contents = [
            Content::Inline(Inline::gather(b"inline", b"")),
            Content::Written { len: 300, token: Some(7) },
            Content::Write { to, bytes: Bytes::InPlace(memory.clone(), segments.clone()), token: Some(7) },
            Content::Write { to, bytes: Bytes::Copied(copy_of(&memory, &segments)), token: None },
            Content::ReadRequest { from: to, len: 300, token: 7 },
            Content::ReadResponse { copy: copy_of(&memory, &segments), token: 7 },
            Content::Copied { head, copy: copy_of(&memory, &segments), token: None },
            Content::Lent { head, memory, segments, token: 3 },
            Content::Receipt { token: 3, status: TransferStatus::Refused },
            Content::End(Some("words".into())),
        ];
        contents.into_iter().map(|content| Message { immediate: Some(5), content }).collect()
    }

    #[test]
    fn whole_frames_open() {
        for message in messages() {
            assert!(Frame::new(9, message).open().is_some());
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        for (which, kind) in messages().iter().map(|message| message.content.kind()).enumerate() {
            let mut bits = 0;
            Frame::new(9, messages().swap_remove(which)).each_piece(|piece| bits += 8 * piece.len() as u64);
            for bit in 0..bits {
                let mut frame = Frame::new(9, messages().swap_remove(which));
                frame.damage(bit);
                assert!(frame.open().is_none(), "bit {bit} of kind {kind}");
            }
        }
    }
}
