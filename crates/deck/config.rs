//! Settings of a world, from the environment or the program.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::group::choice::Algorithm;
use crate::incast::IncastControl;
use crate::protocol::auto::{Thresholds, bytes};
use crate::protocol::{Protocol, ReceiveModel};

/// Upper bound of [`Config::copy_window`], well below what a connection can lend at a time.
const MAX_COPY_WINDOW: u32 = 16;
/// Advice for jobs in which only some ranks insist on encryption.
pub(crate) const ENCRYPT_ALL: &str = "set DECK_ENCRYPT=1 for all ranks (deckrun --encrypt)";

/// Settings of a world.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Protocol of postboxes that set none (`DECK_PROTOCOL`).
    pub protocol: Protocol,
    /// Message sizes from which [`Protocol::Auto`] takes each protocol (`DECK_AUTO`).
    pub auto: Thresholds,
    /// Algorithm of collective calls, where it is possible; `None`: chosen by the call, the length, and the
    /// members' hosts (`DECK_GROUP`).
    pub group: Option<Algorithm>,
    /// How mailboxes poll for messages (`DECK_RECEIVE`, `cq` or `wq`).
    pub receive: ReceiveModel,
    /// Deadline of `retrieve`, `post`, `flush`, `barrier`, `finish` (`DECK_DEADLINE`, seconds). It is
    /// generous, because a peer may compute for minutes, but no call waits for ever.
    pub deadline: Duration,
    /// Deadline of making mailboxes and postboxes, and of the launcher's answers (`DECK_SETUP_TIMEOUT`, seconds).
    pub setup: Duration,
    /// Bound of each of this rank's message arenas in bytes (`DECK_ARENA`, e.g. `512M`); `None`: half of the
    /// machine's memory, at most 4 GiB.
    pub arena: Option<usize>,
    /// Bound of the queue of each of this rank's postboxes, in bytes (`DECK_QUEUE`, e.g. `16M`), unless the
    /// mailbox sets another ([`crate::World::mailbox_with_queue`], which says what counts). 4 MiB by default;
    /// at most a quarter of the rank's message memory.
    pub queue: usize,
    /// Fragments of the `copy` protocol that may be in flight (`DECK_COPY_WINDOW`). Two by default (double
    /// buffering). With one, the sender's copy and the receiver's follow each other; with more, they overlap
    /// as far as two processors can.
    pub copy_window: u32,
    /// Bound of the messages that a mailbox sets aside while the program asks for others, in bytes
    /// ([`crate::Retrieval`]; `DECK_SET_ASIDE`, e.g. `16M`). Each message counts its length
    /// and 128 bytes.
    pub set_aside: usize,
    /// Whether admitted peers are trusted not to write memory that they gave away (`DECK_TRUST`, `job` or `none`).
    pub trusting: bool,
    /// Transports to use, in order of preference, separated by commas (`DECK_TRANSPORT`); `None`: chosen by
    /// where the job's ranks run.
    pub transport: Option<String>,
    /// How long another host may be silent before its ranks count as lost (`DECK_DETECT`, seconds, at least
    /// 2); `None`: the transport's own time.
    pub detect: Option<Duration>,
    /// Whether messages to other hosts use only transports that encrypt and authenticate the whole path
    /// (`DECK_ENCRYPT`, `1` or `0`). Then this rank's postboxes use no others, and its mailboxes refuse
    /// others. Within a host any transport is used: nothing leaves the host.
    pub encrypt: bool,
    /// Shares of service levels in what this rank sends, `LEVEL:SHARE[@DISTANCE],...` (`DECK_LEVELS`, e.g.
    /// `5:50,3:30,0:20`); `None`: the kernel or the network decides. [`crate::Postbox::route`] says which
    /// transports keep to the shares.
    pub levels: Option<String>,
    /// Bytes that may be in flight at a time, over all connections, where levels have shares
    /// (`DECK_LEVELS_INFLIGHT`, e.g. `64K`; 256 KiB by default). A high level waits behind no more than these
    /// bytes. A bound below rate times round trip does not fill the link.
    pub levels_in_flight: Option<usize>,
    /// Incast control: whether this rank's mailboxes schedule the messages that are posted to them over a
    /// network (`DECK_INCAST`; `auto`, `off`, `srp` or `smsrp`).
    pub incast: IncastControl,
    /// Rate at which a mailbox takes messages under incast control, in bytes per second (`DECK_INCAST_RATE`,
    /// e.g. `500M`); `None`: measured.
    pub incast_rate: Option<u64>,
    /// Whether a thread of the library progresses messages while the program does not. Only jobs in virtual
    /// time do without it: a thread outside their turns would make each run different. Without it, only some
    /// waiting calls progress messages.
    #[doc(hidden)]
    pub progress_thread: bool,
    /// Number of this rank's threads that wait for messages of their own, or in shared memory, at the same
    /// time (`DECK_THREADS`, at least 1). If all ranks' threads together outnumber the host's processors,
    /// waiting threads yield instead of spinning.
    pub threads: usize,
    /// Whether to report on the error stream the first transport used to each other rank, and why no better
    /// one is used (`DECK_EXPLAIN`, `1` or `0`).
    pub explain: bool,
    /// Whether each rank writes its counters to the error stream when it finishes (`DECK_STATS`, `1` or `0`).
    pub stats: bool,
    /// File for a trace of the job (`DECK_TRACE`): for `deckfabric` if its name ends in `.vef`, else for Perfetto and
    /// Chrome; `None`: no trace.
    pub trace: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            protocol: Protocol::Auto,
            auto: Thresholds::default(),
            group: None,
            receive: ReceiveModel::CompletionQueue,
            deadline: Duration::from_secs(600),
            setup: Duration::from_secs(30),
            arena: None,
            queue: 4 << 20,
            copy_window: 2,
            set_aside: 64 << 20,
            trusting: true,
            transport: None,
            detect: None,
            encrypt: false,
            levels: None,
            levels_in_flight: None,
            incast: IncastControl::Auto,
            incast_rate: None,
            progress_thread: true,
            threads: 1,
            explain: false,
            stats: false,
            trace: None,
        }
    }
}

