//! The command line.

use crate::ranks::SERVERS;
use crate::row::{BLOBS_OF_A_CLIENT, MAX_CLIENTS};
use clap::builder::TypedValueParser as _;
use clap::{Parser, ValueEnum};
use std::ops::RangeInclusive;
use std::time::Duration;
use udeck_cli::Generate;

/// Number of clients, unless it is said.
const CLIENTS: u32 = 2;
/// Number of a client's BLOBs, unless it is said: so many, if they take no more bytes than this.
const BLOBS: u32 = 10_000;
const BLOBS_ROOM: usize = 64 << 20;
/// Largest length of a BLOB, in bytes.
const LONGEST_BLOB: usize = 16 << 20;
const MORE: &str = "\
Examples:
  hadb                              all mixes over shared memory, two servers and two clients; it
                                    starts its ranks itself
  hadb --transport tcp --mix tpcb --time 10
                                    one mix over TCP, for 10 s
  hadb --link dat --transport tcp   by uDAPL's end points, over TCP
  hadb --link bare                  the baseline: UDP sockets alone, without the library
  hadb --client-link bare --node-link dat
                                    UDP sockets for the clients, and uDAPL between the servers
  hadb --tables --time 2            a thesis's tables of HADB over UDP and uDAPL, in its shape
  hadb --mix blob --blob-bytes 10K-1M
                                    BLOBs of 10 KB to 1 MB: insert, read, update, delete
  hadb --clients 4 --remote 1
                                    four clients, and every row is on the other server
  hadb --time 8 --kill 15           a server is killed after 15 s; nothing acknowledged is lost
  hadb --time 8 --kill 2 --spares 1 --kill-again
                                    a spare takes its place; then the other server is killed, too
  deckrun -n 4 --on-failure continue hadb --kill 5
                                    as ranks of deckrun's: it says 137 for the killed one

Environment:
  DECK_TRANSPORT  what messages travel over, unless --transport says so: shm, verbs, tcp, udp
  DECK_...        the ranks have every setting of the library

Exit code:
  0  all checks have passed
  1  a check has failed
  2  there is no result, and standard error says why; or wrong usage";

/// A highly available database's message flows: two servers, each the primary of one half of the rows and the hot standby of the
/// other half, and clients that check every answer.
///
/// Started alone, the program starts its ranks itself: 0 and 1 are the servers, the others the clients.
#[derive(Clone, Debug, Parser)]
#[command(name = "hadb", version, after_help = MORE, max_term_width = 100)]
pub struct Options {
    /// Transactions to run, with commas between them
    #[arg(long, value_enum, value_delimiter = ',', default_value = "all")]
    mix: Vec<MixChoice>,
    /// Number of seconds that each mix runs
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = seconds)]
    pub time: Duration,
    /// Number of clients, 1 to 4: the first and the third one talk to server 0, the others to server 1. By default 2; under a
    /// launcher, all ranks that are neither servers nor spares
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CLIENTS)))]
    pub clients: Option<u32>,
    /// Share of rows that are on another server than the client's own: 0 to 1
    #[arg(long, value_name = "FRACTION", default_value = "0.15", value_parser = fraction)]
    pub remote: f64,
    /// Length of BLOBs in bytes, as 1K, or 10K-1M for lengths between two, each order of magnitude equally likely
    #[arg(long, value_name = "BYTES", default_value = "1K", value_parser = lengths)]
    blob_bytes: RangeInclusive<usize>,
    /// Largest number of BLOBs that a client inserts. By default 10000, or what 64 MB hold
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(BLOBS_OF_A_CLIENT)))]
    blobs: Option<u32>,
    /// Interface that carries messages
    #[arg(long, value_enum, value_name = "NAME")]
    link: Option<LinkKind>,
    /// Interface between clients and servers, if it is another
    #[arg(long, value_enum, value_name = "NAME")]
    client_link: Option<LinkKind>,
    /// Interface between servers, if it is another
    #[arg(long, value_enum, value_name = "NAME")]
    node_link: Option<LinkKind>,
    /// Transport of the messages: shm, tcp, udp or verbs. By default as the launcher says, else shm. (bare-udp: the same as
    /// --link bare)
    #[arg(long, value_name = "NAME", value_parser = transport)]
    pub transport: Option<Transport>,
    /// Kill a server by SIGKILL this number of seconds after the first mix has begun
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub kill: Option<Duration>,
    /// Rank of the server that is killed
    #[arg(long, value_name = "RANK", default_value = "1", requires = "kill", value_parser = clap::value_parser!(u8).range(0..=1))]
    pub victim: u8,
    /// Number of spare nodes, the last ranks: one copies the data of the server that is left after a death, while transactions go
    /// on, and takes the dead one's place
    #[arg(long, value_name = "N", default_value = "0", value_parser = clap::value_parser!(u8).range(0..=2).map(usize::from))]
    pub spares: usize,
    /// Kill the other server, too, as soon as a spare has the place of the first one
    #[arg(long, requires = "kill")]
    kill_again: bool,
    /// Measure and print the tables of the thesis in which HADB ran over uDAPL, with the published ratios: all messages by UDP, and
    /// uDAPL between the servers
    #[arg(long, conflicts_with_all = ["mix", "clients", "remote", "blob_bytes", "blobs", "link", "client_link", "node_link",
        "kill", "spares", "format"])]
    pub tables: bool,
    /// Number of times that --tables measures each row
    #[arg(long, value_name = "N", default_value = "3", requires = "tables", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: u32,
    /// Format of the results
    #[arg(long, value_enum, default_value = "table")]
    pub format: Format,
    /// Seed of the clients' random numbers
    #[arg(long, value_name = "N", default_value = "1")]
    pub seed: u64,
    #[command(flatten)]
    pub generate: Generate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MixChoice {
    /// All of the following
    All,
    /// Read a tuple
    #[value(name = "1tup-read")]
    OneTupleRead,
    /// Change four tuples, a statement each
    #[value(name = "4tup-run")]
    FourTupleRun,
    /// Account, teller, branch and history, in one message
    #[value(name = "tpcb")]
    TpcB,
    /// The four operations of BLOBs
    Blob,
    /// Insert BLOBs, until all are there or the time is over
    BlobInsert,
    /// Read a BLOB
    BlobRead,
    /// Update a BLOB
    BlobUpdate,
    /// Delete BLOBs, until none is left or the time is over
    BlobDelete,
}

