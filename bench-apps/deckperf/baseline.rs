//! What the machine itself can do between the two cores, without a library: the limits that figures are
//! compared with, measured in the same rounds.
//!
//! Two threads of rank 0 on the two ranks' cores do it, while rank 1 sleeps in `retrieve`. Memory passes
//! between them by ownership, so this is safe code all through.

use std::{
    hint, io,
    sync::{
        atomic::{AtomicU64, Ordering, fence},
        mpsc::{self, Receiver, Sender, TryRecvError},
    },
    thread,
    time::{Duration, Instant},
};

use crate::failure::{Failure, Result};

/// Limits at one size, in µs.
#[derive(Clone, Copy, Debug)]
pub struct BaselineSample {
    /// One-way hand-over of a cache line.
    pub line: f64,
    /// `None` under [`MIN_COPY`].
    pub copies: Option<CopySample>,
}

/// The two copies that a message takes through a bounce buffer, each timed alone, in µs.
#[derive(Clone, Copy, Debug)]
pub struct CopySample {
    /// From the sender's own memory into memory that the other core read last.
    pub into_bounce: f64,
    /// From memory that is dirty in the other core's cache.
    pub out: f64,
}

/// Smaller copies are not timed: a read of the clock would be a large part of them.
pub const MIN_COPY: usize = 4 << 10;

/// Far beyond what a blocked rank spins before it sleeps.
const RANK_1_FALLS_ASLEEP: Duration = Duration::from_millis(1);

/// For each of the measurements at one size. A limit in time and not in turns: where somebody else takes
/// one of the two cores, a turn lasts as long as the other's time slice.
const BUDGET: Duration = Duration::from_millis(1);

/// Between two looks at the clock, which so cost less than a hundredth of a turn.
const ROUND_TRIPS: u64 = 64;

/// Pairs of lines that a counter goes through: as many as cells of a ring.
const LINES: usize = 64;

/// At every size, even if they exceed the budget.
const MIN_COPIES: u64 = 3;

/// Where the limits are measured, and the memory for it: kept, so that no figure pays for fresh pages.
pub struct Baselines {
    cpus: Option<[usize; 2]>,
    near: Vec<u8>,
    far: Vec<u8>,
    bounce: Vec<u8>,
}

/// A line of its own; 128 bytes because processors fetch lines in pairs.
#[repr(align(128))]
#[derive(Default)]
struct CacheLine(AtomicU64);

fn lines() -> Vec<CacheLine> {
    std::iter::repeat_with(CacheLine::default).take(LINES).collect()
}

impl Baselines {
    /// For copies of up to `largest` bytes, between the cores `cpus`, or wherever the system puts two
    /// threads.
    pub fn new(cpus: Option<[usize; 2]>, largest: usize) -> Self {
        Self { cpus, near: vec![1; largest], far: vec![2; largest], bounce: vec![3; largest] }
    }

    /// Blocks for a few milliseconds, more at the largest sizes.
    pub fn measure(&mut self, size: usize) -> Result<BaselineSample> {
        thread::sleep(RANK_1_FALLS_ASLEEP);
        let line = self.line().map_err(Failure::system("measuring the raw cache line"))?;
        let copies = if size < MIN_COPY {
            None
        } else {
            Some(self.copies(size).map_err(Failure::system("measuring the raw copies"))?)
        };
        Ok(BaselineSample { line, copies })
    }

    /// A counter that goes to and fro between two lines, which are others each time, as a ring's are: how far a line
    /// is from the cores is a matter of its address, and one pair of lines alone is now near, now far. No pause in
    /// the loops: it would lengthen the very thing that is measured.
    fn line(&self) -> io::Result<f64> {
        const STOP: u64 = u64::MAX;
        let (there, back) = (lines(), lines());
        let echo = || {
            for place in (0..there.len()).cycle() {
                let last = back[place].0.load(Ordering::Relaxed);
                let mut seen = last;
                while seen == last {
                    seen = there[place].0.load(Ordering::Acquire);
                }
                back[place].0.store(seen, Ordering::Release);
                if seen == STOP {
                    break;
                }
            }
        };
        let call = || {
            let (mut turn, mut place) = (0, 0);
            let mut hand_over = |word: u64| {
                there[place].0.store(word, Ordering::Release);
                while back[place].0.load(Ordering::Acquire) != word {}
                place = if place + 1 == there.len() { 0 } else { place + 1 };
            };
            let mut round_trips = || {
                for _ in 0..ROUND_TRIPS {
                    turn += 1;
                    hand_over(turn);
                }
            };
            round_trips();
            let started = Instant::now();
            let mut mean = Mean::default();
            while mean.total < BUDGET {
                round_trips();
                mean = Mean { total: started.elapsed(), count: mean.count + 2 * ROUND_TRIPS };
            }
            hand_over(STOP);
            mean
        };
        let (mean, ()) = on_both_cores(self.cpus, call, echo)?;
        Ok(mean.micros())
    }

