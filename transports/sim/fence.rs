//! RDMA reads under way, and what waits behind a fence until they are over.

use udeck_via::transport::TransferStatus;

use crate::connection::{End, Side};
use crate::frame::{Content, Message};
use crate::world::World;

/// A read that is not over.
pub struct Reading {
    /// Where its data go, in the outbox.
    pub segments: Vec<(u64, usize)>,
    /// Whether its question was sent: a fence holds it back like anything else.
    pub is_asked: bool,
}

/// What was posted behind a fence, and the fences themselves.
pub enum Behind {
    /// Nothing passes while a read is under way that was asked before.
    Fence,
    Message(Message),
}

impl End {
    /// Messages that wait behind a fence.
    pub fn held_back(&self) -> usize {
        self.behind.iter().filter(|behind| matches!(behind, Behind::Message(_))).count()
    }
}

impl World {
    /// What `side` sends from now on waits until all reads that it has posted are over.
    pub fn fence(&mut self, number: u64, side: Side) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let end = &mut connection.ends[side];
        if !end.reads.is_empty() {
            end.behind.push_back(Behind::Fence);
        }
    }

    /// Notes that a question is sent.
    pub fn note_asked(&mut self, number: u64, side: Side, content: &Content) {
        if let Content::Ask { token, .. } = content
            && let Some(connection) = self.connections.get_mut(&number)
            && let Some(reading) = connection.ends[side].reads.get_mut(token)
        {
            reading.is_asked = true;
        }
    }

    /// A read of `side` is over: sends what waited for it.
    pub fn pass_fences(&mut self, number: u64, side: Side) {
        while let Some(connection) = self.connections.get_mut(&number) {
            let end = &mut connection.ends[side];
            let is_closed = end.reads.values().any(|reading| reading.is_asked);
            if is_closed && matches!(end.behind.front(), Some(Behind::Fence)) {
                return;
            }
            match end.behind.pop_front() {
                Some(Behind::Fence) => {}
                // It was given up.
                Some(Behind::Message(Message { content: Content::Ask { token, .. }, .. }))
                    if !end.reads.contains_key(&token) => {}
                Some(Behind::Message(message)) => self.launch(number, side, message),
                None => return,
            }
        }
    }

    /// No read of `side` is answered any more, nor is written what they were to read into. What was posted behind them goes
    /// on its way.
    pub fn give_reads_up(&mut self, number: u64, side: Side, status: TransferStatus) {
        let Some(connection) = self.connections.get(&number) else { return };
        // The oldest first, so that none is asked that is to be given up anyway.
        let end = &connection.ends[side];
        let mut tokens: Vec<(bool, u16)> =
            end.reads.iter().map(|(token, reading)| (reading.is_asked, *token)).collect();
        tokens.sort_unstable();
        for (_, token) in tokens {
            self.settle(number, side, token, status);
        }
    }
}
