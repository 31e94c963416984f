//! Receive queues: posted receives, and the queue that several end points share.

use std::sync::Weak;

use parking_lot::Mutex;
use udeck_rdma::Ring;

use super::code::{Code, Result, Sub};
use super::evd::Evd;
use super::event::Event;
use super::memory::Triplet;

/// A posted receive.
#[derive(Default)]
pub struct Receive {
    pub cookie: u64,
    /// The only segment, unless there are `others`.
    one: Triplet,
    /// Segments of a receive that has not exactly one; boxed into one word, because most have one and all are moved.
    #[allow(clippy::box_collection, reason = "one word instead of two or three")]
    others: Option<Box<Vec<Triplet>>>,
}

impl Receive {
    #[inline]
    pub fn new(segments: &[Triplet], cookie: u64) -> Receive {
        match segments {
            [one] => Receive::into_one(*one, cookie),
            several => Receive { cookie, one: Triplet::default(), others: Some(Box::new(several.into())) },
        }
    }

    /// Makes a receive into one segment.
    #[inline]
    pub fn into_one(one: Triplet, cookie: u64) -> Receive {
        Receive { cookie, one, others: None }
    }

    /// The segment of a receive that has only one.
    #[inline]
    pub fn one(&self) -> Option<Triplet> {
        self.others.is_none().then_some(self.one)
    }

    #[inline]
    pub fn segments(&self) -> &[Triplet] {
        self.others.as_ref().map_or(std::slice::from_ref(&self.one), |others| others)
    }
}

/// A shared receive queue.
pub struct Srq {
    pub handle: usize,
    pub pz: u32,
    asynchronous: Weak<Evd>,
    inner: Mutex<Inner>,
}

struct Inner {
    receives: Ring<Receive>,
    max: usize,
    low: usize,
    /// Whether the low-watermark event is still to come since the watermark was set.
    is_armed: bool,
}

impl Inner {
    /// Whether the low-watermark event is due; true once.
    fn falls_short(&mut self) -> bool {
        let is_short = self.is_armed && self.receives.len() < self.low;
        self.is_armed &= !is_short;
        is_short
    }
}

/// `DAT_SRQ_LOW_WATERMARK_EVENT`.
const LOW_WATERMARK: u32 = 2;
/// Number of the low-watermark event: an asynchronous event of the queue, as `DAT_ASYNC_ERROR_EP_BROKEN` is one of an end point.
const LOW_WATERMARK_EVENT: u32 = super::event::number::ASYNC_EP_BROKEN;

impl Srq {
    pub fn new(handle: usize, pz: u32, max: usize, low: usize, asynchronous: Weak<Evd>) -> Srq {
        // Nothing is posted yet, but the low-watermark event waits for the first message.
        let inner = Inner { receives: Ring::default(), max, low, is_armed: true };
        Srq { handle, pz, asynchronous, inner: Mutex::new(inner) }
    }

    /// # Errors
    /// `DAT_INSUFFICIENT_RESOURCES`: the queue is full.
    pub fn post(&self, receive: Receive) -> Result {
        let mut inner = self.inner.lock();
        if inner.receives.len() >= inner.max {
            return Err(Code::INSUFFICIENT_RESOURCES.of(Sub::ResourceMemory));
        }
        inner.receives.push_back(receive);
        Ok(())
    }

    pub fn take(&self) -> Option<Receive> {
        let mut inner = self.inner.lock();
        let receive = inner.receives.pop_front();
        self.check(&mut inner);
        receive
    }

    /// Puts the low-watermark event, if it is due.
    #[inline]
    fn check(&self, inner: &mut Inner) {
        if inner.falls_short()
            && let Some(asynchronous) = self.asynchronous.upgrade()
        {
            asynchronous.push(Event::asynchronous(LOW_WATERMARK_EVENT, self.handle, LOW_WATERMARK));
        }
    }

    /// Number of posted receives, most that may be posted, and low watermark.
    pub fn counts(&self) -> (usize, usize, usize) {
        let inner = self.inner.lock();
        (inner.receives.len(), inner.max, inner.low)
    }

    /// # Errors
    /// `DAT_INVALID_STATE`: more are posted.
    pub fn resize(&self, max: usize) -> Result {
        let mut inner = self.inner.lock();
        if inner.receives.len() > max {
            return Err(Code::INVALID_STATE.of(Sub::SrqInUse));
        }
        inner.max = max;
        Ok(())
    }

    /// Sets the low watermark. Its event comes at once if fewer receives are posted. 0: never.
    pub fn set_low(&self, low: usize) {
        let mut inner = self.inner.lock();
        (inner.low, inner.is_armed) = (low, true);
        self.check(&mut inner);
    }
}