impl Config {
    /// Returns these settings with these transports ([`Config::transport`]): `shm`, `tcp`, `shm,tcp`.
    #[must_use]
    pub fn over(self, transports: impl Into<String>) -> Self {
        Config { transport: Some(transports.into()), ..self }
    }

    /// Returns the defaults, overridden by the environment.
    ///
    /// # Errors
    /// [`Error::Config`] names the variable and its allowed values.
    pub fn from_env() -> Result<Self> {
        Self::from_lookup(|variable| std::env::var(variable).ok())
    }

    fn from_lookup(lookup: impl Fn(&'static str) -> Option<String>) -> Result<Self> {
        let mut config = Config::default();
        let bad = |variable, value: String, expected: &'static str| Error::Config {
            variable,
            value,
            expected: expected.into(),
        };
        if let Some(text) = lookup("DECK_PROTOCOL") {
            config.protocol = text.parse().map_err(|_| bad("DECK_PROTOCOL", text, Protocol::EXPECTED))?;
        }
        if let Some(text) = lookup("DECK_AUTO") {
            config.auto =
                Thresholds::parse(&text).ok_or_else(|| bad("DECK_AUTO", text, Thresholds::EXPECTED))?;
        }
        if let Some(text) = lookup("DECK_GROUP").filter(|text| text != "auto") {
            config.group = Some(text.parse().map_err(|()| bad("DECK_GROUP", text, Algorithm::EXPECTED))?);
        }
        if let Some(text) = lookup("DECK_RECEIVE") {
            config.receive = text.parse().map_err(|_| bad("DECK_RECEIVE", text, ReceiveModel::EXPECTED))?;
        }
        for (variable, setting) in
            [("DECK_DEADLINE", &mut config.deadline), ("DECK_SETUP_TIMEOUT", &mut config.setup)]
        {
            if let Some(text) = lookup(variable) {
                *setting =
                    seconds(&text).ok_or_else(|| bad(variable, text, "a number of seconds above 0"))?;
            }
        }
        if let Some(text) = lookup("DECK_ARENA") {
            let arena = bytes(&text).filter(|bytes| (2 << 20..1 << 44).contains(bytes));
            config.arena =
                Some(arena.ok_or_else(|| bad("DECK_ARENA", text, "bytes, at least 2M (e.g. 512M, 4G)"))?);
        }
        if let Some(text) = lookup("DECK_QUEUE") {
            let queue = bytes(&text).filter(|bytes| *bytes < 1 << 44);
            config.queue =
                queue.ok_or_else(|| bad("DECK_QUEUE", text, "bytes (e.g. 64K, 16M; 0: one message)"))?;
        }
        if let Some(text) = lookup("DECK_COPY_WINDOW") {
            let window = text.parse().ok().filter(|window| (1..=MAX_COPY_WINDOW).contains(window));
            config.copy_window = window.ok_or_else(|| bad("DECK_COPY_WINDOW", text, "fragments, 1 to 16"))?;
        }
        if let Some(text) = lookup("DECK_SET_ASIDE") {
            config.set_aside =
                bytes(&text).ok_or_else(|| bad("DECK_SET_ASIDE", text, "bytes (e.g. 64K, 16M)"))?;
        }
        if let Some(text) = lookup("DECK_TRUST") {
            config.trusting = match text.as_str() {
                "job" => true,
                "none" => false,
                _ => return Err(bad("DECK_TRUST", text, "job (peers of the job are trusted) or none")),
            };
        }
        if let Some(text) = lookup("DECK_THREADS") {
            let threads = text.parse().ok().filter(|threads| *threads > 0);
            config.threads =
                threads.ok_or_else(|| bad("DECK_THREADS", text, "a number of threads from 1 on"))?;
        }
        config.trace = lookup("DECK_TRACE").filter(|path| !path.is_empty()).map(PathBuf::from);
        // Not checked here: only the code that opens transports knows which exist.
        config.transport = lookup("DECK_TRANSPORT");
        // Not checked here either: the code that opens transports parses the shares.
        config.levels = lookup("DECK_LEVELS").filter(|text| !text.is_empty());
        if let Some(text) = lookup("DECK_LEVELS_INFLIGHT") {
            let in_flight = bytes(&text).filter(|bytes| (16 << 10..1 << 30).contains(bytes));
            config.levels_in_flight = Some(
                in_flight
                    .ok_or_else(|| bad("DECK_LEVELS_INFLIGHT", text, "bytes, from 16K to 1G (e.g. 64K)"))?,
            );
        }
        if let Some(text) = lookup("DECK_INCAST") {
            config.incast = text.parse().map_err(|_| bad("DECK_INCAST", text, IncastControl::EXPECTED))?;
        }
        if let Some(text) = lookup("DECK_INCAST_RATE") {
            let rate = bytes(&text).filter(|rate| (1 << 10..1 << 44).contains(rate));
            let rate =
                rate.ok_or_else(|| bad("DECK_INCAST_RATE", text, "bytes a second, 1K or more (e.g. 500M)"))?;
            config.incast_rate = Some(rate as u64);
        }
        if let Some(text) = lookup("DECK_DETECT") {
            let detect = seconds(&text).filter(|detect| *detect >= Duration::from_secs(2));
            config.detect =
                Some(detect.ok_or_else(|| bad("DECK_DETECT", text, "a number of seconds from 2 on"))?);
        }
        for (variable, set) in [
            ("DECK_ENCRYPT", &mut config.encrypt),
            ("DECK_EXPLAIN", &mut config.explain),
            ("DECK_STATS", &mut config.stats),
        ] {
            // An empty value counts as unset, like that of `DECK_TRACE`.
            if let Some(text) = lookup(variable).filter(|text| !text.is_empty()) {
                *set = match text.as_str() {
                    "1" => true,
                    "0" => false,
                    _ => return Err(bad(variable, text, "1 or 0")),
                };
            }
        }
        Ok(config)
    }
}