/// A kind of transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    OneTupleRead,
    FourTupleRun,
    TpcB,
    BlobInsert,
    BlobRead,
    BlobUpdate,
    BlobDelete,
}

impl Mix {
    pub const ALL: [Mix; 7] = [
        Mix::OneTupleRead,
        Mix::FourTupleRun,
        Mix::TpcB,
        Mix::BlobInsert,
        Mix::BlobRead,
        Mix::BlobUpdate,
        Mix::BlobDelete,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Mix::OneTupleRead => "1tup-read",
            Mix::FourTupleRun => "4tup-run",
            Mix::TpcB => "tpcb",
            Mix::BlobInsert => "blob-insert",
            Mix::BlobRead => "blob-read",
            Mix::BlobUpdate => "blob-update",
            Mix::BlobDelete => "blob-delete",
        }
    }

    /// Whether the mix needs BLOBs that another one has inserted.
    fn needs_blobs(self) -> bool {
        matches!(self, Mix::BlobRead | Mix::BlobUpdate | Mix::BlobDelete)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Table,
    Csv,
    Json,
}

/// Interface that carries messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LinkKind {
    /// Mailboxes; this is the default
    Mailboxes,
    /// uDAPL's end points: sends, and RDMA writes of BLOBs
    Dat,
    /// UDP sockets, without the library: the baseline
    Bare,
}

/// Transport of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A transport of the library.
    Deck(&'static str),
    /// The program's own UDP sockets.
    BareUdp,
}

/// Interfaces that carry messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Links {
    /// Between clients and all others.
    pub clients: LinkKind,
    /// Between servers.
    pub nodes: LinkKind,
}

/// BLOBs of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blobs {
    /// Their lengths in bytes; each order of magnitude is equally likely.
    pub lengths: RangeInclusive<usize>,
    /// Largest number that a client inserts.
    pub most: u32,
}

impl Options {
    /// Mixes in the order in which they run.
    pub fn mixes(&self) -> Vec<Mix> {
        let wants = |mix: &Mix| {
            self.mix.iter().any(|wanted| match wanted {
                MixChoice::All => true,
                MixChoice::OneTupleRead => *mix == Mix::OneTupleRead,
                MixChoice::FourTupleRun => *mix == Mix::FourTupleRun,
                MixChoice::TpcB => *mix == Mix::TpcB,
                MixChoice::Blob => *mix == Mix::BlobInsert || mix.needs_blobs(),
                MixChoice::BlobInsert => *mix == Mix::BlobInsert,
                MixChoice::BlobRead => *mix == Mix::BlobRead,
                MixChoice::BlobUpdate => *mix == Mix::BlobUpdate,
                MixChoice::BlobDelete => *mix == Mix::BlobDelete,
            })
        };
        Mix::ALL.into_iter().filter(wants).collect()
    }

