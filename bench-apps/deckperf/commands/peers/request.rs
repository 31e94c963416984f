//! Requests of the conductor to a job, µDECK's or an MPI's: one line of text, the same to every rank.
//!
//! The line is `batch TEST PAYLOAD BYTES WARM-UP ITERATIONS WAY`; each rank answers with nanoseconds, or with `error` and the
//! reason. `peer.c` reads the same line.

use std::{fmt, str::FromStr, time::Duration};

use clap::ValueEnum;
use udeck::Protocol;

use crate::{
    experiment::plan::{PROTOCOLS, Payload},
    named::Named,
};

/// Name of the environment variable with the path of the socket on which the conductor waits for the ranks of a job.
pub const CONDUCTOR: &str = "DECKPERF_CONDUCTOR";

/// Messages in a window of [`PeerTest::Stream`]; `peer.c` has the same.
pub const WINDOW: u64 = 64;

/// Test of a batch.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerTest {
    /// Every pair of ranks plays ping-pong.
    Latency,
    /// Windows of [`WINDOW`] messages, each acknowledged.
    Stream,
    /// All ranks wait for each other.
    Barrier,
    /// The sum of all ranks' numbers, at every rank.
    AllReduce,
    /// The data of the root, at every rank; each rank is the root in its turn.
    Broadcast,
    /// A block from each rank to each.
    AllToAll,
}

/// Method by which a contender runs a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// µDECK's mailboxes, with this protocol.
    Mailbox(Protocol),
    /// µDECK's mailboxes, with many messages by one call of `post_each` or `drain`.
    Batches,
    /// µDECK's group operation on slices.
    Group,
    /// µDECK's group operation on buffers, which are given away.
    GroupBuf,
    /// `MPI_Send` and related calls, and the collective operations.
    Send,
    /// Memory of `MPI_Win_allocate_shared`, and a flag in it.
    Window,
    /// No message passing at all: a limit of the machine.
    Bare,
}

/// Column of the comparison: contenders of the same column are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Test that is timed.
    pub test: PeerTest,
    /// Number of ranks that take part.
    pub ranks: usize,
    /// Payload mode of the messages.
    pub payload: Payload,
    /// Bytes of a message; for an all-to-all, from one rank to another.
    pub bytes: usize,
}

/// Iterations that are timed together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// Test that is timed; the job knows its number of ranks.
    pub test: PeerTest,
    /// Payload mode of the messages.
    pub payload: Payload,
    /// Bytes of a message.
    pub bytes: usize,
    /// Iterations before the clock starts.
    pub warm_up: u64,
    /// Round trips, windows or collective operations.
    pub iterations: u64,
    /// Method of the contender.
    pub way: Method,
}

impl Method {
    /// Protocol of µDECK's mailboxes; `None` for other methods.
    pub fn protocol(self) -> Option<Protocol> {
        match self {
            Method::Mailbox(protocol) => Some(protocol),
            Method::Batches => Some(Protocol::Auto),
            Method::Group | Method::GroupBuf | Method::Send | Method::Window | Method::Bare => None,
        }
    }
}

impl Column {
    /// Messages in one direction, or collective operations, in an iteration. A figure is for one of them.
    pub fn per_iteration(&self) -> u64 {
        match self.test {
            PeerTest::Latency => 2,
            PeerTest::Stream => WINDOW,
            PeerTest::Barrier | PeerTest::AllReduce | PeerTest::Broadcast | PeerTest::AllToAll => 1,
        }
    }
}

impl Request {
    /// A request for this column.
    pub fn new(column: &Column, way: Method, warm_up: u64, iterations: u64) -> Self {
        let &Column { test, payload, bytes, .. } = column;
        Self { test, payload, bytes, warm_up, iterations, way }
    }
}

