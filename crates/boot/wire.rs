//! Messages between the launcher and a rank, and their layout in the stream.
//!
//! ```text
//!  byte 0        4                     4 + length
//!       +--------+---------------------+
//!       | length | payload (postcard)  |   length: u32, little-endian, at most MAX_FRAME
//!       +--------+---------------------+   payload: Request upwards, FromServer downwards
//! ```
//!
//! Both directions are decoded as if the other side were hostile: an announced length is checked before a byte
//! of it is awaited, lists have bounds, bytes left over are an error. The order of enum variants is part of the
//! protocol: changing it, or anything else here but adding at the end, takes a new [`VERSION`]. `Hello` and
//! `Failed(Refused)` keep their places for ever: two versions can still tell each other that they differ.

use std::{fmt, marker::PhantomData, net::IpAddr, sync::Arc, time::Duration};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeOwned, Error as _, SeqAccess, Visitor},
};

use udeck_auth::{RankKey, SealedTicket};

use crate::{MAX_RANKS, Placement};

/// The protocol version of this build.
pub const VERSION: u16 = 6;
/// Upper bound of a frame's payload, in bytes.
pub const MAX_FRAME: usize = 1 << 20;
/// Maximum number of names that an answer lists.
pub const MAX_LISTED: usize = 32;

const HEADER: usize = size_of::<u32>();

/// A request from a rank. The answer carries the same `id`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Number chosen by the rank, unique among its unanswered requests.
    pub id: u64,
    /// The requested call.
    pub call: Call,
}

/// Calls of a rank. A `wait` is counted from the request's arrival: the two sides' clocks need not agree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// The first request on a connection; answered by `Welcome`.
    Hello {
        /// The sender's [`VERSION`].
        version: u16,
    },
    /// Registers a name, exclusively.
    Register {
        /// The name.
        name: String,
        /// Data for the users of the name.
        value: Vec<u8>,
    },
    /// Removes a name of this rank.
    Unregister {
        /// The name.
        name: String,
    },
    /// Asks for the owner and the value of a name.
    Lookup {
        /// The name.
        name: String,
        /// How long to wait for the name; `None` for an immediate answer.
        wait: Option<Duration>,
        /// The rank that is to register it.
        maker: Maker,
    },
    /// Stores a value under a key; the last one wins.
    Put {
        /// The key.
        key: String,
        /// Its value.
        value: Vec<u8>,
    },
    /// Reads a stored value.
    Get {
        /// The key.
        key: String,
        /// How long to wait for the value; `None` for an immediate answer.
        wait: Option<Duration>,
        /// The rank that is to store it.
        maker: Maker,
    },
    /// Waits until every rank of the job has asked for the same.
    Fence {
        /// How long to wait.
        wait: Duration,
    },
    /// Says goodbye: this rank ends in an orderly way.
    Done,
    /// Asks for the end of a rank. Answered when that rank has ended and its end was reported, or when it still
    /// seems to be there after `wait`. The answer comes behind all other news.
    AwaitExit {
        /// The rank in question.
        rank: u32,
        /// How long to wait for the end of a rank that seems to be there. The end of a rank whose connection
        /// has closed is awaited in any case.
        wait: Duration,
    },
    /// Ends the whole job. To the others this rank is lost.
    Abort {
        /// The job's exit code.
        code: u8,
        /// The reason, in words.
        why: String,
    },
    /// Ends a request of this rank that waits. Neither of the two is answered.
    Cancel {
        /// The number of the request.
        id: u64,
    },
    /// Votes in an agreement of all ranks that are left. Answered by `Agreed` when all of them have voted.
    Agree {
        /// Number of agreements that this rank has taken part in.
        round: u64,
        /// This rank's vote.
        vote: Vote,
        /// How long to wait for the others.
        wait: Duration,
    },
}

/// A rank's vote in an agreement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vote {
    /// The question, which is the same at all voters.
    pub question: Question,
    /// The rank's value.
    pub value: u64,
}

/// Subject of an agreement, besides the list of the ranks that are left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Question {
    /// The settings of a group of the ranks that are left: those of its first member.
    Survivors,
    /// Bits that are set at all of them.
    Agree,
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Question::Survivors => "`survivors`",
            Question::Agree => "`agree`",
        })
    }
}

/// The ranks that are left, and what they agree on. The same at all of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agreement {
    /// Number of the agreement, from 0 on.
    pub round: u64,
    /// The ranks that voted, sorted: all that had not ended when the last of them came.
    #[serde(deserialize_with = "bounded::<_, _, { MAX_RANKS as usize }>")]
    pub ranks: Vec<u32>,
    /// The bits that are set in all values.
    pub all: u64,
    /// The value of the first of the ranks.
    pub first: u64,
}

