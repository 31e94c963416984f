//! One authenticated, encrypted stream of frames: [`SecureStream`], without I/O of its own.
//!
//! Each use has a [`Protocol`]: the connections between deckruns, those of the start of jobs that deckrun did not
//! start, and those with a host's table of names. Numbers are little-endian.
//!
//! ```text
//!  byte 0         8         12      16                48
//!       +---------+---------+-------+-----------------+
//!       | magic   | version | id    | nonce           |    Hello: from the caller, then from the callee (id 0)
//!       +---------+---------+-------+-----------------+
//!
//!  byte 0         4                4 + length     20 + length
//!       +---------+----------------+--------------+
//!       | length  | ciphertext     | tag          |         Frame
//!       +---------+----------------+--------------+
//!
//!   caller                                       callee
//!    │ Hello  ─────────────────────────────────►  looks the key of this id up
//!    │ ◄───────────────────────  Hello, and a frame of length 0: its proof
//!    │ a frame of length 0: its proof  ────────►
//!    └ frames both ways
//! ```
//!
//! The callee proves itself first: whoever listens in its place learns nothing that a caller would do for it.
//! A caller that has proved nothing costs a buffer of one hello, one frame of length 0, and one read. The
//! first 12 bytes keep their places for ever, so that two versions can tell each other that they differ.
//!
//! **Keys.** Each direction has a key of its own: the MAC, under the key that both sides know, of the
//! direction, the protocol's magic and version, the caller's id and both nonces. A frame therefore belongs to
//! one use, version, id, connection and direction, and is worth nothing anywhere else. Both nonces are drawn
//! for the connection, so neither side can be led by a recording to use a key again.
//!
//! **Frames** are sealed by ChaCha20-Poly1305 (RFC 8439), and their length is authenticated with them. The
//! cipher's nonce is the frame's number in its direction, and is not sent: a frame that was changed, left
//! out, repeated, moved or sent back is not accepted. No nonce is used twice under one key: the number grows
//! with each frame that is sealed, at one place ([`Direction::next_nonce`]), and 2^64 frames are out of
//! reach. The cipher compares tags in constant time.
//!
//! **Limits.** A third party can delay and end the connection, and see when and how much is sent. Who learns
//! the key later can read a recording.

use std::io::{self, Read, Write};
use std::ops::Range;

use chacha20poly1305::aead::AeadInOut;
use chacha20poly1305::{ChaCha20Poly1305, KeyInit, Tag};

use crate::{Nonce, mac};

/// Length of a hello, in bytes.
const HELLO: usize = 48;
/// Length of a frame's length, in bytes.
const HEADER: usize = size_of::<u32>();
/// Length of a frame's tag, in bytes.
const TAG: usize = 16;

/// Labels of the two directions' keys.
const FROM_CALLER: &str = "udeck stream: from the caller";
const FROM_CALLEE: &str = "udeck stream: from the callee";

/// One use of [`SecureStream`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protocol {
    /// The first bytes of each connection. No two uses have the same.
    pub magic: [u8; 8],
    /// Raised whenever the frames' payloads, or this module's layout, change.
    pub version: u32,
    /// Upper bound of a frame's payload, in bytes.
    pub max_frame: usize,
}

/// Reasons why a stream is over. Each use says them in its own words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamError {
    /// The other side does not speak this protocol.
    Stranger,
    /// The other side speaks another version of it.
    Version {
        /// Its version.
        theirs: u32,
    },
    /// The callee has no key for this id of the caller's.
    UnknownId(u32),
    /// The other side has not proved that it knows the key.
    Key,
    /// A frame is longer than the protocol allows. Its bytes were not awaited.
    TooLong {
        /// Length that it announced, in bytes.
        length: usize,
    },
    /// A frame was changed on its way, or is not of the other side, or not in its place.
    Forged,
}

/// Returns the key of the caller with this id; `None`: there is no such caller.
type KeyOf = Box<dyn Fn(u32) -> Option<[u8; 32]> + Send + Sync>;

enum Role {
    Caller { id: u32, key: [u8; 32] },
    Callee(KeyOf),
}

/// One side of a stream. It is fed what was read, and holds what is to be written.
///
/// The user of [`receive`](SecureStream::receive) then calls [`next_frame`](SecureStream::next_frame) until
/// it returns `None`. So what was received and not taken never exceeds one frame and one read.
pub struct SecureStream {
    protocol: Protocol,
    role: Role,
    nonce: Nonce,
    /// Id of the caller and the keys, once the other side's hello has come.
    greeted: Option<Greeted>,
    is_proven: bool,
    incoming: Vec<u8>,
    /// Position in `incoming` of the first frame that was not taken.
    taken: usize,
    outgoing: Vec<u8>,
    /// Position in `outgoing` of the first byte that was not written.
    written: usize,
}

struct Greeted {
    caller: u32,
    sealing: Direction,
    opening: Direction,
}

