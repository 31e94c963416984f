//! Posts, and the taking of completions.

use std::time::Duration;

use udeck_via::{Completion, Deadline, Descriptor, Error, MemHandle, RemoteBuffer, State, Status};

use crate::book::{Kind, Sent};
use crate::fleet::Target;
use crate::history::LENGTH;
use crate::image::{is_own, payload, segments, untag};
use crate::play::Play;

/// Length in bytes of the longest message of a sensible program here: beyond the limit of a descriptor.
const LONGEST: usize = 300;
/// Largest number of receives that a sensible program has posted.
const ENOUGH: usize = 8;
/// Deadline of waiting calls, as a safety net.
pub const SOON: Duration = Duration::from_secs(60);

impl Play<'_> {
    // ---- posts ----

    pub fn post_receive(&mut self) {
        let ready =
            |actor: &crate::fleet::Actor| actor.state() != State::Error && actor.book.receives.len() < ENOUGH;
        let Some(who) = self.somebody(ready) else { return self.disconnect_somebody() };
        let room = self.length();
        self.post_receive_of(who, room);
    }

    /// A length: zero, short enough to travel inside the descriptor, or longer.
    fn length(&mut self) -> usize {
        match self.dice.below(10) {
            0 => 0,
            1..=4 => self.dice.between(1, 48),
            _ => self.dice.between(49, LONGEST),
        }
    }

    /// Splits `len` into one to three pieces.
    fn pieces(&mut self, len: usize) -> Vec<usize> {
        let mut pieces = Vec::new();
        let mut left = len;
        for _ in 0..self.dice.below(3) {
            let piece = self.dice.between(0, left);
            pieces.push(piece);
            left -= piece;
        }
        pieces.push(left);
        pieces
    }

    pub fn post_receive_of(&mut self, who: usize, room: usize) {
        let (id, pieces) = (self.number(), self.pieces(room));
        let station = &self.stations[self.actors[who].home];
        let descriptor = Descriptor::new(segments(&station.nic, station.ptag, id, &pieces, &[]));
        let result = self.with_vi(who, "post_receive", |vi| vi.post_receive(descriptor));
        let result = result.map_err(|(error, _)| error);
        self.tried("post_receive", &format!("of {room} bytes on {who}"), &result);
        match result {
            Ok(()) => self.actors[who].book.posted_receive(id, &pieces),
            Err(Error::Full { .. }) => {}
            Err(error) => panic!("a receive was refused: {error}"),
        }
    }

    /// A connected VI, its connection, and its side.
    fn connected(&mut self) -> Option<(usize, usize, usize)> {
        let who = self.somebody(|actor| actor.state() == State::Connected)?;
        let (connection, side) = self.actors[who].connection.expect("connected");
        Some((who, connection, side))
    }

    /// Room of the receive that the next message of this direction will find, if there is one.
    fn room_for_next(&self, connection: usize, side: usize) -> Option<usize> {
        let direction = &self.connections[connection].directions[side];
        let peer = self.connections[connection].ends[1 - side]?;
        let in_flight = direction.sent.len() - direction.arrived;
        self.actors[peer].book.receives.get(in_flight).map(|receive| receive.room())
    }

    /// Ensures that the next message of this direction finds a receive, except in a few cases. Returns its allowed
    /// length.
    fn prepare(&mut self, connection: usize, side: usize, len: usize) -> usize {
        let careless = self.dice.percent(3);
        match self.room_for_next(connection, side) {
            Some(room) if !careless => len.min(room),
            None if !careless => match self.connections[connection].ends[1 - side] {
                Some(peer) if self.actors[peer].state() == State::Connected => {
                    while self.room_for_next(connection, side).is_none()
                        && self.actors[peer].book.receives.len() < 2 * ENOUGH
                    {
                        self.post_receive_of(peer, len);
                    }
                    self.room_for_next(connection, side).map_or(len, |room| len.min(room))
                }
                _ => len,
            },
            _ => len,
        }
    }

    pub fn send(&mut self) {
        let Some((who, connection, side)) = self.connected() else { return self.connect_somebody() };
        let len = self.length();
        let len = self.prepare(connection, side, len);
        let tag = self.connections[connection].next_tag(connection, side);
        let immediate = !self.ordered(who) || self.dice.percent(50);
        let (id, pieces) = (self.number(), self.pieces(len));
        let station = &self.stations[self.actors[who].home];
        let content = payload(tag, len);
        let mut descriptor = Descriptor::new(segments(&station.nic, station.ptag, id, &pieces, &content));
        if immediate {
            descriptor = descriptor.immediate(tag);
        }
        let sent = Sent { tag, len, immediate, written: false, posted: self.step, arrived: None };
        let (kind, details) = (self.kind_of_send(len), format!("of {len} bytes on {who}, tag {tag:#x}"));
        if self.post(who, kind, &details, descriptor).is_ok() {
            self.connections[connection].directions[side].sent.push(sent);
            let kind = Kind::Message { connection, side, at: untag(tag).2 };
            self.actors[who].book.posted_send(kind, id, &pieces, content);
        }
    }

    fn kind_of_send(&self, len: usize) -> &'static str {
        if len <= self.stations[0].nic.attributes().max_inline { "send (short)" } else { "send (long)" }
    }

    pub fn write(&mut self) {
        let Some((who, connection, side)) = self.connected() else { return self.connect_somebody() };
        let Some(peer) = self.connections[connection].ends[1 - side] else { return self.send() };
        let immediate = self.dice.percent(50);
        if immediate {
            self.prepare(connection, side, 0);
        }
        let Some(target) = &self.actors[peer].target else { return };
        let remote = target.window.remote();
        let offset = self.dice.below(LENGTH);
        let len = self.dice.between(0, LENGTH - offset);
        // Without immediate data the tag is one that no message has.
        let id = self.number();
        let tag = if immediate { self.connections[connection].next_tag(connection, side) } else { !id };
        let (pieces, content) = (self.pieces(len), payload(tag, len));
        let station = &self.stations[self.actors[who].home];
        let from = segments(&station.nic, station.ptag, id, &pieces, &content);
        let mut descriptor = Descriptor::rdma_write(from, RemoteBuffer { offset, ..remote });
        let mut kind = Kind::Write;
        if immediate {
            descriptor = descriptor.immediate(tag);
            kind = Kind::Message { connection, side, at: untag(tag).2 };
        }
        let name = if immediate { "rdma_write (immediate)" } else { "rdma_write" };
        let details = format!("of {len} bytes at {offset} on {who}, tag {tag:#x}");
        if self.post(who, name, &details, descriptor).is_ok() {
            let (step, ordered) = (self.step, self.ordered(who));
            let history = &mut self.actors[peer].target.as_mut().expect("just seen").history;
            history.accepted(tag, (connection, side, ordered), offset, len, step);
            if immediate {
                let sent = Sent { tag, len, immediate, written: true, posted: step, arrived: None };
                self.connections[connection].directions[side].sent.push(sent);
            }
            self.actors[who].book.posted_send(kind, id, &pieces, content);
        }
    }

    pub fn read(&mut self) {
        let readable = |actor: &crate::fleet::Actor| {
            actor.state() == State::Connected && actor.level != udeck_via::Reliability::Unreliable
        };
        let Some(who) = self.somebody(readable) else { return self.send() };
        let (connection, side) = self.actors[who].connection.expect("connected");
        let Some(owner) = self.connections[connection].ends[1 - side] else { return self.send() };
        let offset = self.dice.below(LENGTH);
        let len = self.dice.between(0, LENGTH - offset);
        let (id, pieces) = (self.number(), self.pieces(len));
        let Some(target) = &self.actors[owner].target else { return };
        let (remote, incarnation) = (target.remote(offset), target.incarnation);
        let station = &self.stations[self.actors[who].home];
        let into = segments(&station.nic, station.ptag, id, &pieces, &[]);
        let details = format!("of {len} bytes at {offset} on {who}");
        if self.post(who, "rdma_read", &details, Descriptor::rdma_read(into, remote)).is_ok() {
            let kind = Kind::Read { owner, incarnation, offset, step: self.step };
            self.actors[who].book.posted_send(kind, id, &pieces, Vec::new());
        }
    }

    /// Posts a descriptor of a connected VI.
    fn post(&mut self, who: usize, kind: &'static str, details: &str, what: Descriptor) -> Result<(), ()> {
        let what = if self.dice.percent(20) { what.fenced() } else { what };
        let result = self.with_vi(who, kind, |vi| vi.post_send(what)).map_err(|(error, _)| error);
        self.tried(kind, details, &result);
        match result {
            Ok(()) => Ok(()),
            Err(Error::Full { .. }) => Err(()),
            Err(Error::Closed | Error::Lost(_)) => {
                assert_eq!(self.actors[who].state(), State::Error, "{kind} met the end of the connection");
                Err(())
            }
            Err(error) => panic!("{kind} {details}: refused with {error}"),
        }
    }

    /// Posts RDMA where the peer does not allow it.
    pub fn forbidden(&mut self) {
        let Some((who, connection, side)) = self.connected() else { return };
        let Some(peer) = self.connections[connection].ends[1 - side] else { return };
        let Some(target) = &self.actors[peer].target else { return };
        let whole = target.window.remote();
        let wrong = match self.dice.below(3) {
            0 => RemoteBuffer { offset: LENGTH - 8, ..whole },
            1 => RemoteBuffer { handle: MemHandle(whole.handle.0 ^ 0x5555), ..whole },
            _ => self.dice.pick(&self.stale).unwrap_or(RemoteBuffer { offset: usize::MAX - 3, ..whole }),
        };
        let (id, content) = (self.number(), payload(0, 16));
        let station = &self.stations[self.actors[who].home];
        let from = segments(&station.nic, station.ptag, id, &[16], &content);
        let descriptor = Descriptor::rdma_write(from, wrong);
        let result =
            self.with_vi(who, "post_send", |vi| vi.post_send(descriptor)).map_err(|(error, _)| error);
        self.tried("rdma_write (forbidden)", &format!("on {who} to {wrong:?}"), &result);
        match result {
            // The target will judge it later.
            Ok(()) => self.actors[who].book.posted_send(Kind::Forbidden, id, &[16], content),
            Err(Error::RdmaProtection { .. }) => self.coverage.refused("RDMA_PROT_ERROR"),
            Err(Error::Closed | Error::Lost(_) | Error::Full { .. }) => {}
            Err(error) => panic!("RDMA to a wrong place: refused with {error}"),
        }
    }

    pub fn revoke(&mut self) {
        let Some(who) = self.somebody(|actor| actor.target.is_some()) else { return };
        let Target { window, history, incarnation } = self.actors[who].target.take().expect("just seen");
        self.stale.push(window.remote());
        let settled = window.revoke(Deadline::after(SOON)).expect("nobody is inside");
        history.check(0, &settled, self.step).unwrap_or_else(|why| panic!("revoked window of {who}: {why}"));
        self.tried("revoke", &format!("the window of {who}"), &Ok(()));
        drop(settled);
        // A dead NIC's window needs no replacement.
        let station = &self.stations[self.actors[who].home];
        self.actors[who].target = station.alive.then(|| Target::new(station, incarnation + 1)).flatten();
    }

    // ---- completions ----

    /// Takes all completions of one VI. Returns their number.
    pub fn reap_one(&mut self, who: usize) -> usize {
        let found = self.reap(who);
        // A poll that finds nothing is neither a success nor a failure.
        if found > 0 {
            self.coverage.operation("take completions", true);
        }
        self.note(format!("took {found} completions of {who}"));
        found
    }

    /// Takes all completions of the VIs that a completion queue names.
    pub fn poll(&mut self) {
        let at = self.dice.below(self.stations.len());
        // The loop is bounded: a queue may name a VI that has nothing.
        for _ in 0..2 * self.actors.len() {
            let Some(entry) = self.stations[at].cq.poll() else { break };
            let who = entry.context as usize;
            assert_eq!(self.actors[who].home, at, "the completion queue names a VI of its own NIC");
            if self.reap_one(who) > 0 {
                self.coverage.used("completions were taken where a completion queue named them");
            }
        }
        self.note(format!("polled the completion queue of n{at}"));
    }

    /// Takes completions as [`Play::reap_one`] does, and returns their number.
    pub fn reap(&mut self, who: usize) -> usize {
        let mut found = 0;
        loop {
            let received = self.with_vi(who, "receive_done", |vi| vi.receive_done());
            let sent = self.with_vi(who, "send_done", |vi| vi.send_done());
            if received.is_none() && sent.is_none() {
                return found;
            }
            found += usize::from(received.is_some()) + usize::from(sent.is_some());
            // The receive comes first: with reliable reception it completes the send of a VI to itself.
            received.into_iter().for_each(|completion| self.received(who, completion));
            sent.into_iter().for_each(|completion| self.sent(who, completion));
        }
    }

    fn received(&mut self, who: usize, completion: Completion) {
        let status = completion.status;
        self.coverage.status(status);
        self.note(format!("  received on {who}: {status:?}, {} bytes", completion.length));
        if status == Status::Flushed {
            return self.actors[who].book.received(completion, None);
        }
        // The receive belongs to the connection for which it was posted: messages before that one's end are
        // reported after it, too.
        let actor = &self.actors[who];
        let posted = actor.book.receives.front().expect("a receive was reported that nobody has posted");
        let (own, (connection, side)) = (is_own(posted.id), actor.connections[&posted.batch]);
        let level = self.connections[connection].level;
        let direction = &mut self.connections[connection].directions[1 - side];
        let sent = direction.arrives(level, completion.immediate);
        let (tag, posted) = (sent.tag, sent.posted);
        if own && !sent.written && completion.length > 0 {
            self.coverage.used("a message came into memory of the program's own");
        }
        let actor = &mut self.actors[who];
        actor.book.received(completion, Some(sent));
        direction.reported(tag, status, level);
        if let Some(target) = &mut actor.target {
            let ordered = level != udeck_via::Reliability::Unreliable;
            target.history.seen((connection, 1 - side), tag, posted, ordered, self.step);
            target.check(self.step);
        }
    }

    fn sent(&mut self, who: usize, completion: Completion) {
        let status = completion.status;
        self.coverage.status(status);
        self.note(format!("  sent on {who}: {status:?}"));
        let level = self.actors[who].level;
        let (posted, content) = self.actors[who].book.sent(completion, level);
        if is_own(posted.id) && status == Status::Done && !content.is_empty() {
            self.coverage.used("a message left memory of the program's own");
        }
        match posted.kind {
            Kind::Message { connection, side, at } if status == Status::Done => {
                let arrived = self.connections[connection].directions[side].sent[at].arrived;
                let promised = level == udeck_via::Reliability::Reception;
                assert!(
                    !promised || arrived == Some(Status::Done),
                    "a send is done, and its receiver has {arrived:?}"
                );
            }
            Kind::Read { owner, incarnation, offset, step } if status == Status::Done => {
                let target = self.actors[owner].target.as_ref();
                if let Some(target) = target.filter(|target| target.incarnation == incarnation) {
                    let allowed = target.history.check(offset, &content, step);
                    allowed.unwrap_or_else(|why| panic!("{who} has read at {offset}: {why}"));
                }
            }
            // Below reliable reception the data may have left before the target judged them.
            Kind::Forbidden => {
                let judged = level == udeck_via::Reliability::Reception;
                assert!(!judged || status != Status::Done, "RDMA to a wrong place");
            }
            Kind::Message { .. } | Kind::Write | Kind::Read { .. } => {}
        }
    }
}
