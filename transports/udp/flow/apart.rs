//! Datagrams beside the stream, which are not sent again (RFC 9221): pieces of unreliable messages. They are acknowledged
//! and count as under way like its packets: that is how a sender learns how fast it may go, and what was lost.

use std::ops::Range;
use std::time::Instant;

use super::sent::Load;
use super::{Flow, Ignored, State};
use crate::flow::arrivals::Wish;
use crate::wire::{AckRanges, HEADER, Piece, PieceHeader};
use udeck_session::Content;

/// A piece that may be sent now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The bytes of the message that it carries.
    pub range: Range<u32>,
    /// The message's.
    pub total: u32,
    /// Bytes of the datagram.
    pub size: usize,
}

impl Flow {
    /// The piece of a message of `total` bytes that goes next, from its byte `at`, if one may go now.
    pub fn cut(&mut self, at: u32, total: u32, content: &Content) -> Option<Cut> {
        if self.state != State::Open || !self.sent.has_room() {
            return None;
        }
        let header = PieceHeader::len_of(content) + self.arrivals.header() - HEADER;
        let room = u32::try_from(self.mtu.current() - header).unwrap_or(u32::MAX);
        let range = at..at.saturating_add(room).min(total);
        let size = header + (range.end - range.start) as usize;
        let fits = self.sent.in_flight() + size <= self.congestion.window();
        fits.then_some(Cut { range, total, size })
    }

    /// That piece, of `message`, goes: its header, with what there is to acknowledge. `last`: nothing follows for now.
    pub fn piece(
        &mut self,
        now: Instant,
        message: u64,
        cut: &Cut,
        content: &Content,
        last: bool,
    ) -> PieceHeader {
        let (connection, number) = (self.names.theirs, self.number);
        let Cut { range, total, size } = cut;
        let piece = Piece {
            connection,
            number,
            message,
            offset: range.start,
            total: *total,
            content: *content,
            last,
            acks: None,
            payload: &[],
        };
        let told = self.arrivals.tells();
        let acks: Option<AckRanges<_>> = self.arrivals.acknowledgement(now);
        let header = PieceHeader::new(&piece, acks);
        self.number += 1;
        self.stats.sent += 1;
        self.arrivals.sent(now, true);
        if *size == self.mtu.current() {
            self.mtu.want();
        }
        self.sent.push(number, now, *size, Load::Piece(message));
        self.sent.tells(told);
        header
    }

    /// A piece came.
    ///
    /// # Errors
    /// Why it is to be ignored.
    pub fn receive_piece(&mut self, now: Instant, piece: &Piece<'_>) -> Result<(), Ignored> {
        let wish = if piece.last { Wish::Last } else { Wish::Soon };
        let done = self.admits(piece.connection, piece.number, piece.acks.as_ref());
        match done {
            Ok(()) => {
                self.stats.received += 1;
                self.note(now, piece.number, wish, piece.acks.as_ref());
            }
            Err(_) => self.stats.ignored += 1,
        }
        done
    }

    /// A message of which a piece has arrived, or was given up (`true`); one at a time, for each piece that was sent.
    pub fn next_settled(&mut self) -> Option<(u64, bool)> {
        self.settled.pop_front()
    }
}
