//! An honest rank beside hostile ones, and the mailbox that all of them post to: the honest rank's messages arrive, complete and in
//! order, and the resources that the others have used are given back.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use udeck::{Error, Mailbox, Protocol, Received, Result, World};

use super::clock::within_deadline;
use super::watch::eventually;
use super::{LONG, PROTOCOLS, assert_pattern, patterned};

/// Largest number of polls until nothing is left: more than the messages that the others can have sent.
pub const POLLS: usize = 10_000;

/// Order to post: protocol, number, length.
type Order = (Protocol, usize, usize);

/// Reads the mailbox "in", and knows its expected messages.
pub struct Judge {
    inbox: Mailbox<u8>,
    orders: Sender<Order>,
    posted: Receiver<()>,
    poster: JoinHandle<Result>,
    next: usize,
    /// Checks a message that does not come from the honest rank.
    others: fn(&Received<u8>),
}

impl Judge {
    /// Makes the judge. The mailbox belongs to rank 0, `victim`; `honest` is rank 1, whose first message has
    /// arrived.
    pub fn new(victim: &World, honest: World, others: fn(&Received<u8>)) -> Self {
        let inbox = victim.mailbox::<u8>("in").expect("the name is free");
        let (orders, posted, poster) = poster(honest);
        let mut judge = Judge { inbox, orders, posted, poster, next: 0, others };
        judge.honest(Protocol::Auto, 1000);
        judge
    }

    /// Has a message posted, and retrieves it, whatever the others have sent meanwhile.
    pub fn honest(&mut self, protocol: Protocol, len: usize) {
        let number = self.next;
        self.orders.send((protocol, number, len)).expect("the honest rank lives");
        while self.next == number {
            let message = self.inbox.retrieve_timeout(LONG);
            assert!(
                !matches!(message, Err(Error::Deadline { .. })),
                "message {number} by {protocol}: {message:?}"
            );
            self.judge(message, Some((number, len)));
        }
        self.posted.recv_timeout(LONG).expect("the post of the honest rank is over");
    }

    /// Takes the messages that have arrived, in at most `most` polls. Returns whether none is left.
    pub fn poll(&mut self, most: usize) -> bool {
        for _ in 0..most {
            match within_deadline(Duration::ZERO, "a poll", || self.inbox.try_retrieve()).transpose() {
                Some(message) => self.judge(message, None),
                None => return true,
            }
        }
        false
    }

    fn judge(&mut self, message: Result<Received<u8>>, expected: Option<(usize, usize)>) {
        match message {
            Ok(message) if message.source() == 1 => {
                let (number, len) = expected.expect("nobody was told to post");
                assert_eq!(message.tag() as usize, number);
                assert_pattern(&message, number, len);
                self.next += 1;
            }
            // The bytes are arbitrary, but they can be read.
            Ok(message) => {
                assert_ne!(message.source(), 0);
                (self.others)(&message);
                std::hint::black_box(message.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)));
            }
            Err(Error::PeerLost { rank, .. }) => assert!(rank > 1, "rank {rank} is innocent"),
            Err(error) => panic!("{error}"),
        }
    }

    /// Checks after the others' end that every protocol still works, and that the victim's memory holds nothing from them or for
    /// them, except what was allocated `before` they came.
    pub fn outlives_the_others(&mut self, victim: &World, before: [usize; 2], case: &str) {
        for protocol in PROTOCOLS {
            self.honest(protocol, 3000);
        }
        eventually(
            || {
                assert!(self.poll(POLLS), "{case}: there is always something");
                before.iter().zip(blocks(victim)).all(|(before, now)| now <= *before).then_some(())
            },
            || format!("{case}: blocks of outbox and landing: {:?}, were {before:?}", blocks(victim)),
        );
    }

    /// Ends the honest rank, and then the mailbox.
    pub fn end(self) {
        drop(self.orders);
        self.poster.join().expect("honest").expect("honest");
        within_deadline(LONG, "dropping a mailbox", || drop(self.inbox));
    }
}

/// Starts a rank that posts what it is ordered to.
fn poster(world: World) -> (Sender<Order>, Receiver<()>, JoinHandle<Result>) {
    let (orders, to_do) = mpsc::channel::<Order>();
    let (done, posted) = mpsc::channel();
    let poster = thread::spawn(move || {
        let out = world.postbox::<u8>("in")?;
        for (protocol, number, len) in to_do {
            let protocol = if out.set_protocol(protocol).is_ok() { protocol } else { Protocol::Auto };
            out.post_with(protocol, patterned(&world, number, len)?)?;
            let _ = done.send(());
        }
        drop(out);
        world.finish_timeout(LONG)
    });
    (orders, posted, poster)
}

/// Number of blocks of outbox and landing memory that a world has allocated.
pub fn blocks(world: &World) -> [usize; 2] {
    let nic = world.nic();
    nic.reclaim();
    [nic.outbox().usage().blocks, nic.landing().usage().blocks]
}
