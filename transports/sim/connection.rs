//! Connections: what has arrived, who holds which lent buffer, and how it all ends.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use udeck_via::transport::{Hello, Queue, Refused, Reporter, TransferStatus};
use udeck_via::{Ptag, Reliability};

use crate::fence::{Behind, Reading};
use crate::frame::{Content, Frame, Message, copy_of};
use crate::loans::{Loan, Stage};
use crate::trace::Happening;
use crate::waiter::Watch;
use crate::world::{Due, World};

/// Which end of a connection: 0 asked for it, 1 accepted.
pub type Side = usize;

/// Messages that may be sent and not read yet, and buffers that may be lent and not returned, each way.
pub const WINDOW: usize = 64;

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
    /// Its program's callback for errors is told over this.
    reporter: Option<Arc<Reporter>>,
    /// The tag of the windows that it may write, and of those that it may read.
    pub writable: Option<Ptag>,
    pub readable: Option<Ptag>,
    pub sequence: u64,
    /// Sent and not arrived, by sequence number.
    pub under_way: BTreeMap<u64, Frame>,
    /// When the last of what was sent arrives.
    pub last_arrival: Duration,
    /// Sent, and not read by the peer.
    pub unread: u32,
    /// By token.
    pub loans: Vec<Option<Loan>>,
    /// Reads that are not over, by token.
    pub reads: BTreeMap<u16, Reading>,
    /// What waits for them.
    pub behind: VecDeque<Behind>,
    pub returned: VecDeque<(u64, TransferStatus)>,
    pub wants_room: bool,
    pub expected: u64,
    /// Arrived before those that come first.
    pub early: BTreeMap<u64, Message>,
    pub inbox: VecDeque<Message>,
    /// How the peer ended it: `Some` of words when by an error.
    pub ended: Option<Option<String>>,
    pub closed: bool,
    /// Its endpoint was dropped.
    gone: bool,
    /// Buffers of the peer that its program reads.
    pub holds: usize,
}

impl End {
    /// An end whose peer has said this of itself.
    pub fn new(node: usize, peer: &Hello) -> Self {
        End {
            node,
            watches: [None, None],
            reporter: None,
            writable: peer.writable_ptag,
            readable: peer.readable_ptag,
            sequence: 0,
            under_way: BTreeMap::new(),
            last_arrival: Duration::ZERO,
            unread: 0,
            loans: (0..WINDOW).map(|_| None).collect(),
            reads: BTreeMap::new(),
            behind: VecDeque::new(),
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

    /// The number of the next frame that it sends.
    pub fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence - 1
    }
}

impl Connection {
    pub fn link_to(&self, side: Side) -> (usize, usize) {
        (self.ends[1 - side].node, self.ends[side].node)
    }

    pub fn touches(&self, node: usize) -> bool {
        self.ends.iter().any(|end| end.node == node)
    }

    pub fn is_reliable(&self) -> bool {
        self.level != Reliability::Unreliable
    }

    /// Whether something of a NIC's is still to come. (What has come is copied if that dies.)
    pub fn has_undelivered(&self, node: usize) -> bool {
        let is_left = |end: &End| !end.behind.is_empty() || (self.is_reliable() && !end.under_way.is_empty());
        self.lost.is_none() && self.ends.iter().any(|end| end.node == node && is_left(end))
    }

    /// Whether no endpoint is left at either end.
    pub fn is_abandoned(&self) -> bool {
        self.ends.iter().all(|end| end.gone)
    }

    /// `side` has a program from now on.
    pub fn report_to(&mut self, side: Side, reporter: &Arc<Reporter>) {
        self.ends[side].reporter = Some(reporter.clone());
        self.report_loss(side);
    }

    /// Tells the program of `side` if the connection is over by an error. Before it can find it by looking: that would
    /// tell it less.
    fn report_loss(&self, side: Side) {
        if let (Some(reporter), Some(Refused::Lost(why))) = (&self.ends[side].reporter, self.end(side)) {
            reporter.lost(&why);
        }
    }

    /// How the connection is over for `side`, if it is.
    pub fn end(&self, side: Side) -> Option<Refused> {
        match (&self.ends[side].ended, &self.lost) {
            (Some(Some(why)), _) => Some(Refused::Lost(format!("the peer ended it: {why}"))),
            (Some(None), _) => Some(Refused::Closed),
            (None, Some(why)) => Some(Refused::Lost(why.clone())),
            (None, None) => None,
        }
    }

    /// Whether it stands for `side`.
    pub fn stands(&self, side: Side) -> Result<(), Refused> {
        match self.end(side) {
            Some(end) => Err(end),
            None => Ok(()),
        }
    }

