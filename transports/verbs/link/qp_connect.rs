//! Links whose peer comes through rdma_cm.

use std::time::Instant;

use udeck_sys::job_time;

use super::{Shared, VerbsLink};
use crate::cm::objects::{EventNotice, Request};
use crate::cm::{PATIENCE, words};
use crate::ffi::cm::cm_event;

impl VerbsLink {
    /// Handles the peer's request, which has the invitation to this link.
    pub fn meet(&self, request: Request) {
        let mut shared = self.shared.lock();
        let Shared { connection, queue, invited_since, .. } = &mut *shared;
        *invited_since = None;
        // A link that is over meanwhile drops the request.
        if let Some(queue) = queue
            && let Err(error) = queue.admit(request, &self.core.hca, &self.core.settings)
        {
            let device = &self.core.hca.name;
            connection
                .fail(&format!("{device} cannot accept the peer's connection through rdma_cm: {error}"));
        }
        self.finish(shared);
    }

    /// Handles an event of rdma_cm. A peer that has hung up may have sent a reason or *done* on the out-of-band
    /// connection, so that connection is waited for.
    pub fn on_manager(&self, event: &EventNotice) {
        let Some(why) = words::failure(event) else { return };
        match event.kind {
            cm_event::TIMEWAIT_EXIT => {}
            cm_event::DISCONNECTED => {
                let mut shared = self.shared.lock();
                shared.failed_since.get_or_insert_with(job_time);
                self.finish(shared);
            }
            _ => self.give_up(&format!("rdma_cm on {}: the peer: {why}", self.core.hca.name)),
        }
    }
}

impl Shared {
    /// Ends the link if the invited peer has not come in time.
    pub(super) fn check_invitation(&mut self, now: Instant) {
        if self.invited_since.is_some_and(|since| now.duration_since(since) >= PATIENCE) {
            self.connection.fail("the peer was let in, but did not come through rdma_cm");
        }
    }
}
