use proptest::prelude::*;

use super::*;
use crate::start::pmi::fake::hostile;

fn inbox(bytes: &[u8]) -> Inbox {
    let mut inbox = Inbox::default();
    inbox.push(bytes);
    inbox
}

fn next(bytes: &[u8], framing: Framing) -> Result<Option<Message>, String> {
    inbox(bytes).next(framing)
}

#[test]
fn a_line_is_read_when_it_is_whole() {
    let line = b"cmd=get_result rc=-1 msg=no such key value=unknown\ncmd=next\n";
    let end = line.iter().position(|byte| *byte == b'\n').unwrap();
    for part in 0..=end {
        assert_eq!(next(&line[..part], Framing::Line), Ok(None), "{part}");
    }
    let mut inbox = inbox(line);
    let message = inbox.next(Framing::Line).unwrap().unwrap();
    assert_eq!((message.command(), message.field("msg")), ("get_result", Some("no such key")));
    assert_eq!(message.number("rc"), Ok(-1));
    assert_eq!(message.succeeded().unwrap_err(), "it refuses, with rc=`-1` and `no such key`");
    assert_eq!(inbox.next(Framing::Line).unwrap().unwrap().command(), "next");
    assert!(inbox.is_empty());
}

#[test]
fn a_command_is_read_when_it_is_whole_wherever_its_blanks_are() {
    for length in ["    44", "44    ", "000044", "  44  "] {
        let bytes = format!("{length}cmd=kvs-get-response;rc=0;found=TRUE;value=;cmd=");
        let message = next(bytes.as_bytes(), Framing::Command).unwrap().unwrap();
        assert_eq!((message.field("value"), message.field("found")), (Some(""), Some("TRUE")));
        for part in 0..50 {
            assert_eq!(next(&bytes.as_bytes()[..part], Framing::Command), Ok(None), "{part}");
        }
    }
}

#[test]
fn what_is_escaped_comes_back() {
    let fields = [("cmd", "x"), ("a", ";"), ("b", "c;d;;e"), ("f", "g=h")];
    let message = next(&command(&fields), Framing::Command).unwrap().unwrap();
    for (key, value) in fields {
        assert_eq!(message.text(key), Ok(value));
    }
    assert_eq!(command(&[("cmd", "kvs-fence")]), b"    14cmd=kvs-fence;");
    assert_eq!(line(&[("cmd", "put"), ("value", "x")]), b"cmd=put value=x\n");
}

#[test]
fn what_is_no_message_is_said_in_words() {
    let long = vec![b'x'; LONGEST];
    let longer = [&long[..], b"\n"].concat();
    let cases: [(&[u8], Framing, &str); 12] = [
        (&long, Framing::Line, "more than 8192 bytes without an end of line"),
        (&longer, Framing::Line, "more than 8192 bytes"),
        (b"\n", Framing::Line, "does not begin with `cmd=`"),
        (b"rc=0 cmd=x\n", Framing::Line, "does not begin with `cmd=`"),
        (b"cmd=\xFF\xFE\n", Framing::Line, r"not text: `cmd=\xff\xfe"),
        (b"999999", Framing::Command, "announces an answer of 999999 bytes"),
        (b"  8193", Framing::Command, "announces an answer of 8193 bytes"),
        (b"cmd=ab", Framing::Command, "says `cmd=ab` where the length"),
        (b"    -1", Framing::Command, "where the length"),
        (b"      ", Framing::Command, "where the length"),
        (b"     0", Framing::Command, "does not begin with `cmd=`"),
        (b"     9cmd=a;b=c", Framing::Command, "`cmd=a;b=c`, which has a field without an end"),
    ];
    for (bytes, framing, words) in cases {
        let why = next(bytes, framing).unwrap_err();
        assert!(why.contains(words), "{why}");
        assert!(why.len() < 400, "{why}");
    }
}

#[test]
fn a_field_that_is_missing_or_no_number_is_said_in_words() {
    let message = next(b"cmd=maxes a=b c=4294967296\n", Framing::Line).unwrap().unwrap();
    assert_eq!(message.text("d").unwrap_err(), "its answer `maxes` has no `d`");
    assert!(message.number::<u32>("a").unwrap_err().contains("`b` as `a`, which is no such number"));
    assert!(message.number::<u32>("c").is_err());
    assert!(message.expect("set").unwrap_err().contains("it answered `maxes` instead of `set`"));
}

proptest! {
    /// The test uses the inbox as the channel does: pushes have 2048 bytes at most, and come only after a
    /// `None`.
    #[test]
    fn prop_any_bytes_are_messages_or_errors_and_the_buffer_stays_bounded(
        bytes in hostile(),
        chunk in 1..2048_usize,
        as_lines in any::<bool>(),
    ) {
        let framing = if as_lines { Framing::Line } else { Framing::Command };
        let mut inbox = Inbox::default();
        'heard: for chunk in bytes.chunks(chunk) {
            inbox.push(chunk);
            loop {
                match inbox.next(framing) {
                    Ok(Some(message)) => prop_assert!(message.field("cmd").is_some()),
                    Ok(None) => break,
                    Err(why) => {
                        prop_assert!(why.len() < 400);
                        break 'heard;
                    }
                }
            }
            prop_assert!(inbox.capacity() <= 2 * (LONGEST + 2048));
        }
    }

    #[test]
    fn prop_fields_come_back(fields in prop::collection::vec(("[a-z]{1,8}", "[ -~]{0,40}"), 0..8)) {
        let all: Vec<(&str, &str)> =
            [("cmd", "x")].into_iter().chain(fields.iter().map(|(key, value)| (key.as_str(), value.as_str()))).collect();
        let message = next(&command(&all), Framing::Command).unwrap().unwrap();
        let read: Vec<(&str, &str)> = message.fields.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        // A `;` at a key's beginning would be an escape to the reader; there are none.
        prop_assert_eq!(read, all);
    }
}
