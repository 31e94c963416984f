//! Completion queues: their owners sleep beside the one socket, and while one is armed the helper watches it.

use std::sync::Arc;
use std::time::Duration;

use udeck_session::completion_queue::{self, Backend};
use udeck_session::poll::Bell;
use udeck_via::Result;
use udeck_via::transport::{Queue, Queues};

use crate::core::{Core, QuicLink};

pub type CompletionQueue = completion_queue::CompletionQueue<BesideSocket>;
pub type Slots = completion_queue::Slots<BesideSocket>;

/// See the module.
pub struct BesideSocket(pub Arc<Core>);

/// Takes places for a connection that is to be made by the NIC of `core`.
///
/// # Errors
/// As [`completion_queue::Slots::take`].
pub fn take_slots(core: &Arc<Core>, queues: &Queues<'_>) -> Result<Slots> {
    Slots::take(queues, |beside: &BesideSocket| Arc::ptr_eq(&beside.0, core))
}

impl Backend for BesideSocket {
    type Link = QuicLink;
    type SlotData = ();

    fn sleep(&self, bell: &Bell, limit: Duration) {
        self.0.rest.sleep(&self.0, bell, limit);
    }

    /// What its link still has to send, timers see to.
    fn vacated(&self, _queue: Queue, _link: Arc<QuicLink>, (): ()) {}
}
