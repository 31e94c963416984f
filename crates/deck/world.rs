//! A job as one rank sees it.

mod groups;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytemuck::Pod;
use parking_lot::Mutex;
use udeck_boot::waits::LONG;
use udeck_boot::{Client, Maker, family};
use udeck_via::mem::Fill;
use udeck_via::{Deadline, Error as ViaError, Nic, Pause, Spinner, stderr_line};

use crate::buffer::Buf;
use crate::config::Config;
use crate::connect::{LookupMode, connect};
use crate::error::{Error, Result, check_process};
use crate::exit_log::RankExit;
use crate::group::Group;
use crate::long_wait::{LongWait, publish};
use crate::mailbox::Mailbox;
use crate::mailbox_options::MailboxOptions;
use crate::message::Message;
use crate::metrics;
use crate::nics::Nics;
use crate::payload::{Payload, check_payload};
use crate::postbox::Postbox;
use crate::rank_exits::RankExits;
use crate::recv::memory_quota::Memory;
use crate::route::UnavailableTransport;
use crate::stats::{PeerStats, Stats};
use crate::trace;
use crate::tracing_job::TracingJob;
use crate::wait_policy::WaitPolicy;
use crate::world_state::WorldState;
use udeck_via::ServiceLevel;

/// Longest name of a mailbox, in bytes. (The name service takes 255, with the number of a member's rank.)
const MAX_NAME: usize = 200;

/// A job as one rank sees it: its rank, its size, and the mailboxes in it.
///
#[cfg_attr(not(doctest), doc = include_str!("examples/world.md"))]
///
/// # Use
///
/// A world is a value, not a global: one process may hold several ranks, as tests do. It is `Send + Sync`. Mailboxes and
/// postboxes may outlive it, but [`World::finish`] ends this rank's part in the job: from then on mailboxes give out what has come,
/// and every other call by such a handle is [`Error::WorldFinished`]. A world belongs to the process that made it:
/// in a child made by `fork()` every call is an error, and every drop does nothing.
pub struct World {
    pub(crate) state: Arc<WorldState>,
    all: OnceLock<Group>,
    making_all: Mutex<()>,
    tracing: Mutex<Option<TracingJob>>,
}

impl World {
    /// The world of the rank that `client` speaks for, with messages over `nics`, the best first. (Programs call
    /// `udeck::init`.) `oversubscribed`: more ranks run on this host than it has processors.
    ///
    /// A mailbox is reached by all of them, a postbox takes the first that leads to its mailbox
    /// ([`crate::Postbox::route`]). The first should be the one whose news are the cheapest to ask for: a mailbox that
    /// waits asks the others less often.
    ///
    /// # Errors
    /// [`Error::Via`] when there are none or more than 8, when they are not all over the same memory, or when one was not
    /// opened with the rank's [keys](Client::keys).
    pub fn new(client: Client, nics: Vec<Nic>, config: Config, oversubscribed: bool) -> Result<Self> {
        Self::with_unavailable(client, nics, Vec::new(), config, oversubscribed)
    }

    /// As [`World::new`], where this host cannot have some NICs that would have been preferred: each with the number of `nics`
    /// that are better still. Routes tell of them.
    ///
    /// # Errors
    /// As [`World::new`].
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
            return Err(not_ours(&world_nic.nic, rank));
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

    /// How many ranks there are.
    #[doc(alias = "deck_numnodes")]
    pub fn size(&self) -> usize {
        self.state.size()
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        self.state.config()
    }

    /// The NIC that carries messages where it can, for its attributes. Its memory is that of all NICs.
    pub fn nic(&self) -> &Nic {
        self.state.nic()
    }

    /// All NICs that carry messages, the best first.
    pub fn nics(&self) -> impl Iterator<Item = &Nic> {
        self.state.nics().iter().map(|world_nic| &world_nic.nic)
    }

    /// The connection to the launcher, for services that other layers keep there.
    pub fn client(&self) -> &Client {
        self.state.client()
    }

    /// Waits until all ranks have come here, at most the world's deadline. Collective.
    ///
    /// # Errors
    /// [`Error::PeerLost`], [`Error::Deadline`] (says for whom it waited).
    #[doc(alias = "deck_barrier")]
    pub fn barrier(&self) -> Result {
        self.barrier_timeout(self.state.config().deadline)
    }

