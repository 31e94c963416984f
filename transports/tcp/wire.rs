//! What travels on a fresh TCP connection before it carries a VI. Everything decoded here comes from a stranger, or from
//! another process of the job, and is checked.
//!
//! Numbers are little-endian. Each message has a length that is known before it is read, so that nothing is read beyond it:
//! what follows belongs to the connection.
//!
//! ```text
//! Meet     0     4      6      8                40                 connector's first words
//!          | uDtc| vers.| fram.| nonce          |
//! Prove    0     4      6      8                40                72  acceptor's answer
//!          | uDtc| vers.| fram.| nonce          | proof           |
//! Join     0                 32                                    connector's proof; its Request follows at once
//!          | proof           |
//! Request  0    1     2     4     6     8        12       16
//!          | 1  | rel | d   | p   | 0   | w.tag  | r.tag  | d bytes of discriminator, p bytes of private data
//! Answer   0    1     2     4     6     8        12       16
//!          | kind| rel| 0   | p   | 0   | w.tag  | r.tag  | p bytes of private data, or of a refusal's words
//! ```
//! `vers.`: [`VERSION`]. `fram.`: the version of the frames that follow, `udeck_wired`'s. A tag of 0: none.

use udeck_via::transport::Hello;
use udeck_via::{Ptag, Reliability};

/// Version of this hand-shake.
pub const VERSION: u16 = 1;
/// Longest discriminator.
pub const MAX_DISCRIMINATOR: usize = 512;
/// Longest private data.
pub const MAX_PRIVATE: usize = 1024;
/// Longest words of a refusal.
const MAX_TEXT: usize = 512;

/// Bytes of a [`Meet`].
pub const MEET: usize = 40;
/// Bytes of a [`Prove`].
pub const PROVE: usize = MEET + 32;
/// Bytes of a Join: a proof.
pub const JOIN: usize = 32;
/// Bytes of a Request or an Answer before what has a length of its own.
pub const HEAD: usize = 16;

const MAGIC: [u8; 4] = *b"uDtc";
const REQUEST: u8 = 1;

const _: () = assert!(MEET == 4 + 2 + 2 + 32 && HEAD == 1 + 1 + 3 * 2 + 2 * 4);

/// A number that nobody could foresee.
pub type Nonce = [u8; 32];
/// An HMAC-SHA-256.
pub type Proof = [u8; 32];

/// Which versions a process speaks: of the hand-shake, and of the frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    pub handshake: u16,
    pub frames: u16,
}

/// The first words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meet {
    pub versions: Versions,
    pub nonce: Nonce,
}

/// A connection request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub discriminator: Vec<u8>,
    pub hello: Hello,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Accepted(Hello),
    NoMatch,
    Rejected(String),
    Reliability,
}

/// Not a message of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed {0}")]
pub struct Malformed(pub &'static str);

impl Meet {
    pub fn encode(&self) -> [u8; MEET] {
        let mut out = [0; MEET];
        out[..4].copy_from_slice(&MAGIC);
        out[4..6].copy_from_slice(&self.versions.handshake.to_le_bytes());
        out[6..8].copy_from_slice(&self.versions.frames.to_le_bytes());
        out[8..].copy_from_slice(&self.nonce);
        out
    }

    /// # Errors
    /// [`Malformed`]: it is no process of ours.
    pub fn decode(bytes: &[u8; MEET]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        if reader.array::<4>() != Some(MAGIC) {
            return Err(Malformed("greeting"));
        }
        let mut fields = || {
            let versions = Versions { handshake: reader.u16()?, frames: reader.u16()? };
            Some(Meet { versions, nonce: reader.array()? })
        };
        fields().ok_or(Malformed("greeting"))
    }
}

/// The acceptor's first words: a greeting and its proof.
pub fn encode_prove(meet: &Meet, proof: &Proof) -> [u8; PROVE] {
    let mut out = [0; PROVE];
    out[..MEET].copy_from_slice(&meet.encode());
    out[MEET..].copy_from_slice(proof);
    out
}

/// # Errors
/// [`Malformed`]: it is no process of ours.
pub fn decode_prove(bytes: &[u8; PROVE]) -> Result<(Meet, Proof), Malformed> {
    let (meet, rest) = bytes.split_first_chunk::<MEET>().ok_or(Malformed("greeting"))?;
    let proof = rest.first_chunk::<32>().ok_or(Malformed("greeting"))?;
    Ok((Meet::decode(meet)?, *proof))
}

impl Request {
    /// Its bytes. Discriminator and private data are within their bounds.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = head(REQUEST, &self.hello, self.discriminator.len(), self.hello.private_data.len());
        out.extend(&self.discriminator);
        out.extend(&self.hello.private_data);
        out
    }

    /// How long the request with this head is.
    ///
    /// # Errors
    /// [`Malformed`], also when it is longer than a request may be.
    pub fn len_of(head: &[u8; HEAD]) -> Result<usize, Malformed> {
        let head = Head::decode(head).filter(|head| head.kind == REQUEST).ok_or(Malformed("request"))?;
        if head.discriminator > MAX_DISCRIMINATOR || head.private > MAX_PRIVATE {
            return Err(Malformed("request"));
        }
        Ok(HEAD + head.discriminator + head.private)
    }

    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let malformed = Malformed("request");
        let (first, rest) = bytes.split_first_chunk::<HEAD>().ok_or(malformed)?;
        if Self::len_of(first)? != bytes.len() {
            return Err(malformed);
        }
        let head = Head::decode(first).ok_or(malformed)?;
        let (discriminator, private_data) = rest.split_at_checked(head.discriminator).ok_or(malformed)?;
        let hello = head.hello(private_data).ok_or(malformed)?;
        Ok(Request { discriminator: discriminator.to_vec(), hello })
    }
}

