//! Hook for polls that found no message, for tests: a program can let a message come between the first poll of a wait and the
//! second, on one thread and at the same place each time. So the path of a wait can be counted (`cargo xtask counts`), which
//! a single thread could not take otherwise.
//!
//! A loop that polls for messages calls [`missed`] after each poll in vain; [`crate::Spinner::pause`] does. It costs nothing
//! unless the crate is built with the feature `missed-look`, which only those counts do.

/// Notes a poll that found nothing.
#[cfg(not(feature = "missed-look"))]
#[inline(always)]
pub fn missed() {}

#[cfg(feature = "missed-look")]
pub use armed::{missed, on_next_miss};

#[cfg(feature = "missed-look")]
mod armed {
    use std::cell::Cell;

    thread_local! {
        static ACT: Cell<Option<fn()>> = const { Cell::new(None) };
    }

    /// Calls `act` once, after this thread's next poll in vain.
    pub fn on_next_miss(act: fn()) {
        ACT.set(Some(act));
    }

    /// Notes a poll that found nothing.
    #[inline]
    pub fn missed() {
        if let Some(act) = ACT.take() {
            act();
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn it_acts_once() {
            thread_local!(static ACTED: Cell<u32> = const { Cell::new(0) });
            missed();
            on_next_miss(|| ACTED.set(ACTED.get() + 1));
            assert_eq!(ACTED.get(), 0);
            missed();
            missed();
            assert_eq!(ACTED.get(), 1);
        }

        #[test]
        fn a_wait_misses_at_every_pause() {
            thread_local!(static ACTED: Cell<u32> = const { Cell::new(0) });
            on_next_miss(|| ACTED.set(ACTED.get() + 1));
            let _ = crate::Spinner::new(false).pause();
            assert_eq!(ACTED.get(), 1);
        }
    }
}
