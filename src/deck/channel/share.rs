//! Messages that others have, too.

use std::sync::Arc;
use std::time::Instant;

use udeck_via::{Block, Error as ViaError};

use super::{Channel, Patience, is_busy, look_again};
use crate::error::Result;
use crate::protocol::{MAX_INLINE, Protocol};
use crate::wire::{self, Kind};

impl Channel {
    /// Accepts a message that the caller keeps an owner of. Waits, if it must, for room at the mailbox, and for memory
    /// where it has to be copied.
    pub fn post_shared(&mut self, block: &Arc<Block>, protocol: Protocol, patience: Patience) -> Result {
        if self.world.has_undelivered() {
            self.undelivered()?;
        }
        let protocol = protocol.resolve(block.len(), self.caps, &self.world.config().auto);
        if self.has_queued() || !matches!(protocol, Protocol::Eager | Protocol::HandOff) {
            // What waits in the queue has one owner.
            return self.post_copy(block.bytes(), block.notes()[0], protocol, patience);
        }
        self.post_shared_now(block, protocol, patience)?;
        self.counters.posted(block.len());
        Ok(())
    }

    fn post_shared_now(&mut self, block: &Arc<Block>, how: Protocol, patience: Patience) -> Result {
        let Err(mut error) = self.send_shared(block, how) else { return Ok(()) };
        let (start, until) = (Instant::now(), self.until(patience));
        let mut asked = false;
        while is_busy(&error) {
            let deadline = self.may_wait(until, start, &error)?;
            // Ask to be told of room, look once more, then wait.
            if asked {
                self.wait(look_again(&error, deadline));
            } else {
                self.vi.want_room();
            }
            asked = !asked;
            match self.send_shared(block, how) {
                Ok(()) => return Ok(()),
                Err(again) => error = again,
            }
        }
        Err(self.translate(error))
    }

    fn send_shared(&mut self, block: &Arc<Block>, how: Protocol) -> Result<(), ViaError> {
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
