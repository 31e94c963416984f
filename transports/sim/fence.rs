//! RDMA reads under way, and the messages that wait behind a fence until the reads are complete.

use udeck_via::transport::TransferStatus;

use crate::connection::{End, Side};
use crate::frame::{Content, Message};
use crate::world::World;

/// An RDMA read that is not complete.
pub struct Reading {
    /// Target of the data, as pieces of the outbox: offset and length in bytes.
    pub segments: Vec<(u64, usize)>,
    /// Whether the read's question was sent: a fence holds it back like any other message.
    pub is_asked: bool,
}

/// A message that was posted behind a fence, or a fence itself.
pub enum FencedItem {
    /// A fence: nothing behind it is sent while a read is under way whose question was sent before.
    Fence,
    Message(Message),
}

impl End {
    /// Messages that wait behind a fence.
    pub fn held_back(&self) -> usize {
        self.fenced.iter().filter(|item| matches!(item, FencedItem::Message(_))).count()
    }
}

impl World {
    /// Adds a fence: messages that `side` sends from now on wait until all reads that it has posted are complete.
    pub fn fence(&mut self, number: u64, side: Side) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let end = &mut connection.ends[side];
        if !end.reads.is_empty() {
            end.fenced.push_back(FencedItem::Fence);
        }
    }

    /// Notes that the question of a read is sent.
    pub fn note_asked(&mut self, number: u64, side: Side, content: &Content) {
        if let Content::ReadRequest { token, .. } = content
            && let Some(connection) = self.connections.get_mut(&number)
            && let Some(reading) = connection.ends[side].reads.get_mut(token)
        {
            reading.is_asked = true;
        }
    }

    /// Sends the messages that waited for a read of `side`, which is now complete.
    pub fn pass_fences(&mut self, number: u64, side: Side) {
        while let Some(connection) = self.connections.get_mut(&number) {
            let end = &mut connection.ends[side];
            let is_closed = end.reads.values().any(|reading| reading.is_asked);
            if is_closed && matches!(end.fenced.front(), Some(FencedItem::Fence)) {
                return;
            }
            match end.fenced.pop_front() {
                Some(FencedItem::Fence) => {}
                // This read was given up.
                Some(FencedItem::Message(Message {
                    content: Content::ReadRequest { token, .. }, ..
                })) if !end.reads.contains_key(&token) => {}
                Some(FencedItem::Message(message)) => self.launch(number, side, message),
                None => return,
            }
        }
    }

    /// Gives up all reads of `side`: none is answered any more, and their targets are not written. Messages posted
    /// behind them are sent.
    pub fn give_reads_up(&mut self, number: u64, side: Side, status: TransferStatus) {
        let Some(connection) = self.connections.get(&number) else { return };
        // Reads whose questions were not sent go first. Otherwise passing a fence would send a question that is
        // about to be given up.
        let end = &connection.ends[side];
        let mut tokens: Vec<(bool, u16)> =
            end.reads.iter().map(|(token, reading)| (reading.is_asked, *token)).collect();
        tokens.sort_unstable();
        for (_, token) in tokens {
            self.settle(number, side, token, status);
        }
    }
}
