//! Many threads at once: nothing is lost, doubled or out of order.

#![allow(unsafe_code, reason = "it calls the C interface")]

mod kit;

use kit::*;
use std::thread;
use udeck_mock_verbs::abi::*;

const PAIRS: u8 = 6;
const MESSAGES: u64 = 3000;
/// Number of receives, and of sends, that a pair has posted at a time.
const WINDOW: usize = 8;

/// A side that moves, with its memory, to a thread of its own.
struct Moved(Side);

// SAFETY: Handles may be used by any thread.
unsafe impl Send for Moved {}

fn send_all(side: Moved, seed: u8) {
    let Moved(mut side) = side;
    let mut memory = [[0u8; 64]; WINDOW];
    let key = side.register(memory.as_flattened_mut(), 0);
    let (mut posted, mut ended) = (0u64, 0u64);
    while ended < MESSAGES {
        while posted < MESSAGES && posted - ended < WINDOW as u64 {
            let place = &mut memory[posted as usize % WINDOW];
            place.fill(seed ^ posted as u8);
            place[..8].copy_from_slice(&posted.to_le_bytes());
            let mut gather = [piece(place, key)];
            assert_eq!(side.post(request(posted, IBV_WR_SEND, &mut gather)), 0);
            posted += 1;
        }
        let wc = side.poll();
        assert_eq!((wc.wr_id, wc.status), (ended, IBV_WC_SUCCESS));
        ended += 1;
    }
}

fn receive_all(side: Moved, seed: u8) {
    let Moved(mut side) = side;
    let mut memory = [[0u8; 64]; WINDOW];
    let key = side.register(memory.as_flattened_mut(), WRITABLE);
    let post = |side: &Side, memory: &[[u8; 64]; WINDOW], number: u64| {
        let place = piece(&memory[number as usize % WINDOW], key);
        assert_eq!(side.receive(number, &mut [place]), 0);
    };
    (0..WINDOW as u64).for_each(|number| post(&side, &memory, number));
    for number in 0..MESSAGES {
        let wc = side.poll();
        assert_eq!((wc.wr_id, wc.status, wc.byte_len), (number, IBV_WC_SUCCESS, 64));
        let place = std::hint::black_box(&memory[number as usize % WINDOW]);
        assert_eq!(place[..8], number.to_le_bytes());
        assert!(place[8..].iter().all(|byte| *byte == seed ^ number as u8));
        post(&side, &memory, number + WINDOW as u64);
    }
}

#[test]
fn many_pairs_send_at_once() {
    let wish = Wish { timeout: 0, ..Wish::default() };
    let pairs: Vec<_> = (0..PAIRS).map(|_| connected(wish)).collect();
    thread::scope(|scope| {
        for (seed, (a, b)) in (0..PAIRS).zip(pairs) {
            let (a, b) = (Moved(a), Moved(b));
            scope.spawn(move || send_all(a, seed));
            scope.spawn(move || receive_all(b, seed));
        }
    });
}
