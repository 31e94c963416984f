//! The job as one rank sees it: making mailboxes, postboxes, messages and groups, and ending this rank's
//! part.

mod families;
mod groups;
pub(crate) mod survivors;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytemuck::Pod;
use parking_lot::Mutex;
use udeck_boot::waits::LONG;
use udeck_boot::{Client, Maker, family};
use udeck_via::mem::Fill;
use udeck_via::{Deadline, Error as ViaError, Nic, Pause, Spinner, stderr_line};

use crate::config::Config;
use crate::connect::{LookupMode, connect};
use crate::error::{Error, Result, check_process};
use crate::exits::log::RankExit;
use crate::exits::rank_exits::RankExits;
use crate::group::Group;
use crate::long_wait::{LongWait, publish};
use crate::mailbox::Mailbox;
use crate::mailbox_options::MailboxOptions;
use crate::memory::accounting::Memory;
use crate::memory::buffer::Buf;
use crate::message::Message;
use crate::nics::Nics;
use crate::payload::{Payload, check_payload};
use crate::postbox::Postbox;
use crate::route::UnavailableTransport;
use crate::stats::metrics;
use crate::stats::trace;
use crate::stats::tracing_job::TracingJob;
use crate::stats::{PeerStats, Stats};
use crate::wait_policy::WaitPolicy;
use crate::world_state::WorldState;
use udeck_via::ServiceLevel;

/// Longest name of a mailbox, in bytes. (The name service takes 255, including the rank's number of a
/// family's member.)
const MAX_NAME: usize = 200;

/// A job as one rank sees it: its rank, its size, and the mailboxes in it.
///
#[cfg_attr(not(doctest), doc = include_str!("examples/world.md"))]
///
/// # Use
///
/// A world is a value, not a global: one process may hold several ranks, as tests do. It is `Send + Sync`.
/// Mailboxes and postboxes may outlive it, but [`World::finish`] ends this rank's part in the job: afterwards
/// a mailbox still gives out the messages that have arrived, and every other call on such a handle is
/// [`Error::WorldFinished`]. A world belongs to the process that made it: in a child made by `fork()` every
/// call is an error, and every drop does nothing.
pub struct World {
    pub(crate) state: Arc<WorldState>,
    all: OnceLock<Group>,
    making_all: Mutex<()>,
    tracing: Mutex<Option<TracingJob>>,
}

impl World {
    /// Makes the world of the rank of `client`, with messages over `nics`, the preferred one first. (Programs
    /// call `udeck::init`.) `oversubscribed`: more ranks run on this host than it has processors.
    ///
    /// A mailbox listens on all of these NICs. A postbox takes the first one that reaches its mailbox
    /// ([`crate::Postbox::route`]). The first NIC should be the cheapest one to poll: a waiting mailbox polls
    /// the others less often.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there are no NICs or more than 8, if they do not share the same memory, or if one
    /// was not opened with the rank's [keys](Client::keys).
    pub fn new(client: Client, nics: Vec<Nic>, config: Config, oversubscribed: bool) -> Result<Self> {
        Self::with_unavailable(client, nics, Vec::new(), config, oversubscribed)
    }

    /// Like [`World::new`], and also names the preferred NICs that this host cannot have. Each is given with
    /// the number of `nics` that are better still. Routes report them.
    ///
    /// # Errors
    /// The errors of [`World::new`].
    pub fn with_unavailable(
        client: Client,
        nics: Vec<Nic>,
        unavailable: Vec<UnavailableTransport>,
        config: Config,
        oversubscribed: bool,
    ) -> Result<Self> {
        let nics = Nics::new(nics, unavailable)?;
        let rank = client.welcome().rank;
        if let Some(world_nic) =
            nics.iter().find(|world_nic| world_nic.nic.attributes().identity != Some(rank))
        {
            return Err(wrong_keys(&world_nic.nic, rank));
        }
        let state = Arc::new(WorldState::new(client, nics, config, oversubscribed));
        let tracing = Mutex::new(TracingJob::begin(&state)?);
        Ok(World { state, all: OnceLock::new(), making_all: Mutex::default(), tracing })
    }

