//! Errors of the name service.

use std::fmt;

use super::MAX_ADDRESS;
use super::written::Written;
use crate::Error;

/// A name, an address or a table that a name service can do nothing with. \[ERROR_NAMESERVICE\]
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// No host has that name.
    #[error("{service} knows no host {name:?}; {known}")]
    UnknownHost {
        /// The name asked for.
        name: String,
        /// Name of the service that was asked, in words.
        service: String,
        /// The names that exist.
        known: Known,
    },
    /// The host has no NIC of that index.
    #[error(
        "{service} knows {count} NICs of host {name:?}, and {index} is the number of none (they count from 0)"
    )]
    NoSuchIndex {
        /// Name of the host.
        name: String,
        /// The index asked for.
        index: usize,
        /// Number of the host's NICs.
        count: usize,
        /// Name of the service that was asked, in words.
        service: String,
    },
    /// No host has a NIC at that address.
    #[error("{service} knows no host at {}; {known}", Written(address))]
    UnknownAddress {
        /// The address asked for.
        address: Vec<u8>,
        /// Name of the service that was asked, in words.
        service: String,
        /// The names that exist.
        known: Known,
    },
    /// A name that no host can have.
    #[error("{name:?} cannot be a host's name: {why}")]
    BadName {
        /// The name that was given.
        name: String,
        /// Why no host can have it.
        why: &'static str,
    },
    /// An address that no NIC can have.
    #[error("an address of {len} bytes: 1 to {MAX_ADDRESS} are possible")]
    BadAddress {
        /// Its length in bytes.
        len: usize,
    },
    /// The address is taken: an address leads to one name only.
    #[error("the address {} is known already, as that of host {owner:?}", Written(address))]
    AddressTaken {
        /// The address that was given.
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
        /// The request that was tried, and the service.
        what: String,
        /// Why the request failed.
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

/// A syntax error in a table's text: its place, and the expected text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}:{line}:{column}: expected {expected}; found {found}")]
#[non_exhaustive]
pub struct SyntaxError {
    /// The file, or another origin of the text.
    pub origin: String,
    /// Line number, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The text that was expected there.
    pub expected: String,
    /// The beginning of the text that was found there, quoted.
    pub found: String,
}

/// Names that a service knows, for errors that say which names exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// The first names in sorted order; at most [`Known::LISTED`].
    pub names: Vec<String>,
    /// Whether there are, or may be, other names.
    pub more: bool,
}

impl Known {
    /// Upper bound of the names that are listed.
    pub const LISTED: usize = 32;

    /// Lists the first of `names`, which are sorted.
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
