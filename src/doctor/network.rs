//! Findings on interfaces, their addresses, and the kernel's limits of sockets.

use std::{collections::BTreeMap, net::IpAddr};

use udeck_sys::{Interface, is_link_local};
use udeck_udp::Offloads;

use super::{finding::Finding, tree::Tree};

/// An Ethernet frame's usual payload, in bytes: below it packets are tunnelled, and much of each one is
/// headers.
const USUAL_MTU: u64 = 1500;

pub(super) fn findings(
    tree: &Tree,
    interfaces: &[Interface],
    chosen: Option<&Result<IpAddr, String>>,
) -> Vec<Finding> {
    let mut names: BTreeMap<&str, Vec<&Interface>> = BTreeMap::new();
    interfaces.iter().for_each(|one| names.entry(&one.name).or_default().push(one));
    let mut findings: Vec<_> =
        names.iter().map(|(name, addresses)| interface(tree, name, addresses, chosen)).collect();
    if names.is_empty() {
        let advice = "ip link set lo up, and an address for the interface that leads to the other hosts";
        findings.push(Finding::problem("interfaces", "none has an address", advice));
    }
    findings.extend(towards_others(chosen));
    findings
}

fn interface(
    tree: &Tree,
    name: &str,
    addresses: &[&Interface],
    chosen: Option<&Result<IpAddr, String>>,
) -> Finding {
    let folder = format!("sys/class/net/{name}");
    let shown: Vec<_> = addresses.iter().map(|one| one.address.to_string()).collect();
    let mut parts = Vec::new();
    let mtu = tree.number(format!("{folder}/mtu"));
    parts.extend(mtu.map(|mtu| format!("MTU {mtu}")));
    // A virtual interface has no speed: -1 or an error stands for that.
    let speed = tree.number(format!("{folder}/speed")).filter(|speed| (1..10_000_000).contains(speed));
    parts.extend(speed.map(|speed| format!("{speed} Mbit/s")));
    parts.push(shown.join(", "));
    let about = parts.join(", ");
    let is_chosen =
        addresses.iter().any(|one| chosen.is_some_and(|chosen| chosen.as_ref() == Ok(&one.address)));
    let loopback = addresses.iter().all(|one| one.address.is_loopback());
    if !addresses.iter().any(|one| one.up) {
        let state = format!("down: {about}");
        return match loopback {
            true => Finding::problem(name, state, "ip link set lo up: programs talk to their own host by it"),
            false => Finding::note(name, state),
        };
    }
    let carrier = tree.read(format!("{folder}/carrier"));
    if carrier.as_deref() == Some("0") {
        return Finding::note(name, format!("up without a link: {about}")).advise("look at cable and switch");
    }
    let least = |one: &&&Interface| mtu.is_some_and(|mtu| mtu < udeck_udp::least_mtu(one.address) as u64);
    if let Some(narrow) = addresses.iter().find(least) {
        let needed = udeck_udp::least_mtu(narrow.address);
        return Finding::note(name, format!("{about}: too short for udp, which needs {needed}"))
            .advise(format!("ip link set dev {name} mtu 1280, or --transport tcp, which has no such bound"));
    }
    if is_chosen && !loopback && mtu.is_some_and(|mtu| mtu < USUAL_MTU) {
        return Finding::note(name, format!("{about}: short packets, as in a tunnel"));
    }
    match addresses.iter().all(|one| is_link_local(&one.address)) {
        true => Finding::note(name, format!("{about}: link-local only, which means nothing to other hosts")),
        false => Finding::ok(name, about),
    }
}

fn towards_others(chosen: Option<&Result<IpAddr, String>>) -> Option<Finding> {
    let subject = "towards others";
    Some(match chosen? {
        Ok(address) if address.is_loopback() => {
            let state = format!("{address}: this host has no address that others could reach");
            Finding::note(subject, state).advise("--iface NAME or ADDRESS for jobs on several hosts")
        }
        Ok(address) => Finding::ok(subject, format!("{address} (--iface chooses another)")),
        Err(why) => {
            Finding::note(subject, why.as_str()).advise("--iface NAME or ADDRESS for jobs on several hosts")
        }
    })
}

/// Reports the bounds of a TCP connection's buffers.
pub(crate) fn tcp(tree: &Tree) -> Vec<Finding> {
    let third = |path| tree.read(path)?.split_whitespace().nth(2)?.parse().ok();
    let (receive, send) = (third("proc/sys/net/ipv4/tcp_rmem"), third("proc/sys/net/ipv4/tcp_wmem"));
    let mut findings = vec![buffers(
        "buffers",
        receive,
        send,
        ["net.ipv4.tcp_rmem (its third number)", "net.ipv4.tcp_wmem (its third number)"],
    )];
    findings.extend(ports(tree));
    findings
}

