//! The directory of processes that no launcher started: the resolver has the hosts, and each host has a table
//! of listeners.
//!
//! The first process of a host serves the table, at a port that all know. The others keep a connection to it,
//! by which they put their entries there. When the process that serves ends, one of the others takes its place,
//! and all put their entries again.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use udeck_deck::Config;
use udeck_sys::{advise_route, tcp_connect};
use udeck_via::auth::{Keys, mac};
use udeck_via::names::{NameError, NameService};
use udeck_via::{Deadline, thread};

use super::address::{self, Host};
use super::entries::Full;
use super::secret;
use super::table::{OWN, Serving};
use super::wire::{self, Line};
use super::{Directory, Listeners, asked_for};
use crate::registry::{NicOptions, network_nic};

const ENV_PORT: &str = "DECK_DIRECTORY_PORT";
const ENV_INTERFACE: &str = "DECK_IFACE";
/// Port at which tables are served. (IANA has assigned it to nobody.)
const PORT: u16 = 7814;

/// Interval at which a process checks that the table is still served.
const LOOK: Duration = Duration::from_millis(200);
/// Time that a table may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// Longest wait at a table for a process that does not listen yet. Between two waits, the caller says whether
/// it still wants the answer.
const CHECK: Duration = Duration::from_millis(100);
/// Why a port is no place for a table: outgoing connections get ports from 32768 on, where nothing else is set.
const TAKEN: &str = "another program has the port and listens at none, perhaps for a connection of its own (those get \
                     ports of net.ipv4.ip_local_port_range)";
/// Errors of a connection to a process that has ended.
const HAS_ENDED: [io::ErrorKind; 4] = [
    io::ErrorKind::BrokenPipe,
    io::ErrorKind::ConnectionReset,
    io::ErrorKind::ConnectionAborted,
    io::ErrorKind::UnexpectedEof,
];
/// Attempts to put an entry, if the process that serves the table ends each time.
const ATTEMPTS: usize = 5;
/// Time between two calls of a table that no process serves yet.
const AGAIN: Duration = Duration::from_millis(20);

pub(crate) struct Standalone {
    options: NicOptions,
    port: u16,
    /// Key of the conversations with tables.
    table_key: [u8; 32],
    own: IpAddr,
    /// Whether the secret is this host's own, because none was given: only processes of this host connect.
    of_host: bool,
    nic: &'static str,
    table: Mutex<Mine>,
    /// Names that this process has looked up, by host, for `host_by_address`.
    asked: Mutex<HashMap<Host, String>>,
    keeper: Mutex<Option<Keeper>>,
}

struct Keeper {
    _until_dropped: mpsc::Sender<()>,
    running: JoinHandle<Result<(), String>>,
}

/// Entries of this process.
#[derive(Default)]
struct Mine {
    entries: HashMap<String, Vec<u8>>,
    /// Whether some entries are not in the table, because it has others with the same key.
    lacks: bool,
    way: Way,
}

#[derive(Default)]
enum Way {
    #[default]
    None,
    Serving(Serving),
    Asking(Box<Line>),
}

/// Why an entry is not in the table.
#[derive(Debug)]
enum NotPut {
    /// The process that served the table has ended. Another one may take its place now.
    Ended(String),
    Refused(String),
}

impl Way {
    /// Puts an entry of this process into the table. False: the table has another one with the same key.
    fn put(&mut self, key: &str, value: &[u8]) -> Result<bool, NotPut> {
        let put = match self {
            Way::Serving(serving) => {
                serving.table.register(OWN, key, value).map_err(|full| io::Error::other(full.to_string()))
            }
            Way::Asking(line) => ask(line, wire::PUT, key, value, ANSWER).map(|put| put.is_some()),
            Way::None => Ok(false),
        };
        put.map_err(|error| {
            let why = format!("the table of names: {error}");
            if !HAS_ENDED.contains(&error.kind()) {
                return NotPut::Refused(why);
            }
            *self = Way::None;
            NotPut::Ended(why)
        })
    }
}

