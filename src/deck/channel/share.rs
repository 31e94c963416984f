//! Messages that others have, too.

use std::sync::Arc;
use std::time::Instant;

use udeck_via::{Block, Error as ViaError};

use super::load::Load;
use super::{Channel, Patience, Ticket, is_busy, look_again};
use crate::error::Result;
use crate::protocol::{MAX_INLINE, Protocol};
use crate::wire::{self, Kind};

impl Channel {
    /// Accepts a message that the caller keeps an owner of. Waits, if it must, for room at the mailbox, and by `handshake`
    /// for the memory of a copy: its descriptor has to own what it sends.
    pub fn post_shared(
        &mut self,
        block: &Arc<Block>,
        protocol: Protocol,
        patience: Patience,
    ) -> Result<Ticket> {
        if self.world.has_undelivered() {
            self.undelivered()?;
        }
        let protocol = self.resolve(protocol, block.len());
        let ticket = match protocol {
            Protocol::Handshake => {
                return self.post_copy(block.bytes(), block.notes()[0], protocol, patience);
            }
            Protocol::Eager | Protocol::HandOff if self.queue.is_empty() => {
                self.post_shared_now(block, protocol, patience)?
            }
            _ => self.post_shared_queued(block, protocol, patience)?,
        };
        self.counters.posted(block.len());
        Ok(ticket)
    }

    fn post_shared_queued(
        &mut self,
        block: &Arc<Block>,
        protocol: Protocol,
        patience: Patience,
    ) -> Result<Ticket> {
        self.post_queued(Load::Shared(block.clone()), protocol, patience).map_err(|(error, _)| error)
    }

    fn post_shared_now(&mut self, block: &Arc<Block>, how: Protocol, patience: Patience) -> Result<Ticket> {
        let Err(mut error) = self.send_shared(block, how) else { return Ok(None) };
        if matches!(patience, Patience::Start) && is_busy(&error) {
            return self.post_shared_queued(block, how, patience);
        }
        let (start, until) = (Instant::now(), self.until(patience));
        let mut asked = false;
        while is_busy(&error) {
            let deadline = self.may_wait_beside(block.capacity(), until, start, &error)?;
            // Ask to be told of room, look once more, then wait.
            if asked {
                self.wait(look_again(&error, deadline));
            } else {
                self.vi.want_room();
            }
            asked = !asked;
            match self.send_shared(block, how) {
                Ok(()) => return Ok(None),
                Err(again) => error = again,
            }
        }
        Err(self.translate(error))
    }

    pub(super) fn send_shared(&mut self, block: &Arc<Block>, how: Protocol) -> Result<(), ViaError> {
        let tag = Some(block.notes()[0]);
        if how == Protocol::HandOff {
            return self.vi.hand_off_shared(tag, &wire::head(Kind::HandOff, 0), block);
        }
        if block.len() > MAX_INLINE {
            return self.send_copy(block, 0..block.len(), Kind::Eager);
        }
        self.vi.send_inline(tag, &wire::head(Kind::Eager, 0), block.bytes())?;
        self.counters.copied(block.len());
        Ok(())
    }
}
