//! The rank whose bytes are spoilt: a world like any other, which posts by every protocol and reads its messages. Its calls
//! may fail, but must return.

use std::time::{Duration, Instant};

use udeck::{Mailbox, NicOptions, Postbox, World};
use udeck_boot::Client;

use crate::common::clock::within_deadline;
use crate::common::{LONG, PROTOCOLS, config};
use crate::random::Random;

/// Message memory of each rank, in bytes.
const ARENA: usize = 8 << 20;

/// Makes a world over one transport.
pub fn world(transport: &str, stream: std::os::unix::net::UnixStream) -> World {
    let client = Client::new(stream).expect("a rank");
    let mut options = NicOptions::new(client.keys());
    options.arena = Some(ARENA);
    let nic = udeck::open_nic(&format!("{transport}0"), &options).expect("a NIC");
    let mut config = config();
    // This deadline bounds the effect of a peer's bytes on a call without a limit of its own.
    config.deadline = LONG / 3;
    World::new(client, vec![nic], config, true).expect("its own NIC")
}

/// A poster to another rank's mailbox, which makes a new postbox after a failure.
pub struct Poster {
    pub to: &'static str,
    out: Option<Postbox<u8>>,
}

impl Poster {
    pub fn new(to: &'static str) -> Self {
        Poster { to, out: None }
    }

    pub fn post(&mut self, world: &World, random: &mut Random) {
        let soon = Duration::from_millis(20 + random.below(150) as u64);
        let made = self.out.take().or_else(|| {
            within_deadline(soon * 4, "making a postbox", || world.postbox_timeout::<u8>(self.to, soon * 4))
                .ok()
        });
        let Some(out) = made else { return };
        let len = random.len();
        let Ok(buf) = within_deadline(soon, "a buffer", || world.buf_timeout::<u8>(len, soon)) else {
            return;
        };
        // A protocol that the transport lacks is not set.
        let _ = out.set_protocol(random.pick(&PROTOCOLS));
        let posted = within_deadline(soon, "a post", || out.post_timeout(buf, soon));
        let ended = posted.is_err() || random.one_in(30);
        if random.one_in(12) {
            let _ = within_deadline(soon, "a flush", || out.flush_timeout(soon));
        }
        if ended && !random.one_in(3) {
            within_deadline(LONG, "dropping a postbox", || drop(out));
        } else {
            self.out = Some(out);
        }
    }
}

/// Runs until `is_over`, or for the given number of steps. `between` does harm.
pub fn run(
    world: World,
    back: Mailbox<u8>,
    mut random: Random,
    mut between: impl FnMut(&mut Random),
    is_over: impl Fn() -> bool,
) {
    let mut poster = Poster::new("in");
    let end = Instant::now() + LONG;
    for _ in 0..2000 {
        if is_over() || Instant::now() > end {
            break;
        }
        match random.below(8) {
            0..4 => poster.post(&world, &mut random),
            4 | 5 => read(&back, &mut random),
            _ => between(&mut random),
        }
    }
    drop((poster, back));
    if random.one_in(2) {
        let _ = within_deadline(LONG, "finishing", || world.finish_timeout(Duration::from_secs(1)));
    }
}

/// Reads the messages that have arrived, whatever they are.
pub fn read(inbox: &Mailbox<u8>, random: &mut Random) {
    for _ in 0..random.below(6) {
        let soon = Duration::from_millis(random.below(10) as u64);
        match within_deadline(soon, "a retrieve", || inbox.retrieve_timeout(soon)) {
            Ok(message) => {
                std::hint::black_box(message.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)));
            }
            Err(_) => return,
        }
    }
}
