//! Reactor: the one helper thread of a process, asleep in epoll until a descriptor has news.
//!
//! Connection set-up, the bootstrap connection and deaths of peers are handled here, so that none of these waits for the
//! application to call the library. Handlers run on the reactor's thread, one at a time; they must not block. One that panics
//! ends the thread, and its dependents are told why ([`Reactor::on_failure`]).

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{Timespec, epoll};

use crate::above_stdio;
use crate::os::event_fd::EventFd;
use crate::os::process::{self, ForkMark};

/// Handler of a descriptor: called when it is readable or hung up. Returns the next interest.
pub type Handler = Box<dyn FnMut() -> Interest + Send>;

/// Interest of a handler in further calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Call again at the next event.
    Keep,
    /// Call again at the next event, and after this time in any case.
    Within(Duration),
    /// The event cannot be handled now: call again after this time and not before, so that other descriptors are served and
    /// the processor is free.
    Rest(Duration),
    /// Call again once it has hung up, whatever there is to read.
    HangUp,
    /// Forget the descriptor and the handler.
    Done,
}

struct HandlerSlot {
    /// A duplicate owned by the reactor, so that a closed and reused number can never reach a wrong handler. Dropped before
    /// the handler: the last close of the file is the handler's, if the handler has it.
    fd: OwnedFd,
    /// The handler. Taken out while it runs, so that it may call the reactor.
    handler: Option<Handler>,
}

/// Time at which a handler is called, whether there is an event or not.
struct Timer {
    due: Instant,
    id: u64,
    /// Whether the descriptor is not watched before.
    rests: bool,
}

struct Inner {
    epoll: OwnedFd,
    wake: EventFd,
    entries: Mutex<HashMap<u64, HandlerSlot>>,
    next: AtomicU64,
    stopping: AtomicBool,
    /// Why the thread has ended before its time, if it has.
    failed: OnceLock<String>,
    dependents: Mutex<Vec<Dependent>>,
    _fork_mark: ForkMark,
}

/// Receiver of the reason, once, if the reactor's thread ends before its time.
pub type Dependent = Box<dyn FnOnce(&str) + Send>;

/// Name of a registration, for [`Reactor::remove`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(u64);

/// Owner of the reactor's thread. Dropping it stops the thread and drops all handlers.
pub struct Reactor {
    inner: Arc<Inner>,
    thread: Mutex<Option<JoinHandle<Result<(), String>>>>,
}

impl std::fmt::Debug for Reactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reactor").field("descriptors", &self.inner.entries.lock().len()).finish()
    }
}

const WAKE: u64 = 0;
/// Pause until the next try when the kernel is short of memory.
const AGAIN: Duration = Duration::from_millis(100);

impl Reactor {
    /// Starts the thread.
    ///
    /// # Errors
    /// Errors of the kernel: no descriptors or threads left.
    pub fn start(name: &str) -> io::Result<Self> {
        let epoll = above_stdio(epoll::create(epoll::CreateFlags::CLOEXEC))?;
        let wake = EventFd::new()?;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        let inner = Arc::new(Inner {
            epoll,
            wake,
            entries: Mutex::new(HashMap::new()),
            next: AtomicU64::new(WAKE + 1),
            stopping: AtomicBool::new(false),
            failed: OnceLock::new(),
            dependents: Mutex::default(),
            _fork_mark: ForkMark::default(),
        });
        let (running, failing) = (inner.clone(), inner.clone());
        let thread = crate::os::thread::spawn(name, move || running.run(), move |why| failing.fail(why))?;
        Ok(Reactor { inner, thread: Mutex::new(Some(thread)) })
    }

    /// Calls `handler` whenever `fd` is readable or hung up. The descriptor is duplicated.
    ///
    /// # Errors
    /// Errors of the kernel: no descriptors left, or a descriptor that cannot be polled. The reason of the thread's end, if it has ended.
    pub fn add(&self, fd: impl AsFd, handler: Handler) -> io::Result<Token> {
        process::check()?;
        let fd = fd.as_fd().try_clone_to_owned()?;
        let id = self.inner.next.fetch_add(1, Ordering::Relaxed);
        // The lock is held, so that the entry is in place before the first event can come.
        let mut entries = self.inner.entries.lock();
        // Checked first: an entry that failed may have left its number behind in the kernel's list.
        self.check()?;
        self.inner.watch(&fd, id)?;
        entries.insert(id, HandlerSlot { fd, handler: Some(handler) });
        Ok(Token(id))
    }

