//! Liars: a peer that announces data that do not exist ends its own connection, and nothing else.

use crate::common::liar::{
    ACK, ASK_COPY, ASK_READ, ASK_WRITE, EAGER, FIN, FRAGMENT, HAND_OFF, Liar, MAX_ANNOUNCED, PAIR, REQUEST,
    introduction,
};
use crate::common::{alone, assert_pattern, patterned, ranks};
use udeck::via::{Cq, Deadline, NetAddress, Reliability, Vi, ViAttributes};
use udeck::{Error, Mailbox, Protocol, World};
use udeck_faults::{BrokenPromises, Fault, When, wrapped};

fn inbox(world: &World) -> Mailbox<u8> {
    world.mailbox("in").unwrap()
}

/// Asserts that the liar's connection ends, that the mailbox says so, and that others post as before.
fn assert_caught(world: &World, inbox: &Mailbox<u8>) {
    let error = inbox.retrieve().unwrap_err();
    let Error::PeerLost { rank: 0, how } = &error else { panic!("{error}") };
    assert!(how.contains("broke the message protocol"), "{how}");
    let out = world.postbox::<u8>("in").unwrap();
    out.post_with(Protocol::RdmaRead, patterned(world, 4, 1000).unwrap()).unwrap();
    assert_pattern(&inbox.retrieve().unwrap(), 4, 1000);
}

#[test]
fn a_message_that_lies_nowhere() {
    for handle in [0, 7, u32::MAX] {
        let world = alone(8 << 20);
        let inbox = inbox(&world);
        let mut liar = Liar::of(&world);
        liar.say(ASK_READ, handle, 0, &100_u64.to_le_bytes());
        assert_caught(&world, &inbox);
    }
}

#[test]
fn a_message_shorter_than_announced() {
    let world = alone(8 << 20);
    let inbox = inbox(&world);
    let mut liar = Liar::of(&world);
    let ptag = liar.vi.attributes().ptag;
    let block = world.nic().region(100, ptag).unwrap().into_block().unwrap();
    let readable = world.nic().readable(block, ptag).unwrap();
    liar.say(ASK_READ, readable.remote().handle.0, 0, &101_u64.to_le_bytes());
    assert_caught(&world, &inbox);
}

#[test]
fn a_message_longer_than_any() {
    let world = alone(8 << 20);
    let inbox = inbox(&world);
    let mut liar = Liar::of(&world);
    liar.say(ASK_READ, 7, 0, &u64::MAX.to_le_bytes());
    assert!(inbox.try_retrieve().unwrap().is_none(), "it is refused, and nothing is waited for");
    assert!(liar.vi.arrival().unwrap().is_some(), "the sender is told");
}

/// The announcement is refused although memory that was granted to the peer is not filled yet, and nobody waits
/// behind it.
#[test]
fn a_message_longer_than_any_behind_one_that_never_comes() {
    for (kind, protocol) in [(ASK_WRITE, Protocol::RdmaWrite), (ASK_COPY, Protocol::Copy)] {
        let world = alone(8 << 20);
        let inbox = inbox(&world);
        let mut liar = Liar::of(&world);
        for len in [100, u64::MAX] {
            liar.say(kind, 0, 0, &len.to_le_bytes());
            assert!(inbox.try_retrieve().unwrap().is_none());
            assert!(liar.vi.arrival().unwrap().is_some(), "{protocol}: {len} bytes: nobody answers");
        }
        let out = world.postbox::<u8>("in").unwrap();
        out.post_with(protocol, patterned(&world, 4, 1000).unwrap()).unwrap();
        assert_pattern(&inbox.retrieve().unwrap(), 4, 1000);
    }
}

/// Windows for the liar take half of the memory at most, nobody else is disturbed, and its end frees them.
#[test]
fn messages_that_are_announced_and_never_written() {
    const LEN: usize = 512 << 10;
    let world = alone(8 << 20);
    let inbox = inbox(&world);
    let mut liar = Liar::of(&world);
    for _ in 0..MAX_ANNOUNCED {
        liar.say(ASK_WRITE, 0, 0, &(LEN as u64).to_le_bytes());
    }
    let out = world.postbox::<u8>("in").unwrap();
    out.post_with(Protocol::HandOff, patterned(&world, 4, LEN).unwrap()).unwrap();
    assert_pattern(&inbox.retrieve().unwrap(), 4, LEN);
    for _ in 0..3 {
        assert!(inbox.try_retrieve().unwrap().is_none());
        assert_eq!(world.nic().landing().usage().used, 4 << 20);
    }
    let error = inbox.retrieve_timeout(crate::common::SHORT).unwrap_err().to_string();
    assert!(error.contains("granted to postboxes of mailbox \"in\""), "{error}");
    liar.say(ASK_WRITE, 0, 0, &(LEN as u64).to_le_bytes());
    assert_caught(&world, &inbox);
    assert_eq!(world.nic().landing().usage().used, 0);
}

