//! Streams over networks that lose, double, disorder, spoil and end.

mod common;

use std::time::Duration;

use common::{Pair, Path, Random, seeds};
use udeck_udp::flow::{LEAST_WINDOW, Options, State};
use udeck_udp::wire::Close;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn options(random: &mut Random) -> Options {
    Options {
        window: LEAST_WINDOW << random.below(5),
        max_datagram: random.pick(&[1200, 1472, 8972, 65_507]),
        first_rtt: random.pick(&[None, Some(MS)]),
        ..Options::default()
    }
}

fn wild(mut random: Random) -> Pair {
    let paths = [Path::wild(&mut random), Path::wild(&mut random)];
    let options = [options(&mut random), options(&mut random)];
    Pair::new(random, paths, options)
}

/// Bytes at either end, now and then, in small and large portions.
fn talk(pair: &mut Pair, portions: u64, most: u64) {
    for _ in 0..portions {
        let end = pair.random.below(2) as usize;
        let bytes =
            if pair.random.chance(0.7) { pair.random.within(1..100) } else { pair.random.below(most) };
        pair.offer(end, bytes);
        let pause = pair.random.time(3 * MS);
        pair.run(pause, |_| false);
    }
}

#[test]
fn prop_everything_arrives_exactly_once_and_in_order() {
    seeds(300, |random| {
        let mut pair = wild(random);
        talk(&mut pair, 20, 60_000);
        // With a fifth lost each way, and times between probes that double up to 2 s.
        pair.settle(300 * SECOND);
        assert_eq!(pair.states(), [State::Open; 2]);
        pair.ends[0].flow.close(Close(7));
        // The close itself may be lost; then the peer, which asks after a while, is told again.
        pair.offer(1, 0);
        let told = pair.run(60 * SECOND, |pair| pair.states()[1] != State::Open);
        assert!(
            told && matches!(pair.states()[1], State::Closed(Close(7)) | State::Silent),
            "{:?}",
            pair.states()
        );
    });
}

#[test]
fn prop_a_path_that_ends_is_noticed_at_both_ends() {
    seeds(200, |random| {
        let mut pair = wild(random);
        talk(&mut pair, 5, 60_000);
        let cut = pair.now;
        let ways = pair.random.below(3);
        for (way, path) in pair.paths.iter_mut().enumerate() {
            if ways == 2 || ways == way as u64 {
                path.cut = Some(cut);
            }
        }
        talk(&mut pair, 5, 60_000);
        let over = pair.run(60 * SECOND, |pair| pair.states() == [State::Silent; 2]);
        assert!(over, "{:?} after {:?}", pair.states(), pair.now - cut);
        // An end that is still heard does not hear that; it takes until the other one has given up.
        let most = if ways == 2 { 13 * SECOND } else { 26 * SECOND };
        assert!(pair.now - cut <= most, "{:?}", pair.now - cut);
        assert!(pair.now - cut >= 8 * SECOND, "{:?}", pair.now - cut);
    });
}

#[test]
fn a_perfect_path_sees_every_byte_once() {
    for (latency, max_datagram) in [(20, 1472), (20, 65_507), (2000, 1472), (50_000, 8972)] {
        let options = Options { max_datagram, ..Options::default() };
        let mut pair = Pair::even(Random::new(1), &Path::new(Duration::from_micros(latency)), &options);
        let bytes = 8 << 20;
        pair.offer(0, bytes);
        pair.settle(60 * SECOND);
        let stats = pair.ends[0].flow.stats();
        assert_eq!((stats.bytes_again, stats.lost, stats.spurious, stats.probes), (0, 0, 0, 0), "{stats:?}");
        let datagram = pair.ends[0].flow.datagram();
        assert_eq!(datagram, max_datagram, "found by a probe");
        // Whole datagrams, but for those before the probe and the last of each window.
        let least = bytes / (datagram as u64 - 40);
        assert!(stats.sent <= least * 11 / 10 + 60, "{} packets in the place of {least}", stats.sent);
        let acks = pair.ends[1].flow.stats().acks_alone;
        assert!(acks <= stats.sent / 2 + 10, "{acks} acknowledgements of {} packets", stats.sent);
    }
}