impl Answer {
    /// Its bytes. Private data are within their bound; the words of a refusal are cut to theirs.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, text) = match self {
            Answer::Accepted(hello) => {
                let mut out = head(1, hello, 0, hello.private_data.len());
                out.extend(&hello.private_data);
                return out;
            }
            Answer::NoMatch => (2, ""),
            Answer::Rejected(text) => (3, text.as_str()),
            Answer::Reliability => (4, ""),
        };
        let end = (0..=MAX_TEXT.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        let mut out = head(kind, &nobody(), 0, end);
        out.extend(&text.as_bytes()[..end]);
        out
    }

    /// How long the answer with this head is.
    ///
    /// # Errors
    /// [`Malformed`], also when it is longer than an answer may be.
    pub fn len_of(head: &[u8; HEAD]) -> Result<usize, Malformed> {
        let head = Head::decode(head).ok_or(Malformed("answer"))?;
        let limit = match head.kind {
            1 => MAX_PRIVATE,
            3 => MAX_TEXT,
            2 | 4 => 0,
            _ => return Err(Malformed("answer")),
        };
        let fits = head.discriminator == 0 && head.private <= limit;
        if fits { Ok(HEAD + head.private) } else { Err(Malformed("answer")) }
    }

    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let malformed = Malformed("answer");
        let (first, rest) = bytes.split_first_chunk::<HEAD>().ok_or(malformed)?;
        if Self::len_of(first)? != bytes.len() {
            return Err(malformed);
        }
        let head = Head::decode(first).ok_or(malformed)?;
        match head.kind {
            1 => head.hello(rest).map(Answer::Accepted).ok_or(malformed),
            // Of those that carry no hello, there is one encoding only.
            _ if head.hello(&[]) != Some(nobody()) => Err(malformed),
            2 => Ok(Answer::NoMatch),
            3 => String::from_utf8(rest.to_vec()).map(Answer::Rejected).map_err(|_| malformed),
            _ => Ok(Answer::Reliability),
        }
    }
}

/// What stands where a refusal has no hello.
fn nobody() -> Hello {
    Hello {
        reliability: Reliability::Unreliable,
        writable_ptag: None,
        readable_ptag: None,
        private_data: Vec::new(),
    }
}

fn head(kind: u8, hello: &Hello, discriminator: usize, private: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEAD + discriminator + private);
    out.extend([kind, hello.reliability as u8]);
    for number in [discriminator, private, 0] {
        out.extend((number as u16).to_le_bytes());
    }
    for ptag in [hello.writable_ptag, hello.readable_ptag] {
        out.extend(ptag.map_or(0, |ptag| ptag.0).to_le_bytes());
    }
    out
}