/// At most half of the memory is granted to peers' announcements, by whichever protocol. A peer that leaves makes room for the
/// next one, and only the last one's message alone may be larger.
#[test]
fn messages_that_are_announced_and_never_sent() {
    const LEN: usize = 1 << 20;
    for kind in [ASK_COPY, REQUEST] {
        let world = alone(8 << 20);
        let inbox = inbox(&world);
        let announce = |liar: &mut Liar, len: usize| match kind {
            REQUEST => liar.say(REQUEST, PAIR, len as u32, &[]),
            _ => liar.say(kind, 0, 0, &(len as u64).to_le_bytes()),
        };
        let mut liars: Vec<_> = (0..6)
            .map(|_| {
                let mut liar = Liar::of(&world);
                let data = (kind == REQUEST).then(|| liar.data_vi());
                announce(&mut liar, LEN);
                (liar, data)
            })
            .collect();
        let held_of = |liars: usize| {
            let error = inbox.retrieve_timeout(crate::common::SHORT).unwrap_err().to_string();
            let used = world.nic().outbox().usage().used;
            assert_eq!(used, (4 << 20).min(liars * LEN), "{liars} of them, kind {kind}: {error}");
            assert_eq!(error.contains("granted to postboxes of mailbox \"in\""), liars > 4, "{error}");
        };
        while !liars.is_empty() {
            held_of(liars.len());
            drop(liars.remove(0));
        }
        held_of(0);
        let mut last = Liar::of(&world);
        let _data = (kind == REQUEST).then(|| last.data_vi());
        announce(&mut last, 6 * LEN);
        assert!(inbox.try_retrieve().unwrap().is_none());
        assert_eq!(world.nic().outbox().usage().used, 6 * LEN, "alone it may be larger, kind {kind}");
    }
}

/// A message that has to wait is not overtaken by later ones for which there would be memory: otherwise it could wait
/// for ever.
#[test]
fn memory_is_granted_in_the_order_of_asking() {
    let world = alone(8 << 20);
    let inbox = inbox(&world);
    let mut liars: Vec<_> = (0..3).map(|_| Liar::of(&world)).collect();
    for (liar, len) in liars.iter_mut().zip([3_u64 << 20, 2 << 20, 1 << 19]) {
        liar.say(ASK_WRITE, 0, 0, &len.to_le_bytes());
        // The wait lasts until the mailbox has seen the announcement, and polled again since.
        let error = inbox.retrieve_timeout(crate::common::SHORT).unwrap_err();
        assert!(matches!(error, Error::Deadline { .. }), "{error}");
        assert_eq!(world.nic().landing().usage().used, 3 << 20);
    }
    // The first liar leaves, which is no loss.
    drop(liars.remove(0));
    let error = inbox.retrieve_timeout(crate::common::SHORT).unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error}");
    assert_eq!(world.nic().landing().usage().used, 5 << 19);
}

/// A post by the library lends one piece: a message that is longer than its first piece is nowhere read as one.
#[test]
fn messages_in_several_pieces() {
    for kind in [EAGER, HAND_OFF, FRAGMENT] {
        let world = alone(8 << 20);
        let inbox = inbox(&world);
        let split = Fault::lying(BrokenPromises { split: When::Chance(1.0), ..BrokenPromises::default() }, 1);
        let mut liar = Liar::at(&wrapped(world.nic(), split), "in");
        if kind == FRAGMENT {
            liar.say(ASK_COPY, 0, 0, &1000_u64.to_le_bytes());
            assert!(inbox.try_retrieve().unwrap().is_none());
            assert!(liar.vi.arrival().unwrap().is_some(), "memory is granted");
        }
        liar.lend(kind, 1000);
        assert_caught(&world, &inbox);
    }
}

#[test]
fn announcements_of_the_wrong_length_and_answers_to_nothing() {
    for (kind, rest) in [(ASK_READ, &[1_u8; 7][..]), (FIN, &[]), (ACK, &[])] {
        let world = alone(8 << 20);
        let inbox = inbox(&world);
        let mut liar = Liar::of(&world);
        liar.say(kind, 0, 0, rest);
        assert_caught(&world, &inbox);
    }
}

#[test]
fn a_second_request_while_one_is_granted() {
    let world = alone(8 << 20);
    let inbox = inbox(&world);
    let mut liar = Liar::of(&world);
    let _data = liar.data_vi();
    for _ in 0..2 {
        liar.say(REQUEST, PAIR, 100, &[]);
    }
    // The second message is not read before the first one has arrived, which delays nobody else.
    let error = inbox.retrieve_timeout(crate::common::SHORT).unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error}");
    let out = world.postbox::<u8>("in").unwrap();
    out.post(patterned(&world, 4, 1000).unwrap()).unwrap();
    assert_pattern(&inbox.retrieve().unwrap(), 4, 1000);
}

#[test]
fn a_request_without_a_pair_is_dropped() {
    let world = alone(8 << 20);
    let inbox = inbox(&world);
    let mut liar = Liar::of(&world);
    liar.say(REQUEST, PAIR, 100, &[]);
    assert!(inbox.try_retrieve().unwrap().is_none());
    assert!(liar.vi.arrival().unwrap().is_none(), "nobody answers it");
}

#[test]
fn a_data_vi_of_nobody_is_refused() {
    ranks(1, |world| {
        let _inbox = inbox(&world);
        let nic = world.nic();
        let to = NetAddress { host: nic.attributes().address.clone(), discriminator: b"in".to_vec() };
        let mut attributes = ViAttributes::new(nic.ptag());
        attributes.reliability = Reliability::Reception;
        attributes.peer = nic.attributes().identity;
        let (cq, mut vi) = (Cq::new(nic).unwrap(), Vi::new(nic, attributes).unwrap());
        let handle = cq.handle();
        let refused =
            vi.connect(&to, &handle, &handle, &introduction(PAIR), Deadline::after(crate::common::LONG));
        assert!(refused.unwrap_err().to_string().contains("no control VI"));
        world.finish()
    });
}
