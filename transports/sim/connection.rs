//! Connections: what is under way, what has arrived, who holds which lent buffer, and how it all ends.

use std::collections::{BTreeMap, VecDeque};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use udeck_via::mem::{Lent, PrivateCopy};
use udeck_via::transport::{Fate, Held, Inline, Queue, Refused};
use udeck_via::{Ptag, Reliability};

use crate::memory::Memory;
use crate::trace::Happening;
use crate::waiter::Watch;
use crate::world::{Due, World};

/// Which end of a connection: 0 asked for it, 1 accepted.
pub type Side = usize;

/// Messages that may be sent and not read yet, and buffers that may be lent and not returned, each way.
pub const WINDOW: usize = 64;

/// How long after its arrival was due the loss of a frame is noticed.
const NOTICE: Duration = Duration::from_millis(1);

pub struct Connection {
    pub level: Reliability,
    pub ends: [End; 2],
    pub lost: Option<String>,
}

/// One end: what it has sent, and what has come to it.
pub struct End {
    pub node: usize,
    /// Its send and its receive queue's places at waiters.
    pub watches: [Option<Watch>; 2],
    /// The tag of the windows that the peer may write.
    pub writable: Option<Ptag>,
    sequence: u64,
    /// Sent and not arrived, by sequence number.
    under_way: BTreeMap<u64, Message>,
    /// When the last of what was sent arrives.
    last_arrival: Duration,
    /// Sent, and not read by the peer.
    pub unread: u32,
    loans: Vec<Option<Loan>>,
    pub returned: VecDeque<(u64, Fate)>,
    pub wants_room: bool,
    expected: u64,
    /// Arrived before those that come first.
    early: BTreeMap<u64, Message>,
    pub inbox: VecDeque<Message>,
    /// How the peer ended it: `Some` of words when by an error.
    pub ended: Option<Option<String>>,
    closed: bool,
    /// Its port was dropped.
    gone: bool,
    /// Buffers of the peer that its program reads.
    holds: usize,
}

struct Loan {
    held: Held,
    /// The peer's program reads it.
    taken: bool,
}

pub struct Message {
    pub immediate: Option<u32>,
    pub content: Content,
}

pub enum Content {
    Inline(Inline),
    Written(usize),
    /// In the sender's memory.
    Lent {
        head: Inline,
        memory: Arc<Memory>,
        segments: Vec<(u64, usize)>,
        token: u16,
    },
    /// Copied on the way.
    Copied {
        head: Inline,
        copy: Lent,
    },
    End(Option<String>),
}

impl Content {
    fn len(&self) -> usize {
        match self {
            Content::Inline(bytes) => bytes.bytes().len(),
            Content::Written(len) => *len,
            Content::Lent { segments, .. } => segments.iter().map(|segment| segment.1).sum(),
            Content::Copied { copy, .. } => copy.len(),
            Content::End(_) => 0,
        }
    }
}

impl End {
    pub fn new(node: usize, writable: Option<Ptag>) -> Self {
        End {
            node,
            watches: [None, None],
            writable,
            sequence: 0,
            under_way: BTreeMap::new(),
            last_arrival: Duration::ZERO,
            unread: 0,
            loans: (0..WINDOW).map(|_| None).collect(),
            returned: VecDeque::new(),
            wants_room: false,
            expected: 0,
            early: BTreeMap::new(),
            inbox: VecDeque::new(),
            ended: None,
            closed: false,
            gone: false,
            holds: 0,
        }
    }

    /// Notes a loan under a free token.
    pub fn lend(&mut self, held: Held) -> Result<u16, Held> {
        match self.loans.iter().position(Option::is_none) {
            Some(token) => {
                self.loans[token] = Some(Loan { held, taken: false });
                Ok(token as u16)
            }
            None => Err(held),
        }
    }

