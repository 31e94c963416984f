//! Allocating memory for messages that the program makes, and waiting if there is none.

use std::time::Instant;

use udeck_via::mem::Fill;
use udeck_via::{Block, Deadline, Error as ViaError, Pause, Spinner};

use crate::error::{Error, Result, check_process};
use crate::long_wait::LongWait;
use crate::memory::accounting::Memory;
use crate::protocol::copy::FRAGMENT;
use crate::wait_policy::{MEMORY_PAUSE, WaitPolicy};
use crate::world_state::{LARGE, WorldState};

impl WorldState {
    /// Allocates a block for a message. Waits while there is no memory and others have some that may come
    /// back.
    #[inline]
    pub fn block_for_message(&self, len: usize, fill: Fill, policy: WaitPolicy) -> Result<Block> {
        let limit = self.max_transfer();
        if len > limit {
            return Err(Error::TooLarge { asked: len, limit });
        }
        let allocated =
            if len < LARGE { self.allocate(len, fill) } else { self.allocate_leaving_room(len, fill) };
        match allocated {
            Ok(block) => Ok(block),
            Err(error) => self.wait_for_block(len, fill, policy, error),
        }
    }

    /// Allocates memory, but while messages wait to be sent, not the last piece: messages that are copied by
    /// fragments could never be sent if the program took it all for more messages.
    #[inline(never)]
    pub fn allocate_leaving_room(&self, len: usize, fill: Fill) -> Result<Block, ViaError> {
        let block = self.allocate(len, fill)?;
        if self.progress().is_busy() {
            self.allocate(FRAGMENT, Fill::Keep)?;
        }
        Ok(block)
    }

    #[cold]
    fn wait_for_block(
        &self,
        len: usize,
        fill: Fill,
        policy: WaitPolicy,
        mut error: ViaError,
    ) -> Result<Block> {
        check_process()?;
        let (start, until) = (Instant::now(), policy.until(self.config().deadline));
        let mut wait = LongWait::begin("memory");
        let what = || format!("making a message of {len} bytes");
        let mut spinner = Spinner::new(self.oversubscribed());
        loop {
            if !matches!(error, ViaError::NoMemory { .. }) {
                return Err(Error::via(what(), error));
            }
            let holders = self.holders(Memory::Outbox);
            if !holders.may_give_back() {
                // Memory may have come back since the error, the last of it while the holders were determined.
                let holders = holders.to_string();
                let no_memory = |error| Error::NoMemory { what: what(), holders, source: Box::new(error) };
                return self.allocate(len, fill).map_err(no_memory);
            }
            let whom = || format!("memory: {error}; {holders}");
            match until {
                None => return Err(Error::WouldBlock { what: "making the message", whom: whom() }),
                Some(deadline) if deadline.passed() => {
                    return Err(Error::Deadline { what: what(), waited: start.elapsed(), whom: whom() });
                }
                Some(deadline) => {
                    self.pause_for_memory(&mut spinner, deadline);
                    wait.publish_if_long(self, 0, || holders.wait());
                    wait.check_interrupt(self)?;
                }
            }
            match self.allocate_leaving_room(len, fill) {
                Ok(block) => return Ok(block),
                Err(again) => error = again,
            }
        }
    }

    /// Pauses with a growing interval: receivers give memory back without a notification.
    fn pause_for_memory(&self, spinner: &mut Spinner, deadline: Deadline) {
        self.progress_other_postboxes();
        if spinner.pause() == Pause::Sleep {
            std::thread::sleep(MEMORY_PAUSE.min(deadline.remaining()));
        }
    }
}
