//! Connections: their two ends, the messages that have arrived, lent buffers, and how a connection ends.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use udeck_via::transport::{Hello, Queue, Refused, Reporter, TransferStatus};
use udeck_via::{Ptag, Reliability};

use crate::fence::{FencedItem, Reading};
use crate::frame::{Content, Frame, Message, copy_of};
use crate::loans::{Loan, Stage};
use crate::trace::Happening;
use crate::waiter::Watch;
use crate::world::{Due, World};

/// Number of a connection's end: 0 for the requester, 1 for the acceptor.
pub type Side = usize;

/// Upper bound of messages sent and not yet read, and of buffers lent and not yet returned, in each direction.
pub const WINDOW: usize = 64;

pub struct Connection {
    pub level: Reliability,
    pub ends: [End; 2],
    pub lost: Option<String>,
}

/// One end of a connection: its sends, and the messages that have come to it.
pub struct End {
    pub node: usize,
    /// Places of its send queue and its receive queue at waiters.
    pub watches: [Option<Watch>; 2],
    /// Reports the loss of the connection to the program's error callback.
    reporter: Option<Arc<Reporter>>,
    /// Protection tags of the peer's windows that this end may write and read.
    pub writable: Option<Ptag>,
    pub readable: Option<Ptag>,
    pub sequence: u64,
    /// Frames sent and not arrived, by sequence number.
    pub under_way: BTreeMap<u64, Frame>,
    /// Virtual time at which the last of the sent frames arrives.
    pub last_arrival: Duration,
    /// Messages sent, and not read by the peer.
    pub unread: u32,
    /// Loans by token.
    pub loans: Vec<Option<Loan>>,
    /// RDMA reads that are not complete, by token.
    pub reads: BTreeMap<u16, Reading>,
    /// Messages and fences that wait for reads.
    pub fenced: VecDeque<FencedItem>,
    pub returned: VecDeque<(u64, TransferStatus)>,
    pub wants_room: bool,
    pub expected: u64,
    /// Messages that arrived before earlier ones, by sequence number.
    pub early: BTreeMap<u64, Message>,
    pub inbox: VecDeque<Message>,
    /// How the peer ended the connection; the inner `Some` gives the reason of an error.
    pub ended: Option<Option<String>>,
    pub closed: bool,
    /// The endpoint was dropped.
    gone: bool,
    /// Number of the peer's buffers that the program reads.
    pub holds: usize,
}

impl End {
    /// Makes an end on `node` whose peer has sent this `Hello`.
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
            fenced: VecDeque::new(),
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

    /// Returns the sequence number of the next frame.
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

    /// Whether messages that a NIC has sent are still undelivered. (Messages that have arrived are copied if the NIC
    /// dies.)
    pub fn has_undelivered(&self, node: usize) -> bool {
        let is_left = |end: &End| !end.fenced.is_empty() || (self.is_reliable() && !end.under_way.is_empty());
        self.lost.is_none() && self.ends.iter().any(|end| end.node == node && is_left(end))
    }

    /// Whether no endpoint is left at either end.
    pub fn is_abandoned(&self) -> bool {
        self.ends.iter().all(|end| end.gone)
    }

    /// Sets the reporter of `side`'s program, and reports a loss that has happened already.
    pub fn report_to(&mut self, side: Side, reporter: &Arc<Reporter>) {
        self.ends[side].reporter = Some(reporter.clone());
        self.report_loss(side);
    }

    /// Tells the program of `side` if the connection is over by an error. The report comes before the program can
    /// find the end by polling, which would tell it less.
    fn report_loss(&self, side: Side) {
        if let (Some(reporter), Some(Refused::Lost(why))) = (&self.ends[side].reporter, self.end(side)) {
            reporter.lost(&why);
        }
    }

    /// Returns how the connection is over for `side`; `None` while it stands.
    pub fn end(&self, side: Side) -> Option<Refused> {
        match (&self.ends[side].ended, &self.lost) {
            (Some(Some(why)), _) => Some(Refused::Lost(format!("the peer ended it: {why}"))),
            (Some(None), _) => Some(Refused::Closed),
            (None, Some(why)) => Some(Refused::Lost(why.clone())),
            (None, None) => None,
        }
    }

    /// Fails if the connection is over for `side`.
    pub fn stands(&self, side: Side) -> Result<(), Refused> {
        match self.end(side) {
            Some(end) => Err(end),
            None => Ok(()),
        }
    }

    /// Fails if `side` cannot send one more message.
    pub fn room(&self, side: Side) -> Result<(), Refused> {
        self.stands(side)?;
        let end = &self.ends[side];
        if end.unread as usize + end.held_back() >= WINDOW { Err(Refused::Busy) } else { Ok(()) }
    }
}

impl World {
    /// Closes the connection for `side`. Messages that it has sent still arrive. The peer learns with the end that
    /// its unread messages stay unread.
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
            // An end is not counted as a frame of the link, so its number is one that no trace has.
            self.schedule(travels, Due::Frame { connection: number, to, sequence, number: u64::MAX });
        } else {
            let travels = self.travel_time(link).max(last);
            self.schedule(travels, Due::End { connection: number, to, broken });
        }
    }

    /// Handles the peer's end of the connection. The peer reads no more, but may still wait for receipts, and for
    /// our end.
    pub fn end_arrives(&mut self, number: u64, to: Side, broken: Option<String>) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        connection.ends[to].ended.get_or_insert(broken);
        connection.report_loss(to);
        let end = &mut connection.ends[to];
        end.under_way.retain(|_, frame| frame.content().is_control());
        end.fenced.clear();
        if matches!(end.ended, Some(Some(_))) {
            self.give_reads_up(number, to, TransferStatus::Lost);
        }
        self.settle_all(number, to, TransferStatus::Unread, |stage| stage == Stage::Sent);
        self.announce(number, to, Queue::Receive);
        self.announce(number, to, Queue::Send);
    }

    /// Breaks the connection for both ends. Messages that have arrived can still be read, from copies, so their
    /// lenders' loans end at once. A receipt that has not arrived never does.
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
            end.fenced.clear();
            end.early.clear();
            self.copy_inbox(number, side);
        }
        for side in [0, 1] {
            self.settle_all(number, side, TransferStatus::Lost, |stage| stage != Stage::Read);
            self.announce(number, side, Queue::Receive);
            self.announce(number, side, Queue::Send);
        }
    }

    /// Copies the lent messages in `side`'s inbox, so that they no longer need their lender. Below reliable
    /// reception such a message counts as arrived.
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
                // Contents of other kinds are never in an inbox.
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

    /// Drops the unread messages of a dead NIC's program.
    pub fn forget_inbox_of(&mut self, number: u64, node: usize) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        for end in connection.ends.iter_mut().filter(|end| end.node == node) {
            end.inbox.clear();
        }
    }

    /// Notes that an endpoint is dropped.
    pub fn endpoint_gone(&mut self, number: u64, side: Side) {
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.ends[side].gone = true;
        }
        self.tidy(number);
        self.news();
    }

    /// Drops the rest of a connection without endpoints. The connection itself is kept while a program still reads a
    /// loan of it.
    pub fn tidy(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if !connection.is_abandoned() {
            return;
        }
        for end in &mut connection.ends {
            end.under_way.clear();
            end.fenced.clear();
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