    /// As [`World::barrier`], waiting at most `limit`. After [`Error::Deadline`], the next call goes on waiting at the same barrier.
    ///
    /// # Errors
    /// As [`World::barrier`].
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
    /// [`Error::NameTaken`] says who has it; [`Error::BadName`].
    #[doc(alias = "deck_mbox_create")]
    pub fn mailbox<T: Payload>(&self, name: &str) -> Result<Mailbox<T>> {
        self.mailbox_with(name, &MailboxOptions::new())
    }

    /// As [`World::mailbox`], with a bound of its own for the messages that wait for room at each postbox of it
    /// ([`crate::Postbox::post`]): `bytes` together, instead of what the postbox's rank allows (`DECK_QUEUE`, 4 MiB). 0 is one message:
    /// a poster is held up as soon as its receiver falls behind by more than its connection holds.
    ///
    /// A message counts its memory and 128 bytes, but at most a sixteenth of the bound, so that 16 messages find a place whatever
    /// their length. One message always finds a place. More than a quarter of the poster's message memory (`DECK_ARENA`)
    /// is never taken.
    ///
    /// # Errors
    /// As [`World::mailbox`].
    pub fn mailbox_with_queue<T: Payload>(&self, name: &str, bytes: usize) -> Result<Mailbox<T>> {
        self.mailbox_with(name, &MailboxOptions::new().queue(bytes))
    }

    /// As [`World::mailbox`], with what it asks of those who post: a [service level](MailboxOptions::level), a
    /// [bound](MailboxOptions::queue).
    ///
    /// # Errors
    /// As [`World::mailbox`].
    pub fn mailbox_with<T: Payload>(&self, name: &str, options: &MailboxOptions) -> Result<Mailbox<T>> {
        check_process()?;
        check_name(name)?;
        check_payload::<T>()?;
        Mailbox::create(&self.state, name.to_owned(), options)
    }

    /// Creates this rank's mailbox of a family: each rank may create one of the same name, and [`World::postbox_of`] finds it by
    /// name and rank. So no names have to be made up where every rank has a mailbox.
    ///
    /// # Errors
    /// [`Error::NameTaken`] when this rank has created its mailbox of that name already; [`Error::BadName`].
    pub fn mailboxes<T: Payload>(&self, name: &str) -> Result<Mailbox<T>> {
        check_process()?;
        check_name(name)?;
        check_payload::<T>()?;
        Mailbox::create(&self.state, family::member(name, self.rank()), &MailboxOptions::new())
    }

    /// Makes a postbox of the mailbox `name`; waits until it exists and has a place for another connection, at most
    /// `DECK_SETUP_TIMEOUT`.
    ///
    /// One rank may have 512 connections with a mailbox, 1023 in a job of two ranks (a postbox has one, and two once it has posted by
    /// [`Protocol::Handshake`](crate::Protocol::Handshake)), and with all mailboxes of another rank as many as its NIC says
    /// ([`udeck_via::NicAttributes::max_connections_of_a_rank`]: 8192 over shm unless `vm.max_map_count` is raised, 16,384
    /// otherwise). One that has ended counts until the mailbox's owner next looks at its mailbox, so a postbox for each message
    /// may have to wait.
    ///
    /// # Errors
    /// [`Error::Deadline`] says for whom it waited: the mailbox's owner, to answer or to have a place, or the launcher, to say
    /// what became of a rank whose connection broke.
    /// [`Error::NoSuchMailbox`] lists the names that exist; [`Error::PeerLost`] or [`Error::MailboxGone`] at once when the
    /// rank that made it is lost or has finished, as long as no other has made it anew; [`Error::NobodyLeft`]; [`Error::WrongType`];
    /// [`Error::Unreachable`] says which ways were tried; [`Error::Unsupported`] when the connection cannot carry the world's protocol (`DECK_PROTOCOL`).
    #[doc(alias = "deck_mbox_clone")]
    pub fn postbox<T: Payload>(&self, name: &str) -> Result<Postbox<T>> {
        self.postbox_timeout(name, self.state.config().setup)
    }

    /// Makes a postbox, waiting at most `limit` for the mailbox.
    ///
    /// # Errors
    /// As [`World::postbox`].
    pub fn postbox_timeout<T: Payload>(&self, name: &str, limit: Duration) -> Result<Postbox<T>> {
        check_name(name)?;
        self.make_postbox(name, LookupMode::Of(Maker::Anyone), None, Deadline::after(limit))
    }