impl SecureStream {
    /// Makes the caller's side, which begins. `id` tells the callee which key is meant.
    ///
    /// # Errors
    /// When the system has no random bytes.
    pub fn call(protocol: Protocol, id: u32, key: [u8; 32]) -> io::Result<SecureStream> {
        Ok(SecureStream::new(protocol, Role::Caller { id, key }, draw()?))
    }

    /// Makes the callee's side. `key_of` returns the key of the caller with an id, if there is such a caller.
    ///
    /// # Errors
    /// When the system has no random bytes.
    pub fn answer(
        protocol: Protocol,
        key_of: impl Fn(u32) -> Option<[u8; 32]> + Send + Sync + 'static,
    ) -> io::Result<SecureStream> {
        Ok(SecureStream::new(protocol, Role::Callee(Box::new(key_of)), draw()?))
    }

    fn new(protocol: Protocol, role: Role, nonce: Nonce) -> SecureStream {
        let outgoing = match role {
            Role::Caller { id, .. } => hello(&protocol, id, &nonce),
            Role::Callee(_) => Vec::new(),
        };
        SecureStream {
            protocol,
            role,
            nonce,
            greeted: None,
            is_proven: false,
            incoming: Vec::new(),
            taken: 0,
            outgoing,
            written: 0,
        }
    }

    /// Returns the caller's id, once the other side has proved that it knows the key of that id.
    pub fn proven(&self) -> Option<u32> {
        self.greeted.as_ref().filter(|_| self.is_proven).map(|greeted| greeted.caller)
    }

    /// Adds received bytes. There may be an answer to write afterwards, even after an error.
    ///
    /// # Errors
    /// After an error nothing of this connection can be trusted.
    pub fn receive(&mut self, read: &[u8]) -> Result<(), StreamError> {
        self.incoming.drain(..self.taken);
        self.taken = 0;
        self.incoming.extend_from_slice(read);
        if self.greeted.is_none() {
            // A stranger is recognized by its first bytes.
            let known = self.incoming.len().min(self.protocol.magic.len());
            if self.incoming[..known] != self.protocol.magic[..known] {
                return Err(StreamError::Stranger);
            }
            let Some(hello) = self.incoming.first_chunk::<HELLO>().copied() else { return Ok(()) };
            self.taken = HELLO;
            self.greet(&hello)?;
        }
        if !self.is_proven && self.open_frame(0).map_err(|_| StreamError::Key)?.is_some() {
            self.is_proven = true;
            if let Role::Caller { .. } = self.role {
                self.seal_frame(&[]);
            }
        }
        Ok(())
    }

    /// Returns the payload of the next whole frame, if there is one.
    ///
    /// # Errors
    /// Those of [`SecureStream::receive`].
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, StreamError> {
        if !self.is_proven {
            return Ok(None);
        }
        Ok(self.open_frame(self.protocol.max_frame)?.map(|payload| &self.incoming[payload]))
    }

    /// Adds a frame to what is to be written.
    ///
    /// # Panics
    /// If the other side has not proved itself, or if the payload is longer than the protocol allows.
    pub fn send(&mut self, payload: &[u8]) {
        assert!(self.is_proven && payload.len() <= self.protocol.max_frame);
        self.seal_frame(payload);
    }

    /// Returns the bytes that are to be written.
    pub fn unsent(&self) -> &[u8] {
        &self.outgoing[self.written..]
    }

    /// Writes what is to be written.
    ///
    /// # Errors
    /// The stream's. If it takes no more for now ([`WouldBlock`](io::ErrorKind::WouldBlock)), the rest stays.
    pub fn write_to(&mut self, stream: &mut impl Write) -> io::Result<()> {
        while !self.unsent().is_empty() {
            match stream.write(self.unsent()) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(more) => self.written += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            // The rest is moved only when it is the smaller half: at most one byte for each that was written.
            if self.written >= self.outgoing.len() / 2 {
                self.outgoing.drain(..self.written);
                self.written = 0;
            }
        }
        Ok(())
    }

