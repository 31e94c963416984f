//! Link of a VI: a connection, its queue pair and its out-of-band connection behind one lock, and the receivers of
//! its events.

mod qp_connect;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use udeck_session::{Acknowledge, Events, Watching};
use udeck_sys::job_time;
use udeck_sys::ranked::{RankedGuard, RankedMutex};
use udeck_via::transport::{Inline, LinkReport, Queue as WorkQueue, TransferStatus};

use crate::completions::{number_of, request_of};
use crate::connection::{Connection, Phase, Work};
use crate::core::Core;
use crate::ffi::Wc;
use crate::ffi::codes::{event, status, wc_flags, wc_opcode};
use crate::locks::LINK;
use crate::oob::{End, Oob, Word};
use crate::queue::Queue;

/// Time for the out-of-band connection to tell why a queue pair has failed.
const GRACE: Duration = Duration::from_secs(1);
/// Time for a message to come that has left an unreliable peer: a network may keep a packet, and a busy host its
/// completions, for that long.
const TRANSIT: Duration = Duration::from_millis(100);
/// Text for a peer, and for its program, when it no longer lets us access its memory.
const FORBIDDEN: &str = "RDMA to memory that is not (or no longer) exposed to this peer";
/// Text about a dead peer.
const DIED: &str = "its out-of-band connection ended without a goodbye: the peer's process has died, or its NIC was closed by force";

/// A link. Its lock is taken by every thread that works on it: the program's posts, the thread that polls, the helper.
pub struct VerbsLink {
    core: Arc<Core>,
    /// Number of the link in the names of completions and pollers.
    pub number: u32,
    /// Number in the names of completions of the unreliable queue pair.
    unreliable: Option<u32>,
    shared: RankedMutex<Shared>,
    arrivals: AtomicBool,
}

struct Shared {
    /// Queue pair; `None` when the link is over. It is dropped before the connection, whose memory the device
    /// accesses until then.
    queue: Option<Queue>,
    connection: Connection,
    oob: Option<Oob>,
    watching: Watching,
    /// The peer is ready to receive.
    ready: bool,
    requested: bool,
    done_sent: bool,
    /// When the queue pair failed, while the reason is unknown.
    failed_since: Option<Instant>,
    /// First missing number on the unreliable queue pair, and since when it is missing.
    missing_since: Option<(u32, Instant)>,
    /// Since when the program is gone and the peer is waited for.
    waits_since: Option<Instant>,
    /// Since when the peer is expected to come through rdma_cm.
    invited_since: Option<Instant>,
}

impl VerbsLink {
    /// Makes a link. `requested` says that this side requested the connection: the other side is ready then, and learns
    /// later that this side is.
    pub fn new(
        core: &Arc<Core>,
        number: u32,
        connection: Connection,
        queue: Queue,
        oob: Oob,
        requested: bool,
    ) -> Arc<Self> {
        let unreliable = queue.unreliable_queue().map(Queue::link);
        let shared = Shared {
            connection,
            queue: Some(queue),
            oob: Some(oob),
            watching: Watching::default(),
            ready: requested,
            requested,
            done_sent: false,
            missing_since: None,
            failed_since: None,
            waits_since: None,
            invited_since: (!requested && core.connect_method.is_cm()).then(job_time),
        };
        let (shared, arrivals) = (RankedMutex::new(LINK, shared), AtomicBool::new(false));
        Arc::new(VerbsLink { core: core.clone(), number, unreliable, shared, arrivals })
    }

    /// Runs `work` on the connection under the lock, gives the device its requests, unlocks, and announces the news.
    /// Nothing that `work` drops may call back into the link (a [`udeck_via::mem::Lent`] does).
    pub fn with<R>(&self, work: impl FnOnce(&mut Connection) -> R) -> R {
        let mut shared = self.shared.lock();
        let result = work(&mut shared.connection);
        self.finish(shared);
        result
    }

    /// Takes the next message if it is a short one, and lets `look` read it. Returns its immediate data. This is a
    /// fast path of [`VerbsLink::with`]: usually the message causes neither control frames nor news.
    pub fn take_short(&self, look: impl FnOnce(&Inline)) -> Option<Option<u32>> {
        let mut shared = self.shared.lock();
        let taken = shared.connection.take_short(look)?;
        if shared.connection.has_control_frame() || shared.connection.has_events() {
            self.finish(shared);
        } else {
            self.arrivals.store(shared.connection.has_arrivals(), Ordering::Release);
        }
        Some(taken)
    }