/// The first bytes of a Request or an Answer.
struct Head {
    kind: u8,
    reliability: Reliability,
    discriminator: usize,
    private: usize,
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
        let (discriminator, private) = (reader.u16()?.into(), reader.u16()?.into());
        let unused = reader.u16()?;
        let head = Head { kind, reliability, discriminator, private, tags: [reader.u32()?, reader.u32()?] };
        (unused == 0).then_some(head)
    }

    fn hello(&self, private_data: &[u8]) -> Option<Hello> {
        let [writable_ptag, readable_ptag] = self.tags.map(|tag| (tag != 0).then_some(Ptag(tag)));
        let (reliability, private_data) = (self.reliability, private_data.to_vec());
        Some(Hello { reliability, writable_ptag, readable_ptag, private_data })
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hello() -> impl Strategy<Value = Hello> {
        let levels = [Reliability::Unreliable, Reliability::Delivery, Reliability::Reception];
        let ptag = || any::<u32>().prop_map(|ptag| (ptag != 0).then_some(Ptag(ptag)));
        let private = prop::collection::vec(any::<u8>(), 0..=MAX_PRIVATE);
        (prop::sample::select(levels.to_vec()), ptag(), ptag(), private).prop_map(
            |(reliability, writable_ptag, readable_ptag, private_data)| Hello {
                reliability,
                writable_ptag,
                readable_ptag,
                private_data,
            },
        )
    }

    fn request() -> impl Strategy<Value = Request> {
        (prop::collection::vec(any::<u8>(), 0..=MAX_DISCRIMINATOR), hello())
            .prop_map(|(discriminator, hello)| Request { discriminator, hello })
    }

    fn answer() -> impl Strategy<Value = Answer> {
        prop_oneof![
            hello().prop_map(Answer::Accepted),
            Just(Answer::NoMatch),
            Just(Answer::Reliability),
            "\\PC{0,100}".prop_map(Answer::Rejected),
        ]
    }

    fn first<const N: usize>(bytes: &[u8]) -> &[u8; N] {
        bytes.first_chunk().unwrap()
    }

    proptest! {
        #[test]
        fn prop_greetings_round_trip(handshake: u16, frames: u16, nonce: [u8; 32], proof: [u8; 32]) {
            let meet = Meet { versions: Versions { handshake, frames }, nonce };
            prop_assert_eq!(Meet::decode(&meet.encode()), Ok(meet));
            prop_assert_eq!(decode_prove(&encode_prove(&meet, &proof)), Ok((meet, proof)));
        }

        #[test]
        fn prop_requests_and_answers_round_trip(request in request(), answer in answer()) {
            let bytes = request.encode();
            prop_assert_eq!(Request::len_of(first(&bytes)), Ok(bytes.len()));
            prop_assert_eq!(Request::decode(&bytes), Ok(request));
            let bytes = answer.encode();
            prop_assert_eq!(Answer::len_of(first(&bytes)), Ok(bytes.len()));
            prop_assert_eq!(Answer::decode(&bytes), Ok(answer));
        }

        #[test]
        fn prop_any_bytes_decode_or_fail(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(request) = Request::decode(&bytes) {
                prop_assert_eq!(request.encode(), &bytes[..], "one encoding for each request");
            }
            if let Ok(answer) = Answer::decode(&bytes) {
                prop_assert_eq!(answer.encode(), &bytes[..], "one encoding for each answer");
            }
        }

        /// Heads that are nearly right: few bytes differ from one that is.
        #[test]
        fn prop_mutated_messages_decode_or_fail(request in request(), answer in answer(), at in 0..HEAD, value: u8) {
            let mut bytes = request.encode();
            bytes[at] = value;
            if let Ok(request) = Request::decode(&bytes) {
                prop_assert_eq!(request.encode(), &bytes[..]);
            }
            let mut bytes = answer.encode();
            bytes[at] = value;
            if let Ok(answer) = Answer::decode(&bytes) {
                prop_assert_eq!(answer.encode(), &bytes[..]);
            }
        }

        #[test]
        fn prop_what_is_cut_is_malformed(request in request(), cut: prop::sample::Index) {
            let bytes = request.encode();
            prop_assert!(Request::decode(&bytes[..cut.index(bytes.len())]).is_err());
        }
    }

    #[test]
    fn nobody_announces_more_than_may_come() {
        let mut bytes = [0; HEAD];
        bytes[0] = REQUEST;
        for (at, most) in [(2, MAX_DISCRIMINATOR), (4, MAX_PRIVATE)] {
            let mut bytes = bytes;
            bytes[at..at + 2].copy_from_slice(&(most as u16).to_le_bytes());
            assert_eq!(Request::len_of(&bytes), Ok(HEAD + most));
            bytes[at..at + 2].copy_from_slice(&(most as u16 + 1).to_le_bytes());
            assert!(Request::len_of(&bytes).is_err());
        }
        for kind in 0..=u8::MAX {
            let mut bytes = [0; HEAD];
            (bytes[0], bytes[4], bytes[5]) = (kind, 255, 255);
            assert!(Answer::len_of(&bytes).is_err());
        }
    }

    #[test]
    fn long_words_are_cut_between_letters() {
        let bytes = Answer::Rejected("µ".repeat(1000)).encode();
        assert_eq!(Answer::decode(&bytes), Ok(Answer::Rejected("µ".repeat(MAX_TEXT / 2))));
        let bytes = Answer::Rejected(format!("x{}", "µ".repeat(1000))).encode();
        assert_eq!(Answer::decode(&bytes).map(|_| bytes.len()), Ok(HEAD + MAX_TEXT - 1));
    }
}
