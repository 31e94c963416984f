//! The command line: commands, and the task of each. Shared options and plans are in the folder.

mod accepted_options;
mod options;
mod plans;

use std::{env, path::PathBuf};

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand, error::ErrorKind};
use udeck_cli::Generate;

use self::options::{Layer, Memory, Options, parse_ranks};

use crate::commands::{clones, compare, costs, cpu, ft, jobs, overlap, page, peers, registration};
use crate::experiment::binding::BindPlace;
use crate::experiment::plan::{Checks, Format, Plan, Test};

/// Connections that a mailbox accepts from one rank in a job of two (`udeck::World::postbox`).
const OF_ONE_RANK: u64 = 1023;

const EXAMPLES: &str = "\
Examples:
  deckperf
      both tests, four protocols side by side, about half a minute
  deckperf latency --protocol hand-off
      one protocol, every size
  deckperf latency --protocol copy,hand-off --sizes 64K,1M \\
      --payload written+read
      two protocols, two sizes; the data is written and read
  deckperf bandwidth --protocol auto --sizes 8,4K,1M --window 16 --format csv
      16 messages under way; for a spreadsheet
  deckperf bibandwidth --sizes 8,64K,1M
      both ranks send windows at once
  deckperf latency --percentiles --protocol auto
      every round trip timed by itself, to 99.99 percent
  deckperf bandwidth --off-cache --sizes 64K,1M
      from and into memory that no cache holds
  deckperf multi-pair --pairs 1,2,4
      2, 4 and 8 ranks stream in pairs at once
  deckperf incast --ranks 2,4,8
      1, 3 and 7 ranks send to one
  deckrun -n 8 deckperf matrix
      every pair of ranks, also on several hosts
  deckperf latency --bind node:0,node:1
      on two NUMA nodes (cores: --bind 0,5)
  deckperf registration
      what registered memory and its cache take
  deckperf --format json > run.json
      everything measured, with percentiles
  deckperf --layer vi
      one layer below: send/receive and RDMA write between VIs
  deckperf --layer dat --sizes 8,4K,64K,1M
      uDAPL beside the VIs: send/receive, RDMA write and RDMA read
  deckperf verify --layer dat
      no timing: every byte that uDAPL moves is checked
  deckperf overlap --sizes 64K,1M
      how much of a transfer hides behind computation
  deckperf clones
      many clones of a mailbox: idle, and flooding it
  deckperf costs --ranks 100
      making, keeping, waiting, and starting 100 ranks
  deckperf peers
      beside MPICH, Open MPI, UCX and libfabric, where installed
  deckperf peers --peers DIR
      and beside today's, which `cargo xtask peers DIR` gets
  deckperf peers --transport tcp
      over TCP, beside raw sockets and the others over TCP
  deckperf collectives --peers DIR
      barrier, broadcast, all-reduce and all-to-all of groups beside an
      MPI's
  deckperf ft
      speed-up of NAS FT on 1, 2, 4 and 8 ranks, by transport and protocol
  deckperf cpu --peers DIR
      processor time of messages: bare sockets, every transport, MPI
  deckperf cpu --contenders tcp-sockets,tcp --sizes 4K --depths 8 --rate 0
  deckperf cpu --as chapter-9
      as the nine graphs of a thesis: UDP, TCP, uDAPL with 20 and 60 buffers
  deckperf compare before.json after.json
      what got slower, beyond the noise (`deckperf compare --help`)
  deckperf report -o report.html
      all of that as one page for a browser, in four minutes
  deckperf --stats --transport tcp
      no timing: bytes that the library copies for a message, by protocol
  deckperf --explain
      no timing: which protocol carries which size, and why
  deckperf verify
      no timing: every byte of every message is checked

Environment:
  DECK_TRANSPORT  as --transport (ft: one name)
  DECK_...        what is measured has every setting of the library

Exit code:
  0  measured; `verify`: every byte was right
  1  there is no result, and standard error says why; `verify`: a byte was wrong
  2  wrong usage";

