//! Several hosts on one machine: network namespaces, joined by a bridge in a namespace of its own.
//!
//! ```text
//!   namespace a          namespace b          namespace c
//!     eth0 10.77.0.1       eth0 10.77.0.2       eth0 10.77.0.3      and fd77::1, fd77::2, fd77::3
//!       └──────────────┬─────────┴────────────────────┘
//!                 bridge br0 in the namespace of the switch, ports p0, p1, p2
//! ```
//!
//! The hosts share the file system and the process numbers; nothing outside is reached or changed. Needs root.
//! A [`Network`] is removed when it is dropped; the leftovers of a killed run are removed by the next one.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering},
};

use crate::{Bin, Job};

/// Prefix of the names of all namespaces; the number of the process that made them follows.
const PREFIX: &str = "udeck";

/// Hosts in namespaces, and the switch between them.
#[derive(Debug)]
pub struct Network {
    hosts: Vec<String>,
    switch: String,
}

impl Network {
    /// Whether this process can make a network, or why not. As root it installs iproute2 if that is missing.
    ///
    /// # Errors
    /// The reason, in words.
    pub fn is_possible() -> Result<(), String> {
        if !rustix::process::geteuid().is_root() {
            return Err("needs root, for network namespaces".into());
        }
        if Command::new("ip").arg("-V").output().is_err() {
            // A failed installation shows in the next attempt.
            let _ = Command::new("apt-get").args(["install", "-y", "-q", "iproute2"]).output();
        }
        remove_leftovers();
        let name = format!("{PREFIX}{}try", std::process::id());
        let made = try_ip(&["netns", "add", &name])
            .and_then(|()| try_ip(&["-n", &name, "link", "add", "br0", "type", "bridge"]))
            .and_then(|()| try_ip(&["-n", &name, "link", "add", "v0", "type", "veth", "peer", "name", "v1"]));
        let _ = try_ip(&["netns", "del", &name]);
        made
    }