#[test]
fn a_perfect_path_is_filled_within_few_round_trips() {
    let options = Options { window: 1 << 20, ..Options::default() };
    let mut pair = Pair::even(Random::new(1), &Path::new(10 * MS), &options);
    pair.offer(0, 32 << 20);
    pair.settle(60 * SECOND);
    let rounds = pair.elapsed().as_secs_f64() / 0.020;
    // 32 windows of 1 MiB, and until the congestion window has grown to that, from 12 KB, doubling: 7.
    assert!(rounds <= 32.0 + 7.0 + 5.0, "{rounds} round trips");
}

#[test]
fn the_window_recovers_from_losses() {
    let rounds = |lose| {
        let options = Options { max_datagram: 1200, ..Options::default() };
        let path = Path { lose, ..Path::new(10 * MS) };
        let mut pair = Pair::even(Random::new(3), &path, &options);
        pair.offer(0, 10_000 * 1160);
        pair.settle(600 * SECOND);
        let stats = pair.ends[0].flow.stats();
        // Nothing goes again but what was lost.
        let again = stats.bytes_again as f64 / (10_000.0 * 1160.0);
        assert!(again <= lose * 1.3 + 0.001, "{again} sent again, {lose} lost");
        pair.elapsed().as_secs_f64() / 0.020
    };
    // At a loss of p, a window like Reno's is 1.22 / sqrt(p) datagrams on average (Mathis and others, 1997).
    for lose in [0.001, 0.01, 0.04] {
        let (took, expected) = (rounds(lose), 10_000.0 * f64::sqrt(lose) / 1.22);
        assert!(took < expected * 1.6, "{took} round trips in the place of {expected} at a loss of {lose}");
    }
}

#[test]
fn one_loss_halves_the_window_and_rounds_bring_it_back() {
    let options = Options { max_datagram: 1200, ..Options::default() };
    let mut pair = Pair::even(Random::new(1), &Path::new(10 * MS), &options);
    pair.offer(0, 64 << 20);
    pair.run(80 * MS, |_| false);
    let lost = pair.ends[0].flow.stats().lost;
    pair.paths[0].lose = 1.0;
    let cut = pair.ends[0].flow.stats().sent;
    pair.run(SECOND, |pair| pair.ends[0].flow.stats().sent > cut);
    pair.paths[0].lose = 0.0;
    let mut before = 0;
    pair.run(SECOND, |pair| {
        let found = pair.ends[0].flow.stats().lost > lost;
        before = if found { before } else { pair.ends[0].flow.congestion_window() };
        found
    });
    let halved = pair.ends[0].flow.congestion_window();
    assert!(halved >= before / 2 && halved <= before * 5 / 8, "{before}, then {halved}");
    let since = pair.now;
    pair.run(60 * SECOND, |pair| pair.ends[0].flow.congestion_window() >= before);
    let (rounds, datagrams) = ((pair.now - since).as_secs_f64() / 0.020, before / 1200);
    assert!(rounds <= datagrams as f64, "{rounds} round trips for half of {datagrams} datagrams");
}

#[test]
fn disorder_alone_is_not_taken_for_loss_for_long() {
    let path = Path { reorder: 0.1, late: 2 * MS, ..Path::new(5 * MS) };
    let mut pair = Pair::even(Random::new(5), &path, &Options::default());
    pair.offer(0, 16 << 20);
    pair.settle(60 * SECOND);
    let stats = pair.ends[0].flow.stats();
    assert!(stats.lost <= stats.sent / 100, "{stats:?}");
}

#[test]
fn a_slow_wire_with_a_short_queue_is_kept_busy() {
    // 12.5 MB/s, a queue of 64 KB, 4 ms there and back.
    let path = Path { rate: Some((12_500_000, 64 << 10)), ..Path::new(2 * MS) };
    let mut pair = Pair::even(Random::new(1), &path, &Options::default());
    pair.offer(0, 16 << 20);
    pair.settle(60 * SECOND);
    let used = (16 << 20) as f64 / 12_500_000.0 / pair.elapsed().as_secs_f64();
    assert!(used > 0.8, "used to {used}");
}

