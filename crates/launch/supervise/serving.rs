//! The name service's thread, and its failures, passed to the loop that watches over the job.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    thread::JoinHandle,
};

use udeck_sys::{EventFd, thread::spawn};

pub(super) struct Serving {
    thread: JoinHandle<Result<io::Result<()>, String>>,
    /// Signalled when the thread has ended before its time, by an error or a panic.
    failed: Arc<EventFd>,
}

impl Serving {
    pub(super) fn start(serve: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<Serving> {
        let failed = Arc::new(EventFd::new()?);
        let (failing, panicking) = (Arc::clone(&failed), Arc::clone(&failed));
        let serving = move || serve().inspect_err(|_| failing.signal());
        let thread = spawn("boot", serving, move |_| panicking.signal())?;
        Ok(Serving { thread, failed })
    }

    /// Tells whether the thread has failed. Returns `true` once.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.reset()
    }

    /// Waits for the thread's end, and returns its result.
    pub(super) fn join(self) -> io::Result<()> {
        let ended = self.thread.join().unwrap_or_else(|_| Err("nobody knows why".into()));
        ended.map_err(|why| io::Error::other(format!("its thread panicked: {why}")))?
    }
}

impl AsFd for Serving {
    /// Readable when the thread [`has_failed`](Serving::has_failed).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.failed.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use rustix::event::PollFlags;

    use super::*;
    use crate::wait::ready;

    #[test]
    fn an_error_and_a_panic_are_heard_and_told_and_a_good_end_is_not() {
        let bad: [fn() -> io::Result<()>; 2] = [|| panic!("no luck"), || Err(io::Error::other("no luck"))];
        for serve in bad {
            let serving = Serving::start(serve).unwrap();
            let limit = Instant::now() + Duration::from_secs(60);
            assert!(ready(std::iter::once((serving.as_fd(), PollFlags::IN)), Some(limit)).unwrap()[0]);
            assert!(serving.has_failed() && !serving.has_failed());
            assert!(serving.join().unwrap_err().to_string().contains("no luck"));
        }
        let serving = Serving::start(|| Ok(())).unwrap();
        while !serving.thread.is_finished() {
            std::thread::yield_now();
        }
        assert!(!serving.has_failed());
        serving.join().unwrap();
    }
}
