//! Callers that speak another version: they are told so, in words that they understand.
//!
//! The front of datagrams, Meet and Prove are the same in all versions ([`crate::wire`]). Who is met by another version says
//! what it speaks in a Prove that bears the caller's version, and proves nothing. Nobody gains by meeting in another's name:
//! the answer is shorter than the question, and there are few of them.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::greeting::OURS;
use crate::wire::greeting::{Greeting, Meet, Prove};
use crate::wire::{Kind, VERSION, open_any, seal, version};

/// Answers in a row, and in every [`EVERY`].
const MOST: u32 = 32;
const EVERY: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Default)]
pub struct Foreigners(Mutex<Option<(Instant, u32)>>);

impl Foreigners {
    /// What to say to who sent this, if it is a caller's first words in another version.
    pub fn answer(&self, now: Instant, datagram: &[u8]) -> Option<Vec<u8>> {
        let theirs = version(datagram).filter(|version| *version != VERSION)?;
        let opened = open_any(datagram).ok().filter(|opened| opened.kind == Kind::Meet)?;
        let greeting = Greeting::decode(&opened).ok().filter(|greeting| greeting.connection == 0)?;
        let meet = Meet::decode(greeting.body).ok()?;
        if !self.may(now) {
            return None;
        }
        let body = Prove { versions: OURS, cookie: [0; 32] }.encode();
        let greeting = Greeting { kind: Kind::Prove, connection: meet.number, proof: [0; 32], body: &body };
        let mut answer = greeting.encode();
        answer[0] = theirs;
        seal(&mut answer, []);
        Some(answer).filter(|answer| answer.len() <= datagram.len())
    }

    fn may(&self, now: Instant) -> bool {
        let mut said = self.0.lock();
        let (since, count) = match *said {
            Some((since, count)) if now.saturating_duration_since(since) < EVERY => (since, count),
            _ => (now, 0),
        };
        *said = Some((since, (count + 1).min(MOST)));
        count < MOST
    }
}

#[cfg(test)]
mod tests {
    use udeck_via::auth::Claim;

    use super::*;
    use crate::wire::greeting::Versions;
    use crate::wire::open;

    /// A caller's first words in version `version`.
    fn meet(version: u8, number: u64) -> Vec<u8> {
        let versions = Versions { datagrams: version.into(), frames: 1 };
        let body = Meet { versions, number, nonce: [3; 32], claim: Claim::NOBODY }.encode();
        let greeting = Greeting { kind: Kind::Meet, connection: 0, proof: [0; 32], body: &body };
        let mut datagram = greeting.encode();
        datagram[0] = version;
        seal(&mut datagram, []);
        datagram
    }

    #[test]
    fn a_caller_of_another_version_understands_the_answer() {
        let (foreigners, now) = (Foreigners::default(), Instant::now());
        let question = meet(VERSION + 1, 77);
        let mut answer = foreigners.answer(now, &question).expect("an answer");
        assert!(answer.len() <= question.len(), "no amplifier");
        assert_eq!(answer[0], VERSION + 1);
        // As that version would read it.
        answer[0] = VERSION;
        seal(&mut answer, []);
        let opened = open(&answer).unwrap();
        assert_eq!((opened.kind, opened.connection), (Kind::Prove, 77));
        let prove = Prove::decode(Greeting::decode(&opened).unwrap().body).unwrap();
        assert_eq!((prove.versions, prove.cookie), (OURS, [0; 32]));
    }

    #[test]
    fn only_first_words_are_answered_and_not_many() {
        let (foreigners, now) = (Foreigners::default(), Instant::now());
        assert_eq!(foreigners.answer(now, &meet(VERSION, 1)), None, "one of ours");
        let question = meet(9, 1);
        let cut = &question[..question.len() - 1];
        assert_eq!(foreigners.answer(now, cut), None, "cut");
        for at in [1, 8, 60] {
            let mut other = question.clone();
            other[at] ^= 1;
            assert_eq!(foreigners.answer(now, &other), None, "spoilt at {at}");
        }
        for (at, value) in [(1, Kind::Ask as u8), (1, Kind::Prove as u8), (8, 1)] {
            let mut other = question.clone();
            other[at] = value;
            seal(&mut other, []);
            assert_eq!(foreigners.answer(now, &other), None, "{value} at {at}");
        }
        let answered = |now| (0..1000).filter(|_| foreigners.answer(now, &question).is_some()).count();
        assert_eq!(answered(now), MOST as usize);
        assert_eq!((answered(now + EVERY / 2), answered(now + EVERY)), (0, MOST as usize));
    }
}
