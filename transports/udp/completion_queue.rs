//! Completion queues of a UDP NIC. Their owners sleep beside the NIC's socket. While one is armed, the helper
//! watches the socket.

use std::sync::Arc;
use std::time::Duration;

use udeck_session::completion_queue::{self, Backend};
use udeck_session::poll::Bell;
use udeck_via::Result;
use udeck_via::transport::{Queue, Queues};

use crate::core::{Core, ViLink};

pub type CompletionQueue = completion_queue::CompletionQueue<SocketBackend>;
pub type Slots = completion_queue::Slots<SocketBackend>;

/// Backend of the NIC's completion queues: the NIC itself, because all of them read its one socket.
pub struct SocketBackend(pub Arc<Core>);

/// Takes places for a new connection of the NIC of `core`.
///
/// # Errors
/// The errors of [`completion_queue::Slots::take`].
pub fn take_slots(core: &Arc<Core>, queues: &Queues<'_>) -> Result<Slots> {
    Slots::take(queues, |beside: &SocketBackend| Arc::ptr_eq(&beside.0, core))
}

impl Backend for SocketBackend {
    type Link = ViLink;
    type SlotData = ();

    fn sleep(&self, bell: &Bell, limit: Duration) {
        self.0.socket_wait.wait(&self.0, bell, limit);
    }

    /// Does nothing: timers drive the data that the link still has to send.
    fn vacated(&self, _queue: Queue, _link: Arc<ViLink>, (): ()) {}
}
