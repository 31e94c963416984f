//! The port and its tables.

use super::device::configured;
use super::{minus_one, number};
use crate::abi::{
    IBV_LINK_LAYER_INFINIBAND, IBV_PORT_ACTIVE, IBV_PORT_IP_BASED_GIDS, IBV_QPF_GRH_REQUIRED, ibv_context,
    ibv_gid, ibv_gid_entry, ibv_port_attr,
};
use crate::config::Device;
use crate::engine::lid;
use crate::world::with;
use libc::{c_int, ssize_t};

/// Number of entries in the table of GIDs, most of them empty.
pub const GIDS: usize = 16;
/// Bytes that `ibv_query_port` writes: the structure without its last field, as it was before.
const OLD_PORT: usize = std::mem::offset_of!(ibv_port_attr, port_cap_flags2);

/// The device, if `port` is its port.
///
/// # Safety
/// A context that is open.
unsafe fn of(context: *mut ibv_context, port: u32) -> Result<&'static Device, c_int> {
    // SAFETY: handle
    let device = unsafe { configured(context) }.ok_or(libc::EINVAL)?;
    if port == 1 { Ok(device) } else { Err(libc::EINVAL) }
}

/// Queries a port for programs that were built before the structure grew: its last field is not written.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attributes: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: handle
    let device = match unsafe { of(context, u32::from(port)) } {
        Ok(device) => device,
        Err(error) => return number(Err(error)),
    };
    let now = with(|world| world.ports[usize::from(device.index)]);
    if !now.alive {
        return number(Err(libc::EIO));
    }
    let infiniband = device.link == IBV_LINK_LAYER_INFINIBAND;
    let lid = if infiniband { lid(usize::from(device.index)) } else { 0 };
    let full = ibv_port_attr {
        state: now.state,
        max_mtu: 5,
        active_mtu: device.mtu_number(),
        gid_tbl_len: GIDS as c_int,
        port_cap_flags: if infiniband { 0 } else { IBV_PORT_IP_BASED_GIDS },
        max_msg_sz: device.max_message,
        pkey_tbl_len: 1,
        lid,
        sm_lid: lid,
        max_vl_num: 1,
        // The value stands for 4 lanes of 10 Gbit/s.
        active_width: 2,
        active_speed: 4,
        // The value is link up, or polling.
        phys_state: if now.state == IBV_PORT_ACTIVE { 5 } else { 2 },
        link_layer: device.link,
        flags: if infiniband { 0 } else { IBV_QPF_GRH_REQUIRED },
        ..Default::default()
    };
    // SAFETY: The caller's structure has at least so many bytes.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const full).cast::<u8>(), attributes.cast::<u8>(), OLD_PORT)
    };
    0
}

/// Queries a GID. For an empty entry it writes zeros, as kernels do.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    // SAFETY: handle
    let result = unsafe { of(context, u32::from(port)) }.and_then(|device| {
        let index = usize::try_from(index).ok().filter(|index| *index < GIDS).ok_or(libc::EINVAL)?;
        Ok(device.gids.get(index).map_or(ibv_gid::default(), |entry| entry.0))
    });
    minus_one(result.map(|found| {
        // SAFETY: The caller's.
        unsafe { gid.write(found) }
    }))
}

fn entries(device: &Device) -> Vec<ibv_gid_entry> {
    // A RoCE device belongs to the loopback interface.
    let ndev_ifindex = u32::from(device.link != IBV_LINK_LAYER_INFINIBAND);
    let entry = |(index, (gid, gid_type))| ibv_gid_entry {
        gid,
        gid_index: index as u32,
        port_num: 1,
        gid_type,
        ndev_ifindex,
    };
    device.gids.iter().copied().enumerate().map(entry).collect()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    // SAFETY: handle
    let found = unsafe { of(context, port) }.and_then(|device| {
        if flags != 0 || size < size_of::<ibv_gid_entry>() || index as usize >= GIDS {
            return Err(libc::EINVAL);
        }
        entries(device).get(index as usize).copied().ok_or(libc::ENODATA)
    });
    number(found.map(|found| {
        // SAFETY: The caller's, large enough.
        unsafe { entry.write(found) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    table: *mut ibv_gid_entry,
    most: usize,
    flags: u32,
    size: usize,
) -> ssize_t {
    // SAFETY: handle
    let Some(device) = (unsafe { configured(context) }) else { return -(libc::EINVAL as ssize_t) };
    if flags != 0 || size != size_of::<ibv_gid_entry>() {
        return -(libc::EINVAL as ssize_t);
    }
    let found = entries(device);
    if found.len() > most {
        return -(libc::EINVAL as ssize_t);
    }
    for (index, entry) in found.iter().enumerate() {
        // SAFETY: The caller has room for `most`.
        unsafe { table.add(index).write(*entry) };
    }
    found.len() as ssize_t
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    key: *mut u16,
) -> c_int {
    // SAFETY: handle
    let known = unsafe { of(context, u32::from(port)) };
    let known = if index == 0 { known.map(|_| ()) } else { Err(libc::EINVAL) };
    minus_one(known.map(|()| {
        // SAFETY: The caller's.
        unsafe { key.write(0xffff) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, key: u16) -> c_int {
    // SAFETY: handle
    match unsafe { of(context, u32::from(port)) } {
        Ok(_) if key == 0xffff => 0,
        _ => -1,
    }
}