    /// This rank's number, from 0.
    #[doc(alias = "deck_node")]
    pub fn rank(&self) -> usize {
        self.state.rank()
    }

    /// Number of ranks in the job.
    #[doc(alias = "deck_numnodes")]
    pub fn size(&self) -> usize {
        self.state.size()
    }

    /// The settings of this world.
    pub fn config(&self) -> &Config {
        self.state.config()
    }

    /// The most preferred NIC, for its attributes. All NICs use the same memory.
    pub fn nic(&self) -> &Nic {
        self.state.nic()
    }

    /// All NICs that carry messages, the preferred one first.
    pub fn nics(&self) -> impl Iterator<Item = &Nic> {
        self.state.nics().iter().map(|world_nic| &world_nic.nic)
    }

    /// The connection to the launcher, for other layers that keep services there.
    pub fn client(&self) -> &Client {
        self.state.client()
    }

    /// Waits until all ranks have called `barrier`, at most the world's deadline. Collective.
    ///
    /// # Errors
    /// [`Error::PeerLost`]; [`Error::Deadline`] names the ranks that are missing.
    #[doc(alias = "deck_barrier")]
    pub fn barrier(&self) -> Result {
        self.barrier_timeout(self.state.config().deadline)
    }

    /// Like [`World::barrier`], but waits at most `limit`. After [`Error::Deadline`], the next call goes on
    /// waiting at the same barrier.
    ///
    /// # Errors
    /// The errors of [`World::barrier`].
    pub fn barrier_timeout(&self, limit: Duration) -> Result {
        check_process()?;
        if self.size() == 1 {
            return Ok(());
        }
        match self.all.get() {
            Some(all) => all.barrier_timeout(limit),
            None => {
                let deadline = Deadline::after(limit);
                self.all_within(limit)?.barrier_timeout(deadline.remaining())
            }
        }
    }

    /// Creates a mailbox, owned by this rank. Names are unique within the job.
    ///
    /// # Errors
    /// [`Error::NameTaken`] names the owner; [`Error::BadName`].
    #[doc(alias = "deck_mbox_create")]
    pub fn mailbox<T: Payload>(&self, name: &str) -> Result<Mailbox<T>> {
        self.mailbox_with(name, &MailboxOptions::new())
    }

    /// Creates a mailbox like [`World::mailbox`], with a bound of its own for the queue of each of its
    /// postboxes ([`crate::Postbox::post`]). `bytes` is the size of one queue, instead of what the postbox's
    /// rank allows (`DECK_QUEUE`, 4 MiB). With 0, the queue holds one message: a poster waits as soon as its
    /// receiver falls behind by more than the connection holds.
    ///
    /// A message counts its memory and 128 bytes, but at most a sixteenth of the bound, so a queue holds at
    /// least 16 messages of any length. One message always finds a place. A queue never takes more than a
    /// quarter of the poster's message memory (`DECK_ARENA`).
    ///
    /// # Errors
    /// The errors of [`World::mailbox`].
    pub fn mailbox_with_queue<T: Payload>(&self, name: &str, bytes: usize) -> Result<Mailbox<T>> {
        self.mailbox_with(name, &MailboxOptions::new().queue(bytes))
    }

    /// Creates a mailbox like [`World::mailbox`], with options for its posters: a [service
    /// level](MailboxOptions::level), a [bound of their queues](MailboxOptions::queue).
    ///
    /// # Errors
    /// The errors of [`World::mailbox`].
    pub fn mailbox_with<T: Payload>(&self, name: &str, options: &MailboxOptions) -> Result<Mailbox<T>> {
        check_process()?;
        check_name(name)?;
        check_payload::<T>()?;
        Mailbox::create(&self.state, name.to_owned(), options)
    }

