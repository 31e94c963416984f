//! How much of this host's processors other programs used during a run.
//!
//! `/proc/stat` says how long the processors were busy, and `/proc/PID/stat` how long each process ran. Our processes are
//! the descendants of the first deckperf or deckrun above this one, and all that run this program: an MPI's ranks among
//! them, and ranks that another launcher started. All remaining processes are others. The kernel counts other guests of a
//! hypervisor as stolen time.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::Instant,
};

use serde_json::{Value, json};

/// Share of all processors at which a machine counts as busy with something else. The number is a choice.
const BUSY: f64 = 0.1;

static BEGUN: OnceLock<Option<Sample>> = OnceLock::new();

/// Processors that were busy with something else, on average over a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Used by processes of this host that are none of ours.
    pub others: f64,
    /// Taken by other guests of the hypervisor.
    pub stolen: f64,
    /// Processors of this host.
    pub cores: usize,
}

/// Begins the measurement, if it has not begun.
pub fn begin() {
    BEGUN.get_or_init(Sample::take);
}

/// Load since [`begin`]; `None` where the system does not report it.
pub fn since_begin(cores: usize) -> Option<Load> {
    let before = BEGUN.get()?.as_ref()?;
    before.until(&Sample::take()?, cores)
}

impl Load {
    /// Whether other programs used so much that the figures say more about them than about this program.
    pub fn is_busy(&self) -> bool {
        self.others + self.stolen > BUSY * self.cores as f64
    }

    /// The load in one sentence.
    pub fn sentence(&self) -> String {
        let Self { others, stolen, cores } = self;
        let busy = if self.is_busy() {
            ": these are a busy machine's figures. Compare ratios only, and measure again when it is quiet"
        } else {
            ""
        };
        format!(
            "other programs used {others:.1} of this host's {cores} processors during this run, and a hypervisor's other \
             guests {stolen:.1}{busy}"
        )
    }

    /// The load as JSON.
    pub fn json(&self) -> Value {
        json!({
            "busy": self.is_busy(),
            "others_processors": self.others,
            "stolen_processors": self.stolen,
            "says": self.sentence(),
        })
    }
}

/// Readings of the clocks at one time, in ticks.
#[derive(Clone, Debug)]
struct Sample {
    at: Instant,
    /// Time that all processors spent in processes.
    busy: u64,
    stolen: u64,
    /// Time that our processes ran, ended ones included.
    ours: u64,
}

impl Sample {
    fn take() -> Option<Self> {
        let text = fs::read_to_string("/proc/stat").ok()?;
        let (busy, stolen) = processors(&text)?;
        let processes = processes();
        let me = std::process::id();
        let program = program(me);
        let ours: u64 =
            ours(&processes, me, self::program, program.as_deref()).iter().map(|one| one.ticks).sum();
        Some(Self { at: Instant::now(), busy, stolen, ours })
    }

    fn until(&self, end: &Self, cores: usize) -> Option<Load> {
        let ticks =
            end.at.duration_since(self.at).as_secs_f64() * rustix::param::clock_ticks_per_second() as f64;
        let since = |of: fn(&Self) -> u64| of(end).saturating_sub(of(self)) as f64;
        let (busy, ours) = (since(|sample| sample.busy), since(|sample| sample.ours));
        let load = Load {
            others: (busy - ours).max(0.0) / ticks,
            stolen: since(|sample| sample.stolen) / ticks,
            cores,
        };
        (ticks >= 1.0).then_some(load)
    }
}

