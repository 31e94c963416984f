//! Text of a table of hosts: lines of words, with addresses in hexadecimal or quoted.
//!
//! The author of the file is not trusted: the length is bounded, and any text that is not of the form is an error with its
//! place.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::str::FromStr;

use super::error::{NameError, SyntaxError};
use super::table::HostTable;
use super::written::{Written, is_quotable};
use super::{check_address, check_name};
use crate::{Error, Result};

/// Longest text, in bytes: several times the length of the largest table.
pub(super) const MAX_TEXT: usize = 4 << 20;

/// Upper bound of the characters of the text that an error repeats.
const SHOWN: usize = 24;

pub(super) fn parse(origin: &str, bytes: &[u8]) -> Result<HostTable> {
    if bytes.len() > MAX_TEXT {
        return Err(Error::Full {
            what: "a table of hosts",
            bound: format!("{MAX_TEXT} bytes; {origin} is longer").into(),
        });
    }
    let text =
        std::str::from_utf8(bytes).map_err(|error| not_utf8(origin, bytes.split_at(error.valid_up_to())))?;
    let mut table = HostTable::from_origin(origin);
    for (index, text) in text.lines().enumerate() {
        parse_line(&mut table, &TextLine { origin, line: index + 1, text })?;
    }
    Ok(table)
}

fn parse_line(table: &mut HostTable, place: &TextLine<'_>) -> Result<()> {
    let mut words = Words { text: place.text, at: 0 };
    let Some((at, name)) = words.next() else { return Ok(()) };
    if let Err(NameError::BadName { why, .. }) = check_name(name) {
        return Err(place.unexpected(at, &format!("a host's name, and this is none ({why})"), name).into());
    }
    if table.contains(name) {
        let expected = "a host that has no line yet (all its NICs stand in one)";
        return Err(place.unexpected(at, expected, name).into());
    }
    let after = words.at;
    let mut addresses = words.peekable();
    if addresses.peek().is_none() {
        return Err(place.error(after, "an address of this host's NIC", "the line's end".into()).into());
    }
    for (at, word) in addresses {
        let address = parse_address(word).map_err(|expected| place.unexpected(at, expected, word))?;
        table.add(name, &address).map_err(|error| match error {
            Error::NameService(why) => place.unexpected(at, &format!("another address ({why})"), word).into(),
            full => full,
        })?;
    }
    Ok(())
}

#[cold]
fn not_utf8(origin: &str, (before, rest): (&[u8], &[u8])) -> SyntaxError {
    let before = String::from_utf8_lossy(before);
    let (line, text) = before.split('\n').enumerate().last().unwrap_or_default();
    let place = TextLine { origin, line: line + 1, text };
    place.error(text.len(), "UTF-8", format!("the byte {:#04x}", rest[0]))
}

fn parse_address(word: &str) -> Result<Vec<u8>, &'static str> {
    let address = if let Some(digits) = word.strip_prefix("0x") {
        from_hex(digits).ok_or("pairs of hexadecimal digits behind 0x")?
    } else if let Some(quoted) = word.strip_prefix('"') {
        let inner = quoted.strip_suffix('"').ok_or("an address that ends with the quote it began with")?;
        if !is_quotable(inner.as_bytes()) {
            return Err(
                "printable ASCII without quotes between quotes (other bytes: 0x and hexadecimal digits)",
            );
        }
        inner.as_bytes().to_vec()
    } else {
        return Err("an address: 0x and hexadecimal digits, or text in double quotes");
    };
    match check_address(&address) {
        Ok(()) => Ok(address),
        Err(_) => Err("an address of 1 to 108 bytes"),
    }
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let (pairs, left_over) = digits.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|&[high, low]| Some((digit(high)? << 4 | digit(low)?) as u8));
    left_over.is_empty().then(|| bytes.collect()).flatten()
}

impl HostTable {
    /// Reads a whole file. Blocks until it is read.
    ///
    /// # Errors
    /// [`NameError::Syntax`] with the place and the expected text; [`Error::Full`] beyond a bound; [`Error::Os`].
    pub fn load(path: &Path) -> Result<Self> {
        let origin = path.display().to_string();
        let failed = |error: io::Error| Error::os(format!("reading the table of hosts {origin}"), error);
        let mut bytes = Vec::new();
        // One byte more than the bound, so that `parse` sees that the text is too long.
        let limit = MAX_TEXT as u64 + 1;
        File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes)).map_err(failed)?;
        HostTable::parse(&origin, &bytes)
    }

    /// Reads a table's text. Errors name it `origin`.
    ///
    /// # Errors
    /// Those of [`HostTable::load`], without [`Error::Os`].
    pub fn parse(origin: &str, bytes: &[u8]) -> Result<Self> {
        parse(origin, bytes)
    }
}

impl fmt::Display for HostTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, addresses) in self.hosts() {
            f.write_str(name)?;
            addresses.iter().try_for_each(|address| write!(f, " {}", Written(address)))?;
            f.write_str("\n")?;
        }
        Ok(())
    }
}

impl FromStr for HostTable {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        HostTable::parse("the table of hosts", text.as_bytes())
    }
}

/// A line of the text, for errors.
struct TextLine<'a> {
    origin: &'a str,
    line: usize,
    text: &'a str,
}

impl TextLine<'_> {
    /// The error when `word`, which begins `at` bytes from the line's start, is not the expected one.
    fn unexpected(&self, at: usize, expected: &str, word: &str) -> SyntaxError {
        let cut = if word.chars().nth(SHOWN).is_some() { "..." } else { "" };
        let shown: String = word.chars().take(SHOWN).collect();
        self.error(at, expected, format!("{shown:?}{cut}"))
    }

    fn error(&self, at: usize, expected: &str, found: String) -> SyntaxError {
        SyntaxError {
            origin: self.origin.to_owned(),
            line: self.line,
            column: self.text[..at].chars().count() + 1,
            expected: expected.to_owned(),
            found,
        }
    }
}

/// Words of a line up to a comment, each with its byte offset. Spaces between quotes belong to the word.
struct Words<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Iterator for Words<'a> {
    type Item = (usize, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.text[self.at..].trim_start();
        let start = self.text.len() - rest.len();
        if rest.is_empty() || rest.starts_with('#') {
            return None;
        }
        let mut quoted = false;
        let end = rest.find(|c: char| {
            quoted ^= c == '"';
            c.is_whitespace() && !quoted
        });
        self.at = end.map_or(self.text.len(), |end| start + end);
        Some((start, &self.text[start..self.at]))
    }
}

#[cfg(test)]
mod tests;
