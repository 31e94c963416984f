//! Hand-shake of a fresh connection, without I/O: both ends prove who they are before anything else is read; then one asks,
//! the other answers.
//!
//! ```text
//! connector                        acceptor
//!   Meet(protocol, claim, nonce c)  ->
//!                              <-  Prove(protocol, claim, nonce a, proof "acceptor" of version, c, a)
//!   Join(proof "connector" of version, c, a), Request  ->
//!                              <-  Answer
//! ```
//! The claim says which rank calls which, or that some process of the job calls. The proofs use the key that only the two
//! share ([`udeck_via::auth`]); they cover the protocol and the claim, too.
//!
//! An eavesdropper of another exchange cannot repeat it: both nonces are in every proof, and one of them is always fresh. For
//! a connector that has proved nothing, the acceptor keeps no more than the bytes of one message, 56 at most. Two sides of
//! different protocols, or versions, tell each other so before either proves anything.
//!
//! Each side says how many bytes it [wants](Acceptor::wants), is fed at most that many, and says what to do.

use udeck_via::RejectKind;
use udeck_via::auth::{Claim, Keys, Pair};

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
        /// The protocol that this side speaks.
        ours: Protocol,
        /// The versions that the other side speaks.
        theirs: Versions,
    },
    /// The other side is a NIC of another transport.
    #[error(
        "it is a NIC of the {} transport, and this one of {}: each reaches its own kind only",
        theirs.name(), ours.name()
    )]
    Protocol {
        /// The protocol that this side speaks.
        ours: Protocol,
        /// The protocol that the other side speaks.
        theirs: Protocol,
    },
    /// The other side's proof is wrong.
    #[error("it does not know this job's secret")]
    Secret,
    /// The other side does not prove to be the rank that it should be, or claims to be.
    #[error("{0}")]
    Identity(String),
    /// The callee is another rank than the one that was called.
    #[error("the call was for another process of the job")]
    OtherProcess {
        /// The protocol that this side speaks.
        ours: Protocol,
    },
    /// The other side sent bytes that no process of this library sends.
    #[error("the peer is not a process of this library or job: {0}")]
    Malformed(#[from] Malformed),
}

impl Refusal {
    /// The kind of the requester's error.
    pub(super) fn kind(&self) -> RejectKind {
        match self {
            Refusal::Version { .. } | Refusal::Protocol { .. } => RejectKind::Version,
            Refusal::Secret | Refusal::Identity(_) | Refusal::OtherProcess { .. } => RejectKind::Identity,
            Refusal::Malformed(_) => RejectKind::Failed,
        }
    }
}

/// Bytes of a message that is being received.
#[derive(Debug, Default)]
struct Inbox(Vec<u8>);

impl Inbox {
    /// Adds bytes that came, up to `len` in all. Returns the message once it is whole.
    fn take(&mut self, bytes: &mut &[u8], len: usize) -> Option<Vec<u8>> {
        self.top_up(bytes, len).then(|| std::mem::take(&mut self.0))
    }

    /// Adds bytes that came, up to `len` in all, and keeps them: the beginning of a message tells its length. Returns whether
    /// `len` bytes are there.
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
    protocol: Protocol,
    nonce: Nonce,
    stage: HandshakeStage,
    inbox: Inbox,
}

#[derive(Debug)]
enum HandshakeStage {
    Front,
    Meet,
    Join { pair: Pair, theirs: Nonce },
    RequestHead { peer: Option<u32> },
    Request { peer: Option<u32>, len: usize },
    Over { peer: Option<u32> },
}

/// Next action of an acceptor.
#[derive(Debug, PartialEq, Eq)]
pub enum AcceptStep {
    /// Waits for more.
    Nothing,
    /// Sends this.
    Send([u8; PROVE]),
    /// Finds who answers this.
    Request(Request),
}

impl Acceptor {
    /// Makes an acceptor. `nonce`: a fresh random number.
    pub fn new(keys: impl Into<Keys>, protocol: Protocol, nonce: Nonce) -> Self {
        Acceptor { keys: keys.into(), protocol, nonce, stage: HandshakeStage::Front, inbox: Inbox::default() }
    }

    /// The rank that the connector has proved to be; `None`: nothing is proved yet, or it is some process of the job.
    pub fn peer(&self) -> Option<u32> {
        match self.stage {
            HandshakeStage::RequestHead { peer }
            | HandshakeStage::Request { peer, .. }
            | HandshakeStage::Over { peer } => peer,
            HandshakeStage::Front | HandshakeStage::Meet | HandshakeStage::Join { .. } => None,
        }
    }