/// The rank that is to make an awaited name or value. A wait ends as soon as that can no longer happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Maker {
    /// Any other rank; the wait ends when all of them have ended.
    Anyone,
    /// This rank; the wait ends when it has ended.
    Rank(u32),
    /// This rank, in a step that all ranks of the job take together; the wait ends when it has ended, or any
    /// rank is lost.
    Collective(u32),
}

/// Messages from the launcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromServer {
    /// The answer to a request.
    Reply {
        /// Number of the request.
        id: u64,
        /// The answer.
        reply: Reply,
    },
    /// News without a request.
    Event(Event),
    /// Proof of this rank's identity for another rank. Comes before an answer with a record that the other rank
    /// has registered.
    Ticket {
        /// The other rank.
        callee: u32,
        /// The ticket, which opens with this rank's key.
        sealed: SealedTicket,
    },
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The request failed.
    Failed(RequestError),
    /// The request is done.
    Ok,
    /// Answer to `Hello`.
    Welcome(Welcome),
    /// Answer to `Lookup` and `Get`. Shared: many ranks may wait for the same long value.
    Record(#[serde(with = "shared")] Arc<Record>),
    /// Answer to `Agree`. Shared by all voters.
    Agreed(#[serde(with = "shared")] Arc<Agreement>),
}

/// A rank's number and keys, and the description of its job.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// This rank, 0 to `size` − 1.
    pub rank: u32,
    /// The number of ranks in the job.
    pub size: u32,
    /// The job's secret, known to its ranks only; every connection between them proves it.
    pub secret: [u8; 32],
    /// A random number that names the job in messages and files. Not a secret.
    pub job: u64,
    /// The job's hosts, and which rank runs on which.
    pub placement: Placement,
    /// The address of this rank's host at which network listeners should bind; `None` if the launcher was told
    /// of none, for a job on one host.
    pub address: Option<IpAddr>,
    /// Key by which this rank alone proves that it is this rank.
    pub key: RankKey,
    /// Number of processors that the ranks of this rank's host may use, all together; 0 if the launcher gives
    /// it otherwise, or not.
    pub cpus: u32,
}

impl Welcome {
    /// Returns the ranks of this rank's host, in their order.
    pub fn neighbours(&self) -> impl Iterator<Item = u32> + '_ {
        self.placement.host_of(self.rank).into_iter().flat_map(|own| self.placement.ranks_of(own))
    }

    /// Tells whether that rank runs on this rank's host.
    pub fn is_neighbour(&self, rank: u32) -> bool {
        let own = self.placement.host_of(self.rank);
        own.is_some() && own == self.placement.host_of(rank)
    }

    /// Tells whether the numbers fit each other.
    pub(crate) fn is_consistent(&self) -> bool {
        self.rank < self.size && self.placement.size() == self.size
    }
}

impl fmt::Debug for Welcome {
    /// Leaves the secret and the key out: the text may end up in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Welcome { rank, size, job, placement, address, .. } = self;
        let hosts = placement.hosts().len();
        write!(
            f,
            "Welcome {{ rank: {rank}, size: {size}, job: {job:#x}, hosts: {hosts}, address: {address:?}, secret: .., key: .. }}"
        )
    }
}

/// The record of a name or key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The rank that registered or stored it.
    pub owner: u32,
    /// The registered or stored value.
    pub value: Vec<u8>,
}

/// A shared value is encoded as any other.
mod shared {
    use super::*;

    pub(super) fn serialize<T: Serialize, S: Serializer>(
        value: &Arc<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        T::serialize(value, serializer)
    }

    pub(super) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Arc<T>, D::Error> {
        T::deserialize(deserializer).map(Arc::new)
    }
}

/// Reasons why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequestError {
    /// The request is against the protocol's rules.
    Refused {
        /// The rule.
        why: String,
    },
    /// Another rank has registered the name already.
    NameTaken {
        /// The other rank.
        owner: u32,
    },
    /// There is no such name or key, and the wait, if there was one, has passed.
    NoSuch {
        /// The first existing names or keys, sorted.
        #[serde(deserialize_with = "bounded::<_, _, MAX_LISTED>")]
        existing: Vec<String>,
        /// Number of existing names or keys.
        total: u64,
    },
    /// There is no such name or key, and no other rank is left to make it.
    NobodyLeft,
    /// The wait of a fence or an agreement has passed.
    FenceLate {
        /// The ranks that had not come to it, sorted.
        #[serde(deserialize_with = "bounded::<_, _, { MAX_RANKS as usize }>")]
        missing: Vec<u32>,
    },
    /// The fence can never be complete: a rank has ended.
    FenceBroken {
        /// The rank that has ended.
        rank: u32,
        /// How it ended.
        how: String,
    },
    /// A bound would be exceeded.
    TooBig {
        /// The bounded quantity.
        what: String,
        /// The bound.
        limit: u64,
        /// The value that the request would have led to.
        got: u64,
    },
    /// The rank that made it, or is to make it, has ended.
    MakerEnded {
        /// The rank that has ended.
        rank: u32,
        /// How the rank was lost; `None` if it said goodbye.
        how: Option<String>,
    },
}