    /// Reads and writes until each side has proved itself to the other. If the stream blocks, its own time limit
    /// applies, such as that of a [`DeadlineStream`](crate::DeadlineStream). If it does not,
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) comes back, and a further call goes on.
    ///
    /// # Errors
    /// The stream's, [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if the other side has closed it; inside,
    /// what is wrong with the other side.
    pub fn handshake(&mut self, stream: &mut (impl Read + Write)) -> io::Result<Result<(), StreamError>> {
        let mut scratch = [0; 2 * HELLO];
        loop {
            self.write_to(stream)?;
            if self.is_proven {
                return Ok(Ok(()));
            }
            let length = match stream.read(&mut scratch) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if let Err(why) = self.receive(&scratch[..length]) {
                // The last bytes may be the version that this side speaks.
                let _ = self.write_to(stream);
                return Ok(Err(why));
            }
        }
    }

    /// Handles the other side's hello: makes the keys, and at the callee the answer with its proof.
    fn greet(&mut self, theirs: &[u8; HELLO]) -> Result<(), StreamError> {
        let word =
            |at: usize| u32::from_le_bytes([theirs[at], theirs[at + 1], theirs[at + 2], theirs[at + 3]]);
        let (version, id) = (word(8), word(12));
        let nonce: Nonce = std::array::from_fn(|at| theirs[16 + at]);
        if version != self.protocol.version {
            if let Role::Callee(_) = self.role {
                self.outgoing = hello(&self.protocol, 0, &self.nonce);
            }
            return Err(StreamError::Version { theirs: version });
        }
        let key = |label, key: &[u8; 32], caller: u32, nonces: [&Nonce; 2]| {
            let Protocol { magic, version, .. } = &self.protocol;
            let parts = [&magic[..], &version.to_le_bytes(), &caller.to_le_bytes(), nonces[0], nonces[1]];
            Direction::new(mac(key, label, &parts))
        };
        match &self.role {
            Role::Caller { id, key: shared } => {
                let nonces = [&self.nonce, &nonce];
                let (sealing, opening) =
                    (key(FROM_CALLER, shared, *id, nonces), key(FROM_CALLEE, shared, *id, nonces));
                self.greeted = Some(Greeted { caller: *id, sealing, opening });
            }
            Role::Callee(key_of) => {
                let shared = key_of(id).ok_or(StreamError::UnknownId(id))?;
                let nonces = [&nonce, &self.nonce];
                let (sealing, opening) =
                    (key(FROM_CALLEE, &shared, id, nonces), key(FROM_CALLER, &shared, id, nonces));
                self.greeted = Some(Greeted { caller: id, sealing, opening });
                self.outgoing = hello(&self.protocol, 0, &self.nonce);
                self.seal_frame(&[]);
            }
        }
        Ok(())
    }

    fn seal_frame(&mut self, payload: &[u8]) {
        let Some(Greeted { sealing, .. }) = &mut self.greeted else { return };
        // Cannot truncate: a payload has a bound of the protocol's.
        let header = (payload.len() as u32).to_le_bytes();
        let begin = self.outgoing.len() + HEADER;
        self.outgoing.reserve(HEADER + payload.len() + TAG);
        self.outgoing.extend_from_slice(&header);
        self.outgoing.extend_from_slice(payload);
        let tag = sealing.seal(&header, &mut self.outgoing[begin..]);
        self.outgoing.extend_from_slice(&tag);
    }

    /// Opens the next frame in its place, and returns where its payload is. An announced length is checked
    /// before a byte of the payload is awaited.
    fn open_frame(&mut self, longest: usize) -> Result<Option<Range<usize>>, StreamError> {
        let Some(Greeted { opening, .. }) = &mut self.greeted else { return Ok(None) };
        let Some((header, rest)) = self.incoming[self.taken..].split_first_chunk_mut::<HEADER>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*header) as usize;
        if length > longest {
            return Err(StreamError::TooLong { length });
        }
        let Some((payload, rest)) = rest.split_at_mut_checked(length) else { return Ok(None) };
        let Some(tag) = rest.first_chunk::<TAG>() else { return Ok(None) };
        opening.open(header, payload, tag)?;
        let begin = self.taken + HEADER;
        self.taken = begin + length + TAG;
        Ok(Some(begin..begin + length))
    }
}

/// One direction: its key, and the number of frames so far.
struct Direction {
    cipher: ChaCha20Poly1305,
    frames: u64,
}

impl Direction {
    fn new(key: [u8; 32]) -> Direction {
        Direction { cipher: ChaCha20Poly1305::new(&key.into()), frames: 0 }
    }

    fn next_nonce(&mut self) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&self.frames.to_le_bytes());
        self.frames += 1;
        nonce
    }

    fn seal(&mut self, header: &[u8; HEADER], payload: &mut [u8]) -> [u8; TAG] {
        let nonce = self.next_nonce();
        let sealed = self.cipher.encrypt_inout_detached(&nonce.into(), header, payload.into());
        sealed.expect("shorter than the cipher's limit of 256 GB").into()
    }

    /// Leaves the payload as it is if the tag is wrong.
    fn open(
        &mut self,
        header: &[u8; HEADER],
        payload: &mut [u8],
        tag: &[u8; TAG],
    ) -> Result<(), StreamError> {
        let (nonce, tag) = (self.next_nonce(), Tag::from(*tag));
        let opened = self.cipher.decrypt_inout_detached(&nonce.into(), header, payload.into(), &tag);
        opened.map_err(|_| StreamError::Forged)
    }
}

fn hello(protocol: &Protocol, id: u32, nonce: &Nonce) -> Vec<u8> {
    [&protocol.magic[..], &protocol.version.to_le_bytes(), &id.to_le_bytes(), nonce].concat()
}

fn draw() -> io::Result<Nonce> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce)?;
    Ok(nonce)
}

#[cfg(test)]
mod tests;