    /// Checks that the thread still serves.
    ///
    /// # Errors
    /// The reason of its end, in words.
    pub fn check(&self) -> io::Result<()> {
        self.inner.failed.get().map_or(Ok(()), |why| Err(io::Error::other(why.clone())))
    }

    /// Calls `dependent` if a handler panics, or at once if one has: no handler is called any more then.
    pub fn on_failure(&self, dependent: Dependent) {
        let mut dependents = self.inner.dependents.lock();
        match self.inner.failed.get() {
            None => dependents.push(dependent),
            Some(why) => {
                drop(dependents);
                dependent(why);
            }
        }
    }

    /// Calls the handler once more when its descriptor has room for data to be sent. A handler that leaves data
    /// unsent calls this again.
    pub fn watch_room(&self, token: Token) {
        self.inner.modify(token.0, epoll::EventFlags::IN | epoll::EventFlags::OUT);
    }

    /// Forgets a registration. Its handler may be running at this moment; it does not run again.
    pub fn remove(&self, token: Token) {
        if process::is_forked() {
            return;
        }
        self.inner.forget(token.0);
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        if process::is_forked() {
            // The thread is the parent's.
            std::mem::forget(self.thread.get_mut().take());
            return;
        }
        self.inner.stopping.store(true, Ordering::Release);
        self.inner.wake.signal();
        let Some(thread) = self.thread.lock().take() else { return };
        // The last owner may be a handler, on the reactor's own thread, which then ends by itself.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

impl Inner {
    fn run(&self) {
        let mut events = Vec::with_capacity(64);
        let mut timers = Vec::new();
        while !self.stopping.load(Ordering::Acquire) {
            self.call_due(&mut timers);
            events.clear();
            let next = timers.iter().map(|timer| timer.due.saturating_duration_since(Instant::now())).min();
            let limit = next
                .map(|next| Timespec { tv_sec: next.as_secs() as i64, tv_nsec: next.subsec_nanos().into() });
            let room = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, room, limit.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => unreachable!("epoll_wait on our own descriptor: {error}"),
            }
            for event in &events {
                let id = event.data.u64();
                if id == WAKE {
                    continue;
                }
                let news = event.flags; // a copy: the kernel's structure is packed
                if news.contains(epoll::EventFlags::OUT) {
                    // Before the handler runs, so that its own request for room lasts.
                    self.modify(id, epoll::EventFlags::IN);
                }
                self.call(id, &mut timers);
            }
        }
        // Handlers own the objects that they serve, so they are dropped outside the lock.
        let entries = std::mem::take(&mut *self.entries.lock());
        drop(entries);
    }

    /// Fails the reactor: a handler has panicked.
    fn fail(&self, why: &str) {
        let why = format!("the thread that serves connections has panicked: {why}");
        let entries = {
            let mut entries = self.entries.lock();
            // Set under the lock, so that later additions are refused.
            let _ = self.failed.set(why.clone());
            std::mem::take(&mut *entries)
        };
        let dependents = std::mem::take(&mut *self.dependents.lock());
        for dependent in dependents {
            // Each dependent is called, although another one panics, too.
            crate::os::thread::attempt(|| dependent(&why));
        }
        drop(entries);
    }

    fn watch(&self, fd: &OwnedFd, id: u64) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, epoll::EventData::new_u64(id), epoll::EventFlags::IN)?)
    }

    fn unwatch(&self, id: u64) {
        if let Some(entry) = self.entries.lock().get(&id) {
            let _ = epoll::delete(&self.epoll, &entry.fd);
        }
    }

    fn watch_end(&self, id: u64) {
        // Epoll reports a hang-up unasked.
        self.modify(id, epoll::EventFlags::empty());
    }

    /// Changes the events that a descriptor is watched for. One that rests is not watched, and stays so.
    fn modify(&self, id: u64, events: epoll::EventFlags) {
        if let Some(entry) = self.entries.lock().get(&id) {
            let _ = epoll::modify(&self.epoll, &entry.fd, epoll::EventData::new_u64(id), events);
        }
    }

    /// Calls the handlers whose time has come. A descriptor that has rested is watched again first; if the kernel has no memory
    /// for that now, it rests once more.
    fn call_due(&self, timers: &mut Vec<Timer>) {
        let now = Instant::now();
        let due: Vec<_> = timers.extract_if(.., |timer| timer.due <= now).collect();
        for Timer { id, rests, .. } in due {
            let watch = |entry: &HandlerSlot| self.watch(&entry.fd, id).is_ok();
            if !rests || self.entries.lock().get(&id).is_none_or(watch) {
                self.call(id, timers);
            } else {
                timers.push(Timer { due: now + AGAIN, id, rests });
            }
        }
    }

    fn call(&self, id: u64, timers: &mut Vec<Timer>) {
        let interest = self.dispatch(id);
        // A handler's time holds until its next call. A descriptor that rests has no events, and has had its timer.
        timers.retain(|timer| timer.id != id);
        let (wait, rests) = match interest {
            Interest::Within(limit) => (limit, false),
            Interest::Rest(pause) => (pause, true),
            Interest::HangUp => return self.watch_end(id),
            Interest::Keep | Interest::Done => return,
        };
        if rests {
            self.unwatch(id);
        }
        timers.push(Timer { due: Instant::now() + wait, id, rests });
    }

    fn dispatch(&self, id: u64) -> Interest {
        let handler = self.entries.lock().get_mut(&id).and_then(|entry| entry.handler.take());
        let Some(mut handler) = handler else { return Interest::Done };
        let interest = handler();
        match interest {
            Interest::Keep | Interest::Within(_) | Interest::Rest(_) | Interest::HangUp => {
                let mut entries = self.entries.lock();
                match entries.get_mut(&id) {
                    Some(entry) => entry.handler = Some(handler),
                    None => {
                        drop(entries); // removed meanwhile; the handler is dropped outside the lock
                        drop(handler);
                    }
                }
            }
            Interest::Done => self.forget(id),
        }
        interest
    }

    fn forget(&self, id: u64) {
        let entry = self.entries.lock().remove(&id);
        if let Some(entry) = &entry {
            let _ = epoll::delete(&self.epoll, &entry.fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::socket;
    use std::sync::mpsc;
    use std::time::Duration;

    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn handlers_run_and_end() {
        let reactor = Reactor::start("test").unwrap();
        let (a, b) = socket::pair().unwrap();
        let (tell, told) = mpsc::channel();
        let reader = b.try_clone().unwrap();
        reactor
            .add(
                &b,
                Box::new(move || match socket::receive(reader.as_fd(), &mut [0; 8]).unwrap() {
                    socket::Received::Datagram { len, .. } => {
                        tell.send(len).unwrap();
                        Interest::Keep
                    }
                    socket::Received::Nothing => Interest::Keep,
                    socket::Received::Closed => {
                        tell.send(0).unwrap();
                        Interest::Done
                    }
                }),
            )
            .unwrap();
        socket::send(a.as_fd(), b"abc", &[]).unwrap();
        assert_eq!(told.recv_timeout(SOON), Ok(3));
        drop(a);
        assert_eq!(told.recv_timeout(SOON), Ok(0));
        assert!(told.recv_timeout(SOON).is_err(), "the handler was dropped");
    }

    #[test]
    fn a_handler_that_rests_is_called_again_and_holds_up_nobody() {
        let reactor = Reactor::start("test").unwrap();
        let [(a, b), (c, d)] = [(); 2].map(|()| socket::pair().unwrap());
        let (tell, told) = mpsc::channel();
        let watch = |fd: &OwnedFd, name: &'static str, wants: Interest| {
            let tell = tell.clone();
            // The bytes stay unread, so that the descriptor is readable all the time.
            let handler = move || tell.send(name).map_or(Interest::Done, |()| wants);
            reactor.add(fd, Box::new(handler)).unwrap()
        };
        let long = watch(&b, "for long", Interest::Rest(SOON * 100));
        socket::send(a.as_fd(), b"news", &[]).unwrap();
        assert_eq!(told.recv_timeout(SOON), Ok("for long"));
        watch(&d, "briefly", Interest::Rest(Duration::from_millis(1)));
        socket::send(c.as_fd(), b"news", &[]).unwrap();
        for _ in 0..5 {
            assert_eq!(
                told.recv_timeout(SOON),
                Ok("briefly"),
                "again and again, and nothing else in between"
            );
        }
        reactor.remove(long);
    }

    #[test]
    fn a_handler_with_a_time_is_called_then_or_at_an_event_before() {
        let reactor = Reactor::start("test").unwrap();
        let (a, b) = socket::pair().unwrap();
        let (tell, told) = mpsc::channel();
        let (reader, mut times) = (b.try_clone().unwrap(), [Duration::ZERO, SOON * 100].into_iter());
        let handler = move || {
            let received = socket::receive(reader.as_fd(), &mut [0; 8]).unwrap();
            tell.send(matches!(received, socket::Received::Datagram { .. })).unwrap();
            times.next().map_or(Interest::Done, Interest::Within)
        };
        reactor.add(&b, Box::new(handler)).unwrap();
        socket::send(a.as_fd(), b"news", &[]).unwrap();
        assert_eq!(told.recv_timeout(SOON), Ok(true));
        assert_eq!(told.recv_timeout(SOON), Ok(false), "its time has come");
        socket::send(a.as_fd(), b"more", &[]).unwrap();
        assert_eq!(told.recv_timeout(SOON), Ok(true), "an event before its time");
    }

    #[test]
    fn a_handler_that_waits_for_the_end_is_not_called_before() {
        let reactor = Reactor::start("test").unwrap();
        let (a, b) = socket::pair().unwrap();
        let (tell, told) = mpsc::channel();
        let reader = b.try_clone().unwrap();
        let handler = move || {
            let hung_up = socket::is_hung_up(reader.as_fd()).unwrap();
            tell.send(hung_up).unwrap();
            if hung_up { Interest::Done } else { Interest::HangUp }
        };
        reactor.add(&b, Box::new(handler)).unwrap();
        socket::send(a.as_fd(), b"news", &[]).unwrap();
        assert_eq!(told.recv_timeout(SOON), Ok(false));
        socket::send(a.as_fd(), b"more", &[]).unwrap();
        drop(a);
        assert_eq!(told.recv_timeout(SOON), Ok(true), "nothing in between");
    }

    #[test]
    fn a_handler_that_panics_is_an_error_to_all_who_depend_on_the_reactor() {
        let reactor = Reactor::start("test").unwrap();
        let [(a, b), (_c, d)] = [(); 2].map(|()| socket::pair().unwrap());
        let (tell, told) = mpsc::channel();
        let early = tell.clone();
        reactor.on_failure(Box::new(|_| panic!("a dependent, too")));
        reactor.on_failure(Box::new(move |why| early.send(why.to_owned()).unwrap()));
        let (kept, other) = mpsc::channel::<()>();
        reactor.add(&d, Box::new(move || kept.send(()).map_or(Interest::Done, |()| Interest::Keep))).unwrap();
        reactor.add(&b, Box::new(|| panic!("no luck"))).unwrap();
        socket::send(a.as_fd(), b"news", &[]).unwrap();
        let why = told.recv_timeout(SOON).expect("it is told");
        assert!(why.ends_with("has panicked: no luck"), "{why}");
        assert_eq!(
            other.recv_timeout(SOON),
            Err(mpsc::RecvTimeoutError::Disconnected),
            "handlers are dropped"
        );
        let refused = reactor.add(&d, Box::new(|| Interest::Keep)).unwrap_err();
        assert_eq!(refused.to_string(), why);
        reactor.on_failure(Box::new(move |why| tell.send(why.to_owned()).unwrap()));
        assert_eq!(told.try_recv(), Ok(why), "who comes later is told at once");
    }

    #[test]
    fn dropping_the_reactor_drops_handlers() {
        let reactor = Reactor::start("test").unwrap();
        let (_a, b) = socket::pair().unwrap();
        let (tell, told) = mpsc::channel::<()>();
        let token = reactor
            .add(
                &b,
                Box::new(move || {
                    let _ = &tell;
                    Interest::Keep
                }),
            )
            .unwrap();
        assert_eq!(told.recv_timeout(Duration::from_millis(1)), Err(mpsc::RecvTimeoutError::Timeout));
        reactor.remove(token);
        assert_eq!(told.recv_timeout(SOON), Err(mpsc::RecvTimeoutError::Disconnected));
    }
}