impl Standalone {
    pub fn open(config: Config) -> Result<Arc<Standalone>, String> {
        let secret = secret::find()?;
        let port = match std::env::var(ENV_PORT) {
            Ok(port) => port
                .parse()
                .ok()
                .filter(|port| *port != 0)
                .ok_or_else(|| format!("{ENV_PORT}={port}: give it a port, 1 to 65535"))?,
            Err(_) => PORT,
        };
        let own = if secret.of_host { Ipv4Addr::LOCALHOST.into() } else { own_address()? };
        let mut options =
            NicOptions::configured(Keys::from(secret.key), &config).map_err(|why| why.to_string())?;
        options.bind = (!own.is_loopback()).then_some(own);
        options.encrypt = config.encrypt && !secret.of_host;
        let nic = asked_for(&config, options.encrypt).unwrap_or(network_nic(options.encrypt));
        let names = Arc::new(Standalone {
            options,
            port,
            table_key: mac(&secret.key, "udeck directory", &[]),
            own,
            of_host: secret.of_host,
            nic,
            table: Mutex::default(),
            asked: Mutex::default(),
            keeper: Mutex::default(),
        });
        let weak = Arc::downgrade(&names);
        let (until_dropped, dropped) = mpsc::channel();
        let running = thread::spawn("names-keep", move || keep(&weak, &dropped), |_| {})
            .map_err(|error| format!("starting a thread: {error}"))?;
        *names.keeper.lock() = Some(Keeper { _until_dropped: until_dropped, running });
        Ok(names)
    }

    fn call(&self, to: SocketAddr, limit: Duration) -> io::Result<Line> {
        let stream = tcp_connect(to, limit).map_err(|error| advise_route(error, to.ip()))?;
        Line::ask(Arc::new(stream), self.table_key, limit)
    }

    fn own_table(&self) -> SocketAddr {
        SocketAddr::new(Ipv4Addr::LOCALHOST.into(), self.port)
    }

    /// Serves the table, or connects to the process that does, with all entries of this process in it.
    fn be_there(&self, mine: &mut Mine) -> Result<(), NotPut> {
        match &mut mine.way {
            Way::Serving(_) => {}
            Way::Asking(line) => {
                if ask(line, wire::PING, "", &[], ANSWER).is_err() {
                    mine.way = Way::None;
                }
            }
            Way::None => {}
        }
        if let Way::None = mine.way {
            mine.way = self.find_way().map_err(NotPut::Refused)?;
        } else if !mine.lacks {
            return Ok(());
        }
        mine.lacks = false;
        let mut all = Ok(());
        for (key, value) in &mine.entries {
            let put = mine.way.put(key, value);
            // A connection of this process that has just broken may still own the entry.
            mine.lacks |= !matches!(put, Ok(true));
            all = all.and(put.map(drop));
        }
        all
    }

    fn find_way(&self) -> Result<Way, String> {
        let places: &[IpAddr] = if self.of_host {
            &[IpAddr::V4(Ipv4Addr::LOCALHOST)]
        } else {
            &[IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)]
        };
        let mut why = String::new();
        let mut is_taken = false;
        let until = Deadline::after(ANSWER);
        // The serving process may end between the two.
        for _ in 0..3 {
            for place in places {
                match Serving::start(SocketAddr::new(*place, self.port), self.table_key) {
                    Ok(serving) => return Ok(Way::Serving(serving)),
                    Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                        is_taken = true;
                        break;
                    }
                    Err(_) => {} // a host without IPv6; if it is something else, nobody answers either
                }
            }
            match self.call(self.own_table(), patience(until)) {
                Ok(line) => return Ok(Way::Asking(Box::new(line))),
                Err(error) if is_taken && error.kind() == io::ErrorKind::ConnectionRefused => {
                    why = TAKEN.to_owned();
                }
                Err(error) => why = error.to_string(),
            }
        }
        Err(unusable(&format!("port {} of this host", self.port), &why))
    }
}

fn unusable(table: &str, why: &str) -> String {
    format!(
        "the table of names at {table}: {why}; give {ENV_PORT} another port, the same to all, or all the same secret \
         ({}, {})",
        secret::ENV_SECRET,
        secret::ENV_FILE
    )
}

/// Time to wait for a table until the deadline: at least long enough for a table that is there to answer.
fn patience(until: Deadline) -> Duration {
    until.remaining().clamp(Duration::from_millis(100), ANSWER)
}

/// Asks a table over a connection, and returns the value of its answer. `None`: nothing is there.
fn ask(line: &mut Line, op: u8, key: &str, value: &[u8], limit: Duration) -> io::Result<Option<Vec<u8>>> {
    line.renew(limit);
    line.send(&wire::question(op, key, value))?;
    let mut answer = line.receive()?;
    match answer.first() {
        Some(&wire::WELL) => {
            answer.remove(0);
            Ok(Some(answer))
        }
        Some(&(wire::NONE | wire::TAKEN)) => Ok(None),
        Some(&wire::FULL) => Err(io::Error::other(Full::Owner.to_string())),
        Some(&wire::ALL_FULL) => Err(io::Error::other(Full::Table.to_string())),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "an answer that is none")),
    }
}