    /// Puts `owner` in the place of the caller who was to be told of `number`.
    pub fn keep(
        &mut self,
        number: u64,
        owner: udeck_via::transport::Owner,
    ) -> Result<(), udeck_via::transport::Owner> {
        let is_this = |loan: &&mut Loan| matches!(loan.held, Held::Caller(other) if other == number);
        match self.loans.iter_mut().flatten().find(is_this) {
            Some(loan) => {
                loan.held = Held::Owner(owner);
                Ok(())
            }
            None => Err(owner),
        }
    }
}

impl Connection {
    pub fn link_to(&self, side: Side) -> (usize, usize) {
        (self.ends[1 - side].node, self.ends[side].node)
    }

    pub fn touches(&self, node: usize) -> bool {
        self.ends.iter().any(|end| end.node == node)
    }

    /// Whether `side` can send one more message.
    pub fn room(&self, side: Side) -> Result<(), Refused> {
        if let Some(why) = &self.lost {
            return Err(Refused::Lost(why.clone()));
        }
        match &self.ends[side].ended {
            Some(Some(why)) => Err(Refused::Lost(format!("the peer ended it: {why}"))),
            Some(None) => Err(Refused::Closed),
            None if self.ends[side].unread as usize >= WINDOW => Err(Refused::Busy),
            None => Ok(()),
        }
    }
}

/// Copies what `memory` holds at `segments`.
pub fn copy_of(memory: &Memory, segments: &[(u64, usize)]) -> Lent {
    // SAFETY: `parts` checks the bounds; the sender's loan, or its port in the middle of a post, keeps the blocks from
    // being written.
    unsafe { PrivateCopy::take(&parts(memory, segments)) }
}

/// Where `segments` lie.
pub fn parts(memory: &Memory, segments: &[(u64, usize)]) -> Vec<(NonNull<u8>, usize)> {
    let part =
        |&(offset, len): &(u64, usize)| (memory.at(offset, len).expect("blocks lie in their arena"), len);
    segments.iter().map(part).collect()
}

impl World {
    // ---- the way of a message ----

    /// Sends a message from `side`; there is room.
    pub fn transmit(&mut self, number: u64, side: Side, message: Message) {
        let connection = self.connections.get_mut(&number).expect("checked for room");
        let link = connection.link_to(1 - side);
        let reliable = connection.level != Reliability::Unreliable;
        let end = &mut connection.ends[side];
        let sequence = end.sequence;
        end.sequence += 1;
        end.wants_room = false;
        let bytes = message.content.len();
        let fate = self.next_fate(link);
        let frame = fate.number;
        self.note(link, Happening::Posted { frame, bytes });
        if fate.lost {
            self.note(link, Happening::Lost(frame));
            self.come_home(number, side, message, reliable);
            if reliable {
                self.schedule(fate.travels + NOTICE, Due::Missed { connection: number, number: frame });
            }
            return;
        }
        let last = self.now + fate.again.unwrap_or(fate.travels);
        let end = &mut self.connections.get_mut(&number).expect("still there").ends[side];
        end.unread += 1;
        end.under_way.insert(sequence, message);
        end.last_arrival = end.last_arrival.max(last);
        let due = || Due::Frame { connection: number, to: 1 - side, sequence, number: frame };
        if fate.held_back {
            self.note(link, Happening::HeldBack(frame));
        }
        self.schedule(fate.travels, due());
        if let Some(again) = fate.again {
            self.note(link, Happening::Duplicated(frame));
            self.schedule(again, due());
        }
        self.run_due();
    }

    pub fn next_fate(&mut self, link: (usize, usize)) -> crate::link::Fate {
        let default = &self.default_link;
        let wire = self.wires.entry(link).or_insert_with(|| crate::link::Wire::new(default.clone()));
        wire.next_fate(&mut self.random)
    }

