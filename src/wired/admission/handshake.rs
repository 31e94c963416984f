//! Both ends of a fresh connection prove the job's secret before anything else is read; then one asks, the other answers.
//!
//! ```text
//! connector                        acceptor
//!   Meet(protocol, nonce c)    ->
//!                              <-  Prove(protocol, nonce a, HMAC(secret, "acceptor", versions, protocol, c, a))
//!   Join(HMAC(secret, "connector", versions, protocol, c, a)), Request  ->
//!                              <-  Answer
//! ```
//! Who has heard another's exchange cannot repeat it: both nonces are in every proof, and one of them is always fresh. The
//! acceptor keeps no more than the bytes of one message of a connector that has proved nothing, 48 at most. Two that speak
//! different protocols, or versions, tell each other so before anybody proves anything.
//!
//! Sans-I/O: each side says how many bytes it [wants](Acceptor::wants), is fed so many at most, and says what to do.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use super::wire::{
    Answer, FRONT, HEAD, JOIN, MEET, Malformed, Meet, Nonce, PROVE, Proof, Protocol, Request, VERSION,
    Versions, decode_prove, encode_prove,
};

/// Why a connection was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The other side is of another build.
    #[error(
        "it speaks version {}.{} of the {} protocol, this process {VERSION}.{}: build both from one version",
        theirs.admission, theirs.protocol, ours.name(), ours.version()
    )]
    Version {
        /// What this side speaks.
        ours: Protocol,
        /// What the other side speaks.
        theirs: Versions,
    },
    /// The other side is a NIC of another transport.
    #[error(
        "it is a NIC of the {} transport, and this one of {}: each reaches its own kind only",
        theirs.name(), ours.name()
    )]
    Protocol {
        /// What this side speaks.
        ours: Protocol,
        /// What the other side speaks.
        theirs: Protocol,
    },
    /// The other side's proof is none.
    #[error("it does not know this job's secret")]
    Secret,
    /// The other side says what no side says.
    #[error("it is no process of this library, or of this job: {0}")]
    Malformed(#[from] Malformed),
}

/// Bytes of a message that has a length.
#[derive(Debug, Default)]
struct Inbox(Vec<u8>);

impl Inbox {
    /// Adds what came, no more than is missing of `len`. The message, once it is whole.
    fn take(&mut self, bytes: &mut &[u8], len: usize) -> Option<Vec<u8>> {
        self.top_up(bytes, len).then(|| std::mem::take(&mut self.0))
    }

    /// As [`Inbox::take`], of a message whose beginning tells its length: both beginning and message stay.
    fn top_up(&mut self, bytes: &mut &[u8], len: usize) -> bool {
        let missing = len.saturating_sub(self.0.len());
        let (now, later) = bytes.split_at(missing.min(bytes.len()));
        self.0.extend(now);
        *bytes = later;
        self.0.len() == len
    }
}

/// The side that was called.
pub struct Acceptor {
    keys: Keys,
    nonce: Nonce,
    stage: Stage,
    inbox: Inbox,
}

#[derive(Debug)]
enum Stage {
    Front,
    Meet,
    Join { theirs: Nonce },
    RequestHead,
    Request { len: usize },
    Over,
}

/// What an acceptor does next.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// Waits for more.
    Nothing,
    /// Sends this.
    Send([u8; PROVE]),
    /// Finds who answers this.
    Request(Request),
}

impl Acceptor {
    /// `nonce`: fresh.
    pub fn new(secret: [u8; 32], protocol: Protocol, nonce: Nonce) -> Self {
        Acceptor { keys: Keys { secret, protocol }, nonce, stage: Stage::Front, inbox: Inbox::default() }
    }

    /// Bytes that the message under way still lacks. What comes after it belongs to somebody else.
    pub fn wants(&self) -> usize {
        let len = match self.stage {
            Stage::Front => FRONT,
            Stage::Meet => MEET,
            Stage::Join { .. } => JOIN,
            Stage::RequestHead => HEAD,
            Stage::Request { len } => len,
            Stage::Over => 0,
        };
        len.saturating_sub(self.inbox.0.len())
    }

