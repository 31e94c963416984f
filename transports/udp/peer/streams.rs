//! Streams: connection requests, their answers, and the bytes of VIs.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use quinn_proto::{Dir, ReadError, ReadableError, StreamId, VarInt, WriteError};
use udeck_session::Side;
use udeck_session::admission::wire::{Answer, HEAD, Request};
use udeck_session::poll::Bell;
use udeck_via::transport::Hello;
use udeck_via::{RejectKind, Rejection, Reliability};

use super::handshake::code;
use super::{ConnectionStatus, Peer, State};
use crate::core::{Core, ViLink};
use crate::wire::{ControlMessage, RESET_CANCELLED, RESET_CLOSED};

/// Upper bound in bytes of the data that wait for the control stream's flow control.
const MAX_CONTROL_BACKLOG: usize = 64 << 10;
/// Upper bound of the datagrams of one unreliable VI that wait for its link.
const MAX_DATAGRAMS: usize = 1024;

/// A stream, by its state.
pub enum Stream {
    /// This side has sent a request; the bytes of the answer that have arrived.
    Outgoing(Arc<PendingRequest>, Vec<u8>),
    /// The peer sends a request; the bytes of it that have arrived.
    Incoming(Vec<u8>),
    /// The peer's request is complete and not answered yet.
    Unanswered,
    /// The stream carries a VI's frames.
    Vi(Box<ViStream>),
}

/// The stream of a VI.
pub struct ViStream {
    pub link: Arc<ViLink>,
    /// The link is on the ready list.
    pub is_queued: bool,
    /// Number of bytes read behind the request or answer.
    read: u64,
    /// Offset at which the peer wants a confirmation, once the bytes before it were read.
    confirm_at: Option<u64>,
    /// Offset of the last confirmation that was requested of the peer, and below, of the last that arrived.
    confirm_requested: u64,
    confirmed: u64,
    /// Whether the VI is unreliable.
    unreliable: bool,
    /// Datagrams that wait for the link of an unreliable VI.
    pub datagrams: VecDeque<Bytes>,
}

/// A connection request of this side.
pub struct PendingRequest {
    pub ours: Hello,
    pub outcome: Mutex<Option<RequestOutcome>>,
    /// Offset behind the answer at which the peer wants a confirmation. It has accepted, but its answer has not
    /// arrived yet.
    pub confirm_at: Mutex<Option<u64>>,
    pub bell: Arc<Bell>,
}

/// Result of a connection request.
pub enum RequestOutcome {
    Accepted(Arc<ViLink>, Hello),
    Refused(Rejection),
    Ended(ConnectionStatus),
}

/// Why reading of a stream stopped.
#[derive(Debug)]
pub enum ReadEnd {
    /// No more bytes are there now.
    Blocked,
    /// The peer has finished the stream.
    Finished,
    /// The peer has reset the stream with this code.
    Reset(u32),
    /// The connection is over.
    Closed(ConnectionStatus),
}

impl ViStream {
    pub fn new(link: Arc<ViLink>, unreliable: bool) -> Self {
        let (read, confirm_requested, confirmed, datagrams) = (0, 0, 0, VecDeque::new());
        ViStream {
            link,
            is_queued: false,
            read,
            confirm_at: None,
            confirm_requested,
            confirmed,
            unreliable,
            datagrams,
        }
    }

    /// Puts the link on the ready list.
    pub fn mark_ready(&mut self, core: &Core) {
        if !std::mem::replace(&mut self.is_queued, true) {
            core.push_ready(&self.link);
        }
    }

    /// Queues a datagram. Returns `false` if the queue is full, or the VI is reliable.
    pub fn add(&mut self, core: &Core, datagram: Bytes) -> bool {
        if !self.unreliable {
            return false;
        }
        let has_place = self.datagrams.len() < MAX_DATAGRAMS;
        if has_place {
            self.datagrams.push_back(datagram);
        }
        self.mark_ready(core);
        has_place
    }
}