/// Parses the answer of a rank.
///
/// # Errors
/// The error that the rank reports, or an answer that makes no sense.
pub fn parse_answer(line: &str) -> Result<Duration, String> {
    match (line.strip_prefix("error "), line.parse()) {
        (Some(why), _) => Err(why.to_owned()),
        // A time of 0 means that nothing was measured.
        (None, Ok(nanoseconds)) if nanoseconds > 0 => Ok(Duration::from_nanos(nanoseconds)),
        _ => Err(format!("answered {line:?} instead of a time")),
    }
}

impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Column { test, ranks, bytes, .. } = self;
        write!(f, "{} of {bytes} bytes, {ranks} ranks", test.name())
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Request { test, payload, bytes, warm_up, iterations, way } = self;
        write!(f, "batch {} {} {bytes} {warm_up} {iterations} {way}", test.name(), payload.name())
    }
}

impl FromStr for Request {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let bad = |what: &str| format!("{what} in the order {line:?}");
        let words: Vec<&str> = line.split_whitespace().collect();
        let &["batch", test, payload, bytes, warm_up, iterations, way] = &words[..] else {
            return Err(bad("not a batch of six words"));
        };
        let number = |text: &str| text.parse().map_err(|_| bad("a bad number"));
        Ok(Request {
            test: PeerTest::of_name(test).ok_or_else(|| bad("no such test"))?,
            payload: Payload::of_name(payload).ok_or_else(|| bad("no such payload"))?,
            bytes: bytes.parse().map_err(|_| bad("a bad size"))?,
            warm_up: number(warm_up)?,
            iterations: number(iterations)?,
            way: way.parse().map_err(|()| bad("no such way"))?,
        })
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Method::Mailbox(protocol) => protocol.fmt(f),
            Method::Batches => f.pad("batches"),
            Method::Group => f.pad("group"),
            Method::GroupBuf => f.pad("group-buf"),
            Method::Send => f.pad("send"),
            Method::Window => f.pad("window"),
            Method::Bare => f.pad("bare"),
        }
    }
}

impl FromStr for Method {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let ours = PROTOCOLS.map(Method::Mailbox);
        let others =
            [Method::Batches, Method::Group, Method::GroupBuf, Method::Send, Method::Window, Method::Bare];
        let all = ours.into_iter().chain(others);
        all.into_iter().find(|way| way.to_string() == text).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_the_journey() {
        for &test in PeerTest::value_variants() {
            for payload in [Payload::Untouched, Payload::WrittenRead] {
                for way in [
                    Method::Mailbox(Protocol::HandOff),
                    Method::Batches,
                    Method::Group,
                    Method::GroupBuf,
                    Method::Send,
                    Method::Window,
                    Method::Bare,
                ] {
                    let request = Request { test, payload, bytes: 4096, warm_up: 3, iterations: 70, way };
                    assert_eq!(request.to_string().parse(), Ok(request));
                }
            }
        }
    }

    #[test]
    fn the_line_is_the_one_that_peer_c_reads() {
        let column = Column { test: PeerTest::Latency, ranks: 2, payload: Payload::WrittenRead, bytes: 8 };
        let line = Request::new(&column, Method::Send, 1, 20).to_string();
        assert_eq!(line, "batch latency written+read 8 1 20 send");
    }

    #[test]
    fn nonsense_is_refused_with_its_reason() {
        for (line, why) in [
            ("", "six words"),
            ("batch latency untouched 8 1 20", "six words"),
            ("batch guess untouched 8 1 20 send", "no such test"),
            ("batch latency torn 8 1 20 send", "no such payload"),
            ("batch latency untouched -8 1 20 send", "bad size"),
            ("batch latency untouched 8 1 many send", "bad number"),
            ("batch latency untouched 8 1 20 telepathy", "no such way"),
        ] {
            let error = line.parse::<Request>().expect_err(line);
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn answers_are_times_or_reasons() {
        assert_eq!(parse_answer("1500"), Ok(Duration::from_nanos(1500)));
        assert_eq!(parse_answer("error no such order: x"), Err("no such order: x".to_owned()));
        assert!(parse_answer("0").is_err() && parse_answer("-1").is_err() && parse_answer("").is_err());
    }
}
