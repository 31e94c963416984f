//! Liveness of a silent peer on this host: the kernel is asked, not the clock.
//!
//! A process that a debugger has stopped answers nothing, and is not dead. Over TCP its kernel acknowledges in its
//! place. Over UDP nothing does. If the peer runs on this host (in this network namespace), this host's kernel knows
//! its socket: whether it still exists at the peer's address, and whether our datagrams lie unread in it. A child
//! that the peer has forked keeps the socket open. So the kernel is also asked for the peer's process, whose number
//! the peer sends in the handshake. The process's start time is recorded at the beginning of the connection, and
//! compared later.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use udeck_sys::boot_id;

use crate::wire::Process;

/// A UDP socket of this host, as `/proc/net/udp` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalSocket {
    /// Inode number: no other socket has the same one while the host runs.
    pub inode: u64,
    /// Bytes received and not read.
    pub unread: u64,
}

/// Finds the socket that is bound at this address of this host.
pub fn find_socket(address: SocketAddr) -> Option<LocalSocket> {
    let table = if address.is_ipv4() { "/proc/net/udp" } else { "/proc/net/udp6" };
    // Without the table only the clock decides.
    let table = fs::read_to_string(table).ok()?;
    let wanted = procfs_address(address);
    table.lines().skip(1).find_map(|line| parse_line(line, &wanted))
}

/// Judges the silence of one peer.
#[derive(Debug, Default)]
pub struct LivenessProbe {
    /// Inode of the peer's socket, when it was first looked up.
    inode: Option<u64>,
    /// At the last probe the peer had read everything, and had not answered.
    answer_overdue: bool,
    /// Process of the peer, if it is visible here.
    owner: Option<LocalProcess>,
}

/// A process of this pid namespace.
#[derive(Clone, Copy, Debug)]
struct LocalProcess {
    pid: Pid,
    /// Start time: distinguishes it from a later process with the same pid.
    start: u64,
}

/// Returns the identity of this process that peers are sent.
pub fn local_process() -> Process {
    let inode = fs::metadata("/proc/self/ns/pid").ok().map(|found| found.ino());
    let namespace = inode.zip(boot_id().ok()).map_or(0, |(inode, host)| namespace(inode, host));
    Process { namespace, pid: std::process::id() }
}

/// Returns a number for a pid namespace that is unique across hosts. The inode alone is not: the first namespace has
/// the same inode on every host.
fn namespace(inode: u64, host: [u8; 16]) -> u64 {
    let [random, _] = host.as_chunks().0 else { return 0 };
    inode ^ u64::from_le_bytes(*random)
}

impl LocalProcess {
    /// Looks up a process. Returns `None` if there is none, or it is hidden.
    fn new(pid: u32) -> Option<Self> {
        let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
        let Some(Ok(Stat { start, .. })) = stat(pid) else { return None };
        Some(LocalProcess { pid, start })
    }

    /// Whether the process has certainly ended.
    fn is_gone(&self) -> bool {
        match stat(self.pid) {
            Some(Ok(Stat { start, ended })) => start != self.start || ended,
            Some(Err(())) => false,
            // The process may also be hidden from us.
            None => test_kill_process(self.pid) == Err(Errno::SRCH),
        }
    }
}

struct Stat {
    start: u64,
    /// The process is a zombie without threads.
    ended: bool,
}

/// Reads `/proc/PID/stat`. Returns `None` if there is none, an error if it cannot be parsed.
fn stat(pid: Pid) -> Option<Result<Stat, ()>> {
    let text = fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The format is `pid (name) state ppid ...`; the name may contain any characters.
    let fields = text.iter().rposition(|byte| *byte == b')').and_then(|at| text.get(at + 1..));
    let fields = fields.and_then(|fields| std::str::from_utf8(fields).ok()).unwrap_or_default();
    let fields: Vec<_> = fields.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let (Some(threads), Some(start)) = (number(17), number(19)) else { return Some(Err(())) };
    let ended = matches!(fields[0], "Z" | "X") && threads <= 1;
    Some(Ok(Stat { start, ended }))
}

impl LivenessProbe {
    /// Makes the probe of a peer that calls itself `theirs`. The pid is ignored if it is of another pid namespace or
    /// host.
    pub fn new(ours: Process, theirs: Process) -> Self {
        let seen = ours.namespace == theirs.namespace && ours.namespace != 0;
        LivenessProbe {
            owner: seen.then(|| LocalProcess::new(theirs.pid)).flatten(),
            ..LivenessProbe::default()
        }
    }

