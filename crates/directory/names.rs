//! Discovery for the interfaces of other programs (`vipl.h`, uDAPL): addresses of hosts by their names, and listeners by a host's
//! discriminators.
//!
//! Under a launcher the job's name service knows both (`job.rs`). Processes that were started by hand find the host by the
//! operating system's resolver, and there a table of listeners (`by_hand.rs`, `table.rs`), which one of that host's processes
//! serves at a well-known port.

mod by_hand;
mod job;
mod secret;
mod table;
mod wire;

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use udeck::NicOptions;
use udeck::via::Deadline;
use udeck_boot::start;

use crate::address::Host;

/// Finds hosts, and listeners there.
pub trait Names: Send + Sync {
    /// The address of this host.
    fn address(&self) -> Host;

    /// Whether `host` is this host, by any of its addresses.
    fn is_own(&self, host: &Host) -> bool {
        *host == self.address()
    }

    /// Options for a NIC that other processes with these names can connect to.
    fn options(&self) -> NicOptions;

    /// Returns the NIC that `VINIC0` names.
    fn default_nic(&self) -> &'static str;

    /// The address number `index` of the host with this name.
    ///
    /// # Errors
    /// In words.
    fn host_by_name(&self, name: &str, index: usize) -> Result<Host, String>;

    /// A name of the host.
    ///
    /// # Errors
    /// In words.
    fn host_by_address(&self, host: &Host) -> Result<String, String>;

    /// The hosts that can be discovered.
    fn hosts(&self) -> Vec<Host>;

    /// Makes `key` known for this host, until it is withdrawn or this process ends. `false`: it is known already.
    ///
    /// # Errors
    /// In words.
    fn publish(&self, key: &str, value: &[u8]) -> Result<bool, String>;

    /// Withdraws `key` of this host.
    fn withdraw(&self, key: &str);

    /// Returns the value of `key` at a host. Waits until there is one, at most until the deadline, and as long as it `is_wanted`; `None`:
    /// none was published.
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

/// Names of the launcher's job, for the life of the process: the launcher gives its connection once.
static OF_JOB: Mutex<Option<Arc<job::Job>>> = Mutex::new(None);
/// Names of processes started by hand, as long as a NIC is open.
static BY_HAND: Mutex<Weak<by_hand::ByHand>> = Mutex::new(Weak::new());

/// Opens the names of this process.
///
/// # Errors
/// In words.
pub fn open() -> Result<Arc<dyn Names>, String> {
    let found = start::detect(&|name| std::env::var(name).ok()).map_err(|error| error.to_string())?;
    let config = udeck::Config::from_env().map_err(|error| error.to_string())?;
    if found.launcher != start::Launcher::None {
        let mut of_job = OF_JOB.lock();
        let job = match &*of_job {
            Some(job) => job.clone(),
            None => of_job.insert(Arc::new(job::Job::join(&found, config)?)).clone(),
        };
        return Ok(job);
    }
    let mut by_hand = BY_HAND.lock();
    if let Some(names) = by_hand.upgrade() {
        return Ok(names);
    }
    let names = by_hand::ByHand::open(config)?;
    *by_hand = Arc::downgrade(&names);
    Ok(names)
}

/// The NIC of the first transport that the settings name.
fn asked_for(config: &udeck::Config) -> Option<&'static str> {
    let asked = config.transport.as_deref()?;
    let first = asked.split(',').next()?.trim();
    ["shm0", "tcp0", "udp0", "verbs0"].into_iter().find(|nic| nic.strip_suffix('0') == Some(first))
}
