//! A link whose peer comes through rdma_cm.

use std::time::Instant;

use udeck_sys::job_time;

use super::{Shared, VerbsLink};
use crate::cm::objects::{EventNotice, Request};
use crate::cm::{PATIENCE, words};
use crate::ffi::cm::cm_event;

impl VerbsLink {
    /// The peer has come, with the invitation to this link.
    pub fn meet(&self, request: Request) {
        let mut shared = self.shared.lock();
        let Shared { connection, queue, invited_since, .. } = &mut *shared;
        *invited_since = None;
        // One that is over meanwhile is met by nobody.
        if let Some(queue) = queue
            && let Err(error) = queue.admit(request, &self.core.hca, &self.core.settings)
        {
            let device = &self.core.hca.name;
            connection
                .fail(&format!("{device} cannot accept the peer's connection through rdma_cm: {error}"));
        }
        self.finish(shared);
    }

    /// rdma_cm tells something of the connection. A peer that has hung up may have said why on the out-of-band connection, or that it is
    /// done: that is waited for.
    pub fn on_manager(&self, told: &EventNotice) {
        let Some(why) = words::failure(told) else { return };
        match told.kind {
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
    /// Nobody is waited for without end.
    pub(super) fn check_invitation(&mut self, now: Instant) {
        if self.invited_since.is_some_and(|since| now.duration_since(since) >= PATIENCE) {
            self.connection.fail("the peer was let in, but did not come through rdma_cm");
        }
    }
}
