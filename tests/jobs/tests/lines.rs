//! The cost of a short message in shared memory: one cache line that travels, and now and then another.
//!
//! A line *travels* when one side accesses it after the other has written it, or writes it while the other has a copy:
//! this, and not the access itself, takes time between two processors. Lines that are not written (whether the other
//! side has closed, whether it sleeps) stay where they are. The number of such lines that are read is bounded, too, so
//! that an additional one is noticed.

use std::collections::{BTreeMap, BTreeSet};

use udeck::{Mailbox, Postbox, World};
use udeck_sys::access_trace::{Access, trace};

const LINE: usize = 64;
/// Number of messages that are counted.
const MESSAGES: usize = 4096;
/// Number of messages until the ring is polled and every line is in its place.
const WARM_UP: usize = 256;

/// A line of a shared segment, the same for all processes that map it: inode, and index of the line.
type Line = (u64, usize);

/// The shared mappings of this process: start, end, offset, inode.
struct Maps(Vec<(usize, usize, usize, u64)>);

impl Maps {
    fn read() -> Self {
        let text = std::fs::read_to_string("/proc/self/maps").unwrap();
        let hex = |text: &str| usize::from_str_radix(text, 16).unwrap();
        let shared = text.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let (start, end) = fields[0].split_once('-')?;
            fields[1]
                .ends_with('s')
                .then(|| (hex(start), hex(end), hex(fields[2]), fields[4].parse().unwrap()))
        });
        Maps(shared.collect())
    }

    /// The line of a word, if the word is in shared memory.
    fn line(&self, address: usize) -> Option<Line> {
        let (start, _, offset, inode) = self.0.iter().find(|map| (map.0..map.1).contains(&address))?;
        Some((*inode, (address - start + offset) / LINE))
    }
}

/// Owners of copies of each line: a model of caches of unlimited size.
#[derive(Default)]
struct Caches(BTreeMap<Line, BTreeSet<CacheOwner>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CacheOwner {
    Sender,
    Receiver,
}

impl Caches {
    /// Records an access. Returns whether the line travels for it.
    fn travels(&mut self, line: Line, side: CacheOwner, wrote: bool) -> bool {
        let holders = self.0.entry(line).or_default();
        let only = holders.iter().all(|holder| *holder == side);
        let travels = !holders.contains(&side) || (wrote && !only);
        if wrote {
            holders.clear();
        }
        holders.insert(side);
        travels
    }
}

/// Sums over all messages.
#[derive(Debug, Default)]
struct Cost {
    /// Number of lines that travelled, each counted once per message.
    travelled: usize,
    /// Number of lines that the sender touched, and that the receiver touched, each counted once per message.
    sent: usize,
    received: usize,
}

fn measure(out: &Postbox<u64>, inbox: &Mailbox<u64>) -> Cost {
    let exchange = |number: u64| {
        let (posted, by_sender) = trace(|| out.post(&[number][..]).map_err(udeck::Error::from));
        posted.unwrap();
        let (received, by_receiver) = trace(|| inbox.retrieve());
        assert_eq!(received.unwrap()[0], number);
        (by_sender, by_receiver)
    };
    (0..WARM_UP as u64).for_each(|number| drop(exchange(number)));
    let (maps, mut caches, mut cost) = (Maps::read(), Caches::default(), Cost::default());
    for number in 0..(WARM_UP + MESSAGES) as u64 {
        let (by_sender, by_receiver) = exchange(number);
        let mut travelled = BTreeSet::new();
        let mut touched = |touches: &[Access], side| {
            let lines = touches.iter().filter_map(|touch| Some((maps.line(touch.address)?, touch.wrote)));
            let mut distinct = BTreeSet::new();
            for (line, wrote) in lines {
                distinct.insert(line);
                if caches.travels(line, side, wrote) {
                    travelled.insert(line);
                }
            }
            distinct.len()
        };
        let (sent, received) =
            (touched(&by_sender, CacheOwner::Sender), touched(&by_receiver, CacheOwner::Receiver));
        // The first messages fill the caches.
        if number >= WARM_UP as u64 {
            cost.sent += sent;
            cost.received += received;
            cost.travelled += travelled.len();
        }
    }
    cost
}

#[test]
fn a_short_message_costs_one_shared_line() {
    udeck::run_local(1, |world: World| {
        let inbox = world.mailbox::<u64>("lines")?;
        let out = world.postbox::<u64>("lines")?;
        let cost = measure(&out, &inbox);
        println!("{cost:?} of {MESSAGES} messages");
        assert!(cost.travelled >= MESSAGES, "the cell travels with every message: {cost:?}");
        // The receiver's credit: the receiver writes it, and the sender reads it.
        let extra = cost.travelled - MESSAGES;
        assert!(
            extra * 8 <= MESSAGES,
            "more than one line in eight messages travels beside the cells: {cost:?}"
        );
        // The sender reads the cell, whether the receiver polls, and whether it has closed.
        assert!(cost.sent <= 3 * MESSAGES, "a post looks at more than three lines: {cost:?}");
        // The receiver touches the cell, its own progress, which no other side reads, and now and then the credit,
        // whether the sender waits for it, and the doorbell.
        assert!(cost.received * 4 <= 9 * MESSAGES, "a retrieve looks at more than two lines: {cost:?}");
        drop((inbox, out));
        world.finish()
    })
    .unwrap();
}
