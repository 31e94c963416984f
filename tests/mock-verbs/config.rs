//! Configuration by the environment: the devices, and the thread that moves the data. The first call reads it,
//! once.

use crate::abi::{
    IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2, IBV_LINK_LAYER_ETHERNET,
    IBV_LINK_LAYER_INFINIBAND, IBV_PORT_ACTIVE, IBV_PORT_ARMED, IBV_PORT_DOWN, IBV_PORT_INIT, ibv_gid,
};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::OnceLock;

/// The whole configuration.
#[derive(Debug)]
pub struct Config {
    /// Devices; `None`: the list of devices fails with `ENOSYS`, as without the kernel's modules.
    pub devices: Option<Vec<Device>>,
    /// Whether the posting thread moves the data.
    pub inline: bool,
    /// Whether completion channels report nothing: for counting instructions, which must not depend on when a
    /// sleeper wakes.
    pub silent: bool,
    /// Number of bytes that may be registered in this process (`RLIMIT_MEMLOCK`).
    pub memlock: u64,
    /// Number of lost messages among a thousand of unreliable pairs.
    pub loss: u32,
    /// Whether queues never run empty: each poll finds as many completions as it asks for, which belong to no
    /// request.
    pub endless: bool,
    /// Name of the threads whose pairs send spoilt messages, and the seed of the random choices.
    pub corrupt_sender: Option<(String, u64)>,
}

/// A device with one port.
#[derive(Clone, Debug)]
pub struct Device {
    pub name: String,
    /// State of the port (`IBV_PORT_…`) when the process starts.
    pub port: u32,
    /// Link layer, `IBV_LINK_LAYER_…`.
    pub link: u8,
    /// MTU in bytes.
    pub mtu: u32,
    /// Whether the table of GIDs has RoCE v2 entries.
    pub v2: bool,
    pub max_sge: u32,
    pub max_inline: u32,
    pub max_qp_wr: u32,
    pub max_cqe: u32,
    pub max_qp: u32,
    pub max_mr: u32,
    /// Largest number of RDMA reads under way, in each direction.
    pub max_reads: u8,
    pub max_message: u32,
    /// Whether the device makes unreliable pairs.
    pub uc: bool,
    /// Whether it is an iWARP device: its pairs are connected by the connection manager only, and nothing has
    /// immediate data.
    pub iwarp: bool,
    /// Fate of connects from this device.
    pub cm: CmBehavior,
    /// Index in the list of devices.
    pub index: u8,
    /// Table of GIDs from index 0 on, with their types.
    pub gids: Vec<(ibv_gid, u32)>,
}

/// Fate of a connect through the connection manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CmBehavior {
    #[default]
    Works,
    /// The address is not resolved.
    Address,
    /// The route is not found.
    Route,
    /// Nobody answers, which is reported.
    Unreachable,
    /// Nobody answers, which is not reported.
    Silent,
}

/// The configuration of this process.
pub fn config() -> &'static Config {
    static CONFIG: OnceLock<Config> = OnceLock::new();
    CONFIG.get_or_init(|| parse(|name| std::env::var(name).ok()).unwrap_or_else(|problem| refuse(&problem)))
}

/// Ends the process: a test that runs with other settings than it requested proves nothing.
fn refuse(problem: &str) -> ! {
    eprintln!("udeck-mock-verbs: {problem}");
    std::process::abort()
}

fn parse(variable: impl Fn(&str) -> Option<String>) -> Result<Config, String> {
    let inline = match variable("STANDIN_ENGINE").as_deref() {
        None | Some("thread") => false,
        Some("inline") => true,
        Some(other) => return Err(format!("STANDIN_ENGINE={other}: thread or inline")),
    };
    let silent = match variable("STANDIN_CHANNELS").as_deref() {
        None | Some("told") => false,
        Some("silent") => true,
        Some(other) => return Err(format!("STANDIN_CHANNELS={other}: told or silent")),
    };
    let memlock = match variable("STANDIN_MEMLOCK") {
        None => u64::MAX,
        Some(bytes) => bytes.parse().map_err(|_| format!("STANDIN_MEMLOCK={bytes}: bytes"))?,
    };
    let loss = match variable("STANDIN_LOSS") {
        None => 0,
        Some(loss) => match loss.parse() {
            Ok(loss @ 0..=1000) => loss,
            _ => return Err(format!("STANDIN_LOSS={loss}: of a thousand")),
        },
    };
    let endless = match variable("STANDIN_QUEUES").as_deref() {
        None | Some("finite") => false,
        Some("endless") => true,
        Some(other) => return Err(format!("STANDIN_QUEUES={other}: finite or endless")),
    };
    let corrupt_sender = match variable("STANDIN_SPOIL") {
        None => None,
        Some(text) => match text.split_once(',').map(|(thread, seed)| (thread.to_owned(), seed.parse())) {
            Some((thread, Ok(seed))) => Some((thread, seed)),
            _ => return Err(format!("STANDIN_SPOIL={text}: a thread's name and a number")),
        },
    };
    let list = variable("STANDIN_DEVICES").unwrap_or_else(|| "standin0".into());
    if list == "enosys" {
        return Ok(Config { devices: None, inline, silent, memlock, loss, endless, corrupt_sender });
    }
    let names = list.split(',').map(str::trim).filter(|entry| !entry.is_empty() && *entry != "none");
    let mut devices = Vec::new();
    for (index, entry) in names.enumerate() {
        let index = u8::try_from(index).map_err(|_| "STANDIN_DEVICES: too many")?;
        devices.push(device(entry, index, &variable)?);
    }
    Ok(Config { devices: Some(devices), inline, silent, memlock, loss, endless, corrupt_sender })
}