impl Stream {
    /// Ends the stream with its connection. Returns whether it is a VI's.
    pub(super) fn end(&mut self, core: &Core, why: &ConnectionStatus) -> bool {
        match self {
            Stream::Outgoing(call, _) => call.end(RequestOutcome::Ended(why.clone())),
            Stream::Vi(flow) => flow.mark_ready(core),
            Stream::Incoming(_) | Stream::Unanswered => {}
        }
        matches!(self, Stream::Vi(_))
    }
}

impl PendingRequest {
    pub fn end(&self, outcome: RequestOutcome) {
        self.outcome.lock().get_or_insert(outcome);
        self.bell.ring();
    }
}

/// Requests of this side.
impl Peer {
    /// Sends a request. Returns `None` if the peer's limit of streams is reached.
    pub fn open_request(
        &self,
        state: &mut State,
        request: &Request,
        call: &Arc<PendingRequest>,
    ) -> Option<StreamId> {
        let stream = state.quic.streams().open(Dir::Bi)?;
        state.unsent.insert(stream, request.encode());
        flush_unsent(state, stream);
        state.streams.insert(stream, Stream::Outgoing(call.clone(), Vec::new()));
        Some(stream)
    }

    /// Cancels a request whose caller waits no longer.
    pub fn cancel_request(&self, state: &mut State, stream: StreamId) {
        if matches!(state.streams.get(&stream), Some(Stream::Outgoing(..))) {
            state.streams.remove(&stream);
            state.unsent.remove(&stream);
            let _ = state.quic.send_stream(stream).reset(code(RESET_CANCELLED));
            let _ = state.quic.recv_stream(stream).stop(code(RESET_CANCELLED));
        }
    }

    /// Reads the answer to a request of this side.
    fn on_answer_readable(self: &Arc<Self>, state: &mut State, stream: StreamId) {
        let Some(Stream::Outgoing(call, mut bytes)) = state.streams.remove(&stream) else { return };
        let failed = |words| Rejection::new(RejectKind::Failed, words);
        let refused = match take_message(state, stream, &mut bytes, Answer::len_of) {
            MessageRead::Partial => {
                state.streams.insert(stream, Stream::Outgoing(call, bytes));
                return;
            }
            MessageRead::Ended => failed("it ended the request without an answer"),
            MessageRead::Whole => match Answer::decode(&bytes) {
                Ok(Answer::Accepted(theirs, _)) => {
                    let link = self.core.new_link(self, stream, (&call.ours, &theirs), Side::Asked);
                    let level = call.ours.reliability;
                    self.attach(state, stream, (&link, level), *call.confirm_at.lock());
                    return call.end(RequestOutcome::Accepted(link, theirs));
                }
                Ok(Answer::Refused(rejection)) => rejection,
                Err(_) => failed("its answer cannot be decoded"),
            },
        };
        self.drop_stream(state, stream);
        call.end(RequestOutcome::Refused(refused));
    }

    /// Gives the stream to a link. `confirm_at` is an offset at which the peer wants a confirmation already.
    pub fn attach(
        &self,
        state: &mut State,
        stream: StreamId,
        (link, level): (&Arc<ViLink>, Reliability),
        confirm_at: Option<u64>,
    ) {
        let mut flow = Box::new(ViStream::new(link.clone(), level == Reliability::Unreliable));
        flow.confirm_at = confirm_at;
        // Bytes or the end may have arrived before, and QUIC does not report them again.
        flow.mark_ready(&self.core);
        state.streams.insert(stream, Stream::Vi(flow));
    }
}

/// Requests of the other side.
impl Peer {
    /// Accepts new streams.
    pub(super) fn on_streams_opened(self: &Arc<Self>, state: &mut State) {
        while let Some(stream) = state.quic.streams().accept(Dir::Bi) {
            if state.control.stream.is_none() && !self.is_client {
                state.control.stream = Some(stream);
            } else {
                state.streams.insert(stream, Stream::Incoming(Vec::new()));
            }
            self.on_readable(state, stream);
        }
    }

