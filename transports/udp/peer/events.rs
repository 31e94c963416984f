//! Events of QUIC: new streams, readable and writable ones, the end of the connection.

use std::sync::Arc;

use quinn_proto::{Event, StreamEvent, StreamId};

use super::streams::{finish_sent, stream_id};
use super::{Peer, State, Stream};
use crate::wire::Fragment;

impl Peer {
    /// Processes all pending events.
    pub(super) fn process_events(self: &Arc<Self>, state: &mut State) {
        loop {
            self.exchange_with_endpoint(state);
            let Some(event) = state.quic.poll() else { break };
            self.process_event(state, event);
        }
        let wanted = state.quic.poll_timeout();
        self.set_timer(state, wanted);
    }

    /// Number of the connection's timer.
    pub fn number(&self) -> u64 {
        self.handle.0 as u64
    }

    fn exchange_with_endpoint(self: &Arc<Self>, state: &mut State) {
        while let Some(event) = state.quic.poll_endpoint_events() {
            if state.forgotten {
                continue;
            }
            if event.is_drained() {
                // The peer is removed before its handle can be reused.
                self.core.remove_peer(self);
                state.forgotten = true;
            }
            let answer = self.core.endpoint.lock().handle_event(self.handle, event);
            if let Some(answer) = answer {
                state.quic.handle_event(answer);
            }
        }
    }

    fn process_event(self: &Arc<Self>, state: &mut State, event: Event) {
        match event {
            Event::Connected => self.on_connected(state),
            Event::ConnectionLost { reason } => {
                let why = self.status_of(state, &reason);
                self.terminate(state, why);
            }
            Event::Stream(StreamEvent::Opened { .. }) => self.on_streams_opened(state),
            Event::Stream(StreamEvent::Readable { id }) => self.on_readable(state, id),
            Event::Stream(StreamEvent::Writable { id } | StreamEvent::Stopped { id, .. }) => {
                self.on_writable(state, id);
            }
            Event::Stream(StreamEvent::Available { .. }) => {
                state.waiters.drain(..).for_each(|bell| bell.ring());
            }
            Event::DatagramReceived => self.take_datagrams(state),
            Event::DatagramsUnblocked => {
                for stream in state.streams.values_mut() {
                    if let Stream::Vi(flow) = stream {
                        flow.mark_ready(&self.core);
                    }
                }
            }
            Event::HandshakeDataReady | Event::Stream(StreamEvent::Finished { .. }) => {}
        }
    }

    fn on_writable(self: &Arc<Self>, state: &mut State, id: StreamId) {
        if state.control.stream == Some(id) {
            return self.write_control(state);
        }
        finish_sent(state, id);
        if let Some(Stream::Vi(flow)) = state.streams.get_mut(&id) {
            flow.mark_ready(&self.core);
        }
    }

    fn take_datagrams(self: &Arc<Self>, state: &mut State) {
        while let Some(datagram) = state.quic.datagrams().recv() {
            let stream = Fragment::stream_of(&datagram).and_then(stream_id);
            let taken = match stream.and_then(|id| state.streams.get_mut(&id)) {
                Some(Stream::Vi(flow)) => flow.add(&self.core, datagram),
                _ => false,
            };
            if !taken {
                self.core.dropped.count(0, 1);
            }
        }
    }
}