#[test]
fn silence_is_not_the_end_while_the_peer_answers() {
    let mut pair = Pair::even(Random::new(1), &Path::new(MS), &Options::default());
    pair.offer(0, 10_000);
    pair.run(3600 * SECOND, |_| false);
    assert_eq!(pair.states(), [State::Open; 2]);
    let sent: u64 = pair.ends.iter().map(|end| end.flow.stats().sent).sum();
    assert!((1800..=2 * 2 * 1800 + 100).contains(&sent), "{sent} packets in an hour: one asked every 2 s");
    assert_eq!(pair.ends[0].flow.holdings().bytes, 0);
}

#[test]
fn who_was_stopped_for_long_hears_first_what_came_meanwhile() {
    let mut pair = Pair::even(Random::new(1), &Path::new(MS), &Options::default());
    pair.offer(0, 10_000);
    pair.settle(SECOND);
    pair.ends[0].stopped = Some(pair.now + 9 * SECOND);
    pair.run(9 * SECOND, |_| false);
    pair.offer(1, 10_000);
    pair.offer(0, 10_000);
    pair.settle(10 * SECOND);
    assert_eq!(pair.states(), [State::Open; 2]);
}

#[test]
fn an_answer_carries_the_acknowledgement() {
    let mut pair = Pair::even(Random::new(1), &Path::new(Duration::from_micros(20)), &Options::default());
    let mut rounds = 0;
    pair.offer(0, 8);
    while rounds < 1000 {
        for end in [1, 0] {
            let expected = pair.ends[1 - end].offered;
            assert!(pair.run(SECOND, |pair| pair.ends[end].got == expected));
            pair.offer(end, 8);
        }
        rounds += 1;
    }
    let alone: u64 = pair.ends.iter().map(|end| end.flow.stats().acks_alone).sum();
    assert!(alone < 10, "{alone} packets that only acknowledge, in {rounds} rounds");
    // Nobody answers any more: nobody waits for it any more.
    pair.settle(SECOND);
    for _ in 0..10 {
        pair.offer(0, 8);
        let then = pair.now;
        pair.settle(SECOND);
        pair.run(10 * MS, |_| false);
        assert!(pair.now - then <= 13 * MS);
    }
    let then = pair.now;
    pair.offer(0, 8);
    pair.settle(SECOND);
    assert_eq!(pair.now - then, Duration::from_micros(40), "acknowledged at once");
}

#[test]
fn a_path_that_becomes_narrow_is_survived() {
    let options = Options { max_datagram: 8972, ..Options::default() };
    let mut pair = Pair::even(Random::new(1), &Path::new(MS), &options);
    pair.offer(0, 4 << 20);
    pair.settle(10 * SECOND);
    assert_eq!(pair.ends[0].flow.datagram(), 8972);
    pair.paths[0].carries = 1400;
    pair.offer(0, 4 << 20);
    pair.settle(60 * SECOND);
    assert_eq!(pair.ends[0].flow.datagram(), 1200);
    pair.run(40 * SECOND, |_| false);
    pair.offer(0, 32 << 20);
    pair.settle(60 * SECOND);
    let datagram = pair.ends[0].flow.datagram();
    assert!((1385..=1400).contains(&datagram), "{datagram} of 1400");
}

#[test]
fn a_close_is_told_to_who_goes_on() {
    let mut pair = Pair::even(Random::new(1), &Path::new(MS), &Options::default());
    pair.offer(0, 100);
    pair.settle(SECOND);
    pair.paths[0].lose = 1.0;
    pair.ends[0].flow.close(Close(42));
    pair.offer(0, 0);
    pair.paths[0].lose = 0.0;
    pair.run(SECOND, |_| false);
    assert_eq!(pair.states(), [State::Over(Close(42)), State::Open], "the close was lost");
    pair.offer(1, 100);
    pair.run(SECOND, |_| false);
    assert_eq!(pair.states()[1], State::Closed(Close(42)));
    assert_eq!(pair.ends[1].flow.timer(), None);
}

