//! The NICs of a world, in order of preference. All of them use the same memory, so that a program can make a message before it
//! chooses the receiver.

use std::sync::Arc;

use udeck_via::mem::CacheUse;
use udeck_via::{Deadline, Error as ViaError, Nic, Ptag};

use crate::connect::wire::{MAX_ADDRESS, MAX_ENDPOINTS, is_transport};
use crate::error::{Error, Result};
use crate::route::{SkippedTransport, UnavailableTransport};

/// The NICs of a world: at least one.
pub(crate) struct Nics {
    pub first: WorldNic,
    pub others: Vec<WorldNic>,
    /// Preferred transports that this host cannot have, each with the number of better NICs.
    unavailable: Vec<UnavailableTransport>,
}

/// One NIC of a world.
pub(crate) struct WorldNic {
    pub nic: Nic,
    /// Name of the transport: `shm` for `shm0`.
    pub transport: String,
    /// Protection tag of all postboxes' VIs on this NIC, and of external memory. (Separate tags would stay
    /// with the NIC after their postboxes.)
    pub postboxes: Ptag,
}

impl Nics {
    /// Makes the list of a world's NICs.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there are none, or if they do not share the same memory.
    pub fn new(nics: Vec<Nic>, unavailable: Vec<UnavailableTransport>) -> Result<Self> {
        let refused = |why: String| Error::InvalidArgument { what: "making a world".into(), why };
        if !(1..=MAX_ENDPOINTS).contains(&nics.len()) {
            return Err(refused(format!("a world has 1 to {MAX_ENDPOINTS} NICs, not {}", nics.len())));
        }
        let mut world_nics = nics.into_iter().map(WorldNic::new);
        let first = world_nics.next().expect("counted");
        let others: Vec<WorldNic> = world_nics.collect();
        if let Some(world_nic) =
            [&first].into_iter().chain(&others).find(|world_nic| !world_nic.fits_advert())
        {
            let name = &world_nic.nic.attributes().name;
            return Err(refused(format!(
                "the name or the address of {name} does not fit into the record of a mailbox"
            )));
        }
        let same = |world_nic: &&WorldNic| {
            Arc::ptr_eq(world_nic.nic.outbox(), first.nic.outbox())
                && Arc::ptr_eq(world_nic.nic.landing(), first.nic.landing())
        };
        if let Some(stranger) = others.iter().find(|world_nic| !same(world_nic)) {
            let [theirs, ours] = [stranger, &first].map(|world_nic| &world_nic.nic.attributes().name);
            return Err(refused(format!(
                "{theirs} does not use the memory of {ours}: open it over that memory"
            )));
        }
        Ok(Nics { first, others, unavailable })
    }

    /// All transports skipped before the NIC at `at`: those in `skipped`, and those that this host cannot
    /// have.
    pub fn all_skipped(&self, at: usize, skipped: Vec<SkippedTransport>) -> Vec<SkippedTransport> {
        let mut all = Vec::new();
        let mut skipped = skipped.into_iter();
        for place in 0..=at {
            all.extend(
                self.unavailable
                    .iter()
                    .filter(|(better, _)| *better == place)
                    .map(|(_, unavailable)| unavailable.clone()),
            );
            all.extend(skipped.next());
        }
        all.extend(skipped);
        all
    }

    /// All NICs, the preferred one first.
    pub fn iter(&self) -> impl Iterator<Item = &WorldNic> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Length of the longest message that every NIC carries: a message is made before its receiver is known.
    pub fn max_transfer(&self) -> usize {
        let others = self.others.iter().map(|world_nic| world_nic.nic.attributes().max_transfer);
        others.fold(self.first.nic.attributes().max_transfer, usize::min)
    }

    /// See [`Nic::reclaim_recent`].
    #[inline]
    pub fn reclaim_recent(&self) {
        self.first.nic.reclaim_recent();
        self.others.iter().for_each(|world_nic| world_nic.nic.reclaim_recent());
    }

    /// See [`Nic::reclaim`].
    pub fn reclaim(&self) {
        self.iter().for_each(|world_nic| world_nic.nic.reclaim());
    }

    /// See [`Nic::drain`].
    pub fn drain(&self, deadline: Deadline) -> Result<(), ViaError> {
        self.iter().try_for_each(|world_nic| world_nic.nic.drain(deadline))
    }

    /// See [`Nic::bytes_copied`].
    pub fn bytes_copied(&self) -> u64 {
        self.iter().map(|world_nic| world_nic.nic.bytes_copied()).sum()
    }

    /// See [`Nic::registrations`].
    pub fn registrations(&self) -> CacheUse {
        let mut all = CacheUse::default();
        self.iter().for_each(|world_nic| all += world_nic.nic.registrations());
        all
    }
}

impl WorldNic {
    fn new(nic: Nic) -> Self {
        let name = &nic.attributes().name;
        let transport = name.trim_end_matches(|last: char| last.is_ascii_digit()).to_owned();
        WorldNic { postboxes: nic.ptag(), transport, nic }
    }

    /// Whether the NIC's name and address fit into an advert.
    fn fits_advert(&self) -> bool {
        is_transport(&self.transport) && self.nic.attributes().address.len() <= MAX_ADDRESS
    }
}