    /// Notes that the peer sent something.
    pub fn on_received(&mut self) {
        self.answer_overdue = false;
    }

    /// Judges a peer that has not answered several keep-alives. Returns whether it counts as alive: its process
    /// exists and has not read them. A peer that has read them gets the same time once more to answer. If it stays
    /// silent then, it does not know the connection.
    pub fn is_alive(&mut self, found: Option<LocalSocket>) -> bool {
        let Some(LocalSocket { inode, unread }) = found else { return false };
        if *self.inode.get_or_insert(inode) != inode {
            return false;
        }
        if self.owner.is_some_and(|owner| owner.is_gone()) {
            return false;
        }
        let stopped = unread > 0;
        let answer_overdue = std::mem::replace(&mut self.answer_overdue, !stopped);
        stopped || !answer_overdue
    }
}

/// An address in the format of `/proc/net/udp`: 32-bit words in memory order, in hexadecimal.
fn procfs_address(address: SocketAddr) -> String {
    let words: Vec<[u8; 4]> = match address.ip() {
        IpAddr::V4(ip) => vec![ip.octets()],
        IpAddr::V6(ip) => ip.octets().as_chunks().0.to_vec(),
    };
    let ip: String = words.into_iter().map(|word| format!("{:08X}", u32::from_ne_bytes(word))).collect();
    format!("{ip}:{:04X}", address.port())
}

/// Parses a line `sl local_address rem_address st tx_queue:rx_queue tr:when retrnsmt uid timeout inode ref pointer
/// drops`.
fn parse_line(line: &str, wanted: &str) -> Option<LocalSocket> {
    let mut columns = line.split_whitespace().skip(1);
    if columns.next()? != wanted {
        return None;
    }
    let (_, unread) = columns.nth(2)?.split_once(':')?;
    let unread = u64::from_str_radix(unread, 16).ok()?;
    let inode = columns.nth(4)?.parse().ok()?;
    Some(LocalSocket { inode, unread })
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
            let found = find_socket(at).expect("it is bound");
            assert_eq!((found.unread, find_socket(at)), (0, Some(found)));
            socket.send_to(&[0; 100], at).unwrap();
            assert!(find_socket(at).expect("it is bound").unread >= 100);
            socket.recv(&mut [0; 100]).unwrap();
            assert_eq!(find_socket(at), Some(found));
            drop(socket);
            assert_eq!(find_socket(at), None);
        }
    }

    #[test]
    fn processes_are_looked_for_in_one_namespace_of_one_host() {
        const FIRST: u64 = 0xEFFF_FFFC;
        let pid = std::process::id();
        let process = |inode, host| Process { namespace: namespace(inode, host), pid };
        let knows = |theirs| LivenessProbe::new(process(FIRST, [1; 16]), theirs).owner.is_some();
        assert_eq!(knows(process(FIRST, [1; 16])), fs::metadata("/proc/self/stat").is_ok());
        assert!(!knows(process(FIRST, [2; 16])), "a process of ours that has its number");
        assert!(!knows(process(FIRST + 1, [1; 16])) && !knows(Process { namespace: 0, pid }));
    }

    #[test]
    fn a_peer_that_has_not_read_is_alive_and_one_that_has_gets_one_more_period() {
        let (idle, busy) = (LocalSocket { inode: 5, unread: 0 }, LocalSocket { inode: 5, unread: 9 });
        let mut probe = LivenessProbe::default();
        assert!((0..9).all(|_| probe.is_alive(Some(busy))));
        assert!(probe.is_alive(Some(idle)), "it has been woken this moment, perhaps");
        probe.on_received();
        assert!(probe.is_alive(Some(idle)) && probe.is_alive(Some(busy)) && probe.is_alive(Some(idle)));
        assert!(!probe.is_alive(Some(idle)), "it had time to answer");
        assert!(!probe.is_alive(None), "nobody is there");
        assert!(!probe.is_alive(Some(LocalSocket { inode: 6, ..busy })), "another process");
    }

    #[test]
    fn pids_of_another_namespace_are_ignored() {
        let ours = local_process();
        assert!(LivenessProbe::new(ours, ours).owner.is_some_and(|owner| !owner.is_gone()));
        for namespace in [0, ours.namespace + 1] {
            let other = Process { namespace, ..ours };
            assert!(
                LivenessProbe::new(ours, other).owner.is_none()
                    && LivenessProbe::new(other, ours).owner.is_none()
            );
        }
    }
}
