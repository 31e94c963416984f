//! Parker: how a waiter for news goes to sleep, and how an announcer wakes it, if it does not sleep beside a
//! [`doorbell`](crate::sync::doorbell) of shared memory. It is a word, two flags, and no lock.
//!
//! The owner polls a list of news, which belongs to its caller and has a lock of its own. It sleeps on the word itself
//! ([`Parker::park`] by a value that [`wake`](Parker::wake) returns, so that the caller wakes it), or beside a doorbell that
//! it makes first, once, and that others find when they look for it.
//!
//! # Sync points
//! * `sleep`: the owner sets the word, fences SeqCst, and reads the flags; an announcer sets a flag, fences SeqCst, and reads
//!   the word. Of two such pairs at least one side sees the other's (on aarch64, too: both are full barriers): the owner sees
//!   the news, or its word is seen, and it is woken.
//! * `hang`: the owner makes its doorbell known, and then reads the word by adding 0 to it with Release; a waker takes the
//!   word by a swap with Acquire, and then looks for the doorbell. Both are read-modify-writes of one word, so one comes
//!   first: the owner sees that its word was taken, or the waker sees the doorbell. (A plain load by the owner could miss the
//!   swap.)
//! * `woken`: writes before a wake-up are visible to the owner that has taken it.

use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

/// The word of an owner that is awake.
pub const AWAKE: u32 = 0;

/// Sleep state of one owner.
#[derive(Debug, Default)]
pub struct Parker {
    word: AtomicU32,
    /// Whether the list has something that is not known to be stale.
    news: AtomicBool,
    woken: AtomicBool,
}

impl Parker {
    /// Notes whether the list has news. Call it with the list locked, so that the last note is right.
    #[inline]
    pub fn set_news(&self, some: bool) {
        self.news.store(some, Ordering::Relaxed);
    }

