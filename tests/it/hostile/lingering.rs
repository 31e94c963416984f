//! Lingering: a peer that stays inside the window of another peer's message delays this message, and nothing else.

use std::os::unix::net::UnixStream;

use crate::common::{LONG, SHORT, assert_pattern, config, patterned};
use udeck::{Error, Mailbox, NicOptions, Postbox, Protocol, World};
use udeck_boot::local::Job;
use udeck_faults::{Fault, PermittedFaults, When, wrapped};

/// A world of one rank with a peer that lingers in its windows, and its name service.
fn alone(linger: When) -> (Job, World) {
    let (job, mut streams) = Job::new(1).expect("a name service");
    (job, lingering(streams.remove(0), linger))
}

fn lingering(stream: UnixStream, linger: When) -> World {
    let client = udeck_boot::Client::new(stream).unwrap();
    let nic = udeck::open_nic("shm0", &NicOptions::new(client.keys())).unwrap();
    let fault = Fault::honest(PermittedFaults { linger, ..PermittedFaults::default() }, 1);
    World::new(client, vec![wrapped(&nic, fault)], config(), true).unwrap()
}

fn writer(world: &World) -> Postbox<u8> {
    let out = world.postbox("in").unwrap();
    out.set_protocol(Protocol::RdmaWrite).unwrap();
    out
}

#[test]
fn a_written_message_comes_when_the_windows_are_quiet() {
    let (_job, world) = alone(When::Numbers((0..20).collect()));
    let inbox = world.mailbox::<u8>("in").unwrap();
    let out = writer(&world);
    out.post(patterned(&world, 0, 5000).unwrap()).unwrap();
    out.post(patterned(&world, 1, 6000).unwrap()).unwrap();
    out.post_with(Protocol::Eager, patterned(&world, 2, 7).unwrap()).unwrap();
    for (seed, len) in [5000, 6000, 7].into_iter().enumerate() {
        assert_pattern(&inbox.retrieve_timeout(LONG).unwrap(), seed, len);
    }
}

#[test]
fn others_do_not_wait_for_a_peer_that_lingers() {
    let (_job, world) = alone(When::Chance(1.0));
    let inbox = world.mailbox::<u8>("in").unwrap();
    let (out, other) = (writer(&world), world.postbox::<u8>("in").unwrap());
    out.post(patterned(&world, 0, 5000).unwrap()).unwrap();
    let error = inbox.retrieve_timeout(SHORT).unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error}");
    assert!(error.to_string().contains("writes by RDMA, without permission"), "{error}");
    for seed in 1..5 {
        other.post(patterned(&world, seed, 100).unwrap()).unwrap();
        assert_pattern(&inbox.retrieve_timeout(LONG).unwrap(), seed, 100);
    }
    out.try_post(patterned(&world, 5, 100).unwrap()).expect("it broke no rule, and is not cut off");
}

/// The completion queue names the end of a connection once. The end is noticed although the connection is not being
/// read at that moment.
#[test]
fn the_end_of_a_connection_whose_message_is_held_up_is_heard() {
    let (_job, mut streams) = Job::new(2).expect("a name service");
    let world = lingering(streams.remove(0), When::Numbers((0..1000).collect()));
    lingering(streams.remove(0), When::default()).finish().unwrap();
    let inbox = world.mailbox::<u8>("in").unwrap();
    let out = writer(&world);
    out.post(patterned(&world, 0, 5000).unwrap()).unwrap();
    // The message is announced, granted and written; then the peer lingers.
    look_in_vain(&inbox, 20);
    drop(out);
    look_in_vain(&inbox, 20);
    assert_pattern(&inbox.retrieve_timeout(LONG).unwrap(), 0, 5000);
    let error = inbox.retrieve_timeout(LONG).unwrap_err();
    assert!(matches!(error, Error::NobodyLeft { .. }), "{error}");
}

fn look_in_vain(inbox: &Mailbox<u8>, looks: usize) {
    for _ in 0..looks {
        assert!(inbox.try_retrieve().unwrap().is_none(), "somebody lingers");
    }
}