    /// Whether `side` can send one more message.
    pub fn room(&self, side: Side) -> Result<(), Refused> {
        self.stands(side)?;
        let end = &self.ends[side];
        if end.unread as usize + end.held_back() >= WINDOW { Err(Refused::Busy) } else { Ok(()) }
    }
}

impl World {
    /// `side` closes. What it sent still arrives; what it has not read, its peer learns with the end.
    pub fn close(&mut self, number: u64, side: Side, broken: Option<&str>) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if std::mem::replace(&mut connection.ends[side].closed, true) {
            return;
        }
        let link = connection.link_to(1 - side);
        let end = &mut connection.ends[side];
        end.inbox.clear();
        for message in std::mem::take(&mut end.early).into_values() {
            self.arrives_late(number, side, message);
        }
        self.note(link, Happening::Closed);
        self.give_reads_up(number, side, TransferStatus::Unread);
        self.send_end(number, side, broken.map(str::to_owned));
        self.run_due();
    }

    fn send_end(&mut self, number: u64, side: Side, broken: Option<String>) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let (link, to) = (connection.link_to(1 - side), 1 - side);
        let reliable = connection.is_reliable();
        let end = &mut connection.ends[side];
        let (sequence, last) = (end.next_sequence(), end.last_arrival.saturating_sub(self.now));
        if reliable {
            let message = Message { immediate: None, content: Content::End(broken) };
            end.under_way.insert(sequence, Frame::new(sequence, message));
            let travels = self.travel_time(link);
            // No frame of the link's count: the number is one that no trace has.
            self.schedule(travels, Due::Frame { connection: number, to, sequence, number: u64::MAX });
        } else {
            let travels = self.travel_time(link).max(last);
            self.schedule(travels, Due::End { connection: number, to, broken });
        }
    }

    /// The peer has ended it: it reads nothing any more, but may still wait for receipts, and for an end.
    pub fn end_arrives(&mut self, number: u64, to: Side, broken: Option<String>) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        connection.ends[to].ended.get_or_insert(broken);
        connection.report_loss(to);
        let end = &mut connection.ends[to];
        end.under_way.retain(|_, frame| frame.content().is_control());
        end.behind.clear();
        if matches!(end.ended, Some(Some(_))) {
            self.give_reads_up(number, to, TransferStatus::Lost);
        }
        self.settle_all(number, to, TransferStatus::Unread, |stage| stage == Stage::Sent);
        self.announce(number, to, Queue::Receive);
        self.announce(number, to, Queue::Send);
    }

    /// The connection breaks, for both. What has arrived can still be read, from copies: whoever lent it is told at
    /// once. A receipt that has not arrived never does.
    pub fn lose(&mut self, number: u64, why: &str) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if connection.lost.is_some() {
            return;
        }
        connection.lost = Some(why.to_owned());
        [0, 1].into_iter().for_each(|side| connection.report_loss(side));
        let link = connection.link_to(1);
        self.note(link, Happening::Broken);
        for side in [0, 1] {
            let end = &mut self.connections.get_mut(&number).expect("just seen").ends[side];
            end.under_way.clear();
            end.behind.clear();
            end.early.clear();
            self.copy_inbox(number, side);
        }
        for side in [0, 1] {
            self.settle_all(number, side, TransferStatus::Lost, |stage| stage != Stage::Read);
            self.announce(number, side, Queue::Receive);
            self.announce(number, side, Queue::Send);
        }
    }

    /// Nothing that lies in `side`'s inbox needs its lender any more. Below reliable reception it has arrived, and that
    /// is all there is to say.
    fn copy_inbox(&mut self, number: u64, side: Side) {
        let connection = self.connections.get_mut(&number).expect("just seen");
        let (node, acknowledged) = (connection.ends[side].node, connection.level == Reliability::Reception);
        let mut copied = Vec::new();
        for message in &mut connection.ends[side].inbox {
            match &mut message.content {
                Content::Lent { head, memory, segments, token } => {
                    let (token, copy) = (*token, copy_of(memory, segments));
                    copied.push((token, copy.len()));
                    message.content = Content::Copied { head: *head, copy, token: None };
                }
                Content::Copied { token, .. } | Content::Written { token, .. } => *token = None,
                // The others are in no inbox.
                _ => {}
            }
        }
        for (token, bytes) in copied {
            self.count_copied(node, bytes);
            if !acknowledged {
                self.settle(number, 1 - side, token, TransferStatus::Arrived);
            }
        }
    }

    /// A dead NIC's program reads nothing any more.
    pub fn forget_inbox_of(&mut self, number: u64, node: usize) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        for end in connection.ends.iter_mut().filter(|end| end.node == node) {
            end.inbox.clear();
        }
    }

    /// An endpoint is gone: forgets what nobody will ask for any more.
    pub fn endpoint_gone(&mut self, number: u64, side: Side) {
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.ends[side].gone = true;
        }
        self.tidy(number);
        self.news();
    }

    /// A connection without endpoints is kept for those who still read something only.
    pub fn tidy(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if !connection.is_abandoned() {
            return;
        }
        for end in &mut connection.ends {
            end.under_way.clear();
            end.behind.clear();
            end.early.clear();
            end.inbox.clear();
        }
        for side in [0, 1] {
            self.settle_all(number, side, TransferStatus::Unread, |stage| stage != Stage::Read);
        }
        let lent =
            |connection: &Connection| connection.ends.iter().any(|end| end.loans.iter().any(Option::is_some));
        if !self.connections.get(&number).is_some_and(lent) {
            self.connections.remove(&number);
        }
    }
}
