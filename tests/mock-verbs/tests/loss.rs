//! Unreliable pairs lose the messages that the random choice says, and no others. (The test runs in a process of
//! its own, because all share the random numbers.)

#![allow(unsafe_code, reason = "it calls the C interface")]

mod kit;

use kit::*;
use udeck_mock_verbs::abi::*;

fn lose(per_mille: u32, seed: u64) -> u64 {
    // SAFETY: Numbers.
    unsafe { (library().standin_lose)(per_mille, seed) }
}

#[test]
fn what_is_lost_is_lost_as_a_whole_or_but_for_its_beginning_and_nobody_hears_of_it() {
    let (mut a, mut b) = connected(Wish { kind: IBV_QPT_UC, ..Wish::default() });
    let (mut out, mut place) = ([0u8; 8], [0u8; 8]);
    let (ours, theirs) = (a.register(&mut out, 0), b.register(&mut place, WRITABLE));
    lose(500, 7);
    let mut came = 0;
    for number in 1..=200u8 {
        out.fill(number);
        place.fill(0);
        assert_eq!(b.receive(number.into(), &mut [piece(&place, theirs)]), 0);
        assert_eq!(a.post(request(1, IBV_WR_SEND, &mut [piece(&out, ours)])), 0);
        assert_eq!(a.poll().status, IBV_WC_SUCCESS, "sent, for all it knows");
        // If the message did not arrive, the buffer waits for the next.
        match b.poll_once() {
            Some(wc) => {
                assert_eq!((wc.status, place[7]), (IBV_WC_SUCCESS, number));
                came += 1;
            }
            None => {
                assert_eq!(place, [0; 8]);
                lose(0, 0);
                assert_eq!(a.post(request(1, IBV_WR_SEND, &mut [piece(&out, ours)])), 0);
                assert_eq!((a.poll().status, b.poll().status), (IBV_WC_SUCCESS, IBV_WC_SUCCESS));
                lose(500, number.into());
            }
        }
    }
    assert!((50..150).contains(&came), "{came} of 200");

    let (mut data, mut target) = ([3u8; 10_000], [0u8; 10_000]);
    let (ours, theirs) = (a.register(&mut data, 0), b.register(&mut target, WRITABLE));
    let mut parts = 0;
    lose(1000, 3);
    for _ in 0..30 {
        target.fill(0);
        let at = target.as_ptr() as u64;
        assert_eq!(a.post(rdma(2, IBV_WR_RDMA_WRITE, &mut [piece(&data, ours)], at, theirs)), 0);
        assert_eq!(a.poll().status, IBV_WC_SUCCESS);
        let written = target.iter().take_while(|byte| **byte == 3).count();
        assert!(written < 10_000 && target[written..].iter().all(|byte| *byte == 0), "a beginning");
        parts += u32::from(written > 0);
    }
    assert!(parts > 0, "of some, a part came");
    assert_eq!(lose(0, 0), 30);
}
