//! Streams: requests, answers, and the bytes of VIs.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use quinn_proto::{Dir, ReadError, ReadableError, StreamId, VarInt, WriteError};
use udeck_session::Side;
use udeck_session::admission::wire::{Answer, HEAD, Request};
use udeck_session::poll::Bell;
use udeck_via::Reliability;
use udeck_via::transport::Hello;

use super::handshake::code;
use super::{Peer, Standing, State};
use crate::core::{Core, QuicLink};
use crate::wire::{Control, OVER, WITHDRAWN};

/// Bytes for the control stream that the peer makes no room for.
const UNREAD: usize = 64 << 10;
/// Datagrams of one unreliable VI that wait for its link's lock.
const DATAGRAMS: usize = 1024;

/// A stream, by what it is for at the moment.
pub enum Stream {
    /// This side has asked, and waits for the answer, which is this so far.
    Calling(Arc<Call>, Vec<u8>),
    /// The other side asks: this is what it has said so far.
    Requesting(Vec<u8>),
    /// The other side has asked, and nobody has answered yet.
    Asked,
    /// A VI's.
    Linked(Box<Flow>),
}

/// A VI's stream.
pub struct Flow {
    pub link: Arc<QuicLink>,
    /// The link is listed as having something to take.
    pub listed: bool,
    /// Bytes read behind the request or answer.
    read: u64,
    /// The peer wants to know when so many bytes were read.
    asked: Option<u64>,
    /// The peer was asked about so many bytes, and has confirmed so many.
    asking: u64,
    confirmed: u64,
    /// Whether it is an unreliable VI's.
    unreliable: bool,
    /// Messages of an unreliable VI.
    pub datagrams: VecDeque<Bytes>,
}

/// A request of this side.
pub struct Call {
    pub ours: Hello,
    pub outcome: Mutex<Option<Outcome>>,
    /// The peer has accepted, and asks about bytes behind its answer, which has not come yet.
    pub asked: Mutex<Option<u64>>,
    pub bell: Arc<Bell>,
}

/// What came of a request.
pub enum Outcome {
    Accepted(Arc<QuicLink>, Hello),
    Refused(Answer),
    Ended(Standing),
}

/// Where reading a stream has come to.
#[derive(Debug)]
pub enum Read {
    /// There is no more now.
    Blocked,
    /// The other side has said all.
    Finished,
    /// The other side has broken it off.
    Reset(u32),
    /// The connection is over.
    Over(Standing),
}

impl Flow {
    pub fn new(link: Arc<QuicLink>, unreliable: bool) -> Self {
        let (read, asking, confirmed, datagrams) = (0, 0, 0, VecDeque::new());
        Flow { link, listed: false, read, asked: None, asking, confirmed, unreliable, datagrams }
    }

    /// The link has something to take.
    pub fn list(&mut self, core: &Core) {
        if !std::mem::replace(&mut self.listed, true) {
            core.note_ready(&self.link);
        }
    }

    /// A datagram for it; `false`: there is no place.
    pub fn add(&mut self, core: &Core, datagram: Bytes) -> bool {
        if !self.unreliable {
            return false;
        }
        let has_place = self.datagrams.len() < DATAGRAMS;
        if has_place {
            self.datagrams.push_back(datagram);
        }
        self.list(core);
        has_place
    }
}

impl Stream {
    /// The connection is over. Whether it is still a VI's.
    pub(super) fn end(&mut self, core: &Core, why: &Standing) -> bool {
        match self {
            Stream::Calling(call, _) => call.end(Outcome::Ended(why.clone())),
            Stream::Linked(flow) => flow.list(core),
            Stream::Requesting(_) | Stream::Asked => {}
        }
        matches!(self, Stream::Linked(_))
    }
}

impl Call {
    pub fn end(&self, outcome: Outcome) {
        self.outcome.lock().get_or_insert(outcome);
        self.bell.ring();
    }
}

/// This side's requests.
impl Peer {
    /// Asks for a connection. `None`: the other side takes no more streams now.
    pub fn ask(&self, state: &mut State, request: &Request, call: &Arc<Call>) -> Option<StreamId> {
        let stream = state.quic.streams().open(Dir::Bi)?;
        state.unsent.insert(stream, request.encode());
        flush_unsent(state, stream);
        state.streams.insert(stream, Stream::Calling(call.clone(), Vec::new()));
        Some(stream)
    }

