//! The directory under a launcher: hosts are those of the job, and its name service keeps the listeners.

#![allow(unsafe_code, reason = "C's atexit, which has no Rust interface")]

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::time::Duration;

use udeck_boot::{Client, start};
use udeck_deck::Config;
use udeck_via::Deadline;
use udeck_via::names::{Known, NameError, NameService};

use super::address::{self, Host};
use super::job_table::JobTable;
use super::{Directory, Listeners, asked_for};
use crate::registry::{NicOptions, network_nic};

/// Name of the directory, for errors.
const SERVICE: &str = "the job";
/// Time that the goodbye to the launcher may take.
const GOODBYE: Duration = Duration::from_secs(60);
/// Time that another host may be silent, if `DECK_DETECT` does not say.
const DETECT: Duration = Duration::from_secs(10);

pub(crate) struct Launched {
    client: &'static Client,
    options: NicOptions,
    /// The host of this rank.
    own: u32,
    nic: &'static str,
}

/// This process's one connection to its launcher, for the end of the process.
static CLIENT: OnceLock<Client> = OnceLock::new();

unsafe extern "C" {
    fn atexit(at_exit: extern "C" fn()) -> std::ffi::c_int;
}

/// Tells the launcher that this rank ends in order. A process that returns from `main` or calls `exit` comes here.
extern "C" fn say_goodbye() {
    // Unwinding through the C library's frames is undefined. Only a goodbye is lost.
    let _ = std::panic::catch_unwind(|| {
        if let Some(client) = CLIENT.get().filter(|_| !udeck_via::is_forked()) {
            // The launcher sees the end of the process in any case.
            let _ = client.finish(Deadline::after(GOODBYE).instant());
        }
    });
}

impl Launched {
    pub fn join(found: &start::Found, config: Config) -> Result<Launched, String> {
        let options = start::Options {
            limit: 2 * config.setup,
            detect: config.detect.unwrap_or(DETECT),
            interface: std::env::var(start::ENV_INTERFACE).ok(),
        };
        let client = start::join(found, &options).map_err(|error| error.to_string())?;
        let client = CLIENT.get_or_init(|| client);
        // SAFETY: the function is there as long as the program, and may be called at its end.
        if unsafe { atexit(say_goodbye) } != 0 {
            return Err("the C library takes no more functions for the end of the process (atexit)".into());
        }
        let placement = &client.welcome().placement;
        let own = placement.host_of(client.welcome().rank).unwrap_or(0) as u32;
        let mut options = NicOptions::configured(client.keys(), &config).map_err(|why| why.to_string())?;
        options.bind = client.welcome().address;
        let has_others = placement.hosts().len() > 1;
        options.encrypt = config.encrypt && has_others;
        let by_hosts = if has_others { network_nic(options.encrypt) } else { "shm0" };
        let nic = asked_for(&config, options.encrypt).unwrap_or(by_hosts);
        Ok(Launched { client, options, own, nic })
    }

    fn host_names(&self) -> &[String] {
        self.client.welcome().placement.hosts()
    }

    fn known(&self) -> Known {
        let names: BTreeSet<String> = self.host_names().iter().cloned().collect();
        Known::new(names)
    }

    fn table(&self) -> JobTable<'_> {
        JobTable(self.client)
    }

    fn key(host: u32, key: &str) -> String {
        format!("\u{1}directory/{host}/{key}")
    }
}

impl NameService for Launched {
    /// A host of the job, by the name that the launcher has for it, `localhost`, or `rank0` for that of rank 0.
    /// Several hosts of one name are its indices.
    fn host_by_name(&self, name: &str, index: usize) -> udeck_via::Result<Vec<u8>> {
        let placement = &self.client.welcome().placement;
        let rank = name.strip_prefix("rank").and_then(|rank| rank.parse().ok());
        let of_rank = rank.and_then(|rank| placement.host_of(rank)).map(|host| host as u32);
        let named: Vec<u32> = match name {
            "localhost" => vec![self.own],
            _ if of_rank.is_some() => of_rank.into_iter().collect(),
            _ => (0u32..)
                .zip(self.host_names())
                .filter(|(_, host)| host.as_str() == name || host.split('.').next() == Some(name))
                .map(|(nth, _)| nth)
                .collect(),
        };
        // This host may be called otherwise by its own kernel than by the launcher.
        let is_own =
            || std::fs::read_to_string("/proc/sys/kernel/hostname").is_ok_and(|own| own.trim() == name);
        if let Some(host) = named.get(index) {
            return Ok(address::of_job(*host).to_vec());
        }
        let (name, service, count) = (name.to_owned(), SERVICE.to_owned(), named.len());
        let error = match count {
            0 if index == 0 && is_own() => return Ok(self.address().to_vec()),
            0 => NameError::UnknownHost { name, service, known: self.known() },
            _ => NameError::NoSuchIndex { name, index, count, service },
        };
        Err(error.into())
    }

    fn host_by_address(&self, host: &[u8]) -> udeck_via::Result<String> {
        let nth = host.try_into().ok().and_then(address::job_host);
        let name = nth.and_then(|nth| self.host_names().get(nth as usize)).cloned();
        Ok(name.ok_or_else(|| {
            let (address, service) = (host.to_vec(), SERVICE.to_owned());
            NameError::UnknownAddress { address, service, known: self.known() }
        })?)
    }
}

impl Directory for Launched {
    fn options(&self) -> NicOptions {
        self.options.clone()
    }

    fn default_nic(&self) -> &'static str {
        self.nic
    }

    fn hosts(&self) -> Vec<Host> {
        (0..self.host_names().len() as u32).map(address::of_job).collect()
    }
}

impl Listeners for Launched {
    fn address(&self) -> Host {
        address::of_job(self.own)
    }

    fn publish(&self, key: &str, value: &[u8]) -> Result<bool, String> {
        self.table().register(&Self::key(self.own, key), value).map_err(|error| error.to_string())
    }

    fn withdraw(&self, key: &str) {
        self.table().withdraw(&Self::key(self.own, key));
    }

    fn find(
        &self,
        host: &Host,
        key: &str,
        deadline: Deadline,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<u8>>, String> {
        let Some(host) = address::job_host(host) else {
            return Err("the address is that of no host of the job: VipNSGetHostByName gives one".into());
        };
        let found = self.table().find_while(&Self::key(host, key), deadline, is_wanted);
        found.map_err(|error| error.to_string())
    }
}
