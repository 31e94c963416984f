//! Description of the device that [`Hca::open`] chooses, as text.

use std::net::{IpAddr, Ipv6Addr};

use udeck_via::Result;

use crate::ffi::codes::gid_type;
use crate::hca::Hca;
use crate::queue::mtu;
use crate::settings::Settings;

/// Describes the device, port, address and partition that a NIC at the address `bind` uses, and the length of its
/// packets, by the environment's settings: `rxe0 port 1, GID 1 (RoCE v2, 10.0.0.1), packets of up to 4096 bytes,
/// P_Key 0xffff`. Opens the device, and closes it again.
///
/// # Errors
/// The errors of [`crate::open`].
pub fn describe(bind: IpAddr) -> Result<String> {
    let settings = Settings::from_env()?;
    let hca = Hca::open(&settings, bind)?;
    let mut words = vec![format!("{} port {}", hca.name, hca.port)];
    if !hca.ethernet {
        words.push(format!("LID {:#x}", hca.port_attributes.lid));
    }
    let gid = Ipv6Addr::from(hca.gid.raw);
    if !gid.is_unspecified() {
        let kind = match hca.context.gid(hca.port, hca.gid_index.into()) {
            Some((_, Some(gid_type::ROCE_V2))) => "RoCE v2, ",
            Some((_, Some(gid_type::ROCE_V1))) => "RoCE v1, ",
            _ => "",
        };
        let shown = gid.to_ipv4_mapped().map_or_else(|| gid.to_string(), |v4| v4.to_string());
        words.push(format!("GID {} ({kind}{shown})", hca.gid_index));
    }
    words.push(format!("packets of up to {} bytes", 128_u32 << mtu(&hca, &settings)));
    words.push(format!("P_Key {:#06x}", hca.pkey));
    Ok(words.join(", "))
}