    /// As [`World::postbox`], whose messages have this level and not the mailbox's ([`MailboxOptions::level`]).
    ///
    /// # Errors
    /// As [`World::postbox`].
    pub fn postbox_at<T: Payload>(&self, name: &str, level: ServiceLevel) -> Result<Postbox<T>> {
        check_name(name)?;
        let deadline = Deadline::after(self.state.config().setup);
        self.make_postbox(name, LookupMode::Of(Maker::Anyone), Some(level), deadline)
    }

    /// Makes a postbox if the mailbox exists.
    ///
    /// # Errors
    /// As [`World::postbox`], at once; [`Error::WouldBlock`] where there is no place for another connection now.
    pub fn try_postbox<T: Payload>(&self, name: &str) -> Result<Postbox<T>> {
        check_name(name)?;
        self.make_postbox(name, LookupMode::Now, None, Deadline::after(self.state.config().setup))
    }

    /// Makes a postbox of the mailbox that `rank` makes, or has made, by [`World::mailboxes`] of that name; waits until it exists and has
    /// a place for another connection, at most `DECK_SETUP_TIMEOUT`.
    ///
    /// # Errors
    /// As [`World::postbox`], and [`Error::PeerLost`] or [`Error::MailboxGone`] as soon as the rank is lost or has finished;
    /// [`Error::NoSuchRank`].
    pub fn postbox_of<T: Payload>(&self, name: &str, rank: usize) -> Result<Postbox<T>> {
        self.postbox_of_timeout(name, rank, self.state.config().setup)
    }

    /// As [`World::postbox_of`], waiting at most `limit` for the mailbox.
    ///
    /// # Errors
    /// As [`World::postbox_of`].
    pub fn postbox_of_timeout<T: Payload>(
        &self,
        name: &str,
        rank: usize,
        limit: Duration,
    ) -> Result<Postbox<T>> {
        self.make_postbox_of(name, rank, Deadline::after(limit))
    }

    /// As [`World::postbox_of`], if the mailbox exists.
    ///
    /// # Errors
    /// As [`World::try_postbox`]; [`Error::NoSuchRank`].
    pub fn try_postbox_of<T: Payload>(&self, name: &str, rank: usize) -> Result<Postbox<T>> {
        let deadline = Deadline::after(self.state.config().setup);
        self.make_postbox(&self.member(name, rank)?, LookupMode::Now, None, deadline)
    }

    /// Makes a postbox of each rank's mailbox by [`World::mailboxes`] of that name, this rank's own included: the one to rank `n` has
    /// the place `n`. Waits until all exist, at most `DECK_SETUP_TIMEOUT` in all.
    ///
    /// # Errors
    /// As [`World::postbox_of`], of the first rank for which there is one.
    pub fn postboxes<T: Payload>(&self, name: &str) -> Result<Vec<Postbox<T>>> {
        let deadline = Deadline::after(self.state.config().setup);
        (0..self.size()).map(|rank| self.make_postbox_of(name, rank, deadline)).collect()
    }

    fn make_postbox_of<T: Payload>(&self, name: &str, rank: usize, deadline: Deadline) -> Result<Postbox<T>> {
        let mode = LookupMode::Of(Maker::Rank(rank as u32));
        self.make_postbox(&self.member(name, rank)?, mode, None, deadline)
    }

