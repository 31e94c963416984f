//! What is said on the control stream, and datagrams of unreliable VIs. All integers are little-endian.
//!
//! The side that has called opens the control stream, the first of the connection. Each side begins it with a [`Hello`]; the
//! caller's also says whom it calls ([`Claim`]). Behind that follow [`Control`] messages.
//!
//! ```text
//! hello    versions: datagrams u16, frames u16 | process: namespace u64, pid u32 | claim (of the caller) 8 bytes | proof 32 bytes
//! control  kind u8 (1 confirm, 2 confirmed) | stream u64 | offset u64
//! ```
//!
//! Every other stream is a VI's. It begins with a request one way and an answer the other way
//! ([`udeck_session::admission::wire`]); what follows is `udeck_session::framed`'s.

use udeck_via::auth::{Claim, Proof};

mod piece;

pub use piece::Piece;

/// The version of all that is in here.
pub const VERSION: u16 = 3;
/// Bytes of a hello without a claim.
pub const HELLO: usize = 4 + 12 + 32;
/// Bytes of a control message.
pub const CONTROL: usize = 17;

/// Streams are reset by that when their VI's connection is over or lost.
pub const OVER: u32 = 0;
/// Streams are reset by that when who asked gave up before an answer came.
pub const WITHDRAWN: u32 = 1;

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    /// It is not needed any more, its NIC was closed, or the caller has not proved in time who it is.
    Done,
    /// The caller does not prove what it claims.
    Stranger,
    /// The caller wants another process.
    OtherProcess,
    /// The other side broke the protocol.
    Broken,
}

impl Close {
    pub fn code(self) -> u32 {
        match self {
            Close::Done => 0,
            Close::Stranger => 1,
            Close::OtherProcess => 2,
            Close::Broken => 3,
        }
    }

    pub fn of(code: u64) -> Self {
        match code {
            0 => Close::Done,
            1 => Close::Stranger,
            2 => Close::OtherProcess,
            _ => Close::Broken,
        }
    }
}

/// What a side speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    pub datagrams: u16,
    pub frames: u16,
}

/// What this build speaks.
pub const OURS: Versions = Versions { datagrams: VERSION, frames: udeck_session::framed::wire::VERSION };

/// Which process a side is, for a peer on the same host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Its pid namespace; 0: it does not know.
    pub namespace: u64,
    pub pid: u32,
}

/// What each side begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    pub versions: Versions,
    pub process: Process,
    /// The caller's; not in the other side's.
    pub claim: Option<Claim>,
    /// All zero: none is given, because the versions differ.
    pub proof: Proof,
}

impl Hello {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HELLO + Claim::LEN);
        out.extend(self.versions.encode());
        out.extend(self.process.encode());
        out.extend(self.claim.iter().flat_map(Claim::encode));
        out.extend(self.proof);
        out
    }

    /// Bytes of it.
    pub fn len(with_claim: bool) -> usize {
        HELLO + if with_claim { Claim::LEN } else { 0 }
    }

    /// `None`: these are not so many bytes.
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
        Some(Hello { versions, process, claim, proof })
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

/// What is said about one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Say when so many bytes of that stream have come.
    Confirm { stream: u64, offset: u64 },
    /// So many bytes of that stream have come.
    Confirmed { stream: u64, offset: u64 },
}

impl Control {
    pub fn encode(self) -> [u8; CONTROL] {
        let (kind, stream, offset) = match self {
            Control::Confirm { stream, offset } => (1, stream, offset),
            Control::Confirmed { stream, offset } => (2, stream, offset),
        };
        let mut out = [kind; CONTROL];
        out[1..9].copy_from_slice(&stream.to_le_bytes());
        out[9..].copy_from_slice(&offset.to_le_bytes());
        out
    }

    /// `None`: there is no such message.
    pub fn decode(bytes: &[u8; CONTROL]) -> Option<Self> {
        let number = |at: usize| bytes[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let (stream, offset) = (number(1), number(9));
        match bytes[0] {
            1 => Some(Control::Confirm { stream, offset }),
            2 => Some(Control::Confirmed { stream, offset }),
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
            let hello = Hello { versions: OURS, process, claim, proof: [9; 32] };
            let bytes = hello.encode();
            assert_eq!(bytes.len(), Hello::len(claim.is_some()));
            assert_eq!(Hello::decode(&bytes, claim.is_some()), Some(hello));
            assert_eq!(Hello::decode(&bytes[1..], claim.is_some()), None);
        }
        for control in
            [Control::Confirm { stream: 4, offset: 1 << 50 }, Control::Confirmed { stream: 8, offset: 3 }]
        {
            assert_eq!(Control::decode(&control.encode()), Some(control));
        }
        assert_eq!(Control::decode(&[3; CONTROL]), None);
        for close in [Close::Done, Close::Stranger, Close::OtherProcess, Close::Broken] {
            assert_eq!(Close::of(close.code().into()), close);
        }
    }
}
