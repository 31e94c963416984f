//! A link that several threads use: the two programs, one thread that drops received messages, and one that moves bytes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use udeck_via::Reliability;
use udeck_via::mem::Lent;
use udeck_via::transport::{Body, PostedBuffer, Refused, TransferStatus, ViEndpoint};

use super::pair::{Pair, pattern};
use crate::framed::connection::Pieces;

const MESSAGES: u64 = 3000;
const LEN: usize = 3000;

#[test]
fn programs_helper_and_droppers_meet_at_a_link() {
    let mut pair = Pair::new(Reliability::Reception, false);
    let links = [0, 1].map(|side| pair.ends[side].link.clone());
    let done = AtomicBool::new(false);
    let (give, given) = mpsc::channel::<Lent>();
    let late = Instant::now() + Duration::from_secs(120);
    thread::scope(|scope| {
        // This thread is the helper.
        scope.spawn(|| {
            let (mut sent, mut buffer) = ([0, 0], vec![0; 10_000]);
            while !done.load(Ordering::Relaxed) {
                assert!(Instant::now() < late, "it takes too long: {links:?}");
                for side in [0, 1] {
                    let len = links[side].with(|connection, _| {
                        let mut pieces = Pieces::new();
                        let gathered = connection.gather(sent[side], buffer.len(), &mut pieces);
                        pieces.copy_to(&mut buffer);
                        sent[side] += gathered as u64;
                        connection.released(sent[side]);
                        gathered
                    });
                    links[1 - side].with(|connection, _| {
                        let direct = connection.direct();
                        connection.on_receive(direct, 0, &buffer[..len]);
                    });
                }
                thread::yield_now();
            }
        });
        scope.spawn(move || given.into_iter().for_each(drop));
        let programs = pair.ends.each_mut().map(|end| {
            let give = give.clone();
            let memory = end.memory.clone();
            let mut endpoint = end.endpoint.take().expect("the endpoint is there");
            scope.spawn(move || {
                let mut block = memory.outbox.block(LEN, udeck_via::mem::Fill::Keep).unwrap();
                block.bytes_mut().copy_from_slice(&pattern(LEN, 3));
                let segments = [(block.offset(), LEN)];
                let (mut posted, mut over, mut came) = (0, 0, 0);
                while over < MESSAGES || came < MESSAGES {
                    assert!(Instant::now() < late, "{posted} posted, {over} over, {came} came: {endpoint:?}");
                    if posted < MESSAGES {
                        match endpoint.lend(None, b"", &segments, PostedBuffer::Caller(posted)) {
                            Ok(()) => posted += 1,
                            Err((refused, _)) => assert!(matches!(refused, Refused::Busy), "{refused:?}"),
                        }
                    }
                    while let Some((_, status)) = endpoint.poll_completion() {
                        assert_eq!(status, TransferStatus::Arrived);
                        over += 1;
                    }
                    if let Some(arrival) = endpoint.receive().unwrap() {
                        let Body::Lent(_, lent) = arrival.body else { panic!("a lent message") };
                        assert_eq!(lent.as_slice().unwrap(), block.bytes());
                        give.send(lent).expect("the dropper lives");
                        came += 1;
                    }
                    thread::yield_now();
                }
                endpoint
            })
        });
        let endpoints = programs.map(|program| program.join());
        done.store(true, Ordering::Relaxed);
        drop(give);
        endpoints.into_iter().for_each(|endpoint| drop(endpoint.expect("no panic")));
    });
}
