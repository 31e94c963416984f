//! `deckrun --status PID`: asking another deckrun of this host, and answering.
//!
//! A running deckrun listens at a socket with an abstract name, which leaves nothing behind. It answers a
//! connection with the report, as text, and then closes it. Only its own user, and root, are answered. The
//! asker trusts only the user whose process it asked about.

use std::{
    fs,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        linux::net::SocketAddrExt,
        unix::{
            fs::MetadataExt,
            net::{SocketAddr, UnixListener, UnixStream},
        },
    },
    sync::Arc,
    time::Duration,
};

use rustix::process::{Pid, geteuid, getpid};
use udeck_sys::{socket::peer_identity, thread};

use crate::signals;

/// Maximum number of askers at one time; further connections are closed.
const MAX_ASKERS: usize = 4;

/// How long an asker may take nothing.
const WRITE_LIMIT: Duration = Duration::from_secs(5);

/// How long an answer may take: the deckrun asks its hosts.
const READ_LIMIT: Duration = Duration::from_secs(20);

/// Upper bound of an answer, in bytes.
const MAX_ANSWER: u64 = 64 << 20;

/// The socket at which others ask this deckrun.
pub(crate) struct StatusSocket {
    listener: UnixListener,
    askers: Arc<()>,
}

/// A connection that waits for the report.
pub(crate) struct Asker {
    stream: UnixStream,
    _one: Arc<()>,
}

impl StatusSocket {
    /// Opens the socket under the number of the process that the user knows.
    pub(crate) fn open() -> io::Result<StatusSocket> {
        StatusSocket::of(signals::guard().unwrap_or_else(getpid))
    }

    fn of(known: Pid) -> io::Result<StatusSocket> {
        let listener = UnixListener::bind_addr(&address(known)?)?;
        listener.set_nonblocking(true)?;
        Ok(StatusSocket { listener, askers: Arc::new(()) })
    }

    /// Accepts the connections that have come and may be answered.
    pub(crate) fn accept(&self) -> Vec<Asker> {
        let mut askers = Vec::new();
        // Bounded: further connections are accepted in the next round.
        for _ in 0..MAX_ASKERS {
            let Ok((stream, _)) = self.listener.accept() else { break };
            let user = peer_identity(stream.as_fd()).map(|(user, _)| user);
            let may_ask = user.is_ok_and(|user| [0, geteuid().as_raw()].contains(&user));
            if may_ask && Arc::strong_count(&self.askers) <= MAX_ASKERS {
                askers.push(Asker { stream, _one: Arc::clone(&self.askers) });
            }
        }
        askers
    }
}

impl AsFd for StatusSocket {
    /// Readable when a connection has come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Asker {
    /// Sends the report, without waiting: a slow reader holds up nobody else.
    pub(crate) fn answer(self, report: &str) {
        let report = format!("{report}\n");
        let write = move || {
            let Asker { mut stream, _one } = self;
            // An asker that is gone needs no answer.
            let _ = stream.set_nonblocking(false);
            let _ = stream.set_write_timeout(Some(WRITE_LIMIT));
            let _ = stream.write_all(report.as_bytes());
        };
        // Without a thread the connection is closed without an answer.
        let _ = thread::spawn("status", write, |_| {});
    }
}

/// Returns the report of the deckrun with this process number on its job. Blocks for 20 s at most.
///
/// # Errors
/// In words: the process is no deckrun with a job, it belongs to another user, or it does not answer.
pub fn ask(pid: u32) -> Result<String, String> {
    let nobody = || {
        format!(
            "process {pid} is no deckrun that runs a job (or it has only begun, or is one of an older release)"
        )
    };
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(nobody)?;
    let address = address(process).map_err(|error| error.to_string())?;
    let owner = fs::metadata(format!("/proc/{pid}")).map_err(|_| format!("there is no process {pid}"))?.uid();
    let stream = UnixStream::connect_addr(&address).map_err(|_| nobody())?;
    if peer_identity(stream.as_fd()).map_err(|error| error.to_string())?.0 != owner {
        return Err(nobody());
    }
    read_answer(stream, READ_LIMIT)
}

fn read_answer(stream: UnixStream, limit: Duration) -> Result<String, String> {
    let unheard = |error: io::Error| format!("it does not answer: {error}");
    stream.set_read_timeout(Some(limit)).map_err(unheard)?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer).map_err(unheard)?;
    match answer.is_empty() {
        true => {
            Err("it does not answer: it belongs to another user, others ask, or it has just ended".into())
        }
        false => Ok(String::from_utf8_lossy(&answer).into_owned()),
    }
}

fn address(pid: Pid) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("udeck-deckrun-{}", pid.as_raw_nonzero()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_gets_the_report_and_who_is_one_too_many_is_hung_up_on() {
        // A number above those that processes can have.
        let own = Pid::from_raw(i32::MAX - getpid().as_raw_nonzero().get()).unwrap();
        let socket = StatusSocket::of(own).unwrap();
        let calls: Vec<_> =
            (0..=MAX_ASKERS).map(|_| UnixStream::connect_addr(&address(own).unwrap()).unwrap()).collect();
        let mut askers = socket.accept();
        assert_eq!((askers.len(), socket.accept().len()), (MAX_ASKERS, 0));
        askers.remove(0).answer("all is well");
        let mut calls = calls.into_iter();
        assert_eq!(read_answer(calls.next().unwrap(), READ_LIMIT).unwrap(), "all is well\n");
        assert!(read_answer(calls.next_back().unwrap(), READ_LIMIT).unwrap_err().contains("does not answer"));
    }

    #[test]
    fn who_is_no_deckrun_is_not_asked() {
        for pid in [1, 0, u32::MAX] {
            assert!(ask(pid).is_err());
        }
    }
}
