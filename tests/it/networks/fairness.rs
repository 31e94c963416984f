//! Many postboxes flood one mailbox: the test counts whose messages it returns, and the memory that they take. It
//! does not measure time.

use crate::common::{alone, patterned};
use udeck::{Error, Mailbox, Postbox, World};

/// Average number of messages retrieved from each postbox.
const EACH: usize = 200;
/// Largest allowed ratio of the most favoured postbox to the least favoured.
const RATIO: f64 = 1.2;

/// A mailbox and its postboxes in a world of one rank. Each postbox posts until it refuses, so its queue is full
/// whenever the mailbox polls.
struct Flood {
    world: World,
    inbox: Mailbox<u8>,
    postboxes: Vec<Postbox<u8>>,
    /// Length of each message in bytes.
    len: usize,
}

impl Flood {
    fn new(clones: usize, len: usize) -> Self {
        let world = alone(512 << 20);
        let inbox = world.mailbox_with_queue("in", 0).unwrap();
        let postboxes = (0..clones).map(|_| world.postbox("in").unwrap()).collect();
        Flood { world, inbox, postboxes, len }
    }

    fn fill(&self, at: usize) {
        loop {
            match self.postboxes[at].try_post(patterned(&self.world, at, self.len).unwrap()) {
                Ok(()) => {}
                Err(refused) if matches!(refused.error, Error::WouldBlock { .. }) => return,
                Err(refused) => panic!("{refused}"),
            }
        }
    }

    /// Number of messages returned from each postbox. `look` is called now and then.
    fn served(&self, messages: usize, mut look: impl FnMut()) -> Vec<usize> {
        let mut served = vec![0; self.postboxes.len()];
        (0..self.postboxes.len()).for_each(|at| self.fill(at));
        for number in 0..messages {
            let at = self.inbox.retrieve().unwrap().tag() as usize;
            served[at] += 1;
            self.fill(at);
            if number % 1000 == 0 {
                look();
            }
        }
        served
    }
}

/// Some postboxes are polled and the others ring: neither kind has an advantage, whichever is in the majority.
#[test]
fn a_flooded_mailbox_serves_its_postboxes_alike() {
    for clones in [2, 8, 9, 12, 40, 300, 1000] {
        let flood = Flood::new(clones, 8);
        let served = flood.served(clones * EACH, || {});
        let (least, most) = (served.iter().min().unwrap(), served.iter().max().unwrap());
        assert!(
            *most as f64 <= RATIO * *least as f64,
            "of {clones} postboxes the least and the most served: {least} and {most} of {EACH} messages"
        );
    }
}

/// The bound is, for each postbox, the contents of a connection and one message that waits; plus the message that is just being
/// posted and the one just retrieved.
#[test]
fn a_flood_takes_no_more_memory_than_its_queues_hold() {
    const CLONES: usize = 200;
    const LEN: usize = 1000;
    let flood = Flood::new(CLONES, LEN);
    let nic = flood.world.nic().clone();
    let queue = nic.attributes().max_descriptors_per_queue;
    let bound = CLONES * (queue + 1) + 2;
    let (mut most, mut bytes) = (0, 0);
    flood.served(CLONES * EACH, || {
        let usage = nic.outbox().usage();
        (most, bytes) = (most.max(usage.blocks), bytes.max(usage.used));
    });
    assert!(most > CLONES * queue / 2, "{most} messages are no flood");
    assert!(most <= bound, "{most} blocks, {bound} are the bound");
    // Blocks are rounded up.
    assert!(bytes <= bound * LEN.next_power_of_two(), "{bytes} bytes in {most} blocks");

    let Flood { world, inbox, postboxes, .. } = flood;
    drop((inbox, postboxes));
    // Unread messages come back when the connections have ended, on both sides.
    nic.reclaim();
    assert_eq!(nic.outbox().usage().used, 0);
    let error = world.finish().unwrap_err();
    let Error::Multiple(lost) = &error else { panic!("{error}") };
    assert_eq!(lost.len(), CLONES, "at each postbox one waited");
}
