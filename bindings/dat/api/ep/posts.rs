//! Posting to an end point: sends, receives, RDMA, and binds.

use std::ops::Range;

use super::{Ep, Flags};
use crate::api::error::{Error, Result};
use crate::api::memory::{Iov, Refused, RemoteMemory, Rights, SharedLmr, Triplets, take_posted};
use crate::api::rmr::{self, Rmr};
use crate::core::code::Code;
use crate::core::ep;

impl Ep {
    /// Sends the selected parts as one message (`dat_ep_post_send`). Does not wait. Posted to an end point that is disconnected, it is flushed.
    ///
    /// # Errors
    /// The memory comes back with [`Error::InvalidState`], [`Error::Full`], [`Error::Length`] or [`Error::Protection`].
    #[inline]
    pub fn post_send(&self, iov: impl Into<Iov>, cookie: u64) -> Result<(), Refused> {
        let iov = iov.into();
        let Some(segment) = iov.single() else {
            return self.post("dat_ep_post_send", ep::Operation::Send, iov, cookie, Flags::NONE, usize::MAX);
        };
        let posted = iov.into_cookie(cookie);
        match self.with(|ep| ep.post_send(segment, posted, 0)) {
            Ok(()) => Ok(()),
            Err(code) => Err(self.refused("dat_ep_post_send", code, posted)),
        }
    }

    /// Like [`Ep::post_send`], with flags.
    ///
    /// # Errors
    /// As [`Ep::post_send`].
    pub fn post_send_with(&self, iov: impl Into<Iov>, cookie: u64, flags: Flags) -> Result<(), Refused> {
        self.post("dat_ep_post_send", ep::Operation::Send, iov.into(), cookie, flags, usize::MAX)
    }

    /// Sends a message that ends an RMR context of the peer's (`dat_ep_post_send_with_invalidate`).
    ///
    /// # Errors
    /// As [`Ep::post_send`].
    pub fn post_send_with_invalidate(
        &self,
        iov: impl Into<Iov>,
        cookie: u64,
        context: u32,
        flags: Flags,
    ) -> Result<(), Refused> {
        let operation = ep::Operation::SendAndInvalidate(context);
        self.post("dat_ep_post_send_with_invalidate", operation, iov.into(), cookie, flags, usize::MAX)
    }

    /// Posts memory for one incoming message (`dat_ep_post_recv`). A longer message breaks the connection.
    ///
    /// # Errors
    /// The memory comes back with [`Error::Full`] or [`Error::InvalidParameter`]. The latter also if it has a shared queue:
    /// [`Srq::post_receive`](crate::Srq::post_receive).
    #[inline]
    pub fn post_receive(&self, iov: impl Into<Iov>, cookie: u64) -> Result<(), Refused> {
        let iov = iov.into();
        let single = iov.single();
        let several = if single.is_none() { iov.triplets() } else { Triplets::new() };
        let posted = iov.into_cookie(cookie);
        let posting = self.with(|ep| match single {
            Some(segment) => ep.post_receive_one(segment, posted),
            None => ep.post_receive(&several, posted),
        });
        match posting {
            Ok(()) => Ok(()),
            Err(code) => Err(self.refused("dat_ep_post_recv", code, posted)),
        }
    }

    /// Writes the selected parts to the beginning of the peer's memory (`dat_ep_post_rdma_write`). A message that is posted behind it
    /// arrives when the data are in place.
    ///
    /// # Errors
    /// As [`Ep::post_send`]; [`Error::Length`] also if the remote memory is shorter.
    pub fn post_rdma_write(
        &self,
        iov: impl Into<Iov>,
        to: RemoteMemory,
        cookie: u64,
        flags: Flags,
    ) -> Result<(), Refused> {
        let operation = ep::Operation::Write(to.address, to.context);
        self.post("dat_ep_post_rdma_write", operation, iov.into(), cookie, flags, to.len as usize)
    }

    /// Reads the beginning of the peer's memory, as much as is selected (`dat_ep_post_rdma_read`).
    ///
    /// # Errors
    /// As [`Ep::post_rdma_write`].
    pub fn post_rdma_read(
        &self,
        iov: impl Into<Iov>,
        from: RemoteMemory,
        cookie: u64,
        flags: Flags,
    ) -> Result<(), Refused> {
        let operation = ep::Operation::Read(from.address, from.context);
        self.post("dat_ep_post_rdma_read", operation, iov.into(), cookie, flags, from.len as usize)
    }

    /// Binds a region to a part of this memory, with these rights (`dat_rmr_bind`), in order: what was posted before reaches what the region was bound
    /// to, and a message that is posted behind it may tell the peer of what this gives. [`Event::Bind`](crate::Event::Bind) gives the region back.
    ///
    /// The memory stays while it is bound. It need not have these rights itself.
    ///
    /// # Errors
    /// The region comes back as it was, with [`Error::InvalidState`], [`Error::Full`], [`Error::Protection`]: the three are not of one zone, or
    /// [`Error::InvalidParameter`]: the part is empty, or not within the memory.
    pub fn post_bind(
        &self,
        rmr: Rmr,
        memory: &SharedLmr,
        part: Range<usize>,
        rights: Rights,
        cookie: u64,
        flags: Flags,
    ) -> Result<RemoteMemory, (Error, Rmr)> {
        let bound = self.bind(rmr, Some((memory, part, rights)), cookie, flags)?;
        Ok(bound.unwrap_or_else(|| unreachable!("it is bound to something")))
    }

    /// Ends what peers reach by a region, in order (`dat_rmr_bind` of no bytes). [`Event::Bind`](crate::Event::Bind) gives it back: then nobody
    /// reaches anything by it.
    ///
    /// # Errors
    /// As [`Ep::post_bind`].
    pub fn post_unbind(&self, rmr: Rmr, cookie: u64, flags: Flags) -> Result<(), (Error, Rmr)> {
        self.bind(rmr, None, cookie, flags).map(drop)
    }

    fn bind(
        &self,
        rmr: Rmr,
        to: Option<(&SharedLmr, Range<usize>, Rights)>,
        cookie: u64,
        flags: Flags,
    ) -> Result<Option<RemoteMemory>, (Error, Rmr)> {
        if rmr.pz().id() != self.pz.id() {
            return Err((Error::Protection { call: rmr::BIND }, rmr));
        }
        let post = |operation, ticket| self.with(|ep| ep.post_request(operation, &[], ticket, flags.bits()));
        rmr.bind(to, cookie, post, |code| self.error(rmr::BIND, code))
    }

    fn post(
        &self,
        call: &'static str,
        operation: ep::Operation,
        iov: Iov,
        cookie: u64,
        flags: Flags,
        remote: usize,
    ) -> Result<(), Refused> {
        let segments = iov.triplets();
        let (len, room) = (iov.len(), self.ia().max_transfer().min(remote));
        if len > room {
            return Err((Error::Length { call, len, room }, iov));
        }
        let posted = iov.into_cookie(cookie);
        match self.with(|ep| ep.post_request(operation, &segments, posted, flags.bits())) {
            Ok(()) => Ok(()),
            Err(code) => Err(self.refused(call, code, posted)),
        }
    }

    /// Returns the error and the memory of a refused post, which belongs to the program again.
    #[cold]
    fn refused(&self, call: &'static str, code: Code, posted: u64) -> Refused {
        let iov = take_posted(posted).0;
        let error = match code {
            Code::LENGTH_ERROR => Error::Length { call, len: iov.len(), room: self.ia().max_transfer() },
            other => self.error(call, other),
        };
        (error, iov)
    }
}
