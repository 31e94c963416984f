//! Options that several commands share, and their defaults.

use std::time::Duration;

use clap::{Args, ValueEnum};
use udeck::Protocol;

use crate::experiment::binding::BindPlace;
use crate::experiment::plan::{Format, PROTOCOLS};
use crate::{commands::peers, distinct::distinct, experiment::sizes};

#[derive(Args, Clone, Copy, Debug)]
pub(super) struct Memory {
    /// Send each message from other memory than the last ones, from buffers that together are larger than the last-level
    /// cache, so that data comes from RAM; where the protocol copies (copy, rdma-write, rdma-read, handshake), receive it
    /// into such memory, too
    #[arg(long)]
    pub(super) off_cache: bool,
}

#[derive(Args, Debug)]
pub(super) struct Options {
    /// Layer to measure: mailboxes, the virtual interfaces under them, or uDAPL on these
    #[arg(long, global = true, value_enum, default_value_t = Layer::Mailbox)]
    pub(super) layer: Layer,
    /// Protocols of the messages: copy, eager, rdma-write, hand-off, rdma-read, handshake, auto [default: the first four;
    /// verify, overlap: all]
    #[arg(long, global = true, value_name = "LIST", value_delimiter = ',', value_parser = parse_protocol)]
    pub(super) protocol: Vec<Protocol>,
    /// Message sizes in bytes, such as 8,4K,1M [default: eleven sizes from 0 to 4M]
    #[arg(long, global = true, value_name = "LIST", value_delimiter = ',', value_parser = sizes::parse)]
    pub(super) sizes: Vec<usize>,
    /// Add each size moved by -N and +N bytes, as NetPIPE does [verify: by every offset up to N, default 3]
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u8).range(..=64))]
    pub(super) perturb: Option<u8>,
    /// Use of the data of a message
    #[arg(long, global = true, value_enum, default_value_t = PayloadChoice::Both)]
    pub(super) payload: PayloadChoice,
    /// Round trips (latency) or windows (bandwidth) in a batch [default: as many as fill 1.5 ms]
    #[arg(long, global = true, value_name = "N",
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(super) iterations: Option<u64>,
    /// Seconds to measure for, in all [default: 24; clones: 16; cpu: 45; ft: 120; peers, collectives: 60; costs: a rank is blocked
    /// for 10; report: 200]
    #[arg(long, global = true, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(super) time: Option<Duration>,
    /// Messages under way in the bandwidth test (fewer where they would exceed 64 MiB)
    #[arg(long, global = true, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub(super) window: u64,
    /// Format of the result
    #[arg(long, global = true, value_enum, default_value_t = Format::Table)]
    pub(super) format: Format,
    /// Show no times, but the bytes that the library copied for a message, by every protocol [--time: 4]
    #[arg(long, global = true, conflicts_with = "format")]
    pub(super) stats: bool,
    /// Bind each rank to a core of its own (the default)
    #[arg(long, global = true, overrides_with = "no_pin")]
    pub(super) pin: bool,
    /// Let the system place the ranks
    #[arg(long, global = true)]
    pub(super) no_pin: bool,
    /// Messages of mailboxes take this much longer: a slowdown for tests of `deckperf compare`
    #[arg(long, global = true, hide = true, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) handicap: Option<u32>,
    /// Bind the ranks of a host to these cores, or to free cores of these NUMA nodes: 0,1 or node:0,node:1
    #[arg(long, global = true, value_name = "LIST", value_delimiter = ',', value_parser = BindPlace::parse,
          conflicts_with = "no_pin")]
    pub(super) bind: Vec<BindPlace>,
    /// Transport of the messages: shm, verbs, tcp, udp [default: the best there is, as for every program]
    #[arg(long, global = true, value_name = "NAME", value_parser = parse_transport)]
    pub(super) transport: Option<&'static str>,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layer {
    /// Named mailboxes, by protocol
    Mailbox,
    /// Virtual interfaces: send/receive and RDMA write, polling and waiting, work and completion queues
    Vi,
    /// uDAPL beside virtual interfaces: send/receive, RDMA write and RDMA read, polled
    Dat,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PayloadChoice {
    /// Neither side looks at the data
    Untouched,
    /// The sender writes every word, the receiver sums and checks them
    #[value(name = "written+read")]
    WrittenRead,
    /// Both, side by side
    Both,
}

impl Options {
    pub(super) fn setting(&self) -> peers::Setting {
        match self.transport {
            None | Some("shm") => peers::Setting::Memory,
            Some(network) => peers::Setting::Network(network),
        }
    }

    pub(super) fn time_or(&self, seconds: u64) -> Duration {
        self.time.unwrap_or(Duration::from_secs(seconds))
    }

    /// The protocols asked for, each once, in the order asked for.
    pub(super) fn protocols_or(&self, default: &[Protocol]) -> Vec<Protocol> {
        let default = default.iter().filter(|protocol| {
            // Hand-off works only between ranks that share memory.
            self.setting() == peers::Setting::Memory || **protocol != Protocol::HandOff
        });
        if self.protocol.is_empty() { default.copied().collect() } else { distinct(self.protocol.clone()) }
    }

    /// The sizes asked for, ascending, without duplicates.
    pub(super) fn sizes_or(&self, default: &[usize]) -> Vec<usize> {
        let asked = if self.sizes.is_empty() { default } else { &self.sizes };
        sizes::perturbed(asked, 0..=0)
    }

    pub(super) fn sizes_or_default(&self) -> &[usize] {
        if self.sizes.is_empty() { &sizes::DEFAULT_SIZES } else { &self.sizes }
    }
}

pub(super) fn parse_protocol(text: &str) -> Result<Protocol, String> {
    PROTOCOLS.into_iter().find(|protocol| protocol.to_string() == text).ok_or_else(|| {
        let names = PROTOCOLS.map(|protocol| protocol.to_string());
        format!("unknown protocol; there are {}", names.join(", "))
    })
}

pub(super) fn parse_transport(text: &str) -> Result<&'static str, String> {
    let known = udeck::transports();
    let found = known.iter().find(|name| **name == text).copied();
    found.ok_or_else(|| format!("unknown transport; there are {}", known.join(", ")))
}

pub(super) fn parse_ranks(text: &str) -> Result<usize, String> {
    let sizes = peers::Setting::Groups.job_sizes();
    let known = text.parse().ok().filter(|ranks| sizes.contains(ranks));
    known.ok_or_else(|| format!("there are goals for {sizes:?} ranks"))
}

pub(super) fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(time) if !time.is_zero() && seconds <= 3600.0 => Ok(time),
        _ => Err("between 0 (excluded) and 3600 seconds".to_owned()),
    }
}
