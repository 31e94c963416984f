//! The adapter: its device, its port, and the port's address that the NIC uses.

mod choose;
pub mod objects;

use std::ffi::CStr;
use std::io;
use std::net::IpAddr;
use std::ptr::NonNull;
use std::sync::Arc;

use udeck_via::{Error, Result};

use crate::ffi::codes::{fork, link_layer, port_state, transport};
use crate::ffi::{self, CmLibrary, Library};
use crate::settings::{Connect, Settings};
use choose::{Candidate, GidChoice, choose_gid, choose_port};
use objects::Context;

/// An opened device, with the port and address from which connections are made.
#[derive(Debug)]
pub struct Hca {
    pub context: Arc<Context>,
    pub name: String,
    pub attributes: ffi::DeviceAttr,
    pub port: u8,
    pub port_attributes: ffi::PortAttr,
    pub gid: ffi::Gid,
    pub gid_index: u8,
    /// Whether packets carry network-layer addresses: always on Ethernet.
    pub ethernet: bool,
    /// The device speaks iWARP: its queue pairs are connected through rdma_cm, and its writes have no immediate data.
    pub iwarp: bool,
    /// Partition key of the NIC's packets, as in the port's table.
    pub pkey: u16,
}

/// Partition key of the default partition with full membership, used where a device does not report one.
const DEFAULT_PARTITION: u16 = 0xffff;

/// Makes the error for a host where verbs cannot be used, which is no defect.
#[cold]
fn unavailable(why: String) -> Error {
    Error::Unavailable { what: "InfiniBand, RoCE or iWARP (verbs)".into(), why }
}

impl Hca {
    /// Opens the device that the settings name, or else the first that has an active port.
    ///
    /// # Errors
    /// [`Error::Unavailable`] without a library, a device or an active port; [`Error::InvalidParameter`] lists the devices,
    /// ports or addresses that exist when the settings name another; otherwise the library's error.
    pub fn open(settings: &Settings, bind: IpAddr) -> Result<Self> {
        let library = Library::load().map_err(unavailable)?;
        prepare_for_fork(&library)?;
        let list = List::new(&library)?;
        let wanted = settings.device.as_deref();
        if let Some(name) = wanted
            && !list.names().iter().any(|device| device == name)
        {
            let what = format!("DECK_VERBS_DEVICE={name:?}: there are: {}", list.names().join(", "));
            return Err(Error::InvalidParameter(what));
        }
        let mut seen = Vec::new();
        for (name, device) in list.devices().filter(|(name, _)| wanted.is_none_or(|wanted| wanted == name)) {
            match Self::try_device(&library, &name, device, settings, bind)? {
                Ok(hca) => return Ok(hca),
                Err(why) => seen.push(format!("{name}: {why}")),
            }
        }
        let why = format!("no device can be used ({})", seen.join("; "));
        let asked =
            wanted.is_some() || settings.port.is_some() || settings.gid.is_some() || settings.pkey != 0;
        // A device or port that somebody named is reported as an error, not passed over.
        Err(if asked {
            Error::InvalidParameter(format!("verbs, as DECK_VERBS_… say: {why}"))
        } else {
            unavailable(why)
        })
    }

    /// Opens the device if it has an active port. Otherwise returns the reason why not.
    fn try_device(
        library: &Arc<Library>,
        name: &str,
        device: NonNull<ffi::Device>,
        settings: &Settings,
        bind: IpAddr,
    ) -> Result<Result<Self, String>> {
        // SAFETY: a device of a list that is still held.
        let iwarp = unsafe { device.as_ref().transport_type } == transport::IWARP;
        if iwarp && settings.connect == Connect::Bootstrap {
            let why = "an iWARP device, which is connected through rdma_cm only (DECK_VERBS_CONNECT=auto)";
            return Ok(Err(why.into()));
        }
        if iwarp && let Err(why) = CmLibrary::load() {
            return Ok(Err(format!("an iWARP device, which is connected through rdma_cm: {why}")));
        }
        let context = match Context::open(library.clone(), device) {
            Ok(context) => context,
            Err(error) => return Ok(Err(format!("cannot be opened: {error}"))),
        };
        let failed = |what: &str, error: io::Error| Error::os(format!("asking {name} for {what}"), error);
        let attributes = context.attributes().map_err(|error| failed("its limits", error))?;
        let mut ports = Vec::new();
        for number in 1..=attributes.phys_port_cnt {
            let port = context.port(number).map_err(|error| failed(&format!("its port {number}"), error))?;
            ports.push((number, port));
        }
        let states: Vec<_> =
            ports.iter().map(|(number, port)| (*number, port.state == port_state::ACTIVE)).collect();
        let number = match choose_port(&states, settings.port) {
            Ok(number) => number,
            Err(why) => return Ok(Err(why)),
        };
        let port_attributes = ports[usize::from(number) - 1].1;
        let ethernet = port_attributes.link_layer == link_layer::ETHERNET;
        // Entries of iWARP's table are no addresses.
        let needs_gid = ethernet && !iwarp;
        let chosen = gids(&context, name, number, &port_attributes, settings, bind, needs_gid);
        let GidChoice { gid, index } = match chosen {
            Ok(choice) => choice,
            Err(why) => return Ok(Err(why)),
        };
        if let Some(why) = lacks_pkey(&context, number, &port_attributes, settings.pkey) {
            return Ok(Err(why));
        }
        let pkey = context.pkey(number, settings.pkey).unwrap_or(DEFAULT_PARTITION);
        Ok(Ok(Hca {
            context,
            name: name.to_owned(),
            attributes,
            port: number,
            port_attributes,
            gid,
            gid_index: index as u8,
            ethernet,
            iwarp,
            pkey,
        }))
    }