#[test]
fn what_comes_twice_counts_once() {
    let path = Path { double: 1.0, ..Path::new(MS) };
    let mut pair = Pair::even(Random::new(1), &path, &Options::default());
    pair.offer(0, 1 << 20);
    pair.settle(10 * SECOND);
    pair.run(SECOND, |_| false);
    let (sent, got) = (pair.ends[0].flow.stats(), pair.ends[1].flow.stats());
    assert_eq!((got.received, got.ignored), (sent.sent, sent.sent));
}

#[test]
fn who_is_heard_again_is_probed_soon_again() {
    let mut pair = Pair::even(Random::new(1), &Path::new(MS), &Options::default());
    pair.offer(0, 10_000);
    pair.settle(SECOND);
    // Silence: the time between probes has doubled often.
    pair.paths[0].lose = 1.0;
    pair.offer(0, 1000);
    pair.run(4 * SECOND, |_| false);
    pair.paths[0].lose = 0.0;
    pair.settle(3 * SECOND);
    pair.paths[0].lose = 1.0;
    let probes = pair.ends[0].flow.stats().probes;
    pair.offer(0, 1000);
    pair.run(50 * MS, |_| false);
    assert!(pair.ends[0].flow.stats().probes > probes + 1, "none, or one only");
}

#[test]
fn who_is_excused_is_asked_again_and_may_come_back() {
    let mut pair = Pair::even(Random::new(1), &Path::new(MS), &Options::default());
    pair.offer(0, 10_000);
    pair.settle(SECOND);
    let until = pair.now + 60 * SECOND;
    (pair.ends[0].excuses, pair.ends[1].stopped) = (true, Some(until));
    let probes = pair.ends[0].flow.stats().probes;
    pair.offer(0, 10_000);
    pair.run(59 * SECOND, |_| false);
    let asked = pair.ends[0].flow.stats().probes - probes;
    assert!((20..100).contains(&asked), "{asked} times asked in 59 s");
    pair.settle(20 * SECOND);
    assert_eq!(pair.states(), [State::Open; 2]);
}

/// A peer may say what it likes of the way, or a call may have been said twice.
#[test]
fn a_first_round_trip_of_an_hour_is_not_waited_for() {
    let options = Options { first_rtt: Some(3600 * SECOND), ..Options::default() };
    let mut pair = Pair::even(Random::new(1), &Path::new(MS), &options);
    pair.paths[0].lose = 1.0;
    pair.offer(0, 100);
    pair.paths[0].lose = 0.0;
    pair.settle(2 * SECOND);
}

#[test]
fn what_was_lost_long_ago_does_not_make_acknowledgements_longer_for_ever() {
    let mut pair = Pair::even(Random::new(1), &Path::new(MS), &Options::default());
    // One way only, and both ways: then acknowledgements travel with what there is to say.
    for answers in [false, true] {
        pair.paths[0].lose = 0.1;
        pair.offer(0, 2 << 20);
        pair.settle(60 * SECOND);
        pair.paths[0].lose = 0.0;
        pair.offer(0, 1 << 20);
        pair.offer(1, u64::from(answers) * 1000);
        pair.settle(60 * SECOND);
        let before = pair.ends[1].sent;
        pair.offer(0, 4 << 20);
        pair.settle(60 * SECOND);
        let (count, bytes) = (pair.ends[1].sent.0 - before.0, pair.ends[1].sent.1 - before.1);
        assert!(bytes / count < 80, "{bytes} bytes in {count} datagrams to acknowledge 4 MiB");
    }
    assert_eq!(pair.ends[0].flow.stats().spurious, 0, "what came was always told");
}

/// As when their host was.
#[test]
fn both_may_be_stopped_for_long() {
    let mut pair = Pair::even(Random::new(1), &Path::new(MS), &Options::default());
    pair.offer(0, 10_000);
    // They have asked each other often.
    pair.run(100 * SECOND, |_| false);
    let until = pair.now + 60 * SECOND;
    pair.ends.iter_mut().for_each(|end| end.stopped = Some(until));
    pair.run(120 * SECOND, |_| false);
    assert_eq!(pair.states(), [State::Open; 2]);
}
