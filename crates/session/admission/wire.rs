//! Messages on a fresh TCP connection before it belongs to a transport. All decoded bytes come from a stranger, or from
//! another process of the job, and are checked.
//!
//! Numbers are little-endian. The length of each message is known before it is read, so that nothing behind it is read: the
//! bytes there belong to the transport.
//!
//! ```text
//! Meet     0     4      6      8          16      24               56      connector's first words
//!          | uDtc| adm. | vers.| protocol | claim | nonce          |
//! Prove    0     4      6      8          16      24               56                88  acceptor's answer
//!          | uDtc| adm. | vers.| protocol | claim | nonce          | proof           |
//! Join     0                 32                                    connector's proof; its Request follows at once
//!          | proof           |
//! Request  0    1     2     4     6     8        12       16
//!          | 1  | rel | d   | p   | a   | w.tag  | r.tag  | d bytes of discriminator, p of private data, a of parameters
//! Answer   0    1     2     4     6     8        12       16
//!          | kind| rel| 0   | p   | a   | w.tag  | r.tag  | p bytes of private data, or of a refusal's data, a of parameters
//! ```
//! `adm.`: [`VERSION`], of all this. `protocol`, `vers.`: the transport's protocol, which follows ([`Protocol`]). `claim`:
//! which rank calls which ([`Claim`]); the answer repeats the claim, or has none if another process was called. The first
//! eight bytes of Meet and Prove stay the same in all versions, so that two sides that differ can say so. A tag of 0: none.
//! `kind`: 1, the request is accepted; another number, it is refused ([`RejectKind`]).

use std::fmt;

use udeck_via::auth::Claim;
pub use udeck_via::auth::{Nonce, Proof};
use udeck_via::transport::Hello;
use udeck_via::{Error, Ptag, RejectKind, Rejection, Reliability};

/// Version of this hand-shake.
pub const VERSION: u16 = 4;
/// Longest discriminator, in bytes.
pub const MAX_DISCRIMINATOR: usize = 512;
/// Longest private data, in bytes.
pub const MAX_PRIVATE: usize = 1024;
/// Longest parameters of the transport, in bytes.
pub const MAX_PARAMETERS: usize = 256;

/// Bytes of a [`Meet`].
pub const MEET: usize = FRONT + NAME + Claim::LEN + 32;
/// Bytes of a [`Meet`] that are the same in all versions.
pub const FRONT: usize = 8;
/// Bytes of a Prove: a [`Meet`] and a proof.
pub const PROVE: usize = MEET + 32;
/// Bytes of a Join: a proof.
pub const JOIN: usize = 32;
/// Bytes of a Request or an Answer before its parts of variable length.
pub const HEAD: usize = 16;

const MAGIC: [u8; 4] = *b"uDtc";
const REQUEST: u8 = 1;
const ACCEPTED: u8 = 1;

/// Bytes of a protocol's name.
const NAME: usize = 8;

const _: () = assert!(FRONT == 4 + 2 + 2 && MEET == 56 && HEAD == 1 + 1 + 3 * 2 + 2 * 4);

/// Protocol of a connection once it is made: a transport's own, and the version of that.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Protocol {
    name: [u8; NAME],
    version: u16,
}

impl Protocol {
    /// The protocol of this name, at most eight of `a-z` and `0-9`, in this version.
    ///
    /// # Panics
    /// With another name.
    pub const fn new(name: &str, version: u16) -> Self {
        let bytes = name.as_bytes();
        let mut padded = [0; NAME];
        let mut at = 0;
        while at < bytes.len() {
            padded[at] = bytes[at];
            at += 1;
        }
        assert!(is_name(&padded), "a protocol's name is one to eight of a-z and 0-9");
        Protocol { name: padded, version }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        let len = self.name.iter().position(|byte| *byte == 0).unwrap_or(NAME);
        std::str::from_utf8(&self.name[..len]).unwrap_or_default()
    }

    /// Its version.
    pub fn version(&self) -> u16 {
        self.version
    }

    /// Name and version, for a proof.
    pub(super) fn encode(&self) -> [u8; NAME + 2] {
        let mut out = [0; NAME + 2];
        out[..NAME].copy_from_slice(&self.name);
        out[NAME..].copy_from_slice(&self.version.to_le_bytes());
        out
    }
}

impl fmt::Debug for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name(), self.version)
    }
}

/// Whether the bytes are letters and digits, at least one, with zeros behind them.
const fn is_name(name: &[u8; NAME]) -> bool {
    let mut at = 0;
    while at < NAME && (name[at].is_ascii_lowercase() || name[at].is_ascii_digit()) {
        at += 1;
    }
    let mut rest = at;
    while rest < NAME && name[rest] == 0 {
        rest += 1;
    }
    at > 0 && rest == NAME
}

/// Versions that a process speaks: of the admission, and of the protocol that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// [`VERSION`].
    pub admission: u16,
    /// [`Protocol::version`].
    pub protocol: u16,
}

/// First message of either side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meet {
    /// The protocol that the connection shall carry.
    pub protocol: Protocol,
    /// The ranks that call and are called.
    pub claim: Claim,
    /// A fresh random number.
    pub nonce: Nonce,
}

