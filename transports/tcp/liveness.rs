//! Liveness of the peer's host while data are in flight to it.
//!
//! The kernel's own time limit (TCP_USER_TIMEOUT) would not do: it also ends connections whose peer has stopped
//! reading for so long, although the peer's host answers every probe. A process that is stopped, by a debugger say,
//! is not dead. So this file asks the kernel for its counters. (While nothing is in flight, the kernel's keep-alive
//! probes find a dead host.)

use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::sys::{self, Liveness};

/// Unanswered tries in a row that make a silent host dead: one may be under way at any moment.
const UNANSWERED: u8 = 2;

/// Whether the host at the other end has been silent for `detect` although probes were sent.
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
