//! Names: NICs of the ranks of a job by host names, and what programs of VIPL and uDAPL find each other by.
//!
//! | | finds | kept by |
//! |---|---|---|
//! | [`Job`] | NICs that ranks published under host names: VIA's name service in a job | the launcher |
//! | [`HostTable`] | NICs that a text lists by host names | the program |
//! | [`Directory`] | hosts, and who listens there, with and without a launcher | the launcher, or a process of each host |
//!
//! All three are [`NameService`]s.
//!
//! Processes that were started by hand find a host by the operating system's resolver, and there a table of
//! listeners (`standalone.rs`, `table.rs`), which one of that host's processes serves at a well-known port.

pub mod address;
mod entries;
mod job;
mod job_table;
mod launched;
mod secret;
mod standalone;
mod table;
mod wire;

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use udeck_boot::start;
use udeck_via::Deadline;

use crate::registry::encrypts;

pub use job::Job;
pub use udeck_via::names::*;

use crate::NicOptions;
use address::Host;
use launched::Launched;
use standalone::Standalone;

/// Finds listeners of hosts by their keys.
pub trait Listeners: Send + Sync {
    /// The address of this host.
    fn address(&self) -> Host;

    /// Whether `host` is this host, by any of its addresses.
    fn is_own(&self, host: &Host) -> bool {
        *host == self.address()
    }

    /// Makes `key` known for this host, until it is withdrawn or this process ends. `false`: it is known already.
    ///
    /// # Errors
    /// In words.
    fn publish(&self, key: &str, value: &[u8]) -> Result<bool, String>;

    /// Withdraws `key` of this host.
    fn withdraw(&self, key: &str);

    /// Returns the value of `key` at a host. Waits until there is one, at most until the deadline, and as long
    /// as it `is_wanted`. `None`: none was published, or, under a launcher, the rank that had published it has
    /// ended, or no other rank is left.
    ///
    /// # Errors
    /// In words.
    fn find(
        &self,
        host: &Host,
        key: &str,
        deadline: Deadline,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<u8>>, String>;
}

/// Names by which programs of `vipl.h` and uDAPL find each other: hosts, and listeners there. An address of
/// this name service is a [`Host`].
pub trait Directory: NameService + Listeners {
    /// Options for a NIC that other processes of this directory can connect to.
    fn options(&self) -> NicOptions;

    /// Returns the NIC that `VINIC0` names.
    fn default_nic(&self) -> &'static str;

    /// The hosts that can be discovered.
    fn hosts(&self) -> Vec<Host>;
}

/// The directory of the launcher's job, for the life of the process: the launcher gives its connection once.
static LAUNCHED: Mutex<Option<Arc<Launched>>> = Mutex::new(None);
/// The directory of processes started by hand, as long as a NIC is open.
static STANDALONE: Mutex<Weak<Standalone>> = Mutex::new(Weak::new());

/// Opens the directory of this process.
///
/// # Errors
/// In words.
pub fn open() -> Result<Arc<dyn Directory>, String> {
    let found = start::detect(&|name| std::env::var(name).ok()).map_err(|error| error.to_string())?;
    let config = udeck_deck::Config::from_env().map_err(|error| error.to_string())?;
    if found.launcher != start::Launcher::None {
        let mut launched = LAUNCHED.lock();
        let directory = match &*launched {
            Some(directory) => directory.clone(),
            None => launched.insert(Arc::new(Launched::join(&found, config)?)).clone(),
        };
        return Ok(directory);
    }
    let mut standalone = STANDALONE.lock();
    if let Some(directory) = standalone.upgrade() {
        return Ok(directory);
    }
    let directory = Standalone::open(config)?;
    *standalone = Arc::downgrade(&directory);
    Ok(directory)
}

/// The NIC of the first transport that the settings name; with `encrypt`, of the first one that does encrypt between hosts, if
/// there is one.
fn asked_for(config: &udeck_deck::Config, encrypt: bool) -> Option<&'static str> {
    const NICS: [&str; 4] = ["shm0", "tcp0", "udp0", "verbs0"];
    let nic_of = |name: &str| NICS.into_iter().find(|nic| nic.strip_suffix('0') == Some(name.trim()));
    let mut asked = config.transport.as_deref()?.split(',').filter_map(nic_of);
    let first = asked.next()?;
    if !encrypt || encrypts(first) {
        return Some(first);
    }
    asked.find(|nic| encrypts(nic)).or(Some(first))
}
