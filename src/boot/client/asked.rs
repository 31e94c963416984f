//! What a call was, and what its failure means to who made it.

use std::{fmt, time::Duration};

use crate::{BootError, wire::Failure};

/// A call, as errors name it.
pub(super) enum Asked<'a> {
    Hello,
    Register(&'a str),
    Unregister(&'a str),
    Lookup(&'a str),
    Put(&'a str),
    Get(&'a str),
    Events,
    Fence,
    Done,
}

impl fmt::Display for Asked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Asked::Hello => f.write_str("joining the job"),
            Asked::Register(name) => write!(f, "registering `{name}`"),
            Asked::Unregister(name) => write!(f, "unregistering `{name}`"),
            Asked::Lookup(name) => write!(f, "lookup of `{name}`"),
            Asked::Put(key) => write!(f, "storing the key `{key}`"),
            Asked::Get(key) => write!(f, "reading the key `{key}`"),
            Asked::Events => f.write_str("asking what has become of other ranks"),
            Asked::Fence => f.write_str("fence"),
            Asked::Done => f.write_str("saying goodbye"),
        }
    }
}

impl Asked<'_> {
    pub(super) fn refused(&self, why: &str) -> BootError {
        BootError::Refused { what: self.to_string(), why: why.into() }
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
            (Failure::TooBig { what: bound, limit, got }, _) => BootError::TooBig { what, bound, limit, got },
        }
    }
}
