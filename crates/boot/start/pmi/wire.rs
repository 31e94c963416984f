//! Messages of PMI services as bytes: without I/O, and bounded.
//!
//! ```text
//!   a line      PMI-1, and the first exchange of PMI-2
//!     cmd=put kvsname=1.0 key=udeck-0-root value=x⏎
//!
//!   a command   PMI-2: its length as 6 characters, then fields, each ended by `;` (within a value: `;;`)
//!     |    48|cmd=fullinit;pmijobid=;pmirank=0;threaded=FALSE;      Hydra puts blanks before the length,
//!     |114   |cmd=fullinit-response;rc=0;rank=0;size=2; …           Slurm behind it
//! ```

use std::{fmt, str::FromStr};

/// Upper bound of a message, in bytes. Services send slightly more than 1024 at most.
pub(in crate::start) const LONGEST: usize = 8192;

/// Number of characters of a command's length.
const LENGTH: usize = 6;

/// Ways in which a message ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::start) enum Framing {
    /// At a newline.
    Line,
    /// After the length that stands before it.
    Command,
}

/// Received bytes that are not yet part of a message.
#[derive(Debug, Default)]
pub(in crate::start) struct Inbox {
    bytes: Vec<u8>,
}

impl Inbox {
    pub(in crate::start) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(in crate::start) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the next message, or `None` while a part of it is missing. A caller that pushes only after a
    /// `None` never holds more than [`LONGEST`] and its last push.
    ///
    /// # Errors
    /// In words: the bytes are no message, and have no known end.
    pub(in crate::start) fn next(&mut self, framing: Framing) -> Result<Option<Message>, String> {
        let Some((head, body)) = (match framing {
            Framing::Line => self.line()?,
            Framing::Command => self.command()?,
        }) else {
            return Ok(None);
        };
        let whole: Vec<u8> = self.bytes.drain(..head + body).collect();
        let text = std::str::from_utf8(&whole[head..])
            .map_err(|_| format!("its answer is not text: {}", Quoted::of(&whole[head..])))?;
        match framing {
            Framing::Line => Message::from_line(text.trim_end_matches('\n')).map(Some),
            Framing::Command => Message::from_command(text).map(Some),
        }
    }

    /// Returns the number of bytes before a line's text, which is 0, and the line's length.
    fn line(&self) -> Result<Option<(usize, usize)>, String> {
        match self.bytes.iter().position(|byte| *byte == b'\n') {
            Some(end) if end < LONGEST => Ok(Some((0, end + 1))),
            None if self.bytes.len() < LONGEST => Ok(None),
            _ => Err(format!(
                "it says more than {LONGEST} bytes without an end of line: {}",
                Quoted::of(&self.bytes)
            )),
        }
    }

    /// Returns the number of bytes before a command's text, and the text's length.
    fn command(&self) -> Result<Option<(usize, usize)>, String> {
        let Some(length) = self.bytes.get(..LENGTH) else { return Ok(None) };
        let number = std::str::from_utf8(length).ok().map(|text| text.trim_matches(' '));
        let number = number.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let Some(number) = number.and_then(|text| text.parse::<usize>().ok()) else {
            return Err(format!("it says {} where the length of an answer belongs", Quoted::of(length)));
        };
        if number > LONGEST {
            return Err(format!("it announces an answer of {number} bytes; at most {LONGEST} are taken"));
        }
        Ok((self.bytes.len() >= LENGTH + number).then_some((LENGTH, number)))
    }

    #[cfg(test)]
    pub(in crate::start) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }
}

/// One message: fields in their order, the first of them `cmd`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::start) struct Message {
    fields: Vec<(String, String)>,
}

impl Message {
    /// Parses a line without its end. A word without `=` belongs to the value before it: reasons consist of
    /// several words.
    fn from_line(line: &str) -> Result<Message, String> {
        let mut fields: Vec<(String, String)> = Vec::new();
        for word in line.split(' ').filter(|word| !word.is_empty()) {
            match (word.split_once('='), fields.last_mut()) {
                (Some((key, value)), _) => fields.push((key.into(), value.into())),
                (None, Some((_, value))) => {
                    value.push(' ');
                    value.push_str(word);
                }
                (None, None) => break,
            }
        }
        Message::new(fields, line)
    }

