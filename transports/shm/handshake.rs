//! The hand-shake of two processes of one job: both prove their identity before anything is shared.
//!
//! ```text
//! connector                      acceptor
//!   Meet(version, boot, nonce c, claim) ->
//!                                <- Prove(nonce a, proof "acceptor" of c and a)
//!   Join(proof "connector" of c and a) + descriptors ->
//!                                <- Welcome + descriptors, or Refuse(the shortage)
//! ```
//! The claim says which rank calls which, or that any process of the job calls. The proofs use the key that the two
//! share ([`udeck_via::auth`]), and cover the claim and all the other values that both have sent.
//!
//! Sans-I/O: a [`Handshake`] is fed datagrams and returns the datagrams to send.

use udeck_via::auth::{Claim, Keys, Nonce, Pair, Proof};

use crate::peer_socket_wire::{Datagram, VERSION};

/// State of one hand-shake.
#[derive(Debug)]
pub struct Handshake {
    boot_id: [u8; 16],
    own_nonce: Nonce,
    expects: Expects,
}

#[derive(Debug)]
enum Expects {
    Meet(Keys),
    Prove(Pair),
    Join(Pair, Nonce),
    Welcome(Pair),
    Nothing,
}

/// Action that the caller takes next.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Send this datagram.
    Send(Datagram),
    /// Send this datagram, with our descriptors.
    SendSegments(Datagram),
    /// The peer has proved its identity, and this datagram carries its descriptors. Send `answer`, if there is one,
    /// with ours.
    Authenticated {
        answer: Option<Datagram>,
        /// Rank that the peer has proved to be; `None`: any process of the job.
        peer: Option<u32>,
    },
}

/// Why a hand-shake failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    #[error(
        "it speaks version {theirs} of the shared-memory protocol, this process {VERSION}: build both from one version"
    )]
    Version { theirs: u32 },
    #[error("it runs on another kernel (boot id differs)")]
    OtherHost,
    #[error("it wanted another process than this one")]
    OtherProcess,
    #[error("{0}")]
    Proof(String),
    #[error("{0}")]
    Short(String),
    #[error("it broke the hand-shake")]
    Protocol,
}

impl Handshake {
    /// Starts the connector's side. Returns its first datagram, too.
    pub fn connect(pair: Pair, boot_id: [u8; 16], nonce: Nonce) -> (Self, Datagram) {
        let meet = Datagram::Meet { version: VERSION, boot_id, nonce, claim: pair.claim() };
        (Handshake { boot_id, own_nonce: nonce, expects: Expects::Prove(pair) }, meet)
    }

    /// Starts the acceptor's side.
    pub fn accept(keys: Keys, boot_id: [u8; 16], nonce: Nonce) -> Self {
        Handshake { boot_id, own_nonce: nonce, expects: Expects::Meet(keys) }
    }

    /// # Errors
    /// [`HandshakeError`]: close the peer socket.
    pub fn input(&mut self, datagram: &Datagram) -> Result<Step, HandshakeError> {
        match (std::mem::replace(&mut self.expects, Expects::Nothing), datagram) {
            (Expects::Meet(keys), Datagram::Meet { version, boot_id, nonce, claim }) => {
                self.check_meet(*version, boot_id)?;
                let pair = answer(&keys, *claim)?;
                let mac = self.prove(&pair, ACCEPTOR, nonce, &self.own_nonce);
                self.expects = Expects::Join(pair, *nonce);
                Ok(Step::Send(Datagram::Prove { nonce: self.own_nonce, mac }))
            }
            (Expects::Prove(pair), Datagram::Prove { nonce, mac }) => {
                if self.proves(&pair, mac, ACCEPTOR, &self.own_nonce, nonce) {
                    let mac = self.prove(&pair, CONNECTOR, &self.own_nonce, nonce);
                    self.expects = Expects::Welcome(pair);
                    return Ok(Step::SendSegments(Datagram::Join { mac }));
                }
                Err(HandshakeError::Proof(pair.why_wrong_callee()))
            }
            (Expects::Join(pair, connector), Datagram::Join { mac }) => {
                if self.proves(&pair, mac, CONNECTOR, &connector, &self.own_nonce) {
                    return Ok(Step::Authenticated { answer: Some(Datagram::Welcome), peer: pair.caller() });
                }
                Err(HandshakeError::Proof(pair.why_wrong_caller()))
            }
            (Expects::Welcome(pair), Datagram::Welcome) => {
                Ok(Step::Authenticated { answer: None, peer: pair.callee() })
            }
            // The peer has proved its identity, but is short of room for our descriptors.
            (Expects::Welcome(_), Datagram::Refuse { rejection, .. }) => {
                Err(HandshakeError::Short(rejection.to_string()))
            }
            _ => Err(HandshakeError::Protocol),
        }
    }

    fn check_meet(&self, version: u32, boot_id: &[u8; 16]) -> Result<(), HandshakeError> {
        if version != VERSION {
            return Err(HandshakeError::Version { theirs: version });
        }
        if *boot_id != self.boot_id {
            return Err(HandshakeError::OtherHost);
        }
        Ok(())
    }

    fn prove(&self, pair: &Pair, role: &[u8], connector: &Nonce, acceptor: &Nonce) -> Proof {
        pair.prove(PROTOCOL, role, &[&VERSION.to_le_bytes(), &self.boot_id, connector, acceptor])
    }

    fn proves(&self, pair: &Pair, proof: &Proof, role: &[u8], connector: &Nonce, acceptor: &Nonce) -> bool {
        pair.check(proof, PROTOCOL, role, &[&VERSION.to_le_bytes(), &self.boot_id, connector, acceptor])
    }
}

