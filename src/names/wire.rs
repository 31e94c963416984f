//! The conversation of a process and a host's table of names, over TCP.
//!
//! The connection is a [`SecureStream`], which draws its bytes. The process that asks calls, and both know the
//! secret. The payloads of the frames are, in turn:
//!
//! ```text
//!   question   op (1)  length of key (1)  key  value            PUT, TAKE (back), GET, PING
//!     value of GET: how many milliseconds to wait (2, little-endian)
//!   answer     op (1)  value                                    WELL, TAKEN, NONE, FULL, ALL_FULL
//! ```

use std::io::{self, Read};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use udeck_via::auth::{DeadlineStream, Protocol, SecureStream, StreamError};

/// The protocol version of this build.
const VERSION: u32 = 4;
/// Upper bound of a frame's payload, in bytes.
const MAX_BODY: usize = 2048;
const PROTOCOL: Protocol = Protocol { magic: *b"udeckdir", version: VERSION, max_frame: MAX_BODY };
pub(crate) const MAX_KEY: usize = 255;
pub(crate) const MAX_VALUE: usize = 1024;

pub(crate) const PUT: u8 = 1;
pub(crate) const TAKE: u8 = 2;
pub(crate) const GET: u8 = 3;
pub(crate) const PING: u8 = 4;
pub(crate) const WELL: u8 = 0x11;
pub(crate) const TAKEN: u8 = 0x12;
pub(crate) const NONE: u8 = 0x13;
pub(crate) const FULL: u8 = 0x14;
pub(crate) const ALL_FULL: u8 = 0x15;

/// One end of a conversation between two processes that both know the secret.
pub(crate) struct Line {
    stream: DeadlineStream<Arc<TcpStream>>,
    secure: SecureStream,
    /// A frame was not sent or received in time. Its answer would be taken for the next one's.
    is_over: bool,
}

