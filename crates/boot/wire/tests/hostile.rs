//! Hostile frames, from ranks to the name service and back: nothing panics, the buffer stays bounded, and a
//! message that is accepted has the same encoding again.

use std::time::Instant;

use serde::{Serialize, de::DeserializeOwned};
use udeck_test_kit::Hostile;

use super::super::*;
use crate::server::{Config, Server};

fn framed<T: Serialize>(message: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(message, &mut bytes).unwrap();
    bytes
}

fn requests() -> Vec<Vec<u8>> {
    let (name, value) = (|| "box".to_owned(), || vec![1, 2, 3]);
    let wait = Duration::from_millis(1500);
    let calls = [
        Call::Hello { version: VERSION },
        Call::Register { name: name(), value: value() },
        Call::Unregister { name: name() },
        Call::Lookup { name: name(), wait: None, maker: Maker::Anyone },
        Call::Lookup { name: "other".into(), wait: Some(wait), maker: Maker::Rank(1) },
        Call::Put { key: name(), value: value() },
        Call::Get { key: name(), wait: Some(wait), maker: Maker::Collective(0) },
        Call::Get { key: "other".into(), wait: None, maker: Maker::Anyone },
        Call::Fence { wait },
        Call::AwaitExit { rank: 1, wait },
        Call::Cancel { id: 5 },
        Call::Agree { round: 2, vote: Vote { question: Question::Agree, value: 1 << 40 }, wait },
        Call::Done,
        Call::Abort { code: 3, why: "no more".into() },
    ];
    calls.into_iter().zip(1..).map(|(call, id)| framed(&Request { id, call })).collect()
}

fn answers() -> Vec<Vec<u8>> {
    let hosts = vec![crate::Host { name: "a".into(), ranks: 2 }, crate::Host { name: "b".into(), ranks: 1 }];
    let address = Some("10.0.0.1".parse().unwrap());
    let replies = [
        Reply::Ok,
        Reply::Welcome(Welcome {
            rank: 1,
            size: 3,
            secret: [7; 32],
            job: 9,
            placement: Placement::blocks(hosts),
            address,
            key: RankKey::BLANK,
            cpus: 2,
        }),
        Reply::Record(Record { owner: 2, value: vec![0; 40] }.into()),
        Reply::Agreed(Arc::new(Agreement { round: 4, ranks: vec![0, 2], all: 1, first: 3 })),
        Reply::Failed(RequestError::NoSuch { existing: vec!["x".into(), "yy".into()], total: 2 }),
        Reply::Failed(RequestError::FenceLate { missing: vec![0, 1, 2] }),
        Reply::Failed(RequestError::MakerEnded { rank: 1, how: Some("killed".into()) }),
        Reply::Failed(RequestError::TooBig { what: "a value".into(), limit: 1, got: 2 }),
    ];
    let events = [Event::RankLost { rank: 1, how: "killed".into() }, Event::RankDone { rank: 0 }];
    let replies = replies.into_iter().map(|reply| framed(&FromServer::Reply { id: 5, reply }));
    replies.chain(events.into_iter().map(|event| framed(&FromServer::Event(event)))).collect()
}

/// Spoils a frame. Its length is right nevertheless in most cases: a wrong one is found at once.
fn frame(hostile: &mut Hostile, right: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = hostile.frame(right);
    if bytes.len() >= HEADER && !hostile.one_in(4) {
        let length = (bytes.len() - HEADER) as u32;
        bytes[..HEADER].copy_from_slice(&length.to_le_bytes());
    }
    bytes
}

/// Decodes bytes, fed in two pieces, and returns all messages.
fn messages<T: DeserializeOwned + Serialize + PartialEq + fmt::Debug>(
    hostile: &mut Hostile,
    bytes: &[u8],
) -> Vec<T> {
    let mut frames = Frames::default();
    let mut got = Vec::new();
    let (first, second) = bytes.split_at(hostile.below(bytes.len() + 1));
    for piece in [first, second] {
        frames.push(piece);
        while let Ok(Some(message)) = frames.decode::<T>() {
            let mut again = Frames::default();
            again.push(&framed(&message));
            assert_eq!(again.decode::<T>().unwrap().as_ref(), Some(&message));
            got.push(message);
        }
        assert!(frames.bytes.len() <= bytes.len());
    }
    got
}

#[test]
fn nothing_that_a_rank_sends_upsets_the_name_service() {
    const RANKS: u32 = 4;
    let mut hostile = Hostile::new("boot, requests", 20_000);
    let right = requests();
    let server = || Server::new(Config::new(RANKS).unwrap());
    let (mut service, mut now) = (server(), Instant::now());
    while hostile.goes_on() {
        let bytes = frame(&mut hostile, &right);
        let requests = messages::<Request>(&mut hostile, &bytes);
        if !requests.is_empty() {
            hostile.understood();
        }
        for request in requests {
            let rank = hostile.below(RANKS as usize + 1) as u32;
            service.handle(now, rank, request);
        }
        now += Duration::from_millis(hostile.below(100) as u64);
        service.tick(now);
        match hostile.below(400) {
            0 => drop(service.disconnected(now, hostile.below(RANKS as usize) as u32)),
            1 => drop(service.ended(hostile.below(RANKS as usize) as u32, "killed")),
            2 => service = server(),
            _ => {}
        }
    }
    hostile.end();
}

#[test]
fn nothing_that_a_launcher_sends_upsets_a_rank() {
    let mut hostile = Hostile::new("boot, answers", 20_000);
    let right = answers();
    while hostile.goes_on() {
        let bytes = frame(&mut hostile, &right);
        for message in messages::<FromServer>(&mut hostile, &bytes) {
            hostile.understood();
            if let FromServer::Reply { reply: Reply::Welcome(welcome), .. } = message {
                // The numbers may have any values.
                let _ = welcome.is_consistent();
                let _ = welcome.is_neighbour(welcome.rank);
            }
        }
    }
    hostile.end();
}