const REPORT_EXAMPLES: &str = "\
Examples:
  deckperf report -o report.html
      measure messages over shm, tcp and udp, and other libraries: four
      minutes
  deckperf report --quick --transport shm
      a first look, in less than a minute
  deckperf report --evaluation -o evaluation.html
      the figures of the thesis on DECK over VIA, with the published
      numbers: about ten minutes; with --quick one or two
  deckperf report --peers DIR --json all.json
      beside today's releases, and keep the raw data
  deckperf report -o r.html run.json peers.json
      a page of earlier runs";

/// Latency and bandwidth of µDECK mailboxes, of the virtual interfaces under them, or of uDAPL on these, between two ranks on
/// this host, which it starts itself.
#[derive(Parser, Debug)]
#[command(name = "deckperf", version, after_help = EXAMPLES, max_term_width = 100)]
struct Line {
    #[command(subcommand)]
    command: Option<Command>,
    /// Measure nothing: say which protocol a message of each size takes, and why
    #[arg(long)]
    explain: bool,
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    generate: Generate,
}

/// The whole command line; each command accepts some of the shared options.
#[derive(Debug)]
pub struct Cli(Line);

impl Parser for Cli {}

impl CommandFactory for Cli {
    fn command() -> clap::Command {
        accepted_options::with_help_filtered(Line::command())
    }

    fn command_for_update() -> clap::Command {
        accepted_options::with_help_filtered(Line::command_for_update())
    }
}

