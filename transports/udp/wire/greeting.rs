//! How connections are made.
//!
//! ```text
//! connector                                              acceptor
//!   Meet(versions, number c, nonce n, claim)         ->               keeps nothing
//!                                                    <-  Prove(versions, cookie)
//!   Ask(c, n, cookie, claim, round trip, request)    ->               keeps the request
//!                                                    <-  Answer(number a, hello | why not)
//!   Withdraw(c, n, cookie, claim)                    ->               (given up while waiting for the answer)
//! ```
//! The claim: which rank calls which, or that somebody of the job calls. Of another process than the one that is called, a
//! Prove has neither cookie nor proof.
//!
//! ```text
//!       0         1         2         3         4         5         6         7
//!      +---------+---------+---------+---------+---------+---------+---------+---------+
//!    0 | 1       | kind    | 0       | 0       | checksum                              |
//!    8 | connection: 0 towards the acceptor, c towards the connector                   |
//!   16 | proof: 32 bytes (Meet: zeros)                                                 |
//!      +---------+---------+---------+---------+---------+---------+---------+---------+
//!   48 | Meet: handshake and frames version, 0, c, n, claim, zeros up to 160 bytes     |
//!      | Prove: handshake and frames version, 0, cookie                                |
//!      | Ask: c, n, cookie, claim, µs there and back, 0, process, hello, discriminator, private
//!      | Answer: a, code, process and hello or nothing, private data or words          |
//!      | Withdraw: c, n, cookie, claim                                                 |
//!      +---------+---------+---------+---------+---------+---------+---------+---------+
//! process: | pid namespace (u64)   | pid     | 0 (u32) |
//! hello: | level   | 0       | discriminator's length | private's length | 0 (u16) | writable and readable tag (u32) |
//! ```

use std::time::Duration;

use udeck_via::auth::Claim;
pub use udeck_via::auth::{Nonce, Proof};
use udeck_via::transport::Hello;
use udeck_via::{Ptag, Reliability};

use super::{FRONT, Kind, Malformed, Opened, Reader, front, seal};

/// Longest discriminator: with it and the longest private data, a request fits every path's datagrams.
pub const MAX_DISCRIMINATOR: usize = 320;
/// Longest private data.
pub const MAX_PRIVATE: usize = 640;
/// Longest words of a refusal.
const MAX_TEXT: usize = 512;
const PROOF: usize = 32;
/// Bytes before a greeting's own.
const HEAD: usize = FRONT + PROOF;
/// Bytes of a Meet: more than it is answered with, so that nobody gains by asking in another's name.
pub const MEET: usize = 160;
const HELLO: usize = 16;
const PROCESS: usize = 16;
const _: () =
    assert!(HEAD + 88 + PROCESS + HELLO + MAX_DISCRIMINATOR + MAX_PRIVATE <= crate::flow::BASE_DATAGRAM);

/// What a process speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// Greetings, packets.
    pub datagrams: u16,
    /// Frames in streams.
    pub frames: u16,
}

/// The connector's first words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meet {
    /// What it speaks.
    pub versions: Versions,
    /// The number that it gives the connection.
    pub number: u64,
    /// Fresh.
    pub nonce: Nonce,
    /// Who calls whom.
    pub claim: Claim,
}

/// The acceptor's first words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prove {
    /// What it speaks.
    pub versions: Versions,
    /// To be brought back.
    pub cookie: Nonce,
}

/// Names an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// [`Meet::number`].
    pub number: u64,
    /// [`Meet::nonce`].
    pub nonce: Nonce,
    /// [`Prove::cookie`].
    pub cookie: Nonce,
    /// [`Meet::claim`].
    pub claim: Claim,
}

/// Who has a NIC, for peers of its host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// Its pid namespace, and host: a number that no other one has. 0: not known.
    pub namespace: u64,
    /// Its number there.
    pub pid: u32,
}

