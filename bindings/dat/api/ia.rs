//! Interface adapters, and protection zones.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use parking_lot::Mutex;
use udeck::names::Listeners;
use udeck::names::address::{Host, ip_of, of_ip};
use udeck::via::{Deadline, Nic};

use super::error::{Error, Result};
use crate::core::qos::Qos;
use crate::core::{self, ep, memory};

/// Most bytes of private data of a connection request or its answer.
pub const MAX_PRIVATE_DATA: usize = core::ia::MAX_PRIVATE;

/// An opened interface adapter: a transport, and the directory that finds peers by their names (DAT 2.0: `DAT_IA`).
///
/// A clone is the same adapter. It closes when it and all objects that were made of it are gone: each object keeps what it
/// was made of. All objects may be used by any thread.
#[derive(Clone)]
pub struct Ia(Arc<Open>);

struct Open {
    core: Arc<core::ia::Ia>,
    known: Arc<Known>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.core.progress.close();
    }
}

/// Address of a service point. It is a plain value: the program may send it to the processes that shall connect.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ServiceAddress {
    /// By a host's IP address and the connection qualifier there.
    Host {
        /// The host.
        ip: IpAddr,
        /// The connection qualifier.
        qualifier: u64,
    },
    /// By the address of the NIC ([`Psp::address`](super::Psp::address)): no directory is asked.
    Nic {
        /// `NicAttributes::address`.
        nic: Vec<u8>,
        /// The connection qualifier.
        qualifier: u64,
    },
}

impl ServiceAddress {
    /// Qualifier `qualifier` of the host with that address.
    pub fn host(ip: impl Into<IpAddr>, qualifier: u64) -> ServiceAddress {
        ServiceAddress::Host { ip: ip.into(), qualifier }
    }

    /// The connection qualifier.
    pub fn qualifier(&self) -> u64 {
        match self {
            ServiceAddress::Host { qualifier, .. } | ServiceAddress::Nic { qualifier, .. } => *qualifier,
        }
    }
}

impl Ia {
    /// Opens a transport by its name: `shm`, `tcp`, `udp` or `verbs` (`dat_ia_open`; no dat.conf is read). Others are found by
    /// IP address and qualifier, with the settings of the page "Coming from uDAPL", section "Who may connect". Blocks while the NIC
    /// opens.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: there is no such transport here, or the settings are wrong.
    pub fn open(transport: &str) -> Result<Ia> {
        const CALL: &str = "dat_ia_open";
        let names = udeck::names::open().map_err(|why| Error::unavailable(CALL, why))?;
        let device = format!("{}0", transport.trim_end_matches('0'));
        let nic = udeck::open_nic(&device, &names.options()).map_err(|why| Error::unavailable(CALL, why))?;
        Ia::over(nic, Some(names))
    }

    /// Makes an adapter of an open NIC, for example that of a [`World`](udeck::World::nic). Service points are then found by
    /// [`ServiceAddress::Nic`], which the program passes on. Does not block.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: the NIC has no completion queue left.
    pub fn on_nic(nic: &Nic) -> Result<Ia> {
        Ia::over(nic.clone(), None)
    }

    fn over(nic: Nic, names: Option<Arc<dyn Listeners>>) -> Result<Ia> {
        let known = Arc::new(Known { names, by_nic: Mutex::default() });
        let name = nic.attributes().name.to_string();
        let core = core::ia::Ia::new(0, name, "", nic, known.clone(), ep::move_on);
        let core = core.map_err(|why| Error::unavailable("dat_ia_open", why))?;
        Ok(Ia(Arc::new(Open { core, known })))
    }

    /// The NIC's name: `shm0`.
    pub fn name(&self) -> &str {
        &self.0.core.name
    }

    /// The address by which others find this host (`dat_ia_query`, `ia_address_ptr`).
    pub fn address(&self) -> IpAddr {
        ip_of(&self.0.core.address)
    }

    /// The longest message, and the longest RDMA, in bytes (`max_message_size`, `max_rdma_size`).
    pub fn max_transfer(&self) -> usize {
        self.0.core.max_transfer()
    }

    /// Returns the quality of a connection that asks for `asked` (`dat_qos_supported`): the same, or [`Qos::BestEffort`] where the NIC has
    /// no service levels.
    pub fn quality(&self, asked: Qos) -> Qos {
        self.0.core.quality(asked)
    }