impl FromArgMatches for Cli {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        match accepted_options::refusal(&Line::command(), matches) {
            Some(why) => Err(conflict(&why)),
            None => Line::from_arg_matches(matches).map(Cli),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    /// One-way time of a message: half the round trip of a ping-pong
    Latency {
        /// Time every round trip by itself: median, 90, 99, 99.9, 99.99 percent and maximum of single messages
        #[arg(long)]
        percentiles: bool,
        #[command(flatten)]
        memory: Memory,
    },
    /// Payload per second with a window of messages under way
    Bandwidth {
        #[command(flatten)]
        memory: Memory,
    },
    /// Payload per second in both directions at once, as OSU's osu_bibw
    Bibandwidth,
    /// Check every byte of messages of all sizes, each ±3 bytes, over all protocols (--layer dat: by every transfer)
    Verify,
    /// The fraction of a transfer that is hidden behind computation, for sender and receiver
    Overlap {
        /// Computation that goes with each message [default: twice the transfer]
        #[arg(long, value_name = "MICROSECONDS", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
        compute: Option<u64>,
    },
    /// Latency beside idle clones of the mailbox, fairness and memory when clones flood it
    Clones {
        /// Clones that flood the mailbox, which takes 1023 of one rank; 0: no flood
        #[arg(long, value_name = "N", default_value_t = 1000,
              value_parser = clap::value_parser!(u64).range(0..=OF_ONE_RANK))]
        flooding: u64,
        /// Numbers of clones, of which one is busy and the others are idle
        #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = clones::COUNTS,
              value_parser = clap::value_parser!(u16).range(1..=OF_ONE_RANK as i64))]
        clones: Vec<u16>,
        /// Measure also the payload per second over the busy clone
        #[arg(long)]
        stream: bool,
    },
    /// Making mailboxes and clones, memory of idle connections, a blocked rank, starting many ranks
    Costs {
        /// Ranks that are started and pass a barrier; 0: none
        #[arg(long, value_name = "N", default_value_t = 500,
              value_parser = clap::value_parser!(u32).range(0..=4096))]
        ranks: u32,
        /// Connections that lie idle, all with one mailbox
        #[arg(long, value_name = "N", default_value_t = 1000,
              value_parser = clap::value_parser!(u64).range(1..=OF_ONE_RANK))]
        connections: u64,
    },
    /// Several pairs of ranks stream at once, as OSU's osu_mbw_mr: MB/s and messages per second of all together
    MultiPair {
        /// How many pairs; the largest number decides how many ranks are started
        #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4",
              value_parser = clap::value_parser!(u16).range(1..=512))]
        pairs: Vec<u16>,
    },
    /// Every pair of ranks, one at a time: latency of 8 bytes and bandwidth of 64 KiB (or of --sizes), as a matrix
    Matrix {
        /// Ranks to start; a job of another launcher has as many as it has
        #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=64))]
        ranks: u16,
    },
    /// Many ranks send to one: rate at the receiver, fairness, and a short message among floods
    Incast {
        /// Ranks in the job; rank 0 receives from all others
        #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "2,4,8",
              value_parser = clap::value_parser!(u16).range(2..=512))]
        ranks: Vec<u16>,
    },
    /// Registering memory of 4 KiB to 64 MiB with the NIC, cache hits and misses, and posting from such memory
    Registration,
    /// The job that `costs` starts
    #[command(hide = true)]
    StartTime(costs::start_time::StartArgs),
    /// Mailboxes beside MPICH, Open MPI, UCX and libfabric in the same minute, with ratios and targets
    Peers {
        /// Compare with those in this folder, too: DIR/mpich, DIR/openmpi, DIR/ucx, DIR/libfabric (`cargo xtask peers DIR` gets
        /// today's releases)
        #[arg(long, value_name = "DIR")]
        peers: Option<PathBuf>,
    },
    /// Collective operations of 2, 4 and 8 ranks beside those of MPICH and Open MPI in the same minute, with ratios and goals
    Collectives {
        /// Compare with those in this folder, too: DIR/mpich, DIR/openmpi (`cargo xtask peers DIR` gets today's releases)
        #[arg(long, value_name = "DIR")]
        peers: Option<PathBuf>,
        /// How many ranks: 2, 4, 8 [default: all of them]
        #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_ranks)]
        ranks: Vec<usize>,
    },
    /// Processor time of messages at both ends, streamed and paced, polled and blocked for: bare sockets, µDECK over each
    /// transport, its uDAPL over shm, tcp and udp, MPICH and Open MPI
    Cpu {
        /// Measure those in this folder, too: DIR/mpich, DIR/openmpi (`cargo xtask peers DIR` gets today's releases)
        #[arg(long, value_name = "DIR")]
        peers: Option<PathBuf>,
        /// Messages under way, fewer where they would exceed 64 MiB [default: 2,64; --as chapter-9: 20,60]
        #[arg(long, value_name = "LIST", value_delimiter = ',',
              value_parser = clap::value_parser!(u64).range(1..=cpu::MOST_UNDER_WAY))]
        depths: Vec<u64>,
        /// Messages per second where they are paced, of the smallest and the largest size; 0: only streams
        #[arg(long, value_name = "N", default_value_t = cpu::RATE,
              value_parser = clap::value_parser!(u64).range(0..=100_000))]
        rate: u64,
        /// Contenders to measure [default: all; --as chapter-9: sockets and uDAPL]
        #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum)]
        contenders: Vec<cpu::Kind>,
        /// Tables of a published form, with its numbers of buffers and its contenders, which block where they wait; no paced
        /// messages
        #[arg(long = "as", value_name = "FORM", value_enum, conflicts_with = "rate")]
        form: Option<cpu::Chapter>,
    },
    /// Speed-up of NAS FT on 1, 2, 4, 8 ranks, by transport and protocol (table 7.1 of the thesis on DECK over VIA)
    Ft {
        /// Size of the problem
        #[arg(long, value_enum, ignore_case = true, default_value_t = ft::Class::A)]
        class: ft::Class,
        /// Numbers of ranks, beside one
        #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = ft::RANKS.map(|ranks| ranks as u16),
              value_parser = clap::value_parser!(u16).range(2..=256))]
        ranks: Vec<u16>,
    },
    /// The job that `ft` starts
    #[command(hide = true)]
    FtJob(ft::FtJobArgs),
    /// A rank of µDECK's that `cpu` conducts, or one end of bare sockets; started alone, both
    #[command(hide = true)]
    CpuRank {
        /// Measure bare sockets, without µDECK.
        #[arg(long)]
        sockets: bool,
        /// Measure uDAPL in place of mailboxes.
        #[arg(long, conflicts_with = "sockets")]
        dat: bool,
        /// Port of the other end, which has started this process.
        #[arg(long, requires = "sockets")]
        port: Option<u16>,
    },
    /// Find what got faster or slower between two runs, or two builds, beyond the noise of the machine
    Compare(compare::CompareArgs),
    /// One HTML page with curves, comparisons and the raw data, measured now or from files of `--format json`
    #[command(after_help = REPORT_EXAMPLES)]
    Report {
        /// The page; it needs no network, and no other file
        #[arg(short, long, value_name = "PAGE", default_value = "report.html")]
        output: PathBuf,
        /// Write all raw data into this file as well: `deckperf report FILE` makes the page again
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
        /// Measure for 40 seconds in all, not 200: a first look
        #[arg(long, conflicts_with = "files")]
        quick: bool,
        /// The figures of the thesis on DECK over VIA (2005), with the published numbers: virtual interfaces, postboxes,
        /// handshake, NAS FT. Measures for 360 seconds and more, with --quick about a minute
        #[arg(long, conflicts_with = "peers")]
        evaluation: bool,
        /// Compare with the libraries in this folder, too (`cargo xtask peers DIR` gets today's releases)
        #[arg(long, value_name = "DIR", conflicts_with = "files")]
        peers: Option<PathBuf>,
        /// Earlier runs, as `deckperf --format json` or `deckperf report --json` wrote them [default: measure now]
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// A rank of µDECK's that `peers` or `collectives` conducts; started alone, all of them
    #[command(hide = true)]
    PeerRank {
        /// Ranks in the job.
        #[arg(long)]
        ranks: u32,
        /// Serve `collectives`.
        #[arg(long)]
        groups: bool,
    },
}

