//! Proofs and cookies: who asks for a connection, and who answers, are who they say, and are where they say.
//!
//! An acceptor keeps nothing of a connector that has proved nothing: the cookie is a number that it can make again from
//! what the connector brings back, and that only who receives at the connector's address can bring.

use std::net::SocketAddr;
use std::time::Instant;

use udeck_via::auth::{Claim, Nonce, Pair, Proof, is_same, mac};

use crate::wire::greeting::{Exchange, Meet, Versions};
use crate::wire::{Kind, VERSION};

/// What this build speaks.
pub const OURS: Versions =
    Versions { datagrams: VERSION as u16, frames: udeck_session::framed::wire::VERSION };
/// A cookie is good for one to two times so long.
pub const EPOCH: u64 = 10;

/// Proves to be who `pair` says by what is in `body`, in an exchange of these two nonces, by a greeting of this kind.
pub fn prove(pair: &Pair, kind: Kind, nonce: &Nonce, cookie: &Nonce, body: &[u8]) -> Proof {
    let versions = [OURS.datagrams.to_le_bytes(), OURS.frames.to_le_bytes()].concat();
    pair.prove(b"udp", &[kind as u8], &[&versions, nonce, cookie, body])
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
        self.of(self.epoch(now), from, meet.number, &meet.nonce, meet.claim)
    }

    /// Whether this is one that was sent there, not long ago.
    pub fn knows(&self, now: Instant, from: SocketAddr, exchange: &Exchange) -> bool {
        let epoch = self.epoch(now);
        [Some(epoch), epoch.checked_sub(1)].into_iter().flatten().any(|epoch| {
            let Exchange { number, nonce, cookie, claim } = exchange;
            is_same(cookie, &self.of(epoch, from, *number, nonce, *claim))
        })
    }

    fn epoch(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.since).as_secs() / EPOCH
    }

    fn of(&self, epoch: u64, from: SocketAddr, number: u64, nonce: &Nonce, claim: Claim) -> Nonce {
        let (epoch, number, from) = (epoch.to_le_bytes(), number.to_le_bytes(), from.to_string());
        mac(&self.key, "udeck udp cookie", &[&epoch, &number, nonce, &claim.encode(), from.as_bytes()])
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use udeck_via::auth::Keys;

    use super::*;

    #[test]
    fn cookies_are_known_from_where_they_were_sent_and_for_a_while() {
        let now = Instant::now();
        let cookies = Cookies::new([7; 32], now);
        let at: SocketAddr = "10.0.0.1:9".parse().unwrap();
        let meet = Meet { versions: OURS, number: 5, nonce: [1; 32], claim: Claim::NOBODY };
        let exchange = Exchange {
            number: 5,
            nonce: [1; 32],
            cookie: cookies.bake(now, at, &meet),
            claim: Claim::NOBODY,
        };
        assert!(cookies.knows(now, at, &exchange));
        assert!(cookies.knows(now + Duration::from_secs(EPOCH), at, &exchange));
        assert!(!cookies.knows(now + Duration::from_secs(2 * EPOCH), at, &exchange));
        assert!(!cookies.knows(now, "10.0.0.1:10".parse().unwrap(), &exchange));
        assert!(!cookies.knows(now, "10.0.0.2:9".parse().unwrap(), &exchange));
        assert!(!cookies.knows(now, at, &Exchange { number: 6, ..exchange }));
        assert!(!cookies.knows(now, at, &Exchange { nonce: [2; 32], ..exchange }));
        assert!(!cookies.knows(now, at, &Exchange { claim: Claim::decode([1; 8]), ..exchange }));
        assert!(!Cookies::new([8; 32], now).knows(now, at, &exchange));
    }

    #[test]
    fn a_proof_is_of_all_that_it_is_about() {
        let prove = |secret: u8, kind, nonce: u8, cookie: u8, body: &[u8]| {
            let pair = Keys::from([secret; 32]).call(None).unwrap();
            prove(&pair, kind, &[nonce; 32], &[cookie; 32], body)
        };
        let one = prove(1, Kind::Ask, 2, 3, b"body");
        let others = [
            prove(9, Kind::Ask, 2, 3, b"body"),
            prove(1, Kind::Answer, 2, 3, b"body"),
            prove(1, Kind::Ask, 9, 3, b"body"),
            prove(1, Kind::Ask, 2, 9, b"body"),
            prove(1, Kind::Ask, 2, 3, b"bodY"),
        ];
        assert!(is_same(&one, &prove(1, Kind::Ask, 2, 3, b"body")));
        assert!(others.iter().all(|other| !is_same(&one, other)));
    }
}
