//! Dialogues of a rank and its launcher's service in one protocol, as its tests write them down, and the checks
//! that all protocols share.

use std::os::unix::net::UnixStream;

use udeck_sys::Deadline;

use super::{Manner, Rest, Step, at_once, service, soon};
use crate::start::{
    Environment, StartError,
    pmi::{Channel, Service},
};

/// A dialogue: rank 1 of 4 puts `10-20-x` under `root`, and finds `A-7` there from rank 0.
pub(crate) struct Talk<E> {
    pub title: &'static str,
    /// The steps of joining.
    pub joining: Vec<Step>,
    /// The steps of a put, a fence, a get, a fence and the goodbye.
    pub calls: Vec<Step>,
    pub join: fn(Service, Deadline) -> Result<E, StartError>,
}

/// Makes every call of a rank.
pub(crate) fn use_it(pmi: &mut impl Environment, until: Deadline) -> Result<(), StartError> {
    pmi.put("root", "10-20-x", until)?;
    pmi.fence(until)?;
    assert_eq!(pmi.get(0, "root", until)?, "A-7");
    pmi.fence(until)?;
    pmi.finalize(until)
}

impl<E: Environment> Talk<E> {
    pub fn all(&self) -> Vec<Step> {
        [&self.joining[..], &self.calls].concat()
    }

    /// Joins a service that plays these steps.
    pub fn join_in(&self, steps: Vec<Step>, manner: Manner) -> (Result<E, StartError>, Rest) {
        let (service, rest) = service(self.title, steps, manner);
        ((self.join)(service, soon()), rest)
    }

    /// Returns a rank that has joined, with a service that plays `then`.
    pub fn joined(&self, then: &[Step]) -> (E, Rest) {
        let (joined, rest) = self.join_in([&self.joining[..], then].concat(), Manner::AtOnce);
        (joined.unwrap(), rest)
    }

    pub fn goes_from_joining_to_leaving(&self) {
        for manner in [Manner::AtOnce, Manner::ByteByByte] {
            let (joined, rest) = self.join_in(self.all(), manner);
            let mut pmi = joined.unwrap();
            assert_eq!((pmi.title().as_str(), pmi.rank(), pmi.size()), (self.title, 1, 4));
            use_it(&mut pmi, soon()).unwrap();
            drop(pmi);
            assert_eq!(rest.join().unwrap(), "", "nothing is said after the goodbye");
        }
    }

    /// Checks that another answer at one step of joining leads to an error with these words.
    pub fn fails_to_join<'a>(&self, cases: impl IntoIterator<Item = (usize, impl Into<String>, &'a str)>) {
        for (at, answer, words) in cases {
            let mut steps = self.joining[..=at].to_vec();
            steps[at].1 = answer.into();
            let (joined, rest) = self.join_in(steps, Manner::AtOnce);
            let error = joined.map(drop).unwrap_err();
            assert!(
                matches!(&error, StartError::Server { environment, .. } if environment == self.title),
                "{error}"
            );
            assert!(error.to_string().contains(words), "{error}");
            rest.join().unwrap();
        }
    }

    /// Checks that another answer to one call leads to an error with these words. It is the last call.
    pub fn fails_to_go_on<'a>(&self, cases: impl IntoIterator<Item = (usize, impl Into<String>, &'a str)>) {
        for (at, answer, words) in cases {
            let mut calls = self.calls[..=at].to_vec();
            calls[at].1 = answer.into();
            let (mut pmi, rest) = self.joined(&calls);
            let error = use_it(&mut pmi, soon()).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
            let after = pmi.fence(soon()).unwrap_err();
            assert!(matches!(after, StartError::Server { .. }), "{after}");
            drop(pmi);
            assert_eq!(rest.join().unwrap(), "");
        }
    }

    /// Checks that these keys and values are refused with these words. The service gets none of them.
    pub fn does_not_put(&self, cases: &[(&str, &str, &str)]) {
        let (mut pmi, rest) = self.joined(&[]);
        for (key, value, words) in cases {
            let error = pmi.put(key, value, soon()).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
        }
        drop(pmi);
        assert_eq!(rest.join().unwrap(), "");
    }

    pub fn notices_that_the_service_dies(&self) {
        let all = self.all();
        for alive in 0..all.len() {
            let (joined, rest) = self.join_in(all[..alive].to_vec(), Manner::Dies);
            let error = joined.and_then(|mut pmi| use_it(&mut pmi, soon())).unwrap_err();
            assert!(
                error.to_string().contains("the launcher's service has closed the connection"),
                "{error}"
            );
            rest.join().unwrap();
        }
    }

    pub fn notices_that_the_service_is_late(&self) {
        let all = self.all();
        for silent in 0..all.len() {
            let mut steps = all[..=silent].to_vec();
            steps[silent].1.pop();
            let (service, rest) = service(self.title, steps, Manner::AtOnce);
            let mut until = if silent < self.joining.len() { at_once() } else { soon() };
            let error = (self.join)(service, until).and_then(|mut pmi| {
                until = at_once();
                use_it(&mut pmi, until)
            });
            let error = error.unwrap_err();
            assert!(
                matches!(&error, StartError::Late { environment, .. } if environment == self.title),
                "{error}"
            );
            assert!(until.passed());
            // On a busy machine an earlier answer is late, and the service misses the rest of its part.
            let _ = rest.join();
        }
    }

    /// Checks that a rank sends nothing after its goodbye.
    pub fn has_said_goodbye(&self) {
        let (mut pmi, rest) = self.joined(&self.calls[self.calls.len() - 1..]);
        pmi.finalize(soon()).unwrap();
        assert!(pmi.abort(1, "", soon()).unwrap_err().to_string().contains("has said goodbye"));
        drop(pmi);
        assert_eq!(rest.join().unwrap(), "");
    }

    /// Checks that every call returns, whatever follows these answers to joining.
    pub fn returns_after(&self, answers: usize, bytes: Vec<u8>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let answers = self.joining[..answers].iter().flat_map(|(_, says)| says.bytes());
        let said: Vec<u8> = answers.chain(bytes).collect();
        let serving = std::thread::spawn(move || {
            let _ = std::io::Write::write_all(&mut &theirs, &said);
        });
        if let Ok(mut pmi) = (self.join)(Service::new(Channel::new(ours), self.title.into()), soon()) {
            let _ = pmi.put("root", "x", soon());
            let _ = pmi.fence(soon());
            let _ = pmi.get(0, "root", soon());
            let _ = pmi.finalize(soon());
        }
        serving.join().unwrap();
    }
}