/// The work of one run.
#[derive(Debug, PartialEq)]
pub enum Task {
    /// Measure, and print the figures.
    Measure(Plan),
    /// Measure the Virtual Interface layer.
    MeasureVi(Plan),
    /// Measure uDAPL.
    MeasureDat(Plan),
    /// Check the data of messages.
    Verify(Checks),
    /// Check the data of uDAPL's transfers.
    VerifyDat(Checks),
    /// Measure overlap.
    Overlap(overlap::OverlapPlan),
    /// Measure clones.
    Clones(clones::ClonesPlan),
    /// Measure among more than two ranks.
    Jobs(jobs::JobsPlan),
    /// Measure registration of memory.
    Registration(registration::RegistrationPlan),
    /// Measure costs.
    Costs(costs::CostsPlan),
    /// Run a job of ranks that pass a barrier, or be one of its ranks.
    StartTime(costs::start_time::StartArgs),
    /// Compare with other libraries.
    Peers(peers::PeersPlan),
    /// Make an HTML page.
    Page(page::PagePlan),
    /// Run the ranks of a job, this many, under a conductor.
    PeerRank(u32, peers::Setting),
    /// Measure processor time.
    Cpu(cpu::CpuPlan),
    /// Measure the speed-up of NAS FT.
    Ft(ft::FtPlan),
    /// Run the ranks of one job of nas-ft.
    FtJob(ft::FtJobArgs),
    /// Be a rank that `cpu` conducts, by this interface.
    CpuRank(cpu::Way),
    /// Be one end of bare sockets: `Some`: connect to the listener on this port; `None`: be the listener.
    CpuSockets(Option<u16>),
    /// Compare runs.
    Compare(compare::CompareArgs, Format),
    /// Print what would carry messages of these sizes, ascending.
    Explain(Vec<usize>),
}

impl Task {
    /// Whether the task's ranks work in a job of another size than two.
    pub fn takes_any_job(&self) -> bool {
        matches!(self, Task::PeerRank(..) | Task::Jobs(_))
    }
}