    /// Who has asked does not wait any longer.
    pub fn withdraw(&self, state: &mut State, stream: StreamId) {
        if matches!(state.streams.get(&stream), Some(Stream::Calling(..))) {
            state.streams.remove(&stream);
            state.unsent.remove(&stream);
            let _ = state.quic.send_stream(stream).reset(code(WITHDRAWN));
            let _ = state.quic.recv_stream(stream).stop(code(WITHDRAWN));
        }
    }

    /// An answer may have come.
    fn hear_answer(self: &Arc<Self>, state: &mut State, stream: StreamId) {
        let Some(Stream::Calling(call, mut bytes)) = state.streams.remove(&stream) else { return };
        let refused = match take_message(state, stream, &mut bytes, Answer::len_of) {
            Message::Partial => {
                state.streams.insert(stream, Stream::Calling(call, bytes));
                return;
            }
            Message::Ended => Answer::Rejected("it broke off the request".into()),
            Message::Whole => match Answer::decode(&bytes) {
                Ok(Answer::Accepted(theirs, _)) => {
                    let link = self.core.establish(self, stream, (&call.ours, &theirs), Side::Asked);
                    let level = call.ours.reliability;
                    self.attach(state, stream, (&link, level), *call.asked.lock());
                    return call.end(Outcome::Accepted(link, theirs));
                }
                Ok(refused) => refused,
                Err(_) => Answer::Rejected("its answer makes no sense".into()),
            },
        };
        self.drop_stream(state, stream);
        call.end(Outcome::Refused(refused));
    }

    /// The stream is that link's from now on. `asked`: the peer wants to know already when so many bytes were read.
    pub fn attach(
        &self,
        state: &mut State,
        stream: StreamId,
        (link, level): (&Arc<QuicLink>, Reliability),
        asked: Option<u64>,
    ) {
        let mut flow = Box::new(Flow::new(link.clone(), level == Reliability::Unreliable));
        flow.asked = asked;
        // What has come behind the answer, or the end, was told before.
        flow.list(&self.core);
        state.streams.insert(stream, Stream::Linked(flow));
    }
}

/// The other side's requests.
impl Peer {
    /// New streams.
    pub(super) fn opened(self: &Arc<Self>, state: &mut State) {
        while let Some(stream) = state.quic.streams().accept(Dir::Bi) {
            if state.control.stream.is_none() && !self.called {
                state.control.stream = Some(stream);
            } else {
                state.streams.insert(stream, Stream::Requesting(Vec::new()));
            }
            self.readable(state, stream);
        }
    }

    fn hear_request(self: &Arc<Self>, state: &mut State, stream: StreamId) {
        let Some(Stream::Requesting(mut bytes)) = state.streams.remove(&stream) else { return };
        match take_message(state, stream, &mut bytes, Request::len_of) {
            Message::Partial => _ = state.streams.insert(stream, Stream::Requesting(bytes)),
            Message::Ended => self.drop_stream(state, stream),
            Message::Whole => match Request::decode(&bytes) {
                Ok(request) => {
                    state.streams.insert(stream, Stream::Asked);
                    let peer = self.rank(state);
                    self.core.put_request(self, stream, peer, request);
                }
                Err(_) => self.drop_stream(state, stream),
            },
        }
    }

    /// Gives the answer to a request. `false`: there is nobody to hear it.
    pub fn answer(&self, state: &mut State, stream: StreamId, answer: &Answer) -> bool {
        if !matches!(state.streams.get(&stream), Some(Stream::Asked)) {
            return false;
        }
        if !matches!(state.quic.send_stream(stream).stopped(), Ok(None)) {
            self.drop_stream(state, stream);
            return false;
        }
        state.unsent.insert(stream, answer.encode());
        flush_unsent(state, stream);
        if !matches!(answer, Answer::Accepted(..)) {
            let _ = state.quic.recv_stream(stream).stop(code(OVER));
            state.streams.remove(&stream);
            finish_sent(state, stream);
        }
        true
    }

