//! The calling side of the admission. It runs on the caller's thread, and waits until the deadline at most.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};
use udeck_sys::{advise_route, is_shortage};
use udeck_via::transport::Hello;
use udeck_via::{Deadline, Error, NetAddress, Rejection, Result, Until};

use super::handshake::{ConnectStep, Connector, Refusal};
use super::socket::{connect_to, prepare, reset_when_closed};
use super::wire::{Answer, Request, fits};
use super::{Admission, Admitted, nonce};
use crate::address::{self, is_outage, late_by_outage};

/// Interval of attempts while the network is down.
const AGAIN: Duration = Duration::from_millis(50);

impl Admission {
    /// Asks for a connection with rank `peer`, or with any process of the job (`None`). Blocks until the answer or `until`;
    /// when it gives up, the other side learns of it.
    ///
    /// # Errors
    /// [`Error::NoMatch`]: no listener, or another process than `peer` is there. [`Error::Rejected`]: refused, or no NIC of
    /// this protocol, version and job is there. [`Error::InvalidReliability`]: the two VIs differ in reliability.
    /// [`Error::Timeout`]: the deadline passed. [`Error::Lost`]: the other side hung up. [`Error::InvalidParameter`]:
    /// something is too long, or a ticket is missing. [`Error::Os`]: a system call failed.
    pub fn call(
        &self,
        to: &NetAddress,
        peer: Option<u32>,
        hello: &Hello,
        parameters: &[u8],
        until: &Until,
    ) -> Result<Admitted> {
        fits(&to.discriminator, hello, parameters)?;
        let at = address::decode(to)?;
        let (discriminator, parameters) = (to.discriminator.clone(), parameters.to_vec());
        let request = Request { discriminator, hello: hello.clone(), parameters };
        let pair = self.keys.call(peer).map_err(|error| Error::InvalidParameter(error.to_string()))?;
        let (handshake, meet) = Connector::new(pair, self.protocol, nonce()?, &request);
        match Call::start_in_time(self, at, until)?.ask(handshake, &meet)? {
            (Answer::Accepted(theirs, parameters), socket) => {
                Ok(Admitted { socket, peer: at, theirs, parameters })
            }
            (Answer::Refused(rejection), socket) => {
                reset_when_closed(socket.as_fd());
                Err(Error::of_rejection(rejection, &to.discriminator))
            }
        }
    }
}

/// A call under way. When dropped, it is given up, and the other side learns of it.
struct Call<'a> {
    admission: &'a Admission,
    socket: Option<OwnedFd>,
    /// The request was sent: the acceptor knows it, or will.
    has_asked: bool,
    at: SocketAddr,
    since: Instant,
    until: &'a Until,
}

impl<'a> Call<'a> {
    /// Starts a call. Keeps trying while the network is down, for as long as an open connection would endure it.
    fn start_in_time(admission: &'a Admission, at: SocketAddr, until: &'a Until) -> Result<Self> {
        let since = Instant::now();
        let patience = Deadline::after(admission.detect);
        loop {
            match Call::start(admission, at, since, until)? {
                Ok(call) => return Ok(call),
                Err(error) if !is_outage(&error) || patience.passed() => return Err(nobody(at, error)),
                Err(error) if until.passed() => return Err(late_by_outage(at, &error, since.elapsed())),
                Err(_) => thread::sleep(AGAIN.min(until.remaining())),
            }
        }
    }

    /// Starts one attempt.
    ///
    /// # Errors
    /// Why no attempt was possible; the inner error: why there is no connection.
    fn start(
        admission: &'a Admission,
        at: SocketAddr,
        since: Instant,
        until: &'a Until,
    ) -> Result<io::Result<Self>> {
        let socket = match connect_to(at) {
            Ok(socket) => socket,
            Err(error) => return Ok(Err(error)),
        };
        prepare(socket.as_fd(), admission.detect).map_err(|error| nobody(at, error))?;
        let call = Call { admission, socket: Some(socket), has_asked: false, at, since, until };
        call.wait(PollFlags::OUT, "connecting to the process")?;
        let socket = call.socket.as_ref().expect("just made");
        let connected = sockopt::socket_error(socket).map_err(|error| nobody(at, error.into()))?;
        Ok(connected.map(|()| call).map_err(io::Error::from))
    }