/// Reports the bounds of a NIC's one socket, and the offloads of kernel and processor.
pub(crate) fn udp(tree: &Tree, offloads: udeck_via::Result<Offloads>) -> Vec<Finding> {
    let (receive, send) =
        (tree.number("proc/sys/net/core/rmem_max"), tree.number("proc/sys/net/core/wmem_max"));
    let mut findings = vec![buffers("buffers", receive, send, ["net.core.rmem_max", "net.core.wmem_max"])];
    match offloads {
        Ok(offloads) => findings.extend([batches(offloads), encryption(offloads)]),
        Err(error) => findings.push(Finding::problem(
            "socket",
            error.to_string(),
            "free descriptors, or ask who runs this host why it lets no socket be opened",
        )),
    }
    findings
}

fn batches(Offloads { gso, gro, .. }: Offloads) -> Finding {
    let sent = if gso { "one call sends many (GSO)" } else { "a call for each sent one: no GSO" };
    let received = if gro { "received ones are joined (GRO)" } else { "received one by one: no GRO" };
    let state = format!("{sent}, {received}");
    match gso && gro {
        true => Finding::ok("datagrams", state),
        false => Finding::note("datagrams", state)
            .advise("Linux 5.0 and later have both; without them long messages to other hosts take more processor time"),
    }
}

fn encryption(Offloads { aes, .. }: Offloads) -> Finding {
    match aes {
        true => Finding::ok("encryption", "AES-128-GCM, by the processor's instructions"),
        false => Finding::note(
            "encryption",
            "ChaCha20-Poly1305: the processor has no instructions for AES; long messages take longer",
        ),
    }
}

/// Buffers below this size are reported, in bytes. A link of 10 Gbit/s carries a megabyte in 0.8 ms: with less,
/// it idles while a busy host does other work.
const LITTLE_BUFFER: u64 = 1 << 20;

fn buffers(subject: &str, receive: Option<u64>, send: Option<u64>, names: [&str; 2]) -> Finding {
    let (Some(receive), Some(send)) = (receive, send) else {
        return Finding::note(subject, "unknown: /proc/sys/net does not say");
    };
    let state =
        format!("up to {} to receive, {} to send", super::tree::bytes(receive), super::tree::bytes(send));
    let narrow: Vec<_> = [receive, send]
        .into_iter()
        .zip(names)
        .filter(|(bound, _)| *bound < LITTLE_BUFFER)
        .map(|(_, name)| name)
        .collect();
    if narrow.is_empty() {
        return Finding::ok(subject, state);
    }
    let advice = format!("sysctl: raise {} to 4194304 or more, for fast networks", narrow.join(" and "));
    Finding::note(subject, state).advise(advice)
}

fn ports(tree: &Tree) -> Option<Finding> {
    let text = tree.read("proc/sys/net/ipv4/ip_local_port_range")?;
    let (first, last) = text.split_once(char::is_whitespace)?;
    let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    let count = last.checked_sub(first)? + 1;
    let state = format!("{first} to {last}; a firewall between the hosts must let them through, both ways");
    Some(match count {
        0..1000 => Finding::note("ports", format!("only {count}: {state}"))
            .advise("widen net.ipv4.ip_local_port_range"),
        _ => Finding::ok("ports", state),
    })
}

#[cfg(test)]
mod tests {
    use super::{super::tree::tests::MadeUp, *};
    use crate::doctor::Mark;

    fn at(name: &str, address: &str, up: bool) -> Interface {
        Interface { name: name.into(), address: address.parse().unwrap(), up }
    }

    fn tree() -> MadeUp {
        MadeUp::of(&[
            ("sys/class/net/e0/mtu", "9000"),
            ("sys/class/net/e0/speed", "25000"),
            ("sys/class/net/e1/mtu", "1500"),
            ("sys/class/net/e1/carrier", "0"),
            ("sys/class/net/e1/speed", "-1"),
            ("sys/class/net/lo/mtu", "65536"),
            ("sys/class/net/wg0/mtu", "1420"),
            ("sys/class/net/tun0/mtu", "1227"),
        ])
    }

