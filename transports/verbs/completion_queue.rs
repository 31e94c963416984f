//! Completion queues: completions are taken by whoever looks, for all links of the NIC, and what comes of them is
//! announced; an owner sleeps beside the channel. What completes and was taken by nobody wakes it too: before it sleeps it
//! asks the device to tell of the next completion, and then takes what has completed before.

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

/// See the module.
pub struct BesideChannel(pub Arc<Core>);

/// Takes places for a connection that is to be made by the NIC of `core`.
///
/// # Errors
/// As [`completion_queue::Slots::take`].
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

    /// What its link still has to say, the helper sees to.
    fn vacated(&self, _queue: Queue, _link: Arc<VerbsLink>, (): ()) {}
}
