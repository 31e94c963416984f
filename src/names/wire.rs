//! The conversation of a process and a host's table of names, over TCP.
//!
//! ```text
//!   asker -> table   "UDVIPL2\n" nonce (32)
//!   table -> asker   nonce (32) proof (32)                      that it knows the secret
//!   then, in turn    length of body (2, little-endian)  body  proof (32) over both nonces, number of the frame, body
//!
//!   question   op (1)  length of key (1)  key  value            PUT, TAKE (back), GET, PING
//!     value of GET: how many milliseconds to wait (2, little-endian)
//!   answer     op (1)  value                                    WELL, TAKEN, NONE
//! ```
//!
//! Nothing is encrypted: the table says which process listens where. Nobody without the secret can ask it,
//! answer in its place, or change its words.

use std::io::{self, Read, Write};

use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use udeck_via::auth::{DeadlineStream, Nonce, Pair};

pub(crate) const HELLO: &[u8; 8] = b"UDVIPL2\n";
const PROTOCOL: &[u8] = b"udeck directory 2";
pub(crate) const MAX_BODY: usize = 2048;
pub(crate) const MAX_KEY: usize = 255;
pub(crate) const MAX_VALUE: usize = 1024;

pub(crate) const PUT: u8 = 1;
pub(crate) const TAKE: u8 = 2;
pub(crate) const GET: u8 = 3;
pub(crate) const PING: u8 = 4;
pub(crate) const WELL: u8 = 0x11;
pub(crate) const TAKEN: u8 = 0x12;
pub(crate) const NONE: u8 = 0x13;

/// A connection with one deadline for all reads and writes.
pub(crate) type Dated = DeadlineStream<Arc<TcpStream>>;

/// One end of a conversation between two processes that both know the secret.
pub(crate) struct Line<S> {
    stream: S,
    pair: Pair,
    asker: Nonce,
    table: Nonce,
    /// Number of frames sent and received.
    count: u64,
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

fn nonce() -> io::Result<Nonce> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(io::Error::other)?;
    Ok(nonce)
}

impl<S: Read + Write> Line<S> {
    /// The asker's end.
    pub fn ask(mut stream: S, pair: Pair) -> io::Result<Self> {
        let asker = nonce()?;
        stream.write_all(&[&HELLO[..], &asker].concat())?;
        let mut answer = [0; 64];
        stream.read_exact(&mut answer).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                let why =
                    "what serves that port hung up at our first word: it may be of another version of µDECK";
                io::Error::new(error.kind(), why)
            }
            _ => error,
        })?;
        let (table, proof) = answer.split_at(32);
        let table: Nonce = table.try_into().expect("32 bytes");
        let proof = proof.try_into().expect("32 bytes");
        if !pair.check(&proof, PROTOCOL, b"table", &[&asker, &table]) {
            return Err(wrong("what serves that port does not know our secret"));
        }
        Ok(Line { stream, pair, asker, table, count: 0 })
    }

    /// The table's end. The asker has proven nothing before its first frame.
    pub fn answer(mut stream: S, pair: Pair) -> io::Result<Self> {
        let mut hello = [0; 40];
        stream.read_exact(&mut hello)?;
        let (head, asker) = hello.split_at(8);
        if head != HELLO {
            return Err(wrong("who calls speaks another language"));
        }
        let asker: Nonce = asker.try_into().expect("32 bytes");
        let table = nonce()?;
        let proof = pair.prove(PROTOCOL, b"table", &[&asker, &table]);
        stream.write_all(&[&table[..], &proof].concat())?;
        Ok(Line { stream, pair, asker, table, count: 0 })
    }

    pub fn send(&mut self, body: &[u8]) -> io::Result<()> {
        let proof = self.prove(body);
        let mut frame = (body.len() as u16).to_le_bytes().to_vec();
        frame.extend_from_slice(body);
        frame.extend_from_slice(&proof);
        self.count += 1;
        self.stream.write_all(&frame)
    }

    pub fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut len = [0; 2];
        self.stream.read_exact(&mut len)?;
        let len = usize::from(u16::from_le_bytes(len));
        if len > MAX_BODY {
            return Err(wrong("too long a frame"));
        }
        let mut body = vec![0; len + 32];
        self.stream.read_exact(&mut body)?;
        let proof = body.split_off(len).try_into().expect("32 bytes");
        if !udeck_via::auth::is_same(&proof, &self.prove(&body)) {
            return Err(wrong("a frame that was changed on its way, or of who does not know our secret"));
        }
        self.count += 1;
        Ok(body)
    }

    fn prove(&self, body: &[u8]) -> [u8; 32] {
        self.pair.prove(PROTOCOL, b"frame", &[&self.asker, &self.table, &self.count.to_le_bytes(), body])
    }

    pub fn stream(&mut self) -> &mut S {
        &mut self.stream
    }
}

