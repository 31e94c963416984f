//! Choice of the one address of this host to which nodes connect, and which network devices bind: never all of
//! them.

use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, getsockname, socket_with};
use udeck_sys::{Interface, interfaces, is_link_local, listed, thread};

use super::agent_command::AgentCommand;
use crate::{LaunchError, Step};

/// Any port: nothing is sent to it.
const SOME_PORT: u16 = 9;

/// Maximum number of names that are resolved at the same time.
const RESOLVERS: usize = 32;

/// Chooses the address: the one of `--iface`, if `asked`, and otherwise the one by which this host reaches the
/// first of `hosts`. Blocks at most `limit` for the resolver.
pub(crate) fn choose(
    asked: Option<&str>,
    hosts: &[&str],
    agent: &AgentCommand,
    limit: Duration,
) -> Result<IpAddr, LaunchError> {
    let existing = interfaces().map_err(LaunchError::system("listing this host's interfaces"))?;
    match asked {
        Some(asked) => of_interface(asked, &existing),
        None => towards(hosts, agent, limit, &existing),
    }
}

fn of_interface(asked: &str, existing: &[Interface]) -> Result<IpAddr, LaunchError> {
    udeck_sys::address_of(asked, existing).map_err(|why| LaunchError::Interface {
        asked: asked.into(),
        why,
        existing: listed(existing),
    })
}

fn towards(
    hosts: &[&str],
    agent: &AgentCommand,
    limit: Duration,
    existing: &[Interface],
) -> Result<IpAddr, LaunchError> {
    // A host's name for another agent need not be known to the resolver: only the first is needed here.
    let needed = if *agent == AgentCommand::Ssh { hosts } else { &hosts[..hosts.len().min(1)] };
    let mut first = None;
    for (host, resolved) in needed.iter().zip(resolve(needed, limit)) {
        let fail = |why: String| LaunchError::Host { host: (*host).into(), step: Step::Resolve, why };
        let advice = format!(
            "or say by --iface at which address of this host the others reach it: {}",
            listed(existing)
        );
        let address = resolved.map_err(|why| fail(format!("{why}; correct the name, {advice}")))?;
        if first.is_none() {
            let local = local_towards(address).map_err(|error| {
                fail(format!("{} cannot be reached from here ({error}); {advice}", address.ip()))
            })?;
            if local.is_loopback() {
                let advice =
                    "call this host localhost, or say by --iface at which address the others reach it";
                return Err(fail(format!("{} is this very host; {advice}", address.ip())));
            }
            if is_link_local(&local) {
                return Err(fail(format!(
                    "it is reached from {local}, and {}; {advice}",
                    udeck_sys::LINK_LOCAL
                )));
            }
            first = Some(local);
        }
    }
    Ok(first.unwrap_or(IpAddr::from([127, 0, 0, 1])))
}

/// Returns an address of each name, or the error. The names are resolved on threads, because the system's
/// resolver knows no deadline; a late thread is left behind.
fn resolve(hosts: &[&str], limit: Duration) -> Vec<Result<SocketAddr, String>> {
    let (sender, receiver) = mpsc::channel();
    let names = hosts.iter().map(|host| host.rsplit('@').next().unwrap_or_default().to_owned());
    let names: Arc<Vec<String>> = Arc::new(names.collect());
    for first in 0..hosts.len().min(RESOLVERS) {
        let (names, sender) = (Arc::clone(&names), sender.clone());
        let resolving = move || {
            for (index, name) in names.iter().enumerate().skip(first).step_by(RESOLVERS) {
                let found = (name.as_str(), SOME_PORT).to_socket_addrs().map(|mut all| all.next());
                let _ = sender.send((index, found));
            }
        };
        if thread::spawn("resolve", resolving, |_| {}).is_err() {
            // Its names are reported below as not resolved in time, as are those of a thread that panics.
            break;
        }
    }
    drop(sender);
    let late = || Err(format!("its name was not resolved within {} s", limit.as_secs_f32()));
    let mut results: Vec<_> = hosts.iter().map(|_| late()).collect();
    let until = Instant::now() + limit;
    while let Ok((index, found)) = receiver.recv_timeout(until.saturating_duration_since(Instant::now())) {
        results[index] = match found {
            Ok(Some(address)) => Ok(address),
            Ok(None) => Err("its name has no address".into()),
            Err(error) => Err(format!("its name does not resolve ({error})")),
        };
    }
    results
}

/// Returns the source address that the kernel chooses for this destination. Connecting a datagram socket sends
/// nothing.
fn local_towards(address: SocketAddr) -> io::Result<IpAddr> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    connect(&socket, &address)?;
    let local = SocketAddr::try_from(getsockname(&socket)?)?;
    Ok(local.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, address: &str, up: bool) -> Interface {
        Interface { name: name.into(), address: address.parse().unwrap(), up }
    }

    #[test]
    fn an_interface_is_named_or_given_by_its_address() {
        let existing = [
            interface("lo", "127.0.0.1", true),
            interface("e0", "fe80::1", true),
            interface("e0", "2001:db8::5", true),
            interface("e0", "10.0.0.5", true),
            interface("e1", "2001:db8::6", true),
            interface("e2", "fe80::2", true),
            interface("e3", "10.0.3.5", false),
        ];
        let of = |asked| of_interface(asked, &existing).map_err(|error| error.to_string());
        assert_eq!(of("e0"), Ok("10.0.0.5".parse().unwrap()));
        assert_eq!(of("e1"), Ok("2001:db8::6".parse().unwrap()));
        assert_eq!(of("2001:db8::5"), Ok("2001:db8::5".parse().unwrap()));
        for (asked, words) in [
            ("e9", "no such interface"),
            ("0.0.0.0", "no interface of this host has this address"),
            ("10.0.0.6", "no interface of this host has this address"),
            ("e2", "no address but link-local ones"),
            ("fe80::1", "link-local address means nothing"),
            ("fe80::1%e0", "link-local address means nothing"),
            ("e3", "is down"),
        ] {
            let said = of(asked).unwrap_err();
            assert!(said.contains(words) && said.contains("e0 10.0.0.5, e1 2001:db8::6"), "{said}");
            assert!(said.contains("e3 10.0.3.5 (down)"), "{said}");
        }
    }

    #[test]
    fn a_name_that_does_not_resolve_is_said_with_its_host_and_step() {
        let limit = Duration::from_secs(60);
        let error =
            choose(None, &["no-such-host.invalid"], &AgentCommand::Ssh, limit).unwrap_err().to_string();
        assert!(
            error.starts_with("host no-such-host.invalid, resolve: its name does not resolve"),
            "{error}"
        );
        assert!(error.contains("--iface") && error.contains("lo 127.0.0.1"), "{error}");
    }
}
