//! A rank's state of sharing with others of its host: the service by which it passes segments, and the number
//! of segments by name.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

use parking_lot::Mutex;
use udeck_boot::Client;
use udeck_via::segments::{Service, Shape};

/// State of sharing: see the module.
#[derive(Default)]
pub(crate) struct Sharing {
    /// The service, started by the first segment that this rank makes for others.
    service: Mutex<Option<Service>>,
    /// Number of segments that this rank has had, by name.
    rounds: Mutex<HashMap<String, u64>>,
}

impl Sharing {
    /// Serves a segment to the ranks that ask for it. `make_known` publishes the address, once.
    pub fn offer<E>(
        &self,
        client: &Client,
        shape: Shape,
        fd: OwnedFd,
        make_known: impl FnOnce(&[u8]) -> Result<(), E>,
    ) -> Result<(), E>
    where
        E: From<io::Error>,
    {
        let mut service = self.service.lock();
        if service.is_none() {
            let started = Service::start(client.keys())?;
            make_known(started.address())?;
            *service = Some(started);
        }
        if let Some(service) = &*service {
            service.offer(shape, fd);
        }
        Ok(())
    }

    /// Withdraws a segment: all ranks have it, or sharing it failed.
    pub fn withdraw(&self, name: &str, round: u64) {
        if let Some(service) = &*self.service.lock() {
            service.withdraw(name, round);
        }
    }

    /// Number of the next segment by this name.
    pub fn next_round(&self, name: &str) -> u64 {
        self.rounds.lock().get(name).copied().unwrap_or(0)
    }

    /// Notes that the segment of this number exists.
    pub fn end_round(&self, name: &str, round: u64) {
        self.rounds.lock().insert(name.to_owned(), round + 1);
    }
}