    /// What the name service knows that rank's mailbox of a family by.
    fn member(&self, name: &str, rank: usize) -> Result<String> {
        check_name(name)?;
        let size = self.size();
        if rank >= size {
            return Err(Error::NoSuchRank { rank, size });
        }
        Ok(family::member(name, rank))
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

    /// A typed message of `len` elements, zeroed, 64-byte aligned. Where there is no memory for it, and receivers have
    /// some that may come back, waits for that, at most the world's deadline (`DECK_DEADLINE`).
    ///
    /// # Errors
    /// [`Error::TooLarge`]. [`Error::Deadline`] and [`Error::NoMemory`] say who has how much memory: the latter, at once,
    /// when nothing is out with a receiver or queued for one, so that only this program could free any. (That it may do
    /// so on another of its threads is not waited for.) [`Error::Via`] when the machine has no more.
    #[inline]
    pub fn buf<T: Pod>(&self, len: usize) -> Result<Buf<T>> {
        self.new_buf(len, Fill::Zero, WaitPolicy::Usual)
    }

    /// As [`World::buf`], waiting at most `limit`.
    ///
    /// # Errors
    /// As [`World::buf`].
    pub fn buf_timeout<T: Pod>(&self, len: usize, limit: Duration) -> Result<Buf<T>> {
        self.new_buf(len, Fill::Zero, WaitPolicy::Until(Deadline::after(limit)))
    }

    /// As [`World::buf`], if that needs no waiting.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] says who has the memory; otherwise as [`World::buf`].
    pub fn try_buf<T: Pod>(&self, len: usize) -> Result<Buf<T>> {
        self.new_buf(len, Fill::Zero, WaitPolicy::None)
    }

    /// A typed message whose contents are whatever this rank last left in that memory: for those who overwrite it
    /// anyway. (Plain data of our own: nothing undefined, nothing of others.) Waits as [`World::buf`].
    ///
    /// # Errors
    /// As [`World::buf`].
    #[inline]
    pub fn buf_reused<T: Pod>(&self, len: usize) -> Result<Buf<T>> {
        self.new_buf(len, Fill::Keep, WaitPolicy::Usual)
    }

    /// As [`World::buf_reused`], waiting at most `limit`.
    ///
    /// # Errors
    /// As [`World::buf`].
    pub fn buf_reused_timeout<T: Pod>(&self, len: usize, limit: Duration) -> Result<Buf<T>> {
        self.new_buf(len, Fill::Keep, WaitPolicy::Until(Deadline::after(limit)))
    }

    /// As [`World::buf_reused`], if that needs no waiting.
    ///
    /// # Errors
    /// As [`World::try_buf`].
    pub fn try_buf_reused<T: Pod>(&self, len: usize) -> Result<Buf<T>> {
        self.new_buf(len, Fill::Keep, WaitPolicy::None)
    }

    #[inline]
    fn new_buf<T: Pod>(&self, len: usize, fill: Fill, policy: WaitPolicy) -> Result<Buf<T>> {
        check_payload::<T>()?;
        // So many bytes that no message has them.
        let bytes = len.saturating_mul(size_of::<T>());
        Ok(Buf::new(self.state.block_for_message(bytes, fill, policy)?))
    }

    /// A packed message with room for `capacity` bytes (each item takes 8 more than its data). Waits as [`World::buf`].
    ///
    /// # Errors
    /// As [`World::buf`].
    #[doc(alias = "deck_msg_create")]
    pub fn message(&self, capacity: usize) -> Result<Message> {
        self.new_message(capacity, WaitPolicy::Usual)
    }

    /// As [`World::message`], waiting at most `limit`.
    ///
    /// # Errors
    /// As [`World::buf`].
    pub fn message_timeout(&self, capacity: usize, limit: Duration) -> Result<Message> {
        self.new_message(capacity, WaitPolicy::Until(Deadline::after(limit)))
    }

    /// As [`World::message`], if that needs no waiting.
    ///
    /// # Errors
    /// As [`World::try_buf`].
    pub fn try_message(&self, capacity: usize) -> Result<Message> {
        self.new_message(capacity, WaitPolicy::None)
    }

    fn new_message(&self, capacity: usize, policy: WaitPolicy) -> Result<Message> {
        Ok(Message::new(self.state.block_for_message(capacity, Fill::Zero, policy)?))
    }

    /// The other ranks that have ended so far, in the order of the news: those that finished, and those that are lost.
    pub fn exited_ranks(&self) -> impl Iterator<Item = RankExit> + use<> {
        let known = if udeck_via::is_forked() { Vec::new() } else { self.state.exit_log().in_order(0) };
        known.into_iter()
    }

    /// The other ranks that end, one after another, beginning with those that have: for a [`crate::select`] beside mailboxes.
    /// So a rank is noticed that finished with work in hand, or that was lost before it had a postbox here.
    ///
    /// # Errors
    /// [`Error::Via`] when the NIC has no more completion queues.
    pub fn rank_exits(&self) -> Result<RankExits> {
        check_process()?;
        RankExits::new(&self.state)
    }

    /// What the library did so far on this rank.
    pub fn stats(&self) -> Stats {
        self.state.stats()
    }

    /// What has passed between this rank and each rank that it has a connection with, in the order of their numbers.
    pub fn peer_stats(&self) -> Vec<PeerStats> {
        self.state.peers()
    }

    /// The counters of [`World::stats`] and [`World::peer_stats`] as Prometheus takes them (text exposition format 0.0.4), with this
    /// rank's number in each line: for a program that serves them, or writes them to a file that an exporter reads.
    pub fn metrics(&self) -> String {
        metrics::exposition(self.rank(), &self.stats(), &self.peer_stats())
    }

    /// Ends the whole job now, with exit code `code` (0 counts as 1), by the means of whatever started it, and this process. To
    /// other ranks that still run, this one is lost; they are told `why`. What was posted and not retrieved may be lost.
    ///
    /// Blocks for a moment, until the launcher knows: at most two seconds.
    #[doc(alias = "MPI_Abort")]
    pub fn abort(&self, code: u8, why: &str) -> ! {
        self.state.client().abort(code, why)
    }

    /// Ends the calls of other threads that wait in this world's objects, also on memory and connections: they fail with
    /// [`Error::WorldFinished`], within a second, as every later one does. For who shares a world among threads, and wants it back to
    /// [`World::finish`] it.
    pub fn shutdown(&self) {
        if !udeck_via::is_forked() {
            self.state.close(true);
        }
    }

    /// Ends this rank's part in the job: delivers what was posted, which may take its receivers' retrieving (of messages that
    /// are announced, that wait for room, and of more than a network takes in beforehand), then says goodbye. This process may end when it
    /// returns: other ranks still read what was posted to them. Waits at most the world's deadline (`DECK_DEADLINE`) for
    /// receivers, and `DECK_SETUP_TIMEOUT` for the launcher. Under a cluster's own launcher rank 0 serves the job's names: there it
    /// returns when all others have finished or are lost, however long that takes.
    ///
    /// # Errors
    /// [`Error::Undelivered`] says how many messages were lost that still waited here (queued or announced), and for whom;
    /// [`Error::Multiple`] lists them all. [`Error::Deadline`] says who has not retrieved, and how many messages are lost with this rank
    /// therefore. What a connection had taken is the receiver's to read: if a mailbox ends with such messages unread, that is no error
    /// here. [`Postbox::flush`] tells it.
    #[doc(alias = "deck_done")]
    pub fn finish(self) -> Result {
        let limit = self.state.config().deadline;
        self.finish_timeout(limit)
    }

    /// As [`World::finish`], waiting at most `limit` for receivers.
    ///
    /// # Errors
    /// As [`World::finish`].
    pub fn finish_timeout(mut self, limit: Duration) -> Result {
        check_process()?;
        let deadline = Deadline::after(limit);
        let (start, traced) = (Instant::now(), trace::begin());
        let _finishing = WorldState::finishing();
        self.state.close(false); // what is done here is done by its handles
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
        // Others may look for what was posted when they hear that this rank has finished, and this process may be gone.
        let drained = interrupted.and_then(|()| self.drain(deadline, wait));
        if matches!(drained, Err(Error::Interrupted)) {
            // This rank has not done its part: the end of its process tells the others.
            self.state.end();
            return drained;
        }
        let is_late = drained.is_err() || self.state.progress().is_busy();
        let late = is_late.then(|| self.too_late(start));
        drop(known);
        let undelivered = self.state.take_all_undelivered();
        self.state.end();
        let parted = self.state.part(Deadline::after(self.state.config().setup));
        undelivered?;
        late.map_or(parted, Err)
    }

    /// Until nothing is left that was announced.
    fn wait_for_answers(&self, deadline: Deadline, wait: &mut LongWait) -> Result {
        let mut spinner = Spinner::new(self.state.oversubscribed());
        while self.state.progress().is_busy() && !deadline.passed() {
            if self.state.progress().help() {
                spinner = Spinner::new(self.state.oversubscribed());
            }
            if spinner.pause() == Pause::Sleep {
                std::thread::sleep(self.state.progress().rest().min(deadline.remaining()));
                wait.check_interrupt(&self.state)?;
            }
        }
        Ok(())
    }

    /// Until peers can read the rest without this process.
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
        let mut whom = String::from("ranks to retrieve what was posted to them");
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

/// A NIC that proves to be another rank, or none: no mailbox would let its postboxes in.
#[cold]
fn not_ours(nic: &Nic, rank: u32) -> Error {
    let name = &nic.attributes().name;
    let why = format!("{name} was not opened with the keys of rank {rank}, which Client::keys gives");
    Error::via(format!("making a world over {name}"), udeck_via::Error::InvalidParameter(why))
}
