//! Whether the peer's host is still there while something is under way to it.
//!
//! The kernel's own time limit (TCP_USER_TIMEOUT) would not do: it also ends connections whose peer has stopped reading
//! for so long, although its host answers every probe; and a process that is stopped, by a debugger say, is not dead.
//! So we ask the kernel what it knows. (While nothing is under way, the kernel's keep-alive probes find out by themselves.)

use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::sys::{self, Liveness};

/// Unanswered tries that make a silence a death: one may be under way at any moment.
const UNANSWERED: u8 = 2;

/// Whether the host at the other end has been silent for `detect` although it was asked.
pub fn is_dead(socket: BorrowedFd<'_>, detect: Duration) -> bool {
    sys::liveness(socket).is_ok_and(|liveness| has_stopped(liveness, detect))
}

fn has_stopped(liveness: Liveness, detect: Duration) -> bool {
    let silence = Duration::from_millis(liveness.silent.into());
    liveness.outstanding && liveness.unanswered >= UNANSWERED && silence >= detect
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_answers_probes_or_was_asked_nothing_is_alive() {
        let detect = Duration::from_secs(5);
        let dead = Liveness { outstanding: true, silent: 6000, unanswered: 4 };
        assert!(has_stopped(dead, detect));
        assert!(!has_stopped(Liveness { outstanding: false, ..dead }, detect), "keep-alive's business");
        assert!(!has_stopped(Liveness { silent: 4000, ..dead }, detect), "not for long");
        assert!(!has_stopped(Liveness { unanswered: 1, ..dead }, detect), "a probe is under way");
    }
}
