//! A host's table of listeners: served by one of the host's processes, to all that know the secret.

use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use udeck_sys::unauthenticated::{Bounds, Place};
use udeck_sys::{above_stdio, tcp_connect};
use udeck_via::{Deadline, thread};

use super::entries::{Entries, Full, Owner};
use super::wire::{self, Line};

/// Longest time between two signs of life of a process with entries in the table.
const SILENCE: Duration = Duration::from_secs(30);
/// Time between two attempts to accept a caller, after one failed.
const AGAIN: Duration = Duration::from_millis(20);
/// Most callers at a time that have proven to know the secret.
const CALLERS: usize = 1024;
/// Bounds of the callers that have proven nothing yet.
const STRANGERS: Bounds =
    Bounds { most: 256, grace: Duration::from_millis(20), limit: Duration::from_secs(5) };
/// Interval at which the table checks meanwhile for a free place.
const PAUSE: Duration = Duration::from_millis(1);

/// Longest wait for an entry between two questions of a caller.
const WAIT: Duration = Duration::from_secs(1);

/// Number of the serving process as an owner of entries; it has no connection to itself.
pub(crate) const OWN: Owner = 0;

pub(crate) struct Table {
    /// Key of the conversations with callers.
    key: [u8; 32],
    entries: Mutex<Entries>,
    /// Notified of a new entry, and when the table closes.
    changed: Condvar,
    callers: Mutex<HashMap<Owner, Caller>>,
    next: AtomicU64,
    closed: AtomicBool,
}

struct Caller {
    stream: Arc<TcpStream>,
    since: Instant,
    is_proven: bool,
}

/// A table that is served, until this is dropped.
pub(crate) struct Serving {
    pub table: Arc<Table>,
    address: SocketAddr,
    accepting: Option<JoinHandle<Result<(), String>>>,
}

impl Table {
    /// Adds an entry, as [`Entries::register`] does.
    pub fn register(&self, owner: Owner, key: &str, value: &[u8]) -> Result<bool, Full> {
        let is_there = self.entries.lock().register(owner, key, value)?;
        if is_there {
            self.changed.notify_all();
        }
        Ok(is_there)
    }

    /// Removes an entry, if it is this owner's.
    pub fn withdraw(&self, owner: Owner, key: &str) {
        self.entries.lock().withdraw(owner, key);
    }

    /// Waits for an entry. `None`: there was none at the deadline, or the table closes.
    pub fn find(&self, key: &str, deadline: Deadline) -> Option<Vec<u8>> {
        let mut entries = self.entries.lock();
        loop {
            if let Some(value) = entries.get(key) {
                return Some(value.to_vec());
            }
            if self.closed.load(Ordering::SeqCst) || deadline.passed() {
                return None;
            }
            self.changed.wait_until(&mut entries, deadline.instant());
        }
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        loop {
            let accepted = above_stdio(listener.accept().map(|(stream, _)| stream));
            if self.closed.load(Ordering::SeqCst) {
                return;
            }
            let stream = match accepted {
                Ok(stream) => stream,
                Err(error) => {
                    std::thread::sleep(AGAIN);
                    if udeck_sys::is_shortage(&error) {
                        self.make_place(Bounds { most: 0, ..STRANGERS });
                    }
                    continue;
                }
            };
            // Others wait in the kernel's queue.
            while !self.make_place(STRANGERS) {
                if self.closed.load(Ordering::SeqCst) {
                    return;
                }
                std::thread::sleep(PAUSE);
            }
            let stream = Arc::new(stream);
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let caller = Caller { stream: stream.clone(), since: Instant::now(), is_proven: false };
            self.callers.lock().insert(number, caller);
            let (serving, leaving) = (self.clone(), self.clone());
            let serve = move || {
                // The entries of a caller end with its conversation.
                let _ = serving.serve(number, stream);
                serving.forget(number);
            };
            if thread::spawn("names", serve, move |_| leaving.forget(number)).is_err() {
                self.forget(number);
            }
        }
    }

    /// Whether there is a place for another unproven caller. If need be, hangs up on the first one.
    fn make_place(&self, bounds: Bounds) -> bool {
        let mut callers = self.callers.lock();
        let strangers = callers.iter().filter(|(_, caller)| !caller.is_proven);
        let strangers = strangers.map(|(&number, caller)| (number, (), caller.since));
        match bounds.admit(strangers, (), Instant::now()) {
            Place::Free => {}
            Place::Evict(first) => {
                // Its thread reads the end.
                let _ = callers.remove(&first).map(|first| first.stream.shutdown(Shutdown::Both));
            }
            Place::Full(_) => return false,
        }
        true
    }

    /// Admits a caller that has proven to know the secret. False: it has been hung up on, or too many are admitted.
    fn admit(&self, of: u64) -> bool {
        let mut callers = self.callers.lock();
        let has_room = callers.values().filter(|caller| caller.is_proven).count() < CALLERS;
        callers.get_mut(&of).is_some_and(|caller| has_room && !std::mem::replace(&mut caller.is_proven, true))
    }

    fn forget(&self, of: u64) {
        self.callers.lock().remove(&of);
        self.entries.lock().end(of);
    }

