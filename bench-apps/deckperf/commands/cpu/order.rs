//! Orders of the conductor to a contender, as a line of text that `peers/cpu.h` also reads, and the answers of each side.

use std::{fmt, str::FromStr, time::Duration};

use clap::ValueEnum;

use super::usage::Usage;
use crate::{experiment::plan::Payload, named::Named};

/// Way in which a side waits for a message.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The side polls.
    Polling,
    /// The side makes a blocking call: the library or the system may let it sleep.
    Blocking,
}

/// Carrier of the messages, in the contender's own process.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A mailbox, with the protocol that the library chooses.
    Mailbox,
    /// An end point of uDAPL, by send and receive.
    Dat,
    /// A bare TCP socket.
    Tcp,
    /// A bare UDP socket.
    Udp,
    /// `MPI_Send` and related calls.
    Send,
}

/// A batch: windows of messages from rank 0 to rank 1, each window acknowledged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CpuOrder {
    /// Payload mode of the messages.
    pub payload: Payload,
    /// Bytes of a message.
    pub bytes: usize,
    /// Windows before the clock starts. They are never paced.
    pub warm_up: u64,
    /// Windows under the clock.
    pub iterations: u64,
    /// Messages in a window; all of them are under way together.
    pub depth: u64,
    /// Messages per second; 0: as many as possible.
    pub rate: u64,
    /// How both sides wait.
    pub waiting: Waiting,
    /// Loop that the contender runs.
    pub way: Way,
}

/// Result of one side of a timed batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuAnswer {
    /// Processor time and elapsed time of this side.
    pub usage: Usage,
    /// Messages sent, or received.
    pub messages: u64,
    /// Messages that were sent and did not arrive; 0 at the receiver, which does not know it.
    pub lost: u64,
}

impl CpuOrder {
    /// Time after the start of a paced batch at which message `number`, counted from 0, is due.
    pub fn due(&self, number: u64) -> Duration {
        Duration::from_secs(1) * u32::try_from(number + 1).unwrap_or(u32::MAX)
            / u32::try_from(self.rate.max(1)).unwrap_or(u32::MAX)
    }

    /// Number of timed messages.
    pub fn messages(&self) -> u64 {
        self.depth * self.iterations
    }
}

impl fmt::Display for CpuOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CpuOrder { payload, bytes, warm_up, iterations, depth, rate, waiting, way } = self;
        let (payload, waiting, way) = (payload.name(), waiting.name(), way.name());
        write!(f, "cpu {payload} {bytes} {warm_up} {iterations} {depth} {rate} {waiting} {way}")
    }
}

impl FromStr for CpuOrder {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let bad = |what: &str| format!("{what} in the order {line:?}");
        let words: Vec<&str> = line.split_whitespace().collect();
        let &["cpu", payload, bytes, warm_up, iterations, depth, rate, waiting, way] = &words[..] else {
            return Err(bad("not eight words behind `cpu`"));
        };
        let number = |text: &str| text.parse::<u64>().map_err(|_| bad("a bad number"));
        let order = CpuOrder {
            payload: Payload::of_name(payload).ok_or_else(|| bad("no such payload"))?,
            bytes: bytes.parse().map_err(|_| bad("a bad size"))?,
            warm_up: number(warm_up)?,
            iterations: number(iterations)?,
            depth: number(depth)?,
            rate: number(rate)?,
            waiting: Waiting::of_name(waiting).ok_or_else(|| bad("no such waiting"))?,
            way: Way::of_name(way).ok_or_else(|| bad("no such way"))?,
        };
        if order.depth == 0 || order.iterations == 0 { Err(bad("no messages")) } else { Ok(order) }
    }
}

impl fmt::Display for CpuAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Usage { wall, processor, user, system } = self.usage;
        let [wall, processor, user, system] = [wall, processor, user, system].map(|time| time.as_nanos());
        write!(f, "{wall} {processor} {user} {system} {} {}", self.messages, self.lost)
    }
}

impl FromStr for CpuAnswer {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        if let Some(why) = line.strip_prefix("error ") {
            return Err(why.to_owned());
        }
        let numbers: Result<Vec<u64>, _> = line.split_whitespace().map(str::parse).collect();
        match numbers.as_deref() {
            // Times of 0 mean that nothing was measured.
            Ok(&[wall, processor, user, system, messages, lost]) if wall > 0 && processor > 0 => {
                let [wall, processor, user, system] =
                    [wall, processor, user, system].map(Duration::from_nanos);
                Ok(CpuAnswer { usage: Usage { wall, processor, user, system }, messages, lost })
            }
            _ => Err(format!("answered {line:?} instead of six numbers")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: CpuOrder = CpuOrder {
        payload: Payload::WrittenRead,
        bytes: 500,
        warm_up: 1,
        iterations: 20,
        depth: 64,
        rate: 1000,
        waiting: Waiting::Polling,
        way: Way::Send,
    };

    #[test]
    fn orders_survive_the_journey() {
        for &way in Way::value_variants() {
            for &waiting in Waiting::value_variants() {
                for payload in [Payload::Untouched, Payload::WrittenRead] {
                    let order = CpuOrder { payload, waiting, way, ..ORDER };
                    assert_eq!(order.to_string().parse(), Ok(order));
                }
            }
        }
    }

    #[test]
    fn the_line_is_the_one_that_cpu_h_reads() {
        assert_eq!(ORDER.to_string(), "cpu written+read 500 1 20 64 1000 polling send");
    }

    #[test]
    fn nonsense_is_refused_with_its_reason() {
        for (line, why) in [
            ("", "not eight words"),
            ("cpu torn 8 1 20 2 0 polling send", "no such payload"),
            ("cpu untouched -8 1 20 2 0 polling send", "a bad size"),
            ("cpu untouched 8 1 many 2 0 polling send", "a bad number"),
            ("cpu untouched 8 1 20 0 0 polling send", "no messages"),
            ("cpu untouched 8 1 20 2 0 hoping send", "no such waiting"),
            ("cpu untouched 8 1 20 2 0 polling pigeon", "no such way"),
        ] {
            let error = line.parse::<CpuOrder>().expect_err(line);
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn answers_are_numbers_or_reasons() {
        let [wall, processor, user, system] = [9, 8, 5, 3].map(Duration::from_nanos);
        let usage = Usage { wall, processor, user, system };
        let answer = CpuAnswer { usage, messages: 128, lost: 2 };
        assert_eq!(answer.to_string(), "9 8 5 3 128 2");
        assert_eq!(answer.to_string().parse(), Ok(answer));
        assert_eq!("error no window".parse::<CpuAnswer>(), Err("no window".to_owned()));
        for nonsense in ["", "1 2 3", "0 8 5 3 1 0", "9 0 0 0 1 0", "9 8 5 3 1 -1"] {
            assert!(nonsense.parse::<CpuAnswer>().is_err(), "{nonsense}");
        }
    }

    #[test]
    fn paced_messages_are_due_one_after_the_other() {
        assert_eq!([0, 1, 999].map(|number| ORDER.due(number).as_micros()), [1000, 2000, 1_000_000]);
    }
}
