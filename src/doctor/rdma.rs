//! Findings on RDMA devices from `/sys/class/infiniband`: ports, their states, and their GIDs; whether the
//! libraries for them can be loaded; and how connections would be made.
//!
//! Layout: `Documentation/ABI/stable/sysfs-class-infiniband` of the kernel.

use super::{finding::Finding, tree::Tree};

const FOLDER: &str = "sys/class/infiniband";
/// Names under which a program loads the libraries.
const VERBS: &str = "libibverbs.so.1";
const CM: &str = "librdmacm.so.1";
/// The variable that chooses how queue pairs are connected.
const CONNECT: &str = "DECK_VERBS_CONNECT";
const PACKAGE: &str = "install rdma-core (Debian: libibverbs1, librdmacm1, ibverbs-providers)";
/// Maximum number of GIDs in the report: a port has many, and users look for the first.
const MOST_GIDS: usize = 6;

/// Tells whether the kernel shows any device.
pub(crate) fn has_devices(tree: &Tree) -> bool {
    !tree.list(FOLDER).is_empty()
}

/// Returns the findings on devices, ports, GIDs and libraries.
pub(crate) fn findings(tree: &Tree) -> Vec<Finding> {
    let asked = std::env::var(CONNECT).is_ok_and(|way| way.trim() == "cm");
    findings_with(tree, udeck_sys::library, asked)
}

/// Returns the findings. `load` returns the path of a library that could be loaded, or the loader's words.
/// `asked` means that connections are to go through rdma_cm.
fn findings_with(tree: &Tree, load: impl Fn(&str) -> Result<String, String>, asked: bool) -> Vec<Finding> {
    let devices = tree.list(FOLDER);
    let mut findings: Vec<_> = devices.iter().flat_map(|device| of_device(tree, device)).collect();
    if devices.is_empty() {
        let state = "none: no card, or its kernel module (mlx5_ib, irdma, ...) is not loaded";
        findings.push(Finding::ok("devices", state));
    }
    let iwarp =
        |device: &&String| tree.read(format!("{FOLDER}/{device}/node_type")).as_deref() == Some("4: RNIC");
    let needs_cm = asked || devices.iter().any(|device| iwarp(&device));
    for (name, purpose, needed) in
        [(VERBS, "devices and queues", true), (CM, "connecting through rdma_cm", needs_cm)]
    {
        findings.push(match load(name) {
            Ok(path) => Finding::ok(name, path),
            Err(_) if devices.is_empty() => Finding::ok(name, "not installed, and nothing to use it with"),
            Err(why) if needed => {
                Finding::problem(name, format!("cannot be loaded, for {purpose}: {why}"), PACKAGE)
            }
            Err(why) => {
                let state =
                    format!("cannot be loaded, and is not needed but for iWARP and {CONNECT}=cm: {why}");
                Finding::note(name, state)
            }
        });
    }
    if !devices.is_empty() {
        let through_cm: Vec<_> = devices.iter().filter(|device| asked || iwarp(device)).cloned().collect();
        findings.push(connecting(tree, &through_cm, devices.len()));
    }
    findings
}

/// Reports how connections would be made, if those of the devices `through_cm` go through rdma_cm, and whether
/// the kernel is ready for that.
fn connecting(tree: &Tree, through_cm: &[String], devices: usize) -> Finding {
    const SUBJECT: &str = "connecting";
    if through_cm.is_empty() {
        return Finding::ok(SUBJECT, format!("by the bootstrap ({CONNECT}=cm: through rdma_cm)"));
    }
    let which =
        if through_cm.len() == devices { String::new() } else { format!(" with {}", through_cm.join(", ")) };
    let way = format!("through rdma_cm{which}");
    match std::fs::File::options().read(true).write(true).open(tree.path("dev/infiniband/rdma_cm")) {
        Ok(_) => Finding::ok(SUBJECT, way),
        Err(error) => {
            let state = format!("{way}; /dev/infiniband/rdma_cm cannot be opened: {error}");
            Finding::problem(SUBJECT, state, "modprobe rdma_ucm; a container needs the file passed in")
        }
    }
}

fn of_device(tree: &Tree, device: &str) -> Vec<Finding> {
    let folder = format!("{FOLDER}/{device}");
    let firmware = tree
        .read(format!("{folder}/fw_ver"))
        .map_or(String::new(), |version| format!(", firmware {version}"));
    // The text is, for example, `1: CA`.
    let kind = tree.read(format!("{folder}/node_type"));
    let kind = kind.as_deref().and_then(|text| text.split(": ").nth(1)).unwrap_or("unknown kind").to_owned();
    let mut findings = vec![access(tree, device, format!("{kind}{firmware}"))];
    for port in tree.list(format!("{folder}/ports")) {
        findings.extend(of_port(tree, device, &port));
    }
    findings
}

