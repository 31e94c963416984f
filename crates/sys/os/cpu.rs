//! Processors that this process may use, and identity of the machine.

use std::io;
use std::os::unix::fs::MetadataExt;

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// The processors this thread may run on (affinity mask), lowest first.
pub fn usable_cpus() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return vec![0] };
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// Pins the calling thread to one processor.
///
/// # Errors
/// Errors of the kernel, when `cpu` does not exist or lies outside the process's cpuset.
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("cpu {cpu}: no such processor")));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Restricts the calling thread, and what it starts from now on, to these processors.
///
/// # Errors
/// Errors of the kernel, when none of them exists and lies inside the process's cpuset.
pub fn restrict_to_cpus(cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU) {
        set.set(cpu);
    }
    Ok(sched_setaffinity(None, &set)?)
}

/// Preferred processor of a thread. It is no restriction, and nothing depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreferredCpu(usize);

impl PreferredCpu {
    /// The `nth` processor of those that this thread may run on, modulo their number.
    pub fn nth(nth: usize) -> Self {
        let usable = usable_cpus();
        PreferredCpu(usable[nth % usable.len()])
    }

    /// Moves the calling thread to this processor, if it may run there. The thread may still run wherever it could before:
    /// the kernel leaves it there until it sees a reason to move it. Cheap for a thread that is there already.
    #[inline]
    pub fn go(self) {
        if sched_getcpu() != self.0 {
            // On an error the thread goes on where it is.
            let _ = self.move_there();
        }
    }

    #[cold]
    fn move_there(self) -> io::Result<()> {
        let before = sched_getaffinity(None)?;
        if self.0 >= CpuSet::MAX_CPU || !before.is_set(self.0) {
            return Ok(());
        }
        pin_to_cpu(self.0)?;
        Ok(sched_setaffinity(None, &before)?)
    }
}

/// Parallelism that the ranks on this host really have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Number of processors that may run us: affinity mask *and* cgroup quota, at least 1.
    pub cpus: usize,
}

impl Topology {
    /// Detects the parallelism of the machine. `available_parallelism` reads both the affinity mask and the cgroup quota; a rank
    /// that is itself pinned to one core must not conclude that the machine has one, so the online count
    /// stands in there. A quota of less than two processors counts as one.
    pub fn detect() -> Self {
        let usable = std::thread::available_parallelism().map_or(1, usize::from);
        Topology { cpus: beside_ranks(usable, usable_cpus().len(), online_cpus()) }
    }

    /// Parallelism of ranks that may run on `together` processors in all, by their affinity masks. A quota of this process's
    /// cgroup counts for all of them.
    pub fn of_ranks(together: usize) -> Self {
        let usable = std::thread::available_parallelism().map_or(1, usize::from);
        let quota = if usable < usable_cpus().len() { usable } else { together };
        Topology { cpus: together.min(quota).max(1) }
    }
}

/// Number of processors that may run this process and its peers. `usable`: by affinity mask and quota; `by_mask`: by the mask alone.
fn beside_ranks(usable: usize, by_mask: usize, online: usize) -> usize {
    let is_pinned = usable == 1 && by_mask == 1;
    if is_pinned { online.max(1) } else { usable }
}

fn online_cpus() -> usize {
    // SAFETY: sysconf reads a system constant and touches no memory of ours.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(online).unwrap_or(1)
}

/// The kernel's boot id: equal on both sides only if both run on the same running kernel.
///
/// # Errors
/// When `/proc` is not mounted.
pub fn boot_id() -> io::Result<[u8; 16]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: Vec<u8> = text.bytes().filter_map(|b| (b as char).to_digit(16).map(|d| d as u8)).collect();
    let mut id = [0u8; 16];
    if digits.len() != 32 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "boot_id is not 32 hex digits"));
    }
    for (byte, pair) in id.iter_mut().zip(digits.chunks(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    Ok(id)
}

/// Names this host as sockets of its kernel see it: two processes can meet by one without a network if they have the same
/// key. (The boot id, and the network namespace, in which such sockets have their names.)
///
/// # Errors
/// When `/proc` is not mounted.
pub fn host_key() -> io::Result<[u8; 24]> {
    let mut key = [0; 24];
    key[..16].copy_from_slice(&boot_id()?);
    key[16..].copy_from_slice(&std::fs::metadata("/proc/self/ns/net")?.ino().to_le_bytes());
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinning_restricts_the_thread_and_bad_cpus_are_refused() {
        let cpus = usable_cpus();
        assert!(!cpus.is_empty());
        std::thread::spawn(move || {
            pin_to_cpu(cpus[0]).unwrap();
            assert_eq!(usable_cpus(), [cpus[0]]);
        })
        .join()
        .unwrap();
        assert!(pin_to_cpu(usize::MAX).is_err());
    }

    #[test]
    fn who_goes_home_may_run_where_it_could_before_and_nowhere_else() {
        std::thread::spawn(|| {
            let cpus = usable_cpus();
            for nth in 0..2 * cpus.len() {
                let home = PreferredCpu::nth(nth);
                assert_eq!(home, PreferredCpu(cpus[nth % cpus.len()]));
                home.move_there().unwrap();
                assert_eq!(usable_cpus(), cpus);
            }
            let far = PreferredCpu::nth(cpus.len() - 1);
            pin_to_cpu(cpus[0]).unwrap();
            far.go();
            PreferredCpu(usize::MAX).go();
            assert_eq!(usable_cpus(), [cpus[0]]);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_process_that_is_pinned_counts_the_hosts_processors_and_one_with_a_quota_does_not() {
        assert_eq!(beside_ranks(1, 1, 8), 8, "pinned");
        assert_eq!(beside_ranks(1, 8, 8), 1, "a quota of less than two processors");
        assert_eq!(beside_ranks(3, 8, 8), 3, "a quota of three");
        assert_eq!(beside_ranks(8, 8, 8), 8, "free");
    }

    #[test]
    fn restricting_keeps_what_was_named_and_children_inherit_it() {
        let cpus = usable_cpus();
        let last = cpus[cpus.len() - 1];
        std::thread::spawn(move || {
            restrict_to_cpus(&[last, usize::MAX]).unwrap();
            assert_eq!(usable_cpus(), [last]);
            assert_eq!(std::thread::spawn(usable_cpus).join().unwrap(), [last]);
        })
        .join()
        .unwrap();
        assert!(restrict_to_cpus(&[]).is_err());
    }

    #[test]
    fn the_host_key_is_stable_and_begins_with_the_boot_id() {
        let key = host_key().unwrap();
        assert_eq!((key, &key[..16]), (host_key().unwrap(), &boot_id().unwrap()[..]));
        assert_ne!(key[16..], [0; 8]);
    }

    #[test]
    fn boot_id_is_stable() {
        assert_eq!(boot_id().unwrap(), boot_id().unwrap());
        assert_ne!(boot_id().unwrap(), [0; 16]);
    }
}
