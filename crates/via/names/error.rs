//! What can go wrong with names.

use std::fmt;

use super::MAX_ADDRESS;
use super::written::Written;
use crate::Error;

/// A name, an address or a table that a name service can do nothing with. \[ERROR_NAMESERVICE\]
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// No host of that name.
    #[error("{service} knows no host {name:?}; {known}")]
    UnknownHost {
        /// The name asked for.
        name: String,
        /// Which service was asked, in words.
        service: String,
        /// The names that exist.
        known: Known,
    },
    /// The host has fewer NICs.
    #[error(
        "{service} knows {count} NICs of host {name:?}, and {index} is the number of none (they count from 0)"
    )]
    NoSuchIndex {
        /// The host.
        name: String,
        /// The index asked for.
        index: usize,
        /// How many NICs it has.
        count: usize,
        /// Which service was asked, in words.
        service: String,
    },
    /// No host has a NIC there.
    #[error("{service} knows no host at {}; {known}", Written(address))]
    UnknownAddress {
        /// The address asked for.
        address: Vec<u8>,
        /// Which service was asked, in words.
        service: String,
        /// The names that exist.
        known: Known,
    },
    /// A name that no host can have.
    #[error("{name:?} cannot be a host's name: {why}")]
    BadName {
        /// The name.
        name: String,
        /// Why not.
        why: &'static str,
    },
    /// An address that no NIC can have.
    #[error("an address of {len} bytes: 1 to {MAX_ADDRESS} are possible")]
    BadAddress {
        /// Its length in bytes.
        len: usize,
    },
    /// An address leads to one name only.
    #[error("the address {} is known already, as that of host {owner:?}", Written(address))]
    AddressTaken {
        /// The address.
        address: Vec<u8>,
        /// The host that has it.
        owner: String,
    },
    /// A table's text cannot be read.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    /// The service could not be asked, or did not answer.
    #[error("{what}: {source}")]
    Service {
        /// What was tried, on whom.
        what: String,
        /// Why it failed.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl From<NameError> for Error {
    fn from(error: NameError) -> Self {
        Error::NameService(Box::new(error))
    }
}

impl From<SyntaxError> for Error {
    fn from(error: SyntaxError) -> Self {
        NameError::from(error).into()
    }
}

/// Where a table's text goes wrong, and what should stand there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}:{line}:{column}: expected {expected}; found {found}")]
#[non_exhaustive]
pub struct SyntaxError {
    /// The file, or what else the text came from.
    pub origin: String,
    /// Counted from 1.
    pub line: usize,
    /// In characters, counted from 1.
    pub column: usize,
    /// What should stand there.
    pub expected: String,
    /// What does, its beginning, quoted.
    pub found: String,
}

/// The names that a service knows, for errors that say what exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The first of them, sorted; at most [`Known::LISTED`].
    pub names: Vec<String>,
    /// Whether there are, or may be, others.
    pub more: bool,
}

impl Known {
    /// The most names that are listed.
    pub const LISTED: usize = 32;

    /// Lists these, which are sorted.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        let mut all = names.into_iter();
        let names = all.by_ref().take(Self::LISTED).collect();
        Known { names, more: all.next().is_some() }
    }
}

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.names[..] {
            [] => f.write_str("there are no hosts"),
            names => {
                write!(f, "there are: {}{}", names.join(", "), if self.more { " and others" } else { "" })
            }
        }
    }
}
