//! A VI's two streams of frames in its QUIC stream. (An unreliable VI's messages are not in them: [`crate::unreliable`].)
//!
//! Everything here happens with the link's lock held, on whichever thread has work for it: the one that posts, the one
//! that polls, the helper. No call waits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::StreamId;
use udeck_session::{Connection, Driver, Phase, Pieces};
use udeck_sys::job_time;

use crate::core::Core;
use crate::peer::{Peer, Read, Standing, State};
use crate::unreliable::Unreliable;
use crate::wire::WITHDRAWN;

/// How long who looks waits for another reader: never long, because it may be waited for itself.
const TURN: Duration = Duration::from_micros(50);
/// The same for the last look. Who reads may have been interrupted, with what is looked for in its hands.
const LAST_TURN: Duration = Duration::from_millis(100);
/// Bytes that are gathered at a time.
const GATHER: usize = 64 << 10;

/// See the module.
pub struct QuicDriver {
    pub core: Arc<Core>,
    /// What the NIC calls the link.
    pub number: u64,
    pub peer: Arc<Peer>,
    pub stream: StreamId,
    pub unreliable: Option<Box<Unreliable>>,
    /// What was gathered, and QUIC has not taken yet.
    waiting: Bytes,
    /// Bytes of the stream that were gathered.
    gathered: u64,
    /// Nobody reads them any more.
    deaf: bool,
    chunks: Vec<Bytes>,
    has_heard: bool,
    /// Since when the program is gone and the peer is waited for.
    waits_since: Option<Instant>,
    over: bool,
}

impl QuicDriver {
    /// `unreliable`: for a connection whose messages go outside the stream.
    pub fn new(
        core: Arc<Core>,
        (number, peer, stream): (u64, Arc<Peer>, StreamId),
        unreliable: Option<Box<Unreliable>>,
    ) -> Self {
        QuicDriver {
            core,
            number,
            peer,
            stream,
            unreliable,
            waiting: Bytes::new(),
            gathered: 0,
            deaf: false,
            chunks: Vec::new(),
            has_heard: false,
            waits_since: None,
            over: false,
        }
    }

    /// Takes what has come for it, and goes on with what waits.
    pub fn serve(&mut self, connection: &mut Connection) {
        if self.over {
            return;
        }
        let end = {
            let peer = self.peer.clone();
            let mut state = peer.lock();
            self.take_datagrams(&mut state);
            peer.read(&mut state, self.stream, &mut self.chunks)
        };
        for chunk in self.chunks.drain(..) {
            self.has_heard = true;
            let direct = connection.direct();
            connection.on_receive(direct, 0, &chunk);
        }
        self.land_datagrams(connection);
        match end {
            Read::Blocked => {}
            // Behind a goodbye, it is an end in order.
            Read::Finished => connection.hung_up(),
            Read::Reset(WITHDRAWN) if !self.has_heard => connection.withdrawn(),
            Read::Reset(_) => connection.hung_up(),
            Read::Over(Standing::Closed) => connection.hung_up(),
            Read::Over(why) => connection.lost(&why.why().unwrap_or_default()),
        }
        self.settle_pieces(connection, job_time());
        self.send(connection);
        self.settle(connection);
    }

    /// The NIC has failed.
    pub fn fail(&mut self, connection: &mut Connection, why: &str) {
        connection.lost(why);
        self.settle(connection);
    }

    /// The helper's look at what no packet tells of: whether a peer that does not answer the end is still waited for.
    /// `closing`: the NIC is closed.
    pub fn check(&mut self, connection: &mut Connection, now: Instant, patience: Duration, closing: bool) {
        if self.over || !connection.is_closed() {
            return;
        }
        let heard = self.peer.lock().last_heard();
        let gives_up = if self.has_gone(connection) {
            let since = *self.waits_since.get_or_insert(now);
            let is_late = now.duration_since(since) >= patience;
            // QUIC still has to send it to a peer that is silent. That one is there, or its connection would be lost.
            let is_silent = heard < since + patience / 2;
            if is_late && is_silent && !closing {
                self.waits_since = Some(now);
            }
            is_late && (closing || !is_silent)
        } else {
            closing && now.duration_since(heard) >= self.core.detect
        };
        if gives_up {
            connection.lost("the peer does not answer the end of the connection");
            self.settle(connection);
        }
    }

    fn has_gone(&self, connection: &Connection) -> bool {
        connection.is_all_sent() && self.waiting.is_empty()
    }

    fn send(&mut self, connection: &mut Connection) {
        let peer = self.peer.clone();
        let mut state = peer.lock();
        while !self.deaf && self.fill(connection, &mut state) {
            if !peer.write(&mut state, self.stream, &mut self.waiting) {
                (self.deaf, self.waiting) = (true, Bytes::new());
            }
            if !self.waiting.is_empty() {
                break;
            }
        }
        if self.deaf {
            connection.released(connection.queued());
        }
        self.send_pieces(connection, &mut state);
        peer.settle(&mut state);
    }

    /// Gathers what is to be written next; whether there is something.
    fn fill(&mut self, connection: &mut Connection, state: &mut State) -> bool {
        if !self.waiting.is_empty() {
            return true;
        }
        let mut pieces = Pieces::new();
        let len = connection.gather(self.gathered, GATHER, &mut pieces);
        if len == 0 {
            return false;
        }
        state.gathered.resize(len, 0);
        pieces.copy_to(&mut state.gathered);
        self.waiting = state.gathered.split().freeze();
        self.gathered += len as u64;
        connection.released(self.gathered);
        true
    }

    fn settle(&mut self, connection: &mut Connection) {
        if connection.phase() == Phase::Broken {
            // The words for the peer are in the stream.
            connection.lost(&format!("{} broke the protocol", self.peer.at));
        }
        if let Phase::Over { .. } = connection.phase()
            && !std::mem::replace(&mut self.over, true)
        {
            let whole = self.waiting.is_empty() && !self.deaf;
            let (peer, stream) = (self.peer.clone(), self.stream);
            peer.with(|state| peer.leave(state, stream, whole));
            self.core.forget_link(self.number);
        }
    }
}

impl Driver for QuicDriver {
    fn pump(&mut self, connection: &mut Connection) {
        if !self.over {
            self.send(connection);
            self.settle(connection);
        }
    }

    fn look(&mut self, connection: &mut Connection) {
        let core = self.core.clone();
        if core.look_for(&self.peer, self.stream, TURN) {
            self.serve(connection);
        }
    }

    fn look_last(&mut self, connection: &mut Connection) {
        let core = self.core.clone();
        if core.look_for(&self.peer, self.stream, LAST_TURN) {
            self.serve(connection);
        }
    }

    /// Whoever asks has read the socket.
    fn is_done(&mut self, connection: &mut Connection) -> bool {
        if self.over {
            return true;
        }
        if !self.has_gone(connection) {
            return false;
        }
        let peer = self.peer.clone();
        peer.with(|state| {
            peer.has_arrived(state, self.stream, self.gathered)
                && (self.unreliable.is_none() || peer.datagrams_left(state))
        })
    }
}
