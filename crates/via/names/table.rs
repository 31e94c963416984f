//! Host table in memory, or from a file.

use std::collections::BTreeMap;

use super::error::{Known, NameError};
use super::{MAX_NICS, MAX_NICS_PER_HOST, NameService, check_address, check_name};
use crate::{Error, Result};

/// A table of hosts, as M-VIA keeps one in `vip_hosts`. It answers at once.
///
/// Its text has a line per host: the name, then the addresses of its NICs. Each address is `0x` and pairs of hexadecimal
/// digits or, if it is printable ASCII without quotes, that text in double quotes. `#` begins a comment. `Display` writes the
/// form that [`HostTable::parse`] reads.
///
/// ```
/// use udeck_via::names::{HostTable, NameService};
///
/// let table: HostTable = "# name  NICs\nnode0 0x00a0c914c829 0x00a0c914c82a\nnode1 \"nic0\"".parse()?;
/// assert_eq!(table.host_by_name("node1", 0)?, b"nic0");
/// assert_eq!(table.host_by_address(&[0x00, 0xa0, 0xc9, 0x14, 0xc8, 0x2a])?, "node0");
/// # Ok::<(), udeck_via::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct HostTable {
    /// Origin of the table, for errors.
    origin: String,
    hosts: BTreeMap<String, Vec<Vec<u8>>>,
    /// Host of each address: as many addresses as in `hosts`.
    owners: BTreeMap<Vec<u8>, String>,
}

impl Default for HostTable {
    fn default() -> Self {
        HostTable::new()
    }
}

impl HostTable {
    /// An empty table.
    pub fn new() -> Self {
        HostTable::from_origin("the table of hosts")
    }

    pub(super) fn from_origin(origin: &str) -> Self {
        HostTable { origin: origin.to_owned(), hosts: BTreeMap::new(), owners: BTreeMap::new() }
    }

    /// Adds a NIC to host `name`, which need not exist yet. Returns the NIC's index.
    ///
    /// # Errors
    /// The table stays as it was: [`NameError::BadName`], [`NameError::BadAddress`], [`NameError::AddressTaken`], or
    /// [`Error::Full`] beyond [`MAX_NICS_PER_HOST`] or [`MAX_NICS`].
    pub fn add(&mut self, name: &str, address: &[u8]) -> Result<usize> {
        check_name(name)?;
        check_address(address)?;
        if let Some(owner) = self.owners.get(address) {
            return Err(NameError::AddressTaken { address: address.to_vec(), owner: owner.clone() }.into());
        }
        if self.owners.len() == MAX_NICS {
            return Err(Error::Full { what: "the table of hosts", bound: format!("{MAX_NICS} NICs").into() });
        }
        let index = self.hosts.get(name).map_or(0, Vec::len);
        if index == MAX_NICS_PER_HOST {
            let bound = format!("{MAX_NICS_PER_HOST} NICs of {name:?}");
            return Err(Error::Full { what: "a host", bound: bound.into() });
        }
        self.hosts.entry(name.to_owned()).or_default().push(address.to_vec());
        self.owners.insert(address.to_vec(), name.to_owned());
        Ok(index)
    }

    /// The hosts, sorted by name, with their NICs' addresses by index.
    pub fn hosts(&self) -> impl Iterator<Item = (&str, &[Vec<u8>])> {
        self.hosts.iter().map(|(name, addresses)| (&name[..], &addresses[..]))
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.hosts.contains_key(name)
    }

    fn known(&self) -> Known {
        Known::new(self.hosts.keys().cloned())
    }
}

impl NameService for HostTable {
    fn host_by_name(&self, name: &str, index: usize) -> Result<Vec<u8>> {
        let (name, service) = (name.to_owned(), self.origin.clone());
        let Some(addresses) = self.hosts.get(&name) else {
            return Err(NameError::UnknownHost { name, service, known: self.known() }.into());
        };
        let count = addresses.len();
        let address = addresses.get(index).cloned();
        Ok(address.ok_or(NameError::NoSuchIndex { name, index, count, service })?)
    }