    /// The near side copies its memory into the bounce buffer and gives that away; the far side copies it
    /// out and gives it back, so each copy finds the cache lines where the other side left them.
    fn copies(&mut self, size: usize) -> io::Result<CopySample> {
        let (to_far, from_near) = mpsc::channel();
        let (to_near, from_far) = mpsc::channel();
        let (near, far) = (&self.near[..size], &mut self.far[..size]);
        let mut bounce = std::mem::take(&mut self.bounce);

        let copy_out = move || {
            let mut mean = Mean::default();
            let mut warm = false;
            // Until the near side has had enough and closes its end.
            while let Ok(bounce) = take(&from_near) {
                let elapsed = timed_copy(far, &bounce[..size]);
                mean.add_unless_first(elapsed, &mut warm);
                give(&to_near, bounce)?;
            }
            Ok(mean)
        };
        let copy_in = || {
            let mut mean = Mean::default();
            let mut warm = false;
            let started = Instant::now();
            while mean.count < MIN_COPIES || started.elapsed() < BUDGET {
                let elapsed = timed_copy(&mut bounce[..size], near);
                mean.add_unless_first(elapsed, &mut warm);
                give(&to_far, std::mem::take(&mut bounce))?;
                bounce = take(&from_far)?;
            }
            drop(to_far);
            Ok(mean)
        };
        let (into_bounce, out): (io::Result<Mean>, io::Result<Mean>) =
            on_both_cores(self.cpus, copy_in, copy_out)?;
        self.bounce = bounce;
        Ok(CopySample { into_bounce: into_bounce?.micros(), out: out?.micros() })
    }
}

/// Of turns that were timed one by one, or together.
#[derive(Default)]
struct Mean {
    total: Duration,
    count: u64,
}

impl Mean {
    /// The first turn warms up: it finds lines and pages where an earlier contender left them.
    fn add_unless_first(&mut self, elapsed: Duration, warm: &mut bool) {
        if std::mem::replace(warm, true) {
            self.total += elapsed;
            self.count += 1;
        }
    }

    fn micros(&self) -> f64 {
        self.total.as_secs_f64() * 1e6 / self.count as f64
    }
}

/// Runs `far` on a thread of its own and `near` on this one, each on its core.
pub fn on_both_cores<N, F: Send>(
    cpus: Option<[usize; 2]>,
    near: impl FnOnce() -> N,
    far: impl FnOnce() -> F + Send,
) -> io::Result<(N, F)> {
    if let Some([near_cpu, _]) = cpus {
        udeck::sys::pin_to_cpu(near_cpu)?;
    }
    thread::scope(|scope| {
        let (ready, far_is_ready) = mpsc::channel();
        let far = scope.spawn(move || {
            let pinned = cpus.map_or(Ok(()), |[_, far_cpu]| udeck::sys::pin_to_cpu(far_cpu));
            let usable = pinned.is_ok();
            // The near side waits for this word until it comes or this thread ends.
            let _ = ready.send(pinned);
            usable.then(far)
        });
        far_is_ready.recv().map_err(io::Error::other)??;
        let near = near();
        let far = far.join().ok().flatten();
        Ok((near, far.ok_or_else(|| io::Error::other("the thread on the other core failed"))?))
    })
}

/// The fence waits for the stores, which may have to fetch their lines from the other core first.
fn timed_copy(to: &mut [u8], from: &[u8]) -> Duration {
    let from = hint::black_box(from);
    let started = Instant::now();
    to.copy_from_slice(from);
    hint::black_box(to);
    fence(Ordering::SeqCst);
    started.elapsed()
}

fn give(channel: &Sender<Vec<u8>>, memory: Vec<u8>) -> io::Result<()> {
    channel.send(memory).map_err(|_| io::Error::other("the other side is gone"))
}

/// Spins, so that neither core goes to sleep between two copies.
fn take(channel: &Receiver<Vec<u8>>) -> io::Result<Vec<u8>> {
    loop {
        match channel.try_recv() {
            Ok(memory) => return Ok(memory),
            Err(TryRecvError::Empty) => hint::spin_loop(),
            Err(gone @ TryRecvError::Disconnected) => return Err(io::Error::other(gone)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_measured_and_the_memory_stays() {
        let mut limits = Baselines::new(None, 1 << 16);
        for size in [0, 8, MIN_COPY, 1 << 16, MIN_COPY + 3] {
            let sample = limits.measure(size).expect("measures");
            assert!(sample.line > 0.0);
            assert_eq!(sample.copies.is_some(), size >= MIN_COPY, "{size} bytes");
            if let Some(copies) = sample.copies {
                assert!(copies.into_bounce > 0.0 && copies.out > 0.0);
                assert!(limits.far[..size].iter().all(|&byte| byte == 1), "the data went all the way");
            }
            assert_eq!(limits.bounce.len(), 1 << 16);
        }
    }

    #[test]
    fn a_core_that_does_not_exist_is_an_error() {
        assert!(Baselines::new(Some([0, usize::MAX]), 0).measure(0).is_err());
    }
}