/// News about the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Event {
    /// A rank ended without saying goodbye.
    RankLost {
        /// The rank.
        rank: u32,
        /// How the rank ended: "killed by SIGSEGV".
        how: String,
    },
    /// A rank said goodbye.
    RankDone {
        /// The rank.
        rank: u32,
    },
    /// The connection to the launcher ended. Never sent: the client itself makes this event.
    LauncherGone,
}

/// Errors of bytes that are not of this protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// A frame is longer than the protocol allows.
    #[error("a frame of {length} bytes: at most {MAX_FRAME} are allowed")]
    FrameTooLong {
        /// Length of the frame, in bytes.
        length: u64,
    },
    /// A payload does not decode.
    #[error("a frame of {length} bytes that is no message of protocol version {VERSION} ({source})")]
    Undecodable {
        /// Length of the frame, in bytes.
        length: usize,
        /// The decoder's reason.
        source: postcard::Error,
    },
}

/// Appends `message` to `out` as one frame.
///
/// # Errors
/// [`WireError::FrameTooLong`] when it is longer than [`MAX_FRAME`]; nothing is appended then.
pub fn encode<T: Serialize>(message: &T, out: &mut Vec<u8>) -> Result<(), WireError> {
    let payload = encode_payload(message)?;
    // Cannot truncate: MAX_FRAME is far below 2^32.
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(&payload);
    Ok(())
}

/// Encodes `message` as a frame's payload.
///
/// # Errors
/// [`WireError::FrameTooLong`] when it is longer than [`MAX_FRAME`].
pub fn encode_payload<T: Serialize>(message: &T) -> Result<Vec<u8>, WireError> {
    let payload =
        postcard::to_allocvec(message).map_err(|source| WireError::Undecodable { length: 0, source })?;
    if payload.len() > MAX_FRAME {
        return Err(WireError::FrameTooLong { length: payload.len() as u64 });
    }
    Ok(payload)
}

/// Decodes the message of a frame's payload.
///
/// # Errors
/// [`WireError::Undecodable`], also when bytes are left over.
pub fn decode_payload<T: DeserializeOwned>(payload: &[u8]) -> Result<T, WireError> {
    let undecodable = |source| WireError::Undecodable { length: payload.len(), source };
    match postcard::take_from_bytes(payload).map_err(undecodable)? {
        (message, []) => Ok(message),
        _ => Err(undecodable(postcard::Error::DeserializeBadEncoding)),
    }
}

/// Cuts a stream of bytes into messages.
///
/// The caller of [`push`](Frames::push) then calls [`decode`](Frames::decode) until it returns `None`: the
/// buffer then never exceeds one frame and one push.
#[derive(Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
    /// Position in `bytes` of the first undecoded frame.
    start: usize,
}

impl Frames {
    /// Adds received bytes.
    pub fn push(&mut self, read: &[u8]) {
        self.bytes.drain(..self.start);
        self.start = 0;
        self.bytes.extend_from_slice(read);
    }

    /// Returns the bytes that were pushed and not decoded.
    pub fn into_rest(mut self) -> Vec<u8> {
        self.bytes.split_off(self.start)
    }

    /// Returns the next whole message, if there is one.
    ///
    /// # Errors
    /// After an error the stream has lost its place: close the connection.
    pub fn decode<T: DeserializeOwned>(&mut self) -> Result<Option<T>, WireError> {
        let Some((header, rest)) = self.bytes[self.start..].split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*header) as usize;
        if length > MAX_FRAME {
            return Err(WireError::FrameTooLong { length: length as u64 });
        }
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        let message = decode_payload(payload)?;
        self.start += HEADER + length;
        Ok(Some(message))
    }
}

/// Decodes a list of at most `N` items, for `#[serde(deserialize_with)]`. A plain `Vec` would let one byte of a
/// frame become the 24 bytes of an empty `String`.
///
/// # Errors
/// The decoder's, and a list that is longer.
pub fn bounded<'de, D, T, const N: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct AtMost<T, const N: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for AtMost<T, N> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {N} items")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(item) = items.next_element()? {
                if list.len() == N {
                    return Err(A::Error::custom("list too long"));
                }
                list.push(item);
            }
            Ok(list)
        }
    }

    deserializer.deserialize_seq(AtMost::<T, N>(PhantomData))
}

#[cfg(test)]
mod tests;
