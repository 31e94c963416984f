//! The thread that works while nobody looks.
//!
//! It runs listeners' handlers, and serves the socket as long as nobody else does: it sleeps beside it, stands by while
//! others sleep there ([`crate::rest`]), and naps, a millisecond at a time, while somebody polls. A process in which nothing
//! comes costs no more than the datagrams that ask silent peers whether they are there.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use udeck_sys::{job_time, thread};

use crate::core::Core;
use crate::incoming::REQUESTS;
use crate::peer::Standing;

const NAME: &str = "udp-helper";
/// How long who looks by itself is left alone.
const NAP: Duration = Duration::from_millis(1);
/// How often links are checked for what no datagram tells.
const CHECK: Duration = Duration::from_secs(2);
/// The same when the NIC is closed and the thread shall end.
const LAST_CHECK: Duration = Duration::from_millis(50);
/// How long a closed NIC's links may take to end when QUIC has taken all that they have said.
const LAST_PATIENCE: Duration = Duration::from_secs(1);

/// Starts the thread. It ends when the NIC is closed and its links are over.
///
/// # Errors
/// The kernel's.
pub fn start(core: Arc<Core>) -> io::Result<()> {
    let failing = core.clone();
    thread::spawn(NAME, move || run(&core), move |why| failing.fail(NAME, why)).map(drop)
}

fn run(core: &Arc<Core>) {
    let (mut looks, mut next_check) = (0, job_time() + CHECK);
    while !core.is_closing() || core.has_links() {
        // All that lie here. Those that come meanwhile have rung the bell again.
        for request in (0..REQUESTS).map_while(|_| core.next_request()) {
            request.deliver();
        }
        let now = job_time();
        if now >= next_check {
            next_check = check(core, now);
        }
        let (looked, armed) = core.activity();
        if std::mem::replace(&mut looks, looked) != looked && !armed {
            core.rest.nap(NAP);
            continue;
        }
        let limit = if core.is_closing() { LAST_CHECK } else { next_check.saturating_duration_since(now) };
        core.rest.watch(core, limit);
        core.serve();
    }
    while let Some(request) = core.next_request() {
        drop(request);
    }
    for peer in core.peers() {
        peer.shut(Standing::Closed);
    }
    core.forget_peers();
}

/// When it is done next.
fn check(core: &Arc<Core>, now: Instant) -> Instant {
    let closing = core.is_closing();
    let patience = if closing { LAST_PATIENCE } else { core.detect };
    for link in core.links() {
        link.with(|connection, driver| driver.check(connection, now, patience, closing));
    }
    for peer in core.peers() {
        peer.check(now, core.detect);
    }
    now + if closing { LAST_CHECK } else { CHECK.min(core.detect / 4) }
}