    /// Bytes that the current message still lacks. Bytes behind the message belong to another reader.
    pub fn wants(&self) -> usize {
        let len = match self.stage {
            HandshakeStage::Front => FRONT,
            HandshakeStage::Meet => MEET,
            HandshakeStage::Join { .. } => JOIN,
            HandshakeStage::RequestHead { .. } => HEAD,
            HandshakeStage::Request { len, .. } => len,
            HandshakeStage::Over { .. } => 0,
        };
        len.saturating_sub(self.inbox.0.len())
    }

    /// Whether the connector has proved who it is.
    pub fn is_proven(&self) -> bool {
        matches!(
            self.stage,
            HandshakeStage::RequestHead { .. } | HandshakeStage::Request { .. } | HandshakeStage::Over { .. }
        )
    }

    /// Feeds at most [`Acceptor::wants`] bytes.
    ///
    /// # Errors
    /// Why to hang up, perhaps after sending [`Acceptor::last_words`].
    pub fn input(&mut self, mut bytes: &[u8]) -> Result<AcceptStep, Refusal> {
        let bytes = &mut bytes;
        match &self.stage {
            HandshakeStage::Front => {
                if self.inbox.top_up(bytes, FRONT) {
                    check_front(self.protocol, &self.inbox.0)?;
                    self.stage = HandshakeStage::Meet;
                }
                Ok(AcceptStep::Nothing)
            }
            HandshakeStage::Meet => {
                let Some(meet) = self.inbox.take(bytes, MEET) else { return Ok(AcceptStep::Nothing) };
                let meet = Meet::decode(exactly(&meet)?)?;
                check_protocol(self.protocol, &meet)?;
                let other = Refusal::OtherProcess { ours: self.protocol };
                let pair = self.keys.answer(meet.claim).map_err(|_| other)?;
                let proof = prove(&pair, self.protocol, ACCEPTOR, &meet.nonce, &self.nonce);
                let own = Meet { protocol: self.protocol, claim: meet.claim, nonce: self.nonce };
                self.stage = HandshakeStage::Join { pair, theirs: meet.nonce };
                Ok(AcceptStep::Send(encode_prove(&own, &proof)))
            }
            HandshakeStage::Join { pair, theirs } => {
                let Some(proof) = self.inbox.take(bytes, JOIN) else { return Ok(AcceptStep::Nothing) };
                if !proves(pair, exactly(&proof)?, self.protocol, CONNECTOR, theirs, &self.nonce) {
                    return Err(wrong(pair.caller(), pair.why_wrong_caller()));
                }
                self.stage = HandshakeStage::RequestHead { peer: pair.caller() };
                Ok(AcceptStep::Nothing)
            }
            HandshakeStage::RequestHead { peer } => {
                let peer = *peer;
                if !self.inbox.top_up(bytes, HEAD) {
                    return Ok(AcceptStep::Nothing);
                }
                let len = Request::len_of(exactly(&self.inbox.0)?)?;
                self.stage = HandshakeStage::Request { peer, len };
                // The request may be complete already.
                self.finish(bytes, peer, len)
            }
            HandshakeStage::Request { peer, len } => {
                let (peer, len) = (*peer, *len);
                self.finish(bytes, peer, len)
            }
            HandshakeStage::Over { .. } => Ok(AcceptStep::Nothing),
        }
    }

    fn finish(&mut self, bytes: &mut &[u8], peer: Option<u32>, len: usize) -> Result<AcceptStep, Refusal> {
        let Some(request) = self.inbox.take(bytes, len) else { return Ok(AcceptStep::Nothing) };
        self.stage = HandshakeStage::Over { peer };
        Ok(AcceptStep::Request(Request::decode(&request)?))
    }

    /// The last message to a connector of another version or transport, or to one that wants another process, so that it can
    /// report the cause: this side's greeting, without a proof.
    pub fn last_words(refusal: &Refusal) -> Option<[u8; PROVE]> {
        match refusal {
            Refusal::Version { ours, .. }
            | Refusal::Protocol { ours, .. }
            | Refusal::OtherProcess { ours } => {
                let own = Meet { protocol: *ours, claim: Claim::NOBODY, nonce: [0; 32] };
                Some(encode_prove(&own, &[0; 32]))
            }
            Refusal::Secret | Refusal::Identity(_) | Refusal::Malformed(_) => None,
        }
    }
}

/// The side that calls.
pub struct Connector {
    pair: Pair,
    protocol: Protocol,
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

/// Next action of a connector.
#[derive(Debug, PartialEq, Eq)]
pub enum ConnectStep {
    /// Waits for more.
    Nothing,
    /// Sends this.
    Send(Vec<u8>),
    /// The answer came; the bytes behind it belong to the connection.
    Answer(Answer),
}

impl Connector {
    /// Makes a connector, and its first message. `nonce`: a fresh random number.
    pub fn new(pair: Pair, protocol: Protocol, nonce: Nonce, request: &Request) -> (Self, [u8; MEET]) {
        let meet = Meet { protocol, claim: pair.claim(), nonce };
        let request = request.encode();
        (
            Connector { pair, protocol, nonce, request, stage: Asking::Front, inbox: Inbox::default() },
            meet.encode(),
        )
    }

