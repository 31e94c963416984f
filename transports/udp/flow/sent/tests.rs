use super::*;

const MS: Duration = Duration::from_millis(1);

/// Packets 0..count of 100 bytes each, one a millisecond.
fn sent(start: Instant, count: u64) -> Sent {
    let mut sent = Sent::new();
    for number in 0..count {
        let load = Load::Stream(number * 100..(number + 1) * 100);
        sent.push(number, start + MS * number as u32, 100, load);
    }
    sent
}

fn acknowledge(sent: &mut Sent, ranges: &[RangeInclusive<u64>]) -> (News, Vec<u64>) {
    let mut arrived = Vec::new();
    let news = sent.acknowledge(ranges.iter().cloned(), |packet| arrived.push(packet.number));
    (news, arrived)
}

fn lose(sent: &mut Sent, now: Instant, delay: Duration) -> (Losses, Vec<u64>) {
    let mut lost = Vec::new();
    let losses = sent.lose(now, delay, |packet| lost.push(packet.number));
    (losses, lost)
}

#[test]
fn what_arrived_is_told_once_and_forgotten() {
    let start = Instant::now();
    let mut sent = sent(start, 5);
    let (news, arrived) = acknowledge(&mut sent, &[3..=3, 0..=1]);
    assert_eq!(arrived, [3, 0, 1]);
    assert_eq!((news.any, news.largest, news.spurious), (true, Some(start + 3 * MS), 0));
    assert_eq!((sent.in_flight(), sent.len()), (200, 3), "2 to 4: 3 waits for 2 to be forgotten");
    let (news, arrived) = acknowledge(&mut sent, &[3..=3, 0..=1]);
    assert!(!news.any && news.largest.is_none() && arrived.is_empty());
    acknowledge(&mut sent, &[0..=4]);
    assert_eq!((sent.in_flight(), sent.len(), sent.waiting_since()), (0, 0, None));
}

#[test]
fn three_later_ones_or_time_make_a_loss() {
    let start = Instant::now();
    let mut sent = sent(start, 6);
    acknowledge(&mut sent, &[4..=4]);
    let (losses, lost) = lose(&mut sent, start + 5 * MS, 10 * MS);
    assert_eq!(lost, [0, 1], "three behind 4, and more");
    assert_eq!((losses.last, losses.span), (Some(start + MS), MS));
    assert_eq!(sent.loss_time(), Some(start + 12 * MS), "2 was sent at 2");
    let (_, lost) = lose(&mut sent, start + 12 * MS, 10 * MS);
    assert_eq!(lost, [2]);
    assert_eq!(sent.loss_time(), Some(start + 13 * MS));
    let (_, lost) = lose(&mut sent, start + 60 * MS, 10 * MS);
    assert_eq!(lost, [3], "5 was sent after all that arrived");
    assert_eq!((sent.loss_time(), sent.in_flight()), (None, 100));
}

#[test]
fn what_was_late_and_not_lost_makes_it_more_patient() {
    let start = Instant::now();
    let mut sent = sent(start, 20);
    acknowledge(&mut sent, &[9..=9]);
    assert_eq!(lose(&mut sent, start, MS * 100).1.len(), 7);
    let (news, arrived) = acknowledge(&mut sent, &[0..=0]);
    assert_eq!((news.spurious, arrived), (1, vec![0]));
    assert!(news.largest.is_none(), "no round trip is measured by one that was given up");
    acknowledge(&mut sent, &[15..=15]);
    assert!(lose(&mut sent, start, MS * 100).1.is_empty(), "all are less than 10 behind");
}

#[test]
fn the_longest_gap_without_an_arrival_counts() {
    let start = Instant::now();
    let mut sent = sent(start, 20);
    acknowledge(&mut sent, &[19..=19, 4..=4]);
    let (losses, lost) = lose(&mut sent, start + 99 * MS, MS);
    assert_eq!(lost.len(), 18);
    assert_eq!(losses.span, 13 * MS, "5 to 18");
}

#[test]
fn memory_has_a_bound() {
    let start = Instant::now();
    let mut sent = sent(start, MAX_PACKETS as u64);
    assert!(!sent.has_room());
    assert_eq!(sent.evict(), Some(Load::Stream(0..100)));
    assert!(sent.has_room());
    sent.push(5000, start, 100, Load::Ping);
    acknowledge(&mut sent, &[5000..=5000]);
    lose(&mut sent, start, Duration::ZERO);
    assert!(sent.has_room(), "what was given up makes room");
    sent.forget(start + MS);
    assert_eq!((sent.len(), sent.in_flight()), (0, 0));
}
