//! The helper thread of a NIC.
//!
//! The helper runs listeners' handlers. It calls [`Core::progress`] while no other thread polls: it sleeps beside
//! the socket, or beside its own eventfd while other threads sleep beside the socket ([`crate::socket_wait`]). While
//! another thread polls, it naps ([`udeck_session::nap`]). An idle process only sends the keep-alives of its
//! connections.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use udeck_session::nap::Nap;
use udeck_sys::{job_time, thread};

use crate::core::Core;
use crate::incoming::MAX_REQUESTS;
use crate::peer::ConnectionStatus;

const NAME: &str = "udp-helper";
/// Interval of periodic checks of links and peers.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Interval of periodic checks when the NIC is closed.
const CLOSING_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// How long a closed NIC's links may take to end once QUIC has all of their bytes.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(1);

/// Starts the helper thread. It ends when the NIC is closed and its links are over.
///
/// # Errors
/// The kernel's error.
pub fn start(core: Arc<Core>) -> io::Result<()> {
    let failing = core.clone();
    thread::spawn(NAME, move || run(&core), move |why| failing.fail(NAME, why)).map(drop)
}

fn run(core: &Arc<Core>) {
    let (mut looks, mut nap) = (0, Nap::over(job_time()));
    let mut next_check = job_time() + CHECK_INTERVAL;
    while !core.is_closing() || core.has_links() {
        // A request that is queued meanwhile wakes this thread again.
        for request in (0..MAX_REQUESTS).map_while(|_| core.pop_request()) {
            request.deliver();
        }
        let now = job_time();
        if now >= next_check {
            next_check = check(core, now);
        }
        let (looked, armed) = core.activity();
        if std::mem::replace(&mut looks, looked) != looked && !armed {
            if now >= nap.until() {
                nap.lengthen(now);
            }
            core.socket_wait.helper_pause(core, nap.until() - now);
            continue;
        }
        nap = Nap::over(now);
        let limit = if core.is_closing() {
            CLOSING_CHECK_INTERVAL
        } else {
            next_check.saturating_duration_since(now)
        };
        core.socket_wait.helper_wait(core, limit);
        core.progress();
    }
    while let Some(request) = core.pop_request() {
        drop(request);
    }
    for peer in core.peers.all() {
        peer.shutdown(ConnectionStatus::Closed);
    }
    core.clear_peers();
}

/// Checks links and peers if that is due. Returns when the next check is due.
fn check(core: &Arc<Core>, now: Instant) -> Instant {
    let closing = core.is_closing();
    let timeout = if closing { CLOSING_TIMEOUT } else { core.detect };
    for link in core.links() {
        link.with(|connection, driver| driver.check_close(connection, now, timeout, closing));
    }
    for peer in core.peers.all() {
        peer.check(now, core.detect);
    }
    core.check_buffers();
    now + if closing { CLOSING_CHECK_INTERVAL } else { CHECK_INTERVAL.min(core.detect / 4) }
}