/// A connection request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Which exchange.
    pub exchange: Exchange,
    /// How long a datagram and its answer took.
    pub round_trip: Duration,
    /// Who asks.
    pub process: Process,
    /// At which listener.
    pub discriminator: Vec<u8>,
    /// What the requester says of itself.
    pub hello: Hello,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Connected.
    Accepted {
        /// The number that the acceptor gives the connection.
        number: u64,
        /// Who it is.
        process: Process,
        /// What it says of itself.
        hello: Hello,
    },
    /// Nobody listens there.
    NoMatch,
    /// The listener does not want to, and says why.
    Rejected(String),
    /// The VIs have different levels.
    Reliability,
}

/// The requester has given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Withdraw(pub Exchange);

/// A greeting's parts: the proof is over the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting<'a> {
    /// Which it is.
    pub kind: Kind,
    /// To whom, as [`Opened::connection`].
    pub connection: u64,
    /// That its sender is who it says.
    pub proof: Proof,
    /// The rest.
    pub body: &'a [u8],
}

impl<'a> Greeting<'a> {
    /// Decodes what [`super::open`] has checked.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(opened: &Opened<'a>) -> Result<Self, Malformed> {
        let mut reader = Reader(opened.rest);
        let proof = reader.array()?;
        if opened.flags != 0 || opened.ranges != 0 {
            return Err(Malformed::Protocol("a greeting with flags"));
        }
        Ok(Greeting { kind: opened.kind, connection: opened.connection, proof, body: reader.0 })
    }

    /// The datagram.
    pub fn encode(&self) -> Vec<u8> {
        let mut datagram = Vec::with_capacity(HEAD + self.body.len());
        datagram.extend(front(self.kind, 0, 0, self.connection));
        datagram.extend(self.proof);
        datagram.extend(self.body);
        seal(&mut datagram, []);
        datagram
    }
}

impl Meet {
    /// Its body.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = versions(self.versions);
        body.extend(self.number.to_le_bytes());
        body.extend(self.nonce);
        body.extend(self.claim.encode());
        body.resize(MEET - HEAD, 0);
        body
    }

    /// # Errors
    /// [`Malformed`].
    pub fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(body);
        if body.len() != MEET - HEAD {
            return Err(Malformed::Short);
        }
        let (versions, number) = (reader.versions()?, reader.u64()?);
        let (nonce, claim) = (reader.array()?, Claim::decode(reader.array()?));
        Ok(Meet { versions, number, nonce, claim })
    }
}

impl Prove {
    /// Its body.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = versions(self.versions);
        body.extend(self.cookie);
        body
    }

    /// # Errors
    /// [`Malformed`].
    pub fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(body);
        let prove = Prove { versions: reader.versions()?, cookie: reader.array()? };
        reader.end(prove)
    }
}

impl Exchange {
    fn encode(&self) -> Vec<u8> {
        [&self.number.to_le_bytes()[..], &self.nonce, &self.cookie, &self.claim.encode()].concat()
    }
}

impl Ask {
    /// Its body.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = self.exchange.encode();
        let round_trip = u32::try_from(self.round_trip.as_micros()).unwrap_or(u32::MAX);
        body.extend(round_trip.to_le_bytes());
        body.extend([0; 4]);
        put_process(&mut body, self.process);
        put_hello(&mut body, &self.hello, &self.discriminator);
        body
    }

    /// # Errors
    /// [`Malformed`].
    pub fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(body);
        let exchange = reader.exchange()?;
        let round_trip = Duration::from_micros(u64::from(reader.u32()?));
        reader.zeros(4)?;
        let process = reader.process()?;
        let (hello, discriminator) = reader.hello()?;
        reader.end(Ask { exchange, round_trip, process, discriminator, hello })
    }
}

impl Answer {
    /// Its body.
    pub fn encode(&self) -> Vec<u8> {
        let (code, number) = match self {
            Answer::Accepted { number, .. } => (1u64, *number),
            Answer::NoMatch => (2, 0),
            Answer::Rejected(_) => (3, 0),
            Answer::Reliability => (4, 0),
        };
        let mut body = [number.to_le_bytes(), code.to_le_bytes()].concat();
        match self {
            Answer::Accepted { process, hello, .. } => {
                put_process(&mut body, *process);
                put_hello(&mut body, hello, &[]);
            }
            Answer::Rejected(text) => {
                let fits = |at: &usize| text.is_char_boundary(*at);
                let end = (0..=MAX_TEXT.min(text.len())).rev().find(fits).unwrap_or(0);
                body.extend(&text.as_bytes()[..end]);
            }
            Answer::NoMatch | Answer::Reliability => {}
        }
        body
    }

