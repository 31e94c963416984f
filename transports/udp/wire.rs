//! Messages of the control stream, and datagrams of unreliable VIs. All integers are little-endian.
//!
//! The client opens the control stream, the first of the connection. Each side begins it with an [`AuthMessage`]; the
//! client's also says which rank it calls ([`Claim`]). [`ControlMessage`]s follow.
//!
//! ```text
//! auth     versions: datagrams u16, frames u16 | process: namespace u64, pid u32 | claim (client only) 8 bytes | proof 32 bytes
//! control  kind u8 (1 confirm, 2 confirmed) | stream u64 | offset u64
//! ```
//!
//! Every other stream is a VI's. It begins with a request one way and an answer the other way
//! ([`udeck_session::admission::wire`]); `udeck_session::framed` defines the bytes behind them.

use udeck_via::auth::{Claim, Proof};

mod fragment;

pub use fragment::Fragment;

/// Version of all formats in this file.
pub const VERSION: u16 = 4;
/// Bytes of an [`AuthMessage`] without a claim.
pub const AUTH_MESSAGE: usize = 4 + 12 + 32;
/// Bytes of a control message.
pub const CONTROL: usize = 17;

/// Reset code: the VI's connection is closed or lost.
pub const RESET_CLOSED: u32 = 0;
/// Reset code: the client cancelled its request.
pub const RESET_CANCELLED: u32 = 1;

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The connection is not needed any more, its NIC was closed, or the caller has not authenticated itself in time.
    Done,
    /// The peer's proof of identity is wrong.
    NotAuthenticated,
    /// The client calls another rank.
    WrongProcess,
    /// The peer broke the protocol.
    ProtocolViolation,
}

impl CloseReason {
    pub fn code(self) -> u32 {
        match self {
            CloseReason::Done => 0,
            CloseReason::NotAuthenticated => 1,
            CloseReason::WrongProcess => 2,
            CloseReason::ProtocolViolation => 3,
        }
    }

    pub fn of(code: u64) -> Self {
        match code {
            0 => CloseReason::Done,
            1 => CloseReason::NotAuthenticated,
            2 => CloseReason::WrongProcess,
            _ => CloseReason::ProtocolViolation,
        }
    }
}

/// Protocol versions of a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    pub datagrams: u16,
    pub frames: u16,
}

/// Protocol versions of this build.
pub const OURS: Versions = Versions { datagrams: VERSION, frames: udeck_session::framed::wire::VERSION };

/// Identity of a side's process, for a peer on the same host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Number of the pid namespace; 0: unknown.
    pub namespace: u64,
    pub pid: u32,
}

/// The first message of each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthMessage {
    pub versions: Versions,
    pub process: Process,
    /// Claim of the caller; `None` in the callee's message.
    pub claim: Option<Claim>,
    /// Proof of identity. All zero: none is given, because the versions differ.
    pub proof: Proof,
}

impl AuthMessage {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(AUTH_MESSAGE + Claim::LEN);
        out.extend(self.versions.encode());
        out.extend(self.process.encode());
        out.extend(self.claim.iter().flat_map(Claim::encode));
        out.extend(self.proof);
        out
    }

    /// Number of bytes of such a message.
    pub fn len(with_claim: bool) -> usize {
        AUTH_MESSAGE + if with_claim { Claim::LEN } else { 0 }
    }

    /// Decodes a message. Returns `None` if the number of bytes is wrong.
    pub fn decode(bytes: &[u8], with_claim: bool) -> Option<Self> {
        let (datagrams, rest) = bytes.split_first_chunk()?;
        let (frames, rest) = rest.split_first_chunk()?;
        let (namespace, rest) = rest.split_first_chunk()?;
        let (pid, rest) = rest.split_first_chunk()?;
        let (claim, rest) = rest.split_at_checked(if with_claim { Claim::LEN } else { 0 })?;
        let claim = claim.first_chunk().map(|bytes| Claim::decode(*bytes));
        let proof = rest.try_into().ok()?;
        let versions =
            Versions { datagrams: u16::from_le_bytes(*datagrams), frames: u16::from_le_bytes(*frames) };
        let process = Process { namespace: u64::from_le_bytes(*namespace), pid: u32::from_le_bytes(*pid) };
        Some(AuthMessage { versions, process, claim, proof })
    }
}

impl Versions {
    pub fn encode(self) -> [u8; 4] {
        let [[a, b], [c, d]] = [self.datagrams.to_le_bytes(), self.frames.to_le_bytes()];
        [a, b, c, d]
    }
}

impl Process {
    pub fn encode(self) -> [u8; 12] {
        let mut out = [0; 12];
        out[..8].copy_from_slice(&self.namespace.to_le_bytes());
        out[8..].copy_from_slice(&self.pid.to_le_bytes());
        out
    }
}

/// A message about one VI's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlMessage {
    /// Requests a confirmation once `offset` bytes of the stream were read.
    Confirm { stream: u64, offset: u64 },
    /// Confirms that `offset` bytes of the stream were read.
    Confirmed { stream: u64, offset: u64 },
}

impl ControlMessage {
    pub fn encode(self) -> [u8; CONTROL] {
        let (kind, stream, offset) = match self {
            ControlMessage::Confirm { stream, offset } => (1, stream, offset),
            ControlMessage::Confirmed { stream, offset } => (2, stream, offset),
        };
        let mut out = [kind; CONTROL];
        out[1..9].copy_from_slice(&stream.to_le_bytes());
        out[9..].copy_from_slice(&offset.to_le_bytes());
        out
    }

    /// Decodes a message. Returns `None` for an unknown kind.
    pub fn decode(bytes: &[u8; CONTROL]) -> Option<Self> {
        let number = |at: usize| bytes[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let (stream, offset) = (number(1), number(9));
        match bytes[0] {
            1 => Some(ControlMessage::Confirm { stream, offset }),
            2 => Some(ControlMessage::Confirmed { stream, offset }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_comes_back() {
        let process = Process { namespace: 5 << 40, pid: 7 };
        for claim in [None, Some(Claim::decode([3; 8]))] {
            let hello = AuthMessage { versions: OURS, process, claim, proof: [9; 32] };
            let bytes = hello.encode();
            assert_eq!(bytes.len(), AuthMessage::len(claim.is_some()));
            assert_eq!(AuthMessage::decode(&bytes, claim.is_some()), Some(hello));
            assert_eq!(AuthMessage::decode(&bytes[1..], claim.is_some()), None);
        }
        for control in [
            ControlMessage::Confirm { stream: 4, offset: 1 << 50 },
            ControlMessage::Confirmed { stream: 8, offset: 3 },
        ] {
            assert_eq!(ControlMessage::decode(&control.encode()), Some(control));
        }
        assert_eq!(ControlMessage::decode(&[3; CONTROL]), None);
        for close in [
            CloseReason::Done,
            CloseReason::NotAuthenticated,
            CloseReason::WrongProcess,
            CloseReason::ProtocolViolation,
        ] {
            assert_eq!(CloseReason::of(close.code().into()), close);
        }
    }
}