    /// Whether the connector has proved the secret.
    pub fn is_proven(&self) -> bool {
        matches!(self.stage, Stage::RequestHead | Stage::Request { .. } | Stage::Over)
    }

    /// Feeds at most as many bytes as it [wants](Acceptor::wants).
    ///
    /// # Errors
    /// Why to hang up, perhaps after [`Acceptor::last_words`].
    pub fn input(&mut self, mut bytes: &[u8]) -> Result<Heard, Refusal> {
        let bytes = &mut bytes;
        match self.stage {
            Stage::Front => {
                if self.inbox.top_up(bytes, FRONT) {
                    self.keys.check_front(&self.inbox.0)?;
                    self.stage = Stage::Meet;
                }
                Ok(Heard::Nothing)
            }
            Stage::Meet => {
                let Some(meet) = self.inbox.take(bytes, MEET) else { return Ok(Heard::Nothing) };
                let meet = Meet::decode(exactly(&meet)?)?;
                self.keys.check_protocol(&meet)?;
                let proof = self.keys.prove(b"acceptor", &meet.nonce, &self.nonce);
                self.stage = Stage::Join { theirs: meet.nonce };
                let own = Meet { protocol: self.keys.protocol, nonce: self.nonce };
                Ok(Heard::Send(encode_prove(&own, &proof)))
            }
            Stage::Join { theirs } => {
                let Some(proof) = self.inbox.take(bytes, JOIN) else { return Ok(Heard::Nothing) };
                self.keys.check(exactly(&proof)?, b"connector", &theirs, &self.nonce)?;
                self.stage = Stage::RequestHead;
                Ok(Heard::Nothing)
            }
            Stage::RequestHead => {
                if !self.inbox.top_up(bytes, HEAD) {
                    return Ok(Heard::Nothing);
                }
                let len = Request::len_of(exactly(&self.inbox.0)?)?;
                self.stage = Stage::Request { len };
                // There may be no more to come.
                self.finish(bytes, len)
            }
            Stage::Request { len } => self.finish(bytes, len),
            Stage::Over => Ok(Heard::Nothing),
        }
    }

    fn finish(&mut self, bytes: &mut &[u8], len: usize) -> Result<Heard, Refusal> {
        let Some(request) = self.inbox.take(bytes, len) else { return Ok(Heard::Nothing) };
        self.stage = Stage::Over;
        Ok(Heard::Request(Request::decode(&request)?))
    }

    /// What a connector of another version or transport is told, so that it can say so: who we are, and no proof.
    pub fn last_words(refusal: &Refusal) -> Option<[u8; PROVE]> {
        match refusal {
            Refusal::Version { ours, .. } | Refusal::Protocol { ours, .. } => {
                Some(encode_prove(&Meet { protocol: *ours, nonce: [0; 32] }, &[0; 32]))
            }
            Refusal::Secret | Refusal::Malformed(_) => None,
        }
    }
}

/// The side that calls.
pub struct Connector {
    keys: Keys,
    nonce: Nonce,
    request: Vec<u8>,
    stage: Asking,
    inbox: Inbox,
}

#[derive(Debug)]
enum Asking {
    Front,
    Prove,
    AnswerHead,
    Answer { len: usize },
    Over,
}

/// What a connector does next.
#[derive(Debug, PartialEq, Eq)]
pub enum Told {
    /// Waits for more.
    Nothing,
    /// Sends this.
    Send(Vec<u8>),
    /// The answer: what follows belongs to the connection.
    Answer(Answer),
}

impl Connector {
    /// The connector, and its first words. `nonce`: fresh.
    pub fn new(secret: [u8; 32], protocol: Protocol, nonce: Nonce, request: &Request) -> (Self, [u8; MEET]) {
        let meet = Meet { protocol, nonce };
        let (keys, request) = (Keys { secret, protocol }, request.encode());
        (Connector { keys, nonce, request, stage: Asking::Front, inbox: Inbox::default() }, meet.encode())
    }