pub(crate) fn question(op: u8, key: &str, value: &[u8]) -> Vec<u8> {
    [&[op, key.len() as u8], key.as_bytes(), value].concat()
}

/// Encodes the value of [`GET`]: milliseconds to wait, rounded up, up to a minute.
pub(crate) fn wait(time: Duration) -> [u8; 2] {
    u16::try_from(time.as_micros().div_ceil(1000)).unwrap_or(u16::MAX).to_le_bytes()
}

/// Decodes the value of [`GET`].
pub(crate) fn read_wait(value: &[u8]) -> Option<Duration> {
    Some(Duration::from_millis(u16::from_le_bytes(value.try_into().ok()?).into()))
}

/// Decodes op, key and value; `None`: the bytes are no question.
pub(crate) fn read_question(body: &[u8]) -> Option<(u8, &str, &[u8])> {
    let (op, rest) = body.split_first()?;
    let (len, rest) = rest.split_first()?;
    let (key, value) = rest.split_at_checked(usize::from(*len))?;
    (value.len() <= MAX_VALUE).then_some((*op, std::str::from_utf8(key).ok()?, value))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;
    use udeck_via::auth::{Claim, Keys};

    use super::*;

    fn talk(asking: [u8; 32], answering: [u8; 32]) -> (io::Result<Vec<u8>>, io::Result<Vec<u8>>) {
        let (one, other) = UnixStream::pair().unwrap();
        let table = std::thread::spawn(move || {
            let mut line = Line::answer(other, Keys::from(answering).answer(Claim::NOBODY).unwrap())?;
            let question = line.receive()?;
            line.send(&[WELL])?;
            Ok(question)
        });
        let ask = || {
            let mut line = Line::ask(one, Keys::from(asking).call(None).unwrap())?;
            line.send(&question(GET, "key", b""))?;
            line.receive()
        };
        let answer = ask();
        (answer, table.join().unwrap())
    }

    #[test]
    fn only_those_with_one_secret_understand_each_other() {
        let (answer, asked) = talk([1; 32], [1; 32]);
        assert_eq!(answer.unwrap(), [WELL]);
        assert_eq!(read_question(&asked.unwrap()), Some((GET, "key", &b""[..])));
        let (answer, asked) = talk([1; 32], [2; 32]);
        assert_eq!(answer.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        asked.unwrap_err();
    }

    #[test]
    fn who_sends_byte_by_byte_has_no_more_time() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let sends = std::thread::spawn(move || {
            for byte in [&HELLO[..], &[1; 32]].concat() {
                std::thread::sleep(Duration::from_millis(20));
                if slow.write_all(&[byte]).is_err() {
                    return; // it is not heard any more
                }
            }
            let _ = slow.read(&mut [0; 64]);
        });
        let pair = Keys::from([1; 32]).answer(Claim::NOBODY).unwrap();
        let answered = Line::answer(Dated::new(Arc::new(stream), Duration::from_millis(200)), pair);
        assert!(answered.is_err(), "40 bytes take longer");
        drop(answered);
        sends.join().unwrap();
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_question_or_none(bytes in prop::collection::vec(any::<u8>(), 0..MAX_BODY)) {
            if let Some((op, key, value)) = read_question(&bytes) {
                prop_assert_eq!(question(op, key, value), bytes);
            }
        }

        /// A caller without the secret may send any bytes: its conversation ends, and no question is answered.
        #[test]
        fn any_bytes_are_heard_without_harm(head in any::<bool>(), bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
            let (mut one, other) = UnixStream::pair().unwrap();
            let sent = if head { [&HELLO[..], &bytes].concat() } else { bytes };
            one.write_all(&sent).unwrap();
            one.shutdown(std::net::Shutdown::Write).unwrap();
            let heard = Line::answer(other, Keys::from([1; 32]).answer(Claim::NOBODY).unwrap())
                .and_then(|mut line| line.receive());
            prop_assert!(heard.is_err());
        }
    }

    #[test]
    fn no_part_of_a_question_is_one() {
        let whole = question(PUT, "key", b"value");
        assert_eq!(read_question(&whole), Some((PUT, "key", &b"value"[..])));
        for len in 0..5 {
            assert_eq!(read_question(&whole[..len]), None);
        }
    }
}
