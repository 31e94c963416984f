//! The NICs of a world: in order of preference, and all over the same memory, so that a message can be made before it is
//! known where it goes.

use std::sync::Arc;

use udeck_via::mem::CacheUse;
use udeck_via::{Deadline, Error as ViaError, Nic, Ptag};

use crate::error::{Error, Result};
use crate::routes::wire::{MAX_ADDRESS, MAX_DOORS, is_transport};
use crate::routes::{Lacking, Passed};

/// At least one.
pub(crate) struct Nics {
    pub first: Line,
    pub others: Vec<Line>,
    /// Those that this host cannot have, each with the number of better ones.
    lacking: Vec<Lacking>,
}

/// One of them.
pub(crate) struct Line {
    pub nic: Nic,
    /// `shm` of `shm0`.
    pub transport: String,
    /// Of all postboxes' VIs on it, and of adopted memory. (One each would stay with the NIC when they are gone.)
    pub postboxes: Ptag,
}

impl Nics {
    /// # Errors
    /// [`Error::Via`] when there are none, or when blocks of one are not blocks of all.
    pub fn new(nics: Vec<Nic>, lacking: Vec<Lacking>) -> Result<Self> {
        let refused = |why: String| Error::via("making a world", ViaError::InvalidParameter(why));
        if !(1..=MAX_DOORS).contains(&nics.len()) {
            return Err(refused(format!("it has 1 to {MAX_DOORS} NICs, not {}", nics.len())));
        }
        let mut lines = nics.into_iter().map(Line::new);
        let first = lines.next().expect("counted");
        let others: Vec<Line> = lines.collect();
        if let Some(line) = [&first].into_iter().chain(&others).find(|line| !line.can_be_told()) {
            let name = &line.nic.attributes().name;
            return Err(refused(format!(
                "no record of a mailbox can have the name or the address of {name}"
            )));
        }
        let same = |line: &&Line| {
            Arc::ptr_eq(line.nic.outbox(), first.nic.outbox())
                && Arc::ptr_eq(line.nic.landing(), first.nic.landing())
        };
        if let Some(stranger) = others.iter().find(|line| !same(line)) {
            let [theirs, ours] = [stranger, &first].map(|line| &line.nic.attributes().name);
            return Err(refused(format!("{theirs} has not the memory of {ours}: open it over that")));
        }
        Ok(Nics { first, others, lacking })
    }

    /// What there is to say of the NICs before the one at `at`: `passed`, and those that this host cannot have.
    pub fn all_passed(&self, at: usize, passed: Vec<Passed>) -> Vec<Passed> {
        let mut all = Vec::new();
        let mut passed = passed.into_iter();
        for place in 0..=at {
            all.extend(
                self.lacking
                    .iter()
                    .filter(|(better, _)| *better == place)
                    .map(|(_, lacking)| lacking.clone()),
            );
            all.extend(passed.next());
        }
        all.extend(passed);
        all
    }

    /// The best first.
    pub fn iter(&self) -> impl Iterator<Item = &Line> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// The longest message that each of them carries: it is made before it is known where it goes.
    pub fn max_transfer(&self) -> usize {
        let others = self.others.iter().map(|line| line.nic.attributes().max_transfer);
        others.fold(self.first.nic.attributes().max_transfer, usize::min)
    }

    /// See [`Nic::reclaim_recent`].
    #[inline]
    pub fn reclaim_recent(&self) {
        self.first.nic.reclaim_recent();
        self.others.iter().for_each(|line| line.nic.reclaim_recent());
    }

    /// See [`Nic::reclaim`].
    pub fn reclaim(&self) {
        self.iter().for_each(|line| line.nic.reclaim());
    }

    /// See [`Nic::drain`].
    pub fn drain(&self, deadline: Deadline) -> Result<(), ViaError> {
        self.iter().try_for_each(|line| line.nic.drain(deadline))
    }

    /// See [`Nic::bytes_copied`].
    pub fn bytes_copied(&self) -> u64 {
        self.iter().map(|line| line.nic.bytes_copied()).sum()
    }

    /// See [`Nic::registrations`].
    pub fn registrations(&self) -> CacheUse {
        let mut all = CacheUse::default();
        self.iter().for_each(|line| all += line.nic.registrations());
        all
    }
}

impl Line {
    fn new(nic: Nic) -> Self {
        let name = &nic.attributes().name;
        let transport = name.trim_end_matches(|last: char| last.is_ascii_digit()).to_owned();
        Line { postboxes: nic.ptag(), transport, nic }
    }

    /// Whether others can be told of it.
    fn can_be_told(&self) -> bool {
        is_transport(&self.transport) && self.nic.attributes().address.len() <= MAX_ADDRESS
    }
}
