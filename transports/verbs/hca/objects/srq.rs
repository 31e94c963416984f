//! Shared receive queues.

use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use super::{Pd, check, found, insist};
use crate::ffi;

/// A receive queue that many queue pairs take from.
#[derive(Debug)]
pub struct Srq {
    pd: Arc<Pd>,
    pub(super) at: NonNull<ffi::RawSrq>,
    post: unsafe extern "C" fn(*mut ffi::RawSrq, *mut ffi::RecvWr, *mut *mut ffi::RecvWr) -> i32,
}

// SAFETY: as for the context.
unsafe impl Send for Srq {}
// SAFETY: as for the context.
unsafe impl Sync for Srq {}

impl Srq {
    /// Makes a queue with room for `requests` requests of one element each.
    ///
    /// # Errors
    /// The device's error: it has no more of them, or does not support them.
    pub fn new(pd: &Arc<Pd>, requests: u32) -> io::Result<Arc<Self>> {
        let context = &pd.context;
        // SAFETY: the device's table is constant.
        let Some(post) = (unsafe { context.at.as_ref().ops.post_srq_recv }) else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let attr = ffi::SrqAttr { max_wr: requests, max_sge: 1, srq_limit: 0 };
        let mut init = ffi::SrqInitAttr { srq_context: null_mut(), attr };
        // SAFETY: a living domain, and our structure.
        let at = found(unsafe { (context.library.ibv_create_srq)(pd.at.as_ptr(), &mut init) })?;
        Ok(Arc::new(Srq { pd: pd.clone(), at, post }))
    }

    /// # Errors
    /// The device's error: the queue is full.
    ///
    /// # Safety
    /// As [`Qp::post_recv`](super::Qp::post_recv): the device may write the memory of the chain's requests until
    /// each is complete, or this is dropped.
    pub unsafe fn post(&self, chain: NonNull<ffi::RecvWr>) -> io::Result<()> {
        let mut bad = null_mut();
        // SAFETY: a living queue; the caller's contract.
        check(unsafe { (self.post)(self.at.as_ptr(), chain.as_ptr(), &mut bad) })
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        // SAFETY: made once, and destroyed here only; its queue pairs are gone, because each keeps it.
        let failed = unsafe { (self.pd.context.library.ibv_destroy_srq)(self.at.as_ptr()) };
        insist(failed, "a shared receive queue cannot be destroyed");
    }
}
