//! Memory of ours that several own, lent to many peers.

use super::{Vi, foreign_block, not_connected};
use crate::error::Result;
use crate::mem::SharedBytes;
use crate::transport::PostedBuffer;
use udeck_sys::process::is_forked;

impl Vi {
    /// As [`Vi::hand_off`] of memory that others read too, here or at other peers: it is freed when the last of its
    /// owners is gone. While the peer reads it, one of them is here: so [`SharedBytes::into_block`] gives it out only when nobody
    /// reads it any more.
    ///
    /// # Errors
    /// As [`Vi::hand_off`]; then this VI has kept no owner.
    pub fn hand_off_shared(&mut self, immediate: Option<u32>, head: &[u8], bytes: &SharedBytes) -> Result {
        let Some(offset) = bytes.offset_in(&self.outbox) else {
            return Err(foreign_block());
        };
        let Some(endpoint) = self.endpoint.as_mut().filter(|_| !is_forked()) else {
            return Err(not_connected("hand-off", self.state));
        };
        let segment = [(offset, bytes.len())];
        match endpoint.lend(immediate, head, &segment, PostedBuffer::Owner(Box::new(bytes.clone()))) {
            Ok(()) => Ok(()),
            Err((refused, _owner)) => Err(self.refused(refused)),
        }
    }
}