    /// Makes a postbox of the mailbox `name`. Waits until the mailbox exists and accepts another connection,
    /// at most `DECK_SETUP_TIMEOUT`.
    ///
    /// One rank may have 512 connections with a mailbox, 1023 in a job of two ranks. A postbox has one
    /// connection, and two once it has posted by [`Protocol::Handshake`](crate::Protocol::Handshake). With
    /// all mailboxes of another rank, a rank may have as many connections as its NIC says
    /// ([`udeck_via::NicAttributes::max_connections_of_a_rank`]: 8192 over shm unless `vm.max_map_count` is
    /// raised, 16,384 otherwise). A connection that has ended counts until the owner next polls its mailbox,
    /// so a program that makes a postbox for each message may have to wait.
    ///
    /// # Errors
    /// [`Error::Deadline`] says whom the call waited for: the mailbox's owner, to answer or to have a place,
    /// or the launcher, to say whether a rank whose connection broke is lost or has finished.
    /// [`Error::NoSuchMailbox`] lists the names that exist; [`Error::PeerLost`] or [`Error::MailboxGone`] at
    /// once if the rank that made the mailbox is lost or has finished, as long as no other rank has made it
    /// anew; [`Error::NobodyLeft`]; [`Error::WrongType`]; [`Error::Unreachable`] says which transports were
    /// tried; [`Error::Unsupported`] if the connection cannot carry the world's protocol (`DECK_PROTOCOL`).
    #[doc(alias = "deck_mbox_clone")]
    pub fn postbox<T: Payload>(&self, name: &str) -> Result<Postbox<T>> {
        self.postbox_timeout(name, self.state.config().setup)
    }

    /// Makes a postbox like [`World::postbox`], but waits at most `limit` for the mailbox.
    ///
    /// # Errors
    /// The errors of [`World::postbox`].
    pub fn postbox_timeout<T: Payload>(&self, name: &str, limit: Duration) -> Result<Postbox<T>> {
        check_name(name)?;
        self.make_postbox(name, LookupMode::Of(Maker::Anyone), None, Deadline::after(limit))
    }

    /// Makes a postbox like [`World::postbox`]; its messages have this service level instead of the mailbox's
    /// ([`MailboxOptions::level`]).
    ///
    /// # Errors
    /// The errors of [`World::postbox`].
    pub fn postbox_at<T: Payload>(&self, name: &str, level: ServiceLevel) -> Result<Postbox<T>> {
        check_name(name)?;
        let deadline = Deadline::after(self.state.config().setup);
        self.make_postbox(name, LookupMode::Of(Maker::Anyone), Some(level), deadline)
    }

    /// Makes a postbox if the mailbox exists. Does not wait for the mailbox.
    ///
    /// # Errors
    /// The errors of [`World::postbox`], at once; [`Error::WouldBlock`] if the mailbox accepts no other
    /// connection now.
    pub fn try_postbox<T: Payload>(&self, name: &str) -> Result<Postbox<T>> {
        check_name(name)?;
        self.make_postbox(name, LookupMode::Now, None, Deadline::after(self.state.config().setup))
    }

    fn make_postbox<T: Payload>(
        &self,
        registered: &str,
        mode: LookupMode,
        level: Option<ServiceLevel>,
        deadline: Deadline,
    ) -> Result<Postbox<T>> {
        check_process()?;
        check_payload::<T>()?;
        let channel = connect::<T>(&self.state, registered, mode, level, deadline)?;
        channel.check(self.state.config().protocol)?;
        Ok(Postbox::new(&self.state, family::parts(registered).0, channel))
    }

    /// Makes a typed message of `len` elements, zeroed, 64-byte aligned. If the memory is used up and
    /// receivers may give some back, waits for it, at most the world's deadline (`DECK_DEADLINE`).
    ///
    /// # Errors
    /// [`Error::TooLarge`]. [`Error::Deadline`] and [`Error::NoMemory`] say who has how much memory.
    /// `NoMemory` comes at once if no memory is at a receiver or queued for one, so that only this program
    /// could free any. (The call does not wait for another thread of the program to free some.)
    /// [`Error::Via`] if the machine has no more memory.
    #[inline]
    pub fn buf<T: Pod>(&self, len: usize) -> Result<Buf<T>> {
        self.new_buf(len, Fill::Zero, WaitPolicy::Usual)
    }

    /// Like [`World::buf`], but waits at most `limit`.
    ///
    /// # Errors
    /// The errors of [`World::buf`].
    pub fn buf_timeout<T: Pod>(&self, len: usize, limit: Duration) -> Result<Buf<T>> {
        self.new_buf(len, Fill::Zero, WaitPolicy::Until(Deadline::after(limit)))
    }