    /// BLOBs of each client.
    pub fn blobs(&self) -> Blobs {
        let hold = (BLOBS_ROOM / self.blob_bytes.end()).clamp(1, BLOBS as usize) as u32;
        Blobs { lengths: self.blob_bytes.clone(), most: self.blobs.unwrap_or(hold) }
    }

    /// Number of ranks of a job of this program's own.
    pub fn ranks(&self) -> usize {
        SERVERS + self.clients.unwrap_or(CLIENTS) as usize + self.spares
    }

    /// Rank of the server that is to be killed as soon as a spare has the place of the first one.
    pub fn second_victim(&self) -> Option<usize> {
        self.kill_again.then(|| 1 - usize::from(self.victim))
    }

    /// Ranks of the servers that are to be killed.
    pub fn victims(&self) -> Vec<usize> {
        let first = self.kill.map(|_| usize::from(self.victim));
        first.into_iter().chain(self.second_victim()).collect()
    }

    /// Refuses the result of a run that had answers after so many deaths only.
    pub fn check_kills(&self, noticed: u32) -> Result<(), String> {
        let victims = self.victims();
        let Some(victim) = victims.get(noticed as usize) else { return Ok(()) };
        let option = match self.kill {
            Some(kill) if noticed == 0 => format!("--kill {}", kill.as_secs_f64()),
            _ => "--kill-again".to_owned(),
        };
        Err(format!(
            "{option}: all transactions had ended when server {victim} was to die (inserts and deletes of BLOBs end when all are \
             there, or none); say an earlier --kill, or a longer --time"
        ))
    }

    /// Whether the other ranks go on after a death.
    pub fn outlives_deaths(&self) -> bool {
        self.kill.is_some() || self.spares > 0
    }

    /// Refuses a launcher's job of another size than `--clients` says, or than any number of clients takes.
    pub fn check_ranks(&self, ranks: usize) -> Result<(), String> {
        let others = SERVERS + self.spares;
        let (fewest, most) = (others + 1, others + MAX_CLIENTS as usize);
        match self.clients {
            Some(clients) if ranks != self.ranks() => Err(format!(
                "--clients {clients}: takes {} ranks, with {others} servers and spares, and this job has {ranks}: start {0}, or \
                 say another --clients",
                self.ranks()
            )),
            None if !(fewest..=most).contains(&ranks) => Err(format!(
                "takes {fewest} to {most} ranks, {others} servers and spares and 1 to {MAX_CLIENTS} clients, and this job has \
                 {ranks}: start {}, or run hadb without a launcher",
                self.ranks()
            )),
            _ => Ok(()),
        }
    }

    /// Interfaces that carry messages, from all options.
    pub fn links(&self) -> Links {
        let both = match (self.link, self.transport) {
            (Some(link), _) => link,
            (None, Some(Transport::BareUdp)) => LinkKind::Bare,
            (None, _) => LinkKind::Mailboxes,
        };
        Links { clients: self.client_link.unwrap_or(both), nodes: self.node_link.unwrap_or(both) }
    }

    /// Refuses interfaces that do not go together, and a transport for sockets.
    fn check_links(&self) -> Result<(), String> {
        let Links { clients, nodes } = self.links();
        let refusal = match (clients, nodes, self.transport) {
            (LinkKind::Bare, LinkKind::Bare, Some(Transport::Deck(name))) => {
                format!("--link bare: has no transport; leave --transport {name} out")
            }
            (LinkKind::Bare, LinkKind::Bare, _) => return Ok(()),
            (_, _, Some(Transport::BareUdp)) => {
                "--transport bare-udp: is --link bare; say a transport of the library's".to_owned()
            }
            (_, LinkKind::Bare, _) => "--node-link bare: only with --client-link bare, which is --link bare; the \
                 servers are those that the library is to connect"
                .to_owned(),
            (LinkKind::Mailboxes, LinkKind::Dat, _) | (LinkKind::Dat, LinkKind::Mailboxes, _) => {
                "--client-link, --node-link: mailboxes and uDAPL would share one transport and one NIC, and be \
                 measured as one; say one --link for all, or --client-link bare"
                    .to_owned()
            }
            _ => return Ok(()),
        };
        Err(refusal)
    }

