//! Proofs and cookies: who asks for a connection, and who answers, know the job's secret, and are where they say.
//!
//! An acceptor keeps nothing of a connector that has proved nothing: the cookie is a number that it can make again from
//! what the connector brings back, and that only who receives at the connector's address can bring.

use std::net::SocketAddr;
use std::time::Instant;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::wire::greeting::{Exchange, Meet, Nonce, Proof, Versions};
use crate::wire::{Kind, VERSION};

/// What this build speaks.
pub const OURS: Versions = Versions { datagrams: VERSION as u16, frames: udeck_wired::wire::VERSION };
/// A cookie is good for one to two times so long.
pub const EPOCH: u64 = 10;

/// Proves to know the secret by what is in `parts`, in an exchange of these two nonces, by a greeting of this kind.
pub fn prove(secret: &[u8; 32], kind: Kind, nonce: &Nonce, cookie: &Nonce, body: &[u8]) -> Proof {
    hmac(
        secret,
        &[&[kind as u8], &OURS.datagrams.to_le_bytes(), &OURS.frames.to_le_bytes(), nonce, cookie, body],
    )
}

/// Whether a proof is one.
pub fn is_proof(proof: &Proof, expected: &Proof) -> bool {
    bool::from(expected.ct_eq(proof))
}

/// Makes cookies, and knows them again.
pub struct Cookies {
    key: [u8; 32],
    since: Instant,
}

impl Cookies {
    /// `key`: random, of this process.
    pub fn new(key: [u8; 32], now: Instant) -> Self {
        Cookies { key, since: now }
    }

    /// For who sent this from there.
    pub fn bake(&self, now: Instant, from: SocketAddr, meet: &Meet) -> Nonce {
        self.of(self.epoch(now), from, meet.number, &meet.nonce)
    }

    /// Whether this is one that was sent there, not long ago.
    pub fn knows(&self, now: Instant, from: SocketAddr, exchange: &Exchange) -> bool {
        let epoch = self.epoch(now);
        [Some(epoch), epoch.checked_sub(1)]
            .into_iter()
            .flatten()
            .any(|epoch| is_proof(&exchange.cookie, &self.of(epoch, from, exchange.number, &exchange.nonce)))
    }

    fn epoch(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.since).as_secs() / EPOCH
    }

    fn of(&self, epoch: u64, from: SocketAddr, number: u64, nonce: &Nonce) -> Nonce {
        let from = from.to_string();
        hmac(&self.key, &[&epoch.to_le_bytes(), &number.to_le_bytes(), nonce, from.as_bytes()])
    }
}

fn hmac(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    let mut hmac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| hmac.update(part));
    hmac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn cookies_are_known_from_where_they_were_sent_and_for_a_while() {
        let now = Instant::now();
        let cookies = Cookies::new([7; 32], now);
        let at: SocketAddr = "10.0.0.1:9".parse().unwrap();
        let meet = Meet { versions: OURS, number: 5, nonce: [1; 32] };
        let exchange = Exchange { number: 5, nonce: [1; 32], cookie: cookies.bake(now, at, &meet) };
        assert!(cookies.knows(now, at, &exchange));
        assert!(cookies.knows(now + Duration::from_secs(EPOCH), at, &exchange));
        assert!(!cookies.knows(now + Duration::from_secs(2 * EPOCH), at, &exchange));
        assert!(!cookies.knows(now, "10.0.0.1:10".parse().unwrap(), &exchange));
        assert!(!cookies.knows(now, "10.0.0.2:9".parse().unwrap(), &exchange));
        assert!(!cookies.knows(now, at, &Exchange { number: 6, ..exchange }));
        assert!(!cookies.knows(now, at, &Exchange { nonce: [2; 32], ..exchange }));
        assert!(!Cookies::new([8; 32], now).knows(now, at, &exchange));
    }

    #[test]
    fn a_proof_is_of_all_that_it_is_about() {
        let prove = |secret: u8, kind, nonce: u8, cookie: u8, body: &[u8]| {
            prove(&[secret; 32], kind, &[nonce; 32], &[cookie; 32], body)
        };
        let one = prove(1, Kind::Ask, 2, 3, b"body");
        let others = [
            prove(9, Kind::Ask, 2, 3, b"body"),
            prove(1, Kind::Answer, 2, 3, b"body"),
            prove(1, Kind::Ask, 9, 3, b"body"),
            prove(1, Kind::Ask, 2, 9, b"body"),
            prove(1, Kind::Ask, 2, 3, b"bodY"),
        ];
        assert!(is_proof(&one, &prove(1, Kind::Ask, 2, 3, b"body")));
        assert!(others.iter().all(|other| !is_proof(&one, other)));
    }
}