    /// # Errors
    /// [`Malformed`].
    pub fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(body);
        let (number, code) = (reader.u64()?, reader.u64()?);
        match (code, number) {
            (1, 1..) => {
                let process = reader.process()?;
                let (hello, nothing) = reader.hello()?;
                if !nothing.is_empty() {
                    return Err(Malformed::Protocol("an answer with a discriminator"));
                }
                reader.end(Answer::Accepted { number, process, hello })
            }
            (2, 0) => reader.end(Answer::NoMatch),
            (3, 0) if reader.0.len() <= MAX_TEXT => {
                let text =
                    std::str::from_utf8(reader.0).map_err(|_| Malformed::Protocol("words that are none"))?;
                Ok(Answer::Rejected(text.to_owned()))
            }
            (4, 0) => reader.end(Answer::Reliability),
            _ => Err(Malformed::Protocol("an answer that is not known")),
        }
    }
}

impl Withdraw {
    /// Its body.
    pub fn encode(&self) -> Vec<u8> {
        self.0.encode()
    }

    /// # Errors
    /// [`Malformed`].
    pub fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(body);
        let exchange = reader.exchange()?;
        reader.end(Withdraw(exchange))
    }
}

fn versions(versions: Versions) -> Vec<u8> {
    let mut body = Vec::with_capacity(MEET - HEAD);
    body.extend(versions.datagrams.to_le_bytes());
    body.extend(versions.frames.to_le_bytes());
    body.extend([0; 4]);
    body
}

fn put_process(body: &mut Vec<u8>, process: Process) {
    body.extend(process.namespace.to_le_bytes());
    body.extend(process.pid.to_le_bytes());
    body.extend([0; 4]);
}

fn put_hello(body: &mut Vec<u8>, hello: &Hello, discriminator: &[u8]) {
    body.extend([hello.reliability as u8, 0]);
    for number in [discriminator.len(), hello.private_data.len(), 0] {
        body.extend((number as u16).to_le_bytes());
    }
    for ptag in [hello.writable_ptag, hello.readable_ptag] {
        body.extend(ptag.map_or(0, |ptag| ptag.0).to_le_bytes());
    }
    body.extend(discriminator);
    body.extend(&hello.private_data);
}

impl Reader<'_> {
    fn u16(&mut self) -> Result<usize, Malformed> {
        Ok(u16::from_le_bytes(self.array()?).into())
    }

    fn zeros(&mut self, count: usize) -> Result<(), Malformed> {
        if self.bytes(count)?.iter().any(|byte| *byte != 0) {
            return Err(Malformed::Protocol("something where nothing belongs"));
        }
        Ok(())
    }

    fn bytes(&mut self, len: usize) -> Result<&[u8], Malformed> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(head)
    }

    fn end<T>(&self, all: T) -> Result<T, Malformed> {
        if self.0.is_empty() { Ok(all) } else { Err(Malformed::Protocol("a greeting that is too long")) }
    }

    fn versions(&mut self) -> Result<Versions, Malformed> {
        let mut version = || Ok(u16::from_le_bytes(self.array()?));
        let versions = Versions { datagrams: version()?, frames: version()? };
        self.zeros(4)?;
        Ok(versions)
    }

    fn exchange(&mut self) -> Result<Exchange, Malformed> {
        let (number, nonce, cookie) = (self.u64()?, self.array()?, self.array()?);
        Ok(Exchange { number, nonce, cookie, claim: Claim::decode(self.array()?) })
    }

    fn process(&mut self) -> Result<Process, Malformed> {
        let process = Process { namespace: self.u64()?, pid: self.u32()? };
        self.zeros(4)?;
        Ok(process)
    }

    fn hello(&mut self) -> Result<(Hello, Vec<u8>), Malformed> {
        let [level, unused] = self.array()?;
        let reliability = match (level, unused) {
            (0, 0) => Reliability::Unreliable,
            (1, 0) => Reliability::Delivery,
            (2, 0) => Reliability::Reception,
            _ => return Err(Malformed::Protocol("a level that is not known")),
        };
        let (discriminator, private) = (self.u16()?, self.u16()?);
        self.zeros(2)?;
        if discriminator > MAX_DISCRIMINATOR || private > MAX_PRIVATE {
            return Err(Malformed::Protocol("a hello that is too long"));
        }
        let mut tag = || self.u32().map(|tag| (tag != 0).then_some(Ptag(tag)));
        let (writable_ptag, readable_ptag) = (tag()?, tag()?);
        let discriminator = self.bytes(discriminator)?.to_vec();
        let private_data = self.bytes(private)?.to_vec();
        Ok((Hello { reliability, writable_ptag, readable_ptag, private_data }, discriminator))
    }
}