/// Ticks in processes (user, nice, system), and stolen ticks, summed over all processors.
fn processors(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().find(|line| line.starts_with("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().skip(1).map_while(|word| word.parse().ok()).collect();
    // Interrupts are left out, because they include those of our own messages.
    Some((ticks.get(..3)?.iter().sum(), ticks.get(7).copied().unwrap_or(0)))
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Process {
    pid: u32,
    parent: u32,
    ticks: u64,
}

fn processes() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| process(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)).collect()
}

/// Parses `/proc/PID/stat`; the ticks are those of the process and of the children that it has waited for.
fn process(pid: u32, stat: &str) -> Option<Process> {
    let (_, rest) = stat.rsplit_once(')')?;
    let words: Vec<&str> = rest.split_whitespace().collect();
    let ticks = words.get(11..15)?.iter().filter_map(|word| word.parse::<u64>().ok()).sum();
    Some(Process { pid, parent: words.get(1)?.parse().ok()?, ticks })
}

fn program(pid: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// Our processes: the descendants of the first deckperf or deckrun above `me`, and all that run `mine`.
fn ours(
    processes: &[Process],
    me: u32,
    program: impl Fn(u32) -> Option<PathBuf>,
    mine: Option<&Path>,
) -> Vec<Process> {
    let parents: BTreeMap<u32, u32> = processes.iter().map(|one| (one.pid, one.parent)).collect();
    let starts_ours = |pid: u32| {
        let path = program(pid);
        let is_deckrun = path.as_deref().and_then(Path::file_name).is_some_and(|name| name == "deckrun");
        is_deckrun || path.is_some() && path.as_deref() == mine
    };
    // The process tree may have a circle if a process ended meanwhile, so a walk takes at most as many steps as there are
    // processes.
    let line =
        |pid| std::iter::successors(Some(pid), |pid| parents.get(pid).copied()).take(processes.len() + 1);
    let root = line(me).take_while(|&pid| pid == me || starts_ours(pid)).last().unwrap_or(me);
    let is_ours = |one: &&Process| {
        line(one.pid).any(|pid| pid == root) || mine.is_some() && program(one.pid).as_deref() == mine
    };
    processes.iter().filter(is_ours).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: Instant, [busy, stolen, ours]: [u64; 3]) -> Sample {
        Sample { at, busy, stolen, ours }
    }

    #[test]
    fn what_is_not_ours_is_others() {
        let (begin, second) = (Instant::now(), rustix::param::clock_ticks_per_second());
        let end = begin + std::time::Duration::from_secs(10);
        let (before, after) = (sample(begin, [1000, 7, 500]), |busy, ours| {
            sample(end, [1000 + busy * second, 7, 500 + ours * second])
        });
        let quiet = before.until(&after(20, 19), 2).expect("ten seconds");
        assert_eq!((quiet.others, quiet.stolen, quiet.is_busy()), (0.1, 0.0, false));
        assert!(!quiet.sentence().contains("busy"), "{}", quiet.sentence());
        let busy = before.until(&after(20, 6), 2).expect("ten seconds");
        assert_eq!((busy.others, busy.is_busy()), (1.4, true));
        assert!(busy.sentence().contains("used 1.4 of this host's 2 processors"), "{}", busy.sentence());
        assert_eq!(busy.json()["busy"], true);
        let guests = Sample { stolen: 7 + 3 * second, ..after(20, 20) };
        assert!(before.until(&guests, 2).expect("ten seconds").is_busy());
    }

    #[test]
    fn the_kernels_texts_are_read() {
        let stat = "cpu  10 2 5 900 1 4 3 6 0 0\ncpu0 5 1 2 450 0 2 1 3 0 0\nintr 1\n";
        assert_eq!(processors(stat), Some((17, 6)));
        assert_eq!(processors("cpu  10 2 5 900 1 4 3\n"), Some((17, 0)), "no guest");
        assert_eq!(processors("intr 1\n"), None);
        let odd = "42 (a ) name) S 7 42 42 0 -1 4194304 1 2 3 4 10 20 30 40 20 0 3 0 99\n";
        assert_eq!(process(42, odd), Some(Process { pid: 42, parent: 7, ticks: 100 }));
        assert_eq!(process(42, "42 (x"), None);
    }

    #[test]
    fn ours_are_descendants_of_the_launcher_and_ranks_of_other_launchers() {
        let one = |pid, parent| Process { pid, parent, ticks: 1 };
        let all = [
            one(1, 0),
            one(10, 1),
            one(11, 10),
            one(12, 11),
            one(13, 11),
            one(20, 1),
            one(21, 20),
            one(30, 1),
        ];
        let names = |pid| {
            Some(PathBuf::from(match pid {
                10 => "/bin/bash",
                11 => "/usr/bin/deckrun",
                12 | 21 => "/usr/bin/deckperf",
                _ => "/usr/bin/other",
            }))
        };
        let mine = Some(Path::new("/usr/bin/deckperf"));
        let pids = |me| ours(&all, me, names, mine).iter().map(|one| one.pid).collect::<Vec<_>>();
        assert_eq!(pids(12), [11, 12, 13, 21]);
        assert_eq!(pids(21), [12, 21], "started by another launcher");
        // Processes that end while they are listed may leave a circle.
        assert_eq!(ours(&[one(5, 6), one(6, 5)], 5, names, mine).len(), 2);
    }

    #[test]
    fn this_process_is_ours() {
        let me = std::process::id();
        let found = ours(&processes(), me, program, program(me).as_deref());
        assert!(found.iter().any(|one| one.pid == me), "{found:?}");
    }
}