/// Keeps the table served while there are these names.
fn keep(names: &Weak<Standalone>, dropped: &mpsc::Receiver<()>) {
    let mut silent = false;
    while let Err(mpsc::RecvTimeoutError::Timeout) = dropped.recv_timeout(LOOK) {
        let Some(names) = names.upgrade() else { return };
        let mut mine = names.table.lock();
        if mine.entries.is_empty() {
            continue;
        }
        let there = names.be_there(&mut mine);
        drop(mine);
        // If the table's process has ended, the next look finds another one.
        if let Err(NotPut::Refused(why)) = &there
            && !silent
        {
            udeck_via::say!("{why}");
        }
        // An end that was passed over must not hide the failure behind it.
        silent = matches!(there, Err(NotPut::Refused(_))) || silent && there.is_err();
    }
}

/// The address by which others reach this host.
fn own_address() -> Result<IpAddr, String> {
    let all = udeck_sys::interfaces().map_err(|error| format!("listing the network interfaces: {error}"))?;
    if let Ok(asked) = std::env::var(ENV_INTERFACE) {
        return udeck_sys::address_of(&asked, &all).map_err(|why| format!("{ENV_INTERFACE}: {why}"));
    }
    let mut outward: Vec<IpAddr> = all
        .iter()
        .filter(|one| one.up && !one.address.is_loopback() && !udeck_sys::is_link_local(&one.address))
        .map(|one| one.address)
        .collect();
    outward.sort_by_key(IpAddr::is_ipv6);
    Ok(outward.first().copied().unwrap_or(Ipv4Addr::LOCALHOST.into()))
}

impl NameService for Standalone {
    fn host_by_name(&self, name: &str, index: usize) -> udeck_via::Result<Vec<u8>> {
        let resolved = (name, self.port)
            .to_socket_addrs()
            .map_err(|error| NameError::Service { what: format!("host {name:?}"), source: error.into() })?;
        let mut all: Vec<IpAddr> = Vec::new();
        for ip in resolved.map(|one| one.ip()) {
            if !all.contains(&ip) {
                all.push(ip);
            }
        }
        all.sort_by_key(IpAddr::is_ipv6);
        let Some(ip) = all.get(index) else {
            let (name, count) = (name.to_owned(), all.len());
            return Err(NameError::NoSuchIndex { name, index, count, service: "the resolver".into() }.into());
        };
        let host = address::of_ip(*ip);
        let mut asked = self.asked.lock();
        if asked.len() < 4096 {
            asked.entry(host).or_insert_with(|| name.to_owned());
        }
        Ok(host.to_vec())
    }

    /// The name that the host was found by; otherwise its address in digits.
    fn host_by_address(&self, host: &[u8]) -> udeck_via::Result<String> {
        let host: &Host = host.try_into().map_err(|_| NameError::BadAddress { len: host.len() })?;
        if address::job_host(host).is_some() {
            let (what, why) = ("a job's host", "this process was started without a launcher");
            return Err(NameError::Service { what: what.into(), source: why.into() }.into());
        }
        let known = self.asked.lock().get(host).cloned();
        Ok(known.unwrap_or_else(|| address::ip_of(host).to_string()))
    }
}

impl Directory for Standalone {
    fn options(&self) -> NicOptions {
        self.options.clone()
    }

    fn default_nic(&self) -> &'static str {
        self.nic
    }

    fn hosts(&self) -> Vec<Host> {
        let mut hosts: Vec<Host> = self.asked.lock().keys().copied().collect();
        hosts.push(self.address());
        hosts.sort_unstable();
        hosts.dedup();
        hosts
    }
}

impl Listeners for Standalone {
    fn address(&self) -> Host {
        address::of_ip(self.own)
    }

    fn is_own(&self, host: &Host) -> bool {
        let ip = address::ip_of(host);
        ip.is_loopback()
            || ip == self.own
            || udeck_sys::interfaces().is_ok_and(|all| all.iter().any(|one| one.address == ip))
    }

    fn publish(&self, key: &str, value: &[u8]) -> Result<bool, String> {
        debug_assert!(key.len() <= wire::MAX_KEY && value.len() <= wire::MAX_VALUE);
        let mut mine = self.table.lock();
        if mine.entries.contains_key(key) {
            return Ok(false); // another NIC or VI of this process has published it
        }
        let mut attempts = ATTEMPTS;
        let put = loop {
            attempts -= 1;
            match self.be_there(&mut mine).and_then(|()| mine.way.put(key, value)) {
                Ok(put) => break put,
                Err(NotPut::Ended(_)) if attempts > 0 => std::thread::sleep(AGAIN),
                Err(NotPut::Ended(why) | NotPut::Refused(why)) => return Err(why),
            }
        };
        if put {
            mine.entries.insert(key.to_owned(), value.to_vec());
        }
        Ok(put)
    }