    /// Like [`World::buf`], but does not wait.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] says who has the memory; otherwise the errors of [`World::buf`].
    pub fn try_buf<T: Pod>(&self, len: usize) -> Result<Buf<T>> {
        self.new_buf(len, Fill::Zero, WaitPolicy::None)
    }

    /// Makes a typed message that is not zeroed, for programs that overwrite it anyway. It contains whatever
    /// this rank last left in the memory. (It is plain data of this rank: never undefined, never another
    /// rank's.) Waits like [`World::buf`].
    ///
    /// # Errors
    /// The errors of [`World::buf`].
    #[inline]
    pub fn buf_reused<T: Pod>(&self, len: usize) -> Result<Buf<T>> {
        self.new_buf(len, Fill::Keep, WaitPolicy::Usual)
    }

    /// Like [`World::buf_reused`], but waits at most `limit`.
    ///
    /// # Errors
    /// The errors of [`World::buf`].
    pub fn buf_reused_timeout<T: Pod>(&self, len: usize, limit: Duration) -> Result<Buf<T>> {
        self.new_buf(len, Fill::Keep, WaitPolicy::Until(Deadline::after(limit)))
    }

    /// Like [`World::buf_reused`], but does not wait.
    ///
    /// # Errors
    /// The errors of [`World::try_buf`].
    pub fn try_buf_reused<T: Pod>(&self, len: usize) -> Result<Buf<T>> {
        self.new_buf(len, Fill::Keep, WaitPolicy::None)
    }

    /// Makes a typed message of the elements that an iterator yields. Waits like [`World::buf`].
    ///
    /// ```
    /// # fn step(world: &udeck_deck::World) -> udeck_deck::Result {
    /// let squares = world.buf_from((0..1000_u64).map(|n| n * n))?;
    /// assert_eq!(squares[30], 900);
    /// # Ok(()) }
    /// ```
    ///
    /// If the iterator says how many elements it has ([`Iterator::size_hint`]), they are written where they are
    /// sent from; further ones are left out. Otherwise they are collected first, and copied once; an iterator
    /// that does not end yields [`Error::TooLarge`], like one with too many elements.
    ///
    /// # Errors
    /// The errors of [`World::buf`].
    pub fn buf_from<T: Pod>(&self, elements: impl IntoIterator<Item = T>) -> Result<Buf<T>> {
        check_payload::<T>()?;
        let elements = elements.into_iter();
        let (least, most) = elements.size_hint();
        // One element more than a message may have.
        let bound = self.state.max_transfer() / size_of::<T>() + 1;
        if most != Some(least) && least < bound {
            let elements: Vec<T> = elements.take(bound).collect();
            let mut buf = self.buf_reused(elements.len())?;
            buf.copy_from_slice(&elements);
            return Ok(buf);
        }
        let (mut buf, mut len) = (self.buf_reused(least)?, 0);
        for (place, element) in buf.iter_mut().zip(elements) {
            *place = element;
            len += 1;
        }
        buf.truncate(len);
        Ok(buf)
    }

    #[inline]
    fn new_buf<T: Pod>(&self, len: usize, fill: Fill, policy: WaitPolicy) -> Result<Buf<T>> {
        check_payload::<T>()?;
        // Saturates on overflow: no message is as long as `usize::MAX`.
        let bytes = len.saturating_mul(size_of::<T>());
        Ok(Buf::new(self.state.block_for_message(bytes, fill, policy)?))
    }

    /// Makes a packed message with room for `capacity` bytes (each item takes 8 more than its data). Waits
    /// like [`World::buf`].
    ///
    /// # Errors
    /// The errors of [`World::buf`].
    #[doc(alias = "deck_msg_create")]
    pub fn message(&self, capacity: usize) -> Result<Message> {
        self.new_message(capacity, WaitPolicy::Usual)
    }

    /// Like [`World::message`], but waits at most `limit`.
    ///
    /// # Errors
    /// The errors of [`World::buf`].
    pub fn message_timeout(&self, capacity: usize, limit: Duration) -> Result<Message> {
        self.new_message(capacity, WaitPolicy::Until(Deadline::after(limit)))
    }