    pub fn frame_arrives(&mut self, number: u64, to: Side, sequence: u64, frame: u64) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let link = connection.link_to(to);
        let Some(message) = connection.ends[1 - to].under_way.remove(&sequence) else {
            self.note(link, Happening::Discarded(frame));
            return;
        };
        let (closed, reliable) = (connection.ends[to].closed, connection.level != Reliability::Unreliable);
        self.note(link, Happening::Arrived(frame));
        if closed {
            self.come_home(number, 1 - to, message, false);
        } else if reliable {
            self.deliver_in_order(number, to, sequence, message);
        } else {
            self.deliver(number, to, message);
        }
    }

    fn deliver_in_order(&mut self, number: u64, to: Side, sequence: u64, message: Message) {
        let end = |world: &mut World| -> Option<Message> {
            let end = &mut world.connections.get_mut(&number)?.ends[to];
            let next = end.early.remove(&end.expected)?;
            end.expected += 1;
            Some(next)
        };
        self.connections.get_mut(&number).expect("just seen").ends[to].early.insert(sequence, message);
        while let Some(next) = end(self) {
            self.deliver(number, to, next);
        }
    }

    fn deliver(&mut self, number: u64, to: Side, message: Message) {
        if let Content::End(broken) = message.content {
            return self.end_arrives(number, to, broken);
        }
        if matches!(message, Message { immediate: None, content: Content::Written(_) }) {
            // The data are in place, and nobody is to be told.
            return self.taken(number, to);
        }
        self.connections.get_mut(&number).expect("just seen").ends[to].inbox.push_back(message);
        self.announce(number, to, Queue::Receive);
    }

    /// The program of `side` has taken a message from its inbox.
    pub fn taken(&mut self, number: u64, side: Side) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        connection.ends[1 - side].unread -= 1;
        self.tell_of_room(number, 1 - side);
    }

    fn tell_of_room(&mut self, number: u64, side: Side) {
        if self.connections.get(&number).is_some_and(|connection| connection.ends[side].wants_room) {
            self.announce(number, side, Queue::Send);
        }
    }

    // ---- buffers ----

    /// The program at the other end reads the buffer from now on; how many that makes.
    pub fn borrow(&mut self, number: u64, lender: Side, token: u16) -> usize {
        let connection = self.connections.get_mut(&number).expect("just seen");
        if let Some(Some(loan)) = connection.ends[lender].loans.get_mut(usize::from(token)) {
            loan.taken = true;
        }
        connection.ends[1 - lender].holds += 1;
        connection.ends[1 - lender].holds
    }

    /// The program at the other end is done with a buffer.
    pub fn give_back(&mut self, number: u64, lender: Side, token: u16) {
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.ends[1 - lender].holds -= 1;
        }
        self.settle(number, lender, token, false);
        self.tidy(number);
        self.news();
    }

    fn settle(&mut self, number: u64, lender: Side, token: u16, lost: bool) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let end = &mut connection.ends[lender];
        let Some(loan) = end.loans[usize::from(token)].take() else { return };
        if let Held::Caller(caller) = loan.held {
            let fate = if lost { Fate::Lost } else { Fate::Arrived };
            end.returned.push_back((caller, fate));
        }
        self.bury_held(loan.held);
        self.tell_of_room(number, lender);
    }

    /// A message of `sender` that nobody will read.
    fn come_home(&mut self, number: u64, sender: Side, message: Message, lost: bool) {
        if let Content::Lent { token, .. } = message.content {
            self.settle(number, sender, token, lost);
        }
        self.news();
    }

    fn all_come_home(
        &mut self,
        number: u64,
        sender: Side,
        messages: impl IntoIterator<Item = Message>,
        lost: bool,
    ) {
        for message in messages {
            self.come_home(number, sender, message, lost);
        }
    }

    // ---- the end ----

    /// `side` closes. What it sent still arrives; what it has not read goes home.
    pub fn close(&mut self, number: u64, side: Side, broken: Option<&str>) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if std::mem::replace(&mut connection.ends[side].closed, true) {
            return;
        }
        let link = connection.link_to(1 - side);
        let end = &mut connection.ends[side];
        let unread: Vec<_> =
            end.inbox.drain(..).chain(std::mem::take(&mut end.early).into_values()).collect();
        self.all_come_home(number, 1 - side, unread, false);
        self.note(link, Happening::Closed);
        self.send_end(number, side, broken.map(str::to_owned));
        self.run_due();
    }

    fn send_end(&mut self, number: u64, side: Side, broken: Option<String>) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let (link, to) = (connection.link_to(1 - side), 1 - side);
        let reliable = connection.level != Reliability::Unreliable;
        let end = &mut connection.ends[side];
        let (sequence, last) = (end.sequence, end.last_arrival.saturating_sub(self.now));
        end.sequence += 1;
        if reliable {
            end.under_way.insert(sequence, Message { immediate: None, content: Content::End(broken) });
            let travels = self.travel_time(link);
            // No frame of the link's count: the number is one that no trace has.
            self.schedule(travels, Due::Frame { connection: number, to, sequence, number: u64::MAX });
        } else {
            let travels = self.travel_time(link).max(last);
            self.schedule(travels, Due::End { connection: number, to, broken });
        }
    }

    /// The peer has ended it: it reads nothing any more.
    pub fn end_arrives(&mut self, number: u64, to: Side, broken: Option<String>) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let end = &mut connection.ends[to];
        end.ended.get_or_insert(broken);
        let unread = std::mem::take(&mut end.under_way);
        let ends = unread.into_iter().filter(|(_, message)| !matches!(message.content, Content::End(_)));
        self.all_come_home(number, to, ends.map(|(_, message)| message).collect::<Vec<_>>(), false);
        self.announce(number, to, Queue::Receive);
        self.announce(number, to, Queue::Send);
    }

    /// The connection breaks, for both. What has arrived can still be read, from copies: whoever lent it is told at
    /// once.
    pub fn lose(&mut self, number: u64, why: &str) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if connection.lost.is_some() {
            return;
        }
        connection.lost = Some(why.to_owned());
        let link = connection.link_to(1);
        self.note(link, Happening::Broken);
        for side in [0, 1] {
            let connection = self.connections.get_mut(&number).expect("just seen");
            let (early, under_way) = (
                std::mem::take(&mut connection.ends[1 - side].early),
                std::mem::take(&mut connection.ends[side].under_way),
            );
            let undelivered: Vec<_> = early.into_values().chain(under_way.into_values()).collect();
            self.all_come_home(number, side, undelivered, true);
            self.copy_inbox(number, 1 - side);
            self.announce(number, side, Queue::Receive);
            self.announce(number, side, Queue::Send);
        }
        self.news();
    }

    fn copy_inbox(&mut self, number: u64, side: Side) {
        let connection = self.connections.get_mut(&number).expect("just seen");
        let node = connection.ends[side].node;
        let mut copied = Vec::new();
        for message in &mut connection.ends[side].inbox {
            if let Content::Lent { head, memory, segments, token } = &message.content {
                copied.push((*token, message.content.len()));
                message.content = Content::Copied { head: *head, copy: copy_of(memory, segments) };
            }
        }
        for (token, bytes) in copied {
            self.count_copied(node, bytes);
            self.settle(number, 1 - side, token, false);
        }
    }

    /// A dead NIC's program reads nothing any more.
    pub fn forget_inbox_of(&mut self, number: u64, node: usize) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        for end in connection.ends.iter_mut().filter(|end| end.node == node) {
            end.inbox.clear();
        }
    }

    /// A port is gone: forgets what nobody will ask for any more.
    pub fn port_gone(&mut self, number: u64, side: Side) {
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.ends[side].gone = true;
        }
        self.tidy(number);
        self.news();
    }

    fn tidy(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if !connection.ends.iter().all(|end| end.gone) {
            return;
        }
        let lent = |end: &mut End| -> Vec<Held> {
            let unread = end.loans.iter_mut().filter(|loan| loan.as_ref().is_some_and(|loan| !loan.taken));
            unread.filter_map(Option::take).map(|loan| loan.held).collect()
        };
        let home: Vec<Held> = connection.ends.iter_mut().flat_map(lent).collect();
        let read = connection.ends.iter().any(|end| end.loans.iter().any(Option::is_some));
        home.into_iter().for_each(|held| self.bury_held(held));
        if !read {
            self.connections.remove(&number);
        }
    }
}
