//! What QUIC tells.

use std::sync::Arc;

use quinn_proto::{Event, StreamEvent, StreamId};

use super::streams::{finish_sent, stream_id};
use super::{Peer, State, Stream};
use crate::wire::Piece;

impl Peer {
    /// Takes in all that QUIC tells.
    pub(super) fn take_events(self: &Arc<Self>, state: &mut State) {
        loop {
            self.exchange_with_endpoint(state);
            let Some(event) = state.quic.poll() else { break };
            self.take_event(state, event);
        }
        let wanted = state.quic.poll_timeout();
        self.call_in_time(state, wanted);
    }

    /// The endpoint's number of it, by which it is called.
    pub fn number(&self) -> u64 {
        self.handle.0 as u64
    }

    fn exchange_with_endpoint(self: &Arc<Self>, state: &mut State) {
        while let Some(event) = state.quic.poll_endpoint_events() {
            if state.forgotten {
                continue;
            }
            if event.is_drained() {
                // Before its number can be another one's.
                self.core.forget_peer(self);
                state.forgotten = true;
            }
            let answer = self.core.endpoint.lock().handle_event(self.handle, event);
            if let Some(answer) = answer {
                state.quic.handle_event(answer);
            }
        }
    }

    fn take_event(self: &Arc<Self>, state: &mut State, event: Event) {
        match event {
            Event::Connected => self.connected(state),
            Event::ConnectionLost { reason } => {
                let why = self.broken(state, &reason);
                self.end(state, why);
            }
            Event::Stream(StreamEvent::Opened { .. }) => self.opened(state),
            Event::Stream(StreamEvent::Readable { id }) => self.readable(state, id),
            Event::Stream(StreamEvent::Writable { id } | StreamEvent::Stopped { id, .. }) => {
                self.writable(state, id);
            }
            Event::Stream(StreamEvent::Available { .. }) => {
                state.bells.drain(..).for_each(|bell| bell.ring());
            }
            Event::DatagramReceived => self.take_datagrams(state),
            Event::DatagramsUnblocked => {
                for stream in state.streams.values_mut() {
                    if let Stream::Linked(flow) = stream {
                        flow.list(&self.core);
                    }
                }
            }
            Event::HandshakeDataReady | Event::Stream(StreamEvent::Finished { .. }) => {}
        }
    }

    fn writable(self: &Arc<Self>, state: &mut State, id: StreamId) {
        if state.control.stream == Some(id) {
            return self.write_control(state);
        }
        finish_sent(state, id);
        if let Some(Stream::Linked(flow)) = state.streams.get_mut(&id) {
            flow.list(&self.core);
        }
    }

    fn take_datagrams(self: &Arc<Self>, state: &mut State) {
        while let Some(datagram) = state.quic.datagrams().recv() {
            let stream = Piece::stream_of(&datagram).and_then(stream_id);
            let taken = match stream.and_then(|id| state.streams.get_mut(&id)) {
                Some(Stream::Linked(flow)) => flow.add(&self.core, datagram),
                _ => false,
            };
            if !taken {
                self.core.dropped.count(0, 1);
            }
        }
    }
}
