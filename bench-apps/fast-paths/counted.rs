//! The fast paths: one function each. Its name is the path's name in `instructions.txt`.
//!
//! None is inlined, because callgrind books by function. No two have the same body, because the compiler would merge
//! them into one: hence a message of its own in each `expect`.

use udeck::via::{Completion, Cq, CqEntry, Descriptor, Vi};
use udeck::{Buf, Mailbox, Message, Packed, Postbox, Received, World};

/// The floor under a post of 8 bytes.
#[inline(never)]
pub fn floor_post(out: &mut floor::Sender<'_>, small: &[u8; 8]) {
    out.post(small, 1).expect("posting to the bare ring");
}

/// The floor under a retrieve of 8 bytes: the message, and its tag.
#[inline(never)]
pub fn floor_retrieve(inbox: &mut floor::Receiver<'_>) -> (u64, u64) {
    let message = inbox.poll().expect("the bare ring is intact").expect("a message has come");
    (message.payload[0], message.tag)
}

/// Zeroed.
#[inline(never)]
pub fn buf_make(world: &World, elements: usize) -> Buf<u64> {
    world.buf(elements).expect("making a small buffer")
}

#[inline(never)]
pub fn buf_drop(buf: Buf<u64>) {
    drop(buf);
}

/// Inside the cell; frees the buffer.
#[inline(never)]
pub fn mailbox_post(out: &Postbox<u64>, small: Buf<u64>) {
    out.post(small).expect("posting a small message");
}

/// Reads the message and drops it.
#[inline(never)]
pub fn mailbox_retrieve(inbox: &Mailbox<u64>) -> u64 {
    let message = inbox.retrieve().expect("retrieving a small message");
    message[0]
}

/// A copy of a value of the program's own, inside the cell.
#[inline(never)]
pub fn mailbox_post_value(out: &Postbox<u64>, value: u64) {
    out.post(&[value][..]).expect("posting a value");
}

/// Sixteen messages, with one look whether the receiver sleeps.
#[inline(never)]
pub fn mailbox_post_each_16(out: &Postbox<u64>, values: &[u64; 16]) {
    out.post_each(values).expect("posting sixteen values");
}

/// Reads sixteen messages where they are shown.
#[inline(never)]
pub fn mailbox_drain_16(inbox: &Mailbox<u64>) -> u64 {
    let mut sum = 0;
    inbox.drain(16, |message| sum += message[0]).expect("draining small messages");
    sum
}

/// Of a message that is not there at the first look, but at the next, as in a ping-pong: waits, reads the message and drops it.
#[cfg(feature = "waited")]
#[inline(never)]
pub fn mailbox_retrieve_waited(inbox: &Mailbox<u64>) -> u64 {
    let message = inbox.retrieve().expect("waiting for a small message");
    message[0]
}

/// The post that happens in between, which is not part of it.
#[cfg(feature = "waited")]
#[inline(never)]
pub fn mailbox_retrieve_waited_bare() {
    crate::waited::post_prepared();
}

/// Takes back, too, what the receiver dropped before.
#[inline(never)]
pub fn hand_off_post(out: &Postbox<u64>, large: Buf<u64>) {
    out.post(large).expect("posting a large message");
}

/// Reads the last element and drops the message: its buffer goes home.
#[inline(never)]
pub fn hand_off_retrieve(inbox: &Mailbox<u64>) -> u64 {
    let message = inbox.retrieve().expect("retrieving a large message");
    message[message.len() - 1]
}

/// 8 bytes, written to the socket.
#[inline(never)]
pub fn tcp_post(out: &Postbox<u64>, small: Buf<u64>) {
    out.post(small).expect("posting a small message over TCP");
}

/// Of 8 bytes that have come: reads the message and drops it.
#[inline(never)]
pub fn tcp_retrieve(inbox: &Mailbox<u64>) -> u64 {
    let message = inbox.retrieve().expect("retrieving a small message over TCP");
    message[0]
}

/// As thorough as a look is by which nobody waits: at the mailbox's sockets, more than once.
#[inline(never)]
pub fn tcp_look_in_vain(inbox: &Mailbox<u64>) -> bool {
    inbox.try_retrieve().expect("looking over TCP").is_none()
}

/// Three items.
#[inline(never)]
pub fn pack(message: &mut Message, number: i64, reals: &[f64; 4], text: &str) {
    message.pack(&[number]).expect("packing a number");
    message.pack(reals).expect("packing reals");
    message.pack_str(text).expect("packing text");
}

/// The number, the sum of the reals, the length of the text.
#[inline(never)]
pub fn unpack(message: &mut Received<Packed>) -> (i64, f64, usize) {
    let number = message.unpack_one().expect("unpacking the number");
    let sum = message.unpack::<f64>().expect("unpacking the reals").iter().sum();
    let text = message.unpack_str().expect("unpacking the text");
    (number, sum, text.len())
}

/// 8 bytes, inside the cell.
#[inline(never)]
pub fn vi_post_send(vi: &mut Vi, send: Descriptor) {
    vi.post_send(send).expect("posting a send");
}

/// Of a send that is over.
#[inline(never)]
pub fn vi_send_done(vi: &mut Vi) -> Completion {
    vi.send_done().expect("the send is over")
}

/// Names the receive queue of a message that has come.
#[inline(never)]
pub fn cq_poll_found(cq: &mut Cq) -> CqEntry {
    cq.poll().expect("a message has come")
}

#[inline(never)]
pub fn cq_poll_empty(cq: &mut Cq) -> bool {
    cq.poll().is_none()
}

/// 8 bytes, into the descriptor that was posted.
#[inline(never)]
pub fn vi_receive_done(vi: &mut Vi) -> Completion {
    vi.receive_done().expect("the message has come on this queue")
}

#[inline(never)]
pub fn vi_post_receive(vi: &mut Vi, receive: Descriptor) {
    vi.post_receive(receive).expect("posting a receive");
}

/// 64 bytes, without immediate data: one copy into the peer's window.
#[inline(never)]
pub fn rdma_write(vi: &mut Vi, write: Descriptor) {
    vi.post_send(write).expect("posting an RDMA write");
}
