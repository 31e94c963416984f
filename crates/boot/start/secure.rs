//! The sealed connection between a rank and rank 0, which serves names, in a job that deckrun did not start.
//!
//! ```text
//!   rank                                              root (rank 0)
//!    │ magic 8 · version 4 · rank 4 · nonce 32  ──────►
//!    │ ◄──────  magic 8 · version 4 · zero 4 · nonce 32
//!    │ ◄══════  an empty frame: the root knows the secret, and answers this very hello
//!    │ an empty frame  ══════►                          so does the rank: it is admitted
//!    └ frames both ways
//!
//!   frame: length of the rest, 2 bytes, little-endian · ciphertext · tag 16
//! ```
//!
//! Frames are sealed by ChaCha20-Poly1305 (RFC 8439). Each direction has a key of its own, an HMAC-SHA-256 over
//! the two nonces and the rank under the job's secret, and its frames are numbered. Without the secret, a third
//! party can read nothing, and can make, change, repeat or leave out no frame. It can end the connection.
//!
//! Sans-I/O: bytes in, bytes out.

use chacha20poly1305::{
    ChaCha20Poly1305, KeyInit,
    aead::{Aead, Payload},
};
use udeck_auth::mac;

const MAGIC: [u8; 8] = *b"udeckstp";
const VERSION: u32 = 1;
/// Length of a hello, in bytes.
const HELLO: usize = 48;
const TAG: usize = 16;
const LENGTH: usize = 2;
/// Maximum number of plain bytes in a frame.
const MOST: usize = 16 << 10;

/// Reasons why a connection is over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Broken {
    #[error("it is no µDECK program")]
    Stranger,
    #[error(
        "its µDECK speaks version {theirs} of the start protocol and this one {VERSION}: use one release in a job"
    )]
    Version { theirs: u32 },
    #[error("it does not know the secret of this job")]
    Secret,
    #[error("it says that it is rank {0}, and there is no such rank")]
    NoSuchRank(u32),
}

/// One side of a connection.
pub(crate) struct Secure {
    secret: [u8; 32],
    nonce: [u8; 32],
    /// The role of this side, which tells who the other side is: for the root, one of its ranks; for a rank,
    /// the root.
    role: Role,
    keys: Option<(Direction, Direction)>,
    /// The other side has proved that it knows the secret.
    is_proven: bool,
    incoming: Vec<u8>,
    /// Bytes to be sent.
    pub outgoing: Vec<u8>,
}

#[derive(Clone, Copy)]
enum Role {
    Root { ranks: u32, peer: u32 },
    Rank(u32),
}

impl Secure {
    /// Makes the side of a rank, which speaks first. `nonce` is drawn for this connection.
    pub fn rank(rank: u32, secret: [u8; 32], nonce: [u8; 32]) -> Secure {
        let mut side = Secure::new(Role::Rank(rank), secret, nonce);
        side.outgoing = hello(rank, &nonce);
        side
    }

    /// Makes the side of rank 0 in a job of `ranks` ranks.
    pub fn root(ranks: u32, secret: [u8; 32], nonce: [u8; 32]) -> Secure {
        Secure::new(Role::Root { ranks, peer: 0 }, secret, nonce)
    }

    fn new(role: Role, secret: [u8; 32], nonce: [u8; 32]) -> Secure {
        Secure {
            secret,
            nonce,
            role,
            keys: None,
            is_proven: false,
            incoming: Vec::new(),
            outgoing: Vec::new(),
        }
    }

    /// Returns the rank at the other side, once it has proved that it is one of the job.
    pub fn peer(&self) -> Option<u32> {
        match self.role {
            Role::Root { peer, .. } if self.is_proven => Some(peer),
            Role::Rank(_) if self.is_proven => Some(0),
            _ => None,
        }
    }

