//! Filters for messages: by rank, by tag, or by both.

use std::fmt;

/// Filter of a retrieve: messages of one rank, with one tag, both, or any
/// ([`crate::Mailbox::matching`]).
///
/// ```
/// # use udeck_deck::Match;
/// let any = Match::ANY;                                // as MPI_ANY_SOURCE and MPI_ANY_TAG
/// let row = Match::source(3).and_tag(7);               // of rank 3, with tag 7
/// # assert_ne!(any, row);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Match {
    source: Option<usize>,
    tag: Option<u32>,
}

impl Match {
    /// All messages.
    pub const ANY: Match = Match { source: None, tag: None };

    /// Matches the messages that this rank posts.
    pub const fn source(rank: usize) -> Match {
        Match { source: Some(rank), tag: None }
    }

    /// Matches the messages with this tag.
    pub const fn tag(tag: u32) -> Match {
        Match { source: None, tag: Some(tag) }
    }

    /// Narrows the filter to messages that this rank posts.
    #[must_use]
    pub const fn and_source(self, rank: usize) -> Match {
        Match { source: Some(rank), ..self }
    }

    /// Narrows the filter to messages with this tag.
    #[must_use]
    pub const fn and_tag(self, tag: u32) -> Match {
        Match { tag: Some(tag), ..self }
    }

    /// The rank that the filter names.
    pub(crate) fn rank(self) -> Option<usize> {
        self.source
    }

    pub(crate) fn takes(self, rank: u32, tag: u32) -> bool {
        self.source.is_none_or(|source| source == rank as usize)
            && self.tag.is_none_or(|wanted| wanted == tag)
    }
}

/// Formats the filter as part of an error: ` a message of rank 3 with tag 7`; nothing for `ANY`.
impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Match::ANY {
            return Ok(());
        }
        f.write_str(" a message")?;
        if let Some(rank) = self.source {
            write!(f, " of rank {rank}")?;
        }
        self.tag.map_or(Ok(()), |tag| write!(f, " with tag {tag}"))
    }
}
