//! Messages of the kill tests: numbered, of many lengths, with every word known beforehand.

use std::{fmt, str::FromStr};
use udeck::{Mailbox, Postbox, Protocol, Received, World};

/// Role of the process that will die.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The victim posts, the survivor retrieves.
    Posts,
    /// The victim retrieves, the survivor posts.
    Retrieves,
}

impl Role {
    /// Both roles.
    pub const ALL: [Role; 2] = [Role::Posts, Role::Retrieves];
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Posts => "posts",
            Role::Retrieves => "retrieves",
        })
    }
}

impl FromStr for Role {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let named = Role::ALL.into_iter().find(|role| role.to_string() == text);
        named.ok_or_else(|| format!("{text:?} is no role"))
    }
}

/// Number of messages after which a process that should have been killed long before gives up.
pub const TOO_MANY: u64 = 1000;

/// Lengths of the messages in words, in turn: inline up to the last byte, lent, and more than one fragment of the
/// `copy` protocol.
const LENGTHS: [usize; 5] = [1, 5, 400, 9000, 3];

fn word(seed: u64, number: u64, at: usize) -> u64 {
    let mixed = (seed << 48 ^ number << 24 ^ at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    mixed ^ mixed >> 29
}

/// Postboxes of one poster: most messages go through the first, so that its ring wraps; the second forces the other
/// side to find news on more than one.
#[derive(Debug)]
pub struct Outgoing {
    postboxes: [Postbox<u64>; 2],
    numbers: [u64; 2],
    posted: u64,
}

impl Outgoing {
    /// Connects to the mailbox `name`.
    ///
    /// # Errors
    /// Errors of [`World::postbox`].
    pub fn new(world: &World, name: &str, protocol: Protocol) -> udeck::Result<Self> {
        // The second postbox is not waited for: if the mailbox has gone since, its owner has ended.
        let postboxes: [Postbox<u64>; 2] = [world.postbox(name)?, world.try_postbox(name)?];
        for postbox in &postboxes {
            postbox.set_protocol(protocol)?;
        }
        Ok(Outgoing { postboxes, numbers: [0; 2], posted: 0 })
    }

    /// Posts the next message. The tag contains its number.
    ///
    /// # Errors
    /// Errors of [`Postbox::post`].
    pub fn post(&mut self, world: &World) -> udeck::Result {
        let through = usize::from(self.posted % 8 == 7);
        self.posted += 1;
        let number = self.numbers[through];
        self.numbers[through] += 1;
        let mut message = world.buf_reused::<u64>(LENGTHS[(number % LENGTHS.len() as u64) as usize])?;
        let seed = through as u64;
        message.iter_mut().enumerate().for_each(|(at, place)| *place = word(seed, number, at));
        Ok(self.postboxes[through].post(message.with_tag((number << 1 | seed) as u32))?)
    }

    /// Number of posted messages.
    #[must_use]
    pub fn posted(&self) -> u64 {
        self.posted
    }

    /// Waits until all messages were read.
    ///
    /// # Errors
    /// Errors of [`Postbox::flush`].
    pub fn flush(&self) -> udeck::Result {
        self.postboxes.iter().try_for_each(Postbox::flush)
    }
}

/// Messages that have arrived from one [`Outgoing`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Incoming {
    numbers: [u64; 2],
}

impl Incoming {
    /// Checks that a message is the next of its postbox, and every word of it.
    ///
    /// # Errors
    /// The fault of the message, in words.
    pub fn check(&mut self, message: &Received<u64>) -> Result<(), String> {
        let tag = u64::from(message.tag());
        let through = (tag & 1) as usize;
        let expected = self.numbers[through];
        if tag >> 1 != expected {
            return Err(format!("message {} of postbox {through} instead of {expected}", tag >> 1));
        }
        self.numbers[through] += 1;
        let len = LENGTHS[(expected % LENGTHS.len() as u64) as usize];
        if message.len() != len {
            return Err(format!("message {expected} has {} words instead of {len}", message.len()));
        }
        match message.iter().enumerate().find(|(at, got)| **got != word(tag & 1, expected, *at)) {
            Some((at, got)) => Err(format!("word {at} of message {expected} is {got:#x}")),
            None => Ok(()),
        }
    }

    /// Number of messages that have arrived.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.numbers.iter().sum()
    }
}

/// Sends one message to this process itself, and checks it.
///
/// # Errors
/// The failure, in words.
pub fn to_itself(
    world: &World,
    mailbox: &Mailbox<u64>,
    postbox: &Postbox<u64>,
    number: u64,
) -> Result<(), String> {
    const WORDS: usize = 1000;
    let text = |error: udeck::Error| format!("to itself: {error}");
    let mut message = world.buf::<u64>(WORDS).map_err(text)?;
    message.fill(number);
    postbox.post(message).map_err(|failed| text(failed.error))?;
    loop {
        match mailbox.retrieve() {
            // Each mailbox reports each lost rank once.
            Err(udeck::Error::PeerLost { .. }) => {}
            Err(error) => return Err(text(error)),
            Ok(message) if message[..] == [number; WORDS] => return Ok(()),
            Ok(message) => return Err(format!("to itself: {number} came back as {:?}", message.first())),
        }
    }
}