fn seconds(text: &str) -> Option<Duration> {
    let seconds: f64 = text.strip_suffix('s').unwrap_or(text).parse().ok()?;
    (seconds > 0.0).then(|| Duration::try_from_secs_f64(seconds).ok()).flatten()
}

impl FromStr for Protocol {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = Protocol::NAMES.iter().find(|(_, name)| *name == text).map(|(protocol, _)| *protocol);
        found.ok_or_else(|| Error::Config {
            variable: "protocol",
            value: text.to_owned(),
            expected: Protocol::EXPECTED.into(),
        })
    }
}

impl FromStr for ReceiveModel {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = ReceiveModel::NAMES.iter().find(|(_, name)| *name == text).map(|(model, _)| *model);
        found.ok_or_else(|| Error::Config {
            variable: "receive model",
            value: text.to_owned(),
            expected: ReceiveModel::EXPECTED.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variable: &'static str, value: &str) -> Result<Config> {
        Config::from_lookup(|asked| (asked == variable).then(|| value.to_owned()))
    }

    #[test]
    fn settings_are_read() {
        assert_eq!(with("DECK_ARENA", "512M").unwrap().arena, Some(512 << 20));
        assert_eq!(with("DECK_QUEUE", "64K").unwrap().queue, 64 << 10);
        assert_eq!(with("DECK_QUEUE", "0").unwrap().queue, 0);
        assert_eq!(with("DECK_DEADLINE", "1.5s").unwrap().deadline, Duration::from_millis(1500));
        assert_eq!(with("DECK_PROTOCOL", "eager").unwrap().protocol, Protocol::Eager);
        assert_eq!(with("DECK_RECEIVE", "wq").unwrap().receive, ReceiveModel::WorkQueues);
        let auto = with("DECK_AUTO", "rdma-write=1M,hand-off=4K").unwrap().auto;
        assert_eq!((auto.rdma_write, auto.hand_off, auto.rdma_read), (1 << 20, 4096, Thresholds::NEVER));
        assert_eq!(with("DECK_SET_ASIDE", "64K").unwrap().set_aside, 64 << 10);
        assert!(!with("DECK_TRUST", "none").unwrap().trusting);
        assert_eq!(with("DECK_THREADS", "4").unwrap().threads, 4);
        assert_eq!(with("DECK_TRACE", "job.json").unwrap().trace, Some(PathBuf::from("job.json")));
        assert_eq!(with("DECK_TRACE", "").unwrap().trace, None);
        assert_eq!(with("DECK_TRANSPORT", "near,far").unwrap(), Config::default().over("near,far"));
        assert_eq!(with("DECK_INCAST", "smsrp").unwrap().incast, IncastControl::Smsrp);
        assert_eq!(with("DECK_INCAST_RATE", "10M").unwrap().incast_rate, Some(10 << 20));
        assert_eq!(with("DECK_DETECT", "5").unwrap().detect, Some(Duration::from_secs(5)));
        assert!(with("DECK_ENCRYPT", "1").unwrap().encrypt && !with("DECK_ENCRYPT", "0").unwrap().encrypt);
        assert!(with("DECK_EXPLAIN", "1").unwrap().explain && !with("DECK_EXPLAIN", "0").unwrap().explain);
        assert_eq!(Config::from_lookup(|_| None).unwrap(), Config::default());
    }

    #[test]
    fn nonsense_is_named() {
        for (variable, value) in [
            ("DECK_ARENA", "1K"),
            ("DECK_ARENA", "much"),
            ("DECK_ARENA", "99999999999999999999G"),
            ("DECK_QUEUE", "-1"),
            ("DECK_QUEUE", "long"),
            ("DECK_QUEUE", "99999999G"),
            ("DECK_DEADLINE", "-1"),
            ("DECK_DEADLINE", "nan"),
            ("DECK_SETUP_TIMEOUT", "soon"),
            ("DECK_PROTOCOL", "fast"),
            ("DECK_AUTO", "hand-off"),
            ("DECK_AUTO", "eager=3"),
            ("DECK_AUTO", ""),
            ("DECK_RECEIVE", "dq"),
            ("DECK_SET_ASIDE", "all"),
            ("DECK_TRUST", "maybe"),
            ("DECK_DETECT", "1"),
            ("DECK_INCAST", "on"),
            ("DECK_INCAST_RATE", "0"),
            ("DECK_INCAST_RATE", "fast"),
            ("DECK_EXPLAIN", "please"),
            ("DECK_STATS", "all"),
            ("DECK_COPY_WINDOW", "0"),
            ("DECK_COPY_WINDOW", "17"),
        ] {
            let error = with(variable, value).unwrap_err().to_string();
            assert!(error.contains(variable) && error.contains("expected"), "{error}");
        }
        assert!(!with("DECK_STATS", "").unwrap().stats, "empty is unset");
    }

    #[test]
    fn names_round_trip_and_others_are_refused() {
        for (protocol, name) in Protocol::NAMES {
            assert_eq!(name.parse::<Protocol>().unwrap(), protocol);
            assert_eq!(protocol.to_string(), name);
            assert!(Protocol::EXPECTED.contains(name), "{name}");
        }
        let error = "handoff".parse::<Protocol>().unwrap_err().to_string();
        assert!(error.contains("hand-off") && error.contains("\"handoff\""), "{error}");
        for (model, name) in ReceiveModel::NAMES {
            assert_eq!((name.parse::<ReceiveModel>().unwrap(), model.to_string()), (model, name.to_owned()));
        }
        assert!("CQ".parse::<ReceiveModel>().is_err());
    }
}
