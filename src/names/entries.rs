//! Entries of a host's table of listeners, each with its owner: a state machine without I/O.

use std::collections::HashMap;
use std::fmt;

/// Upper bound of one owner's entries.
const EACH: usize = 4096;
/// Upper bound of all entries.
const ALL: usize = 65_536;

/// Number of an owner: a caller, or the serving process itself.
pub(super) type Owner = u64;

/// Values by key. An entry is removed by its owner, or when its owner ends.
#[derive(Debug, Default)]
pub(super) struct Entries(HashMap<String, (Owner, Vec<u8>)>);

/// A bound that a new entry would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// The bound of one owner.
    Owner,
    /// The bound of the table.
    Table,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Full::Owner => write!(
                f,
                "this process has {EACH} names, the most of one: listen at fewer, or in more processes"
            ),
            Full::Table => write!(f, "this host has {ALL} names, the most of one: end some of its listeners"),
        }
    }
}

impl Entries {
    /// Adds an entry, or replaces one of the same owner. False: another owner has the key.
    ///
    /// # Errors
    /// There are too many.
    pub fn register(&mut self, owner: Owner, key: &str, value: &[u8]) -> Result<bool, Full> {
        match self.0.get(key) {
            Some((of, _)) if *of != owner => return Ok(false),
            Some(_) => {}
            None if self.0.len() >= ALL => return Err(Full::Table),
            None if self.0.values().filter(|(of, _)| *of == owner).count() >= EACH => {
                return Err(Full::Owner);
            }
            None => {}
        }
        self.0.insert(key.to_owned(), (owner, value.to_vec()));
        Ok(true)
    }

    /// Removes an entry, if it is this owner's.
    pub fn withdraw(&mut self, owner: Owner, key: &str) {
        if self.0.get(key).is_some_and(|(of, _)| *of == owner) {
            self.0.remove(key);
        }
    }

    /// Removes all entries of an owner that has ended.
    pub fn end(&mut self, owner: Owner) {
        self.0.retain(|_, (of, _)| *of != owner);
    }

    /// Returns the value of `key`.
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.0.get(key).map(|(_, value)| &value[..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_its_owners() {
        let mut entries = Entries::default();
        assert_eq!(entries.register(1, "a", b"one"), Ok(true));
        assert_eq!(entries.register(2, "a", b"two"), Ok(false));
        assert_eq!(entries.register(1, "a", b"more"), Ok(true));
        entries.withdraw(2, "a");
        assert_eq!(entries.get("a"), Some(&b"more"[..]));
        entries.withdraw(1, "a");
        assert_eq!(
            (entries.register(2, "a", b"two"), entries.register(1, "b", b"one")),
            (Ok(true), Ok(true))
        );
        entries.end(2);
        assert_eq!((entries.get("a"), entries.get("b")), (None, Some(&b"one"[..])));
    }

    #[test]
    fn an_owner_and_a_table_have_so_many_entries() {
        let mut entries = Entries::default();
        assert!((0..EACH).all(|nth| entries.register(1, &nth.to_string(), b"") == Ok(true)));
        assert_eq!(entries.register(1, "one more", b""), Err(Full::Owner));
        assert_eq!(entries.register(1, "0", b"again"), Ok(true));
        assert_eq!(entries.register(2, "one more", b""), Ok(true));
        entries.withdraw(1, "0");
        assert_eq!(entries.register(1, "another", b""), Ok(true));
        entries.0.extend((EACH..ALL).map(|nth| (nth.to_string(), (nth as Owner, Vec::new()))));
        assert_eq!(entries.register(0, "another one", b""), Err(Full::Table));
    }
}
