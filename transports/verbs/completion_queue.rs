//! Completion queues: any polling thread takes completions for all links of the NIC, and their news are announced.
//! An owner sleeps beside the completion channel. A completion that nobody has taken wakes the owner, too: before it
//! sleeps, it asks the device to report the next completion, and then takes the earlier ones.

use std::sync::Arc;
use std::time::Duration;

use udeck_session::completion_queue::{self, Backend, HasArrivals};
use udeck_session::poll::Bell;
use udeck_via::Result;
use udeck_via::transport::{Queue, Queues};

use crate::core::Core;
use crate::link::VerbsLink;

pub type CompletionQueue = completion_queue::CompletionQueue<BesideChannel>;
pub type Slots = completion_queue::Slots<BesideChannel>;

/// Backend of the NIC's completion queues: they share its one completion channel.
pub struct BesideChannel(pub Arc<Core>);

/// Takes places for a connection that the NIC of `core` is about to make.
///
/// # Errors
/// The errors of [`completion_queue::Slots::take`].
pub fn take_slots(core: &Arc<Core>, queues: &Queues<'_>) -> Result<Slots> {
    Slots::take(queues, |beside: &BesideChannel| Arc::ptr_eq(&beside.0, core))
}

impl HasArrivals for VerbsLink {
    fn has_arrivals(&self) -> bool {
        VerbsLink::has_arrivals(self)
    }
}

impl Backend for BesideChannel {
    type Link = VerbsLink;
    type SlotData = ();

    fn sleep(&self, bell: &Bell, limit: Duration) {
        bell.sleep(Some(&*self.0.completions.channel), limit);
    }

    /// Does nothing: the helper sends what the link still has to send.
    fn vacated(&self, _queue: Queue, _link: Arc<VerbsLink>, (): ()) {}
}
