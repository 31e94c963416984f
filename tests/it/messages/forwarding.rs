//! Forwarding: a received message is posted on, without a copy if it lies in this rank's memory.

use crate::common::{PROTOCOLS, alone, are_crowded, assert_pattern, config, patterned, ranks_over};
use udeck::{Error, Packed, Protocol, World};

/// Sends a message round a ring of ranks, and asserts the number of copies.
fn goes_round(transport: &'static str, protocol: Protocol, len: usize, copies: Option<u64>) {
    ranks_over(
        transport,
        3,
        |_| config(),
        are_crowded,
        move |world| {
            let inbox = world.mailboxes::<u8>("ring")?;
            let next = world.postbox_of::<u8>("ring", (world.rank() + 1) % world.size())?;
            if next.set_protocol(protocol).is_err() {
                world.barrier()?; // a transport without it
                return world.finish();
            }
            if world.rank() == 0 {
                next.post(patterned(&world, 7, len)?)?;
            }
            let received = inbox.retrieve()?;
            assert_eq!((received.tag(), received.source()), (7, (world.rank() + 2) % 3));
            if world.rank() == 0 {
                assert_pattern(&received, 7, len);
            } else {
                let before = world.stats().bytes_copied;
                next.post(received)?;
                let copied = world.stats().bytes_copied - before;
                if let Some(copies) = copies {
                    assert_eq!(copied, copies * len as u64, "{transport}, {protocol}");
                }
            }
            world.barrier()?;
            world.finish()
        },
    );
}

#[test]
fn a_received_message_goes_round_by_every_protocol() {
    for transport in ["shm", "tcp", "udp"] {
        for protocol in PROTOCOLS {
            for len in [0, 30, 50_000] {
                goes_round(transport, protocol, len, None);
            }
        }
    }
}

/// Over TCP the message was received in this rank's own memory. Over shared memory it lies in its sender's memory, which only the
/// sender may lend, unless it was copied on the way here.
#[test]
fn it_is_copied_only_where_it_lies_elsewhere() {
    goes_round("tcp", Protocol::Auto, 50_000, Some(0));
    goes_round("tcp", Protocol::HandOff, 50_000, Some(0));
    goes_round("shm", Protocol::HandOff, 50_000, Some(1));
    goes_round("shm", Protocol::RdmaRead, 50_000, Some(0));
}

#[test]
fn one_that_cannot_be_posted_comes_back() {
    let world = alone(16 << 20);
    let (inbox, gone) = (world.mailbox::<u8>("in").unwrap(), world.mailbox::<u8>("gone").unwrap());
    let (out, dead) = (world.postbox::<u8>("in").unwrap(), world.postbox::<u8>("gone").unwrap());
    drop(gone);
    for protocol in crate::common::asynchronous() {
        out.set_protocol(protocol).unwrap();
        for len in [0, 20, 5000] {
            out.post(patterned(&world, 3, len).unwrap()).unwrap();
            let failed = dead.post(inbox.retrieve().unwrap()).unwrap_err();
            assert!(matches!(failed.error, Error::MailboxGone { .. }), "{}", failed.error);
            let back = failed.message.expect("nobody saw it");
            assert_eq!((back.source(), back.tag()), (0, 3));
            assert_pattern(&back, 3, len);
            out.post(back).unwrap();
            assert_pattern(&inbox.retrieve().unwrap(), 3, len);
        }
    }
}

#[test]
fn over_tcp_one_that_finds_no_room_comes_back() {
    let world = over_tcp();
    let (inbox, gone) = (world.mailbox::<u8>("in").unwrap(), world.mailbox::<u8>("gone").unwrap());
    let (out, dead) = (world.postbox::<u8>("in").unwrap(), world.postbox::<u8>("gone").unwrap());
    drop(gone);
    out.post(patterned(&world, 3, 5000).unwrap()).unwrap();
    let mut message = inbox.retrieve().unwrap();
    // Perhaps only the second post sees the end.
    let back = loop {
        match dead.post(message) {
            Ok(()) => {
                out.post(patterned(&world, 3, 5000).unwrap()).unwrap();
                message = inbox.retrieve().unwrap();
            }
            Err(failed) => break failed.message.expect("nobody saw it"),
        }
    };
    assert_pattern(&back, 3, 5000);
}

fn over_tcp() -> World {
    udeck::init_with(config().over("tcp")).expect("a world of one")
}

#[test]
fn a_packed_message_is_posted_on_as_it_is() {
    let world = alone(8 << 20);
    let (inbox, out) = (world.mailbox::<Packed>("in").unwrap(), world.postbox::<Packed>("in").unwrap());
    let mut message = world.message(1000).unwrap();
    message.pack(&[1.5_f64; 100]).unwrap().pack_str("on").unwrap();
    out.post(message).unwrap();
    let received = inbox.retrieve().unwrap();
    assert_eq!(received.unpack::<f64>().unwrap(), [1.5; 100]);
    out.post(received).unwrap();
    let received = inbox.retrieve().unwrap();
    // The message is read from the start again, and both items may be held at once.
    let (numbers, text) = (received.unpack::<f64>().unwrap(), received.unpack_str().unwrap());
    assert_eq!((numbers.len(), text), (100, "on"));
}