    fn on_request_readable(self: &Arc<Self>, state: &mut State, stream: StreamId) {
        let Some(Stream::Incoming(mut bytes)) = state.streams.remove(&stream) else { return };
        match take_message(state, stream, &mut bytes, Request::len_of) {
            MessageRead::Partial => _ = state.streams.insert(stream, Stream::Incoming(bytes)),
            MessageRead::Ended => self.drop_stream(state, stream),
            MessageRead::Whole => match Request::decode(&bytes) {
                Ok(request) => {
                    state.streams.insert(stream, Stream::Unanswered);
                    let peer = self.rank(state);
                    self.core.push_request(self, stream, peer, request);
                }
                Err(_) => self.drop_stream(state, stream),
            },
        }
    }

    /// Answers a request. Returns `false` if the peer has cancelled it.
    pub fn send_answer(&self, state: &mut State, stream: StreamId, answer: &Answer) -> bool {
        if !matches!(state.streams.get(&stream), Some(Stream::Unanswered)) {
            return false;
        }
        if !matches!(state.quic.send_stream(stream).stopped(), Ok(None)) {
            self.drop_stream(state, stream);
            return false;
        }
        state.unsent.insert(stream, answer.encode());
        flush_unsent(state, stream);
        if !matches!(answer, Answer::Accepted(..)) {
            let _ = state.quic.recv_stream(stream).stop(code(RESET_CLOSED));
            state.streams.remove(&stream);
            finish_sent(state, stream);
        }
        true
    }

    fn drop_stream(&self, state: &mut State, stream: StreamId) {
        state.streams.remove(&stream);
        state.unsent.remove(&stream);
        let _ = state.quic.send_stream(stream).reset(code(RESET_CLOSED));
        let _ = state.quic.recv_stream(stream).stop(code(RESET_CLOSED));
    }
}

/// Reading and writing of streams.
impl Peer {
    /// Handles a stream that may be readable.
    pub(super) fn on_readable(self: &Arc<Self>, state: &mut State, stream: StreamId) {
        if state.control.stream == Some(stream) {
            return self.on_control_readable(state, stream);
        }
        match state.streams.get_mut(&stream) {
            Some(Stream::Outgoing(..)) => self.on_answer_readable(state, stream),
            // Requests are read of an authenticated peer only. When the handshake is complete, this is called again.
            Some(Stream::Incoming(_)) if matches!(state.status, ConnectionStatus::Established) => {
                self.on_request_readable(state, stream);
            }
            Some(Stream::Vi(flow)) => flow.mark_ready(&self.core),
            Some(Stream::Incoming(_) | Stream::Unanswered) | None => {}
        }
    }

    /// Reads a VI's stream, and appends the bytes to `chunks`.
    pub fn read(&self, state: &mut State, stream: StreamId, chunks: &mut Vec<Bytes>) -> ReadEnd {
        let (before, end) = (chunks.len(), read(state, stream, chunks));
        let came: u64 = chunks[before..].iter().map(|chunk| chunk.len() as u64).sum();
        if let Some(Stream::Vi(flow)) = state.streams.get_mut(&stream) {
            flow.is_queued = false;
            flow.read += came;
            if let Some(offset) = flow.confirm_at.take_if(|offset| *offset <= flow.read) {
                self.send_control(
                    state,
                    &ControlMessage::Confirmed { stream: stream.into(), offset }.encode(),
                );
            }
        }
        match &state.status {
            ConnectionStatus::Handshaking | ConnectionStatus::Established => end,
            over => ReadEnd::Closed(over.clone()),
        }
    }

