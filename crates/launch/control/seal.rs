//! Frames of a control connection, each with a code that can be made only with the host's control key.
//!
//! ```text
//!  byte 0        4                     4 + length            36 + length
//!       +--------+---------------------+---------------------+
//!       | length | payload (postcard)  | code                |
//!       +--------+---------------------+---------------------+
//! ```
//!
//! The code is an HMAC-SHA-256 ([`udeck_auth::mac`]) over the frame's number in its direction (not sent),
//! length and payload, under a key of this connection and direction ([`super::auth`]). A third party can
//! therefore make, change, leave out, repeat, move or send back no frame. It can end the connection, and read
//! everything.

use serde::{Serialize, de::DeserializeOwned};
use udeck_auth::{Proof, is_same, mac};
use udeck_boot::wire::{Frames, MAX_FRAME, WireError, encode};

use super::error::ControlError;

/// Length of a frame's code, in bytes.
const CODE_LEN: usize = size_of::<Proof>();

const HEADER: usize = size_of::<u32>();

/// One direction of a connection: its key, and the number of frames so far.
pub(crate) struct Direction {
    key: [u8; 32],
    frames: u64,
}

/// A connection's two directions, as seen by one side.
pub(crate) struct Keys {
    pub(crate) outgoing: Direction,
    pub(crate) incoming: Direction,
}

impl Direction {
    pub(crate) fn new(key: [u8; 32]) -> Direction {
        Direction { key, frames: 0 }
    }

    /// Returns the code of the next frame.
    fn code(&mut self, frame: &[u8]) -> Proof {
        let code = mac(&self.key, "deckrun frame", &[&self.frames.to_le_bytes(), frame]);
        self.frames += 1;
        code
    }

    /// Encodes `message` as the next frame.
    pub(crate) fn seal<T: Serialize>(&mut self, message: &T) -> Result<Vec<u8>, WireError> {
        let mut frame = Vec::new();
        encode(message, &mut frame)?;
        let code = self.code(&frame);
        frame.extend_from_slice(&code);
        Ok(frame)
    }
}

/// Cuts received bytes into frames, and rejects a frame with a wrong code. To be emptied after each push, as
/// [`Frames`].
pub(crate) struct Opener {
    direction: Direction,
    bytes: Vec<u8>,
    /// Position in `bytes` of the next frame.
    start: usize,
}

impl Opener {
    pub(crate) fn new(direction: Direction) -> Opener {
        Opener { direction, bytes: Vec::new(), start: 0 }
    }

    /// Adds received bytes.
    pub(crate) fn push(&mut self, read: &[u8]) {
        self.bytes.drain(..self.start);
        self.start = 0;
        self.bytes.extend_from_slice(read);
    }

    /// Returns the next whole message, if there is one. After an error nothing of this connection can be
    /// trusted.
    pub(crate) fn decode<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ControlError> {
        let rest = &self.bytes[self.start..];
        let Some(header) = rest.first_chunk::<HEADER>() else { return Ok(None) };
        let length = u32::from_le_bytes(*header) as usize;
        if length > MAX_FRAME {
            return Err(WireError::FrameTooLong { length: length as u64 }.into());
        }
        let Some((frame, rest)) = rest.split_at_checked(HEADER + length) else { return Ok(None) };
        let Some(code) = rest.first_chunk::<CODE_LEN>() else { return Ok(None) };
        if !is_same(&self.direction.code(frame), code) {
            return Err(ControlError::Forged);
        }
        let mut frames = Frames::default();
        frames.push(frame);
        self.start += frame.len() + CODE_LEN;
        Ok(frames.decode()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::wire::ToNode;

    const KEY: [u8; 32] = [7; 32];

    fn messages() -> Vec<ToNode> {
        (0..4).map(|number| ToNode::Signal { number }).collect()
    }

    fn frames() -> Vec<Vec<u8>> {
        let mut direction = Direction::new(KEY);
        messages().iter().map(|message| direction.seal(message).unwrap()).collect()
    }

    /// Returns the messages of these frames, pushed in pieces, and whether an error ended them.
    fn opened(frames: &[Vec<u8>], piece: usize) -> (Vec<ToNode>, bool) {
        let mut opener = Opener::new(Direction::new(KEY));
        let mut got = Vec::new();
        for bytes in frames.concat().chunks(piece) {
            opener.push(bytes);
            loop {
                match opener.decode() {
                    Ok(Some(message)) => got.push(message),
                    Ok(None) => break,
                    Err(_) => return (got, true),
                }
            }
        }
        (got, false)
    }

    #[test]
    fn frames_come_back_however_they_are_cut() {
        for piece in [1, 3, 1000] {
            assert_eq!(opened(&frames(), piece), (messages(), false));
        }
    }

    #[test]
    fn no_frame_is_taken_that_was_changed_left_out_repeated_moved_or_made_for_somebody_else() {
        let right = frames();
        let [a, b, c, d] = &right[..] else { panic!() };
        for stream in [
            [a, b, b, c].map(Clone::clone),
            [a, b, d, c].map(Clone::clone),
            [a, b, d, d].map(Clone::clone),
            [a.clone(), b.clone(), Direction::new([8; 32]).seal(&messages()[2]).unwrap(), d.clone()],
        ] {
            assert_eq!(opened(&stream, 1000), (messages()[..2].to_vec(), true));
        }
        for at in 0..c.len() {
            let mut changed = right.clone();
            changed[2][at] ^= 1;
            let (got, _) = opened(&changed, 1000);
            assert_eq!(got, messages()[..2], "byte {at}");
        }
    }

    #[test]
    fn a_length_beyond_the_bound_is_refused_before_its_bytes_come() {
        for length in [MAX_FRAME as u32 + 1, u32::MAX] {
            assert!(opened(&[length.to_le_bytes().to_vec()], 4).1);
        }
    }
}
