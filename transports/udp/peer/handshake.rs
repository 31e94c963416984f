//! Authentication: both sides prove their identity by a key that only the two share, and over this TLS session.
//! Nothing else of a side is read before.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use quinn_proto::{ConnectionError, Dir, TransportErrorCode, VarInt};
use udeck_via::auth::is_same;

use super::{Peer, State};
use crate::tls::exporter;
use crate::wire::{AuthMessage, CloseReason, OURS, Versions};

/// Status of a connection.
#[derive(Clone, Debug)]
pub enum ConnectionStatus {
    /// TLS, or the authentication, is not complete.
    Handshaking,
    /// Both sides have authenticated.
    Established,
    /// Closed in order, by either NIC, or evicted.
    Closed,
    /// An ICMP message says that no socket is bound at the peer's address.
    PortUnreachable,
    /// A side did not prove its identity.
    NotAuthenticated(String),
    /// The server is another rank than the one that was called.
    WrongProcess,
    /// The peer has other protocol versions; `None`: unknown ones.
    VersionMismatch(Option<Versions>),
    /// The connection was lost, or the peer broke the protocol.
    Lost(String),
}

pub const CLIENT: &[u8] = b"caller";
pub const SERVER: &[u8] = b"callee";

impl Peer {
    /// Starts the authentication: the TLS handshake is complete.
    pub(super) fn on_connected(self: &Arc<Self>, state: &mut State) {
        // If the connection has ended already, the next event says why.
        if !self.is_client || state.quic.is_closed() {
            return;
        }
        let Some(pair) = &state.pair else { return };
        let Some(stream) = state.quic.streams().open(Dir::Bi) else {
            return self.close(
                state,
                CloseReason::ProtocolViolation,
                ConnectionStatus::Lost("it takes no stream".into()),
            );
        };
        let process = self.core.process;
        let mut hello = AuthMessage { versions: OURS, process, claim: Some(pair.claim()), proof: [0; 32] };
        hello.proof = pair.prove(b"udp", CLIENT, &[&proof_context(&hello), &exporter(&state.quic)]);
        state.control.stream = Some(stream);
        self.send_control(state, &hello.encode());
    }

    /// Reads the peer's message from the control stream during the handshake.
    pub(super) fn on_auth_message(self: &Arc<Self>, state: &mut State) {
        let len = AuthMessage::len(!self.is_client);
        if state.control.incoming.len() < len {
            return;
        }
        let bytes: Vec<u8> = state.control.incoming.drain(..len).collect();
        let Some(hello) = AuthMessage::decode(&bytes, !self.is_client) else { return };
        if self.is_client {
            self.authenticate_server(state, &hello)
        } else {
            self.authenticate_client(state, &hello)
        }
    }

    /// Checks the client's message on the server, and answers.
    fn authenticate_client(self: &Arc<Self>, state: &mut State, theirs: &AuthMessage) {
        let mut ours =
            AuthMessage { versions: OURS, process: self.core.process, claim: None, proof: [0; 32] };
        if theirs.versions != OURS {
            // The client gets our versions for its error message, and no proof.
            state.status = ConnectionStatus::VersionMismatch(Some(theirs.versions));
            return self.send_control(state, &ours.encode());
        }
        let claim = theirs.claim.unwrap_or(udeck_via::auth::Claim::NOBODY);
        let Ok(pair) = self.core.keys.answer(claim) else {
            return self.close(state, CloseReason::WrongProcess, ConnectionStatus::WrongProcess);
        };
        let exporter = exporter(&state.quic);
        if !pair.check(&theirs.proof, b"udp", CLIENT, &[&proof_context(theirs), &exporter]) {
            let why = pair.why_wrong_caller();
            self.core.report_refused(self.at.ip(), &why);
            return self.close(state, CloseReason::NotAuthenticated, ConnectionStatus::NotAuthenticated(why));
        }
        ours.proof = pair.prove(b"udp", SERVER, &[&proof_context(&ours), &exporter]);
        state.pair = Some(pair);
        self.send_control(state, &ours.encode());
        self.establish(state, theirs);
    }

    /// Checks the server's message on the client.
    fn authenticate_server(self: &Arc<Self>, state: &mut State, theirs: &AuthMessage) {
        if theirs.versions != OURS {
            let why = ConnectionStatus::VersionMismatch(Some(theirs.versions));
            return self.close(state, CloseReason::Done, why);
        }
        let Some(pair) = &state.pair else { return };
        let exporter = exporter(&state.quic);
        let expected = pair.prove(b"udp", SERVER, &[&proof_context(theirs), &exporter]);
        if !is_same(&theirs.proof, &expected) {
            let why = ConnectionStatus::NotAuthenticated(pair.why_wrong_callee());
            return self.close(state, CloseReason::NotAuthenticated, why);
        }
        self.establish(state, theirs);
    }

