//! Processor time of this process, and how the system divides it into user and system time.
//!
//! The sum is exact (`CLOCK_PROCESS_CPUTIME_ID`; `getrusage` has the same sum). Its division into user and system time depends
//! on the kernel. A kernel with `VIRT_CPU_ACCOUNTING` reads the clock whenever a thread enters or leaves it. Others, as
//! distributions build them, note at every tick of the timer where the processor was, and divide the sum in the ratio of
//! these notes. A short batch has few notes, so the ratio comes from all batches together.

use std::{
    fs::File,
    io::{self, Read},
    ops::Sub,
    time::{Duration, Instant},
};

use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeVal,
};
use rustix::time::{ClockId, clock_getres, clock_gettime};

/// Processor time of a whole process, library threads included: since its start, or between two readings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Elapsed time.
    pub wall: Duration,
    /// Processor time.
    pub processor: Duration,
    /// Processor time in the program and its libraries, as the system divides it.
    pub user: Duration,
    /// Processor time in the kernel.
    pub system: Duration,
}

/// Method by which the system divides processor time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accounting {
    /// Reads the clock at each entry into the kernel and each return.
    Exact,
    /// Samples the processor at ticks, this far apart.
    Ticks(Duration),
}

impl Usage {
    /// Usage of this process so far. The zero of `wall` is arbitrary.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn now() -> io::Result<Self> {
        let wall = clock(ClockId::Monotonic);
        Ok(Usage { wall, ..Self::of_process()? })
    }

    /// Usage since an earlier reading.
    ///
    /// Elapsed time is read first there and last here, so that it contains the processor time even if other programs run
    /// between two clocks.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn since(self) -> io::Result<Self> {
        let usage = Self::of_process()?;
        Ok(Usage { wall: clock(ClockId::Monotonic), ..usage } - self)
    }

    /// Processor time of this process so far, without elapsed time.
    fn of_process() -> io::Result<Self> {
        let (processor, usage) = (clock(ClockId::ProcessCPUTime), getrusage(UsageWho::RUSAGE_SELF)?);
        let [user, system] = [usage.user_time(), usage.system_time()].map(duration);
        Ok(Usage { wall: Duration::ZERO, processor, user, system })
    }
}

fn clock(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

impl Sub for Usage {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        let since = |now: Duration, then| now.saturating_sub(then);
        Usage {
            wall: since(self.wall, before.wall),
            processor: since(self.processor, before.processor),
            user: since(self.user, before.user),
            system: since(self.system, before.system),
        }
    }
}

fn duration(time: TimeVal) -> Duration {
    Duration::from_secs(time.tv_sec() as u64) + Duration::from_micros(time.tv_usec() as u64)
}

const PROBES: usize = 9;
const USER: Duration = Duration::from_millis(3);
/// Length of a burst of system calls: shorter than the tick of any kernel, so that most bursts see none.
const SYSTEM: Duration = Duration::from_micros(500);

impl Accounting {
    /// Makes short bursts of system calls, and checks whether the system time of each appears at once. Takes some 30 ms.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn probe() -> io::Result<Self> {
        let (mut zeros, mut page) = (File::open("/dev/zero")?, vec![0; 1 << 16]);
        let mut seen = 0;
        for _ in 0..PROBES {
            let started = Instant::now();
            while started.elapsed() < USER {} // the clock is read without entering the kernel
            let before = Usage::now()?;
            let started = Instant::now();
            while started.elapsed() < SYSTEM {
                zeros.read_exact(&mut page)?;
            }
            let usage = before.since()?;
            seen += usize::from(usage.system > usage.processor.mul_f64(0.75));
        }
        if seen * 10 > PROBES * 7 {
            return Ok(Accounting::Exact);
        }
        let tick = clock_getres(ClockId::RealtimeCoarse);
        Ok(Accounting::Ticks(Duration::new(tick.tv_sec as u64, tick.tv_nsec as u32)))
    }

    /// Sentence for the head of the report.
    pub fn sentence(self) -> String {
        match self {
            Accounting::Exact => {
                "user and system time are exact here: the kernel takes the time at each entry and return"
                    .to_owned()
            }
            Accounting::Ticks(tick) => format!(
                "user and system time: this kernel notes every {:.1} ms where a processor is, and divides the exact sum \
                 in this ratio; their shares are those of all rounds together",
                tick.as_secs_f64() * 1e3
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_parts_are_the_sum_and_all_threads_count() {
        let before = Usage::now().expect("a clock");
        let busy = move || {
            while Usage::now().expect("a clock").processor < before.processor + Duration::from_millis(20) {}
        };
        std::thread::spawn(busy).join().expect("ends");
        let usage = before.since().expect("a clock");
        assert!(usage.processor >= Duration::from_millis(20), "{usage:?}");
        // The two are read one after the other, within microseconds, and threads of other tests run in between.
        let apart = (usage.user + usage.system).abs_diff(usage.processor);
        assert!(apart < usage.processor / 2, "{usage:?}");
    }

    #[test]
    fn the_probe_answers() {
        let sentence = Accounting::probe().expect("a file of zeros").sentence();
        assert!(sentence.starts_with("user and system time"), "{sentence}");
        let ticks = Accounting::Ticks(Duration::from_millis(4)).sentence();
        assert!(ticks.contains("every 4.0 ms"), "{ticks}");
    }
}