    /// Bytes that the current message still lacks, as for [`Acceptor::wants`].
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

    /// Whether the acceptor has proved who it is, and the request was made.
    pub fn has_asked(&self) -> bool {
        !matches!(self.stage, Asking::Front | Asking::Prove)
    }

    /// Feeds at most [`Connector::wants`] bytes.
    ///
    /// # Errors
    /// Why to hang up.
    pub fn input(&mut self, mut bytes: &[u8]) -> Result<ConnectStep, Refusal> {
        let bytes = &mut bytes;
        match self.stage {
            Asking::Front => {
                if self.inbox.top_up(bytes, FRONT) {
                    check_front(self.protocol, &self.inbox.0)?;
                    self.stage = Asking::Prove;
                }
                Ok(ConnectStep::Nothing)
            }
            Asking::Prove => {
                let Some(words) = self.inbox.take(bytes, PROVE) else { return Ok(ConnectStep::Nothing) };
                let (meet, proof) = decode_prove(exactly(&words)?)?;
                check_protocol(self.protocol, &meet)?;
                let (pair, protocol) = (&self.pair, self.protocol);
                if meet.claim != pair.claim() {
                    return Err(Refusal::OtherProcess { ours: protocol });
                }
                if !proves(pair, &proof, protocol, ACCEPTOR, &self.nonce, &meet.nonce) {
                    return Err(wrong(pair.callee(), pair.why_wrong_callee()));
                }
                let mut words = prove(pair, protocol, CONNECTOR, &self.nonce, &meet.nonce).to_vec();
                words.append(&mut self.request);
                self.stage = Asking::AnswerHead;
                Ok(ConnectStep::Send(words))
            }
            Asking::AnswerHead => {
                if !self.inbox.top_up(bytes, HEAD) {
                    return Ok(ConnectStep::Nothing);
                }
                let len = Answer::len_of(exactly(&self.inbox.0)?)?;
                self.stage = Asking::Answer { len };
                self.finish(bytes, len)
            }
            Asking::Answer { len } => self.finish(bytes, len),
            Asking::Over => Ok(ConnectStep::Nothing),
        }
    }

    fn finish(&mut self, bytes: &mut &[u8], len: usize) -> Result<ConnectStep, Refusal> {
        let Some(answer) = self.inbox.take(bytes, len) else { return Ok(ConnectStep::Nothing) };
        self.stage = Asking::Over;
        Ok(ConnectStep::Answer(Answer::decode(&answer)?))
    }
}

fn exactly<const N: usize>(bytes: &[u8]) -> Result<&[u8; N], Malformed> {
    bytes.try_into().map_err(|_| Malformed("length"))
}

/// Checks the version of a greeting before more of it is read: another version's greeting may be shorter.
fn check_front(ours: Protocol, front: &[u8]) -> Result<(), Refusal> {
    let theirs = Meet::versions(exactly(front)?)?;
    let same = theirs.admission == VERSION;
    if same { Ok(()) } else { Err(Refusal::Version { ours, theirs }) }
}

fn check_protocol(ours: Protocol, meet: &Meet) -> Result<(), Refusal> {
    let theirs = meet.protocol;
    if theirs.name() != ours.name() {
        return Err(Refusal::Protocol { ours, theirs });
    }
    if theirs.version() != ours.version() {
        let theirs = Versions { admission: VERSION, protocol: theirs.version() };
        return Err(Refusal::Version { ours, theirs });
    }
    Ok(())
}

const CONNECTOR: &[u8] = b"connector";
const ACCEPTOR: &[u8] = b"acceptor";

fn prove(pair: &Pair, protocol: Protocol, role: &[u8], connector: &Nonce, acceptor: &Nonce) -> Proof {
    pair.prove(&protocol.encode(), role, &[&VERSION.to_le_bytes(), connector, acceptor])
}

fn proves(
    pair: &Pair,
    proof: &Proof,
    protocol: Protocol,
    role: &[u8],
    connector: &Nonce,
    acceptor: &Nonce,
) -> bool {
    pair.check(proof, &protocol.encode(), role, &[&VERSION.to_le_bytes(), connector, acceptor])
}

/// The refusal of a wrong proof, of a rank or of some process of the job.
fn wrong(rank: Option<u32>, why: String) -> Refusal {
    if rank.is_some() { Refusal::Identity(why) } else { Refusal::Secret }
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
