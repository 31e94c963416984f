//! Events of a trace.

use std::borrow::Cow;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use udeck_via::Reliability;
use udeck_via::mem::RemoteBuffer;
use udeck_via::transport::{
    Armed, Arrival, Body, Landed, PostedBuffer, Queue, Ready, Refused, TransferStatus,
};

/// An operation. Displayed as a line: seconds since the trace began, endpoint or waiter, call, and outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Time since the trace began, at the end of the operation.
    pub at: Duration,
    /// The endpoint or waiter of the operation.
    pub who: Who,
    /// The call.
    pub call: Call,
    /// Outcome of the call.
    pub outcome: Outcome,
}

/// An endpoint or waiter of the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Who {
    /// An endpoint, by the number of its connection ([`crate::Connection::number`]).
    Connection(u64),
    /// A waiter, by its number.
    Waiter(u64),
}

/// A call: a method of [`udeck_via::transport::ViEndpoint`] or [`udeck_via::transport::Waiter`]. Lengths are in bytes; `segments`
/// is their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are the methods' arguments")]
pub enum Call {
    /// Two VIs were connected; this is one end.
    Connect {
        reliability: Reliability,
        context: u64,
    },
    Send {
        immediate: Option<u32>,
        head: usize,
        body: usize,
    },
    /// `number`: identifies the post when it is over.
    Lend {
        immediate: Option<u32>,
        head: usize,
        segments: usize,
        len: usize,
        number: Option<u64>,
    },
    /// `number`: as for [`Call::Lend`].
    RdmaWrite {
        immediate: Option<u32>,
        segments: usize,
        len: usize,
        to: RemoteBuffer,
        number: Option<u64>,
    },
    /// `number`: as for [`Call::Lend`].
    RdmaRead {
        segments: usize,
        len: usize,
        from: RemoteBuffer,
        number: Option<u64>,
    },
    Fence,
    Receive,
    Ended,
    Receipt,
    Keep {
        number: u64,
    },
    WantRoom,
    Unread,
    Close {
        broken: bool,
    },
    Leave,
    Poll,
    Park {
        limit: Duration,
    },
    Arm,
}

/// Outcome of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "they are the contract's own fields")]
pub enum Outcome {
    /// The operation was done, or is under way.
    Done,
    /// The operation was refused: [`Refused`], in words.
    Refused(Cow<'static, str>),
    /// [`udeck_via::transport::ViEndpoint::keep`] knows no such buffer.
    Unknown,
    Arrived {
        kind: &'static str,
        immediate: Option<u32>,
        head: usize,
        len: usize,
    },
    Ended {
        number: u64,
        status: TransferStatus,
    },
    /// The operation was over when the call returned.
    Over(TransferStatus),
    Messages(u32),
    News(Ready),
    Armed(Armed),
}

impl Outcome {
    pub(super) fn of<T>(result: &Result<T, Refused>) -> Self {
        match result {
            Ok(_) => Outcome::Done,
            Err(refused) => Outcome::refused(refused),
        }
    }

    pub(super) fn rdma(result: &Result<Option<TransferStatus>, (Refused, PostedBuffer)>) -> Self {
        match result {
            Ok(None) => Outcome::Done,
            Ok(Some(status)) => Outcome::Over(*status),
            Err((refused, _)) => Outcome::refused(refused),
        }
    }

    pub(super) fn refused(refused: &Refused) -> Self {
        Outcome::Refused(match refused {
            Refused::Busy => "busy".into(),
            Refused::Closed => "closed".into(),
            Refused::Lost(why) => format!("lost: {why}").into(),
            Refused::Protection => "protection".into(),
            Refused::Unsupported => "unsupported".into(),
        })
    }

    pub(super) fn landed(landed: &Landed) -> Self {
        match landed {
            Landed::Arrival(arrival) => Outcome::arrived(arrival),
            Landed::Copied { immediate, len } => {
                Outcome::Arrived { kind: "inline", immediate: *immediate, head: 0, len: *len }
            }
        }
    }

