//! Counters of the library's work.

use crate::common::{alone, asynchronous, patterned};

#[test]
fn counts_add_up_over_mailboxes_and_postboxes_that_are_gone() {
    let world = alone(16 << 20);
    let (mut messages, mut bytes) = (0, 0);
    for round in 0..3 {
        let inbox = world.mailbox::<u8>("in").unwrap();
        for protocol in asynchronous() {
            let out = world.postbox::<u8>("in").unwrap();
            out.set_protocol(protocol).unwrap();
            for len in [0, 10, 10_000 + round] {
                out.post(patterned(&world, 1, len).unwrap()).unwrap();
                (messages, bytes) = (messages + 1, bytes + len as u64);
                let before = world.stats();
                assert_eq!((before.messages_posted, before.bytes_posted), (messages, bytes));
                assert_eq!(before.messages_retrieved, messages - 1);
                if round == 1 {
                    inbox.retrieve_into(&mut vec![0; len]).unwrap();
                } else {
                    inbox.retrieve().unwrap();
                }
                let after = world.stats();
                assert_eq!((after.messages_retrieved, after.bytes_retrieved), (messages, bytes));
            }
        }
    }
}

#[test]
fn what_failed_is_not_counted() {
    let world = alone(16 << 20);
    let inbox = world.mailbox::<u8>("in").unwrap();
    let out = world.postbox::<u8>("in").unwrap();
    out.post(patterned(&world, 1, 100).unwrap()).unwrap();
    assert!(inbox.retrieve_into(&mut [0; 10]).is_err());
    assert_eq!(world.stats().messages_retrieved, 0);
    drop(inbox);
    out.post(patterned(&world, 1, 100).unwrap()).unwrap_err();
    assert_eq!(world.stats().messages_posted, 1);
}