    /// Makes the error for a device that cannot be used after all. If somebody named it, that is an invalid parameter.
    pub fn unusable(&self, settings: &Settings, why: &str) -> Error {
        let why = format!("{}: {why}", self.name);
        if settings.device.is_some() || settings.connect == Connect::Cm {
            return Error::InvalidParameter(format!("verbs, as DECK_VERBS_… say: {why}"));
        }
        unavailable(why)
    }
}

/// Chooses the address from which connections are made.
fn gids(
    context: &Context,
    device: &str,
    port: u8,
    attributes: &ffi::PortAttr,
    settings: &Settings,
    bind: IpAddr,
    ethernet: bool,
) -> std::result::Result<GidChoice, String> {
    let entries = (0..attributes.gid_tbl_len.clamp(0, 256) as u32).filter_map(|index| {
        let (gid, kind) = context.gid(port, index)?;
        let kind = kind.unwrap_or_else(|| kind_by_file(device, port, index));
        (gid.raw != [0; 16]).then_some(Candidate { index, gid, kind })
    });
    let entries: Vec<Candidate> = entries.collect();
    match choose_gid(&entries, settings.gid, bind) {
        // InfiniBand works without a GID: packets are routed by the local identifier.
        Err(_) if !ethernet && settings.gid.is_none() => Ok(GidChoice { gid: ffi::Gid::default(), index: 0 }),
        chosen => chosen.map_err(|why| format!("port {port}: {why}")),
    }
}

/// Returns why the wanted partition key cannot be used; `None` if it can.
fn lacks_pkey(context: &Context, port: u8, attributes: &ffi::PortAttr, wanted: u16) -> Option<String> {
    let exists = |index: &u16| context.pkey(port, *index).is_some_and(|pkey| pkey != 0);
    if wanted == 0 || exists(&wanted) {
        return None;
    }
    let all: Vec<_> = (0..attributes.pkey_tbl_len).filter(exists).map(|index| index.to_string()).collect();
    Some(format!("DECK_VERBS_PKEY={wanted} is empty; there are: {}", all.join(", ")))
}

/// Reads a GID's kind from the kernel's files, for libraries before `IBVERBS_1.11`.
fn kind_by_file(device: &str, port: u8, index: u32) -> u32 {
    let file = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/types/{index}");
    match std::fs::read_to_string(file) {
        Ok(kind) if kind.contains("v2") => ffi::codes::gid_type::ROCE_V2,
        Ok(kind) if kind.contains("RoCE") => ffi::codes::gid_type::ROCE_V1,
        _ => ffi::codes::gid_type::IB,
    }
}

/// Prepares for forks: a child that is made while memory is registered must not take the device's pages away from
/// us. Recent kernels prevent that by themselves; for older ones the library can.
fn prepare_for_fork(library: &Library) -> Result {
    let (Some(is), Some(init)) = (library.ibv_is_fork_initialized, library.ibv_fork_init) else {
        return Ok(());
    };
    // SAFETY: calls without arguments.
    let status = unsafe { is() };
    if status != fork::DISABLED {
        return Ok(());
    }
    // SAFETY: as above.
    match unsafe { init() } {
        0 => Ok(()),
        error => {
            let what = "making memory that a device uses safe from fork (open the NIC before anything else registers memory)";
            Err(Error::os(what, io::Error::from_raw_os_error(error.abs())))
        }
    }
}

/// List of devices that the library returns.
struct List<'a> {
    library: &'a Library,
    at: NonNull<*mut ffi::Device>,
    len: usize,
}

impl<'a> List<'a> {
    fn new(library: &'a Library) -> Result<Self> {
        let mut len = 0;
        // SAFETY: our number.
        let at = unsafe { (library.ibv_get_device_list)(&mut len) };
        let error = io::Error::last_os_error();
        let Some(at) = NonNull::new(at) else {
            return Err(unavailable(format!("{} lists no devices: {error}", library.file)));
        };
        let list = List { library, at, len: usize::try_from(len).unwrap_or(0) };
        if list.len == 0 {
            return Err(unavailable(
                "this host has no such device (ibv_devices shows those that exist)".into(),
            ));
        }
        Ok(list)
    }

    fn devices(&self) -> impl Iterator<Item = (String, NonNull<ffi::Device>)> {
        (0..self.len).filter_map(|at| {
            // SAFETY: the list has that many entries, until it is freed.
            let device = NonNull::new(unsafe { *self.at.as_ptr().add(at) })?;
            // SAFETY: a device of the list; its name is a terminated string in it.
            let name = unsafe { CStr::from_ptr((self.library.ibv_get_device_name)(device.as_ptr())) };
            Some((name.to_string_lossy().into_owned(), device))
        })
    }

    fn names(&self) -> Vec<String> {
        self.devices().map(|(name, _)| name).collect()
    }
}

impl Drop for List<'_> {
    fn drop(&mut self) {
        // SAFETY: the list came from the library, and is given back once. Opened devices stay.
        unsafe { (self.library.ibv_free_device_list)(self.at.as_ptr()) };
    }
}