const PROTOCOL: &[u8] = b"shm";
const CONNECTOR: &[u8] = b"connector";
const ACCEPTOR: &[u8] = b"acceptor";

fn answer(keys: &Keys, claim: Claim) -> Result<Pair, HandshakeError> {
    keys.answer(claim).map_err(|_| HandshakeError::OtherProcess)
}

#[cfg(test)]
mod tests {
    use udeck_via::auth::{HostKey, SealedTicket};

    use super::*;

    const BOOT: [u8; 16] = [3; 16];

    fn anybody(secret: u8) -> Pair {
        Keys::from([secret; 32]).call(None).unwrap()
    }

    /// Returns the keys of a rank that has a ticket for rank 5.
    fn rank(rank: u32) -> Keys {
        let host = HostKey::from_bytes([9; 32]);
        let keys = Keys::of_rank([7; 32], rank, host.rank(rank));
        keys.learn(5, &SealedTicket::new((rank, &host.rank(rank)), (5, &host.rank(5))));
        keys
    }

    fn run(pair: Pair, keys: &Keys) -> Result<(Option<u32>, Option<u32>), HandshakeError> {
        let (mut connector, meet) = Handshake::connect(pair, BOOT, [1; 32]);
        let mut acceptor = Handshake::accept(keys.clone(), BOOT, [2; 32]);
        let Step::Send(prove) = acceptor.input(&meet)? else { panic!("acceptor proves first") };
        let Step::SendSegments(join) = connector.input(&prove)? else { panic!("connector joins") };
        let Step::Authenticated { answer: Some(Datagram::Welcome), peer: caller } = acceptor.input(&join)?
        else {
            panic!("acceptor welcomes")
        };
        let Step::Authenticated { answer: None, peer: callee } = connector.input(&Datagram::Welcome)? else {
            panic!("that is all")
        };
        Ok((caller, callee))
    }

    #[test]
    fn the_secret_opens_and_nothing_else() {
        assert_eq!(run(anybody(7), &Keys::from([7; 32])), Ok((None, None)));
        let refused = run(anybody(7), &Keys::from([8; 32]));
        assert_eq!(refused, Err(HandshakeError::Proof("it does not know this job's secret".into())));
    }

    #[test]
    fn each_rank_learns_which_the_other_is_and_no_other_passes_for_it() {
        let to_5 = rank(2).call(Some(5)).unwrap();
        assert_eq!(run(to_5.clone(), &rank(5)), Ok((Some(2), Some(5))));
        assert_eq!(run(to_5.clone(), &rank(4)), Err(HandshakeError::OtherProcess));
        // Rank 1 poses as rank 5 and as rank 2, with all the keys that it has.
        let host = HostKey::from_bytes([9; 32]);
        let posing = |as_rank| {
            let keys = Keys::of_rank([7; 32], as_rank, host.rank(1));
            keys.learn(5, &SealedTicket::new((1, &host.rank(1)), (5, &host.rank(5))));
            keys
        };
        // The side that would be deceived refuses, with its own error text.
        let refused = |why: &str| Err(HandshakeError::Proof(why.into()));
        assert_eq!(run(to_5, &posing(5)), refused("it does not prove to be rank 5 of this job"));
        // The called process proves itself first, so a caller with a forged ticket must skip that check.
        let (_, meet) = Handshake::connect(posing(2).call(Some(5)).unwrap(), BOOT, [1; 32]);
        let (mut acceptor, posing) =
            (Handshake::accept(rank(5), BOOT, [2; 32]), posing(2).call(Some(5)).unwrap());
        assert!(matches!(acceptor.input(&meet), Ok(Step::Send(Datagram::Prove { .. }))));
        let proof = [&VERSION.to_le_bytes()[..], &BOOT, &[1; 32], &[2; 32]];
        let join = Datagram::Join { mac: posing.prove(PROTOCOL, CONNECTOR, &proof) };
        let not_2 = refused("it claims to be rank 2 of this job, and does not prove it");
        assert_eq!(acceptor.input(&join).map(|_| (None, None)), not_2);
    }

    fn meet(version: u32, boot_id: [u8; 16], nonce: Nonce) -> Datagram {
        Datagram::Meet { version, boot_id, nonce, claim: anybody(7).claim() }
    }

    fn fresh() -> Handshake {
        Handshake::accept(Keys::from([7; 32]), BOOT, [2; 32])
    }

    #[test]
    fn a_connector_without_the_secret_learns_nothing_and_is_refused() {
        let mut acceptor = fresh();
        acceptor.input(&meet(VERSION, BOOT, [1; 32])).unwrap();
        assert!(matches!(acceptor.input(&Datagram::Join { mac: [0; 32] }), Err(HandshakeError::Proof(_))));
    }

    #[test]
    fn an_echoed_proof_is_refused() {
        // The acceptor's own proof is sent back. The role is part of the proof.
        let mut acceptor = fresh();
        let Step::Send(Datagram::Prove { mac, .. }) = acceptor.input(&meet(VERSION, BOOT, [2; 32])).unwrap()
        else {
            panic!()
        };
        assert!(matches!(acceptor.input(&Datagram::Join { mac }), Err(HandshakeError::Proof(_))));
    }

    #[test]
    fn version_host_and_order_are_checked() {
        let version = fresh().input(&meet(VERSION + 1, BOOT, [1; 32]));
        assert_eq!(version, Err(HandshakeError::Version { theirs: VERSION + 1 }));
        assert_eq!(fresh().input(&meet(VERSION, [9; 16], [1; 32])), Err(HandshakeError::OtherHost));
        assert_eq!(fresh().input(&Datagram::Welcome), Err(HandshakeError::Protocol));
        assert_eq!(fresh().input(&Datagram::Join { mac: [0; 32] }), Err(HandshakeError::Protocol));
    }
}