    fn serve(&self, of: u64, stream: Arc<TcpStream>) -> io::Result<()> {
        let mut line = Line::answer(stream, self.key, STRANGERS.limit)?;
        if !self.admit(of) {
            return Ok(());
        }
        line.renew(SILENCE);
        while !self.closed.load(Ordering::SeqCst) {
            let body = line.receive()?;
            line.renew(SILENCE);
            let Some((op, key, value)) = wire::read_question(&body) else { break };
            let answer = match op {
                wire::PUT => vec![match self.register(of, key, value) {
                    Ok(true) => wire::WELL,
                    Ok(false) => wire::TAKEN,
                    Err(Full::Owner) => wire::FULL,
                    Err(Full::Table) => wire::ALL_FULL,
                }],
                wire::TAKE => {
                    self.withdraw(of, key);
                    vec![wire::WELL]
                }
                wire::GET => {
                    let Some(wait) = wire::read_wait(value) else { break };
                    let found = self.find(key, Deadline::after(wait.min(WAIT)));
                    found.map_or(vec![wire::NONE], |value| [&[wire::WELL], &value[..]].concat())
                }
                wire::PING => vec![wire::WELL],
                _ => break,
            };
            line.send(&answer)?;
        }
        Ok(())
    }
}

impl Serving {
    /// Serves the table at this address, if no process does.
    pub fn start(address: SocketAddr, key: [u8; 32]) -> io::Result<Serving> {
        let listener = above_stdio(TcpListener::bind(address))?;
        let table = Arc::new(Table {
            key,
            entries: Mutex::default(),
            changed: Condvar::new(),
            callers: Mutex::default(),
            next: AtomicU64::new(OWN + 1),
            closed: AtomicBool::new(false),
        });
        let accepting = table.clone();
        let accepting = thread::spawn("names", move || accepting.accept(&listener), |_| {})?;
        Ok(Serving { table, address, accepting: Some(accepting) })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if udeck_via::is_forked() {
            return;
        }
        let entries = self.table.entries.lock(); // a thread that is about to wait sees it, or is notified
        self.table.closed.store(true, Ordering::SeqCst);
        drop(entries);
        self.table.changed.notify_all();
        for caller in self.table.callers.lock().values() {
            let _ = caller.stream.shutdown(Shutdown::Both); // fails if the caller is gone
        }
        // Wakes the thread that accepts.
        let mut to = self.address;
        if to.ip().is_unspecified() {
            to.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
        }
        let woken = tcp_connect(to, Duration::from_secs(1));
        if let Some(accepting) = self.accepting.take().filter(|_| woken.is_ok()) {
            let _ = accepting.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;

    const KEY: [u8; 32] = [1; 32];
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn strangers_take_no_place_of_those_who_know_the_secret() {
        // Both ends of all connections are in this process.
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
        let free = (std::net::Ipv4Addr::LOCALHOST, udeck_test_kit::free_port()).into();
        let serving = Serving::start(free, KEY).unwrap();
        let call = || Line::ask(Arc::new(TcpStream::connect(free)?), KEY, LONG);
        let ask = |line: &mut Line, op| {
            line.send(&wire::question(op, "key", b""))?;
            line.receive()
        };
        let mut first = call().unwrap();
        assert_eq!(ask(&mut first, wire::PUT).unwrap(), [wire::WELL]);
        // More callers than places. They greet, prove nothing, and stay.
        let hello = wire::hello();
        let greets = |_| {
            let mut stream = TcpStream::connect(free).unwrap();
            let _ = stream.write_all(&hello); // it may have been hung up on
            stream
        };
        let strangers: Vec<_> = (0..STRANGERS.most + 50).map(greets).collect();
        let mut second = call().unwrap();
        assert_eq!(ask(&mut second, wire::TAKE).unwrap(), [wire::WELL]);
        assert_eq!(ask(&mut first, wire::PING).unwrap(), [wire::WELL], "who came before them is still there");
        assert!(serving.table.callers.lock().len() <= STRANGERS.most + 2);
        drop(strangers);
    }

    #[test]
    fn a_caller_waits_for_an_entry() {
        let free = (std::net::Ipv4Addr::LOCALHOST, udeck_test_kit::free_port()).into();
        let serving = Serving::start(free, KEY).unwrap();
        let mut line = Line::ask(Arc::new(TcpStream::connect(free).unwrap()), KEY, LONG).unwrap();
        let mut ask = |wait: Duration| {
            line.send(&wire::question(wire::GET, "key", &wire::wait(wait))).unwrap();
            line.receive().unwrap()
        };
        assert_eq!(ask(Duration::ZERO), [wire::NONE]);
        let table = serving.table.clone();
        let registers = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            table.register(OWN, "key", b"here")
        });
        let until = Deadline::after(LONG);
        let answer =
            std::iter::repeat_with(|| ask(LONG)).find(|answer| answer[0] == wire::WELL || until.passed());
        assert_eq!(answer.unwrap(), [&[wire::WELL], &b"here"[..]].concat());
        assert_eq!(registers.join().unwrap(), Ok(true));
    }
}