    fn establish(self: &Arc<Self>, state: &mut State, theirs: &AuthMessage) {
        state.status = ConnectionStatus::Established;
        self.is_established.store(true, Ordering::Release);
        self.start_liveness(state, theirs.process);
        let grant = self.core.proven_limits();
        state.quic.set_max_concurrent_streams(Dir::Bi, grant.streams);
        state.quic.set_receive_window(grant.window);
        if !self.is_client {
            self.core.peers.add_incoming(self, self.rank(state), self.core.address);
        }
        state.waiters.drain(..).for_each(|bell| bell.ring());
    }

    /// Returns the status that a connection error of QUIC means.
    pub(super) fn status_of(&self, state: &State, reason: &ConnectionError) -> ConnectionStatus {
        match reason {
            ConnectionError::ApplicationClosed(close) => {
                self.closed_by_peer(state, CloseReason::of(close.error_code.into_inner()))
            }
            ConnectionError::VersionMismatch => ConnectionStatus::VersionMismatch(None),
            ConnectionError::TransportError(error)
                if error.code == TransportErrorCode::crypto(NO_APPLICATION_PROTOCOL) =>
            {
                ConnectionStatus::VersionMismatch(None)
            }
            ConnectionError::ConnectionClosed(close)
                if close.error_code == TransportErrorCode::crypto(NO_APPLICATION_PROTOCOL) =>
            {
                ConnectionStatus::VersionMismatch(None)
            }
            // The server evicted this connection, and its CONNECTION_CLOSE was lost.
            ConnectionError::Reset if matches!(state.status, ConnectionStatus::Handshaking) => {
                ConnectionStatus::Closed
            }
            // During the TLS handshake QUIC does not carry application error codes.
            ConnectionError::ConnectionClosed(close)
                if close.error_code == TransportErrorCode::APPLICATION_ERROR =>
            {
                ConnectionStatus::Closed
            }
            // The server ignored this connection until the token of the Retry had expired.
            ConnectionError::ConnectionClosed(close)
                if close.error_code == TransportErrorCode::INVALID_TOKEN =>
            {
                ConnectionStatus::Closed
            }
            ConnectionError::Reset => ConnectionStatus::Lost(format!(
                "the process at {} does not know this connection: it has taken the address of one that has died or closed its NIC",
                self.at
            )),
            other => ConnectionStatus::Lost(format!("its QUIC connection with {} broke: {other}", self.at)),
        }
    }

    fn closed_by_peer(&self, state: &State, close: CloseReason) -> ConnectionStatus {
        match close {
            CloseReason::Done => ConnectionStatus::Closed,
            CloseReason::NotAuthenticated => {
                let why = state.pair.as_ref().map(udeck_via::auth::Pair::why_refused);
                ConnectionStatus::NotAuthenticated(why.unwrap_or_default())
            }
            CloseReason::WrongProcess => ConnectionStatus::WrongProcess,
            CloseReason::ProtocolViolation => {
                ConnectionStatus::Lost(format!("{} says that this side broke the protocol", self.at))
            }
        }
    }
}

/// TLS alert: no common ALPN protocol.
const NO_APPLICATION_PROTOCOL: u8 = 120;

/// Returns the bytes that a proof covers besides the TLS session.
pub fn proof_context(hello: &AuthMessage) -> Vec<u8> {
    [&hello.versions.encode()[..], &hello.process.encode()].concat()
}

impl ConnectionStatus {
    /// Returns the error that VIs of this connection get; `None` if it ended in order, as far as this side knows.
    pub fn error(&self) -> Option<String> {
        match self {
            ConnectionStatus::Handshaking | ConnectionStatus::Established | ConnectionStatus::Closed => None,
            ConnectionStatus::Lost(why) | ConnectionStatus::NotAuthenticated(why) => Some(why.clone()),
            ConnectionStatus::PortUnreachable => Some("no socket is bound there any more".into()),
            ConnectionStatus::WrongProcess => Some("another process is there now".into()),
            ConnectionStatus::VersionMismatch(_) => Some("it speaks another version".into()),
        }
    }
}

/// Makes an application error code.
pub fn code(number: u32) -> VarInt {
    VarInt::from_u32(number)
}