/// A connection request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The discriminator that the request is for.
    pub discriminator: Vec<u8>,
    /// The hello of the requester's VI layer.
    pub hello: Hello,
    /// The parameters of the requester's transport.
    pub parameters: Vec<u8>,
}

/// The answer to a connection request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The connection is made: the hello of the acceptor's VI layer, and its transport's parameters.
    Accepted(Hello, Vec<u8>),
    /// The request is refused.
    Refused(Rejection),
}

/// The bytes are no message of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed {0}")]
pub struct Malformed(pub &'static str);

impl Meet {
    /// Encodes the greeting in this build's version.
    pub fn encode(&self) -> [u8; MEET] {
        let mut out = [0; MEET];
        out[..4].copy_from_slice(&MAGIC);
        out[4..6].copy_from_slice(&VERSION.to_le_bytes());
        out[6..FRONT].copy_from_slice(&self.protocol.version.to_le_bytes());
        out[FRONT..FRONT + NAME].copy_from_slice(&self.protocol.name);
        out[FRONT + NAME..][..Claim::LEN].copy_from_slice(&self.claim.encode());
        out[FRONT + NAME + Claim::LEN..].copy_from_slice(&self.nonce);
        out
    }

    /// The versions of the process whose greeting begins with `front`. If the admission's version is another one, no more may
    /// be read.
    ///
    /// # Errors
    /// [`Malformed`]: no process of this library sends that.
    pub fn versions(front: &[u8; FRONT]) -> Result<Versions, Malformed> {
        let mut reader = Reader(front);
        if reader.array::<4>() != Some(MAGIC) {
            return Err(Malformed("greeting"));
        }
        let mut fields = || Some(Versions { admission: reader.u16()?, protocol: reader.u16()? });
        fields().ok_or(Malformed("greeting"))
    }

    /// Decodes a greeting of this build's version.
    ///
    /// # Errors
    /// [`Malformed`]: no process of this library sends that.
    pub fn decode(bytes: &[u8; MEET]) -> Result<Self, Malformed> {
        let malformed = Malformed("greeting");
        let (front, rest) = bytes.split_first_chunk::<FRONT>().ok_or(malformed)?;
        let versions = Self::versions(front)?;
        let mut reader = Reader(rest);
        let name = reader.array().filter(is_name).ok_or(malformed)?;
        let claim = Claim::decode(reader.array().ok_or(malformed)?);
        let nonce = reader.array().ok_or(malformed)?;
        if versions.admission != VERSION {
            return Err(malformed);
        }
        Ok(Meet { protocol: Protocol { name, version: versions.protocol }, claim, nonce })
    }
}

/// Encodes the acceptor's first message: a greeting and its proof.
pub fn encode_prove(meet: &Meet, proof: &Proof) -> [u8; PROVE] {
    let mut out = [0; PROVE];
    out[..MEET].copy_from_slice(&meet.encode());
    out[MEET..].copy_from_slice(proof);
    out
}

/// Decodes the acceptor's first message.
///
/// # Errors
/// [`Malformed`]: no process of this library sends that.
pub fn decode_prove(bytes: &[u8; PROVE]) -> Result<(Meet, Proof), Malformed> {
    let (meet, rest) = bytes.split_first_chunk::<MEET>().ok_or(Malformed("greeting"))?;
    let proof = rest.first_chunk::<32>().ok_or(Malformed("greeting"))?;
    Ok((Meet::decode(meet)?, *proof))
}

impl Request {
    /// Encodes the request. All three parts are within their bounds ([`fits`]).
    pub fn encode(&self) -> Vec<u8> {
        let lens = [self.discriminator.len(), self.hello.private_data.len(), self.parameters.len()];
        let mut out = head(REQUEST, &self.hello, lens);
        out.extend(&self.discriminator);
        out.extend(&self.hello.private_data);
        out.extend(&self.parameters);
        out
    }

    /// Length in bytes of the request with this head.
    ///
    /// # Errors
    /// [`Malformed`], also when it is longer than a request may be.
    pub fn len_of(head: &[u8; HEAD]) -> Result<usize, Malformed> {
        let head = Head::decode(head).filter(|head| head.kind == REQUEST).ok_or(Malformed("request"))?;
        head.len([MAX_DISCRIMINATOR, MAX_PRIVATE, MAX_PARAMETERS]).ok_or(Malformed("request"))
    }

    /// Decodes a request.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let malformed = Malformed("request");
        let (first, rest) = bytes.split_first_chunk::<HEAD>().ok_or(malformed)?;
        if Self::len_of(first)? != bytes.len() {
            return Err(malformed);
        }
        let head = Head::decode(first).ok_or(malformed)?;
        let [discriminator, private_data, parameters] = head.split(rest).ok_or(malformed)?;
        let (discriminator, parameters) = (discriminator.to_vec(), parameters.to_vec());
        Ok(Request { discriminator, hello: head.hello(private_data), parameters })
    }
}

