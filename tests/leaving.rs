//! A rank that has posted and finished before the mailbox's side knows that its connection has come: what it posted is
//! retrieved before anybody says that nobody is left.

mod common;

use std::sync::{Mutex, mpsc};

use common::{LONG, SHORT, config};
use udeck::via::Nic;
use udeck::via::wrap::{Call, Fault, Lies, Trace, When, wrapped};
use udeck::{Error, NicOptions, ReceiveModel, World};
use udeck_boot::{Client, local::Job};

fn open(client: &Client) -> Nic {
    udeck::open_nic("shm0", &NicOptions::new(client.welcome().secret)).unwrap()
}

/// The thread that accepts is not run between the answer and its next line, until the peer has finished. (The completion
/// queue names nothing: it would name the connection, and the mailbox wait at the door.)
#[test]
fn a_message_of_a_rank_that_has_left_is_retrieved_while_its_connection_is_being_accepted() {
    let (_job, streams) = Job::new(2).expect("a name service");
    let [first, second] = <[_; 2]>::try_from(streams).unwrap().map(|stream| Client::new(stream).unwrap());
    let (leaves, has_left) = mpsc::channel();
    let leaver = std::thread::spawn(move || -> udeck::Result {
        let nic = open(&first);
        let world = World::new(first, vec![nic], config(), true)?;
        world.postbox::<u64>("in")?.post(&[7][..]).map_err(|failed| failed.error)?;
        world.finish()?;
        leaves.send(()).expect("the other side waits for it");
        Ok(())
    });
    let has_left = Mutex::new(has_left);
    let slow = Trace::new(move |event| {
        if matches!(event.call, Call::Connect { .. }) {
            has_left.lock().unwrap().recv_timeout(LONG).expect("it is answered, posts, and finishes");
            // So long the news of that have time to be heard.
            std::thread::sleep(SHORT * 4);
        }
    });
    let mute = Fault::lying(Lies { forget_wakeup: When::Chance(1.0), ..Lies::default() }, 1);
    let nic = wrapped(&wrapped(&open(&second), mute), slow);
    let mut config = config();
    config.receive = ReceiveModel::WorkQueues;
    let world = World::new(second, vec![nic], config, true).unwrap();
    let inbox = world.mailbox::<u64>("in").unwrap();
    assert_eq!(inbox.retrieve_within(LONG).expect("it was posted")[..], [7]);
    leaver.join().unwrap().unwrap();
    let error = inbox.retrieve_within(LONG).unwrap_err();
    assert!(matches!(error, Error::NobodyLeft { .. }), "{error}");
}
