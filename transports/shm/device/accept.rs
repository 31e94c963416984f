//! The listening socket: accepts processes that connect to this one, and bounds their hand-shakes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use udeck_sys::closer::{self, Endpoint};
use udeck_sys::reactor::Interest;
use udeck_sys::{descriptor_advice, is_shortage, say, socket};
use udeck_via::{Error, Result};

use super::ShmDevice;
use crate::connection::Loss;
use crate::handshake::Handshake;
use crate::peer_socket::{PeerSocket, process};

/// Sockets accepted in a row before existing peer sockets are served: a burst of strangers does not starve them.
const ACCEPTS: usize = 16;
/// Descriptors of a peer socket beside the socket itself: the watch for its process's death, both duplicated for the
/// reactor, and the three segments of the peer, of which the outbox's stays.
const LINK_DESCRIPTORS: usize = 6;
/// Pause before a process without descriptors accepts again. Callers stay in the backlog meanwhile.
pub(super) const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);
/// Upper bound of hand-shakes under way. All ranks of a large job may call on one rank at the same time, and on few
/// processors each answers late. No caller makes room for another: the kernel names each one's process, which has a bound
/// of its own.
const MAX_MEETING: usize = 1024;
const MEETING_TIME: Duration = Duration::from_secs(10);
/// Upper bound of the peer sockets with one other process. A NIC makes one, and we make one to each of its NICs.
/// Those that went down are kept until that process has left our memory. Each takes descriptors, and address space
/// for the arenas of the peer.
pub(crate) const MAX_PEER_SOCKETS: usize = 32;

impl ShmDevice {
    /// Registers the listening socket with the reactor.
    pub(super) fn serve(&self, listener: Endpoint) -> io::Result<()> {
        let weak = self.this.clone();
        let listener = Arc::new(listener);
        let watched = listener.clone();
        let token = self.reactor.add(
            listener.as_fd(),
            Box::new(move || {
                let Some(device) = weak.upgrade() else { return Interest::Done };
                match device.accept(watched.as_fd()) {
                    Ok(()) => Interest::Keep,
                    Err(error) => {
                        device.report_shortage(&error);
                        Interest::Rest(SHORTAGE_PAUSE)
                    }
                }
            }),
        )?;
        self.peer_sockets.lock().listening = Some(token);
        Ok(())
    }

    /// Accepts the peer sockets that wait.
    ///
    /// # Errors
    /// The process, or the system, is short of descriptors, or has too many to close. Callers stay in the backlog
    /// meanwhile. A peer socket's descriptors are reserved before the socket is accepted, so that no caller is
    /// accepted without room for the rest.
    fn accept(&self, listener: BorrowedFd<'_>) -> io::Result<()> {
        for _ in 0..ACCEPTS {
            if closer::is_behind() {
                return Err(io::Error::other("what other processes have passed cannot be closed"));
            }
            let reserve = std::iter::repeat_with(|| listener.try_clone_to_owned()).take(LINK_DESCRIPTORS);
            let reserve: Vec<OwnedFd> = reserve.collect::<io::Result<_>>()?;
            let Some(socket) = socket::accept_from(listener)? else { break };
            drop(reserve);
            match self.admit(socket) {
                Err(error) if is_shortage(&error) => return Err(error),
                // An accepted stranger, or a failed socket, does not end the round.
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Begins the hand-shake with a process that has connected.
    fn admit(&self, socket: Endpoint) -> io::Result<()> {
        if !self.has_room_to_meet() {
            return Err(io::Error::other("too many processes are in the middle of a hand-shake"));
        }
        let (uid, pid) = socket::peer_identity(socket.as_fd())?;
        if uid != socket::own_uid() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        if self.has_enough_of(pid) {
            return Err(io::Error::other("this process has enough links"));
        }
        let handshake = Handshake::accept(self.options.keys.clone(), self.boot_id, nonce()?);
        self.watch(&mut self.peer_sockets.lock(), &PeerSocket::new(socket, pid, handshake, &self.space))
    }

    /// Whether another process has as many peer sockets with us as it may have. This process is exempt: the ranks of
    /// `run_local` are in it.
    fn has_enough_of(&self, pid: Option<i32>) -> bool {
        let own = i32::try_from(std::process::id()).ok();
        let mut peer_sockets = self.peer_sockets.lock();
        // Processes of other pid namespaces cannot be told apart, so together they may have as many as hand-shakes
        // under way.
        let most = if pid.is_none() { MAX_MEETING } else { MAX_PEER_SOCKETS };
        let has = peer_sockets.all.iter().filter(|(peer_socket, _)| peer_socket.pid == pid).count();
        if pid == own || has < most {
            return false;
        }
        if !std::mem::replace(&mut peer_sockets.reported_quota, true) {
            report_peer_socket_limit(pid, has);
        }
        true
    }

    /// Prints the shortage on stderr, once. No call of the program could return it, and callers only wait.
    #[cold]
    pub(super) fn report_shortage(&self, error: &io::Error) {
        if std::mem::replace(&mut self.peer_sockets.lock().reported_shortage, true) {
            return;
        }
        let advice = if is_shortage(error) { format!(" ({})", descriptor_advice()) } else { String::new() };
        say!("cannot accept connections and keeps trying: {error}{advice}");
    }

    /// Whether one more hand-shake may begin. Ends those that take too long: they keep descriptors for nothing.
    fn has_room_to_meet(&self) -> bool {
        let peer_sockets: Vec<_> =
            self.peer_sockets.lock().all.iter().map(|(peer_socket, _)| peer_socket.clone()).collect();
        self.forget_spent(&peer_sockets);
        let mut meeting = 0;
        for peer_socket in peer_sockets {
            match peer_socket.meeting_for() {
                Some(age) if age > MEETING_TIME => {
                    peer_socket.down("the hand-shake took too long", Loss::Unresponsive);
                    self.forget_peer_socket(&peer_socket);
                }
                Some(_) => meeting += 1,
                None => {}
            }
        }
        meeting < MAX_MEETING
    }
}

/// Prints on stderr that a process has too many peer sockets. The other process learns only that its peer socket was
/// closed.
#[cold]
fn report_peer_socket_limit(pid: Option<i32>, has: usize) {
    let pid = process(pid);
    say!("process {pid} has {has} peer sockets with this NIC; no more of them are accepted (reported once)");
}

/// Makes an address that no other NIC has: it is random, so that it cannot be squatted.
pub(super) fn own_address() -> Result<Vec<u8>> {
    let mut random = [0u8; 16];
    getrandom::fill(&mut random).map_err(|e| Error::os("drawing a random address", io::Error::other(e)))?;
    let hex: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("udeck-{hex}").into_bytes())
}

pub(super) fn nonce() -> io::Result<[u8; 32]> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(io::Error::other)?;
    Ok(nonce)
}