    /// Runs `work` as [`VerbsLink::with`]. It also gets the device, if the peer is ready to receive.
    pub fn with_device<R>(&self, work: impl FnOnce(&mut Connection, Option<&mut dyn Work>) -> R) -> R {
        let mut shared = self.shared.lock();
        let Shared { connection, queue, ready, .. } = &mut *shared;
        let device = queue.as_mut().filter(|_| *ready).map(|queue| queue as &mut dyn Work);
        let result = work(connection, device);
        self.finish(shared);
        result
    }

    /// Takes completions, on all links. The caller does not hold the lock.
    pub fn poll(&self) {
        self.core.completions.poll();
    }

    /// Takes all completions, on all links. The caller does not hold the lock.
    pub fn drain_before_close(&self) {
        self.core.completions.take_all();
    }

    /// Whether the program has messages to receive. Read without the lock, so the answer may be outdated.
    pub fn has_arrivals(&self) -> bool {
        self.arrivals.load(Ordering::Acquire)
    }

    /// Reports the program's queues to `watching` from now on. Earlier news are announced once.
    pub fn attach(&self, watching: Watching) {
        let mut shared = self.shared.lock();
        shared.connection.renotify();
        shared.watching = watching;
        self.finish(shared);
    }

    /// Stops reporting this queue.
    pub fn detach(&self, queue: WorkQueue) {
        let mut shared = self.shared.lock();
        let former = shared.watching.detach(queue);
        drop(shared);
        drop(former);
    }

    // ---- reports of the device ----

    /// Handles completions of this link, in order. The caller drops the returned events once it holds no lock:
    /// dropping them may run any code.
    pub fn completed(&self, run: &[Wc]) -> Events {
        let mut shared = self.shared.lock();
        let is_unreliable = run.first().is_some_and(|wc| self.unreliable == Some(number_of(wc.wr_id)));
        for (at, wc) in run.iter().enumerate() {
            if shared.queue.is_none() {
                self.core.completions.empty(&run[at..]);
                break;
            }
            if is_unreliable {
                shared.complete_unreliable(wc);
            } else {
                shared.complete(wc);
            }
        }
        self.tell(shared)
    }

    /// Handles an event of the queue pair `queue_pair`, if it is one of this link's.
    pub fn on_event(&self, kind: u32, queue_pair: u32) {
        let mut shared = self.shared.lock();
        let is_this = |queue: &Queue| queue.number() == queue_pair;
        if !shared
            .queue
            .as_ref()
            .is_some_and(|queue| is_this(queue) || queue.unreliable_queue().is_some_and(is_this))
        {
            return;
        }
        let why = match kind {
            event::QP_ACCESS_ERR => FORBIDDEN,
            event::QP_REQ_ERR => "the device refused what the peer asked of it",
            _ => "the device reports a failure of the queue pair",
        };
        shared.connection.fail(why);
        self.finish(shared);
    }

    /// Whether all posts are complete at the peer's device, as far as is known, or never will be. If not, the device
    /// is asked to report soon.
    pub fn is_done(&self) -> bool {
        let mut shared = self.shared.lock();
        let is_done = shared.queue.is_none() || shared.connection.is_all_sent();
        if !is_done {
            shared.connection.seek_confirmation();
            self.finish(shared);
        }
        is_done
    }

    /// Ends the link: the device is of no use any more.
    pub fn give_up(&self, why: &str) {
        self.with(|connection| connection.fail(why));
    }

    // ---- the out-of-band connection ----

