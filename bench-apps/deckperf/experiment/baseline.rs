//! Limits of the machine itself: what two cores can do without a library. Figures are compared with these limits,
//! which are measured in the same rounds.
//!
//! Two threads of rank 0 measure them on the two ranks' cores, while rank 1 sleeps in `retrieve`. Memory passes
//! between the threads by ownership, so all of this is safe code.

use std::{
    hint, io,
    sync::{
        atomic::{AtomicU64, Ordering, fence},
        mpsc::{self, Receiver, Sender, TryRecvError},
    },
    thread,
    time::{Duration, Instant},
};

use crate::failure::{PerfError, Result};

/// Limits at one size, in µs.
#[derive(Clone, Copy, Debug)]
pub struct BaselineSample {
    /// Time to hand over a cache line, one way.
    pub line: f64,
    /// Copy times; `None` for sizes under [`MIN_COPY`].
    pub copies: Option<CopySample>,
}

/// The two copies that a message takes through a bounce buffer, each timed alone, in µs.
#[derive(Clone, Copy, Debug)]
pub struct CopySample {
    /// Copy from the sender's own memory into memory that the other core read last.
    pub into_bounce: f64,
    /// Copy from memory that is dirty in the other core's cache.
    pub out: f64,
}

/// Smallest size whose copies are timed, in bytes: for less, reading the clock would be a large part of the time.
pub const MIN_COPY: usize = 4 << 10;

/// Time after which a blocked rank 1 sleeps for sure: far longer than it spins.
const RANK_1_FALLS_ASLEEP: Duration = Duration::from_millis(1);

/// Time budget of each measurement at one size. A limit in time and not in turns: where another program takes
/// one of the two cores, a turn lasts as long as that program's time slice.
const BUDGET: Duration = Duration::from_millis(1);

/// Round trips between two reads of the clock, so that these cost less than a hundredth of a turn.
const ROUND_TRIPS: u64 = 64;

/// Pairs of cache lines that the counter visits in turn: as many as a ring has cells.
const LINES: usize = 64;

/// Fewest copies timed at each size, even if they exceed the budget.
const MIN_COPIES: u64 = 3;

/// The cores and the memory of the measurements. The memory is kept, so that no figure pays for fresh pages.
pub struct Baselines {
    cpus: Option<[usize; 2]>,
    near: Vec<u8>,
    far: Vec<u8>,
    bounce: Vec<u8>,
}

/// A counter on a cache line of its own; 128 bytes because processors fetch lines in pairs.
#[repr(align(128))]
#[derive(Default)]
struct CacheLine(AtomicU64);

fn lines() -> Vec<CacheLine> {
    std::iter::repeat_with(CacheLine::default).take(LINES).collect()
}

impl Baselines {
    /// Allocates memory for copies of up to `largest` bytes, between the cores `cpus`, or wherever the system puts
    /// two threads.
    pub fn new(cpus: Option<[usize; 2]>, largest: usize) -> Self {
        Self { cpus, near: vec![1; largest], far: vec![2; largest], bounce: vec![3; largest] }
    }

    /// Measures the limits at `size` bytes. Blocks for a few milliseconds, longer at the largest sizes.
    pub fn measure(&mut self, size: usize) -> Result<BaselineSample> {
        thread::sleep(RANK_1_FALLS_ASLEEP);
        let line = self.line().map_err(PerfError::system("measuring the raw cache line"))?;
        let copies = if size < MIN_COPY {
            None
        } else {
            Some(self.copies(size).map_err(PerfError::system("measuring the raw copies"))?)
        };
        Ok(BaselineSample { line, copies })
    }

    /// One-way time of a counter that goes to and fro between two cache lines. Each turn uses another pair of lines, as a
    /// ring does: the distance of a line from the cores depends on its address, and a single pair is now near, now far.
    /// The loops have no pause, because it would lengthen the time that is measured.
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

    /// Times both copies. The near side copies its memory into the bounce buffer and gives the buffer away; the far side
    /// copies it out and gives it back. So each copy finds the cache lines where the other side left them.
    fn copies(&mut self, size: usize) -> io::Result<CopySample> {
        let (to_far, from_near) = mpsc::channel();
        let (to_near, from_far) = mpsc::channel();
        let (near, far) = (&self.near[..size], &mut self.far[..size]);
        let mut bounce = std::mem::take(&mut self.bounce);

        let copy_out = move || {
            let mut mean = Mean::default();
            let mut warm = false;
            // Copies until the near side has finished and closes its end.
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

/// Mean over turns that were timed one by one, or together.
#[derive(Default)]
struct Mean {
    total: Duration,
    count: u64,
}

impl Mean {
    /// Adds a turn, except the first: it warms up, because its lines and pages are where an earlier contender left them.
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
            // The near side waits until this message comes or this thread ends.
            let _ = ready.send(pinned);
            usable.then(far)
        });
        far_is_ready.recv().map_err(io::Error::other)??;
        let near = near();
        let far = far.join().ok().flatten();
        Ok((near, far.ok_or_else(|| io::Error::other("the thread on the other core failed"))?))
    })
}

/// Time of one copy. The fence waits for the stores, which may have to fetch their lines from the other core first.
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

/// Receives the memory by spinning, so that neither core goes to sleep between two copies.
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
