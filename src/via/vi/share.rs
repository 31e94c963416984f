//! One block, lent to many peers.

use std::sync::Arc;

use super::{Vi, foreign_block, not_connected};
use crate::error::Result;
use crate::mem::Block;
use crate::transport::PostedBuffer;
use udeck_sys::process::is_forked;

impl Vi {
    /// As [`Vi::hand_off`] of a block that others read too, here or at other peers: it is freed when the last of its
    /// owners is gone. While the peer reads it, one of them is here: so `Arc::get_mut` gives it out only when nobody
    /// reads it any more.
    ///
    /// # Errors
    /// As [`Vi::hand_off`]; then this VI has kept no owner.
    pub fn hand_off_shared(&mut self, immediate: Option<u32>, head: &[u8], block: &Arc<Block>) -> Result {
        if !self.outbox.owns(block) {
            return Err(foreign_block());
        }
        let Some(endpoint) = self.endpoint.as_mut().filter(|_| !is_forked()) else {
            return Err(not_connected("hand-off", self.state));
        };
        let segment = [(block.offset(), block.len())];
        match endpoint.lend(immediate, head, &segment, PostedBuffer::Owner(Box::new(block.clone()))) {
            Ok(()) => Ok(()),
            Err((refused, _owner)) => Err(self.refused(refused)),
        }
    }
}
