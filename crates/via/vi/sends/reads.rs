//! RDMA reads of the message layer: into blocks, without a descriptor.

use super::{Kind, status_of};
use crate::attributes::Reliability;
use crate::descriptor::Status;
use crate::mem::Block;
use crate::transport::TransferStatus;

/// Reads that are in progress, or over and not reported: few at a time.
#[derive(Debug, Default)]
pub(in crate::vi) struct Reads(Vec<Read>);

#[derive(Debug)]
struct Read {
    number: u64,
    /// `None` while the block may be written.
    status: Option<Status>,
    /// Status with which it ends if the connection has ended, whatever became of its data.
    ends_as: Option<Status>,
    block: Block,
}

impl Reads {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn add(&mut self, number: u64, block: Block) {
        self.0.push(Read { number, status: None, ends_as: None, block });
    }

    pub fn all_over(&self) -> bool {
        self.0.iter().all(|read| read.status.is_some())
    }

    /// Takes the next read that is over, in the order of the posts as far as that is known.
    pub fn pop_over(&mut self) -> Option<(u64, Block, Status)> {
        let at = self.0.iter().position(|read| read.status.is_some())?;
        let Read { number, block, status, .. } = self.0.remove(at);
        status.map(|status| (number, block, status))
    }

    /// Takes the reads whose block may still be written, for good.
    pub fn take_unfinished(&mut self) -> impl Iterator<Item = (u64, Block)> {
        let under_way = self.0.drain(..).filter(|read| read.status.is_none());
        under_way.map(|read| (read.number, read.block))
    }

    /// Notes how a read ended. Returns the status by which its connection may end, if the read is one of these, and the
    /// connection stands.
    pub fn settle(
        &mut self,
        number: u64,
        transfer_status: TransferStatus,
        level: Reliability,
    ) -> Option<Status> {
        let read = self.0.iter_mut().find(|read| read.number == number)?;
        let status = status_of(transfer_status, level, Kind::Read);
        read.status = Some(read.ends_as.unwrap_or(status));
        if read.ends_as.is_none() { Some(status) } else { None }
    }

    /// Notes the end of the connection. Data that still come are not used.
    pub fn flush(&mut self, ends_as: Status) {
        for read in self.0.iter_mut().filter(|read| read.status.is_none()) {
            read.ends_as.get_or_insert(ends_as);
        }
    }
}
