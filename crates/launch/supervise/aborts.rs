//! Aborts by ranks, passed from the name service's thread to the loop that watches over the job.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use parking_lot::Mutex;
use udeck_sys::EventFd;

/// The first rank that aborted the job.
#[derive(Clone)]
pub(super) struct Aborts {
    first: Arc<Mutex<Option<Abort>>>,
    told: Arc<EventFd>,
}

pub(super) struct Abort {
    pub(super) rank: u32,
    pub(super) code: u8,
    /// The reason, as in "aborted the job with code 3: no more room".
    pub(super) how: String,
}

impl Aborts {
    pub(super) fn new() -> io::Result<Aborts> {
        Ok(Aborts { first: Arc::default(), told: Arc::new(EventFd::new()?) })
    }

    /// Returns the listener for the name service.
    pub(super) fn listener(&self) -> impl Fn(u32, u8, &str) + Send + 'static {
        let aborts = self.clone();
        move |rank, code, how| {
            aborts.first.lock().get_or_insert_with(|| Abort { rank, code, how: how.into() });
            aborts.told.signal();
        }
    }

    /// Returns the abort, once.
    pub(super) fn take(&self) -> Option<Abort> {
        if self.told.reset() { self.first.lock().take() } else { None }
    }
}

impl AsFd for Aborts {
    /// Readable when there is an abort to [`take`](Aborts::take).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.told.as_fd()
    }
}
