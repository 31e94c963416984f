//! Connections that come in while others end.

use std::thread;
use std::time::Duration;

use udeck_boot::{Client, local::Job};

use super::super::Inbox;
use crate::{Config, Protocol, World};

/// The last step of a data VI's way in, and another NIC's request, may come the other way round: the connection that the data
/// VI belongs to has ended meanwhile, and its context is another postbox's.
#[test]
fn a_data_vi_that_comes_late_is_not_another_postboxs() {
    let (_job, streams) = Job::new(3).unwrap();
    let fabric = udeck_sim::Fabric::new(1);
    let mut worlds = streams.into_iter().zip(["owner", "first", "second"]).map(|(stream, name)| {
        let client = Client::new(stream).unwrap();
        let options = udeck_sim::Options { keys: client.keys(), ..udeck_sim::Options::default() };
        World::new(client, vec![fabric.nic(name, options).unwrap()], Config::default(), true).unwrap()
    });
    let mut next = || worlds.next().unwrap();
    let (owner, first, second) = (next(), next(), next());
    let mut inbox = Inbox::open(&owner.state, "in").unwrap();
    owner.state.advertise("in", "u8", 1).unwrap();
    let acceptor = inbox.acceptor.clone();
    let wait_for = |connections| {
        while acceptor.accepted() < connections {
            thread::sleep(Duration::from_millis(1));
        }
    };

    let (out, message) = (first.postbox::<u8>("in").unwrap(), first.buf(100).unwrap());
    wait_for(1);
    inbox.let_in();
    let posting = thread::spawn(move || out.post_with(Protocol::Handshake, message).is_err());
    wait_for(2);
    let late = acceptor.let_in();
    assert_eq!(late.iter().map(|(context, _)| *context).collect::<Vec<_>>(), [0]);
    assert!(inbox.end_connection(0, None).is_ok());
    let _another = second.postbox::<u8>("in").unwrap();
    wait_for(3);
    acceptor.waiting.lock().extend(late);
    inbox.let_in();
    let connection = inbox.connections[0].as_ref().expect("the context of the one that has ended");
    assert_eq!(connection.postbox(), (2, 0));
    assert!(connection.data.is_none(), "it is of rank 1's postbox");
    assert!(posting.join().unwrap(), "its connection has ended");
}
