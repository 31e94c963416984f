//! Two processes of one job meet: both prove the job's secret before anything is shared.
//!
//! ```text
//! connector                      acceptor
//!   Meet(version, boot, nonce c) ->
//!                                <- Prove(nonce a, HMAC(secret, "acceptor" c a))
//!   Join(HMAC(secret, "connector" a c)) + descriptors ->
//!                                <- Welcome + descriptors
//! ```
//! Sans-I/O: a [`Handshake`] is fed datagrams and says what to send.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::link_wire::{Datagram, VERSION};

/// Where a meeting stands.
#[derive(Debug)]
pub struct Handshake {
    secret: [u8; 32],
    boot_id: [u8; 16],
    own_nonce: [u8; 32],
    expects: Expects,
}

#[derive(Debug, PartialEq, Eq)]
enum Expects {
    Meet,
    Prove,
    Join { connector_nonce: [u8; 32] },
    Welcome,
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Send this.
    Send(Datagram),
    /// Send this, with our descriptors.
    SendSegments(Datagram),
    /// The peer is one of us, and this datagram carries its descriptors. Send the answer, with ours, if there is one.
    Met(Option<Datagram>),
}

/// Why it ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error(
        "it speaks version {theirs} of the shared-memory protocol, this process {VERSION}: build both from one version"
    )]
    Version { theirs: u32 },
    #[error("it runs on another kernel (boot id differs)")]
    OtherHost,
    #[error("it does not know this job's secret")]
    Secret,
    #[error("it broke the hand-shake")]
    Protocol,
}

impl Handshake {
    /// The connector's side, and its first datagram.
    pub fn connect(secret: [u8; 32], boot_id: [u8; 16], nonce: [u8; 32]) -> (Self, Datagram) {
        let meet = Datagram::Meet { version: VERSION, boot_id, nonce };
        (Handshake { secret, boot_id, own_nonce: nonce, expects: Expects::Prove }, meet)
    }

    /// The acceptor's side.
    pub fn accept(secret: [u8; 32], boot_id: [u8; 16], nonce: [u8; 32]) -> Self {
        Handshake { secret, boot_id, own_nonce: nonce, expects: Expects::Meet }
    }

    /// # Errors
    /// [`Refusal`]: close the link.
    pub fn input(&mut self, datagram: &Datagram) -> Result<Step, Refusal> {
        match (&self.expects, datagram) {
            (Expects::Meet, Datagram::Meet { version, boot_id, nonce }) => {
                if *version != VERSION {
                    return Err(Refusal::Version { theirs: *version });
                }
                if *boot_id != self.boot_id {
                    return Err(Refusal::OtherHost);
                }
                let mac = self.mac(b"acceptor", nonce, &self.own_nonce);
                self.expects = Expects::Join { connector_nonce: *nonce };
                Ok(Step::Send(Datagram::Prove { nonce: self.own_nonce, mac }))
            }
            (Expects::Prove, Datagram::Prove { nonce, mac }) => {
                self.check(mac, b"acceptor", &self.own_nonce, nonce)?;
                let mac = self.mac(b"connector", nonce, &self.own_nonce);
                self.expects = Expects::Welcome;
                Ok(Step::SendSegments(Datagram::Join { mac }))
            }
            (Expects::Join { connector_nonce }, Datagram::Join { mac }) => {
                self.check(mac, b"connector", &self.own_nonce, connector_nonce)?;
                Ok(Step::Met(Some(Datagram::Welcome)))
            }
            (Expects::Welcome, Datagram::Welcome) => Ok(Step::Met(None)),
            _ => Err(Refusal::Protocol),
        }
    }

    fn mac(&self, role: &[u8], first: &[u8; 32], second: &[u8; 32]) -> [u8; 32] {
        self.hmac(role, first, second).finalize().into_bytes().into()
    }

    fn check(&self, mac: &[u8; 32], role: &[u8], first: &[u8; 32], second: &[u8; 32]) -> Result<(), Refusal> {
        let expected = self.mac(role, first, second);
        if bool::from(expected.ct_eq(mac)) { Ok(()) } else { Err(Refusal::Secret) }
    }

    fn hmac(&self, role: &[u8], first: &[u8; 32], second: &[u8; 32]) -> Hmac<Sha256> {
        let mut hmac = Hmac::<Sha256>::new_from_slice(&self.secret).expect("HMAC takes keys of any length");
        hmac.update(role);
        hmac.update(first);
        hmac.update(second);
        hmac
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: [u8; 16] = [3; 16];

    fn run(secret_c: [u8; 32], secret_a: [u8; 32]) -> Result<(), Refusal> {
        let (mut connector, meet) = Handshake::connect(secret_c, BOOT, [1; 32]);
        let mut acceptor = Handshake::accept(secret_a, BOOT, [2; 32]);
        let Step::Send(prove) = acceptor.input(&meet)? else { panic!("acceptor proves first") };
        let Step::SendSegments(join) = connector.input(&prove)? else { panic!("connector joins") };
        assert_eq!(acceptor.input(&join)?, Step::Met(Some(Datagram::Welcome)));
        assert_eq!(connector.input(&Datagram::Welcome)?, Step::Met(None));
        Ok(())
    }

    #[test]
    fn the_secret_opens_and_nothing_else() {
        assert_eq!(run([7; 32], [7; 32]), Ok(()));
        assert_eq!(run([7; 32], [8; 32]), Err(Refusal::Secret));
    }

    #[test]
    fn a_connector_without_the_secret_learns_nothing_and_is_refused() {
        let mut acceptor = Handshake::accept([7; 32], BOOT, [2; 32]);
        acceptor.input(&Datagram::Meet { version: VERSION, boot_id: BOOT, nonce: [1; 32] }).unwrap();
        assert_eq!(acceptor.input(&Datagram::Join { mac: [0; 32] }), Err(Refusal::Secret));
    }

    #[test]
    fn an_echoed_proof_is_refused() {
        // The acceptor's own words sent back: the role is part of the proof.
        let mut acceptor = Handshake::accept([7; 32], BOOT, [2; 32]);
        let meet = Datagram::Meet { version: VERSION, boot_id: BOOT, nonce: [2; 32] };
        let Step::Send(Datagram::Prove { mac, .. }) = acceptor.input(&meet).unwrap() else { panic!() };
        assert_eq!(acceptor.input(&Datagram::Join { mac }), Err(Refusal::Secret));
    }

    #[test]
    fn version_host_and_order_are_checked() {
        let fresh = || Handshake::accept([7; 32], BOOT, [2; 32]);
        let meet = |version, boot_id| Datagram::Meet { version, boot_id, nonce: [1; 32] };
        assert_eq!(fresh().input(&meet(VERSION + 1, BOOT)), Err(Refusal::Version { theirs: VERSION + 1 }));
        assert_eq!(fresh().input(&meet(VERSION, [9; 16])), Err(Refusal::OtherHost));
        assert_eq!(fresh().input(&Datagram::Welcome), Err(Refusal::Protocol));
        assert_eq!(fresh().input(&Datagram::Join { mac: [0; 32] }), Err(Refusal::Protocol));
    }
}
