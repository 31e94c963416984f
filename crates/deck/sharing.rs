//! What a rank remembers of what it shares with others of its host: where it gives segments to them, and how many there were by each
//! name.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;

use parking_lot::Mutex;
use udeck_boot::Client;
use udeck_via::segments::{Service, Shape};

/// See the module.
#[derive(Default)]
pub(crate) struct Sharing {
    /// Started by the first segment that this rank makes for others.
    service: Mutex<Option<Service>>,
    /// How many segments by each name this rank has had.
    rounds: Mutex<HashMap<String, u64>>,
}

impl Sharing {
    /// Gives a segment to those that ask for it. `make_known`: says where, once.
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

    /// All have it, or it came to nothing.
    pub fn withdraw(&self, name: &str, round: u64) {
        if let Some(service) = &*self.service.lock() {
            service.withdraw(name, round);
        }
    }

    /// Which segment by this name is the next.
    pub fn next_round(&self, name: &str) -> u64 {
        self.rounds.lock().get(name).copied().unwrap_or(0)
    }

    /// It is there.
    pub fn end_round(&self, name: &str, round: u64) {
        self.rounds.lock().insert(name.to_owned(), round + 1);
    }
}
