//! Events as lines of JSON, in the Trace Event Format.
//!
//! Every line is an element of an array, and ends with a comma. Its first members are `ph`, `pid`, `tid` and
//! `ts`, in this order: the merge finds them by it.

use std::fmt::Write as _;

use crate::record::{Arguments, Arrow, NO_RANK, Record, Shape, Value};

/// Name and category of the arrows from a post to its retrieve.
pub(crate) const ARROW: &str = "\"name\":\"message\",\"cat\":\"udeck\"";

/// Appends the events of the thread `tid`, and returns their number. `rank` is for events without one.
pub(crate) fn events(
    to: &mut String,
    tid: u32,
    (records, arguments): (&[Record], &Arguments),
    rank: u32,
) -> u64 {
    let (mut values, mut texts) = (arguments.values.iter(), arguments.texts.as_str());
    let mut count = 0;
    for record in records {
        let pid = if record.rank == NO_RANK { rank } else { record.rank };
        let letter = match (record.shape, record.arrow) {
            (_, Arrow::Apart(_)) => 'b',
            (Shape::Slice, _) => 'X',
            (Shape::Instant, _) => 'i',
        };
        begin(to, letter, pid, tid, record.start);
        match record.shape {
            _ if letter == 'b' => apart(to, record),
            Shape::Slice => {
                to.push_str(",\"dur\":");
                micros(to, record.end.saturating_sub(record.start));
            }
            Shape::Instant => to.push_str(",\"s\":\"t\""),
        }
        named(to, record);
        if record.arguments > 0 {
            to.push_str(",\"args\":{");
            for nth in 0..record.arguments {
                let Some((name, value)) = values.next() else { break };
                if nth > 0 {
                    to.push(',');
                }
                quoted(to, name);
                to.push(':');
                texts = argument(to, *value, texts);
            }
            to.push('}');
        }
        to.push_str("},\n");
        if letter == 'b' {
            begin(to, 'e', pid, tid, record.end);
            apart(to, record);
            named(to, record);
            to.push_str("},\n");
            count += 1;
        }
        count += 1 + u64::from(arrow(to, pid, tid, record.arrow, (record.start, record.end)));
    }
    count
}

fn named(to: &mut String, record: &Record) {
    to.push_str(",\"name\":");
    quoted(to, record.name);
    to.push_str(",\"cat\":");
    quoted(to, record.category);
}

/// Writes the number, unique in its process, that joins the beginning and the end of an event apart from its
/// thread.
fn apart(to: &mut String, record: &Record) {
    if let Arrow::Apart(id) = record.arrow {
        let _ = write!(to, ",\"id2\":{{\"local\":\"0x{id:x}\"}}");
    }
}

/// Writes an arrow. It begins at the beginning of its slice, and ends just before the end of its slice: both
/// ends lie inside.
fn arrow(to: &mut String, pid: u32, tid: u32, arrow: Arrow, (start, end): (u64, u64)) -> bool {
    let (letter, id, at, rest) = match arrow {
        Arrow::None | Arrow::Apart(_) => return false,
        Arrow::Out(id) => ('s', id, start, ""),
        Arrow::In(id) => ('f', id, end.saturating_sub(1).max(start), ",\"bp\":\"e\""),
    };
    begin(to, letter, pid, tid, at);
    let _ = write!(to, ",\"id\":\"0x{id:x}\",{ARROW}{rest}");
    to.push_str("},\n");
    true
}

fn begin(to: &mut String, letter: char, pid: u32, tid: u32, at: u64) {
    let _ = write!(to, "{{\"ph\":\"{letter}\",\"pid\":{pid},\"tid\":{tid},\"ts\":");
    micros(to, at);
}

/// Appends an event that describes a process or a thread.
pub(crate) fn metadata(to: &mut String, (pid, tid): (u32, u32), name: &str, argument: (&str, &str)) {
    let _ = write!(to, "{{\"ph\":\"M\",\"pid\":{pid},\"tid\":{tid},\"ts\":0,\"name\":");
    quoted(to, name);
    let (key, value) = argument;
    to.push_str(",\"args\":{");
    quoted(to, key);
    to.push(':');
    to.push_str(value);
    to.push_str("}},\n");
}

/// Appends a time in microseconds, with three digits for nanoseconds.
pub(crate) fn micros(to: &mut String, nanoseconds: u64) {
    let _ = write!(to, "{}.{:03}", nanoseconds / 1000, nanoseconds % 1000);
}

fn argument<'t>(to: &mut String, value: Value, texts: &'t str) -> &'t str {
    match value {
        Value::Unsigned(number) => _ = write!(to, "{number}"),
        Value::Signed(number) => _ = write!(to, "{number}"),
        Value::Float(number) if number.is_finite() => _ = write!(to, "{number}"),
        Value::Float(number) => quoted(to, &number.to_string()),
        Value::Bool(value) => to.push_str(if value { "true" } else { "false" }),
        Value::Text(length) => {
            let (text, rest) = texts.split_at(length as usize);
            quoted(to, text);
            return rest;
        }
    }
    texts
}

/// Appends a string, quoted.
pub(crate) fn quoted(to: &mut String, text: &str) {
    to.push('"');
    for char in text.chars() {
        match char {
            '"' => to.push_str("\\\""),
            '\\' => to.push_str("\\\\"),
            '\n' => to.push_str("\\n"),
            char if char < ' ' => _ = write!(to, "\\u{:04x}", char as u32),
            char => to.push(char),
        }
    }
    to.push('"');
}