    /// As [`Acceptor::wants`].
    pub fn wants(&self) -> usize {
        let len = match self.stage {
            Asking::Front => FRONT,
            Asking::Prove => PROVE,
            Asking::AnswerHead => HEAD,
            Asking::Answer { len } => len,
            Asking::Over => 0,
        };
        len.saturating_sub(self.inbox.0.len())
    }

    /// Whether the acceptor has proved the secret, and was asked.
    pub fn has_asked(&self) -> bool {
        !matches!(self.stage, Asking::Front | Asking::Prove)
    }

    /// Feeds at most as many bytes as it [wants](Connector::wants).
    ///
    /// # Errors
    /// Why to hang up.
    pub fn input(&mut self, mut bytes: &[u8]) -> Result<Told, Refusal> {
        let bytes = &mut bytes;
        match self.stage {
            Asking::Front => {
                if self.inbox.top_up(bytes, FRONT) {
                    self.keys.check_front(&self.inbox.0)?;
                    self.stage = Asking::Prove;
                }
                Ok(Told::Nothing)
            }
            Asking::Prove => {
                let Some(prove) = self.inbox.take(bytes, PROVE) else { return Ok(Told::Nothing) };
                let (meet, proof) = decode_prove(exactly(&prove)?)?;
                self.keys.check_protocol(&meet)?;
                self.keys.check(&proof, b"acceptor", &self.nonce, &meet.nonce)?;
                let mut words = self.keys.prove(b"connector", &self.nonce, &meet.nonce).to_vec();
                words.append(&mut self.request);
                self.stage = Asking::AnswerHead;
                Ok(Told::Send(words))
            }
            Asking::AnswerHead => {
                if !self.inbox.top_up(bytes, HEAD) {
                    return Ok(Told::Nothing);
                }
                let len = Answer::len_of(exactly(&self.inbox.0)?)?;
                self.stage = Asking::Answer { len };
                self.finish(bytes, len)
            }
            Asking::Answer { len } => self.finish(bytes, len),
            Asking::Over => Ok(Told::Nothing),
        }
    }

    fn finish(&mut self, bytes: &mut &[u8], len: usize) -> Result<Told, Refusal> {
        let Some(answer) = self.inbox.take(bytes, len) else { return Ok(Told::Nothing) };
        self.stage = Asking::Over;
        Ok(Told::Answer(Answer::decode(&answer)?))
    }
}

fn exactly<const N: usize>(bytes: &[u8]) -> Result<&[u8; N], Malformed> {
    bytes.try_into().map_err(|_| Malformed("length"))
}

/// What one side has in common with those that it talks to.
struct Keys {
    secret: [u8; 32],
    protocol: Protocol,
}

impl Keys {
    /// Of a greeting, before more of it is read: another version's may be shorter.
    fn check_front(&self, front: &[u8]) -> Result<(), Refusal> {
        let theirs = Meet::versions(exactly(front)?)?;
        let same = theirs.admission == VERSION;
        if same { Ok(()) } else { Err(Refusal::Version { ours: self.protocol, theirs }) }
    }

    fn check_protocol(&self, meet: &Meet) -> Result<(), Refusal> {
        let (ours, theirs) = (self.protocol, meet.protocol);
        if theirs.name() != ours.name() {
            return Err(Refusal::Protocol { ours, theirs });
        }
        if theirs.version() != ours.version() {
            let theirs = Versions { admission: VERSION, protocol: theirs.version() };
            return Err(Refusal::Version { ours, theirs });
        }
        Ok(())
    }

    fn prove(&self, role: &[u8], connector: &Nonce, acceptor: &Nonce) -> Proof {
        let mut hmac = Hmac::<Sha256>::new_from_slice(&self.secret).expect("HMAC takes keys of any length");
        for part in [role, &VERSION.to_le_bytes(), &self.protocol.encode(), connector, acceptor] {
            hmac.update(part);
        }
        hmac.finalize().into_bytes().into()
    }

    fn check(&self, proof: &Proof, role: &[u8], connector: &Nonce, acceptor: &Nonce) -> Result<(), Refusal> {
        let expected = self.prove(role, connector, acceptor);
        if bool::from(expected.ct_eq(proof)) { Ok(()) } else { Err(Refusal::Secret) }
    }
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
