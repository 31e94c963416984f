//! The way of a message: posted, in transit in a frame, arrived, in its receiver's inbox.

use std::time::Duration;

use udeck_via::transport::Queue;

use crate::connection::Side;
use crate::fence::FencedItem;
use crate::frame::{Content, Frame, Message};
use crate::trace::Happening;
use crate::world::{Due, World};

/// Time from a frame's due arrival until its loss is noticed.
const NOTICE: Duration = Duration::from_millis(1);

/// Fates of a frame, for the text that says why a connection broke.
pub const WAS_LOST: &str = "was lost";
const WAS_CORRUPT: &str = "arrived corrupt: its checksum is wrong";

impl World {
    /// Sends a message from `side`, once no fence holds it back. The caller has checked that there is room. Events
    /// that are due at this moment have happened when this returns.
    pub fn transmit(&mut self, number: u64, side: Side, message: Message) {
        let end = &mut self.connections.get_mut(&number).expect("just seen").ends[side];
        if end.fenced.is_empty() {
            self.launch(number, side, message);
        } else {
            end.wants_room = false;
            end.fenced.push_back(FencedItem::Message(message));
        }
        self.run_due();
    }

    /// Sends a message as [`World::transmit`], but runs no due events: for callers that handle one.
    pub fn launch(&mut self, number: u64, side: Side, message: Message) {
        let connection = &self.connections[&number];
        let (link, reliable) = (connection.link_to(1 - side), connection.is_reliable());
        let plan = self.next_plan(link);
        let frame = plan.number;
        self.note_asked(number, side, &message.content);
        let (control, receipt) = (message.content.is_control(), message.content.is_receipt());
        let (bytes, on_the_wire) = (message.content.len(), message.content.on_the_wire());
        self.note(
            link,
            if receipt { Happening::Acknowledged(frame) } else { Happening::Posted { frame, bytes } },
        );
        let end = &mut self.connections.get_mut(&number).expect("just seen").ends[side];
        let sequence = end.next_sequence();
        if !control {
            end.wants_room = false;
        }
        if plan.lost {
            self.note(link, Happening::Lost(frame));
            if reliable {
                let due = Due::Missed { connection: number, to: 1 - side, number: frame };
                self.schedule(plan.travels + NOTICE, due);
            }
            return self.news();
        }
        end.unread += u32::from(!control);
        end.last_arrival = end.last_arrival.max(self.now + plan.again.unwrap_or(plan.travels));
        let mut sealed = Frame::new(sequence, message);
        if let Some(bit) = plan.flipped {
            sealed.damage(bit);
        }
        end.under_way.insert(sequence, sealed);
        if plan.flipped.is_some() {
            self.note(link, Happening::Corrupted(frame));
        }
        if plan.held_back {
            self.note(link, Happening::HeldBack(frame));
        }
        let due = || Due::Frame { connection: number, to: 1 - side, sequence, number: frame };
        self.send_frame(link, on_the_wire, plan.travels, due());
        if let Some(again) = plan.again {
            self.note(link, Happening::Duplicated(frame));
            self.schedule(again, due());
        }
    }

    fn next_plan(&mut self, link: (usize, usize)) -> crate::link::FramePlan {
        let default = &self.default_link;
        let wire = self.wires.entry(link).or_insert_with(|| crate::link::Wire::new(default.clone()));
        wire.next_plan(&mut self.random)
    }

    pub fn frame_arrives(&mut self, number: u64, to: Side, sequence: u64, frame: u64) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        let link = connection.link_to(to);
        let Some(came) = connection.ends[1 - to].under_way.remove(&sequence) else {
            return self.note(link, Happening::Discarded(frame));
        };
        let (closed, reliable) = (connection.ends[to].closed, connection.is_reliable());
        let Some(message) = came.open() else { return self.came_corrupt(number, to, frame) };
        self.note(link, Happening::Arrived(frame));
        if closed {
            self.arrives_late(number, to, message);
        } else if reliable {
            self.deliver_in_order(number, to, sequence, message);
        } else {
            self.deliver(number, to, message);
        }
    }

    /// Handles a frame whose checksum is wrong.
    fn came_corrupt(&mut self, number: u64, to: Side, frame: u64) {
        let connection = &self.connections[&number];
        let (link, reliable) = (connection.link_to(to), connection.is_reliable());
        self.note(link, Happening::Detected(frame));
        if reliable {
            let why = self.what_became(frame, link, WAS_CORRUPT);
            self.lose(number, &why);
        } else {
            self.taken(number, to);
        }
    }

    /// Text of a frame's fate, such as `frame 3 from a to b was lost (seed 7)`.
    pub fn what_became(&self, frame: u64, link: (usize, usize), what: &str) -> String {
        let (from, to) = (&self.nodes[link.0].name, &self.nodes[link.1].name);
        format!("frame {frame} from {from} to {to} {what} (seed {})", self.seed)
    }

    fn deliver_in_order(&mut self, number: u64, to: Side, sequence: u64, message: Message) {
        let next = |world: &mut World| -> Option<Message> {
            let end = &mut world.connections.get_mut(&number)?.ends[to];
            let next = end.early.remove(&end.expected)?;
            end.expected += 1;
            Some(next)
        };
        self.connections.get_mut(&number).expect("just seen").ends[to].early.insert(sequence, message);
        while let Some(message) = next(self) {
            self.deliver(number, to, message);
        }
    }

    fn deliver(&mut self, number: u64, to: Side, message: Message) {
        match message {
            Message { content: Content::End(broken), .. } => self.end_arrives(number, to, broken),
            Message { content: Content::Receipt { token, status }, .. } => {
                self.settle(number, to, token, status)
            }
            Message { immediate, content: Content::Write { to: place, bytes, token } } => {
                self.write_arrives(number, to, immediate, (place, bytes, token));
            }
            Message { content: Content::ReadRequest { from, len, token }, .. } => {
                self.question_arrives(number, to, from, len, token);
            }
            Message { content: Content::ReadResponse { copy, token }, .. } => {
                self.answer_to_read_arrives(number, to, &copy, token);
            }
            message => {
                let connection = self.connections.get_mut(&number).expect("just seen");
                connection.ends[to].inbox.push_back(message);
                self.announce(number, to, Queue::Receive);
            }
        }
    }

    /// Handles a message that comes to an end that has closed. That end reads no more, but still learns what became
    /// of its sends.
    pub fn arrives_late(&mut self, number: u64, to: Side, message: Message) {
        match message.content {
            Content::Receipt { token, status } => self.settle(number, to, token, status),
            Content::End(broken) => self.end_arrives(number, to, broken),
            // A closed end is not accessed any more, and has given up its reads.
            _ => {}
        }
    }

    /// Releases the room of a message that was sent to `side`.
    pub fn taken(&mut self, number: u64, side: Side) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        connection.ends[1 - side].unread -= 1;
        self.tell_of_room(number, 1 - side);
    }

    pub fn tell_of_room(&mut self, number: u64, side: Side) {
        if self.connections.get(&number).is_some_and(|connection| connection.ends[side].wants_room) {
            self.announce(number, side, Queue::Send);
        }
    }
}