    /// Sets whether more processes wait than this host has processors: then a waiting thread yields instead of spinning. The default is true
    /// on a host with one processor. May block while another thread polls the adapter, a tenth of a second at most.
    pub fn set_oversubscribed(&self, oversubscribed: bool) {
        self.0.core.progress.set_oversubscribed(oversubscribed);
    }

    /// The NIC below.
    pub fn nic(&self) -> &Nic {
        &self.0.core.nic
    }

    pub(super) fn core(&self) -> &Arc<core::ia::Ia> {
        &self.0.core
    }

    /// Whether both are the same adapter.
    pub(super) fn is(&self, other: &Ia) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether the adapter asks a directory where a qualifier is served.
    pub(super) fn has_directory(&self) -> bool {
        self.0.known.names.is_some()
    }

    /// The number that the objects in `core` know this host by.
    pub(super) fn host_of(&self, address: &ServiceAddress) -> Host {
        match address {
            ServiceAddress::Host { ip, .. } => of_ip(*ip),
            ServiceAddress::Nic { nic, .. } => self.0.known.host_of(nic),
        }
    }
}

impl fmt::Debug for Ia {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ia({}, {})", self.name(), self.address())
    }
}

/// A protection zone: end points, memory and shared queues of one zone may be used together (`DAT_PZ`). A clone is the same
/// zone.
#[derive(Clone)]
pub struct Pz(Arc<Zone>);

struct Zone {
    core: Arc<memory::Pz>,
    ia: Ia,
}

impl Pz {
    /// Creates a zone of this adapter (`dat_pz_create`).
    pub fn new(ia: &Ia) -> Pz {
        Pz(Arc::new(Zone {
            core: Arc::new(memory::Pz { id: memory::next_zone(), handle: 0 }),
            ia: ia.clone(),
        }))
    }

    /// Its adapter (`dat_pz_query`).
    pub fn ia(&self) -> &Ia {
        &self.0.ia
    }

    pub(super) fn id(&self) -> u32 {
        self.0.core.id
    }

    pub(super) fn core(&self) -> &Arc<memory::Pz> {
        &self.0.core
    }
}

impl fmt::Debug for Pz {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pz({}, {:?})", self.id(), self.ia())
    }
}

/// The directory, if there is one, and NICs that the program knows by their addresses.
struct Known {
    names: Option<Arc<dyn Listeners>>,
    by_nic: Mutex<HashMap<Host, Vec<u8>>>,
}

/// Prefix of the host numbers that stand for NICs. No host's address begins like this.
const OF_NIC: &[u8; 12] = b"udeck nic:\0\0";

impl Known {
    fn host_of(&self, nic: &[u8]) -> Host {
        let mut by_nic = self.by_nic.lock();
        if let Some((host, _)) = by_nic.iter().find(|(_, known)| known.as_slice() == nic) {
            return *host;
        }
        let mut host = [0; 16];
        host[..12].copy_from_slice(OF_NIC);
        host[12..].copy_from_slice(&(by_nic.len() as u32).to_be_bytes());
        by_nic.insert(host, nic.to_vec());
        host
    }

    fn names(&self) -> Result<&Arc<dyn Listeners>, String> {
        self.names
            .as_ref()
            .ok_or_else(|| "this adapter has no directory: it was made of a NIC (Ia::on_nic)".into())
    }
}

impl Listeners for Known {
    fn address(&self) -> Host {
        self.names.as_ref().map_or_else(|| of_ip(Ipv4Addr::LOCALHOST.into()), |names| names.address())
    }

    fn publish(&self, key: &str, value: &[u8]) -> Result<bool, String> {
        self.names.as_ref().map_or(Ok(true), |names| names.publish(key, value))
    }

    fn withdraw(&self, key: &str) {
        if let Some(names) = &self.names {
            names.withdraw(key);
        }
    }

    fn find(
        &self,
        host: &Host,
        key: &str,
        deadline: Deadline,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<u8>>, String> {
        if let Some(nic) = self.by_nic.lock().get(host) {
            return Ok(Some(nic.clone()));
        }
        self.names()?.find(host, key, deadline, is_wanted)
    }
}