    /// Runs the whole hand-shake.
    fn ask(mut self, mut handshake: Connector, meet: &[u8]) -> Result<(Answer, OwnedFd)> {
        self.send(meet)?;
        let mut buffer = [0; 2048];
        loop {
            let wants = handshake.wants().min(buffer.len());
            let what = if handshake.has_asked() {
                "an answer from the process"
            } else {
                "the hand-shake with the process"
            };
            let len = self.receive(&mut buffer[..wants], what)?;
            match handshake.input(&buffer[..len]) {
                Ok(ConnectStep::Nothing) => {}
                Ok(ConnectStep::Send(words)) => {
                    self.has_asked = handshake.has_asked();
                    self.send(&words)?;
                }
                Ok(ConnectStep::Answer(answer)) => {
                    let socket = self.socket.take().expect("there until the answer");
                    return Ok((answer, socket));
                }
                Err(Refusal::OtherProcess { .. }) => {
                    return Err(Error::NoMatch(format!("{}, where another process is now", self.at)));
                }
                Err(refusal) => {
                    let words = format!("{} was called: {refusal}", self.at);
                    return Err(Error::Rejected(Rejection::new(refusal.kind(), words)));
                }
            }
        }
    }

    fn send(&self, words: &[u8]) -> Result {
        let Some(socket) = &self.socket else { return Ok(()) };
        match send(socket, words, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) if sent == words.len() => Ok(()),
            Ok(_) => Err(self.hung_up()),
            Err(error) => Err(nobody(self.at, error.into())),
        }
    }

    fn receive(&self, buffer: &mut [u8], what: &str) -> Result<usize> {
        let Some(socket) = &self.socket else { return Ok(0) };
        loop {
            match recv(socket, &mut *buffer, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(self.hung_up()),
                Ok((_, len)) => return Ok(len),
                Err(Errno::AGAIN | Errno::INTR) => self.wait(PollFlags::IN, what)?,
                Err(error) if is_shortage(&error.into()) => return Err(nobody(self.at, error.into())),
                Err(error) => return Err(Error::Lost(format!("{} died or hung up: {error}", self.at))),
            }
        }
    }

    #[cold]
    fn hung_up(&self) -> Error {
        Error::Lost(format!("{} hung up in the middle of the hand-shake", self.at))
    }

    /// Waits until the socket is ready; interruptions do not count.
    fn wait(&self, flags: PollFlags, what: &str) -> Result {
        let Some(socket) = &self.socket else { return Ok(()) };
        loop {
            let limit = Timespec::try_from(self.until.remaining()).ok();
            match poll(&mut [PollFd::new(socket, flags)], limit.as_ref()) {
                Ok(1..) => return Ok(()),
                Ok(0) if self.until.passed() => {
                    let what = format!("{what} at {}", self.at);
                    return Err(Error::Timeout { what, waited: self.since.elapsed() });
                }
                Ok(0) | Err(Errno::INTR) => {}
                Err(error) => return Err(Error::os(format!("waiting for {}", self.at), error)),
            }
        }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if udeck_sys::process::is_forked() {
            return;
        }
        match &self.socket {
            // The socket is closed without a reset, which could overtake these words.
            Some(_) if self.has_asked => _ = self.send(&self.admission.withdrawal),
            Some(socket) => reset_when_closed(socket.as_fd()),
            None => {}
        }
    }
}

#[cold]
fn nobody(at: SocketAddr, error: io::Error) -> Error {
    Error::os(format!("connecting to the process at {at}"), advise_route(error, at.ip()))
}