/// Parses `name:key=value:…`; the value of a missing key comes from `STANDIN_KEY`.
fn device(entry: &str, index: u8, variable: &impl Fn(&str) -> Option<String>) -> Result<Device, String> {
    let mut device = Device {
        name: entry.split(':').next().unwrap_or_default().to_owned(),
        port: IBV_PORT_ACTIVE,
        link: IBV_LINK_LAYER_ETHERNET,
        mtu: 1024,
        v2: true,
        max_sge: 16,
        max_inline: 256,
        max_qp_wr: 16_384,
        max_cqe: 65_536,
        max_qp: 16_384,
        max_mr: 65_536,
        max_reads: 16,
        max_message: 1 << 30,
        uc: true,
        iwarp: false,
        cm: CmBehavior::Works,
        index,
        gids: Vec::new(),
    };
    if device.name.is_empty() || device.name.len() > 63 {
        return Err(format!("STANDIN_DEVICES: {entry:?} has no name of 1 to 63 bytes"));
    }
    for key in KEYS {
        let name = format!("STANDIN_{}", key.to_uppercase());
        if let Some(value) = variable(&name) {
            set(&mut device, key, &value).map_err(|problem| format!("{name}={value}: {problem}"))?;
        }
    }
    for setting in entry.split(':').skip(1) {
        let (key, value) =
            setting.split_once('=').ok_or_else(|| format!("STANDIN_DEVICES: {setting}: no value"))?;
        set(&mut device, key, value).map_err(|problem| format!("STANDIN_DEVICES: {setting}: {problem}"))?;
    }
    device.gids = device.addresses();
    Ok(device)
}

const KEYS: [&str; 15] = [
    "port",
    "link",
    "mtu",
    "gids",
    "max_sge",
    "max_inline",
    "max_qp_wr",
    "max_cqe",
    "max_qp",
    "max_mr",
    "max_reads",
    "max_message",
    "uc",
    "transport",
    "cm",
];

fn set(device: &mut Device, key: &str, value: &str) -> Result<(), String> {
    fn number<T: std::str::FromStr>(value: &str) -> Result<T, String> {
        value.parse().map_err(|_| "not a number, or too large".into())
    }
    match (key, value) {
        ("port", "active") => device.port = IBV_PORT_ACTIVE,
        ("port", "armed") => device.port = IBV_PORT_ARMED,
        ("port", "init") => device.port = IBV_PORT_INIT,
        ("port", "down") => device.port = IBV_PORT_DOWN,
        ("link", "ethernet") => device.link = IBV_LINK_LAYER_ETHERNET,
        ("link", "infiniband") => device.link = IBV_LINK_LAYER_INFINIBAND,
        ("mtu", "256" | "512" | "1024" | "2048" | "4096") => device.mtu = number(value)?,
        ("gids", "v1v2") => device.v2 = true,
        ("gids", "v1") => device.v2 = false,
        ("uc", "yes") => device.uc = true,
        ("uc", "no") => device.uc = false,
        ("max_sge", _) => device.max_sge = number(value)?,
        ("max_inline", _) => device.max_inline = number(value)?,
        ("max_qp_wr", _) => device.max_qp_wr = number(value)?,
        ("max_cqe", _) => device.max_cqe = number(value)?,
        ("max_qp", _) => device.max_qp = number(value)?,
        ("max_mr", _) => device.max_mr = number(value)?,
        ("max_reads", _) => device.max_reads = number(value)?,
        ("max_message", _) => device.max_message = number(value)?,
        ("transport", "ib") => device.iwarp = false,
        ("transport", "iwarp") => device.iwarp = true,
        ("cm", "works") => device.cm = CmBehavior::Works,
        ("cm", "address") => device.cm = CmBehavior::Address,
        ("cm", "route") => device.cm = CmBehavior::Route,
        ("cm", "unreachable") => device.cm = CmBehavior::Unreachable,
        ("cm", "silent") => device.cm = CmBehavior::Silent,
        _ => return Err(format!("no such setting; the keys are {}", KEYS.join(", "))),
    }
    Ok(())
}

