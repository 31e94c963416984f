//! VIA's name service for the processes of a job: each process publishes its NICs under host names, and finds
//! those of others.
//!
//! ```
//! use udeck::names::{Job, NameService};
//!
//! let world = udeck::init()?;
//! let names = Job::new(&world);
//! names.publish("server", world.nic())?;                       // on the rank that listens
//! let address = names.net_address("server", 0, b"door")?;      // on another: waits until it is there
//! assert_eq!(address.host, world.nic().attributes().address);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The launcher keeps these names, like those of mailboxes: a host's name belongs to the rank that published
//! it, and is removed when that rank ends. In this table, `NAME` stands for a host and `HEX` for an address:
//!
//! ```text
//! "\u{1}deck/HOST/" index (2 digits) "/" NAME  ->  address      sorted by index first: what an error
//! "\u{1}deck/NIC/" HEX                         ->  NAME         lists begins with hosts' first NICs
//! ```
//!
//! No mailbox can have such a name. Records of other ranks are checked before they are used.

use std::collections::BTreeSet;
use std::time::Duration;

use udeck_boot::BootError;
use udeck_deck::World;
use udeck_via::names::{Known, MAX_NICS_PER_HOST, NameError, NameService, check_address, check_name};
use udeck_via::{Deadline, Error, Nic, Result};

use super::address::hex;
use super::job_table::JobTable;

const HOST: &str = "\u{1}deck/HOST/";
const NIC: &str = "\u{1}deck/NIC/";

/// The name service of a job. Finding a name waits until a rank publishes it, at most [`Job::patience`].
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    table: JobTable<'a>,
    patience: Duration,
}

impl<'a> Job<'a> {
    /// Makes the name service of a world, with its patience for names of mailboxes (`DECK_SETUP_TIMEOUT`).
    pub fn new(world: &'a World) -> Self {
        Job { table: JobTable(world.client()), patience: world.config().setup }
    }

    /// Sets how long to wait for a name, an index or an address; zero for no wait.
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Job { patience, ..self }
    }

    /// Adds `nic` to host `name`, to which other ranks may have added theirs. Returns its index there: NICs are
    /// numbered in order of their arrival. The name lasts until this rank ends.
    ///
    /// # Errors
    /// [`NameError::AddressTaken`] when it is published already, [`NameError::BadName`], [`NameError::BadAddress`],
    /// [`NameError::Service`]; [`Error::Full`] beyond [`MAX_NICS_PER_HOST`].
    pub fn publish(&self, name: &str, nic: &Nic) -> Result<usize> {
        check_name(name)?;
        let address = &nic.attributes().address;
        check_address(address)?;
        let key = nic_key(address);
        if !self.register(name, &key, name.as_bytes())? {
            let owner = self.patience(Duration::ZERO).host_by_address(address)?;
            return Err(NameError::AddressTaken { address: address.clone(), owner }.into());
        }
        // An error of the withdrawal would hide the first one.
        self.number(name, address).inspect_err(|_| self.table.withdraw(&key))
    }

    /// Takes the lowest free index of this host.
    fn number(&self, name: &str, address: &[u8]) -> Result<usize> {
        for index in 0..MAX_NICS_PER_HOST {
            if self.register(name, &host_key(name, index), address)? {
                return Ok(index);
            }
        }
        Err(Error::Full { what: "a host", bound: format!("{MAX_NICS_PER_HOST} NICs of {name:?}").into() })
    }

    fn register(&self, name: &str, key: &str, value: &[u8]) -> Result<bool> {
        self.table.register(key, value).map_err(|error| failed(format!("publishing host {name:?}"), error))
    }

    /// Returns the record of `key`. Returns `None` if there is none when the patience ends, or as soon as the
    /// rank that had registered it has ended, or no other rank is left.
    fn find(&self, key: &str, what: impl Fn() -> String) -> Result<Option<Vec<u8>>> {
        let found = match self.patience {
            Duration::ZERO => self.table.get(key),
            patience => self.table.find(key, Deadline::after(patience)),
        };
        found.map_err(|error| failed(what(), error))
    }

    /// Returns the hosts that exist.
    fn known(&self) -> Result<Known> {
        let names =
            self.table.names_without(HOST).map_err(|error| failed("listing the hosts".into(), error))?;
        let Some((existing, total)) = names else { return Err(refused("it has a host without a name")) };
        let hosts: Vec<_> = existing.iter().filter_map(|key| host_of(key)).collect();
        // The list has the first names of any kind. If all of them are hosts', there may be more hosts.
        let more = hosts.len() == existing.len() && total > hosts.len() as u64;
        // A host whose first NIC is gone may have others.
        let names: BTreeSet<_> = hosts.into_iter().map(str::to_owned).collect();
        Ok(Known { names: names.into_iter().collect(), more })
    }

    fn described(&self) -> String {
        match self.patience {
            Duration::ZERO => "the job's name service".into(),
            patience => format!("the job's name service, asked for at most {patience:.1?},"),
        }
    }

    #[cold]
    fn no_such(&self, name: &str, index: usize) -> Result<NameError> {
        let (now, what) = (self.patience(Duration::ZERO), || format!("counting the NICs of host {name:?}"));
        let mut count = 0;
        // The NICs of ranks that have ended leave gaps.
        for index in 0..MAX_NICS_PER_HOST {
            count += usize::from(now.find(&host_key(name, index), what)?.is_some());
        }
        let (name, service) = (name.to_owned(), self.described());
        Ok(match count {
            0 => NameError::UnknownHost { name, service, known: self.known()? },
            _ => NameError::NoSuchIndex { name, index, count, service },
        })
    }
}

impl NameService for Job<'_> {
    /// Blocks until the name is published, at most the patience.
    fn host_by_name(&self, name: &str, index: usize) -> Result<Vec<u8>> {
        check_name(name)?;
        let what = || format!("looking up NIC {index} of host {name:?}");
        // An index that cannot exist is not waited for.
        let found = if index < MAX_NICS_PER_HOST { self.find(&host_key(name, index), what)? } else { None };
        let Some(address) = found else { return Err(self.no_such(name, index)?.into()) };
        check_address(&address)?;
        Ok(address)
    }

    /// Blocks until the address is published, at most the patience.
    fn host_by_address(&self, address: &[u8]) -> Result<String> {
        check_address(address)?;
        let Some(name) = self.find(&nic_key(address), || "looking up an address".into())? else {
            let (address, service) = (address.to_vec(), self.described());
            return Err(NameError::UnknownAddress { address, service, known: self.known()? }.into());
        };
        let name = String::from_utf8(name).map_err(|_| refused("it has a host whose name is not UTF-8"))?;
        check_name(&name)?;
        Ok(name)
    }
}

fn host_key(name: &str, index: usize) -> String {
    format!("{HOST}{index:02}/{name}")
}

/// Returns the host of a key, or `None` for another kind of key.
fn host_of(key: &str) -> Option<&str> {
    key.strip_prefix(HOST)?.split_once('/').map(|(_, name)| name)
}

fn nic_key(address: &[u8]) -> String {
    format!("{NIC}{}", hex(address))
}

#[cold]
fn failed(what: String, error: BootError) -> Error {
    NameError::Service { what, source: Box::new(error) }.into()
}

#[cold]
fn refused(why: &'static str) -> Error {
    NameError::Service { what: "the job's name service".into(), source: why.into() }.into()
}