    /// Like [`World::message`], but does not wait.
    ///
    /// # Errors
    /// The errors of [`World::try_buf`].
    pub fn try_message(&self, capacity: usize) -> Result<Message> {
        self.new_message(capacity, WaitPolicy::None)
    }

    fn new_message(&self, capacity: usize, policy: WaitPolicy) -> Result<Message> {
        Ok(Message::new(self.state.block_for_message(capacity, Fill::Zero, policy)?))
    }

    /// The other ranks that have ended so far, in the order of the launcher's reports: ranks that finished,
    /// and ranks that are lost.
    pub fn exited_ranks(&self) -> impl Iterator<Item = RankExit> + use<> {
        let known = if udeck_via::is_forked() { Vec::new() } else { self.state.exit_log().in_order(0) };
        known.into_iter()
    }

    /// Reports the other ranks that end, one after another, beginning with those that have ended already. It
    /// can stand in a [`crate::select`] beside mailboxes. A program thereby notices a rank that finished with
    /// work in hand, or was lost before it had a postbox here.
    ///
    /// # Errors
    /// [`Error::Via`] if the NIC has no more completion queues.
    pub fn rank_exits(&self) -> Result<RankExits> {
        check_process()?;
        RankExits::new(&self.state)
    }

    /// Counters of the library on this rank, from the start until now.
    pub fn stats(&self) -> Stats {
        self.state.stats()
    }

    /// Counters of the messages between this rank and each rank that it has a connection with, in the order
    /// of their ranks.
    pub fn peer_stats(&self) -> Vec<PeerStats> {
        self.state.peers()
    }

    /// The counters of [`World::stats`] and [`World::peer_stats`] in Prometheus's text exposition format
    /// 0.0.4, with this rank's number in each line. A program may serve this text, or write it to a file that
    /// an exporter reads.
    pub fn metrics(&self) -> String {
        metrics::exposition(self.rank(), &self.stats(), &self.peer_stats())
    }

    /// Ends the whole job and this process now, with exit code `code` (0 counts as 1), by means of the
    /// launcher. Other ranks that still run see this rank as lost, and are told `why`. Messages that were
    /// posted and not retrieved may be lost.
    ///
    /// Blocks until the launcher knows, at most two seconds.
    #[doc(alias = "MPI_Abort")]
    pub fn abort(&self, code: u8, why: &str) -> ! {
        self.state.client().abort(code, why)
    }

    /// Ends the calls of other threads that wait in this world's objects, also for memory and connections.
    /// They fail with [`Error::WorldFinished`] within a second, and so does every later call. Use it where
    /// threads share the world and one of them wants it back to [`World::finish`] it.
    pub fn shutdown(&self) {
        if !udeck_via::is_forked() {
            self.state.close(true);
        }
    }

    /// Ends this rank's part in the job: delivers what was posted, then says goodbye to the launcher.
    /// Delivery may need the receivers to retrieve: messages that are announced, that wait for room, or that
    /// are more than a network buffers. When `finish` returns, this process may end: other ranks can still
    /// read what was posted to them. Waits at most the world's deadline (`DECK_DEADLINE`) for receivers, and
    /// `DECK_SETUP_TIMEOUT` for the launcher. Under a cluster's own launcher rank 0 serves the job's names:
    /// its `finish` returns when all other ranks have finished or are lost, however long that takes.
    ///
    /// # Errors
    /// [`Error::Undelivered`] says how many messages were lost while they still waited here (queued or
    /// announced), and for whom; [`Error::Multiple`] lists several such errors. [`Error::Deadline`] says who
    /// has not retrieved, and how many messages are lost with this rank therefore. A message that a
    /// connection had taken is the receiver's to read: if a mailbox ends with such messages unread, `finish`
    /// reports no error. [`Postbox::flush`] reports it.
    #[doc(alias = "deck_done")]
    pub fn finish(self) -> Result {
        let limit = self.state.config().deadline;
        self.finish_timeout(limit)
    }

