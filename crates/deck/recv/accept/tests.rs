//! Tests of connections that come in while others end, and of connections that are not encrypted.

use std::cell::RefCell;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use udeck_boot::{Client, Host, local::Job, serve::Service, server};
use udeck_via::{Cq, Deadline, NetAddress, Vi, ViAttributes};

use super::super::Inbox;
use super::Acceptor;
use crate::wire::{Introduction, Role};
use crate::{Config, Error, MailboxOptions, Protocol, ServiceLevel, World, interruptible};

/// The last step of accepting a data VI may run after another NIC's request. Then the connection that the
/// data VI belongs to has ended meanwhile, and its context is another postbox's.
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
    let mut inbox = Inbox::open(&owner.state, "in", ServiceLevel::default()).unwrap();
    owner.state.advertise("in", "u8", 1, &MailboxOptions::new()).unwrap();
    let acceptor = inbox.acceptor.clone();
    let wait_for = |connections| {
        while acceptor.accepted() < connections {
            thread::sleep(Duration::from_millis(1));
        }
    };

    let (out, message) = (first.postbox::<u8>("in").unwrap(), first.buf(100).unwrap());
    wait_for(1);
    inbox.add_accepted();
    let posting = thread::spawn(move || out.post_with(Protocol::Handshake, message).is_err());
    wait_for(2);
    let late = acceptor.take_accepted();
    assert_eq!(late.iter().map(|(context, _)| *context).collect::<Vec<_>>(), [0]);
    assert!(inbox.end_connection(0, None).is_ok());
    let _another = second.postbox::<u8>("in").unwrap();
    wait_for(3);
    acceptor.waiting.lock().extend(late);
    inbox.add_accepted();
    let connection = inbox.connections[0].as_ref().expect("the context of the one that has ended");
    assert_eq!(connection.postbox(), (2, 0));
    assert!(connection.data.is_none(), "it is of rank 1's postbox");
    assert!(posting.join().unwrap(), "its connection has ended");
}

/// A signal's handler interrupts once. That interrupt is not lost if the answer comes at the same moment.
#[test]
fn a_signal_ends_a_connect_that_is_answered_meanwhile() {
    thread_local!(static ANSWER: RefCell<Option<(mpsc::Sender<()>, Arc<Acceptor>)>> = const { RefCell::new(None) });
    /// Accepts the connection, and interrupts.
    fn interrupted() -> bool {
        ANSWER.with_borrow(|answer| {
            let (let_in, acceptor) = answer.as_ref().unwrap();
            if !acceptor.is_admitting() {
                return false;
            }
            let_in.send(()).unwrap();
            while acceptor.accepted() == 0 {
                thread::sleep(Duration::from_millis(1));
            }
            true
        })
    }
    let (_job, streams) = Job::new(2).unwrap();
    let fabric = udeck_sim::Fabric::new(1);
    let mut worlds = streams.into_iter().zip(["owner", "poster"]).map(|(stream, name)| {
        let client = Client::new(stream).unwrap();
        let options = udeck_sim::Options { keys: client.keys(), ..udeck_sim::Options::default() };
        World::new(client, vec![fabric.nic(name, options).unwrap()], Config::default(), true).unwrap()
    });
    let (owner, poster) = (worlds.next().unwrap(), worlds.next().unwrap());
    let inbox = Inbox::open(&owner.state, "in", ServiceLevel::default()).unwrap();
    owner.state.advertise("in", "u8", 1, &MailboxOptions::new()).unwrap();
    let (let_in, is_let_in) = mpsc::channel();
    let (hold, is_held) = mpsc::channel();
    let acceptor = inbox.acceptor.clone();
    let holder = thread::spawn(move || {
        let _waiting = acceptor.waiting.lock();
        hold.send(()).unwrap();
        is_let_in.recv().unwrap();
    });
    is_held.recv().unwrap();
    ANSWER.set(Some((let_in, inbox.acceptor.clone())));
    let connected = interruptible(interrupted, || poster.postbox::<u8>("in"));
    assert!(matches!(connected, Err(Error::Interrupted)), "{:?}", connected.map(drop));
    holder.join().unwrap();
}

/// Makes a job of one rank on each of two hosts, both with a simulated NIC, which does not encrypt.
fn on_two_hosts(encrypt: [bool; 2]) -> (thread::JoinHandle<std::io::Result<()>>, [World; 2]) {
    let host = |name: &str| Host { name: name.into(), ranks: 1 };
    let config = server::Config::new(2).unwrap().on(vec![host("here"), host("there")], None);
    let pairs: [_; 2] = std::array::from_fn(|_| UnixStream::pair().unwrap());
    let (ours, theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    let service = Service::new(config, ours).unwrap();
    let service = thread::spawn(|| service.run());
    let fabric = udeck_sim::Fabric::new(1);
    let mut worlds =
        theirs.into_iter().zip(["here", "there"]).zip(encrypt).map(|((stream, name), encrypt)| {
            let client = Client::new(stream).unwrap();
            let options = udeck_sim::Options { keys: client.keys(), ..udeck_sim::Options::default() };
            let config = Config { encrypt, ..Config::default() };
            World::new(client, vec![fabric.nic(name, options).unwrap()], config, true).unwrap()
        });
    let worlds = std::array::from_fn(|_| worlds.next().unwrap());
    (service, worlds)
}

/// The mailbox decides by its own knowledge of encryption: the caller may not have looked, and may not have
/// been told.
#[test]
fn who_insists_on_encryption_refuses_other_hosts_that_do_without() {
    for (encrypt, wanted) in [([false; 2], None), ([true, false], Some("DECK_ENCRYPT=1"))] {
        let (_service, [owner, other]) = on_two_hosts(encrypt);
        let inbox = owner.mailbox::<u8>("in").unwrap();
        let nic = other.nic();
        let deadline = Deadline::after(Duration::from_secs(100));
        other.state.client().lookup("in", false, deadline.instant()).unwrap();
        let to = NetAddress { host: owner.nic().attributes().address.clone(), discriminator: b"in".to_vec() };
        for role in [Role::Control, Role::Data(1)] {
            let mut attributes = ViAttributes::new(nic.ptag());
            attributes.peer = Some(0);
            let (mut vi, cq) = (Vi::new(nic, attributes).unwrap(), Cq::new(nic).unwrap());
            let introduction = Introduction { postbox: 0, role }.encode();
            let answer = vi.connect(&to, &cq.handle(), &cq.handle(), &introduction, deadline);
            let answer = answer.err().map(|error| error.to_string()).unwrap_or_default();
            match wanted {
                Some(wanted) => assert!(answer.contains(wanted), "{role:?}: {answer}"),
                None => assert!(!answer.contains("DECK_ENCRYPT"), "{role:?}: {answer}"),
            }
        }
        drop(inbox);
    }
}
