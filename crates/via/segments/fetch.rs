//! The other members' side: a call that asks the maker for a segment, and waits until it is offered.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use crate::auth::Pair;
use udeck_sys::closer::{Endpoint, PassedFd};
use udeck_sys::socket::{self, Received};

use crate::segments::handshake::Asker;
use crate::segments::wire::{Datagram, MAX_DATAGRAM, Shape};

/// Interval at which [`fetch`] asks its caller whether to go on.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Why there is no segment.
#[derive(Debug)]
pub enum FetchError<E> {
    /// The maker has another segment, or none for this rank, in its words.
    Refused(String),
    /// The maker has no place for this call: this rank has [`crate::segments::MAX_REQUESTS`] connections with it, or took too
    /// long to prove itself. Ask again.
    Busy,
    /// The maker is gone.
    Gone,
    /// The process that answered is no rank of this job, or its answer makes no sense.
    NotTheMaker(String),
    /// A system call failed.
    Os(io::Error),
    /// The caller has given up.
    Stopped(E),
}

/// Asks the process that listens at `address` for a segment. It has to prove to be the rank that `pair` calls. Waits until
/// the segment is offered, as long as `go_on` returns no error.
///
/// # Errors
/// [`FetchError`].
pub fn fetch<E>(
    address: &[u8],
    pair: Pair,
    shape: &Shape,
    mut go_on: impl FnMut() -> Result<(), E>,
) -> Result<PassedFd, FetchError<E>> {
    let socket = connect(address, &mut go_on)?;
    let (uid, _) = socket::peer_identity(socket.as_fd()).map_err(FetchError::Os)?;
    if uid != socket::own_uid() {
        return Err(FetchError::NotTheMaker(format!("it runs as another user (id {uid})")));
    }
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(|error| FetchError::Os(io::Error::other(error)))?;
    let (asker, meet) = Asker::new(pair, nonce);
    send_datagram(&socket, &meet)?;
    let (answer, _) = receive_datagram(&socket, &mut go_on)?;
    if answer == Datagram::Busy {
        return Err(FetchError::Busy);
    }
    let ask = asker.ask(answer, shape).map_err(FetchError::NotTheMaker)?;
    send_datagram(&socket, &ask)?;
    match receive_datagram(&socket, &mut go_on)? {
        (Datagram::Given, mut fds) if fds.len() == 1 => Ok(fds.remove(0)),
        (Datagram::Refused { why }, _) => Err(FetchError::Refused(why)),
        (Datagram::Busy, _) => Err(FetchError::Busy),
        _ => Err(FetchError::NotTheMaker("it broke the hand-shake".into())),
    }
}

/// Connects, waiting while the maker's backlog is full.
fn connect<E>(address: &[u8], go_on: &mut impl FnMut() -> Result<(), E>) -> Result<Endpoint, FetchError<E>> {
    loop {
        match socket::connect_to(address) {
            Ok(socket) => return Ok(socket),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                go_on().map_err(FetchError::Stopped)?;
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Err(FetchError::Gone),
            Err(error) => return Err(FetchError::Os(error)),
        }
    }
}

fn send_datagram<E>(socket: &Endpoint, datagram: &Datagram) -> Result<(), FetchError<E>> {
    match socket::send(socket.as_fd(), &datagram.encode(), &[]) {
        Ok(true) => Ok(()),
        // Two datagrams fit into any socket.
        Ok(false) => Err(FetchError::NotTheMaker("it does not read".into())),
        // The other side's last datagram, or its end, is received next.
        Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
            Ok(())
        }
        Err(error) => Err(FetchError::Os(error)),
    }
}

/// Receives the next datagram, and the descriptors that it carries.
fn receive_datagram<E>(
    socket: &Endpoint,
    go_on: &mut impl FnMut() -> Result<(), E>,
) -> Result<(Datagram, Vec<PassedFd>), FetchError<E>> {
    let mut buffer = vec![0; MAX_DATAGRAM];
    loop {
        match socket::receive(socket.as_fd(), &mut buffer).map_err(FetchError::Os)? {
            Received::Nothing => {}
            Received::Closed => return Err(FetchError::Gone),
            Received::Datagram { len, truncated, fds } => {
                let datagram = Datagram::decode(&buffer[..len]).filter(|_| !truncated);
                let malformed = || FetchError::NotTheMaker("it broke the hand-shake".into());
                return datagram.map(|datagram| (datagram, fds)).ok_or_else(malformed);
            }
        }
        go_on().map_err(FetchError::Stopped)?;
        socket::wait_readable(socket.as_fd(), POLL_INTERVAL).map_err(FetchError::Os)?;
    }
}
