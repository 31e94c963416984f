//! What the launcher and a rank say to each other, and how it lies in the stream.
//!
//! ```text
//!  byte 0        4                     4 + length
//!       +--------+---------------------+
//!       | length | payload (postcard)  |   length: u32, little-endian, at most MAX_FRAME
//!       +--------+---------------------+   payload: Request upwards, FromServer downwards
//! ```
//!
//! Both directions are decoded as if the other side were hostile: an announced length is checked before a byte of it is
//! awaited, lists have bounds, bytes left over are an error. The order of enum variants is part of the protocol:
//! changing it, or anything else here but adding at the end, takes a new [`VERSION`]. `Hello` and `Failed(Refused)` keep
//! their places for ever, so that two versions can still tell each other that they differ.

use std::{fmt, marker::PhantomData, net::IpAddr, sync::Arc, time::Duration};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeOwned, Error as _, SeqAccess, Visitor},
};

use udeck_auth::{RankKey, SealedTicket};

use crate::{MAX_RANKS, Placement};

/// The version that this build speaks.
pub const VERSION: u16 = 5;
/// The longest payload of a frame, in bytes.
pub const MAX_FRAME: usize = 1 << 20;
/// The most names that an answer lists.
pub const MAX_LISTED: usize = 32;

const HEADER: usize = size_of::<u32>();

/// From a rank. The answer carries the same `id`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the rank, unique among its unanswered requests.
    pub id: u64,
    /// What it wants.
    pub call: Call,
}

/// What a rank may ask for. A `wait` is counted from the request's arrival: the two sides' clocks need not agree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// The first request on a connection; answered by `Welcome`.
    Hello {
        /// The sender's [`VERSION`].
        version: u16,
    },
    /// Make a name known, exclusively.
    Register {
        /// The name.
        name: String,
        /// Whatever its users need to know.
        value: Vec<u8>,
    },
    /// Take an own name back.
    Unregister {
        /// The name.
        name: String,
    },
    /// Who owns this name?
    Lookup {
        /// The name.
        name: String,
        /// How long to wait for it; `None`: answer at once.
        wait: Option<Duration>,
        /// Who is to register it.
        maker: Maker,
    },
    /// Store a value under a key; the last one wins.
    Put {
        /// The key.
        key: String,
        /// Its value.
        value: Vec<u8>,
    },
    /// Read a stored value.
    Get {
        /// The key.
        key: String,
        /// How long to wait for it; `None`: answer at once.
        wait: Option<Duration>,
        /// Who is to store it.
        maker: Maker,
    },
    /// Wait until every rank of the job has asked for the same.
    Fence {
        /// How long to wait.
        wait: Duration,
    },
    /// Goodbye: this rank ends in an orderly way.
    Done,
    /// Answered when that rank has ended and its end was told, or when it seems to be there after `wait`. Behind whatever
    /// else there is to tell.
    AwaitExit {
        /// Which.
        rank: u32,
        /// How long to wait for the end of a rank that seems to be there. One whose connection has closed is waited for.
        wait: Duration,
    },
    /// End the whole job. To the others this rank is lost.
    Abort {
        /// The job's exit code.
        code: u8,
        /// Why, in words.
        why: String,
    },
}

/// Who is to make what a rank waits for. A wait ends as soon as that can no longer happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Maker {
    /// Any other rank: until all of them have ended.
    Anyone,
    /// This rank: until it has ended.
    Rank(u32),
    /// This rank, in a step that all ranks of the job take together: until it has ended, or any rank is lost.
    Collective(u32),
}

/// From the launcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromServer {
    /// The answer to a request.
    Reply {
        /// The request's.
        id: u64,
        /// The answer.
        reply: Reply,
    },
    /// News that nobody asked for.
    Event(Event),
    /// By what this rank proves to another who it is. Comes before an answer that tells of something which that one has
    /// registered.
    Ticket {
        /// The other rank.
        callee: u32,
        /// What opens with this rank's key.
        sealed: SealedTicket,
    },
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// It could not be done.
    Failed(Failure),
    /// It is done.
    Ok,
    /// To `Hello`.
    Welcome(Welcome),
    /// To `Lookup` and `Get`. Shared: many ranks may wait for the same long value.
    Record(#[serde(with = "shared")] Arc<Record>),
}

/// Who a rank is, and in which job.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// This rank, 0 to `size` − 1.
    pub rank: u32,
    /// The number of ranks in the job.
    pub size: u32,
    /// Known to the ranks of this job only; every connection between them proves it.
    pub secret: [u8; 32],
    /// A random number that names the job in messages and files. Not a secret.
    pub job: u64,
    /// The job's hosts, and which rank runs on which.
    pub placement: Placement,
    /// The address of this rank's host to which what listens on a network should bind; `None` when the launcher was
    /// told of none, for a job on one host.
    pub address: Option<IpAddr>,
    /// What this rank, and nobody else, proves by that it is this rank.
    pub key: RankKey,
    /// How many processors the ranks of this rank's host may use, all together; 0: the launcher says it otherwise, or not.
    pub cpus: u32,
}