impl Line {
    /// Makes the asker's end. The hand-shake ends within the limit.
    pub fn ask(stream: Arc<TcpStream>, key: [u8; 32], limit: Duration) -> io::Result<Line> {
        let hung_up =
            "what serves that port hung up at our first word: it may be of another version of µDECK";
        Line::meet(stream, SecureStream::call(PROTOCOL, 0, key)?, limit).map_err(|error| match error.kind() {
            kind @ (io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => {
                io::Error::new(kind, hung_up)
            }
            kind @ (io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                io::Error::new(kind, format!("no answer within {limit:?}"))
            }
            _ => error,
        })
    }

    /// Makes the table's end. The hand-shake ends within the limit.
    pub fn answer(stream: Arc<TcpStream>, key: [u8; 32], limit: Duration) -> io::Result<Line> {
        Line::meet(stream, SecureStream::answer(PROTOCOL, move |_| Some(key))?, limit)
    }

    fn meet(stream: Arc<TcpStream>, mut secure: SecureStream, limit: Duration) -> io::Result<Line> {
        stream.set_nodelay(true)?;
        let mut stream = DeadlineStream::new(stream, limit);
        secure.handshake(&mut stream)?.map_err(refusal)?;
        Ok(Line { stream, secure, is_over: false })
    }

    /// Sets the deadline of what is sent and received from now on.
    pub fn renew(&mut self, limit: Duration) {
        self.stream.renew(limit);
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// Those of the system; `NotConnected`: the conversation is over since an earlier error.
    pub fn send(&mut self, body: &[u8]) -> io::Result<()> {
        if self.is_over {
            return Err(io::ErrorKind::NotConnected.into());
        }
        self.secure.send(body);
        let sent = self.secure.write_to(&mut self.stream);
        self.is_over |= sent.is_err();
        sent
    }

    /// Waits for a frame. The conversation is over after an error: an answer that comes late must not be taken for the answer to
    /// another question.
    ///
    /// # Errors
    /// Those of the system, and `PermissionDenied` for a frame that is not the peer's.
    pub fn receive(&mut self) -> io::Result<Vec<u8>> {
        let frame = self.next_frame();
        self.is_over |= frame.is_err();
        frame
    }

    fn next_frame(&mut self) -> io::Result<Vec<u8>> {
        let mut read = [0; MAX_BODY];
        loop {
            if let Some(body) = self.secure.next_frame().map_err(refusal)? {
                return Ok(body.to_vec());
            }
            match self.stream.read(&mut read) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => self.secure.receive(&read[..length]).map_err(refusal)?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Returns the asker's words. (The table tells nobody.)
fn refusal(why: StreamError) -> io::Error {
    let words = match why {
        StreamError::Stranger => "what serves that port is no table of names of this release of µDECK".into(),
        StreamError::Version { theirs } => format!(
            "its µDECK speaks version {theirs} of the table's protocol and this one {VERSION}: use one release"
        ),
        StreamError::UnknownId(_) | StreamError::Key => {
            "what serves that port does not know our secret".into()
        }
        StreamError::TooLong { .. } | StreamError::Forged => "a frame was changed on its way".to_owned(),
    };
    io::Error::new(io::ErrorKind::PermissionDenied, words)
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

/// Returns the first bytes of a caller.
#[cfg(test)]
pub(crate) fn hello() -> Vec<u8> {
    SecureStream::call(PROTOCOL, 0, [1; 32]).unwrap().unsent().to_vec()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Shutdown, TcpListener};
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    const KEY: [u8; 32] = [1; 32];
    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(200);

    /// A socket that sends byte by byte, each after a pause, and records what it sends.
    struct Dripping {
        stream: TcpStream,
        pause: Duration,
        sent: Vec<u8>,
    }

    impl Read for Dripping {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            self.stream.read(to)
        }
    }

    impl Write for Dripping {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            thread::sleep(self.pause);
            self.sent.push(bytes[0]);
            self.stream.write(&bytes[..1])
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn pair() -> (Dripping, Arc<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let (other, _) = listener.accept().unwrap();
        (Dripping { stream, pause: Duration::ZERO, sent: Vec::new() }, Arc::new(other))
    }

    fn caller() -> SecureStream {
        // Its frames may be longer than the table takes.
        SecureStream::call(Protocol { max_frame: 2 * MAX_BODY, ..PROTOCOL }, 0, KEY).unwrap()
    }

    /// Returns a caller that has proved itself, its socket, and the table's end.
    fn met() -> (SecureStream, Dripping, Line) {
        let (mut socket, other) = pair();
        let table = thread::spawn(|| Line::answer(other, KEY, LONG).unwrap());
        let mut caller = caller();
        caller.handshake(&mut socket).unwrap().unwrap();
        (caller, socket, table.join().unwrap())
    }

    fn sealed(caller: &mut SecureStream, body: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        caller.send(body);
        caller.write_to(&mut frame).unwrap();
        frame
    }

    fn kind<T>(result: io::Result<T>) -> io::ErrorKind {
        result.map(drop).unwrap_err().kind()
    }

    fn is_late(kind: io::ErrorKind) -> bool {
        matches!(kind, io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
    }

    #[test]
    fn only_those_with_one_secret_understand_each_other() {
        let talk = |asking| {
            let (one, other) = pair();
            let table = thread::spawn(|| {
                let mut line = Line::answer(other, KEY, LONG)?;
                let question = line.receive()?;
                line.send(&[WELL])?;
                Ok::<_, io::Error>(question)
            });
            let answer = Line::ask(Arc::new(one.stream), asking, LONG).and_then(|mut line| {
                line.send(&question(GET, "key", b""))?;
                line.receive()
            });
            (answer, table.join().unwrap())
        };
        let (answer, asked) = talk(KEY);
        assert_eq!(answer.unwrap(), [WELL]);
        assert_eq!(read_question(&asked.unwrap()), Some((GET, "key", &b""[..])));
        let (answer, asked) = talk([2; 32]);
        let refused = answer.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert!(refused.to_string().contains("does not know our secret"), "{refused}");
        asked.unwrap_err();
    }

    #[test]
    fn an_asker_says_what_does_not_serve_a_table() {
        let asked = |answers: &dyn Fn(&mut Dripping)| {
            let (mut one, other) = pair();
            let asks = thread::spawn(|| Line::ask(other, KEY, LONG).map(drop).unwrap_err().to_string());
            answers(&mut one);
            asks.join().unwrap()
        };
        let newer = Protocol { version: VERSION + 1, ..PROTOCOL };
        let other_version = asked(&|one| {
            let _ = SecureStream::answer(newer, |_| Some(KEY)).unwrap().handshake(one);
        });
        assert!(other_version.contains(&format!("speaks version {}", newer.version)), "{other_version}");
        let stranger = asked(&|one| one.write_all(b"220 ready\r\n").unwrap());
        assert!(stranger.contains("no table of names"), "{stranger}");
        let hung_up = asked(&|one| one.stream.shutdown(Shutdown::Both).unwrap());
        assert!(hung_up.contains("hung up at our first word"), "{hung_up}");
    }

    #[test]
    fn a_peer_that_sends_byte_by_byte_or_stops_has_no_more_time() {
        let callee = || SecureStream::answer(PROTOCOL, |_| Some(KEY)).unwrap();
        type End = fn(Arc<TcpStream>, [u8; 32], Duration) -> io::Result<Line>;
        let ends: [(End, SecureStream); 2] = [(Line::ask, callee()), (Line::answer, caller())];
        for (end, mut peer) in ends {
            // The peer knows the key, and would be through after more than a second.
            let (mut slow, stream) = pair();
            slow.pause = Duration::from_millis(20);
            let sends = thread::spawn(move || drop(peer.handshake(&mut slow)));
            assert!(is_late(kind(end(stream, KEY, SHORT))));
            sends.join().unwrap();
            let (mut stops, stream) = pair();
            stops.write_all(&hello()).unwrap();
            assert!(is_late(kind(end(stream, KEY, SHORT))));
        }
        let (mut caller, mut socket, mut line) = met();
        let frame = sealed(&mut caller, b"whole");
        socket.write_all(&frame[..frame.len() - 1]).unwrap();
        line.renew(SHORT);
        assert!(is_late(kind(line.receive())));
    }

    #[test]
    fn an_answer_that_comes_late_ends_the_conversation() {
        let (mut peer, mut stream, mut line) = met();
        line.renew(Duration::from_millis(1));
        assert!(is_late(kind(line.receive())));
        stream.write_all(&sealed(&mut peer, b"late")).expect("it is open");
        line.renew(Duration::from_secs(60));
        assert_eq!(kind(line.send(b"next")), io::ErrorKind::NotConnected);
    }

    #[test]
    fn a_conversation_that_is_sent_again_is_not_heard() {
        let (mut caller, mut socket, mut line) = met();
        let frame = sealed(&mut caller, b"question");
        socket.write_all(&frame).unwrap();
        assert_eq!(line.receive().unwrap(), b"question");
        let (mut again, stream) = pair();
        again.write_all(&socket.sent).unwrap();
        assert_eq!(kind(Line::answer(stream, KEY, LONG)), io::ErrorKind::PermissionDenied);
        // The frame alone.
        socket.write_all(&frame).unwrap();
        assert_eq!(kind(line.receive()), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn frames_that_are_too_long_or_changed_are_refused() {
        let (mut caller, mut socket, mut line) = met();
        let longest = [5; MAX_BODY];
        socket.write_all(&sealed(&mut caller, &longest)).unwrap();
        assert_eq!(line.receive().unwrap(), longest);
        // Its bytes are not awaited.
        socket.write_all(&sealed(&mut caller, &[5; MAX_BODY + 1])[..4]).unwrap();
        assert_eq!(kind(line.receive()), io::ErrorKind::PermissionDenied);
        let (mut caller, mut socket, mut line) = met();
        let mut frame = sealed(&mut caller, b"question");
        frame[6] ^= 1;
        socket.write_all(&frame).unwrap();
        assert_eq!(kind(line.receive()), io::ErrorKind::PermissionDenied);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_question_or_none(bytes in prop::collection::vec(any::<u8>(), 0..MAX_BODY)) {
            if let Some((op, key, value)) = read_question(&bytes) {
                prop_assert_eq!(question(op, key, value), bytes);
            }
        }

        /// A caller without the secret may send any bytes: the hand-shake fails.
        #[test]
        fn any_bytes_are_heard_without_harm(greets: bool, bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
            let (mut one, other) = pair();
            let greeting = if greets { hello() } else { Vec::new() };
            one.stream.write_all(&[greeting, bytes].concat()).unwrap();
            one.stream.shutdown(Shutdown::Write).unwrap();
            prop_assert!(Line::answer(other, KEY, LONG).is_err());
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
