//! Messages that have come when a program closes its VI, and were not taken.

use std::sync::Arc;

use udeck_via::mem::Rights;
use udeck_via::transport::{Hello, PostedBuffer, TransferStatus, ViEndpoint};
use udeck_via::{Ptag, Reliability, RemoteBuffer};

use super::early::core;
use super::{alone, soon};
use crate::connection::Connection;
use crate::core::Core;
use crate::endpoint::VerbsEndpoint;
use crate::link::VerbsLink;
use crate::oob::Oob;

/// Two NICs without helpers, and a connection between them: only the test's own calls make progress.
fn connected() -> [(Arc<Core>, VerbsEndpoint); 2] {
    let (a, b) = (core(), core());
    let tag = Some(Ptag(7));
    let hello = Hello {
        reliability: Reliability::Reception,
        writable_ptag: tag,
        readable_ptag: tag,
        private_data: Vec::new(),
    };
    let mut queues = [&a, &b].map(|core| core.queue(&hello).unwrap());
    let [parameters_a, parameters_b] = [a.parameters(&queues[0].1), b.parameters(&queues[1].1)];
    a.join(&mut queues[0].1, &parameters_b).unwrap();
    b.join(&mut queues[1].1, &parameters_a).unwrap();
    let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
    let [(number_a, queue_a), (number_b, queue_b)] = queues;
    let endpoint = |core: &Arc<Core>, number, queue, socket, requested| {
        let connection = Connection::new(&core.memory, &hello, &hello, 1 << 20);
        let link = VerbsLink::new(core, number, connection, queue, socket, requested);
        core.completions.add(number, &link);
        VerbsEndpoint::new(link)
    };
    let (port_a, port_b) = (
        endpoint(&a, number_a, queue_a, Oob::new(one.into()), true),
        endpoint(&b, number_b, queue_b, Oob::new(other.into()), false),
    );
    [(a, port_a), (b, port_b)]
}

/// The data of a write are in place as soon as the frame behind it has come, whichever thread has polled.
#[test]
fn a_write_that_has_come_before_the_close_has_arrived() {
    let _alone = alone();
    let [(a, mut sender), (b, mut receiver)] = connected();
    let handle = b.windows.expose(0, 0, Ptag(7), Rights::WRITE, false).unwrap();
    let to = RemoteBuffer { handle, offset: 0, len: 0 };
    let status = |sender: &mut VerbsEndpoint, number, look: &dyn Fn()| {
        let deadline = soon();
        loop {
            look();
            match sender.poll_completion() {
                Some((ended, status)) if ended == number => return status,
                Some(_) => {}
                None => assert!(!deadline.passed(), "write {number} does not end"),
            }
        }
    };
    // The first write asks for the window's place.
    sender.rdma_write(&[], to, None, PostedBuffer::Caller(1)).unwrap();
    assert_eq!(status(&mut sender, 1, &|| b.completions.take_all()), TransferStatus::Arrived);

    sender.rdma_write(&[], to, None, PostedBuffer::Caller(2)).unwrap();
    let deadline = soon();
    while !a.completions.links().iter().all(|link| link.is_done()) {
        assert!(!deadline.passed(), "it does not leave");
        a.completions.take_all();
    }
    receiver.close(None);
    assert_eq!(status(&mut sender, 2, &|| b.completions.take_all()), TransferStatus::Arrived);
    [a, b]
        .iter()
        .for_each(|core| core.completions.links().iter().for_each(|link| link.give_up("the test is over")));
}
