//! Bounds of the address space that the arenas of peers take here. A peer says how long its arenas are, and needs no
//! memory for that.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use udeck_sys::quota::{Exceeded, Quota, Share};
use udeck_sys::say;

use crate::peer_socket::process;

const TIB: u64 = 1 << 40;
/// Upper bound for all peers of a NIC, in bytes: half of the address space of a process (47 bits).
pub const MOST: u64 = 64 * TIB;
/// Upper bound for one other process, in bytes: two peer sockets with the longest arenas, and as much again.
pub const MOST_OF_ONE: u64 = 8 * TIB;
/// Upper bound for all processes of other pid namespaces together, in bytes: they cannot be told apart.
pub const MOST_OF_OTHERS: u64 = 32 * TIB;

/// Quotas of address space, by process id.
#[derive(Debug)]
pub struct Space {
    quota: Arc<Quota<Option<i32>>>,
    reported: AtomicBool,
}

/// Address space that the arenas behind one peer socket take.
pub type Taken = Share<Option<i32>>;

impl Default for Space {
    fn default() -> Self {
        Space { quota: Quota::new(MOST), reported: AtomicBool::new(false) }
    }
}

impl Space {
    /// Takes `bytes` for a process's arenas. The ranks of `run_local` are in this process, which has no bound of its own.
    ///
    /// # Errors
    /// The reason as text. It is printed on stderr, too, once: the other process learns only that its peer socket
    /// was closed.
    pub fn take(&self, pid: Option<i32>, bytes: u64) -> io::Result<Taken> {
        let own = i32::try_from(std::process::id()).ok();
        let most = match pid {
            None => MOST_OF_OTHERS,
            _ if pid == own => MOST,
            Some(_) => MOST_OF_ONE,
        };
        self.quota.take(pid, bytes, most).map_err(|exceeded| {
            let (whose, has, most) = match exceeded {
                Exceeded::Own(has) => (format!("process {}", process(pid)), has, most),
                Exceeded::All(has) => ("all peers of this NIC".to_owned(), has, MOST),
            };
            let why = format!(
                "no address space for arenas of {bytes} bytes: {whose} may have {most}, and {has} are taken; lower DECK_ARENA"
            );
            if !self.reported.swap(true, Ordering::Relaxed) {
                say!("process {} is refused: {why} (reported once)", process(pid));
            }
            io::Error::new(io::ErrorKind::QuotaExceeded, why)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_has_all_it_may_have_keeps_no_other_out() {
        let space = Space::default();
        let first: Vec<_> = (0..4).map(|_| space.take(Some(1), 2 * TIB).unwrap()).collect();
        let why = space.take(Some(1), 1).unwrap_err().to_string();
        assert!(why.contains("process 1 may have 8796093022208") && why.contains("DECK_ARENA"), "{why}");
        let _other = space.take(Some(2), 2 * TIB).unwrap();
        let _unknown = space.take(None, MOST_OF_OTHERS).unwrap();
        drop(first);
        assert!(space.take(Some(1), MOST_OF_ONE).is_ok());
    }

    #[test]
    fn all_together_have_a_bound() {
        let space = Space::default();
        let _all: Vec<_> = (1..9).map(|pid| space.take(Some(pid), MOST_OF_ONE).unwrap()).collect();
        assert!(space.take(Some(9), 1).unwrap_err().to_string().contains("all peers of this NIC"));
    }
}