    fn drop_stream(&self, state: &mut State, stream: StreamId) {
        state.streams.remove(&stream);
        state.unsent.remove(&stream);
        let _ = state.quic.send_stream(stream).reset(code(OVER));
        let _ = state.quic.recv_stream(stream).stop(code(OVER));
    }
}

/// Bytes.
impl Peer {
    /// Something can be read of a stream, perhaps.
    pub(super) fn readable(self: &Arc<Self>, state: &mut State, stream: StreamId) {
        if state.control.stream == Some(stream) {
            return self.hear_control(state, stream);
        }
        match state.streams.get_mut(&stream) {
            Some(Stream::Calling(..)) => self.hear_answer(state, stream),
            // Only of who has proved who it is: by then, the control stream has been read.
            Some(Stream::Requesting(_)) if matches!(state.standing, Standing::Stands) => {
                self.hear_request(state, stream);
            }
            Some(Stream::Linked(flow)) => flow.list(&self.core),
            Some(Stream::Requesting(_) | Stream::Asked) | None => {}
        }
    }

    /// Reads what has come for a VI, at the end of `chunks`.
    pub fn read(&self, state: &mut State, stream: StreamId, chunks: &mut Vec<Bytes>) -> Read {
        let (before, end) = (chunks.len(), read(state, stream, chunks));
        let came: u64 = chunks[before..].iter().map(|chunk| chunk.len() as u64).sum();
        if let Some(Stream::Linked(flow)) = state.streams.get_mut(&stream) {
            flow.listed = false;
            flow.read += came;
            if let Some(offset) = flow.asked.take_if(|offset| *offset <= flow.read) {
                self.say(state, &Control::Confirmed { stream: stream.into(), offset }.encode());
            }
        }
        match &state.standing {
            Standing::Shaking | Standing::Stands => end,
            over => Read::Over(over.clone()),
        }
    }

    /// Writes as much as there is room for. `false`: nobody reads the stream any more.
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

    /// A VI's connection is over. `whole`: all that was written is to arrive.
    pub fn leave(&self, state: &mut State, stream: StreamId, whole: bool) {
        let whole = whole && state.unsent.remove(&stream).is_none();
        let finished = whole && state.quic.send_stream(stream).finish().is_ok();
        if !finished {
            let _ = state.quic.send_stream(stream).reset(code(OVER));
        }
        let _ = state.quic.recv_stream(stream).stop(code(OVER));
        state.streams.remove(&stream);
    }

    /// Whether the peer has read so many bytes of a VI's stream. If that is not known, it is asked.
    pub fn has_arrived(&self, state: &mut State, stream: StreamId, written: u64) -> bool {
        let Some(Stream::Linked(flow)) = state.streams.get_mut(&stream) else { return true };
        if flow.confirmed >= written || self.is_over() {
            return true;
        }
        if flow.asking == flow.confirmed && state.control.outgoing.len() < UNREAD {
            flow.asking = written;
            self.say(state, &Control::Confirm { stream: stream.into(), offset: written }.encode());
        }
        false
    }

