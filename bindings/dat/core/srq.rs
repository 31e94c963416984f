//! Receives: of an end point, or of a queue that several share.

use std::sync::Weak;

use parking_lot::Mutex;

use super::code::{Code, Result, Sub};
use super::evd::Evd;
use super::event::Event;
use super::memory::Triplet;
use super::ring::Ring;

/// A posted receive.
#[derive(Default)]
pub struct Receive {
    pub cookie: u64,
    /// The only segment, unless there are `others`.
    one: Triplet,
    /// (In a box of one word: most have none, and all are moved.)
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

    /// Into one segment.
    #[inline]
    pub fn into_one(one: Triplet, cookie: u64) -> Receive {
        Receive { cookie, one, others: None }
    }

    /// Its segment, if it has one.
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
    /// The low watermark has not been told since it was set.
    is_armed: bool,
}

impl Inner {
    /// Whether it is time to tell that there are too few: once.
    fn falls_short(&mut self) -> bool {
        let is_short = self.is_armed && self.receives.len() < self.low;
        self.is_armed &= !is_short;
        is_short
    }
}

/// `DAT_SRQ_LOW_WATERMARK_EVENT`.
const LOW_WATERMARK: u32 = 2;
/// What tells of it: an asynchronous event of the queue, as `DAT_ASYNC_ERROR_EP_BROKEN` is one of an end point.
const LOW_WATERMARK_EVENT: u32 = super::event::number::ASYNC_EP_BROKEN;

impl Srq {
    pub fn new(handle: usize, pz: u32, max: usize, low: usize, asynchronous: Weak<Evd>) -> Srq {
        // Nothing is posted yet: that is told when the first message finds it so.
        let inner = Inner { receives: Ring::default(), max, low, is_armed: true };
        Srq { handle, pz, asynchronous, inner: Mutex::new(inner) }
    }

    /// # Errors
    /// `DAT_INSUFFICIENT_RESOURCES`: it is full.
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

    /// Tells of the low watermark, if it is time.
    #[inline]
    fn check(&self, inner: &mut Inner) {
        if inner.falls_short()
            && let Some(asynchronous) = self.asynchronous.upgrade()
        {
            asynchronous.push(Event::asynchronous(LOW_WATERMARK_EVENT, self.handle, LOW_WATERMARK));
        }
    }

    /// Posted, the most that can be, and the low watermark.
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

    /// Told at once, if fewer are posted already. 0: never.
    pub fn set_low(&self, low: usize) {
        let mut inner = self.inner.lock();
        (inner.low, inner.is_armed) = (low, true);
        self.check(&mut inner);
    }
}
