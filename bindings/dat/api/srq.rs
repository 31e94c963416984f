//! Shared receive queues.

use std::fmt;
use std::sync::Arc;

use udeck::via::is_forked;

use super::error::{Error, Result};
use super::ia::Pz;
use super::id::{self, SrqId};
use super::memory::{Iov, Refused, take_posted};
use crate::core::ep::MAX_SEGMENTS;
use crate::core::evd::MOST;
use crate::core::srq::{self, Receive};

/// Receives that end points share: each message takes the oldest, whichever end point it came to (`DAT_SRQ`). A clone is the same queue.
///
/// An end point that is made [with the queue](super::Ep::with_srq) takes its receives from it. The [`Completion`](super::Completion) comes to that
/// end point's dispatcher for receives, and gives the memory back. When the queue and all of its end points have gone, posted receives are dropped.
#[derive(Clone)]
pub struct Srq(Arc<Queue>);

struct Queue {
    id: SrqId,
    core: Arc<srq::Srq>,
    pz: Pz,
}

impl Srq {
    /// Creates a queue for `room` receives, 1 to 1,048,576, of memory of this zone (`dat_srq_create`). End points may be of another zone.
    ///
    /// The adapter's asynchronous dispatcher gets the queue's low-watermark event. It has to be
    /// [set](super::Evd::take_asynchronous) before.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`]: `room` is out of range.
    pub fn new(pz: &Pz, room: usize) -> Result<Srq> {
        check_room("dat_srq_create", room)?;
        let number = id::next();
        let asynchronous = pz.ia().core().asynchronous();
        let core = Arc::new(srq::Srq::new(number as usize, pz.id(), room, 0, asynchronous));
        Ok(Srq(Arc::new(Queue { id: SrqId(number), core, pz: pz.clone() })))
    }

    /// The number of this queue, unique in this process.
    pub fn id(&self) -> SrqId {
        self.0.id
    }

    /// Its protection zone.
    pub fn pz(&self) -> &Pz {
        &self.0.pz
    }

    /// Posts memory for one incoming message (`dat_srq_post_recv`). A longer message breaks the connection that it came by.
    ///
    /// # Errors
    /// The memory comes back with [`Error::Full`], with [`Error::Protection`] if it is of another zone than the queue, or with
    /// [`Error::InvalidParameter`] if it has more than 64 parts.
    pub fn post_receive(&self, iov: impl Into<Iov>, cookie: u64) -> Result<(), Refused> {
        const CALL: &str = "dat_srq_post_recv";
        let iov = iov.into();
        if !iov.is_of(&self.0.pz) {
            return Err((Error::Protection { call: CALL }, iov));
        }
        let segments = iov.triplets();
        if segments.len() > MAX_SEGMENTS {
            let what = format!("{} parts, and a receive has {MAX_SEGMENTS} at most", segments.len());
            return Err((Error::parameter(CALL, what), iov));
        }
        let posted = iov.into_cookie(cookie);
        if self.0.core.post(Receive::new(&segments, posted)).is_err() {
            return Err((
                Error::Full { call: CALL, what: "the shared receive queue" },
                take_posted(posted).0,
            ));
        }
        self.0.pz.ia().core().progress.bell().ring(); // a message may wait for this receive
        Ok(())
    }

    /// Number of receives that are posted and not taken (`dat_srq_query`, `available_dto_count`).
    pub fn posted(&self) -> usize {
        self.0.core.counts().0
    }

    /// Most receives that may be posted (`max_recv_dtos`).
    pub fn room(&self) -> usize {
        self.0.core.counts().1
    }

    /// Changes how many receives may be posted (`dat_srq_resize`).
    ///
    /// # Errors
    /// [`Error::InUse`]: more are posted. [`Error::InvalidParameter`]: `room` is out of range.
    pub fn resize(&self, room: usize) -> Result {
        const CALL: &str = "dat_srq_resize";
        check_room(CALL, room)?;
        let in_use = |_| Error::InUse { call: CALL, what: "more receives are posted" };
        self.0.core.resize(room).map_err(in_use)
    }

    /// Sets the low watermark. Once fewer than `low` receives are left, the asynchronous dispatcher gets
    /// [`LowWatermark`](super::Asynchronous::LowWatermark): at once, if there are fewer already. The watermark is spent by its event, and has to be
    /// set again (`dat_srq_set_lw`). 0: never.
    ///
    /// # Errors
    /// [`Error::InvalidParameter`]: `low` is more than there is room for.
    pub fn set_low_watermark(&self, low: usize) -> Result {
        let room = self.room();
        if low > room {
            let what = format!("a low watermark of {low}, where there is room for {room}");
            return Err(Error::parameter("dat_srq_set_lw", what));
        }
        self.0.core.set_low(low);
        Ok(())
    }

    pub(super) fn core(&self) -> Arc<srq::Srq> {
        self.0.core.clone()
    }
}

fn check_room(call: &'static str, room: usize) -> Result {
    if (1..=MOST).contains(&room) {
        return Ok(());
    }
    Err(Error::parameter(call, format!("room for {room} receives: 1 to {MOST}")))
}

impl Drop for Queue {
    fn drop(&mut self) {
        if is_forked() {
            return; // the memory is the parent's to give back
        }
        // The end points keep the queue: when it is dropped, nobody takes from it any more.
        self.core.set_low(0);
        while let Some(receive) = self.core.take() {
            drop(take_posted(receive.cookie));
        }
    }
}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Srq({:?}, {} of {} posted)", self.id(), self.posted(), self.room())
    }
}