    /// Refuses contradictions: the program's own sockets are no transport of the library, and a kill after the
    /// end is a mistake.
    pub fn check(self) -> Result<Self, String> {
        if self.tables && self.transport == Some(Transport::BareUdp) {
            return Err("--tables: measures bare sockets, too; say a transport for uDAPL".to_owned());
        }
        self.check_links()?;
        if self.kill_again && self.spares == 0 {
            return Err("--kill-again: nobody would be left; say --spares 1, too".to_owned());
        }
        let mixes = self.mixes();
        if let Some(mix) = mixes.iter().find(|mix| mix.needs_blobs() && !mixes.contains(&Mix::BlobInsert)) {
            return Err(format!("--mix {0}: there are no BLOBs; say blob-insert,{0}", mix.name()));
        }
        let whole = self.time * mixes.len() as u32;
        match self.kill {
            Some(kill) if kill >= whole => Err(format!(
                "--kill {}: the run is over after {} s; say less, or a longer --time",
                kill.as_secs_f64(),
                whole.as_secs_f64()
            )),
            _ => Ok(self),
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let limit = |seconds: &f64| (0.001..=86_400.0).contains(seconds);
    let seconds =
        text.parse().ok().filter(limit).ok_or("a number of seconds, from 0.001 to a day (86400)")?;
    Ok(Duration::from_secs_f64(seconds))
}

fn fraction(text: &str) -> Result<f64, String> {
    let fraction = text.parse().ok().filter(|share: &f64| (0.0..=1.0).contains(share));
    fraction.ok_or_else(|| "a number from 0 to 1".to_owned())
}

/// Parses a length in bytes, or two with a hyphen between them.
fn lengths(text: &str) -> Result<RangeInclusive<usize>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let [smallest, largest] = [first, last].map(length);
    let range = smallest.zip(largest).filter(|(smallest, largest)| smallest <= largest);
    range.map(|(smallest, largest)| smallest..=largest).ok_or_else(|| {
        "a number of bytes from 1 to 16M, with K or M for 1024 or 1024 times 1024, or two such as 10K-1M"
            .to_owned()
    })
}

fn length(text: &str) -> Option<usize> {
    let (digits, unit) = match text.strip_suffix(['K', 'k']) {
        Some(digits) => (digits, 1 << 10),
        None => text.strip_suffix(['M', 'm']).map_or((text, 1), |digits| (digits, 1 << 20)),
    };
    let bytes = digits.parse::<usize>().ok()?.checked_mul(unit)?;
    (1..=LONGEST_BLOB).contains(&bytes).then_some(bytes)
}

fn transport(text: &str) -> Result<Transport, String> {
    if text == "bare-udp" {
        return Ok(Transport::BareUdp);
    }
    let known = udeck::transports();
    let found = known.iter().find(|name| **name == text).map(|name| Transport::Deck(name));
    found.ok_or_else(|| format!("unknown transport; there are {}, bare-udp", known.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<Options, String> {
        Options::try_parse_from(line.split(' ')).map_err(|error| error.to_string()).and_then(Options::check)
    }

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
        // Wider lines are wrapped, and their second column is lost.
        let wide = MORE.lines().find(|line| line.chars().count() > 100);
        assert_eq!(wide, None);
    }

    #[test]
    fn mixes_run_in_their_order_each_once() {
        assert_eq!(parse("hadb").expect("defaults").mixes(), Mix::ALL);
        let some = parse("hadb --mix blob,1tup-read,blob").expect("five mixes").mixes();
        let of_blobs = [Mix::BlobInsert, Mix::BlobRead, Mix::BlobUpdate, Mix::BlobDelete];
        assert_eq!((some[0], &some[1..]), (Mix::OneTupleRead, &of_blobs[..]));
        let some = parse("hadb --mix blob-delete,blob-insert").expect("two mixes").mixes();
        assert_eq!(some, [Mix::BlobInsert, Mix::BlobDelete]);
        assert!(parse("hadb --mix 2tup-read").is_err());
    }

    #[test]
    fn a_job_with_spares_goes_on_after_a_death_that_nobody_has_ordered() {
        for (line, outlives) in [("hadb", false), ("hadb --spares 1", true), ("hadb --kill 1", true)] {
            assert_eq!(parse(line).expect("fits").outlives_deaths(), outlives, "{line}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for wrong in [
            "--remote 1.1",
            "--transport pigeon",
            "--link pigeon",
            "--link bare --transport tcp",
            "--link dat --transport bare-udp",
            "--clients 0",
            "--clients 5",
            "--kill 21",
            "--mix blob-read",
            "--mix 1tup-read,blob-delete",
            "--blob-bytes 0",
            "--blob-bytes 17M",
            "--blob-bytes 2K-1K",
            "--blob-bytes 1G",
            "--blobs 0",
            "--victim 1",
            "--spares 3",
            "--kill 1 --kill-again",
            "--spares 1 --kill-again",
            "--time 0",
            "--rounds 2",
            "--tables --clients 1",
            "--tables --kill 1",
            "--tables --transport bare-udp",
        ] {
            assert!(parse(&format!("hadb {wrong}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_launchers_job_has_servers_and_the_clients_that_were_said() {
        let refusal = |line: &str, ranks| parse(line).expect("fits").check_ranks(ranks).err();
        for ranks in 3..=6 {
            assert_eq!(refusal("hadb", ranks), None);
            assert_eq!(refusal(&format!("hadb --clients {}", ranks - 2), ranks), None);
        }
        for ranks in [1, 2, 7] {
            assert!(
                refusal("hadb", ranks).expect("too few or many").contains("takes 3 to 6 ranks"),
                "{ranks}"
            );
        }
        let other = refusal("hadb --clients 1", 4).expect("another number");
        assert!(other.contains("takes 3 ranks") && other.contains("this job has 4: start 3"), "{other}");
        assert_eq!(parse("hadb").expect("fits").ranks(), 4);
    }

    /// A kill after the last transaction would count as survived.
    #[test]
    fn a_kill_after_the_last_answer_is_refused() {
        let refusal = |line: &str, noticed| parse(line).expect("fits").check_kills(noticed).err();
        let said = |line: &str, noticed| refusal(line, noticed).unwrap_or_default();
        assert!(
            said("hadb --mix blob --kill 11 --victim 0", 0)
                .contains("--kill 11: all transactions had ended when server 0")
        );
        assert_eq!(refusal("hadb --mix blob --kill 11", 1), None);
        let both = "hadb --kill 2 --spares 1 --kill-again";
        assert!(said(both, 1).contains("--kill-again: all transactions had ended when server 0"));
        assert_eq!(refusal(both, 2), None);
        assert_eq!(refusal("hadb", 0), None);
    }

    #[test]
    fn the_advised_number_of_ranks_is_not_refused() {
        for (line, advised) in [("hadb", 4), ("hadb --spares 1", 5), ("hadb --spares 2", 6)] {
            let options = parse(line).expect("fits");
            let refusal = options.check_ranks(2).expect_err("too few");
            assert!(refusal.contains(&format!("this job has 2: start {advised},")), "{refusal}");
            assert_eq!(options.check_ranks(advised), Ok(()));
        }
    }

    #[test]
    fn blobs_have_a_length_and_a_number_that_memory_holds() {
        let blobs = |line: &str| parse(line).expect("fits").blobs();
        assert_eq!(blobs("hadb"), Blobs { lengths: 1024..=1024, most: 10_000 });
        assert_eq!(blobs("hadb --blob-bytes 10k --blobs 5000").most, 5000);
        assert_eq!(blobs("hadb --blob-bytes 10K-1M"), Blobs { lengths: 10_240..=1_048_576, most: 64 });
        assert_eq!(blobs("hadb --blob-bytes 16M").most, 4);
    }

    #[test]
    fn what_carries_messages_has_a_name_and_bare_sockets_have_two() {
        let links = |line: &str| {
            let Links { clients, nodes } = parse(line).expect("fits").links();
            (clients, nodes)
        };
        let both = |link| (link, link);
        assert_eq!(links("hadb"), both(LinkKind::Mailboxes));
        assert_eq!(links("hadb --transport shm"), both(LinkKind::Mailboxes));
        assert_eq!(links("hadb --link dat --transport tcp"), both(LinkKind::Dat));
        for bare in ["--link bare", "--transport bare-udp", "--link bare --transport bare-udp"] {
            assert_eq!(links(&format!("hadb --kill 20.9 --victim 0 {bare}")), both(LinkKind::Bare), "{bare}");
        }
        let split = (LinkKind::Bare, LinkKind::Dat);
        assert_eq!(links("hadb --client-link bare --node-link dat --transport tcp"), split);
        assert_eq!(links("hadb --link dat --client-link bare"), split);
        assert_eq!(links("hadb --link bare --node-link dat"), split);
        assert_eq!(links("hadb --client-link bare"), (LinkKind::Bare, LinkKind::Mailboxes));
    }

    #[test]
    fn links_that_do_not_go_together_are_refused_with_what_would_do() {
        for (line, words) in [
            ("--node-link bare", "is --link bare"),
            ("--link dat --node-link bare", "is --link bare"),
            ("--client-link dat", "--client-link bare"),
            ("--node-link dat", "--client-link bare"),
            ("--client-link bare --node-link bare --transport tcp", "leave --transport tcp out"),
            ("--client-link bare --transport bare-udp --node-link dat", "a transport of the library's"),
        ] {
            let refused = parse(&format!("hadb {line}")).expect_err(line);
            assert!(refused.contains(words), "{line}: {refused}");
        }
    }
}