impl Device {
    /// Number of the port's MTU, `IBV_MTU_…`.
    pub fn mtu_number(&self) -> u32 {
        self.mtu.ilog2() - 7
    }

    /// IP address of the device's network interface.
    pub fn ip(&self) -> IpAddr {
        Ipv4Addr::new(127, 0, 0, self.index + 1).into()
    }

    pub fn guid(&self) -> [u8; 8] {
        [0x02, 0x00, 0x00, 0xff, 0xfe, 0x57, 0xd1, self.index]
    }

    /// Entries of the table of GIDs. On Ethernet the same address stands there for each version of RoCE, as in kernels: a
    /// program that takes the first entry that looks like an address takes the wrong one.
    fn addresses(&self) -> Vec<(ibv_gid, u32)> {
        let mut link_local = ibv_gid::default();
        link_local.raw[..2].copy_from_slice(&[0xfe, 0x80]);
        link_local.raw[8..].copy_from_slice(&self.guid());
        if self.link == IBV_LINK_LAYER_INFINIBAND {
            return vec![(link_local, IBV_GID_TYPE_IB)];
        }
        if self.iwarp {
            // The entry has the interface's hardware address, and zeros, as in kernels.
            let mut hardware = ibv_gid::default();
            hardware.raw[..6].copy_from_slice(&self.guid()[2..]);
            return vec![(hardware, IBV_GID_TYPE_IB)];
        }
        let mut mapped = ibv_gid::default();
        mapped.raw[10..].copy_from_slice(&[0xff, 0xff, 127, 0, 0, self.index + 1]);
        let versions: &[u32] =
            if self.v2 { &[IBV_GID_TYPE_ROCE_V1, IBV_GID_TYPE_ROCE_V2] } else { &[IBV_GID_TYPE_ROCE_V1] };
        let entries = |gid| versions.iter().map(move |version| (gid, *version));
        entries(link_local).chain(entries(mapped)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Result<Config, String> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        parse(|name| find(name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn without_variables_there_is_one_active_roce_device() {
        let config = with(&[]).unwrap();
        let [device] = &config.devices.unwrap()[..] else { panic!("one device") };
        assert_eq!((device.name.as_str(), device.port, device.link), ("standin0", 4, 2));
        let mapped = device.gids.iter().rfind(|(gid, _)| gid.raw[10] == 0xff).unwrap();
        assert_eq!((&mapped.0.raw[12..], mapped.1), (&[127, 0, 0, 1][..], IBV_GID_TYPE_ROCE_V2));
        assert_eq!(device.mtu_number(), 3, "IBV_MTU_1024");
    }

    #[test]
    fn a_device_takes_its_own_settings_before_the_common_ones() {
        let config =
            with(&[("STANDIN_DEVICES", "a, b:port=down:link=infiniband"), ("STANDIN_PORT", "armed")])
                .unwrap();
        let devices = config.devices.unwrap();
        assert_eq!((devices[0].port, devices[1].port), (IBV_PORT_ARMED, IBV_PORT_DOWN));
        assert_eq!(devices[1].gids.len(), 1, "no RoCE on InfiniBand");
    }

    #[test]
    fn no_device_and_no_kernel_are_two_things() {
        assert!(with(&[("STANDIN_DEVICES", "none")]).unwrap().devices.unwrap().is_empty());
        assert!(with(&[("STANDIN_DEVICES", "enosys")]).unwrap().devices.is_none());
    }

    #[test]
    fn a_mistake_names_the_variable() {
        for (name, value) in [
            ("STANDIN_ENGINE", "fast"),
            ("STANDIN_CHANNELS", "loud"),
            ("STANDIN_QUEUES", "short"),
            ("STANDIN_MTU", "1500"),
            ("STANDIN_MEMLOCK", "much"),
            ("STANDIN_LOSS", "1001"),
            ("STANDIN_SPOIL", "rogue"),
            ("STANDIN_UC", "perhaps"),
            ("STANDIN_DEVICES", "a:port"),
            ("STANDIN_DEVICES", "a:colour=red"),
            ("STANDIN_DEVICES", ":port=down"),
        ] {
            let problem = with(&[(name, value)]).unwrap_err();
            assert!(problem.contains(name), "{problem}");
        }
    }
}