    /// Says something on the control stream.
    pub(super) fn say(&self, state: &mut State, bytes: &[u8]) {
        // A peer that asks on and on and reads no answer gets no more of them.
        if state.control.outgoing.len() < UNREAD {
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

    fn hear_control(self: &Arc<Self>, state: &mut State, stream: StreamId) {
        // Of anybody else, nothing more is read: its window stays shut.
        if !matches!(state.standing, Standing::Shaking | Standing::Stands) {
            return;
        }
        let mut chunks = Vec::new();
        read(state, stream, &mut chunks);
        chunks.iter().for_each(|chunk| state.control.incoming.extend_from_slice(chunk));
        if matches!(state.standing, Standing::Shaking) {
            self.hear_hello(state);
            if matches!(state.standing, Standing::Stands) {
                // Requests that came meanwhile.
                let streams: Vec<StreamId> = state.streams.keys().copied().collect();
                streams.into_iter().for_each(|stream| self.readable(state, stream));
            }
        }
        let incoming = std::mem::take(&mut state.control.incoming);
        let mut rest = &incoming[..];
        while let (Standing::Stands, Some((bytes, behind))) = (&state.standing, rest.split_first_chunk()) {
            let Some(control) = Control::decode(bytes) else {
                let why = Standing::Lost(format!("{} broke the protocol", self.at));
                return self.close(state, crate::wire::Close::Broken, why);
            };
            rest = behind;
            self.hear_about(state, control);
        }
        state.control.incoming = rest.to_vec();
    }

    pub(super) fn hear_about(&self, state: &mut State, control: Control) {
        match control {
            Control::Confirm { stream, offset } => {
                let known = stream_id(stream).and_then(|id| state.streams.get_mut(&id));
                match known {
                    Some(Stream::Linked(flow)) if flow.read < offset => flow.asked = Some(offset),
                    Some(Stream::Calling(call, _)) => *call.asked.lock() = Some(offset),
                    // One that is over has read what it wanted.
                    _ => self.say(state, &Control::Confirmed { stream, offset }.encode()),
                }
            }
            Control::Confirmed { stream, offset } => {
                let known = stream_id(stream).and_then(|id| state.streams.get_mut(&id));
                if let Some(Stream::Linked(flow)) = known {
                    flow.confirmed = flow.confirmed.max(offset.min(flow.asking));
                }
            }
        }
    }
}

/// Whether all of its request or answer has been taken.
pub fn flush_unsent(state: &mut State, stream: StreamId) -> bool {
    let Some(rest) = state.unsent.get_mut(&stream) else { return true };
    while !rest.is_empty() {
        match state.quic.send_stream(stream).write(rest) {
            Ok(written) => drop(rest.drain(..written)),
            Err(WriteError::Blocked) => return false,
            // Nobody reads it: that is heard of elsewhere.
            Err(WriteError::Stopped(_) | WriteError::ClosedStream) => break,
        }
    }
    state.unsent.remove(&stream);
    true
}

/// Ends a stream that is nobody's any more, when its answer has been taken.
pub fn finish_sent(state: &mut State, stream: StreamId) {
    if flush_unsent(state, stream) && !state.streams.contains_key(&stream) {
        let _ = state.quic.send_stream(stream).finish();
    }
}

/// The stream of that number, if it can be one.
pub fn stream_id(number: u64) -> Option<StreamId> {
    VarInt::from_u64(number).ok().map(StreamId::from)
}

enum Message {
    Partial,
    Whole,
    Ended,
}

/// Reads on a message whose first bytes tell its length, and nothing behind it.
fn take_message<E>(
    state: &mut State,
    stream: StreamId,
    bytes: &mut Vec<u8>,
    len_of: impl Fn(&[u8; HEAD]) -> Result<usize, E>,
) -> Message {
    loop {
        let len = match bytes.first_chunk::<HEAD>() {
            None => HEAD,
            Some(head) => match len_of(head) {
                Ok(len) => len,
                Err(_) => return Message::Ended,
            },
        };
        if bytes.len() >= HEAD && bytes.len() >= len {
            return Message::Whole;
        }
        let mut receiving = state.quic.recv_stream(stream);
        let Ok(mut chunks) = receiving.read(true) else { return Message::Ended };
        let next = chunks.next(len - bytes.len());
        let _ = chunks.finalize();
        match next {
            Ok(Some(chunk)) => bytes.extend_from_slice(&chunk.bytes),
            Err(ReadError::Blocked) => return Message::Partial,
            Ok(None) | Err(ReadError::Reset(_)) => return Message::Ended,
        }
    }
}

fn read(state: &mut State, stream: StreamId, into: &mut Vec<Bytes>) -> Read {
    let mut receiving = state.quic.recv_stream(stream);
    let mut chunks = match receiving.read(true) {
        Ok(chunks) => chunks,
        Err(ReadableError::ClosedStream | ReadableError::IllegalOrderedRead) => return Read::Blocked,
    };
    // No more than the window can have come.
    let end = loop {
        match chunks.next(usize::MAX) {
            Ok(Some(chunk)) => into.push(chunk.bytes),
            Ok(None) => break Read::Finished,
            Err(ReadError::Blocked) => break Read::Blocked,
            Err(ReadError::Reset(code)) => break Read::Reset(code.into_inner() as u32),
        }
    };
    let _ = chunks.finalize();
    end
}
