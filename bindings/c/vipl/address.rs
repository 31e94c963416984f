//! Network addresses: a host, as the directory has it, and a discriminator.
//!
//! A program gets the host's 16 bytes from `VipNSGetHostByName` or `VipQueryNic`, and looks no further into them.

use super::types::NetAddressHead;
pub(super) use udeck::names::address::{HOST, Host, hex};

/// Longest discriminator.
pub(super) const MAX_DISCRIMINATOR: usize = 64;

/// The contents of a program's `VIP_NET_ADDRESS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NetAddress {
    /// `None`: the address has another length than a [`Host`].
    pub host: Option<Host>,
    pub discriminator: Vec<u8>,
}

/// Reads an address. `None`: it is NULL, or its discriminator is too long.
///
/// # Safety
/// NULL, or an address with as many bytes behind its two lengths as these say.
pub(super) unsafe fn read(from: *const NetAddressHead) -> Option<NetAddress> {
    if from.is_null() {
        return None;
    }
    // SAFETY: the two lengths are there.
    let head = unsafe { from.read_unaligned() };
    let (host_len, len) = (usize::from(head.host_len), usize::from(head.discriminator_len));
    if len > MAX_DISCRIMINATOR {
        return None;
    }
    // SAFETY: as many bytes follow as the lengths say.
    let bytes = unsafe {
        std::slice::from_raw_parts(from.cast::<u8>().add(size_of::<NetAddressHead>()), host_len + len)
    };
    let (host, discriminator) = bytes.split_at(host_len);
    Some(NetAddress { host: host.try_into().ok(), discriminator: discriminator.to_vec() })
}

/// Reads the host of an address; bytes behind it may be anything.
///
/// # Safety
/// NULL, or an address with as many bytes behind its two lengths as the first one says.
pub(super) unsafe fn read_host(from: *const NetAddressHead) -> Option<Host> {
    if from.is_null() {
        return None;
    }
    // SAFETY: the length is there.
    let len = unsafe { (&raw const (*from).host_len).read_unaligned() };
    let bytes = from.wrapping_add(1).cast::<Host>();
    // SAFETY: so many bytes follow.
    (usize::from(len) == HOST).then(|| unsafe { bytes.read_unaligned() })
}

/// Writes an address, unless `to` is NULL.
///
/// # Safety
/// NULL, or room for an address with a host and a discriminator of these lengths.
pub(super) unsafe fn write(to: *mut NetAddressHead, host: &[u8], discriminator: &[u8]) {
    // SAFETY: as promised.
    unsafe { write_host(to, host) };
    if to.is_null() {
        return;
    }
    // SAFETY: room for the lengths and so many bytes, as promised.
    unsafe {
        (&raw mut (*to).discriminator_len).write_unaligned(discriminator.len() as u16);
        let bytes = to.cast::<u8>().add(size_of::<NetAddressHead>() + host.len());
        std::ptr::copy_nonoverlapping(discriminator.as_ptr(), bytes, discriminator.len());
    }
}

/// Writes the host of an address, unless `to` is NULL. The program's discriminator stays, with its length.
///
/// # Safety
/// NULL, or room for an address with a host.
pub(super) unsafe fn write_host(to: *mut NetAddressHead, host: &[u8]) {
    if to.is_null() {
        return;
    }
    // SAFETY: room for the length and so many bytes, as promised.
    unsafe {
        (&raw mut (*to).host_len).write_unaligned(host.len() as u16);
        let bytes = to.cast::<u8>().add(size_of::<NetAddressHead>());
        std::ptr::copy_nonoverlapping(host.as_ptr(), bytes, host.len());
    }
}