/// Reports whether programs can open the device's file.
fn access(tree: &Tree, device: &str, about: String) -> Finding {
    let files = tree.list("sys/class/infiniband_verbs");
    let file = files.iter().find(|file| {
        tree.read(format!("sys/class/infiniband_verbs/{file}/ibdev")).as_deref() == Some(device)
    });
    let Some(file) = file else {
        let state = format!("{about}; programs cannot reach it: the kernel module ib_uverbs is not loaded");
        return Finding::problem(device, state, "modprobe ib_uverbs rdma_ucm");
    };
    let path = tree.path(format!("dev/infiniband/{file}"));
    match std::fs::File::options().read(true).write(true).open(&path) {
        Ok(_) => Finding::ok(device, format!("{about}, /dev/infiniband/{file}")),
        Err(error) => {
            let state = format!("{about}; /dev/infiniband/{file} cannot be opened: {error}");
            Finding::problem(
                device,
                state,
                "udev's rules of rdma-core make it 0666; a container needs the device passed in",
            )
        }
    }
}

fn of_port(tree: &Tree, device: &str, port: &str) -> Vec<Finding> {
    let folder = format!("{FOLDER}/{device}/ports/{port}");
    let subject = format!("{device} port {port}");
    let read = |file: &str| tree.read(format!("{folder}/{file}"));
    // The text is, for example, `4: ACTIVE` or `5: LinkUp`.
    let word = |file: &str| {
        let text = read(file)?;
        Some(text.split_once(": ").map_or(text.as_str(), |(_, word)| word).to_owned())
    };
    let state = word("state").unwrap_or_else(|| "unknown".into());
    let layer = read("link_layer").unwrap_or_else(|| "unknown link layer".into());
    let mut about = vec![layer.clone(), state.clone()];
    about.extend(word("phys_state").filter(|_| state != "ACTIVE"));
    about.extend(read("rate"));
    about.extend(partitions(tree, &folder));
    about.extend(read("lid").filter(|_| layer == "InfiniBand").map(|lid| format!("LID {lid}")));
    let gids = gids(tree, &folder);
    let about = about.join(", ");
    let mut findings = vec![match (&state[..], gids.is_empty()) {
        ("ACTIVE", false) => Finding::ok(&subject, about),
        ("ACTIVE", true) => {
            let advice = "give the port's network interface an address (ip addr add ... dev ...)";
            Finding::problem(&subject, format!("{about}, without an address (GID)"), advice)
        }
        ("INIT", _) => {
            Finding::note(&subject, about).advise("no subnet manager has seen this port: start opensm")
        }
        _ => {
            Finding::note(&subject, about).advise("look at cable and switch, or set its network interface up")
        }
    }];
    let more = gids.len().saturating_sub(MOST_GIDS);
    for Gid { index, kind, address, interface, mtu } in gids.into_iter().take(MOST_GIDS) {
        let of = interface.map_or(String::new(), |name| format!(", {name}"));
        let mtu = mtu.map_or(String::new(), |mtu| format!(" with MTU {mtu}"));
        findings.push(Finding::ok(format!("  GID {index}"), format!("{kind}, {address}{of}{mtu}")));
    }
    if more > 0 {
        findings.push(Finding::ok("  GIDs", format!("and {more} more")));
    }
    findings
}

/// Returns the partitions of a port, if it has others than the usual one.
fn partitions(tree: &Tree, port: &str) -> Option<String> {
    let keys = tree.list(format!("{port}/pkeys")).into_iter().filter_map(|index| {
        let key = tree.read(format!("{port}/pkeys/{index}"))?;
        (key != "0x0000").then(|| format!("{index}: {key}"))
    });
    let keys: Vec<_> = keys.take(MOST_GIDS).collect();
    (!keys.is_empty() && keys != ["0: 0xffff"]).then(|| format!("P_Keys {}", keys.join(", ")))
}

/// An address of a port.
#[derive(Debug, PartialEq, Eq)]
struct Gid {
    index: u32,
    /// One of `IB`, `RoCE v1`, `RoCE v2`.
    kind: String,
    address: String,
    /// The network interface that the address comes from, and its MTU (the port's MTU is what fits into it).
    interface: Option<String>,
    mtu: Option<u64>,
}