    fn host_by_address(&self, address: &[u8]) -> Result<String> {
        let owner = self.owners.get(address).cloned();
        Ok(owner.ok_or_else(|| {
            let (address, service) = (address.to_vec(), self.origin.clone());
            NameError::UnknownAddress { address, service, known: self.known() }
        })?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> HostTable {
        let mut table = HostTable::new();
        for (index, (name, address)) in [("b", "b0"), ("b", "b1"), ("a", "a0")].into_iter().enumerate() {
            assert_eq!(table.add(name, address.as_bytes()).unwrap(), [0, 1, 0][index]);
        }
        table
    }

    #[test]
    fn nics_are_found_by_name_and_index_and_by_address() {
        let table = table();
        for (name, index, address) in [("a", 0, "a0"), ("b", 0, "b0"), ("b", 1, "b1")] {
            assert_eq!(table.host_by_name(name, index).unwrap(), address.as_bytes());
            assert_eq!(table.host_by_address(address.as_bytes()).unwrap(), name);
        }
        let to = table.net_address("b", 1, b"door").unwrap();
        assert_eq!((&to.host[..], &to.discriminator[..]), (&b"b1"[..], &b"door"[..]));
    }

    #[test]
    fn errors_say_what_was_asked_and_what_exists() {
        let table = table();
        let cases = [
            (
                table.host_by_name("c", 0).unwrap_err(),
                "the table of hosts knows no host \"c\"; there are: a, b",
            ),
            (
                table.host_by_name("b", 2).unwrap_err(),
                "the table of hosts knows 2 NICs of host \"b\", and 2 is the number of none (they count from 0)",
            ),
            (
                table.host_by_address(b"c0").map(drop).unwrap_err(),
                "the table of hosts knows no host at \"c0\"; there are: a, b",
            ),
            (
                HostTable::new().host_by_address(&[0, 0xff]).map(drop).unwrap_err(),
                "the table of hosts knows no host at 0x00ff; there are no hosts",
            ),
        ];
        for (error, text) in cases {
            assert!(matches!(error, Error::NameService(_)));
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn what_cannot_be_added_changes_nothing() {
        let mut table = table();
        let before = table.to_string();
        let long = "n".repeat(super::super::MAX_NAME + 1);
        for name in ["", "two words", "#1", "a\"b", "a\u{7}", &long] {
            let error = table.add(name, b"new").unwrap_err();
            assert!(error.to_string().contains("cannot be a host's name"), "{error}");
        }
        for address in [&[][..], &[1; super::super::MAX_ADDRESS + 1]] {
            let error = table.add("a", address).unwrap_err();
            assert!(error.to_string().contains("1 to 108 are possible"), "{error}");
        }
        let error = table.add("a", b"b1").unwrap_err();
        assert_eq!(error.to_string(), "the address \"b1\" is known already, as that of host \"b\"");
        assert_eq!(table.to_string(), before);
    }

    #[test]
    fn hosts_and_tables_are_bounded() {
        let mut table = HostTable::new();
        for nic in 0..MAX_NICS {
            let address = (nic as u32).to_be_bytes();
            assert_eq!(
                table.add(&format!("h{}", nic / MAX_NICS_PER_HOST), &address).unwrap(),
                nic % MAX_NICS_PER_HOST
            );
        }
        let full = |error| matches!(error, Error::Full { what: "the table of hosts", .. });
        assert!(full(table.add("one-more", b"x").unwrap_err()));
        let mut one = HostTable::new();
        for nic in 0..MAX_NICS_PER_HOST as u8 {
            one.add("a", &[nic]).unwrap();
        }
        assert!(matches!(one.add("a", b"x"), Err(Error::Full { what: "a host", .. })));
        one.add("b", b"x").unwrap();
        let listed = table.host_by_name("?", 0).unwrap_err().to_string();
        assert!(
            listed.ends_with(" and others") && listed.matches(", ").count() == Known::LISTED - 1,
            "{listed}"
        );
    }
}