    /// Makes a network of connected hosts: 1 to 200.
    ///
    /// # Panics
    /// Panics if the network cannot be made: ask [`is_possible`](Network::is_possible) first.
    #[must_use]
    pub fn new(hosts: usize) -> Network {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let run = format!("{PREFIX}{}n{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        // From here on the network is removed, whatever fails.
        let network = Network {
            hosts: (0..hosts).map(|index| format!("{run}h{index}")).collect(),
            switch: format!("{run}switch"),
        };
        let switch = network.switch.as_str();
        ip(&["netns", "add", switch]);
        ip(&["-n", switch, "link", "add", "br0", "type", "bridge"]);
        ip(&["-n", switch, "link", "set", "br0", "up"]);
        for (index, host) in network.hosts.iter().enumerate() {
            let port = format!("p{index}");
            ip(&["netns", "add", host]);
            ip(&["-n", host, "link", "set", "lo", "up"]);
            ip(&["-n", switch, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", host]);
            ip(&["-n", switch, "link", "set", &port, "master", "br0", "up"]);
            ip(&["-n", host, "addr", "add", &format!("{}/24", network.v4(index)), "dev", "eth0"]);
            // `nodad` avoids the wait for another owner of the address.
            ip(&["-n", host, "addr", "add", &format!("{}/64", network.v6(index)), "dev", "eth0", "nodad"]);
            ip(&["-n", host, "link", "set", "eth0", "up"]);
        }
        network
    }

    /// Name of a host's namespace, as an argument of `ip netns exec`.
    #[must_use]
    pub fn host(&self, index: usize) -> &str {
        &self.hosts[index]
    }

    /// Number of hosts.
    #[must_use]
    pub fn size(&self) -> usize {
        self.hosts.len()
    }

    /// IPv4 address of a host.
    #[must_use]
    pub fn v4(&self, index: usize) -> IpAddr {
        Ipv4Addr::new(10, 77, 0, index as u8 + 1).into()
    }

    /// IPv6 address of a host.
    #[must_use]
    pub fn v6(&self, index: usize) -> IpAddr {
        Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, index as u16 + 1).into()
    }

    /// Host list such as `localhost:2,B:2,C:2`: all hosts; deckrun runs on the first.
    #[must_use]
    pub fn list(&self, slots: usize) -> String {
        let others = self.hosts[1..].iter().map(|host| format!(",{host}:{slots}"));
        format!("localhost:{slots}{}", others.collect::<String>())
    }

    /// A command that runs on a host: `ip netns exec HOST PROGRAM`, to be completed by arguments.
    #[must_use]
    pub fn on(&self, index: usize, program: &Path) -> Job {
        Job::new(Path::new("ip")).args(["netns", "exec", self.host(index)]).arg(program)
    }

    /// `deckrun` on the first host, with all hosts and `slots` slots each; to be completed by more options, `--`, and a
    /// program.
    #[must_use]
    pub fn deckrun(&self, slots: usize) -> Job {
        let interface = self.v4(0).to_string();
        self.bare_deckrun().args([
            "--hosts",
            &self.list(slots),
            "--agent",
            "ip netns exec",
            "--iface",
            &interface,
        ])
    }

    /// `deckrun` on the first host, to be completed by options and a program.
    #[must_use]
    pub fn bare_deckrun(&self) -> Job {
        self.on(0, Bin::deckrun().path())
    }

    /// Takes a host's own interface down or up.
    pub fn set_link(&self, index: usize, up: bool) {
        let state = if up { "up" } else { "down" };
        ip(&["-n", self.host(index), "link", "set", "eth0", state]);
    }

    /// Disconnects a host's cable at the switch, or connects it again.
    pub fn set_port(&self, index: usize, up: bool) {
        let state = if up { "up" } else { "down" };
        ip(&["-n", &self.switch, "link", "set", &format!("p{index}"), state]);
    }

    /// Sets the longest packet to and from a host at the switch, without the host's knowledge.
    pub fn set_path_mtu(&self, index: usize, mtu: u32) {
        ip(&["-n", &self.switch, "link", "set", &format!("p{index}"), "mtu", &mtu.to_string()]);
    }

    /// Limits a host's sending rate to `rate` (`100mbit`), with a queue of 64 MB for faster data: longer than a socket's
    /// buffer, so that a socket whose program sends too fast refuses.
    ///
    /// # Errors
    /// The reason why this machine cannot: `tc` is missing, or the kernel's token bucket is.
    pub fn slow_down(&self, index: usize, rate: &str) -> Result<(), String> {
        let words =
            ["qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "64kb", "limit", "64mb"];
        try_run("tc", &[&["-n", self.host(index)], &words[..]].concat())
    }

    /// Limits the rate to a host to `rate` (`100mbit`): the switch keeps up to 1 MB for it, and drops the rest.
    ///
    /// # Errors
    /// Same as for [`slow_down`](Network::slow_down).
    pub fn narrow(&self, index: usize, rate: &str) -> Result<(), String> {
        let port = format!("p{index}");
        let words =
            ["qdisc", "add", "dev", &port, "root", "tbf", "rate", rate, "burst", "32kb", "limit", "1mb"];
        try_run("tc", &[&["-n", self.switch.as_str()], &words[..]].concat())
    }

    /// Makes any other change: `ip -n HOST` with these words.
    pub fn configure(&self, index: usize, words: &[&str]) {
        ip(&[&["-n", self.host(index)], words].concat());
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in self.hosts.iter().chain([&self.switch]) {
            // A namespace that was never made need not be removed.
            let _ = try_ip(&["netns", "del", name]);
        }
    }
}

/// Removes the namespaces of runs whose process has ended.
fn remove_leftovers() {
    for entry in fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(rest) = name.strip_prefix(PREFIX) else { continue };
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        if !digits.is_empty() && !Path::new("/proc").join(&digits).exists() {
            let _ = try_ip(&["netns", "del", &name]);
        }
    }
}

fn ip(words: &[&str]) {
    try_ip(words).unwrap_or_else(|why| panic!("{why}"));
}

fn try_ip(words: &[&str]) -> Result<(), String> {
    try_run("ip", words)
}

fn try_run(program: &str, words: &[&str]) -> Result<(), String> {
    let shown = format!("{program} {}", words.join(" "));
    match Command::new(program).args(words).output() {
        Ok(Output { status, .. }) if status.success() => Ok(()),
        Ok(Output { stderr, .. }) => Err(format!("`{shown}`: {}", String::from_utf8_lossy(&stderr).trim())),
        Err(error) => Err(format!("`{shown}`: {error}")),
    }
}