    /// Writes as much as flow control allows. Returns `false` if the peer has stopped the stream.
    pub fn write(&self, state: &mut State, stream: StreamId, bytes: &mut Bytes) -> bool {
        if !flush_unsent(state, stream) {
            return true;
        }
        while !bytes.is_empty() {
            match state.quic.send_stream(stream).write_chunks(std::slice::from_mut(bytes)) {
                Ok(_) => {}
                Err(WriteError::Blocked) => return true,
                Err(WriteError::Stopped(_) | WriteError::ClosedStream) => return false,
            }
        }
        true
    }

    /// Closes a VI's stream: by FIN if `whole`, so that all written bytes arrive, otherwise by a reset.
    pub fn close_stream(&self, state: &mut State, stream: StreamId, whole: bool) {
        let whole = whole && state.unsent.remove(&stream).is_none();
        let finished = whole && state.quic.send_stream(stream).finish().is_ok();
        if !finished {
            let _ = state.quic.send_stream(stream).reset(code(RESET_CLOSED));
        }
        let _ = state.quic.recv_stream(stream).stop(code(RESET_CLOSED));
        state.streams.remove(&stream);
    }

    /// Whether the peer has confirmed `written` bytes of a VI's stream. If not, requests a confirmation.
    pub fn is_delivered(&self, state: &mut State, stream: StreamId, written: u64) -> bool {
        let Some(Stream::Vi(flow)) = state.streams.get_mut(&stream) else { return true };
        if flow.confirmed >= written || self.is_over() {
            return true;
        }
        if flow.confirm_requested == flow.confirmed && state.control.outgoing.len() < MAX_CONTROL_BACKLOG {
            flow.confirm_requested = written;
            self.send_control(
                state,
                &ControlMessage::Confirm { stream: stream.into(), offset: written }.encode(),
            );
        }
        false
    }

    /// Sends bytes on the control stream.
    pub(super) fn send_control(&self, state: &mut State, bytes: &[u8]) {
        // The backlog is bounded: a peer may send requests and never read the answers.
        if state.control.outgoing.len() < MAX_CONTROL_BACKLOG {
            state.control.outgoing.extend(bytes);
        }
        self.write_control(state);
    }

    pub(super) fn write_control(&self, state: &mut State) {
        let Some(stream) = state.control.stream else { return };
        while !state.control.outgoing.is_empty() {
            match state.quic.send_stream(stream).write(&state.control.outgoing) {
                Ok(written) => drop(state.control.outgoing.drain(..written)),
                Err(_) => return,
            }
        }
    }

    fn on_control_readable(self: &Arc<Self>, state: &mut State, stream: StreamId) {
        // The control stream is not read on a connection in any other state: its flow control window stays closed.
        if !matches!(state.status, ConnectionStatus::Handshaking | ConnectionStatus::Established) {
            return;
        }
        let mut chunks = Vec::new();
        read(state, stream, &mut chunks);
        chunks.iter().for_each(|chunk| state.control.incoming.extend_from_slice(chunk));
        if matches!(state.status, ConnectionStatus::Handshaking) {
            self.on_auth_message(state);
            if matches!(state.status, ConnectionStatus::Established) {
                // Requests may have arrived during the handshake.
                let streams: Vec<StreamId> = state.streams.keys().copied().collect();
                streams.into_iter().for_each(|stream| self.on_readable(state, stream));
            }
        }
        let incoming = std::mem::take(&mut state.control.incoming);
        let mut rest = &incoming[..];
        while let (ConnectionStatus::Established, Some((bytes, behind))) =
            (&state.status, rest.split_first_chunk())
        {
            let Some(control) = ControlMessage::decode(bytes) else {
                let why = ConnectionStatus::Lost(format!("{} broke the protocol", self.at));
                return self.close(state, crate::wire::CloseReason::ProtocolViolation, why);
            };
            rest = behind;
            self.on_control_message(state, control);
        }
        state.control.incoming = rest.to_vec();
    }