    #[test]
    fn interfaces_are_told_with_all_their_addresses() {
        let interfaces = [
            at("lo", "127.0.0.1", true),
            at("e0", "10.0.0.5", true),
            at("e0", "2001:db8::5", true),
            at("e1", "10.0.1.5", true),
            at("e2", "fe80::1", true),
            at("e3", "10.0.3.5", false),
            at("wg0", "10.9.0.1", true),
        ];
        let of = |chosen: &str| findings(&tree().0, &interfaces, Some(&Ok(chosen.parse().unwrap())));
        let found = of("10.0.0.5");
        let state: Vec<_> = found.iter().map(|one| (one.mark, &one.subject[..], &one.state[..])).collect();
        let wanted = [
            (Mark::Ok, "e0", "MTU 9000, 25000 Mbit/s, 10.0.0.5, 2001:db8::5"),
            (Mark::Note, "e1", "up without a link: MTU 1500, 10.0.1.5"),
            (Mark::Note, "e2", "fe80::1: link-local only, which means nothing to other hosts"),
            (Mark::Note, "e3", "down: 10.0.3.5"),
            (Mark::Ok, "lo", "MTU 65536, 127.0.0.1"),
            (Mark::Ok, "wg0", "MTU 1420, 10.9.0.1"),
            (Mark::Ok, "towards others", "10.0.0.5 (--iface chooses another)"),
        ];
        assert_eq!(state, wanted);
        assert_eq!(of("10.9.0.1")[5].mark, Mark::Note, "a job would take the tunnel");
    }

    #[test]
    fn an_mtu_that_is_too_small_for_udp_is_said() {
        let interfaces = [at("tun0", "10.8.0.1", true)];
        for chosen in ["10.8.0.1", "10.0.0.5"] {
            let found = findings(&tree().0, &interfaces, Some(&Ok(chosen.parse().unwrap()))).remove(0);
            assert_eq!(
                (found.mark, &found.state[..]),
                (Mark::Note, "MTU 1227, 10.8.0.1: too short for udp, which needs 1228")
            );
            assert!(found.remedy.unwrap().starts_with("ip link set dev tun0 mtu 1280, or --transport tcp"));
        }
    }

    #[test]
    fn a_host_without_a_network_runs_its_own_jobs() {
        let found = findings(&tree().0, &[at("lo", "127.0.0.1", true)], Some(&Err("no route".into())));
        assert_eq!(found.iter().map(|one| one.mark).collect::<Vec<_>>(), [Mark::Ok, Mark::Note]);
        assert_eq!(findings(&tree().0, &[], None)[0].mark, Mark::Problem);
        assert_eq!(findings(&tree().0, &[at("lo", "127.0.0.1", false)], None)[0].mark, Mark::Problem);
    }

    #[test]
    fn narrow_buffers_say_what_to_raise() {
        let made_up = MadeUp::of(&[
            ("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n"),
            ("proc/sys/net/ipv4/tcp_wmem", "4096\t16384\t4194304\n"),
            ("proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n"),
            ("proc/sys/net/core/rmem_max", "212992\n"),
            ("proc/sys/net/core/wmem_max", "4194304\n"),
        ]);
        let tcp = tcp(&made_up.0);
        assert_eq!(tcp[0], Finding::ok("buffers", "up to 6 MiB to receive, 4 MiB to send"));
        assert!(tcp[1].mark == Mark::Ok && tcp[1].state.starts_with("32768 to 60999"), "{tcp:?}");
        let all = Offloads { gso: true, gro: true, aes: true };
        let udp = udp(&made_up.0, Ok(all)).remove(0);
        assert_eq!((udp.mark, &udp.state[..]), (Mark::Note, "up to 208 KiB to receive, 4 MiB to send"));
        let remedy = udp.remedy.unwrap();
        assert!(remedy.contains("rmem_max") && !remedy.contains("wmem_max"), "{remedy}");
    }

    #[test]
    fn what_udp_lacks_is_said() {
        let marks = |gso, gro, aes| {
            udp(&tree().0, Ok(Offloads { gso, gro, aes }))
                .split_off(1)
                .into_iter()
                .map(|one| (one.mark, one.state))
                .collect::<Vec<_>>()
        };
        assert!(marks(true, true, true).iter().all(|(mark, _)| *mark == Mark::Ok));
        let without = marks(false, true, false);
        assert!(without.iter().all(|(mark, _)| *mark == Mark::Note), "{without:?}");
        assert!(without[0].1.contains("no GSO") && without[0].1.contains("(GRO)"), "{without:?}");
        assert!(without[1].1.starts_with("ChaCha20"), "{without:?}");
        assert!(marks(true, false, true)[0].1.contains("no GRO"));
        let error = udeck_via::Error::InvalidParameter("no descriptors".into());
        assert_eq!(udp(&tree().0, Err(error))[1].mark, Mark::Problem);
    }
}