    pub(super) fn arrived(arrival: &Arrival) -> Self {
        let (kind, head, len) = match &arrival.body {
            Body::Inline(bytes) => ("inline", 0, bytes.bytes().len()),
            Body::Lent(head, lent) => ("lent", head.bytes().len(), lent.len()),
            Body::Written(len) => ("written", 0, *len),
        };
        Outcome::Arrived { kind, immediate: arrival.immediate, head, len }
    }
}

impl Display for Event {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:12.6} {}: {} -> {}", self.at.as_secs_f64(), self.who, self.call, self.outcome)
    }
}

impl Display for Who {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Who::Connection(number) => write!(f, "connection {number}"),
            Who::Waiter(number) => write!(f, "waiter {number}"),
        }
    }
}

impl Display for Call {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Call::Connect { reliability, context } => {
                write!(f, "connect {reliability:?}, context {context}")
            }
            Call::Send { immediate, head, body } => {
                write!(f, "send {}{}", sizes(*head, *body), Immediate(*immediate))
            }
            Call::Lend { immediate, head, segments, len, number } => {
                let (sizes, immediate) = (sizes(*head, *len), Immediate(*immediate));
                write!(f, "lend {sizes} in {segments}{immediate}{}", Number(*number))
            }
            Call::RdmaWrite { immediate, segments, len, to, number } => {
                let (at, immediate) = (Remote(to), Immediate(*immediate));
                write!(f, "write {len} bytes in {segments} to {at}{immediate}{}", Number(*number))
            }
            Call::RdmaRead { segments, len, from, number } => {
                write!(f, "read {len} bytes in {segments} from {}{}", Remote(from), Number(*number))
            }
            Call::Fence => f.write_str("fence"),
            Call::Receive => f.write_str("receive"),
            Call::Ended => f.write_str("ended"),
            Call::Receipt => f.write_str("receipt"),
            Call::Keep { number } => write!(f, "keep no. {number}"),
            Call::WantRoom => f.write_str("want room"),
            Call::Unread => f.write_str("unread"),
            Call::Close { broken } => f.write_str(if *broken { "break" } else { "close" }),
            Call::Leave => f.write_str("leave"),
            Call::Poll => f.write_str("poll"),
            Call::Park { limit } => write!(f, "park {limit:?}"),
            Call::Arm => f.write_str("arm"),
        }
    }
}

impl Display for Outcome {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Done => f.write_str("done"),
            Outcome::Refused(why) => write!(f, "refused, {why}"),
            Outcome::Unknown => f.write_str("unknown"),
            Outcome::Arrived { kind, immediate, head, len } => {
                write!(f, "{kind} {}{}", sizes(*head, *len), Immediate(*immediate))
            }
            Outcome::Ended { number, status } => write!(f, "no. {number} {status:?}"),
            Outcome::Over(status) => write!(f, "over, {status:?}"),
            Outcome::Messages(count) => write!(f, "{count} messages"),
            Outcome::Armed(Armed::Yes) => f.write_str("armed"),
            Outcome::Armed(Armed::News) => f.write_str("not armed, there may be news"),
            Outcome::Armed(Armed::Never) => f.write_str("cannot"),
            Outcome::News(Ready { context, queue }) => {
                let queue = match queue {
                    Queue::Send => "send",
                    Queue::Receive => "receive",
                };
                write!(f, "{queue} queue of context {context}")
            }
        }
    }
}

fn sizes(head: usize, body: usize) -> String {
    if head == 0 { format!("{body} bytes") } else { format!("{head} + {body} bytes") }
}

struct Immediate(Option<u32>);

impl Display for Immediate {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |data| write!(f, ", immediate {data:#x}"))
    }
}

struct Number(Option<u64>);

impl Display for Number {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |number| write!(f, ", no. {number}"))
    }
}

struct Remote<'a>(&'a RemoteBuffer);

impl Display for Remote<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}+{}", self.0.handle.0, self.0.offset)
    }
}
