//! The fast paths: one function each. Its name is the path's name in `instructions.txt`.
//!
//! No function is inlined, because callgrind counts by function. No two have the same body, because the compiler
//! would merge them into one: each `expect` therefore has a message of its own.

use counts::floor;
use udeck::via::{Completion, Cq, CqEntry, Descriptor, Vi};
use udeck::{Buf, Mailbox, Message, Packed, Postbox, Received, World};

/// Lower bound of a post of 8 bytes: by the bare ring.
#[inline(never)]
pub fn floor_post(out: &mut floor::Sender<'_>, small: &[u8; 8]) {
    out.post(small, 1).expect("posting to the bare ring");
}

/// Lower bound of a retrieve of 8 bytes, with its tag: from the bare ring.
#[inline(never)]
pub fn floor_retrieve(inbox: &mut floor::Receiver<'_>) -> (u64, u64) {
    let message = inbox.poll().expect("the bare ring is intact").expect("a message has come");
    (message.payload[0], message.tag)
}

/// Makes a zeroed buffer.
#[inline(never)]
pub fn buf_make(world: &World, elements: usize) -> Buf<u64> {
    world.buf(elements).expect("making a small buffer")
}

#[inline(never)]
pub fn buf_drop(buf: Buf<u64>) {
    drop(buf);
}

/// Posts a message inside the cell; frees the buffer.
#[inline(never)]
pub fn mailbox_post(out: &Postbox<u64>, small: Buf<u64>) {
    out.post(small).expect("posting a small message");
}

/// Retrieves a message, reads it and drops it.
#[inline(never)]
pub fn mailbox_retrieve(inbox: &Mailbox<u64>) -> u64 {
    let message = inbox.retrieve().expect("retrieving a small message");
    message[0]
}

/// Posts a copy of a value of the program's own, inside the cell.
#[inline(never)]
pub fn mailbox_post_value(out: &Postbox<u64>, value: u64) {
    out.post(&[value][..]).expect("posting a value");
}

/// Posts sixteen messages, and checks once whether the receiver sleeps.
#[inline(never)]
pub fn mailbox_post_each_16(out: &Postbox<u64>, values: &[u64; 16]) {
    out.post_each(values).expect("posting sixteen values");
}

/// Retrieves sixteen messages and reads them in place.
#[inline(never)]
pub fn mailbox_drain_16(inbox: &Mailbox<u64>) -> u64 {
    let mut sum = 0;
    inbox.drain(16, |message| sum += message[0]).expect("draining small messages");
    sum
}

/// Retrieves a message that arrives between the first poll and the second, as in a ping-pong: waits, reads the message and
/// drops it.
#[cfg(feature = "waited")]
#[inline(never)]
pub fn mailbox_retrieve_waited(inbox: &Mailbox<u64>) -> u64 {
    let message = inbox.retrieve().expect("waiting for a small message");
    message[0]
}

/// The post in between, whose cost is subtracted.
#[cfg(feature = "waited")]
#[inline(never)]
pub fn mailbox_retrieve_waited_bare() {
    crate::waited::post_prepared();
}

/// Posts a large message by hand-off, and takes back the buffers that the receiver has dropped.
#[inline(never)]
pub fn hand_off_post(out: &Postbox<u64>, large: Buf<u64>) {
    out.post(large).expect("posting a large message");
}

/// Retrieves a handed-off message, reads the last element and drops it: the buffer returns to its sender.
#[inline(never)]
pub fn hand_off_retrieve(inbox: &Mailbox<u64>) -> u64 {
    let message = inbox.retrieve().expect("retrieving a large message");
    message[message.len() - 1]
}

/// Posts 8 bytes over TCP: writes them to the socket.
#[inline(never)]
pub fn tcp_post(out: &Postbox<u64>, small: Buf<u64>) {
    out.post(small).expect("posting a small message over TCP");
}

/// Retrieves 8 bytes that have arrived over TCP, reads the message and drops it.
#[inline(never)]
pub fn tcp_retrieve(inbox: &Mailbox<u64>) -> u64 {
    let message = inbox.retrieve().expect("retrieving a small message over TCP");
    message[0]
}

/// Polls over TCP in vain. A poll without a wait is thorough: it reads the mailbox's sockets more than once.
#[inline(never)]
pub fn tcp_look_in_vain(inbox: &Mailbox<u64>) -> bool {
    inbox.try_retrieve().expect("looking over TCP").is_none()
}

/// Packs three items.
#[inline(never)]
pub fn pack(message: &mut Message, number: i64, reals: &[f64; 4], text: &str) {
    message.pack(&[number]).expect("packing a number");
    message.pack(reals).expect("packing reals");
    message.pack_str(text).expect("packing text");
}

/// Unpacks three items. Returns the number, the sum of the reals, and the length of the text.
#[inline(never)]
pub fn unpack(message: &mut Received<Packed>) -> (i64, f64, usize) {
    let number = message.unpack_one().expect("unpacking the number");
    let sum = message.unpack::<f64>().expect("unpacking the reals").iter().sum();
    let text = message.unpack_str().expect("unpacking the text");
    (number, sum, text.len())
}

/// Posts a send of 8 bytes, inside the cell.
#[inline(never)]
pub fn vi_post_send(vi: &mut Vi, send: Descriptor) {
    vi.post_send(send).expect("posting a send");
}

/// Takes the completion of a finished send.
#[inline(never)]
pub fn vi_send_done(vi: &mut Vi) -> Completion {
    vi.send_done().expect("the send is over")
}

/// Polls a completion queue, and finds the receive queue of a message that has arrived.
#[inline(never)]
pub fn cq_poll_found(cq: &mut Cq) -> CqEntry {
    cq.poll().expect("a message has come")
}

#[inline(never)]
pub fn cq_poll_empty(cq: &mut Cq) -> bool {
    cq.poll().is_none()
}

/// Takes a received message of 8 bytes, in the descriptor that was posted.
#[inline(never)]
pub fn vi_receive_done(vi: &mut Vi) -> Completion {
    vi.receive_done().expect("the message has come on this queue")
}

#[inline(never)]
pub fn vi_post_receive(vi: &mut Vi, receive: Descriptor) {
    vi.post_receive(receive).expect("posting a receive");
}

/// Posts an RDMA write of 64 bytes, without immediate data: one copy into the peer's window.
#[inline(never)]
pub fn rdma_write(vi: &mut Vi, write: Descriptor) {
    vi.post_send(write).expect("posting an RDMA write");
}