    /// Parses a command without its length.
    fn from_command(text: &str) -> Result<Message, String> {
        let mut fields = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let field = rest.split_once('=').and_then(|(key, after)| {
                let (value, after) = unescape(after)?;
                rest = after;
                Some((key.to_owned(), value))
            });
            let field = field.ok_or_else(|| {
                format!("it says {}, which has a field without an end", Quoted::of(text.as_bytes()))
            })?;
            fields.push(field);
        }
        Message::new(fields, text)
    }

    fn new(fields: Vec<(String, String)>, text: &str) -> Result<Message, String> {
        match fields.first() {
            Some((key, _)) if key == "cmd" => Ok(Message { fields }),
            _ => Err(format!("it says {}, which does not begin with `cmd=`", Quoted::of(text.as_bytes()))),
        }
    }

    pub(in crate::start) fn command(&self) -> &str {
        &self.fields[0].1
    }

    /// Returns the first field of this name.
    pub(in crate::start) fn field(&self, key: &str) -> Option<&str> {
        self.fields.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// Returns a field that has to be there.
    ///
    /// # Errors
    /// The reason, in words.
    pub(in crate::start) fn text(&self, key: &str) -> Result<&str, String> {
        self.field(key).ok_or_else(|| format!("its answer `{}` has no `{key}`", self.shown()))
    }

    /// Returns a field that has to be there and to be a number.
    ///
    /// # Errors
    /// The reason, in words.
    pub(in crate::start) fn number<N: FromStr>(&self, key: &str) -> Result<N, String> {
        let text = self.text(key)?;
        text.parse().map_err(|_| {
            let text = Quoted::of(text.as_bytes());
            format!("its answer `{}` has {text} as `{key}`, which is no such number", self.shown())
        })
    }

    /// Checks that the message reports success: by `rc=0`, or by no `rc`.
    ///
    /// # Errors
    /// In words: the code and the reason.
    pub(in crate::start) fn succeeded(&self) -> Result<(), String> {
        let code = match self.field("rc") {
            None | Some("0") => return Ok(()),
            Some(code) => Quoted::of(code.as_bytes()),
        };
        // PMI-1 calls the reason `msg`, PMI-2 `errmsg`.
        let reason = self.field("msg").or_else(|| self.field("errmsg"));
        let reason = reason.map_or_else(|| "no reason".into(), |why| Quoted::of(why.as_bytes()).to_string());
        Err(format!("it refuses, with rc={code} and {reason}"))
    }

    fn shown(&self) -> String {
        let shown: String = self.command().chars().filter(|letter| !letter.is_control()).take(40).collect();
        shown
    }

    /// Checks that the message has this `cmd`.
    ///
    /// # Errors
    /// The reason, in words.
    pub(in crate::start) fn expect(self, command: &str) -> Result<Message, String> {
        if self.command() == command {
            return Ok(self);
        }
        Err(format!("it answered `{}` instead of `{command}`", self.shown()))
    }
}

/// Returns a value up to its `;`, and the text behind it.
fn unescape(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut rest = text;
    loop {
        let (part, after) = rest.split_once(';')?;
        value.push_str(part);
        match after.strip_prefix(';') {
            Some(after) => {
                value.push(';');
                rest = after;
            }
            None => return Some((value, after)),
        }
    }
}

/// Encodes fields as a line.
pub(in crate::start) fn line(fields: &[(&str, &str)]) -> Vec<u8> {
    let words: Vec<String> = fields.iter().map(|(key, value)| format!("{key}={value}")).collect();
    format!("{}\n", words.join(" ")).into_bytes()
}

/// Encodes fields as a command, with its length before it.
pub(in crate::start) fn command(fields: &[(&str, &str)]) -> Vec<u8> {
    let body: String =
        fields.iter().map(|(key, value)| format!("{key}={};", value.replace(';', ";;"))).collect();
    format!("{:>LENGTH$}{body}", body.len()).into_bytes()
}

/// Foreign bytes, for people: quoted, short, and without control characters.
pub(in crate::start) struct Quoted<'a>(&'a [u8]);

impl<'a> Quoted<'a> {
    pub(in crate::start) fn of(bytes: &'a [u8]) -> Quoted<'a> {
        Quoted(bytes)
    }
}

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 60;
        let part = &self.0[..self.0.len().min(SHOWN)];
        let dots = if part.len() < self.0.len() { "…" } else { "" };
        write!(f, "`{}{dots}`", part.escape_ascii())
    }
}

#[cfg(test)]
mod tests;
