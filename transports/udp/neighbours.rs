//! Whether a silent peer on this host is there: the kernel is asked, not the clock.
//!
//! A process that a debugger has stopped answers nobody, and is not dead. Over TCP its kernel answers in its place. Over UDP
//! nobody does, but where the peer runs on this host (in this network namespace), the kernel that keeps its socket is ours:
//! it says whether there is still a socket at the peer's address, and whether what we have asked lies unread in it. A child that
//! the peer has forked keeps the socket open: so the kernel is asked for the peer's process, too, which says in the
//! hand-shake which it is; what we find of that at the connection's beginning we compare later.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use udeck_sys::boot_id;

use crate::wire::Process;

/// A socket of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// No other socket has it while the host runs.
    pub inode: u64,
    /// Bytes that have come and were not read.
    pub unread: u64,
}

/// The socket that is bound at that address of this host, if there is one.
pub fn socket_at(address: SocketAddr) -> Option<Neighbour> {
    let table = if address.is_ipv4() { "/proc/net/udp" } else { "/proc/net/udp6" };
    // Where the kernel does not tell, the clock does.
    let table = fs::read_to_string(table).ok()?;
    let wanted = as_in_table(address);
    table.lines().skip(1).find_map(|line| neighbour(line, &wanted))
}

/// What is known of silences of a peer.
#[derive(Debug, Default)]
pub struct Vigil {
    /// Its socket, since it was first looked for.
    inode: Option<u64>,
    /// The last silence found all read, and no answer.
    doubted: bool,
    /// Its process, if we can see it.
    owner: Option<Owner>,
}

/// A process of our pid namespace.
#[derive(Clone, Copy, Debug)]
struct Owner {
    pid: Pid,
    /// When it began: another one with its number began later.
    start: u64,
}

/// What a process says of itself.
pub fn ourselves() -> Process {
    let inode = fs::metadata("/proc/self/ns/pid").ok().map(|found| found.ino());
    let namespace = inode.zip(boot_id().ok()).map_or(0, |(inode, host)| namespace(inode, host));
    Process { namespace, pid: std::process::id() }
}

/// A number for a pid namespace that no other one has, on this host or another: the first one's inode is the same everywhere.
fn namespace(inode: u64, host: [u8; 16]) -> u64 {
    let [random, _] = host.as_chunks().0 else { return 0 };
    inode ^ u64::from_le_bytes(*random)
}

impl Owner {
    /// `None`: there is no such process, or we cannot know.
    fn new(pid: u32) -> Option<Self> {
        let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
        let Some(Ok(Stat { start, .. })) = stat(pid) else { return None };
        Some(Owner { pid, start })
    }

    /// Whether it has ended, for certain.
    fn is_gone(&self) -> bool {
        match stat(self.pid) {
            Some(Ok(Stat { start, ended })) => start != self.start || ended,
            Some(Err(())) => false,
            // Or hidden from us.
            None => test_kill_process(self.pid) == Err(Errno::SRCH),
        }
    }
}

struct Stat {
    start: u64,
    /// It is a zombie, and no thread of it is left.
    ended: bool,
}

/// What the kernel says of a process. `None`: nothing; an error: what we do not understand.
fn stat(pid: Pid) -> Option<Result<Stat, ()>> {
    let text = fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // `pid (name) state ppid ...`; the name may have anything in it.
    let fields = text.iter().rposition(|byte| *byte == b')').and_then(|at| text.get(at + 1..));
    let fields = fields.and_then(|fields| std::str::from_utf8(fields).ok()).unwrap_or_default();
    let fields: Vec<_> = fields.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let (Some(threads), Some(start)) = (number(17), number(19)) else { return Some(Err(())) };
    let ended = matches!(fields[0], "Z" | "X") && threads <= 1;
    Some(Ok(Stat { start, ended }))
}

impl Vigil {
    /// Over a peer that says that it is `theirs`. Numbers of another pid namespace, or host, say nothing here.
    pub fn over(ours: Process, theirs: Process) -> Self {
        let seen = ours.namespace == theirs.namespace && ours.namespace != 0;
        Vigil { owner: seen.then(|| Owner::new(theirs.pid)).flatten(), ..Vigil::default() }
    }

    /// Something was heard.
    pub fn heard(&mut self) {
        self.doubted = false;
    }

