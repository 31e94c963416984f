//! Both ends of a fresh connection prove the job's secret before anything else is read; then one asks, the other answers.
//!
//! ```text
//! connector                        acceptor
//!   Meet(versions, nonce c)    ->
//!                              <-  Prove(versions, nonce a, HMAC(secret, "acceptor", versions, c, a))
//!   Join(HMAC(secret, "connector", versions, c, a)), Request  ->
//!                              <-  Answer
//! ```
//! Who has heard another's exchange cannot repeat it: both nonces are in every proof, and one of them is always fresh. The
//! acceptor keeps no more than the bytes of one message of a connector that has proved nothing, 40 at most.
//!
//! Sans-I/O: each side says how many bytes it [wants](Acceptor::wants), is fed so many at most, and says what to do.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::wire::{
    Answer, HEAD, JOIN, MEET, Malformed, Meet, Nonce, PROVE, Proof, Request, VERSION, Versions, decode_prove,
    encode_prove,
};

/// What this build speaks.
pub const OURS: Versions = Versions { handshake: VERSION, frames: udeck_wired::wire::VERSION };

/// Why a connection was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error(
        "it speaks version {}.{} of the TCP protocol, this process {}.{}: build both from one version",
        theirs.handshake, theirs.frames, OURS.handshake, OURS.frames
    )]
    Version { theirs: Versions },
    #[error("it does not know this job's secret")]
    Secret,
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
#[derive(Debug)]
pub struct Acceptor {
    secret: [u8; 32],
    nonce: Nonce,
    stage: Stage,
    inbox: Inbox,
}

#[derive(Debug)]
enum Stage {
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
    pub fn new(secret: [u8; 32], nonce: Nonce) -> Self {
        Acceptor { secret, nonce, stage: Stage::Meet, inbox: Inbox::default() }
    }

    /// Bytes that the message under way still lacks. What comes after it belongs to somebody else.
    pub fn wants(&self) -> usize {
        let len = match self.stage {
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
            Stage::Meet => {
                let Some(meet) = self.inbox.take(bytes, MEET) else { return Ok(Heard::Nothing) };
                let meet = Meet::decode(exactly(&meet)?)?;
                if meet.versions != OURS {
                    return Err(Refusal::Version { theirs: meet.versions });
                }
                let proof = prove(&self.secret, b"acceptor", &meet.nonce, &self.nonce);
                self.stage = Stage::Join { theirs: meet.nonce };
                let own = Meet { versions: OURS, nonce: self.nonce };
                Ok(Heard::Send(encode_prove(&own, &proof)))
            }
            Stage::Join { theirs } => {
                let Some(proof) = self.inbox.take(bytes, JOIN) else { return Ok(Heard::Nothing) };
                check(exactly(&proof)?, &self.secret, b"connector", &theirs, &self.nonce)?;
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

    /// What a connector of another version is told, so that it can say so: our versions, and no proof.
    pub fn last_words(refusal: &Refusal) -> Option<[u8; PROVE]> {
        let silent = Meet { versions: OURS, nonce: [0; 32] };
        matches!(refusal, Refusal::Version { .. }).then(|| encode_prove(&silent, &[0; 32]))
    }
}

/// The side that calls.
#[derive(Debug)]
pub struct Connector {
    secret: [u8; 32],
    nonce: Nonce,
    request: Vec<u8>,
    stage: Asking,
    inbox: Inbox,
}

#[derive(Debug)]
enum Asking {
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
    /// The connector, and its first words.
    pub fn new(secret: [u8; 32], nonce: Nonce, request: &Request) -> (Self, [u8; MEET]) {
        let meet = Meet { versions: OURS, nonce };
        let (request, inbox) = (request.encode(), Inbox::default());
        (Connector { secret, nonce, request, stage: Asking::Prove, inbox }, meet.encode())
    }

    /// As [`Acceptor::wants`].
    pub fn wants(&self) -> usize {
        let len = match self.stage {
            Asking::Prove => PROVE,
            Asking::AnswerHead => HEAD,
            Asking::Answer { len } => len,
            Asking::Over => 0,
        };
        len.saturating_sub(self.inbox.0.len())
    }

    /// Whether the acceptor has proved the secret, and was asked.
    pub fn has_asked(&self) -> bool {
        !matches!(self.stage, Asking::Prove)
    }

    /// Feeds at most as many bytes as it [wants](Connector::wants).
    ///
    /// # Errors
    /// Why to hang up.
    pub fn input(&mut self, mut bytes: &[u8]) -> Result<Told, Refusal> {
        let bytes = &mut bytes;
        match self.stage {
            Asking::Prove => {
                let Some(prove) = self.inbox.take(bytes, PROVE) else { return Ok(Told::Nothing) };
                let (meet, proof) = decode_prove(exactly(&prove)?)?;
                if meet.versions != OURS {
                    return Err(Refusal::Version { theirs: meet.versions });
                }
                check(&proof, &self.secret, b"acceptor", &self.nonce, &meet.nonce)?;
                let mut words = prove_bytes(&self.secret, &self.nonce, &meet.nonce);
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

fn prove_bytes(secret: &[u8; 32], connector: &Nonce, acceptor: &Nonce) -> Vec<u8> {
    prove(secret, b"connector", connector, acceptor).to_vec()
}

fn prove(secret: &[u8; 32], role: &[u8], connector: &Nonce, acceptor: &Nonce) -> Proof {
    let mut hmac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
    hmac.update(role);
    hmac.update(&OURS.handshake.to_le_bytes());
    hmac.update(&OURS.frames.to_le_bytes());
    hmac.update(connector);
    hmac.update(acceptor);
    hmac.finalize().into_bytes().into()
}

fn check(
    proof: &Proof,
    secret: &[u8; 32],
    role: &[u8],
    connector: &Nonce,
    acceptor: &Nonce,
) -> Result<(), Refusal> {
    let expected = prove(secret, role, connector, acceptor);
    if bool::from(expected.ct_eq(proof)) { Ok(()) } else { Err(Refusal::Secret) }
}

#[cfg(test)]
mod tests;