    /// Whether the list had news when this was noted last.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.news.load(Ordering::Relaxed)
    }

    /// Notes that the owner polls, which answers all wake-ups so far.
    #[inline]
    pub fn note_look(&self) {
        if self.woken.load(Ordering::Relaxed) {
            // SYNC POINT woken: sees the writes before the wake-up.
            self.woken.swap(false, Ordering::Acquire);
        }
    }

    /// Wakes the owner without news; [`Parker::wake`] follows.
    pub fn set_woken(&self) {
        // SYNC POINT woken: publishes earlier writes.
        self.woken.store(true, Ordering::Release);
    }

    /// Notes that the owner is about to sleep in the way `how`, which is not [`AWAKE`]. `false`: there is news, and the note
    /// is taken back.
    #[must_use]
    pub fn park(&self, how: u32) -> bool {
        self.word.store(how, Ordering::Relaxed);
        // SYNC POINT sleep, the owner's half.
        fence(Ordering::SeqCst);
        if self.has_news() || self.woken.load(Ordering::Relaxed) {
            self.unpark();
            return false;
        }
        true
    }

    /// Takes [`Parker::park`] back.
    pub fn unpark(&self) {
        self.word.store(AWAKE, Ordering::Relaxed);
    }

    /// Whether the owner, which parked in the way `how` and has made its doorbell known since, may sleep beside the doorbell.
    /// (A waker that took the word before has perhaps found no doorbell.)
    #[must_use]
    pub fn is_still_parked(&self, how: u32) -> bool {
        // SYNC POINT hang: publishes the doorbell.
        self.word.fetch_add(0, Ordering::Release) == how
    }

    /// The way in which the owner sleeps at the moment.
    pub fn state(&self) -> u32 {
        self.word.load(Ordering::Relaxed)
    }

    /// Called after news or a wake-up: returns the way in which the owner slept, and from which the caller is to wake it;
    /// [`AWAKE`] if there is nothing to do.
    #[must_use]
    pub fn wake(&self) -> u32 {
        // SYNC POINT sleep, the announcer's half.
        fence(Ordering::SeqCst);
        if self.word.load(Ordering::Relaxed) == AWAKE {
            return AWAKE;
        }
        // SYNC POINT hang: before the waker looks for the doorbell.
        self.word.swap(AWAKE, Ordering::Acquire)
    }

    /// The word to sleep on, by futex.
    pub fn word(&self) -> &AtomicU32 {
        &self.word
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn who_lies_down_is_roused_once_and_not_with_news_at_hand() {
        let parker = Parker::default();
        assert_eq!((parker.wake(), parker.park(2), parker.state()), (AWAKE, true, 2));
        assert!(parker.is_still_parked(2));
        assert_eq!((parker.wake(), parker.wake()), (2, AWAKE));
        assert!(!parker.is_still_parked(2), "roused meanwhile");
        parker.set_news(true);
        assert!(!parker.park(1) && parker.state() == AWAKE);
        parker.set_news(false);
        parker.set_woken();
        assert!(!parker.park(1), "a wake-up counts, too");
        parker.note_look();
        assert!(parker.park(1), "once");
    }
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    const WAY: u32 = 2;

    /// An owner that parks beside news is woken, or has seen them. Fails if either fence of SYNC POINT `sleep` is removed.
    #[test]
    fn loom_parker_loses_no_news() {
        for by_news in [true, false] {
            loom::model(move || {
                let parker = Arc::new(Parker::default());
                let announcer = {
                    let parker = parker.clone();
                    thread::spawn(move || {
                        if by_news {
                            parker.set_news(true)
                        } else {
                            parker.set_woken()
                        }
                        parker.wake()
                    })
                };
                let asleep = parker.park(WAY);
                let roused = announcer.join().unwrap();
                assert!(!asleep || roused == WAY, "it sleeps, and nobody wakes it");
                assert!(!asleep || parker.state() == AWAKE);
            });
        }
    }

    /// An owner that sleeps beside its doorbell is rung, if it is woken. Fails if either half of SYNC POINT `hang` is
    /// weakened to Relaxed, and if [`Parker::is_still_parked`] were a load.
    #[test]
    fn loom_parker_rings_the_bell_that_hangs() {
        loom::model(|| {
            let parker = Arc::new(Parker::default());
            let doorbell = Arc::new(AtomicBool::new(false));
            let announcer = {
                let (parker, doorbell) = (parker.clone(), doorbell.clone());
                thread::spawn(move || {
                    parker.set_news(true);
                    parker.wake() == WAY && doorbell.load(Ordering::Relaxed)
                })
            };
            let asleep = parker.park(WAY) && {
                doorbell.store(true, Ordering::Relaxed);
                parker.is_still_parked(WAY)
            };
            let rung = announcer.join().unwrap();
            assert!(!asleep || rung, "it sleeps beside its doorbell, and nobody rings it");
        });
    }

    /// Writes before a wake-up are seen after it. Fails if either half of SYNC POINT `woken` is weakened to Relaxed.
    #[test]
    fn loom_parker_brings_what_was_written_before() {
        struct Written(UnsafeCell<u32>);
        // SAFETY: the model under test decides who may touch it; loom reports it if it is wrong.
        unsafe impl Sync for Written {}
        loom::model(|| {
            let (parker, written) = (Arc::new(Parker::default()), Arc::new(Written(UnsafeCell::new(0))));
            let waker = {
                let (parker, written) = (parker.clone(), written.clone());
                thread::spawn(move || {
                    // SAFETY: the wake-up is not announced yet, so the owner stays away.
                    written.0.with_mut(|written| unsafe { *written = 7 });
                    parker.set_woken();
                })
            };
            let woken = parker.woken.load(Ordering::Relaxed);
            parker.note_look();
            if woken {
                // SAFETY: the wake-up was announced, so the waker is done with the cell.
                written.0.with(|written| assert_eq!(unsafe { *written }, 7));
            }
            waker.join().unwrap();
        });
    }
}
