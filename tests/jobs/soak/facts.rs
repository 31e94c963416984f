//! Lines that ranks write, each by one system call, so that the facts that a killed rank has seen are not lost
//! with it.

use std::fmt;
use std::str::FromStr;

/// A line of a rank's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// Number of the rank's process.
    Pid(i32),
    /// The rank is in the second round.
    Ready,
    /// The end of a postbox's stream in the second round: number of accepted messages, number of attempts, and why it
    /// ended.
    Sent { stream: usize, accepted: u32, tried: u32, end: String },
    /// The end of a stream at its reader in the second round: number of messages, and why reading ended.
    Got { stream: usize, messages: u32, end: String },
    /// A fault: bytes, order, or an error that nothing explains.
    Wrong(String),
    /// A call that did not return by its deadline.
    Late(String),
    /// Resources that the rank holds and did not hold before.
    Leak(String),
    /// Information for the reader of the log.
    Note(String),
    /// The rank is about to finish.
    Finishing,
    /// The rank has finished.
    Done,
}

/// Reason for the end of a stream that has lost nothing.
pub const COMPLETE: &str = "complete";

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fact::Pid(number) => write!(f, "pid {number}"),
            Fact::Ready => f.write_str("ready"),
            Fact::Sent { stream, accepted, tried, end } => {
                write!(f, "sent {stream} {accepted} {tried} {}", one_line(end))
            }
            Fact::Got { stream, messages, end } => write!(f, "got {stream} {messages} {}", one_line(end)),
            Fact::Wrong(what) => write!(f, "wrong {}", one_line(what)),
            Fact::Late(what) => write!(f, "late {}", one_line(what)),
            Fact::Leak(what) => write!(f, "leak {}", one_line(what)),
            Fact::Note(what) => write!(f, "note {}", one_line(what)),
            Fact::Finishing => f.write_str("finishing"),
            Fact::Done => f.write_str("done"),
        }
    }
}

fn one_line(text: &str) -> String {
    text.replace('\n', " | ")
}

impl FromStr for Fact {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let bad = || format!("{line:?} is no fact");
        let mut parts = rest.splitn(if word == "sent" { 4 } else { 3 }, ' ');
        let mut part = || parts.next().ok_or_else(bad);
        let number = |text: &str| text.parse::<u32>().map_err(|_| bad());
        Ok(match word {
            "pid" => Fact::Pid(rest.parse().map_err(|_| bad())?),
            "ready" => Fact::Ready,
            "sent" => Fact::Sent {
                stream: number(part()?)? as usize,
                accepted: number(part()?)?,
                tried: number(part()?)?,
                end: part()?.into(),
            },
            "got" => Fact::Got {
                stream: number(part()?)? as usize,
                messages: number(part()?)?,
                end: part()?.into(),
            },
            "wrong" => Fact::Wrong(rest.into()),
            "late" => Fact::Late(rest.into()),
            "leak" => Fact::Leak(rest.into()),
            "note" => Fact::Note(rest.into()),
            "finishing" => Fact::Finishing,
            "done" => Fact::Done,
            _ => return Err(bad()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        for fact in [
            Fact::Pid(7),
            Fact::Ready,
            Fact::Sent { stream: 3, accepted: 4, tried: 5, end: "rank 1 is lost: by SIGKILL".into() },
            Fact::Got { stream: 3, messages: 4, end: COMPLETE.into() },
            Fact::Wrong("a b".into()),
            Fact::Late("c d e".into()),
            Fact::Leak("f".into()),
            Fact::Note("g".into()),
            Fact::Finishing,
            Fact::Done,
        ] {
            assert_eq!(fact.to_string().parse(), Ok(fact));
        }
        assert!("".parse::<Fact>().is_err() && "sent 1 2".parse::<Fact>().is_err());
    }
}