    /// The peer was silent for as long as a peer may be, although it was asked several times. Whether it is excused: its
    /// process is there and has not read what it was asked. One that has read all of it has another such time to
    /// answer; then the connection is one that it does not know any more.
    pub fn excuses(&mut self, found: Option<Neighbour>) -> bool {
        let Some(Neighbour { inode, unread }) = found else { return false };
        if *self.inode.get_or_insert(inode) != inode {
            return false;
        }
        if self.owner.is_some_and(|owner| owner.is_gone()) {
            return false;
        }
        let stopped = unread > 0;
        let doubted = std::mem::replace(&mut self.doubted, !stopped);
        stopped || !doubted
    }
}

/// As `/proc/net/udp` has it: the words of the address as they lie in memory, in hexadecimal.
fn as_in_table(address: SocketAddr) -> String {
    let words: Vec<[u8; 4]> = match address.ip() {
        IpAddr::V4(ip) => vec![ip.octets()],
        IpAddr::V6(ip) => ip.octets().as_chunks().0.to_vec(),
    };
    let ip: String = words.into_iter().map(|word| format!("{:08X}", u32::from_ne_bytes(word))).collect();
    format!("{ip}:{:04X}", address.port())
}

/// `sl local_address rem_address st tx_queue:rx_queue tr:when retrnsmt uid timeout inode ref pointer drops`
fn neighbour(line: &str, wanted: &str) -> Option<Neighbour> {
    let mut columns = line.split_whitespace().skip(1);
    if columns.next()? != wanted {
        return None;
    }
    let (_, unread) = columns.nth(2)?.split_once(':')?;
    let unread = u64::from_str_radix(unread, 16).ok()?;
    let inode = columns.nth(4)?.parse().ok()?;
    Some(Neighbour { inode, unread })
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn a_socket_is_found_where_it_is_bound_and_says_what_lies_unread() {
        for ip in ["127.0.0.1:0", "127.44.1.200:0", "[::1]:0"] {
            let Ok(socket) = UdpSocket::bind(ip) else {
                println!("skipped: {ip} is no address here");
                continue;
            };
            let at = socket.local_addr().unwrap();
            let found = socket_at(at).expect("it is bound");
            assert_eq!((found.unread, socket_at(at)), (0, Some(found)));
            socket.send_to(&[0; 100], at).unwrap();
            assert!(socket_at(at).expect("it is bound").unread >= 100);
            socket.recv(&mut [0; 100]).unwrap();
            assert_eq!(socket_at(at), Some(found));
            drop(socket);
            assert_eq!(socket_at(at), None);
        }
    }

    #[test]
    fn processes_are_looked_for_in_one_namespace_of_one_host() {
        const FIRST: u64 = 0xEFFF_FFFC;
        let pid = std::process::id();
        let process = |inode, host| Process { namespace: namespace(inode, host), pid };
        let knows = |theirs| Vigil::over(process(FIRST, [1; 16]), theirs).owner.is_some();
        assert_eq!(knows(process(FIRST, [1; 16])), fs::metadata("/proc/self/stat").is_ok());
        assert!(!knows(process(FIRST, [2; 16])), "a process of ours that has its number");
        assert!(!knows(process(FIRST + 1, [1; 16])) && !knows(Process { namespace: 0, pid }));
    }

    #[test]
    fn who_has_not_read_is_excused_and_who_has_is_so_once() {
        let (idle, busy) = (Neighbour { inode: 5, unread: 0 }, Neighbour { inode: 5, unread: 9 });
        let mut vigil = Vigil::default();
        assert!((0..9).all(|_| vigil.excuses(Some(busy))));
        assert!(vigil.excuses(Some(idle)), "it has been woken this moment, perhaps");
        vigil.heard();
        assert!(vigil.excuses(Some(idle)) && vigil.excuses(Some(busy)) && vigil.excuses(Some(idle)));
        assert!(!vigil.excuses(Some(idle)), "it had time to answer");
        assert!(!vigil.excuses(None), "nobody is there");
        assert!(!vigil.excuses(Some(Neighbour { inode: 6, ..busy })), "another process");
    }

    #[test]
    fn numbers_of_another_namespace_say_nothing() {
        let ours = ourselves();
        assert!(Vigil::over(ours, ours).owner.is_some_and(|owner| !owner.is_gone()));
        for namespace in [0, ours.namespace + 1] {
            let other = Process { namespace, ..ours };
            assert!(Vigil::over(ours, other).owner.is_none() && Vigil::over(other, ours).owner.is_none());
        }
    }
}
