//! The hosts of a job, and the placement of its ranks on them.

use std::{
    collections::HashMap,
    fmt,
    net::{IpAddr, Ipv6Addr},
};

use udeck_boot::{Host, MAX_RANKS};

use crate::{LaunchError, words::printable};

/// Upper bound of the hosts' names together, in bytes: every rank gets them in one message.
const NAMES_BOUND: usize = 512 << 10;

/// Hosts with a number of slots each: `a:2,b:2`, or a file of such lines. A host that is named twice has the
/// sum of both.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hosts {
    entries: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    name: String,
    slots: u32,
}

/// A list of hosts that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {what}")]
pub struct HostsError {
    place: Place,
    what: String,
}

/// A position in a list; both numbers count from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    /// The line, with its file's name, if the list is a file.
    line: Option<(String, usize)>,
    column: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.line {
            Some((file, line)) => write!(f, "{file}, line {line}, column {}", self.column),
            None => write!(f, "column {}", self.column),
        }
    }
}

/// The ranks of one host: `count` ranks from `first`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) host: String,
    pub(crate) first: u32,
    pub(crate) count: u32,
    /// The host is this one: it needs no agent and no node.
    pub(crate) here: bool,
}

impl Share {
    pub(crate) fn ranks(&self) -> std::ops::Range<u32> {
        self.first..self.first + self.count
    }
}

impl Hosts {
    /// Reads a list like `a:2,b:2,[2001:db8::1]:4`. A host without a number has one slot.
    ///
    /// # Errors
    /// [`HostsError`] says at which column, and what may stand there.
    pub fn parse(list: &str) -> Result<Hosts, HostsError> {
        let mut hosts = Hosts::default();
        let mut column = 1;
        for item in list.split(',') {
            let blanks = item.chars().take_while(|c| c.is_whitespace()).count();
            let place = Place { line: None, column: column + blanks };
            hosts
                .add(entry(item.trim()).map_err(|what| HostsError { place: place.clone(), what })?, place)?;
            column += item.chars().count() + 1;
        }
        Ok(hosts)
    }

    /// Reads a file's text: a host a line, as `a`, `a:2` or `a slots=2`; `#` begins a comment. `name` is the
    /// file's name, for errors.
    ///
    /// # Errors
    /// [`HostsError`] says at which line and column, and what may stand there.
    pub fn parse_file(name: &str, text: &str) -> Result<Hosts, HostsError> {
        let mut hosts = Hosts::default();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = words(line);
            let Some((column, first)) = words.next() else { continue };
            let place = |column| Place { line: Some((name.into(), number)), column };
            let fail = |column, what| HostsError { place: place(column), what };
            let mut new = entry(first).map_err(|what| fail(column, what))?;
            if let Some((column, word)) = words.next() {
                let counted = first != new.name && first != format!("[{}]", new.name);
                new.slots = match word.strip_prefix("slots=") {
                    Some(number) if !counted => slots(number).map_err(|what| fail(column, what))?,
                    Some(_) => {
                        return Err(fail(column, format!("`{first}` has its number of slots already")));
                    }
                    None => {
                        return Err(fail(column, format!("`{word}`: behind a host only slots=N may stand")));
                    }
                };
            }
            if let Some((column, word)) = words.next() {
                return Err(fail(column, format!("`{word}`: one host a line")));
            }
            hosts.add(new, place(column))?;
        }
        if hosts.entries.is_empty() {
            let place = Place { line: Some((name.into(), 1)), column: 1 };
            return Err(HostsError {
                place,
                what: "no host in this file: write one a line, `name slots=N`".into(),
            });
        }
        Ok(hosts)
    }

    /// Makes a list of hosts and slots, of any length that a batch system gives: one job need not fill them.
    pub(crate) fn counted(all: impl IntoIterator<Item = (String, u32)>) -> Result<Hosts, String> {
        let mut hosts = Hosts::default();
        let mut places: HashMap<String, usize> = HashMap::new();
        for (name, slots) in all {
            if let Some(why) = name_fault(&name) {
                return Err(format!("`{}`: {why}", printable(&name)));
            }
            match places.get(&name) {
                Some(at) => hosts.entries[*at].slots = hosts.entries[*at].slots.saturating_add(slots),
                None => {
                    places.insert(name.clone(), hosts.entries.len());
                    hosts.entries.push(Entry { name, slots });
                }
            }
        }
        Ok(hosts)
    }

    fn add(&mut self, new: Entry, place: Place) -> Result<(), HostsError> {
        let sum = self.slots() + new.slots;
        if sum > MAX_RANKS {
            let what = format!("with `{}` there are {sum} slots: at most {MAX_RANKS} are possible", new.name);
            return Err(HostsError { place, what });
        }
        match self.entries.iter_mut().find(|entry| entry.name == new.name) {
            Some(known) => known.slots += new.slots,
            None => self.entries.push(new),
        }
        Ok(())
    }

    /// Returns the sum of all slots.
    pub(crate) fn slots(&self) -> u32 {
        self.entries.iter().fold(0, |sum, entry| sum.saturating_add(entry.slots))
    }

    /// Returns the number of hosts.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the first `most` hosts, for people: `a:2, b:2 and 7 more`.
    pub(crate) fn first_ones(&self, most: usize) -> String {
        let named = self.entries.iter().take(most).map(|Entry { name, slots }| format!("{name}:{slots}"));
        let named = named.collect::<Vec<_>>().join(", ");
        match self.entries.len().saturating_sub(most) {
            0 => named,
            more => format!("{named} and {more} more"),
        }
    }

    /// Fills the hosts one after another with `ranks`, or fills all slots. Hosts that get no rank are left out.
    /// All names for which `is_here` holds are merged into one host.
    pub(crate) fn place(
        &self,
        ranks: Option<u32>,
        is_here: impl Fn(&str) -> bool,
    ) -> Result<Vec<Share>, LaunchError> {
        let slots = self.slots();
        let ranks = ranks.unwrap_or(slots);
        if ranks > slots {
            return Err(LaunchError::TooFewSlots { ranks, slots, hosts: self.to_string() });
        }
        if ranks > MAX_RANKS {
            return Err(LaunchError::TooManyRanks { asked: ranks });
        }
        let (mut first, mut left) = (0, ranks);
        let mut shares = Vec::new();
        for (entry, here) in self.merged(is_here) {
            let count = entry.slots.min(left);
            if count > 0 {
                shares.push(Share { host: entry.name, first, count, here });
            }
            (first, left) = (first + count, left - count);
        }
        match shares.iter().map(|share| share.host.len()).sum::<usize>() {
            0..=NAMES_BOUND => Ok(shares),
            length => Err(LaunchError::HostNamesTooLong { length, limit: NAMES_BOUND }),
        }
    }

    fn merged(&self, is_here: impl Fn(&str) -> bool) -> Vec<(Entry, bool)> {
        let mut merged: Vec<(Entry, bool)> = Vec::new();
        let mut here_at: Option<usize> = None;
        for entry in &self.entries {
            let here = is_here(&entry.name);
            match here_at {
                Some(at) if here => merged[at].0.slots += entry.slots,
                _ => {
                    here_at = here_at.or(here.then_some(merged.len()));
                    merged.push((entry.clone(), here));
                }
            }
        }
        merged
    }
}

