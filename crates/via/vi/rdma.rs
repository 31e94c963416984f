//! RDMA of the message layer: with blocks, without descriptors.

use super::{Vi, foreign_block};
use crate::descriptor::Status;
use crate::error::{Error, Result};
use crate::mem::{Block, RemoteBuffer, SharedBytes};
use crate::transport::{PostedBuffer, TransferStatus};

/// An RDMA read that was posted.
#[derive(Debug)]
pub enum Reading {
    /// The read is over; the block has its data.
    Done(Block),
    /// The read is in progress; [`Vi::read_done`] will return this number.
    UnderWay(u64),
}

/// An RDMA read that is over.
#[derive(Debug)]
pub struct ReadDone {
    /// Number of [`Reading::UnderWay`].
    pub number: u64,
    /// The block with its data, or why there are none.
    pub block: Result<Block>,
}

impl Vi {
    /// Copies the block's bytes into the peer's window and sends the immediate data. The block is recycled when it is not
    /// read any more, without notice. No completion: if only the peer finds that the place is not allowed, a reliable
    /// connection ends.
    ///
    /// # Errors
    /// The block comes back with [`Error::Full`], [`Error::RdmaProtection`], [`Error::Unsupported`],
    /// [`Error::InvalidParameter`] when it is of another NIC, or a final one.
    pub fn rdma_write(
        &mut self,
        block: Block,
        to: RemoteBuffer,
        immediate: Option<u32>,
    ) -> Result<(), (Error, Block)> {
        if !self.outbox.owns(&block) {
            return Err((foreign_block(), block));
        }
        let segment = [(block.offset(), block.len())];
        match self.write_located(&segment, to, immediate, PostedBuffer::Block(block)) {
            Ok(_) => Ok(()),
            Err((error, PostedBuffer::Block(block))) => Err((error, block)),
            Err((_, PostedBuffer::Caller(_) | PostedBuffer::Owner(_))) => {
                unreachable!("an endpoint returns what it was given")
            }
        }
    }

    /// Writes memory that others read, too: this VI keeps an owner while the memory is read.
    ///
    /// # Errors
    /// Those of [`Vi::rdma_write`]; this VI has then kept no owner.
    pub fn rdma_write_shared(
        &mut self,
        bytes: &SharedBytes,
        to: RemoteBuffer,
        immediate: Option<u32>,
    ) -> Result {
        let Some(offset) = bytes.offset_in(&self.outbox) else {
            return Err(foreign_block());
        };
        let segment = [(offset, bytes.len())];
        let written =
            self.write_located(&segment, to, immediate, PostedBuffer::Owner(Box::new(bytes.clone())));
        written.map(drop).map_err(|(error, _owner)| error)
    }

    /// Reads from the peer's window, or from memory that it shares ([`crate::Nic::readable`]), as many bytes as the block
    /// has. The peer learns nothing of it. If the read is not over when this returns, [`Vi::read_done`] returns it when it
    /// is: request notification ([`Vi::request_send_notify`]), poll once more, then wait.
    ///
    /// # Errors
    /// The block comes back with [`Error::Full`] (try again), [`Error::RdmaProtection`], [`Error::Unsupported`],
    /// [`Error::InvalidParameter`] when it is of another NIC, or a final one.
    pub fn rdma_read(&mut self, into: Block, from: RemoteBuffer) -> Result<Reading, (Error, Block)> {
        if !self.outbox.owns(&into) {
            return Err((foreign_block(), into));
        }
        let bound = self.limits.descriptors;
        if self.sends.reads.len() >= bound {
            let bound = format!("{bound} reads, until read_done takes some").into();
            return Err((Error::Full { what: "the list of RDMA reads", bound }, into));
        }
        match self.read_located(&[(into.offset(), into.len())], from) {
            Ok(Some(TransferStatus::Arrived)) => Ok(Reading::Done(into)),
            Ok(Some(_)) => Err((forbidden(), into)),
            Ok(None) => {
                let number = self.next_send;
                self.next_send += 1;
                self.sends.reads.add(number, into);
                Ok(Reading::UnderWay(number))
            }
            Err(error) => Err((error, into)),
        }
    }

    /// The next [`Vi::rdma_read`] that is over and was not when it returned. Reads that were in progress when the connection
    /// ended are over with its error.
    pub fn read_done(&mut self) -> Option<ReadDone> {
        if self.sends.reads.len() == 0 {
            return None;
        }
        self.collect_sends();
        let (number, block, status) = self.sends.reads.pop_over()?;
        let block = match status {
            Status::Done => Ok(block),
            Status::RdmaProtectionError => Err(forbidden()),
            Status::Flushed => Err(Error::Closed),
            _ => Err(Error::Lost("the connection was lost under an RDMA read".into())),
        };
        Some(ReadDone { number, block })
    }
}

/// The error without a place: the caller knows which place it named.
fn forbidden() -> Error {
    Error::RdmaProtection { handle: 0, offset: 0, len: 0 }
}
