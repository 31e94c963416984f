//! Connections.

use std::time::Duration;

use super::{Outcome, call, nic, put, some};
use crate::vipl::address::{self, NetAddress};
use crate::vipl::connect::{self, CONNS, Conn, deadline};
use crate::vipl::handle::Handle;
use crate::vipl::types::{NetAddressHead, Ulong, ViAttributes, VipReturn};
use crate::vipl::vi::VIS;

/// # Safety
/// As of `address::read`.
unsafe fn read(from: *const NetAddressHead) -> Result<NetAddress, VipReturn> {
    // SAFETY: as promised.
    unsafe { address::read(from) }.ok_or(VipReturn::INVALID_PARAMETER)
}

/// Waits for a connection request at a discriminator.
///
/// # Safety
/// The addresses are NULL or have, or have room for, what they say; the others are NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipConnectWait(
    of: Handle,
    local: *const NetAddressHead,
    timeout: Ulong,
    remote: *mut NetAddressHead,
    attributes: *mut ViAttributes,
    handle: *mut Handle,
) -> VipReturn {
    call("VipConnectWait", || {
        let nic = nic(of)?;
        some(handle)?;
        // SAFETY: as C promises.
        let local = unsafe { read(local) }?;
        let conn = connect::wait(&nic, &local, deadline(timeout))?;
        let theirs = conn.theirs.clone();
        // SAFETY: NULL, or room for an address of this NIC's lengths, as C promises.
        unsafe { address::write(remote, &theirs.host, &theirs.discriminator) };
        if !attributes.is_null() {
            // SAFETY: not NULL, so valid for writing, as C promises.
            unsafe { put(attributes, theirs.attributes()) }?;
        }
        let made = CONNS.insert(|_| conn).ok_or(VipReturn::ERROR_RESOURCE)?;
        // SAFETY: as above.
        unsafe { put(handle, made) }
    })
}

fn conn(handle: Handle) -> Result<Conn, VipReturn> {
    CONNS.remove(handle, |_| Ok(())).ok_or(VipReturn::INVALID_PARAMETER)?
}

/// Accepts a connection request with a VI.
#[unsafe(no_mangle)]
pub extern "C" fn VipConnectAccept(handle: Handle, vi: Handle) -> VipReturn {
    call("VipConnectAccept", || {
        // Checked first: a request that the VI cannot have keeps its handle.
        let reliability = VIS.lock(vi).ok_or(VipReturn::INVALID_PARAMETER)?.attributes().reliability;
        let theirs = CONNS.lock(handle).ok_or(VipReturn::INVALID_PARAMETER)?.theirs.reliability;
        if reliability != theirs {
            return Err(VipReturn::INVALID_RELIABILITY_LEVEL);
        }
        if VIS.lock(vi).is_some_and(|vi| vi.state() != crate::vipl::types::ViState::IDLE) {
            return Err(VipReturn::INVALID_STATE);
        }
        connect::accept(conn(handle)?, vi)
    })
}

/// Rejects a connection request.
#[unsafe(no_mangle)]
pub extern "C" fn VipConnectReject(handle: Handle) -> VipReturn {
    call("VipConnectReject", || {
        conn(handle)?.request.reject("the program there rejects the connection");
        Ok(())
    })
}

/// Asks the listener at a host's discriminator for a connection.
///
/// # Safety
/// The addresses are NULL or have what they say; `attributes` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipConnectRequest(
    vi: Handle,
    local: *const NetAddressHead,
    remote: *const NetAddressHead,
    timeout: Ulong,
    attributes: *mut ViAttributes,
) -> VipReturn {
    call("VipConnectRequest", || {
        // SAFETY: as C promises.
        let (local, remote) = unsafe { (read(local)?, read(remote)?) };
        let host = remote.host.ok_or(VipReturn::INVALID_PARAMETER)?;
        let theirs = connect::request(vi, &local, &host, &remote.discriminator, deadline(timeout))?;
        give(attributes, theirs)
    })
}

fn give(to: *mut ViAttributes, theirs: ViAttributes) -> Outcome {
    if to.is_null() {
        return Ok(()); // the program does not want the attributes
    }
    // SAFETY: not NULL, so valid for writing, as C promises.
    unsafe { put(to, theirs) }
}

/// Ends the connection.
#[unsafe(no_mangle)]
pub extern "C" fn VipDisconnect(vi: Handle) -> VipReturn {
    call("VipDisconnect", || match VIS.lock(vi).ok_or(VipReturn::INVALID_PARAMETER)?.disconnect() {
        VipReturn::SUCCESS => Ok(()),
        code => Err(code),
    })
}

/// Asks a peer for a connection while the peer asks for the same.
///
/// # Safety
/// The addresses are NULL or have what they say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipConnectPeerRequest(
    vi: Handle,
    local: *const NetAddressHead,
    remote: *const NetAddressHead,
    timeout: Ulong,
) -> VipReturn {
    call("VipConnectPeerRequest", || {
        // SAFETY: as C promises.
        let (local, remote) = unsafe { (read(local)?, read(remote)?) };
        let host = remote.host.ok_or(VipReturn::INVALID_PARAMETER)?;
        connect::peer_request(vi, local, host, remote.discriminator, deadline(timeout))
    })
}

/// Whether the connection with the peer is there.
///
/// # Safety
/// `attributes` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipConnectPeerDone(vi: Handle, attributes: *mut ViAttributes) -> VipReturn {
    call("VipConnectPeerDone", || {
        let theirs = VIS.lock(vi).ok_or(VipReturn::INVALID_PARAMETER)?.peer_done()?;
        give(attributes, theirs)
    })
}

/// Waits for the connection with the peer, until the request's time is over.
///
/// # Safety
/// `attributes` is NULL or valid for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn VipConnectPeerWait(vi: Handle, attributes: *mut ViAttributes) -> VipReturn {
    call("VipConnectPeerWait", || {
        loop {
            let outcome = VIS.lock(vi).ok_or(VipReturn::INVALID_PARAMETER)?.peer_done();
            match outcome {
                // The request itself ends at its deadline.
                Err(VipReturn::NOT_DONE) => std::thread::sleep(Duration::from_micros(200)),
                Err(code) => return Err(code),
                Ok(theirs) => return give(attributes, theirs),
            }
        }
    })
}