impl Cli {
    /// Transport that the ranks are to use, if the command line names one.
    pub fn transport(&self) -> Option<&'static str> {
        self.0.options.transport
    }

    /// The manual page or shell completions, if they were asked for.
    pub fn generated(&self) -> Option<String> {
        self.0.generate.text::<Self>()
    }

    /// Places to bind ranks to; empty if none were given.
    pub fn binding(&self) -> Vec<BindPlace> {
        self.0.options.bind.clone()
    }

    /// The task, with every default filled in.
    ///
    /// # Errors
    /// Some of the options exclude each other.
    pub fn task(self) -> Result<Task, clap::Error> {
        let Line { command, explain, options, generate: _ } = self.0;
        if options.stats && options.layer != Layer::Mailbox {
            return Err(conflict(
                "--stats is about messages of a mailbox: deckperf [latency|bandwidth] --stats",
            ));
        }
        match (command, options.layer) {
            (None, _) if explain => Ok(Task::Explain(options.plan(Vec::new(), false).sizes)),
            _ if explain => {
                Err(conflict("--explain is about what carries messages of a mailbox; it measures nothing"))
            }
            (Some(Command::PeerRank { ranks, groups: true }), _) => {
                Ok(Task::PeerRank(ranks, peers::Setting::Groups))
            }
            (Some(Command::PeerRank { ranks, .. }), _) => Ok(Task::PeerRank(ranks, options.setting())),
            (Some(Command::Collectives { peers, ranks }), _) => {
                options.collectives_plan(peers, ranks).map(Task::Peers)
            }
            (Some(Command::Peers { peers }), _) => Ok(Task::Peers(options.peers_plan(peers))),
            (Some(Command::Cpu { peers, depths, rate, contenders, form }), _) => {
                let form = form.map_or(cpu::Form::Loads, cpu::Form::Published);
                options.cpu_plan(peers, form, depths, rate, contenders).map(Task::Cpu)
            }
            (Some(Command::Ft { class, ranks }), _) => {
                options.ft_plan(class, ascending(ranks), env::var("DECK_TRANSPORT").ok()).map(Task::Ft)
            }
            (Some(Command::FtJob(order)), _) => Ok(Task::FtJob(order)),
            (Some(Command::CpuRank { sockets: true, port, .. }), _) => Ok(Task::CpuSockets(port)),
            (Some(Command::CpuRank { dat, .. }), _) => {
                Ok(Task::CpuRank(if dat { cpu::Way::Dat } else { cpu::Way::Mailbox }))
            }
            (Some(Command::Report { output, json, quick, evaluation, peers, files }), _) => options
                .page_plan(quick, evaluation, peers, files)
                .map(|plan| Task::Page(page::PagePlan { output, json, ..plan })),
            (Some(Command::Verify), Layer::Mailbox) => Ok(Task::Verify(options.checks())),
            (Some(Command::Verify), Layer::Dat) => options.layer_checks().map(Task::VerifyDat),
            (Some(Command::Verify), Layer::Vi) => {
                Err(conflict("`verify` is about mailboxes and uDAPL (--layer dat); --layer vi measures"))
            }
            (Some(Command::Compare(args)), _) => Ok(Task::Compare(args, options.format)),
            (Some(Command::Latency { percentiles: true, memory }), _) => options.percentiles(memory),
            (Some(Command::Latency { memory, .. }), _) => options.one_way(Test::Latency, memory),
            (Some(Command::MultiPair { pairs }), _) => options.jobs(jobs::Kind::MultiPair(ascending(pairs))),
            (Some(Command::Matrix { ranks }), _) => options.jobs(jobs::Kind::Matrix(usize::from(ranks))),
            (Some(Command::Incast { ranks }), _) => options.jobs(jobs::Kind::Incast(ascending(ranks))),
            (Some(Command::Registration), _) => options.registration().map(Task::Registration),
            (Some(Command::Bandwidth { memory }), _) => options.one_way(Test::Bandwidth, memory),
            (Some(Command::Bibandwidth), _) => options.bibandwidth(),
            (Some(Command::Overlap { compute }), _) => Ok(Task::Overlap(options.overlap(compute))),
            (Some(Command::Clones { flooding, clones, stream }), _) => {
                Ok(Task::Clones(options.clones(flooding as usize, ascending(clones), stream)))
            }
            (Some(Command::Costs { ranks, connections }), _) => {
                Ok(Task::Costs(options.costs(ranks, connections as usize)))
            }
            (Some(Command::StartTime(order)), _) => Ok(Task::StartTime(order)),
            (None, _) => options.measurement(vec![Test::Latency, Test::Bandwidth], true),
        }
    }
}

/// Sorts the counts and removes duplicates.
fn ascending(counts: Vec<u16>) -> Vec<usize> {
    let mut counts: Vec<usize> = counts.into_iter().map(usize::from).collect();
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// Whether there is a subcommand of this name.
pub fn has_command(name: &str) -> bool {
    Cli::command().find_subcommand(name).is_some()
}

fn conflict(what: &str) -> clap::Error {
    Cli::command().error(ErrorKind::ArgumentConflict, what)
}

#[cfg(test)]
mod tests;
