//! Waiting for room without holding the thread.

use std::time::Instant;

use udeck_via::CqHandle;
use udeck_via::transport::Armed;

use super::{Channel, MEMORY_PAUSE};

/// More entries than the connection's two work queues put on their completion queue while nothing new comes.
const LOOKS: usize = 8;

impl Channel {
    /// Asks to be told of room. Call it before the last try, and [`Channel::arm`] after it.
    pub fn ask_for_room(&mut self) {
        // News that came before that try are none after it.
        for _ in 0..LOOKS {
            if self.cq.poll().is_none() {
                break;
            }
        }
        self.vi.want_room();
    }

    /// Gets ready to be woken by whatever the peer does from now on, and no later than the second says: where others move
    /// the queue along, memory has to come free, or messages have to be read, nobody may tell.
    pub fn arm(&mut self) -> (Armed, Option<Instant>) {
        let unheard = self.has_queued() || self.has_to_look.get();
        (self.cq.arm(), unheard.then(|| Instant::now() + MEMORY_PAUSE))
    }

    pub fn handle(&self) -> CqHandle {
        self.cq.handle()
    }
}