#[cfg(test)]
mod tests {
    use super::super::open;
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

    fn exchange() -> impl Strategy<Value = Exchange> {
        any::<(u64, Nonce, Nonce, [u8; 8])>().prop_map(|(number, nonce, cookie, claim)| Exchange {
            number,
            nonce,
            cookie,
            claim: Claim::decode(claim),
        })
    }

    fn process() -> impl Strategy<Value = Process> {
        any::<(u64, u32)>().prop_map(|(namespace, pid)| Process { namespace, pid })
    }

    fn ask() -> impl Strategy<Value = Ask> {
        let discriminator = prop::collection::vec(any::<u8>(), 0..=MAX_DISCRIMINATOR);
        (exchange(), any::<u32>(), process(), discriminator, hello()).prop_map(
            |(exchange, micros, process, discriminator, hello)| Ask {
                exchange,
                process,
                round_trip: Duration::from_micros(micros.into()),
                discriminator,
                hello,
            },
        )
    }

    fn answer() -> impl Strategy<Value = Answer> {
        prop_oneof![
            (1u64.., process(), hello()).prop_map(|(number, process, hello)| Answer::Accepted {
                number,
                process,
                hello
            }),
            Just(Answer::NoMatch),
            Just(Answer::Reliability),
            "\\PC{0,100}".prop_map(Answer::Rejected),
        ]
    }

    proptest! {
        #[test]
        fn prop_greetings_round_trip(
            numbers: (u16, u16, u64), nonce: Nonce, exchange in exchange(), ask in ask(), answer in answer(),
        ) {
            let versions = Versions { datagrams: numbers.0, frames: numbers.1 };
            let meet = Meet { versions, number: numbers.2, nonce, claim: exchange.claim };
            prop_assert_eq!(Meet::decode(&meet.encode()), Ok(meet));
            let prove = Prove { versions, cookie: nonce };
            prop_assert_eq!(Prove::decode(&prove.encode()), Ok(prove));
            prop_assert_eq!(Withdraw::decode(&Withdraw(exchange).encode()), Ok(Withdraw(exchange)));
            prop_assert_eq!(Ask::decode(&ask.encode()), Ok(ask.clone()));
            prop_assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
            let greeting = Greeting { kind: Kind::Ask, connection: 0, proof: nonce, body: &ask.encode() };
            let datagram = greeting.encode();
            prop_assert!(datagram.len() <= crate::flow::BASE_DATAGRAM);
            prop_assert_eq!(Greeting::decode(&open(&datagram).unwrap()), Ok(greeting));
            prop_assert!(HEAD + prove.encode().len() <= MEET, "no amplifier");
        }

        #[test]
        fn prop_any_bytes_decode_or_fail(ask in ask(), at: prop::sample::Index, value: u8, cut: prop::sample::Index) {
            let mut bytes = ask.encode();
            let at = at.index(bytes.len());
            bytes[at] = value;
            bytes.truncate(bytes.len() - cut.index(bytes.len()) * usize::from(value & 1));
            if let Ok(ask) = Ask::decode(&bytes) {
                prop_assert_eq!(ask.encode(), bytes.clone(), "one encoding for each");
            }
            if let Ok(answer) = Answer::decode(&bytes) {
                prop_assert_eq!(answer.encode(), bytes);
            }
        }
    }
}
