//! VIA's name service: addresses of hosts by name, and names by address.
//!
//! | VIPL | here |
//! |---|---|
//! | `VipNSInit`, `VipNSShutdown` | making and dropping a [`NameService`]: [`HostTable::load`], or the umbrella's `names::Job` |
//! | `VipNSGetHostByName` | [`NameService::host_by_name`] |
//! | `VipNSGetHostByAddr` | [`NameService::host_by_address`] |
//! | `VIP_ERROR_NAMESERVICE` | [`crate::Error::NameService`] |
//!
//! A host has one or more NICs, numbered from 0 in the order in which they became known: VIPL's *index*. An address is that
//! of one NIC ([`crate::NicAttributes::address`]), so it leads back to one name only. A service keeps the entries that it was
//! told, not the NICs: a name whose NIC has closed is found as before, and connecting to it fails.
//!
//! A table never blocks. A service that asks other processes may, and its own documentation says for how long at most.

mod error;
mod table;
mod text;
mod written;

pub use error::{Known, NameError, SyntaxError};
pub use table::HostTable;

use crate::{NetAddress, Result};

/// Longest name of a host, in bytes.
pub const MAX_NAME: usize = 200;
/// Longest address, in bytes: the name of a Unix socket fits.
pub const MAX_ADDRESS: usize = 108;
/// Upper bound of NICs of one host.
pub const MAX_NICS_PER_HOST: usize = 64;
/// Upper bound of NICs of a table.
pub const MAX_NICS: usize = 4096;

/// A service that finds hosts by name and by address. It may be asked from any thread.
pub trait NameService: Send + Sync {
    /// The address of NIC number `index` of host `name` (VIPL: `VipNSGetHostByName`).
    ///
    /// # Errors
    /// [`crate::Error::NameService`]: no such name (lists those that exist), no such index, or the service failed.
    fn host_by_name(&self, name: &str, index: usize) -> Result<Vec<u8>>;

    /// The name of the host that has a NIC at `address` (VIPL: `VipNSGetHostByAddr`).
    ///
    /// # Errors
    /// [`crate::Error::NameService`]: no such address, or the service failed.
    fn host_by_address(&self, address: &[u8]) -> Result<String>;

    /// The address of `discriminator` at that NIC, for [`crate::Vi::connect`].
    ///
    /// # Errors
    /// Those of [`NameService::host_by_name`].
    fn net_address(&self, name: &str, index: usize, discriminator: &[u8]) -> Result<NetAddress> {
        let host = self.host_by_name(name, index)?;
        Ok(NetAddress { host, discriminator: discriminator.to_vec() })
    }
}

/// Checks that a host may have this name: 1 to [`MAX_NAME`] bytes, and one word in a table's text.
///
/// # Errors
/// [`NameError::BadName`].
pub fn check_name(name: &str) -> Result<(), NameError> {
    let why = match name {
        "" => "it is empty",
        _ if name.len() > MAX_NAME => "it is longer than 200 bytes",
        _ if name.contains(|c: char| c.is_whitespace() || c.is_control()) => {
            "it contains spaces or control characters"
        }
        _ if name.contains(['"', '#']) => "it contains a quote or #",
        _ => return Ok(()),
    };
    Err(NameError::BadName { name: name.to_owned(), why })
}

/// Checks that a NIC may have this address: 1 to [`MAX_ADDRESS`] bytes, any.
///
/// # Errors
/// [`NameError::BadAddress`].
pub fn check_address(address: &[u8]) -> Result<(), NameError> {
    match address.len() {
        1..=MAX_ADDRESS => Ok(()),
        len => Err(NameError::BadAddress { len }),
    }
}