    fn withdraw(&self, key: &str) {
        let mut mine = self.table.lock();
        if mine.entries.remove(key).is_none() {
            return;
        }
        match &mut mine.way {
            Way::Serving(serving) => serving.table.withdraw(OWN, key),
            // If the connection is broken, the table's entry goes with it.
            Way::Asking(line) => drop(ask(line, wire::TAKE, key, &[], ANSWER)),
            Way::None => {}
        }
    }

    fn find(
        &self,
        host: &Host,
        key: &str,
        deadline: Deadline,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<u8>>, String> {
        let ip = address::ip_of(host);
        let is_own = self.is_own(host);
        if self.of_host && !is_own {
            return Err(format!(
                "{ip} is another host, and without a secret only processes of this one connect: give all the same {} or {}",
                secret::ENV_SECRET,
                secret::ENV_FILE
            ));
        }
        let to = if is_own { self.own_table() } else { SocketAddr::new(ip, self.port) };
        // On this host a table that nobody serves refuses at once, and one that is served answers, if late
        // where the host is busy.
        let limit = |until| if is_own { ANSWER } else { patience(until) };
        let mut line: Option<Line> = None;
        loop {
            let wait = CHECK.min(deadline.remaining());
            // A thread that has the table locked may wait for one that does not answer.
            let served_here = match self.table.try_lock().as_deref() {
                Some(Mine { way: Way::Serving(serving), .. }) if is_own => Some(serving.table.clone()),
                _ => None,
            };
            let found = match served_here {
                Some(table) => table.find(key, Deadline::after(wait)),
                None => {
                    let called = match line.take() {
                        Some(line) => Ok(line),
                        None => self.call(to, limit(deadline)),
                    };
                    let asked = called.and_then(|mut called| {
                        let value = wire::wait(wait);
                        Ok((ask(&mut called, wire::GET, key, &value, limit(deadline) + wait)?, called))
                    });
                    match asked {
                        Ok((found, called)) => {
                            line = Some(called);
                            found
                        }
                        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                            return Err(unusable(&to.to_string(), &error.to_string()));
                        }
                        // No process serves the table yet, or the one that did has ended.
                        Err(_) => {
                            std::thread::sleep(AGAIN.min(deadline.remaining()));
                            None
                        }
                    }
                }
            };
            if found.is_some() || deadline.passed() || !is_wanted() {
                return Ok(found);
            }
        }
    }
}

impl Drop for Standalone {
    fn drop(&mut self) {
        if udeck_via::is_forked() {
            return;
        }
        if let Some(Keeper { _until_dropped: until_dropped, running }) = self.keeper.lock().take() {
            drop(until_dropped);
            // The keeper thread itself may be the last owner of these names.
            if running.thread().id() != std::thread::current().id() {
                let _ = running.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Names of this process at a table of this port, without the thread that keeps the table served.
    fn standalone(port: u16, table_key: [u8; 32]) -> Standalone {
        Standalone {
            options: NicOptions::new(Keys::from([0; 32])),
            port,
            table_key,
            own: Ipv4Addr::LOCALHOST.into(),
            of_host: true,
            nic: "shm0",
            table: Mutex::default(),
            asked: Mutex::default(),
            keeper: Mutex::default(),
        }
    }

    #[test]
    fn too_many_names_are_told_from_one_that_is_taken() {
        let free = (Ipv4Addr::LOCALHOST, udeck_test_kit::free_port()).into();
        let _serving = Serving::start(free, [1; 32]).unwrap();
        let ask = || Line::ask(Arc::new(TcpStream::connect(free).unwrap()), [1; 32], ANSWER).unwrap();
        let [mut way, mut other] = [(); 2].map(|()| Way::Asking(Box::new(ask())));
        assert!((0..4096).all(|nth| way.put(&nth.to_string(), b"").unwrap()));
        let Err(NotPut::Refused(why)) = way.put("one more", b"") else { panic!("not refused") };
        assert!(why.contains("this process has 4096 names"), "{why}");
        assert!(other.put("one more", b"").unwrap());
        assert!(!way.put("one more", b"").unwrap());
    }

    /// The process that serves the table answers once, and ends before it reads the entry.
    #[test]
    fn an_entry_is_put_although_the_serving_process_ends() {
        let port = udeck_test_kit::free_port();
        let key = [1; 32];
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        let calls = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        let ends = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            drop(listener);
            let mut line = Line::answer(Arc::new(stream), key, ANSWER).unwrap();
            let question = line.receive().unwrap();
            assert_eq!(question[0], wire::PING);
            line.send(&[wire::WELL]).unwrap();
        });
        let line = Line::ask(Arc::new(calls), key, ANSWER).unwrap();
        let names = standalone(port, key);
        names.table.lock().way = Way::Asking(Box::new(line));
        assert_eq!(names.publish("key", b"value"), Ok(true));
        assert!(matches!(names.table.lock().way, Way::Serving(_)));
        ends.join().unwrap();
    }
}
