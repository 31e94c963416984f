//! Hand-off of memory that several own, to many peers.

use super::{Vi, foreign_block, not_connected};
use crate::error::Result;
use crate::mem::SharedBytes;
use crate::transport::PostedBuffer;
use udeck_sys::process::is_forked;

impl Vi {
    /// Hands off memory that others read, too, here or at other peers: it is freed when the last of its owners is gone. While
    /// the peer reads it, this VI keeps one owner, so [`SharedBytes::into_block`] returns the block only when it is not read
    /// any more.
    ///
    /// # Errors
    /// Those of [`Vi::hand_off`]; this VI has then kept no owner.
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