/// Writes the list as a user could type it.
impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, Entry { name, slots }) in self.entries.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            match name.contains(':') {
                true => write!(f, "{comma}[{name}]:{slots}")?,
                false => write!(f, "{comma}{name}:{slots}")?,
            }
        }
        Ok(())
    }
}

/// Returns the hosts in the form of the ranks' own library.
pub(crate) fn for_ranks(shares: &[Share]) -> Vec<Host> {
    shares.iter().map(|share| Host { name: share.host.clone(), ranks: share.count }).collect()
}

/// Returns a function that tells whether a name means this host: `localhost`, its own name, or one of its own
/// addresses.
pub(crate) fn own_names() -> impl Fn(&str) -> bool {
    let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
    // If the addresses cannot be listed, names alone are compared.
    let addresses: Vec<IpAddr> =
        udeck_sys::interfaces().unwrap_or_default().into_iter().map(|i| i.address).collect();
    move |name| {
        let is_own = |name: &str| name == own || Some(name) == own.split('.').next();
        match name.parse::<IpAddr>() {
            Ok(address) => address.is_loopback() || addresses.contains(&address),
            Err(_) => name == "localhost" || is_own(name),
        }
    }
}

/// Returns the words of a line with their columns.
fn words(line: &str) -> impl Iterator<Item = (usize, &str)> {
    let columns: HashMap<usize, usize> =
        (1..).zip(line.char_indices()).map(|(column, (at, _))| (at, column)).collect();
    line.split_whitespace().map(move |word| {
        let at = word.as_ptr() as usize - line.as_ptr() as usize;
        (columns[&at], word)
    })
}

/// Parses `a`, `a:2`, `[::1]` or `[::1]:2`.
fn entry(text: &str) -> Result<Entry, String> {
    let (name, number) = match text.strip_prefix('[') {
        Some(rest) => {
            let Some((address, behind)) = rest.split_once(']') else {
                return Err(format!("`{text}`: the bracket is not closed; write [2001:db8::1]:2"));
            };
            let plain = address.split('%').next().unwrap_or_default();
            if plain.parse::<Ipv6Addr>().is_err() {
                return Err(format!("`{address}` is no IPv6 address: only those stand in brackets"));
            }
            match behind.strip_prefix(':') {
                Some(number) => (address, Some(number)),
                None if behind.is_empty() => (address, None),
                None => return Err(format!("`{behind}`: behind the bracket only :N may stand, N slots")),
            }
        }
        None if text.matches(':').count() > 1 => {
            return Err(format!("`{text}`: an IPv6 address stands in brackets, as [2001:db8::1]:2"));
        }
        None => match text.split_once(':') {
            Some((name, number)) => (name, Some(number)),
            None => (text, None),
        },
    };
    let slots = number.map_or(Ok(1), slots)?;
    match name_fault(name) {
        None => Ok(Entry { name: name.into(), slots }),
        Some(why) => Err(format!("`{name}`: {why}")),
    }
}

fn slots(number: &str) -> Result<u32, String> {
    match number.parse() {
        Ok(slots @ 1..=MAX_RANKS) => Ok(slots),
        _ => Err(format!("`{number}` is no number of slots: 1 to {MAX_RANKS}, as in a:2")),
    }
}

/// Says what is wrong with a host's name. It becomes a word of the agent's command: it must not look like an
/// option, or be several words.
fn name_fault(name: &str) -> Option<&'static str> {
    let odd = |c: char| !(c.is_alphanumeric() || "._-@%:".contains(c));
    if name.is_empty() {
        Some("a host's name is missing; write a:2,b:2")
    } else if name.starts_with('-') {
        Some("a host's name must not begin with `-`")
    } else if name.len() > 255 {
        Some("a host's name may have 255 bytes at most")
    } else if name.contains(odd) {
        Some("a host's name has letters, digits, `.`, `-`, `_`, and perhaps user@ before it")
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
