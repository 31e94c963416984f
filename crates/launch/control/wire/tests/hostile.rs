//! Hostile messages, from nodes to the root and back: nothing panics, and a message that is accepted has the same
//! encoding again.

use std::fmt::Debug;

use serde::{Serialize, de::DeserializeOwned};
use udeck_boot::waits::{Call, Wait};
use udeck_boot::wire::{Frames, encode};
use udeck_test_kit::Hostile;

use super::super::*;

fn framed<T: Serialize>(message: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(message, &mut bytes).unwrap();
    bytes
}

fn word(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

fn spec() -> Vec<u8> {
    framed(&JobSpec {
        first: 2,
        count: 2,
        size: 4,
        program: word("prog"),
        args: vec![word("-x"), Vec::new()],
        env: vec![(word("A"), word("b"))],
        directory: word("/tmp"),
        bind: WireBind::Core,
        output: OutputForm { tagged: true, joined: false, watched: [true, false] },
        detect_ms: 10_000,
        key: HostKey::from_bytes([7; 32]),
    })
}

fn sampled() -> RankSample {
    let wait = Wait { call: Call::Retrieve, name: "in".into(), ranks: vec![2, 3], open: true };
    let waits = vec![Published { wait, for_ms: 5000 }];
    RankSample { rank: 3, state: RankState::Sleeps, idle_ms: 4000, waits }
}

fn to_node() -> Vec<Vec<u8>> {
    let messages = [
        ToNode::Start,
        ToNode::Boot { rank: 3, bytes: vec![1; 50] },
        ToNode::BootEnd { rank: 3 },
        ToNode::Signal { number: 15 },
        ToNode::Written { sink: Sink::Stdout, bytes: 4096 },
        ToNode::Unread { sink: Sink::Stderr },
        ToNode::Input { bytes: word("typed") },
        ToNode::BootConsumed { rank: 3, bytes: 16 << 10 },
        ToNode::SampleRanks { serial: 3 },
    ];
    messages.iter().map(framed).collect()
}

fn to_root() -> Vec<Vec<u8>> {
    let messages = [
        ToRoot::Started,
        ToRoot::NotStarted(NotStarted::Spawn { rank: 2, errno: 11 }),
        ToRoot::NotStarted(NotStarted::Other { what: "words".into() }),
        ToRoot::Boot { rank: 2, bytes: vec![7; 50] },
        ToRoot::BootEnd { rank: 2, why: Some("deaf".into()) },
        ToRoot::Output { sink: Sink::Stderr, bytes: b"line\n".to_vec() },
        ToRoot::Taken { bytes: 9 },
        ToRoot::InputEnd,
        ToRoot::Ended { rank: 3, how: WireEnd::Killed(9) },
        ToRoot::Bye,
        ToRoot::BootTaken { rank: 3, bytes: 16 << 10 },
        ToRoot::RankStates { serial: 3, samples: vec![sampled()], last: true },
    ];
    messages.iter().map(framed).collect()
}

/// Spoils messages of `right` one after the other and decodes them, mostly with a length that is right
/// nevertheless.
fn try_all<T: DeserializeOwned + Serialize + PartialEq + Debug>(name: &'static str, right: &[Vec<u8>]) {
    let mut hostile = Hostile::new(name, 20_000);
    while hostile.goes_on() {
        let mut bytes = hostile.frame(right);
        if bytes.len() >= 4 && !hostile.one_in(4) {
            let length = (bytes.len() - 4) as u32;
            bytes[..4].copy_from_slice(&length.to_le_bytes());
        }
        let mut frames = Frames::default();
        let (first, second) = bytes.split_at(hostile.below(bytes.len() + 1));
        for piece in [first, second] {
            frames.push(piece);
            while let Ok(Some(message)) = frames.decode::<T>() {
                hostile.understood();
                let mut again = Frames::default();
                again.push(&framed(&message));
                assert_eq!(again.decode::<T>().unwrap(), Some(message));
            }
        }
    }
    hostile.end();
}

#[test]
fn nothing_that_a_root_sends_upsets_the_parser() {
    try_all::<ToNode>("control, to a node", &to_node());
    try_all::<JobSpec>("control, a spec", &[spec()]);
}

#[test]
fn nothing_that_a_node_sends_upsets_the_parser() {
    try_all::<ToRoot>("control, to the root", &to_root());
}