    /// Like [`World::finish`], but waits at most `limit` for receivers.
    ///
    /// # Errors
    /// The errors of [`World::finish`].
    pub fn finish_timeout(mut self, limit: Duration) -> Result {
        check_process()?;
        let deadline = Deadline::after(limit);
        let (start, traced) = (Instant::now(), trace::begin());
        let _finishing = WorldState::finishing();
        self.state.close(false); // this function uses the handles itself
        let known = publish(&self.state, &self.state.holders(Memory::Outbox).wait_at_end(), Duration::ZERO);
        let wait = &mut LongWait::begin("the end");
        let interrupted = self.wait_for_answers(deadline, wait);
        drop(self.all.take());
        if self.config().stats {
            let table = metrics::table(self.rank(), &self.stats(), &self.peer_stats());
            stderr_line(format_args!("{table}"));
        }
        if let Some(tracing) = self.tracing.get_mut().take() {
            trace::finished(traced, self.rank());
            tracing.finish(&self.state, deadline);
        }
        // Other ranks may read what was posted after they hear that this rank has finished, and this process
        // may be gone then.
        let drained = interrupted.and_then(|()| self.drain(deadline, wait));
        if matches!(drained, Err(Error::Interrupted)) {
            // This rank has not finished its part: the end of its process tells the others.
            self.state.end();
            return drained;
        }
        let is_late = drained.is_err() || self.state.progress().is_busy();
        let late = is_late.then(|| self.too_late(start));
        drop(known);
        let undelivered = self.state.take_all_undelivered();
        self.state.end();
        let signed_off = self.state.sign_off(Deadline::after(self.state.config().setup));
        undelivered?;
        late.map_or(signed_off, Err)
    }

    /// Waits until no announced message is left.
    fn wait_for_answers(&self, deadline: Deadline, wait: &mut LongWait) -> Result {
        let mut spinner = Spinner::new(self.state.oversubscribed());
        while self.state.progress().is_busy() && !deadline.passed() {
            if self.state.progress().help() {
                spinner = Spinner::new(self.state.oversubscribed());
            }
            if spinner.pause() == Pause::Sleep {
                std::thread::sleep(self.state.progress().sleep_limit().min(deadline.remaining()));
                wait.check_interrupt(&self.state)?;
            }
        }
        Ok(())
    }

    /// Waits until peers can read the rest without this process.
    fn drain(&self, deadline: Deadline, wait: &mut LongWait) -> Result {
        loop {
            let slice = deadline.min(Deadline::after(LONG));
            match self.state.nics().drain(slice) {
                Err(ViaError::Timeout { .. }) if !deadline.passed() => wait.check_interrupt(&self.state)?,
                drained => return drained.map_err(|error| Error::via("finishing", error)),
            }
        }
    }

    fn too_late(&self, start: Instant) -> Error {
        let holders = self.state.holders(Memory::Outbox);
        let mut whom = String::from("ranks to retrieve the messages posted to them");
        let waiting = holders.waiting();
        if !waiting.is_empty() {
            whom += &format!("; not sent yet: {waiting}");
        }
        if holders.may_give_back() {
            whom += &format!("; memory {holders}");
        }
        Error::Deadline { what: "finishing".into(), waited: start.elapsed(), whom }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if udeck_via::is_forked() {
            return;
        }
        self.state.progress().stop();
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "World(rank {} of {})", self.rank(), self.size())
    }
}

pub(crate) fn check_name(name: &str) -> Result {
    let bad = |why| Err(Error::BadName { name: name.to_owned(), why });
    match name {
        "" => bad("it is empty"),
        _ if name.len() > MAX_NAME => bad("it is longer than 200 bytes"),
        _ if name.chars().any(char::is_control) => bad("it contains control characters"),
        _ => Ok(()),
    }
}

const _: () = {
    const fn is_send_and_sync<T: Send + Sync>() {}
    const fn is_send<T: Send>() {}
    is_send_and_sync::<World>();
    is_send_and_sync::<Error>();
    is_send::<Mailbox<f64>>();
    is_send::<Postbox<f64>>();
    is_send::<crate::Received<f64>>();
};

/// The error of a NIC that proves to be another rank, or none: no mailbox would accept its postboxes.
#[cold]
fn wrong_keys(nic: &Nic, rank: u32) -> Error {
    let name = &nic.attributes().name;
    let why = format!("{name} was not opened with the keys of rank {rank}, which Client::keys gives");
    Error::InvalidArgument { what: format!("making a world over {name}"), why }
}
