//! Names of calls for errors, and the errors that a failed call becomes.

use std::{fmt, time::Duration};

use crate::{
    BootError, Maker, family,
    waits::{Call, Wait},
    wire::{Question, RequestError},
};

/// A call, as errors name it.
pub(super) enum CallName<'a> {
    Hello,
    Register(&'a str),
    Unregister(&'a str),
    Lookup(&'a str),
    Put(&'a str),
    Get(&'a str),
    Exit(u32),
    Fence,
    Agree(Question),
    Done,
    Abort,
}

impl fmt::Display for CallName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallName::Hello => f.write_str("joining the job"),
            CallName::Register(name) => write!(f, "registering {}", Quoted(name)),
            CallName::Unregister(name) => write!(f, "unregistering {}", Quoted(name)),
            CallName::Lookup(name) => write!(f, "lookup of {}", Quoted(name)),
            CallName::Put(key) => write!(f, "storing the key {}", Quoted(key)),
            CallName::Get(key) => write!(f, "reading the key {}", Quoted(key)),
            CallName::Exit(rank) => write!(f, "asking what has become of rank {rank}"),
            CallName::Fence => f.write_str("fence"),
            CallName::Agree(question) => write!(f, "{question} of the ranks that are left"),
            CallName::Done => f.write_str("saying goodbye"),
            CallName::Abort => f.write_str("aborting the job"),
        }
    }
}

/// Part of the library's own names under which a rank gives shared segments to others.
pub const SEGMENTS: &str = "/segments/";
/// Beginnings of the library's own names under which hosts and listeners are found.
pub const HOSTS: [&str; 3] = ["\u{1}directory/", "\u{1}deck/HOST/", "\u{1}deck/NIC/"];

/// Tells whether a name is the library's own: it has a control character other than the mark of a family.
fn is_internal(name: &str) -> bool {
    family::parts(name).0.contains(char::is_control)
}

/// A name for people. A name with a control character is the library's own, and tells a user nothing.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match family::parts(self.0) {
            (name, _) if name.contains(char::is_control) => f.write_str("of the library's own"),
            (name, None) => write!(f, "`{name}`"),
            (name, Some(rank)) => write!(f, "`{name}` of rank {rank}"),
        }
    }
}

impl CallName<'_> {
    pub(super) fn refused(&self, why: &str) -> BootError {
        BootError::Refused { what: self.to_string(), why: why.into() }
    }

    /// Returns the wait to publish if the answer takes long. `maker` is the rank that is to make what the call
    /// asks for.
    pub(super) fn wait(&self, maker: Option<Maker>) -> Wait {
        let (call, name) = match self {
            // The library's own names: where a rank gives its shared segments, and those that are made at the
            // first barrier.
            CallName::Lookup(name) if name.contains(SEGMENTS) => (Call::Share, ""),
            CallName::Lookup(name) if HOSTS.iter().any(|hosts| name.starts_with(hosts)) => {
                (Call::Launcher, "")
            }
            CallName::Lookup(name) | CallName::Get(name) if is_internal(name) => (Call::Barrier, ""),
            CallName::Lookup(name) => (Call::Find, family::parts(name).0),
            CallName::Agree(Question::Survivors) => (Call::Collective, "survivors"),
            CallName::Agree(Question::Agree) => (Call::Collective, "agree"),
            _ => (Call::Launcher, ""),
        };
        let maker = match maker {
            Some(Maker::Rank(rank) | Maker::Collective(rank)) => Some(rank),
            Some(Maker::Anyone) | None => None,
        };
        Wait { call, name: name.into(), ranks: maker.into_iter().collect(), open: maker.is_none() }
    }

    pub(super) fn failed(&self, failure: RequestError, waited: Duration) -> BootError {
        let what = self.to_string();
        match (failure, self) {
            (RequestError::NoSuch { existing, total }, CallName::Get(key)) => {
                BootError::NoSuchKey { key: (*key).into(), existing, total, waited }
            }
            (
                RequestError::NoSuch { existing, total },
                CallName::Lookup(name) | CallName::Unregister(name),
            ) => BootError::NoSuchName { name: (*name).into(), existing, total, waited },
            (RequestError::NoSuch { .. }, _) => self.refused("it knows no such name"),
            (RequestError::NameTaken { owner }, CallName::Register(name)) => {
                BootError::NameTaken { name: (*name).into(), owner }
            }
            (RequestError::NameTaken { owner }, _) => self.refused(&format!("rank {owner} has it")),
            (RequestError::Refused { why }, _) => BootError::Refused { what, why },
            (RequestError::NobodyLeft, _) => BootError::NobodyLeft { what },
            (RequestError::FenceLate { missing }, _) => BootError::Deadline { what, waited, missing },
            (RequestError::FenceBroken { rank, how }, _) => BootError::PeerLost { what, rank, how },
            (RequestError::MakerEnded { rank, how: Some(how) }, _) => BootError::PeerLost { what, rank, how },
            (RequestError::MakerEnded { rank, how: None }, _) => BootError::PeerDone { what, rank },
            (RequestError::TooBig { what: bound, limit, got }, _) => {
                BootError::TooBig { what, bound, limit, got }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_for_a_host_is_no_barrier() {
        let call = |name| CallName::Lookup(name).wait(Some(Maker::Anyone)).call;
        assert!(HOSTS.iter().all(|hosts| call(hosts) == Call::Launcher));
        assert_eq!(call("\u{1}other"), Call::Barrier);
        assert_eq!(call("inbox"), Call::Find);
    }
}
