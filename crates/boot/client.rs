//! A rank's connection to its launcher: the name service as blocking calls with deadlines.
//!
//! One thread per client sleeps in `poll` on the socket, hands answers to the waiting calls and events to the
//! listeners. It ends when the client is dropped or the launcher goes. Calls may be made from any number of
//! threads at once; each is one frame out, and a wait for the frame with its number.

mod call_name;
mod collective;
mod question;
mod socket;

use std::{
    collections::HashMap,
    fmt, io,
    net::IpAddr,
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::net::{Shutdown, shutdown};
use udeck_auth::Keys;
use udeck_sys::{
    Deadline, join_job_clock, process, stderr_line,
    thread::{self, Callback},
};

use self::{
    call_name::CallName,
    socket::{SendError, receive, send_all},
};
pub use self::{call_name::SEGMENTS, question::Question};
use crate::{
    BootError, ENV_BOOT_FD, ENV_CLOCK_FD, ENV_WAITS_FD,
    server::aborted,
    start::ForeignJob,
    waits::{LONG, Waits},
    wire::{Call, Event, Frames, FromServer, Maker, Record, Reply, Request, VERSION, Welcome, encode},
};

/// How long [`Client::new`] waits for its welcome: the launcher may be starting hundreds of ranks first.
const JOIN_LIMIT: Duration = Duration::from_secs(60);

/// How long a call waits beyond its deadline for the launcher's own "too late", which lists what exists or
/// which ranks are missing.
const LAST_WORD: Duration = Duration::from_millis(500);

/// How long an aborting rank waits for each side that it tells.
const ABORT: Duration = Duration::from_secs(1);

/// Names of the process that serves a job's names, for errors.
const LAUNCHER: &str = "the launcher";
const RANK_0: &str = "rank 0, which served this job's names,";

/// A connection to the launcher. `Send` and `Sync`; dropping it closes the connection and does not block.
pub struct Client {
    shared: Arc<Shared>,
    welcome: Welcome,
}

type Listener = Box<dyn Fn(&Event) + Send + Sync>;

struct Shared {
    stream: UnixStream,
    next_id: AtomicU64,
    /// Number of agreements that this rank has taken part in.
    agreements: AtomicU64,
    /// Held while a frame is written: frames stay whole.
    writing: Mutex<()>,
    calls: Mutex<Calls>,
    answered: Condvar,
    news: Mutex<EventLog>,
    /// This rank has said goodbye or hung up: the end of its connection is then no event.
    leaving: AtomicBool,
    /// Keys by which this rank proves itself to other ranks.
    keys: Keys,
    /// The page on which long waits are published.
    waits: Waits,
    /// The process that serves the names: [`LAUNCHER`] or [`RANK_0`].
    server_name: &'static str,
    /// The launcher's services, in a job that deckrun did not start.
    foreign: Option<ForeignJob>,
    _fork_mark: process::ForkMark,
}

#[derive(Default)]
struct Calls {
    /// Calls in progress; `Some` once answered.
    open: HashMap<u64, Option<Reply>>,
    /// The reason why no more answers will come.
    gone: Option<String>,
}

#[derive(Default)]
struct EventLog {
    /// Events in the order of arrival; at most one per rank and one for the launcher.
    log: Vec<Event>,
    listeners: Vec<Listener>,
}

impl Client {
    /// Connects to the launcher that started this process, or returns `None` if there was none. Blocks until it
    /// has answered, at most a minute.
    ///
    /// The descriptor is marked close-on-exec: this rank's children do not hold the connection open.
    ///
    /// # Errors
    /// [`BootError::AlreadyJoined`] after the first success; [`BootError::BadDescriptor`] when [`ENV_BOOT_FD`] is set but is not the
    /// launcher's, or another process has taken it; else those of [`Client::new`].
    pub fn from_env() -> Result<Option<Client>, BootError> {
        let Some(value) = std::env::var_os(ENV_BOOT_FD) else { return Ok(None) };
        static JOINED: AtomicBool = AtomicBool::new(false);
        if JOINED.load(Ordering::Relaxed) && !udeck_sys::process::is_forked() {
            return Err(BootError::AlreadyJoined);
        }
        let value = value.to_string_lossy().into_owned();
        let stream =
            udeck_sys::inherited_stream(&value).map_err(|why| BootError::BadDescriptor { value, why })?;
        JOINED.store(true, Ordering::Relaxed);
        if let Some(number) = std::env::var_os(ENV_CLOCK_FD)
            && let Err(why) = join_job_clock(&number.to_string_lossy())
        {
            stderr_line(format_args!(
                "udeck: {ENV_CLOCK_FD}: {why}; time limits will count the time for which the job is stopped"
            ));
        }
        let waits = std::env::var_os(ENV_WAITS_FD).map(|number| Waits::inherited(&number.to_string_lossy()));
        let waits = waits.transpose().unwrap_or_else(|why| {
            stderr_line(format_args!(
                "udeck: {ENV_WAITS_FD}: {why}; deckrun does not see what this rank waits for"
            ));
            None
        });
        Client::join(stream, waits.unwrap_or_default(), None).map(Some)
    }

    /// Says hello on `stream` and waits for the welcome, at most a minute.
    ///
    /// # Errors
    /// [`BootError::Refused`] by a launcher of another version, [`BootError::Deadline`] when it does not answer, and
    /// what the socket reports.
    pub fn new(stream: UnixStream) -> Result<Client, BootError> {
        Client::join(stream, Waits::default(), None)
    }

    /// Makes the client of a rank in a job that deckrun did not start. `address` is this host's, towards the
    /// others.
    pub(crate) fn of_foreign_job(
        stream: UnixStream,
        foreign: ForeignJob,
        address: Option<IpAddr>,
    ) -> Result<Client, BootError> {
        let mut client = Client::join(stream, Waits::default(), Some(foreign))?;
        client.welcome.address = address;
        Ok(client)
    }

    fn join(stream: UnixStream, waits: Waits, foreign: Option<ForeignJob>) -> Result<Client, BootError> {
        let server_name = if foreign.is_some() { RANK_0 } else { LAUNCHER };
        let (frames, welcome) = join(&stream, server_name)?;
        let shared = Arc::new(Shared {
            stream,
            next_id: AtomicU64::new(1),
            agreements: AtomicU64::new(0),
            writing: Mutex::new(()),
            calls: Mutex::default(),
            answered: Condvar::new(),
            news: Mutex::default(),
            leaving: AtomicBool::new(false),
            keys: Keys::of_rank(welcome.secret, welcome.rank, welcome.key),
            waits,
            server_name,
            foreign,
            _fork_mark: process::ForkMark::default(),
        });
        let (reader, failing, size) = (Arc::clone(&shared), Arc::clone(&shared), welcome.size);
        let on_panic =
            move |why: &str| failing.end(format!("the thread that reads from it has panicked: {why}"));
        thread::spawn("boot-read", move || reader.read(frames, size), on_panic)
            .map_err(|source| BootError::Io { what: "starting the bootstrap thread".into(), source })?;
        Ok(Client { shared, welcome })
    }

    /// Returns this rank's number, its job and its keys.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// Returns the page on which this rank's waits are published for the launcher.
    pub fn waits(&self) -> &Waits {
        &self.shared.waits
    }

    /// Returns the keys by which this rank's NICs prove that they are this rank's. Before a connection to
    /// another rank, one of that rank's names must be [looked up](Client::lookup).
    pub fn keys(&self) -> Keys {
        self.shared.keys.clone()
    }

    /// Registers `name` with `value`, for this rank alone.
    ///
    /// # Errors
    /// [`BootError::NameTaken`]; [`BootError::TooBig`] beyond 255 bytes of name, 64 KiB of value, or what a rank may keep with
    /// the launcher (16 MiB, all ranks together 128 MiB).
    pub fn register(&self, name: &str, value: &[u8], deadline: Instant) -> Result<(), BootError> {
        let call = Call::Register { name: name.into(), value: value.into() };
        self.call(CallName::Register(name), call, deadline).map(drop)
    }

    /// Removes a name that this rank registered.
    ///
    /// # Errors
    /// [`BootError::NoSuchName`], or [`BootError::Refused`] when it belongs to another rank.
    pub fn unregister(&self, name: &str, deadline: Instant) -> Result<(), BootError> {
        self.call(CallName::Unregister(name), Call::Unregister { name: name.into() }, deadline).map(drop)
    }

    /// Returns the record of `name`. With `wait`, blocks until a rank registers it, at most until `deadline`.
    ///
    /// # Errors
    /// [`BootError::NoSuchName`], which lists what does exist; [`BootError::PeerLost`] or [`BootError::PeerDone`], at once,
    /// when the rank that had registered it has ended; [`BootError::NobodyLeft`] as soon as all the other ranks have ended.
    /// (In a world of one another thread may register it.)
    pub fn lookup(&self, name: &str, wait: bool, deadline: Instant) -> Result<Record, BootError> {
        self.look_up(name, wait, Maker::Anyone, deadline, None)
    }

    /// Returns the record of `name`. Blocks until a rank registers it, at most until `deadline`. The wait ends
    /// early when `maker` can no longer register it, or when `interrupt` returns `true`. `interrupt` is called
    /// about ten times a second.
    ///
    /// # Errors
    /// Those of [`lookup`](Client::lookup); as soon as the maker has ended: [`BootError::PeerLost`],
    /// [`BootError::PeerDone`]; [`BootError::Interrupted`].
    pub fn lookup_of(
        &self,
        name: &str,
        maker: Maker,
        deadline: Instant,
        interrupt: Option<&dyn Fn() -> bool>,
    ) -> Result<Record, BootError> {
        self.look_up(name, true, maker, deadline, interrupt)
    }

    fn look_up(
        &self,
        name: &str,
        wait: bool,
        maker: Maker,
        deadline: Instant,
        interrupt: Option<&dyn Fn() -> bool>,
    ) -> Result<Record, BootError> {
        let wait = wait.then(|| Deadline::from(deadline).remaining());
        let call = Call::Lookup { name: name.into(), wait, maker };
        self.interruptible(CallName::Lookup(name), call, deadline, interrupt)
    }

    /// Stores `value` under `key`, for every rank to read, for the life of the job. The last value wins.
    ///
    /// # Errors
    /// [`BootError::TooBig`] beyond 255 bytes of key, 64 KiB of value, or what a rank may keep with the launcher.
    pub fn put(&self, key: &str, value: &[u8], deadline: Instant) -> Result<(), BootError> {
        let call = Call::Put { key: key.into(), value: value.into() };
        self.call(CallName::Put(key), call, deadline).map(drop)
    }

    /// Returns the value under `key`. With `wait`, blocks until a rank stores one, at most until `deadline`.
    ///
    /// # Errors
    /// [`BootError::NoSuchKey`], which lists the keys that do exist; [`BootError::NobodyLeft`] as for
    /// [`lookup`](Client::lookup).
    pub fn get(&self, key: &str, wait: bool, deadline: Instant) -> Result<Vec<u8>, BootError> {
        self.read_key(key, wait, Maker::Anyone, deadline, None)
    }

    /// Returns the value under `key`. Blocks until a rank stores one, at most until `deadline`. The wait ends
    /// early when `maker` can no longer store it, or when `interrupt` returns `true`. `interrupt` is called
    /// about ten times a second.
    ///
    /// # Errors
    /// Those of [`get`](Client::get); as soon as the maker has ended: [`BootError::PeerLost`], [`BootError::PeerDone`];
    /// [`BootError::Interrupted`].
    pub fn get_of(
        &self,
        key: &str,
        maker: Maker,
        deadline: Instant,
        interrupt: Option<&dyn Fn() -> bool>,
    ) -> Result<Vec<u8>, BootError> {
        self.read_key(key, true, maker, deadline, interrupt)
    }

    fn read_key(
        &self,
        key: &str,
        wait: bool,
        maker: Maker,
        deadline: Instant,
        interrupt: Option<&dyn Fn() -> bool>,
    ) -> Result<Vec<u8>, BootError> {
        let wait = wait.then(|| Deadline::from(deadline).remaining());
        let call = Call::Get { key: key.into(), wait, maker };
        Ok(self.interruptible(CallName::Get(key), call, deadline, interrupt)?.value)
    }

    /// Blocks until all events of before this call have come, and the end of `rank`, if it is ending: its
    /// connection has closed, or closes within `wait`. Blocks at most until `deadline`. Other signs of a rank's
    /// end may be seen before the launcher has handled its goodbye, or declared it lost: a rank that sees one
    /// asks here how the other one ended.
    ///
    /// # Errors
    /// [`BootError::Deadline`], [`BootError::LauncherGone`].
    pub fn wait_for_exit_report(
        &self,
        rank: u32,
        wait: Duration,
        deadline: Instant,
    ) -> Result<(), BootError> {
        self.call(CallName::Exit(rank), Call::AwaitExit { rank, wait }, deadline).map(drop)
    }

    /// Does as [`Client::wait_for_exit_report`], without waiting for the answer. Returns `None` if the launcher
    /// does not read, and cannot be asked now.
    pub fn ask(&self, rank: u32, wait: Duration) -> Option<Question> {
        let call = Call::AwaitExit { rank, wait };
        let id = self.shared.start(&CallName::Exit(rank), call, Deadline::now()).ok()??;
        Some(Question { shared: Arc::clone(&self.shared), id })
    }

    /// Says goodbye: this rank's end is orderly. Every other call fails from now on. In a job that deckrun did
    /// not start, rank 0 serves the others' names, and returns when all of them have ended: with a goodbye, or
    /// lost.
    ///
    /// # Errors
    /// [`BootError::Deadline`], [`BootError::LauncherGone`].
    pub fn finish(&self, deadline: Instant) -> Result<(), BootError> {
        self.call(CallName::Done, Call::Done, deadline)?;
        self.shared.leaving.store(true, Ordering::Relaxed);
        let Some(foreign) = &self.shared.foreign else { return Ok(()) };
        foreign.leave(|| self.remaining(), deadline)
    }

    /// Makes a request as a rank that goes on afterwards.
    #[cfg(test)]
    pub(crate) fn request(&self, call: Call, deadline: Instant) -> Result<Record, BootError> {
        self.call(CallName::Abort, call, deadline)
    }

    /// Ends the whole job, with this exit code (0 counts as 1), and this process. Blocks for a moment, until
    /// the launcher has been told.
    pub fn abort(&self, code: u8, why: &str) -> ! {
        let code = code.max(1);
        let tell_others = || {
            let call = Call::Abort { code, why: why.into() };
            // The launcher notices this process's end in any case.
            let _ = self.call(CallName::Abort, call, Deadline::after(ABORT).instant());
        };
        let ask_launcher = |foreign: &ForeignJob| {
            stderr_line(format_args!("udeck: rank {} {}", self.welcome.rank, aborted(code, why)));
            if let Err(error) = foreign.abort(code, why, Deadline::after(ABORT)) {
                stderr_line(format_args!("udeck: {error}"));
            }
        };
        match &self.shared.foreign {
            None => tell_others(),
            Some(foreign) if foreign.kills_all_at_once() => {
                ask_launcher(foreign);
                tell_others();
            }
            Some(foreign) => {
                tell_others();
                ask_launcher(foreign);
            }
        }
        std::process::exit(i32::from(code))
    }

    /// Returns the other ranks that have not ended.
    fn remaining(&self) -> Vec<u32> {
        let mut is_left = vec![true; self.welcome.size as usize];
        let mut end = |rank: u32| {
            if let Some(is_left) = is_left.get_mut(rank as usize) {
                *is_left = false;
            }
        };
        end(self.welcome.rank);
        for event in &self.shared.news.lock().log {
            match event {
                Event::RankLost { rank, .. } | Event::RankDone { rank } => end(*rank),
                Event::LauncherGone => return Vec::new(),
            }
        }
        (0u32..).zip(is_left).filter_map(|(rank, is_left)| is_left.then_some(rank)).collect()
    }

    /// Returns the launcher that started this process, if it was not deckrun: "PMI-2 (Slurm)".
    pub fn guest_of(&self) -> Option<&str> {
        self.shared.foreign.as_ref().map(ForeignJob::title)
    }

    /// Calls `listener` for every event: first, on this thread, for earlier events, then on the client's own
    /// thread.
    ///
    /// A listener must not block, and must not call this client: it would hold up the thread that brings the
    /// answer. A listener that owns the client keeps the connection open until the launcher ends it.
    pub fn on_event(&self, listener: Listener) {
        let mut news = self.shared.news.lock();
        news.log.iter().for_each(|event| notify(&listener, event));
        news.listeners.push(listener);
    }

    /// Sends one request and waits for its answer. An answer without data becomes an empty record of this
    /// rank's.
    fn call(&self, asked: CallName<'_>, call: Call, deadline: Instant) -> Result<Record, BootError> {
        self.interruptible(asked, call, deadline, None)
    }

    fn interruptible(
        &self,
        asked: CallName<'_>,
        call: Call,
        deadline: Instant,
        interrupt: Option<&dyn Fn() -> bool>,
    ) -> Result<Record, BootError> {
        match self.reply(&asked, call, deadline, interrupt)? {
            Reply::Record(record) => Ok(Arc::unwrap_or_clone(record)),
            Reply::Ok => Ok(Record { owner: self.welcome.rank, value: Vec::new() }),
            _ => Err(asked.refused("it answered with another kind of answer")),
        }
    }

    /// Sends one request and waits for its answer, which is no failure.
    fn reply(
        &self,
        asked: &CallName<'_>,
        call: Call,
        deadline: Instant,
        interrupt: Option<&dyn Fn() -> bool>,
    ) -> Result<Reply, BootError> {
        let start = Instant::now();
        let waits = matches!(
            call,
            Call::Lookup { wait: Some(_), .. }
                | Call::Get { wait: Some(_), .. }
                | Call::Fence { .. }
                | Call::Agree { .. }
        );
        let maker = match call {
            Call::Lookup { maker, .. } | Call::Get { maker, .. } => Some(maker),
            _ => None,
        };
        let give_up = Deadline::from(deadline + if waits { LAST_WORD } else { Duration::ZERO });
        match self.shared.exchange(asked, maker, call, start, give_up, interrupt)? {
            Reply::Failed(failure) => {
                let waited = if waits { start.elapsed() } else { Duration::ZERO };
                Err(asked.failed(failure, waited))
            }
            Reply::Welcome(_) => Err(asked.refused("it answered with a second welcome")),
            reply => Ok(reply),
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("welcome", &self.welcome).finish_non_exhaustive()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        self.shared.leaving.store(true, Ordering::Relaxed);
        // The shutdown wakes the reader, which then ends. It is not joined: a listener may be waiting for the
        // very thread that drops.
        let _ = shutdown(&self.shared.stream, Shutdown::Both);
    }
}

impl Shared {
    fn exchange(
        &self,
        asked: &CallName<'_>,
        maker: Option<Maker>,
        call: Call,
        start: Instant,
        give_up: Deadline,
        interrupt: Option<&dyn Fn() -> bool>,
    ) -> Result<Reply, BootError> {
        let late =
            || BootError::Deadline { what: asked.to_string(), waited: start.elapsed(), missing: Vec::new() };
        let id = self.start(asked, call, give_up)?.ok_or_else(late)?;
        // `look_at` is when the wait is published, and later when `interrupt` is called next.
        let (mut calls, mut look_at, mut published) = (self.calls.lock(), Some(Deadline::after(LONG)), None);
        loop {
            if let Some(reply) = calls.open.get_mut(&id).and_then(Option::take) {
                calls.open.remove(&id);
                return Ok(reply);
            }
            if let Some(why) = calls.gone.clone() {
                calls.open.remove(&id);
                return Err(BootError::LauncherGone {
                    what: asked.to_string(),
                    server_name: self.server_name,
                    why,
                });
            }
            let until = look_at.map_or(give_up, |look_at| give_up.min(look_at));
            let is_late = self.answered.wait_until(&mut calls, until.instant()).timed_out();
            if is_late && look_at.take_if(|look_at| look_at.passed()).is_some() {
                published = published.or_else(|| self.waits.publish(&asked.wait(maker), start.elapsed()));
                if let Some(interrupt) = interrupt {
                    look_at = Some(Deadline::after(LONG));
                    // `interrupt` may wait for a lock of the caller's language. It reports an interruption only
                    // once, and so it counts even if an answer has come.
                    if MutexGuard::unlocked(&mut calls, interrupt) {
                        calls.open.remove(&id);
                        drop(calls);
                        self.cancel(asked, id);
                        return Err(BootError::Interrupted { what: asked.to_string() });
                    }
                }
            }
            if is_late && give_up.passed() && matches!(calls.open.get(&id), Some(None)) {
                calls.open.remove(&id);
                drop(calls);
                // The launcher may be suspended: it would read this rank's next vote before it forgets the old one.
                self.cancel(asked, id);
                return Err(late());
            }
        }
    }

    /// Has the launcher forget a request that waits: a rank may have a bounded number of them. If the launcher does
    /// not read, it keeps the request until the request's own deadline.
    fn cancel(&self, asked: &CallName<'_>, id: u64) {
        if let Ok(Some(id)) = self.start(asked, Call::Cancel { id }, Deadline::after(LAST_WORD)) {
            self.calls.lock().open.remove(&id);
        }
    }

    /// Sends a request, and returns the number of its call, which is open from now on. Returns `None` if it
    /// could not be sent in time.
    fn start(&self, asked: &CallName<'_>, call: Call, give_up: Deadline) -> Result<Option<u64>, BootError> {
        // In a forked child the answer would come to the parent's thread.
        process::check().map_err(|source| BootError::Io { what: asked.to_string(), source })?;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let mut frame = Vec::new();
        encode(&Request { id, call }, &mut frame)
            .map_err(|source| BootError::Protocol { what: asked.to_string(), source })?;
        self.calls.lock().open.insert(id, None);
        let sent = match self.may_write(give_up) {
            Some(_whole) => send_all(&self.stream, &frame, give_up),
            None => Err(SendError::Late { torn: false }),
        };
        let mut calls = self.calls.lock();
        match sent {
            Ok(()) => {}
            Err(SendError::Late { torn }) => {
                calls.open.remove(&id);
                if torn {
                    // The launcher cannot read anything behind half a frame.
                    let _ = shutdown(&self.stream, Shutdown::Both);
                }
                return Ok(None);
            }
            Err(SendError::Os(error)) => {
                calls.gone.get_or_insert_with(|| error.to_string());
            }
        }
        Ok(Some(id))
    }

    fn may_write(&self, give_up: Deadline) -> Option<MutexGuard<'_, ()>> {
        loop {
            match self.writing.try_lock_until(give_up.instant()) {
                None if !give_up.passed() => {}
                locked => return locked,
            }
        }
    }

    /// Runs the client's thread.
    fn read(&self, mut frames: Frames, size: u32) {
        let why = loop {
            match self.deliver(&mut frames, size) {
                Ok(()) => {}
                Err(why) => break why,
            }
            match receive(&self.stream, &mut frames, None) {
                Ok(()) => {}
                Err(error) => break error.to_string(),
            }
        };
        self.end(why);
    }

    /// Notes that nothing comes from the launcher any more.
    fn end(&self, why: String) {
        self.calls.lock().gone.get_or_insert(why);
        self.answered.notify_all();
        // A launcher that sends nonsense, or that cannot be reached, must see the end, too.
        let _ = shutdown(&self.stream, Shutdown::Both);
        if !self.leaving.load(Ordering::Relaxed) {
            let mut news = self.news.lock();
            let is_told = news.log.iter().any(|event| matches!(event, Event::RankLost { rank: 0, .. }));
            if self.foreign.is_some() && !is_told {
                let how = "it has ended without `finish`, and with it the name service of this job".into();
                news.add(Event::RankLost { rank: 0, how });
            }
            news.add(Event::LauncherGone);
        }
        let listeners = std::mem::take(&mut self.news.lock().listeners);
        drop(listeners);
    }

    fn deliver(&self, frames: &mut Frames, size: u32) -> Result<(), String> {
        while let Some(message) = frames.decode::<FromServer>().map_err(|e| format!("it sent {e}"))? {
            match message {
                FromServer::Reply { id, reply } => {
                    if let Some(open) = self.calls.lock().open.get_mut(&id) {
                        *open = Some(reply);
                        self.answered.notify_all();
                    }
                }
                FromServer::Ticket { callee, sealed } if callee < size => self.keys.learn(callee, &sealed),
                FromServer::Ticket { callee, .. } => {
                    return Err(format!("it sent a ticket for rank {callee}"));
                }
                FromServer::Event(event) => {
                    let mut news = self.news.lock();
                    if news.log.len() >= size as usize {
                        return Err("it sent more events than there are ranks".into());
                    }
                    news.add(event);
                }
            }
        }
        Ok(())
    }
}

/// Calls a listener. Its panic harms neither the other listeners nor the thread.
fn notify(listener: &Listener, event: &Event) {
    static CALLBACK: Callback = Callback::new("a listener to the launcher's events");
    CALLBACK.call(|| listener(event));
}

impl EventLog {
    fn add(&mut self, event: Event) {
        self.listeners.iter().for_each(|listener| notify(listener, &event));
        self.log.push(event);
    }
}

/// Exchanges hello and welcome, before there is a thread that reads.
fn join(stream: &UnixStream, server_name: &'static str) -> Result<(Frames, Welcome), BootError> {
    let what = || CallName::Hello.to_string();
    let (start, deadline) = (Instant::now(), Deadline::after(JOIN_LIMIT));
    let gone = |why: String| BootError::LauncherGone { what: what(), server_name, why };
    let late = || BootError::Deadline { what: what(), waited: start.elapsed(), missing: Vec::new() };
    let mut frame = Vec::new();
    let protocol = |source| BootError::Protocol { what: what(), source };
    encode(&Request { id: 0, call: Call::Hello { version: VERSION } }, &mut frame).map_err(protocol)?;
    send_all(stream, &frame, deadline).map_err(|error| match error {
        SendError::Late { .. } => late(),
        SendError::Os(error) => gone(error.to_string()),
    })?;
    let mut frames = Frames::default();
    loop {
        match frames.decode().map_err(protocol)? {
            Some(FromServer::Reply { id: 0, reply: Reply::Welcome(welcome) }) if welcome.is_consistent() => {
                return Ok((frames, welcome));
            }
            Some(FromServer::Reply { id: 0, reply: Reply::Failed(failure) }) => {
                return Err(CallName::Hello.failed(failure, Duration::ZERO));
            }
            Some(_) => return Err(CallName::Hello.refused("its first message was no welcome")),
            None => {}
        }
        receive(stream, &mut frames, Some(deadline)).map_err(|error| match error.kind() {
            io::ErrorKind::TimedOut => late(),
            _ => gone(error.to_string()),
        })?;
    }
}

#[cfg(test)]
mod tests;