    /// Takes received bytes, and appends their plain bytes to `plain`. After an error nothing of this
    /// connection can be trusted.
    pub fn receive(&mut self, bytes: &[u8], plain: &mut Vec<u8>) -> Result<(), Broken> {
        self.incoming.extend_from_slice(bytes);
        if self.keys.is_none() {
            // A stranger is recognized by its first bytes.
            let known = self.incoming.len().min(MAGIC.len());
            if self.incoming[..known] != MAGIC[..known] {
                return Err(Broken::Stranger);
            }
            let Some((hello, rest)) = self.incoming.split_first_chunk::<HELLO>() else { return Ok(()) };
            let (hello, rest) = (*hello, rest.to_vec());
            self.greeted(&hello)?;
            self.incoming = rest;
        }
        while let Some(frame) = self.next_frame() {
            let (_, opening) = self.keys.as_mut().expect("greeted");
            plain.extend(opening.open(&frame)?);
            if !std::mem::replace(&mut self.is_proven, true) && matches!(self.role, Role::Rank(_)) {
                self.seal_frame(&[]);
            }
        }
        Ok(())
    }

    /// Seals bytes for the other side, which has to be proven.
    pub fn send(&mut self, plain: &[u8]) {
        plain.chunks(MOST).for_each(|piece| self.seal_frame(piece));
    }

    fn greeted(&mut self, hello: &[u8; HELLO]) -> Result<(), Broken> {
        let word = |at: usize| u32::from_le_bytes([hello[at], hello[at + 1], hello[at + 2], hello[at + 3]]);
        if word(8) != VERSION {
            if let Role::Root { .. } = self.role {
                self.outgoing = self::hello(0, &self.nonce);
            }
            return Err(Broken::Version { theirs: word(8) });
        }
        let theirs: [u8; 32] = hello[16..].try_into().expect("32 bytes");
        let (rank, of_rank, of_root) = match &mut self.role {
            Role::Root { ranks, peer } => {
                if word(12) >= *ranks {
                    return Err(Broken::NoSuchRank(word(12)));
                }
                *peer = word(12);
                (*peer, theirs, self.nonce)
            }
            Role::Rank(rank) => (*rank, self.nonce, theirs),
        };
        let key =
            |label| Direction::new(mac(&self.secret, label, &[&rank.to_le_bytes(), &of_rank, &of_root]));
        let (down, up) = (key("udeck start: root to rank"), key("udeck start: rank to root"));
        if let Role::Root { .. } = self.role {
            self.keys = Some((down, up));
            self.outgoing = self::hello(0, &self.nonce);
            self.seal_frame(&[]);
        } else {
            self.keys = Some((up, down));
        }
        Ok(())
    }

    /// Returns the next whole frame, without its length.
    fn next_frame(&mut self) -> Option<Vec<u8>> {
        let (length, rest) = self.incoming.split_first_chunk::<LENGTH>()?;
        let frame = rest.get(..usize::from(u16::from_le_bytes(*length)))?.to_vec();
        self.incoming.drain(..LENGTH + frame.len());
        Some(frame)
    }

    fn seal_frame(&mut self, plain: &[u8]) {
        let Some((sealing, _)) = &mut self.keys else { return };
        let sealed = sealing.seal(plain);
        // The length is at most MOST + TAG.
        self.outgoing.extend((sealed.len() as u16).to_le_bytes());
        self.outgoing.extend(sealed);
    }
}

fn hello(rank: u32, nonce: &[u8; 32]) -> Vec<u8> {
    [&MAGIC[..], &VERSION.to_le_bytes(), &rank.to_le_bytes(), nonce].concat()
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

    fn nonce(&mut self) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&self.frames.to_le_bytes());
        self.frames += 1;
        nonce
    }

    fn seal(&mut self, plain: &[u8]) -> Vec<u8> {
        let length = ((plain.len() + TAG) as u16).to_le_bytes();
        let payload = Payload { msg: plain, aad: &length };
        let nonce = self.nonce();
        self.cipher.encrypt(&nonce.into(), payload).expect("shorter than the cipher's limit of 256 GB")
    }

    fn open(&mut self, frame: &[u8]) -> Result<Vec<u8>, Broken> {
        let length = (frame.len() as u16).to_le_bytes();
        let nonce = self.nonce();
        self.cipher.decrypt(&nonce.into(), Payload { msg: frame, aad: &length }).map_err(|_| Broken::Secret)
    }
}

#[cfg(test)]
mod tests;
