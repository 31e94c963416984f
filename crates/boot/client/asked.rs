//! Names of calls for errors, and the errors that a failed call becomes.

use std::{fmt, time::Duration};

use crate::{
    BootError, Maker, family,
    waits::{Call, Wait},
    wire::Failure,
};

/// A call, as errors name it.
pub(super) enum Asked<'a> {
    Hello,
    Register(&'a str),
    Unregister(&'a str),
    Lookup(&'a str),
    Put(&'a str),
    Get(&'a str),
    Exit(u32),
    Fence,
    Done,
    Abort,
}

impl fmt::Display for Asked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Asked::Hello => f.write_str("joining the job"),
            Asked::Register(name) => write!(f, "registering {}", Quoted(name)),
            Asked::Unregister(name) => write!(f, "unregistering {}", Quoted(name)),
            Asked::Lookup(name) => write!(f, "lookup of {}", Quoted(name)),
            Asked::Put(key) => write!(f, "storing the key {}", Quoted(key)),
            Asked::Get(key) => write!(f, "reading the key {}", Quoted(key)),
            Asked::Exit(rank) => write!(f, "asking what has become of rank {rank}"),
            Asked::Fence => f.write_str("fence"),
            Asked::Done => f.write_str("saying goodbye"),
            Asked::Abort => f.write_str("aborting the job"),
        }
    }
}

/// Part of the library's own names under which a rank gives shared segments to others.
pub const SEGMENTS: &str = "/segments/";
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

impl Asked<'_> {
    pub(super) fn refused(&self, why: &str) -> BootError {
        BootError::Refused { what: self.to_string(), why: why.into() }
    }

    /// Returns the wait to publish if the answer takes long. `maker` is the rank that is to make what the call
    /// asks for.
    pub(super) fn wait(&self, maker: Option<Maker>) -> Wait {
        let (call, name) = match self {
            // The library's own names: where a rank gives its shared segments, and those that are made at the
            // first barrier.
            Asked::Lookup(name) if name.contains(SEGMENTS) => (Call::Share, ""),
            Asked::Lookup(name) | Asked::Get(name) if is_internal(name) => (Call::Barrier, ""),
            Asked::Lookup(name) => (Call::Find, family::parts(name).0),
            _ => (Call::Launcher, ""),
        };
        let maker = match maker {
            Some(Maker::Rank(rank) | Maker::Collective(rank)) => Some(rank),
            Some(Maker::Anyone) | None => None,
        };
        Wait { call, name: name.into(), ranks: maker.into_iter().collect(), open: maker.is_none() }
    }

    pub(super) fn failed(&self, failure: Failure, waited: Duration) -> BootError {
        let what = self.to_string();
        match (failure, self) {
            (Failure::NoSuch { existing, total }, Asked::Get(key)) => {
                BootError::NoSuchKey { key: (*key).into(), existing, total, waited }
            }
            (Failure::NoSuch { existing, total }, Asked::Lookup(name) | Asked::Unregister(name)) => {
                BootError::NoSuchName { name: (*name).into(), existing, total, waited }
            }
            (Failure::NoSuch { .. }, _) => self.refused("it knows no such name"),
            (Failure::NameTaken { owner }, Asked::Register(name)) => {
                BootError::NameTaken { name: (*name).into(), owner }
            }
            (Failure::NameTaken { owner }, _) => self.refused(&format!("rank {owner} has it")),
            (Failure::Refused { why }, _) => BootError::Refused { what, why },
            (Failure::NobodyLeft, _) => BootError::NobodyLeft { what },
            (Failure::FenceLate { missing }, _) => BootError::Deadline { what, waited, missing },
            (Failure::FenceBroken { rank, how }, _) => BootError::PeerLost { what, rank, how },
            (Failure::MakerEnded { rank, how: Some(how) }, _) => BootError::PeerLost { what, rank, how },
            (Failure::MakerEnded { rank, how: None }, _) => BootError::PeerDone { what, rank },
            (Failure::TooBig { what: bound, limit, got }, _) => BootError::TooBig { what, bound, limit, got },
        }
    }
}