    /// Runs `watch` on the out-of-band connection's descriptor, if there is one.
    pub fn watch_oob<R>(&self, watch: impl FnOnce(BorrowedFd<'_>) -> R) -> Option<R> {
        use std::os::fd::AsFd;
        self.shared.lock().oob.as_ref().map(|oob| watch(oob.as_fd()))
    }

    /// Handles reports on the out-of-band connection. A peer that sends too many of them is dropped.
    pub fn listen(&self) {
        loop {
            let heard = match &mut self.shared.lock().oob {
                Some(oob) => oob.receive(),
                None => return,
            };
            match heard {
                Ok(Some(Word::Ready)) => {
                    let mut shared = self.shared.lock();
                    shared.ready = true;
                    self.finish(shared);
                }
                Ok(Some(Word::Done)) if !self.shared.lock().ready => {
                    self.end(Connection::withdrawn);
                }
                Ok(Some(Word::Done)) => {
                    // Frames that the peer sent before its report have come.
                    self.core.completions.take_all();
                    self.with(Connection::peer_is_done);
                }
                Ok(Some(Word::Broken(why))) => {
                    self.core.completions.take_all();
                    self.end(|connection| {
                        connection.ended_by(&why);
                        connection.lost(&why);
                    });
                }
                Ok(None) => return,
                Err(end) => return self.oob_ended(&end),
            }
        }
    }

    fn oob_ended(&self, end: &End) {
        self.core.completions.take_all();
        let words = match end {
            End::HungUp => DIED.to_owned(),
            End::Failed(error) => format!("the process died, or its host, or the network: {error}"),
            End::Nonsense => {
                "the peer broke the protocol: it sent malformed data on its out-of-band connection".to_owned()
            }
        };
        self.end(|connection| connection.lost(&words));
    }

    /// Ends the link: the device no longer accesses its memory when `end` tells the connection so.
    fn end(&self, end: impl FnOnce(&mut Connection)) {
        let mut shared = self.shared.lock();
        drop(shared.queue.take());
        end(&mut shared.connection);
        self.finish(shared);
    }

    /// Checks for conditions that no event reports. Called by the helper.
    pub fn check(&self, now: Instant, patience: Duration) {
        self.check_missing(now);
        let mut shared = self.shared.lock();
        if shared.failed_since.is_some_and(|since| now.duration_since(since) >= GRACE) {
            shared.connection.fail("the queue pair failed for an unknown reason");
        }
        shared.check_invitation(now);
        if shared.connection.is_closed() {
            let since = *shared.waits_since.get_or_insert(now);
            if now.duration_since(since) >= patience && shared.connection.has_sent_all() {
                drop(shared.queue.take());
                shared.connection.lost("the peer does not answer the end of the connection");
            }
        }
        self.finish(shared);
    }

    /// Marks messages as lost that left the peer long ago and have not come.
    fn check_missing(&self, now: Instant) {
        let missing = self.shared.lock().missing_since;
        let Some((_, since)) = missing else { return };
        if now.duration_since(since) < TRANSIT {
            return self.core.hurry();
        }
        // The messages may have come, and no thread has polled.
        self.core.completions.take_all();
        let mut shared = self.shared.lock();
        if shared.missing_since == missing {
            shared.connection.miss();
        }
        self.finish(shared);
    }

    // ---- under the lock ----

    fn finish(&self, shared: RankedGuard<'_, Shared>) {
        drop(self.tell(shared));
    }

    fn tell(&self, mut shared: RankedGuard<'_, Shared>) -> Events {
        let over = shared.work();
        if self.unreliable.is_some() {
            self.tell_missing(&mut shared);
        }
        self.arrivals.store(shared.connection.has_arrivals(), Ordering::Release);
        if !over && shared.connection.take_arrivals() {
            let receive = shared.watching.receiver();
            drop(shared);
            if let Some(receive) = receive {
                receive.announce();
            }
            return Events::default();
        }
        if over || shared.connection.has_events() {
            self.tell_events(shared, over)
        } else {
            Events::default()
        }
    }

    fn tell_events(&self, mut shared: RankedGuard<'_, Shared>, over: bool) -> Events {
        let events = shared.connection.take_events();
        let [send, receive] = shared.watching.report(&events);
        let oob = if over { shared.oob.take() } else { None };
        drop(shared);
        if over {
            if let Some(oob) = oob {
                self.core.unwatch(&oob);
            }
            self.core.completions.remove(self.number);
            self.unreliable.iter().for_each(|unreliable| self.core.completions.remove(*unreliable));
            if let Some(manager) = self.core.connect_method.manager() {
                manager.withdraw(self.number);
            }
        }
        if let Some(send) = send {
            send.announce();
        }
        if let Some(receive) = receive {
            receive.announce();
        }
        events
    }

    /// Notes the first missing message of the unreliable queue pair, and makes the helper check again.
    fn tell_missing(&self, shared: &mut Shared) {
        self.core.dropped.fetch_add(shared.connection.take_missed(), Ordering::Relaxed);
        let missing = shared.connection.awaited();
        if shared.missing_since.map(|(number, _)| number) != missing {
            shared.missing_since = missing.map(|number| (number, job_time()));
            if missing.is_some() {
                self.core.hurry();
            }
        }
    }
}

impl Shared {
    /// Gives the device its requests, and ends what is over. Returns whether the whole link is over.
    fn work(&mut self) -> bool {
        let Shared { connection, queue, .. } = self;
        if let Some(queue) = queue {
            if let Err(error) = queue.repost() {
                connection.fail(&format!("the device takes no receive buffer: {error}"));
            }
            if self.ready {
                connection.pump(queue);
            }
        }
        if let Some(words) = connection.failure() {
            let words = words.to_owned();
            if let Some(oob) = &self.oob {
                oob.send(&Word::Broken(words.clone()));
            }
            drop(queue.take());
            connection.lost(&words);
            return true;
        }
        match connection.phase() {
            Phase::Open => false,
            // The accepting side sends its *done* last. So the requester, when it receives that, knows that the peer
            // has received everything, and may reset the socket.
            Phase::Done => {
                if self.requested {
                    self.announce_done();
                }
                false
            }
            Phase::Over => {
                self.announce_done();
                if let Some(oob) = self.oob.as_ref().filter(|_| self.requested) {
                    oob.reset_when_closed();
                }
                drop(self.queue.take());
                true
            }
        }
    }