    pub(super) fn on_control_message(&self, state: &mut State, control: ControlMessage) {
        match control {
            ControlMessage::Confirm { stream, offset } => {
                let known = stream_id(stream).and_then(|id| state.streams.get_mut(&id));
                match known {
                    Some(Stream::Vi(flow)) if flow.read < offset => flow.confirm_at = Some(offset),
                    Some(Stream::Outgoing(call, _)) => *call.confirm_at.lock() = Some(offset),
                    // A stream that is closed here counts as read.
                    _ => self.send_control(state, &ControlMessage::Confirmed { stream, offset }.encode()),
                }
            }
            ControlMessage::Confirmed { stream, offset } => {
                let known = stream_id(stream).and_then(|id| state.streams.get_mut(&id));
                if let Some(Stream::Vi(flow)) = known {
                    flow.confirmed = flow.confirmed.max(offset.min(flow.confirm_requested));
                }
            }
        }
    }
}

/// Writes the rest of a stream's request or answer. Returns whether all of it was written.
pub fn flush_unsent(state: &mut State, stream: StreamId) -> bool {
    let Some(rest) = state.unsent.get_mut(&stream) else { return true };
    while !rest.is_empty() {
        match state.quic.send_stream(stream).write(rest) {
            Ok(written) => drop(rest.drain(..written)),
            Err(WriteError::Blocked) => return false,
            // Another event reports this end.
            Err(WriteError::Stopped(_) | WriteError::ClosedStream) => break,
        }
    }
    state.unsent.remove(&stream);
    true
}

/// Finishes the stream of a refused request once its answer is written.
pub fn finish_sent(state: &mut State, stream: StreamId) {
    if flush_unsent(state, stream) && !state.streams.contains_key(&stream) {
        let _ = state.quic.send_stream(stream).finish();
    }
}

/// Converts a number to a stream id, if it is a valid one.
pub fn stream_id(number: u64) -> Option<StreamId> {
    VarInt::from_u64(number).ok().map(StreamId::from)
}

enum MessageRead {
    Partial,
    Whole,
    Ended,
}

/// Reads more of a message whose head has its length, and no bytes behind it.
fn take_message<E>(
    state: &mut State,
    stream: StreamId,
    bytes: &mut Vec<u8>,
    len_of: impl Fn(&[u8; HEAD]) -> Result<usize, E>,
) -> MessageRead {
    loop {
        let len = match bytes.first_chunk::<HEAD>() {
            None => HEAD,
            Some(head) => match len_of(head) {
                Ok(len) => len,
                Err(_) => return MessageRead::Ended,
            },
        };
        if bytes.len() >= HEAD && bytes.len() >= len {
            return MessageRead::Whole;
        }
        let mut receiving = state.quic.recv_stream(stream);
        let Ok(mut chunks) = receiving.read(true) else { return MessageRead::Ended };
        let next = chunks.next(len - bytes.len());
        let _ = chunks.finalize();
        match next {
            Ok(Some(chunk)) => bytes.extend_from_slice(&chunk.bytes),
            Err(ReadError::Blocked) => return MessageRead::Partial,
            Ok(None) | Err(ReadError::Reset(_)) => return MessageRead::Ended,
        }
    }
}

fn read(state: &mut State, stream: StreamId, into: &mut Vec<Bytes>) -> ReadEnd {
    let mut receiving = state.quic.recv_stream(stream);
    let mut chunks = match receiving.read(true) {
        Ok(chunks) => chunks,
        Err(ReadableError::ClosedStream | ReadableError::IllegalOrderedRead) => return ReadEnd::Blocked,
    };
    // The flow control window bounds this loop.
    let end = loop {
        match chunks.next(usize::MAX) {
            Ok(Some(chunk)) => into.push(chunk.bytes),
            Ok(None) => break ReadEnd::Finished,
            Err(ReadError::Blocked) => break ReadEnd::Blocked,
            Err(ReadError::Reset(code)) => break ReadEnd::Reset(code.into_inner() as u32),
        }
    };
    let _ = chunks.finalize();
    end
}