fn gids(tree: &Tree, port: &str) -> Vec<Gid> {
    let list = tree.list(format!("{port}/gids"));
    let indices = list.iter().filter_map(|name| name.parse().ok());
    indices
        .filter_map(|index: u32| {
            let address: std::net::Ipv6Addr = tree.read(format!("{port}/gids/{index}"))?.parse().ok()?;
            if address.is_unspecified() {
                return None;
            }
            let attribute = |of: &str| tree.read(format!("{port}/gid_attrs/{of}/{index}"));
            let interface = attribute("ndevs");
            let mtu = interface.as_ref().and_then(|name| tree.number(format!("sys/class/net/{name}/mtu")));
            // An IPv4 address is shown as one.
            let shown = address.to_ipv4_mapped().map_or(address.to_string(), |v4| v4.to_string());
            let kind = attribute("types").unwrap_or_else(|| "IB".into()).replace("IB/RoCE v1", "RoCE v1");
            Some(Gid { index, kind, address: shown, interface, mtu })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{super::tree::tests::MadeUp, *};
    use crate::doctor::Mark;

    const PORT: &str = "sys/class/infiniband/mlx5_0/ports/1";

    fn roce(state: &str, others: &[(&str, &str)]) -> MadeUp {
        let port = |file: &str| format!("{PORT}/{file}");
        let files = [
            ("sys/class/infiniband/mlx5_0/node_type".to_owned(), "1: CA\n"),
            ("sys/class/infiniband/mlx5_0/fw_ver".to_owned(), "20.31.1014\n"),
            ("sys/class/infiniband_verbs/uverbs0/ibdev".to_owned(), "mlx5_0\n"),
            ("dev/infiniband/uverbs0".to_owned(), ""),
            ("sys/class/net/eth1/mtu".to_owned(), "9000\n"),
            (port("link_layer"), "Ethernet\n"),
            (port("state"), state),
            (port("phys_state"), "5: LinkUp\n"),
            (port("rate"), "100 Gb/sec (4X EDR)\n"),
            (port("lid"), "0x0\n"),
            (port("pkeys/0"), "0xffff\n"),
            (port("pkeys/1"), "0x0000\n"),
            (port("gids/0"), "fe80:0000:0000:0000:ba59:9fff:fe11:2233\n"),
            (port("gids/1"), "fe80:0000:0000:0000:ba59:9fff:fe11:2233\n"),
            (port("gids/3"), "0000:0000:0000:0000:0000:ffff:0a00:0005\n"),
            (port("gids/4"), "0000:0000:0000:0000:0000:0000:0000:0000\n"),
            (port("gid_attrs/types/0"), "IB/RoCE v1\n"),
            (port("gid_attrs/types/1"), "RoCE v2\n"),
            (port("gid_attrs/types/3"), "RoCE v2\n"),
            (port("gid_attrs/ndevs/3"), "eth1\n"),
        ];
        let mut files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (&path[..], *text)).collect();
        files.retain(|(path, _)| others.iter().all(|(other, _)| other != path));
        files.extend(others);
        MadeUp::of(&files)
    }

    fn examined(tree: &MadeUp, load: impl Fn(&str) -> Result<String, String>) -> Vec<(Mark, String, String)> {
        seen_of(tree, load, false)
    }

    fn seen_of(
        tree: &MadeUp,
        load: impl Fn(&str) -> Result<String, String>,
        asked: bool,
    ) -> Vec<(Mark, String, String)> {
        let found = findings_with(&tree.0, load, asked);
        assert!(found.iter().all(|one| one.mark != Mark::Problem || one.remedy.is_some()), "{found:?}");
        found.into_iter().map(|one| (one.mark, one.subject, one.state)).collect()
    }

    fn there(name: &str) -> Result<String, String> {
        Ok(format!("/lib/{name}"))
    }

    #[test]
    fn a_card_is_told_with_its_ports_and_addresses() {
        let found = examined(&roce("4: ACTIVE\n", &[]), there);
        let wanted = [
            ("mlx5_0", "CA, firmware 20.31.1014, /dev/infiniband/uverbs0"),
            ("mlx5_0 port 1", "Ethernet, ACTIVE, 100 Gb/sec (4X EDR)"),
            ("  GID 0", "RoCE v1, fe80::ba59:9fff:fe11:2233"),
            ("  GID 1", "RoCE v2, fe80::ba59:9fff:fe11:2233"),
            ("  GID 3", "RoCE v2, 10.0.0.5, eth1 with MTU 9000"),
            ("libibverbs.so.1", "/lib/libibverbs.so.1"),
            ("librdmacm.so.1", "/lib/librdmacm.so.1"),
            ("connecting", "by the bootstrap (DECK_VERBS_CONNECT=cm: through rdma_cm)"),
        ];
        assert_eq!(found, wanted.map(|(subject, state)| (Mark::Ok, subject.to_owned(), state.to_owned())));
    }

    #[test]
    fn what_keeps_a_card_from_being_used_is_told() {
        let down = examined(&roce("1: DOWN\n", &[(&format!("{PORT}/phys_state"), "3: Disabled\n")]), there);
        assert_eq!(
            (down[1].0, &down[1].2[..]),
            (Mark::Note, "Ethernet, DOWN, Disabled, 100 Gb/sec (4X EDR)")
        );
        let unmanaged = findings_with(
            &roce("2: INIT\n", &[(&format!("{PORT}/link_layer"), "InfiniBand\n")]).0,
            there,
            false,
        );
        assert!(unmanaged[1].state.contains("LID 0x0"), "{unmanaged:?}");
        assert!(
            unmanaged[1].remedy.as_deref().is_some_and(|advice| advice.contains("opensm")),
            "{unmanaged:?}"
        );
        let no_module =
            examined(&roce("4: ACTIVE\n", &[("sys/class/infiniband_verbs/uverbs0/ibdev", "other")]), there);
        assert!(no_module[0].0 == Mark::Problem && no_module[0].2.contains("ib_uverbs"), "{no_module:?}");
        let no_library = examined(&roce("4: ACTIVE\n", &[]), |_| Err("no such file".into()));
        assert!(
            no_library[5].0 == Mark::Problem && no_library[5].2.contains("no such file"),
            "{no_library:?}"
        );
    }

    #[test]
    fn what_rdma_cm_lacks_matters_where_it_is_needed() {
        let only_verbs = |name: &str| if name == CM { Err("no such file".into()) } else { there(name) };
        let last = |tree: &MadeUp, load: &dyn Fn(&str) -> Result<String, String>, asked| {
            let mut found = seen_of(tree, load, asked);
            found.split_off(found.len() - 2).into_iter().map(|one| (one.0, one.2)).collect::<Vec<_>>()
        };
        let card = roce("4: ACTIVE\n", &[]);
        let found = last(&card, &only_verbs, false);
        assert_eq!((found[0].0, found[1].0), (Mark::Note, Mark::Ok), "{found:?}");
        let found = last(&card, &only_verbs, true);
        assert!(found[0].0 == Mark::Problem && found[0].1.contains("through rdma_cm"), "{found:?}");
        assert!(found[1].0 == Mark::Problem && found[1].1.contains("rdma_cm cannot be opened"), "{found:?}");
        let iwarp = [("sys/class/infiniband/mlx5_0/node_type", "4: RNIC\n"), ("dev/infiniband/rdma_cm", "")];
        let found = last(&roce("4: ACTIVE\n", &iwarp), &there, false);
        assert_eq!(found[1], (Mark::Ok, "through rdma_cm".into()), "{found:?}");
    }

    #[test]
    fn partitions_are_told_where_there_is_a_choice() {
        let others = [(&format!("{PORT}/pkeys/7")[..], "0x8123\n")];
        let found = examined(&roce("4: ACTIVE\n", &others), there);
        assert!(found[1].2.ends_with(", P_Keys 0: 0xffff, 7: 0x8123"), "{found:?}");
    }

    #[test]
    fn a_host_without_a_card_lacks_nothing() {
        let found = examined(&MadeUp::of(&[]), |_| Err("no such file".into()));
        assert_eq!(found.iter().map(|one| one.0).collect::<Vec<_>>(), [Mark::Ok; 3]);
        assert!(!has_devices(&MadeUp::of(&[]).0) && has_devices(&roce("4: ACTIVE\n", &[]).0));
    }

    #[test]
    fn addresses_are_bounded() {
        let many: Vec<_> = (5..40).map(|index| format!("{PORT}/gids/{index}")).collect();
        let many: Vec<_> = many.iter().map(|path| (&path[..], "fe80::1\n")).collect();
        let found = examined(&roce("4: ACTIVE\n", &many), there);
        assert_eq!(found.len(), 2 + MOST_GIDS + 1 + 3);
        assert!(found[2 + MOST_GIDS].2.ends_with("more"), "{found:?}");
    }
}