    fn announce_done(&mut self) {
        if let (Some(oob), false) = (&self.oob, std::mem::replace(&mut self.done_sent, true)) {
            oob.send(&Word::Done);
        }
    }

    fn complete(&mut self, wc: &Wc) {
        let Shared { connection, queue: Some(queue), .. } = self else { return };
        let (is_receive, request) = request_of(wc.wr_id);
        match (is_receive, wc.status) {
            (false, status::SUCCESS) => {
                queue.retire(request);
                connection.sent(request);
            }
            (true, status::SUCCESS) => {
                self.ready = true;
                if wc.opcode == wc_opcode::RECV_RDMA_WITH_IMM {
                    debug_assert_ne!(wc.wc_flags & wc_flags::WITH_IMM, 0);
                    connection.written(u32::from_be(wc.imm_data), wc.byte_len as usize);
                } else {
                    connection.on_receive(queue.received(request, wc.byte_len));
                }
                queue.recycle(request);
            }
            // Flushed requests follow one that failed, which was reported before; or the out-of-band connection
            // tells the reason.
            (_, status::WR_FLUSH_ERR) => _ = self.failed_since.get_or_insert_with(job_time),
            (false, failure) => {
                let forbidden = matches!(failure, status::REM_ACCESS_ERR | status::REM_INV_REQ_ERR);
                // The device must release everything before the memory goes back.
                drop(self.queue.take());
                self.connection.failed(request, forbidden);
                self.connection.fail(&failure_text(failure, wc.vendor_err));
            }
            (true, failure) => {
                queue.mark_failed(request);
                connection.fail(&failure_text(failure, wc.vendor_err));
            }
        }
    }

    /// Handles a completion of the unreliable queue pair. Lost or refused messages have no completion that says so.
    fn complete_unreliable(&mut self, wc: &Wc) {
        let Shared { connection, queue, .. } = self;
        let Some(queue) = queue.as_mut().and_then(Queue::unreliable_queue_mut) else { return };
        let (is_receive, request) = request_of(wc.wr_id);
        match (is_receive, wc.status) {
            (false, status::SUCCESS) => {
                queue.retire(request);
                connection.on_sent_unreliable(request);
            }
            (true, status::SUCCESS) => {
                if wc.opcode == wc_opcode::RECV_RDMA_WITH_IMM {
                    connection.written_unreliable(u32::from_be(wc.imm_data), wc.byte_len as usize);
                } else {
                    connection.on_receive_unreliable(queue.received(request, wc.byte_len));
                }
                queue.recycle(request);
            }
            (_, status::WR_FLUSH_ERR) => _ = self.failed_since.get_or_insert_with(job_time),
            (_, failure) => {
                drop(self.queue.take());
                self.connection.fail(&failure_text(failure, wc.vendor_err));
            }
        }
    }
}

/// Describes the status of a failed completion.
#[cold]
fn failure_text(failure: u32, vendor: u32) -> String {
    match failure {
        status::REM_ACCESS_ERR | status::REM_INV_REQ_ERR => FORBIDDEN.to_owned(),
        status::RETRY_EXC_ERR => {
            "the peer's device does not answer: its host is cut off or down, or its process has \
             died (DECK_VERBS_TIMEOUT and DECK_VERBS_RETRY say how long it is tried)"
                .to_owned()
        }
        status::RNR_RETRY_EXC_ERR => {
            "the peer had no receive buffer for too long (DECK_VERBS_RNR_RETRY says how long it is tried)"
                .to_owned()
        }
        status::REM_OP_ERR => "the peer's device could not place what came".to_owned(),
        status::LOC_PROT_ERR => "the device may not access the memory that was posted".to_owned(),
        other => format!("the device failed a request (status {other}, vendor's error {vendor:#x})"),
    }
}

impl LinkReport for VerbsLink {
    fn lent(&self) -> usize {
        self.shared.lock().connection.lent_bytes()
    }
}

impl Acknowledge for VerbsLink {
    fn acknowledge(&self, number: u32, transfer_status: TransferStatus) {
        self.with(|connection| connection.acknowledge(number, transfer_status));
    }
}

impl fmt::Debug for VerbsLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shared.try_lock() {
            Some(shared) => write!(f, "Link({:?}, {:?})", shared.connection, shared.queue),
            None => f.write_str("Link(locked)"),
        }
    }
}
