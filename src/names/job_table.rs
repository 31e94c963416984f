//! Names that a job keeps: the launcher, or rank 0, has the table, and a record is removed when its rank ends.

use std::time::{Duration, Instant};

use udeck_boot::{BootError, Client, Maker, Record};
use udeck_via::Deadline;

/// Time limit for the launcher's answer to a call that does not wait for other ranks.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// The table of a job's names, through this rank's connection to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobTable<'a>(pub &'a Client);

impl JobTable<'_> {
    /// Registers a record of this rank. False: the key is taken.
    pub fn register(self, key: &str, value: &[u8]) -> Result<bool, BootError> {
        match self.0.register(key, value, answer_limit()) {
            Ok(()) => Ok(true),
            Err(BootError::NameTaken { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes a record of this rank. If the launcher cannot be asked, the record goes with the rank.
    pub fn withdraw(self, key: &str) {
        let _ = self.0.unregister(key, answer_limit());
    }

    /// Returns the record of `key`, if there is one now.
    pub fn get(self, key: &str) -> Result<Option<Vec<u8>>, BootError> {
        found(self.0.lookup(key, false, answer_limit()))
    }

    /// Waits for the record of `key`. Returns `None` when the deadline has passed, or as soon as the rank that had
    /// registered it has ended, or no other rank is left.
    pub fn find(self, key: &str, deadline: Deadline) -> Result<Option<Vec<u8>>, BootError> {
        found(self.0.lookup(key, true, deadline.instant()))
    }

    /// Waits like [`find`](JobTable::find), as long as the record `is_wanted`.
    pub fn find_while(
        self,
        key: &str,
        deadline: Deadline,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<u8>>, BootError> {
        let is_over = || !is_wanted();
        match self.0.lookup_of(key, Maker::Anyone, deadline.instant(), Some(&is_over)) {
            Err(BootError::Deadline { .. } | BootError::Interrupted { .. }) => Ok(None),
            answer => found(answer),
        }
    }

    /// Returns the first names of the job, sorted, and the number of all; `None`: there is a record of `key`.
    pub fn names_without(self, key: &str) -> Result<Option<(Vec<String>, u64)>, BootError> {
        match self.0.lookup(key, false, answer_limit()) {
            Err(BootError::NoSuchName { existing, total, .. }) => Ok(Some((existing, total))),
            Err(error) => Err(error),
            Ok(_) => Ok(None),
        }
    }
}

fn found(answer: Result<Record, BootError>) -> Result<Option<Vec<u8>>, BootError> {
    match answer {
        Ok(record) => Ok(Some(record.value)),
        Err(
            BootError::NoSuchName { .. }
            | BootError::NobodyLeft { .. }
            | BootError::PeerLost { .. }
            | BootError::PeerDone { .. },
        ) => Ok(None),
        Err(error) => Err(error),
    }
}

fn answer_limit() -> Instant {
    Deadline::after(ANSWER_LIMIT).instant()
}

#[cfg(test)]
mod tests {
    use udeck_boot::local::Job;

    use super::*;

    /// Longer than some checks whether a record is wanted.
    const LATE: Duration = Duration::from_millis(500);
    const LONG: Duration = Duration::from_secs(60);

    fn two_ranks() -> (Job, [Client; 2]) {
        let (job, streams) = Job::new(2).unwrap();
        let clients: Vec<_> = streams.into_iter().map(|stream| Client::new(stream).unwrap()).collect();
        (job, clients.try_into().unwrap())
    }

    #[test]
    fn a_record_is_waited_for_as_long_as_it_is_wanted() {
        let (_job, [one, other]) = two_ranks();
        let late = std::thread::spawn(move || {
            std::thread::sleep(LATE);
            JobTable(&other).register("late", b"here").unwrap();
            other
        });
        let table = JobTable(&one);
        assert_eq!(table.get("late").unwrap(), None);
        let found = table.find_while("late", Deadline::after(LONG), &|| true);
        assert_eq!(found.unwrap().as_deref(), Some(&b"here"[..]));
        let other = late.join().unwrap();
        assert_eq!(table.find_while("never", Deadline::after(LONG), &|| false).unwrap(), None);
        assert_eq!(
            table.find_while("never", Deadline::after(Duration::from_millis(50)), &|| true).unwrap(),
            None
        );
        assert!(!table.register("late", b"again").unwrap(), "the key is taken");
        JobTable(&other).withdraw("late");
        assert!(table.register("late", b"again").unwrap());
    }

    #[test]
    fn a_wait_ends_with_the_rank_that_had_the_record() {
        let (_job, [one, other]) = two_ranks();
        JobTable(&other).register("gone", b"here").unwrap();
        other.finish(Deadline::after(LONG).instant()).unwrap();
        for key in ["gone", "nobody's"] {
            assert_eq!(JobTable(&one).find_while(key, Deadline::after(LONG), &|| true).unwrap(), None);
            assert_eq!(JobTable(&one).find(key, Deadline::after(LONG)).unwrap(), None);
        }
    }
}