impl Answer {
    /// Encodes the answer. The parts of an acceptance are within their bounds ([`fits`]); the words of a refusal are cut to
    /// theirs.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Answer::Accepted(hello, parameters) => {
                let mut out = head(ACCEPTED, hello, [0, hello.private_data.len(), parameters.len()]);
                out.extend(&hello.private_data);
                out.extend(parameters);
                out
            }
            Answer::Refused(rejection) => {
                let data = rejection.sent_data();
                let mut out = head(rejection.kind as u8, &nobody(), [0, data.len(), 0]);
                out.extend(data);
                out
            }
        }
    }

    /// Length in bytes of the answer with this head.
    ///
    /// # Errors
    /// [`Malformed`], also when it is longer than an answer may be.
    pub fn len_of(head: &[u8; HEAD]) -> Result<usize, Malformed> {
        let head = Head::decode(head).ok_or(Malformed("answer"))?;
        let limits = match head.kind {
            ACCEPTED => [0, MAX_PRIVATE, MAX_PARAMETERS],
            kind => [0, RejectKind::decode(kind).ok_or(Malformed("answer"))?.max_data(), 0],
        };
        head.len(limits).ok_or(Malformed("answer"))
    }

    /// Decodes an answer.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let malformed = Malformed("answer");
        let (first, rest) = bytes.split_first_chunk::<HEAD>().ok_or(malformed)?;
        if Self::len_of(first)? != bytes.len() {
            return Err(malformed);
        }
        let head = Head::decode(first).ok_or(malformed)?;
        let [_, data, parameters] = head.split(rest).ok_or(malformed)?;
        match head.kind {
            ACCEPTED => Ok(Answer::Accepted(head.hello(data), parameters.to_vec())),
            // An answer that carries no hello has exactly one encoding.
            _ if head.hello(&[]) != nobody() => Err(malformed),
            kind => Rejection::decode(kind, data).map(Answer::Refused).ok_or(malformed),
        }
    }
}

/// Checks that a message can carry parts of these lengths.
///
/// # Errors
/// [`Error::InvalidParameter`].
pub fn fits(discriminator: &[u8], hello: &Hello, parameters: &[u8]) -> Result<(), Error> {
    let bounds = [
        ("a discriminator", discriminator.len(), MAX_DISCRIMINATOR),
        ("private data", hello.private_data.len(), MAX_PRIVATE),
        ("a transport's parameters", parameters.len(), MAX_PARAMETERS),
    ];
    match bounds.into_iter().find(|(_, len, most)| len > most) {
        Some((what, len, most)) => {
            Err(Error::InvalidParameter(format!("{what} of {len} bytes, at most {most}")))
        }
        None => Ok(()),
    }
}

/// The hello field of a refusal, which has none.
fn nobody() -> Hello {
    Hello {
        reliability: Reliability::Unreliable,
        writable_ptag: None,
        readable_ptag: None,
        private_data: Vec::new(),
    }
}

/// Encodes a head. `lens`: lengths of the parts that follow, in their order.
fn head(kind: u8, hello: &Hello, lens: [usize; 3]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD + lens.iter().sum::<usize>());
    out.extend([kind, hello.reliability as u8]);
    for len in lens {
        out.extend((len as u16).to_le_bytes());
    }
    for ptag in [hello.writable_ptag, hello.readable_ptag] {
        out.extend(ptag.map_or(0, |ptag| ptag.0).to_le_bytes());
    }
    out
}

/// First bytes of a Request or an Answer.
struct Head {
    kind: u8,
    reliability: Reliability,
    lens: [usize; 3],
    tags: [u32; 2],
}

impl Head {
    fn decode(bytes: &[u8; HEAD]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let [kind, level] = reader.array()?;
        let reliability = match level {
            0 => Reliability::Unreliable,
            1 => Reliability::Delivery,
            2 => Reliability::Reception,
            _ => return None,
        };
        let lens = [reader.u16()?.into(), reader.u16()?.into(), reader.u16()?.into()];
        Some(Head { kind, reliability, lens, tags: [reader.u32()?, reader.u32()?] })
    }

    /// Length of the whole message, if no part is longer than its limit.
    fn len(&self, limits: [usize; 3]) -> Option<usize> {
        let within = self.lens.iter().zip(limits).all(|(len, limit)| *len <= limit);
        within.then(|| HEAD + self.lens.iter().sum::<usize>())
    }

    /// Splits `rest` into the parts that follow the head.
    fn split<'a>(&self, rest: &'a [u8]) -> Option<[&'a [u8]; 3]> {
        let (first, rest) = rest.split_at_checked(self.lens[0])?;
        let (second, third) = rest.split_at_checked(self.lens[1])?;
        Some([first, second, third])
    }

    fn hello(&self, private_data: &[u8]) -> Hello {
        let [writable_ptag, readable_ptag] = self.tags.map(|tag| (tag != 0).then_some(Ptag(tag)));
        let (reliability, private_data) = (self.reliability, private_data.to_vec());
        Hello { reliability, writable_ptag, readable_ptag, private_data }
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }
    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }
    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
}

#[cfg(test)]
mod tests;