impl Welcome {
    /// The ranks of this rank's host, in their order.
    pub fn neighbours(&self) -> impl Iterator<Item = u32> + '_ {
        self.placement.host_of(self.rank).into_iter().flat_map(|own| self.placement.ranks_of(own))
    }

    /// Whether that rank runs on this rank's host.
    pub fn is_neighbour(&self, rank: u32) -> bool {
        let own = self.placement.host_of(self.rank);
        own.is_some() && own == self.placement.host_of(rank)
    }

    /// Whether the numbers fit each other.
    pub(crate) fn is_consistent(&self) -> bool {
        self.rank < self.size && self.placement.size() == self.size
    }
}

impl fmt::Debug for Welcome {
    /// Leaves the secret and the key out: this ends up in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Welcome { rank, size, job, placement, address, .. } = self;
        let hosts = placement.hosts().len();
        write!(
            f,
            "Welcome {{ rank: {rank}, size: {size}, job: {job:#x}, hosts: {hosts}, address: {address:?}, secret: .., key: .. }}"
        )
    }
}

/// A name or a key that exists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The rank that registered or stored it.
    pub owner: u32,
    /// What it registered or stored.
    pub value: Vec<u8>,
}

/// A shared record travels as any other.
mod shared {
    use super::*;

    pub(super) fn serialize<S: Serializer>(record: &Arc<Record>, serializer: S) -> Result<S::Ok, S::Error> {
        Record::serialize(record, serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<Record>, D::Error> {
        Record::deserialize(deserializer).map(Arc::new)
    }
}

/// Why a request could not be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Failure {
    /// Against the protocol's rules.
    Refused {
        /// Which rule.
        why: String,
    },
    /// Somebody has registered the name already.
    NameTaken {
        /// That rank.
        owner: u32,
    },
    /// There is no such name or key, and if a wait was asked for, it has passed.
    NoSuch {
        /// The first ones that do exist, sorted.
        #[serde(deserialize_with = "bounded::<_, _, MAX_LISTED>")]
        existing: Vec<String>,
        /// How many exist.
        total: u64,
    },
    /// There is no such name or key, and no other rank is left to make it.
    NobodyLeft,
    /// The fence's wait has passed.
    FenceLate {
        /// The ranks that had not come to it, sorted.
        #[serde(deserialize_with = "bounded::<_, _, { MAX_RANKS as usize }>")]
        missing: Vec<u32>,
    },
    /// The fence can never be complete: a rank has ended.
    FenceBroken {
        /// That rank.
        rank: u32,
        /// How it ended.
        how: String,
    },
    /// A bound was passed.
    TooBig {
        /// What is bounded.
        what: String,
        /// The bound.
        limit: u64,
        /// What it would have been.
        got: u64,
    },
    /// The rank that made it, or is to make it, has ended.
    MakerEnded {
        /// That rank.
        rank: u32,
        /// How it was lost; `None`: it said goodbye.
        how: Option<String>,
    },
}

/// News about the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Event {
    /// A rank ended without saying goodbye.
    RankLost {
        /// Which.
        rank: u32,
        /// What became of it: "killed by SIGSEGV".
        how: String,
    },
    /// A rank said goodbye.
    RankDone {
        /// Which.
        rank: u32,
    },
    /// The connection to the launcher ended. Never sent: the client says so by itself.
    LauncherGone,
}

/// Bytes that are not this protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// A frame longer than the protocol allows.
    #[error("a frame of {length} bytes: at most {MAX_FRAME} are allowed")]
    FrameTooLong {
        /// Its length in bytes.
        length: u64,
    },
    /// A payload that does not decode.
    #[error("a frame of {length} bytes that is no message of protocol version {VERSION} ({source})")]
    Undecodable {
        /// Its length in bytes.
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
    let payload =
        postcard::to_allocvec(message).map_err(|source| WireError::Undecodable { length: 0, source })?;
    if payload.len() > MAX_FRAME {
        return Err(WireError::FrameTooLong { length: payload.len() as u64 });
    }
    // Cannot truncate: MAX_FRAME is far below 2^32.
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(&payload);
    Ok(())
}

/// Cuts a stream of bytes into messages.
///
/// Who calls [`push`](Frames::push) then calls [`decode`](Frames::decode) until it has no more: the buffer then never
/// exceeds one frame and one push.
#[derive(Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
    /// Where in `bytes` the first undecoded frame begins.
    start: usize,
}

impl Frames {
    /// Adds what was read.
    pub fn push(&mut self, read: &[u8]) {
        self.bytes.drain(..self.start);
        self.start = 0;
        self.bytes.extend_from_slice(read);
    }

    /// What was pushed and not decoded.
    pub fn into_rest(mut self) -> Vec<u8> {
        self.bytes.split_off(self.start)
    }

    /// The next whole message, if there is one.
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
        let message = match postcard::take_from_bytes(payload) {
            Ok((message, [])) => message,
            Ok((_, _left_over)) => {
                return Err(WireError::Undecodable {
                    length,
                    source: postcard::Error::DeserializeBadEncoding,
                });
            }
            Err(source) => return Err(WireError::Undecodable { length, source }),
        };
        self.start += HEADER + length;
        Ok(Some(message))
    }
}

/// A list of at most `N` items, for `#[serde(deserialize_with)]`. A plain `Vec` would let one byte of a frame become the
/// 24 bytes of an empty `String`.
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
