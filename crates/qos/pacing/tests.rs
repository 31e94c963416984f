//! Test vectors, and whole incasts in virtual time.

use std::collections::VecDeque;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const fn us(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

const fn terms(threshold: u64, largest: u64, rate: Option<u64>) -> Terms {
    Terms { threshold, usual: largest, crowded: largest, largest, rate }
}

/// Rate of a byte a microsecond.
const SLOW: Option<u64> = Some(1_000_000);

#[test]
fn below_the_threshold_nothing_waits_and_beyond_it_grants_follow_one_another() {
    let mut scheduler = Scheduler::new(terms(1000, 400, SLOW), us(0));
    let mut outstanding = 0;
    let mut ask = |now, asked| {
        let grant = scheduler.reserve(us(now), asked, outstanding, 0);
        outstanding += grant.bytes;
        (grant.after, grant.bytes)
    };
    assert_eq!(ask(0, 400), (us(0), 400));
    assert_eq!(ask(0, 400), (us(0), 400));
    assert_eq!(ask(0, 9999), (us(0), 400), "one reservation gets no more");
    // Beyond the threshold t = max(now, next_free), next_free = t + size / rate.
    assert_eq!(ask(0, 300), (us(200), 300));
    assert_eq!(ask(0, 100), (us(500), 100));
    assert_eq!(ask(0, 0), (us(600), 1));
}

#[test]
fn a_grant_is_never_far_away_and_without_a_rate_never_delayed() {
    let mut slow = Scheduler::new(terms(0, 100, Some(1)), us(0));
    assert_eq!(slow.reserve(us(0), 100, u64::MAX, 0).after, LONGEST);
    let mut unknown = Scheduler::new(terms(0, 100, None), us(0));
    assert_eq!(unknown.reserve(us(0), 100, 1 << 40, 0).after.as_millis(), 0);
}

#[test]
fn the_rate_is_what_the_program_takes_at_its_best() {
    let mut rate = DrainRate::new(us(0));
    assert_eq!(rate.observe(us(1000), 5000), None, "too soon");
    assert_eq!(rate.observe(us(5000), 50_000), Some(10_000_000));
    assert_eq!(rate.observe(us(10_000), 60_000), Some(10_000_000), "it has waited for its posters");
    assert_eq!(rate.observe(us(3_000_000), 70_000), None, "nobody has asked for long");
    assert_eq!(rate.observe(us(3_010_000), 70_000), None);
    for nth in 0..SAMPLES as u64 {
        rate.observe(us(3_010_000 + (nth + 1) * 10_000), 70_000 + (nth + 1) * 1000);
    }
    assert_eq!(rate.samples, [100_000; SAMPLES], "what was once is forgotten");
}

/// Small grants would wake posters often.
#[test]
fn a_grant_is_a_slice_of_the_mailboxs_time_within_bounds() {
    let largest = |rate, outstanding| {
        let terms = Terms { threshold: 10_000, usual: 1000, crowded: 2000, largest: 5000, rate };
        Scheduler::new(terms, us(0)).reserve(us(0), u64::MAX, outstanding, 0).bytes
    };
    // A rate of a byte a microsecond is 1000 bytes in a slice.
    let rates = [None, Some(1), Some(1_000_000), Some(3_000_000), Some(9_000_000), Some(u64::MAX)];
    assert_eq!(rates.map(|rate| largest(rate, 0)), [1000, 1000, 1000, 3000, 5000, 5000]);
    assert_eq!(
        [6000, 8500, 20_000].map(|outstanding| largest(Some(9_000_000), outstanding)),
        [4000, 2000, 2000],
        "what is free, or a quarter of a slice"
    );
    assert_eq!(
        [1_000_000, 6_000_000, u64::MAX].map(|rate| largest(Some(rate), 20_000)),
        [1000, 1500, 2000],
        "a slow mailbox gives the usual, and none gives more than the bound where it is crowded"
    );
}

#[test]
fn where_more_would_be_lost_a_slice_is_what_is_free_or_the_usual() {
    let terms = Terms { threshold: 10_000, usual: 1000, crowded: 2000, largest: 5000, rate: Some(u64::MAX) };
    let scheduler = Scheduler::new(terms, us(0));
    assert_eq!(
        [0, 8500, 9500, 20_000].map(|outstanding| scheduler.within_threshold(outstanding)),
        [10_000, 1500, 1000, 1000]
    );
}

/// While little is outstanding, the program waits for its posters, and its rate cannot be measured.
#[test]
fn idle_time_is_not_measured() {
    let mut scheduler = Scheduler::new(terms(1000, 100, None), us(0));
    scheduler.reserve(us(0), 100, 0, 0);
    // The program took 1000 bytes in half a second, because nobody has posted more.
    assert_eq!(scheduler.reserve(us(500_000), 100, 1000, 1000).after, us(0));
    assert_eq!(scheduler.reserve(us(500_000), 100, 5000, 1000).after.as_millis(), 0, "no rate is known");
    // The program took 10,000 bytes in 10 ms while more than the threshold was outstanding: a byte a microsecond,
    // scheduled twice as fast.
    assert_eq!(scheduler.reserve(us(510_000), 100, 5000, 11_000).after, us(2000));
}

#[test]
fn a_window_then_a_reservation_then_the_grant_at_its_time() {
    let mut poster = Poster::new(100);
    assert_eq!(poster.turn(us(0), || unreachable!()), SendDecision::Now);
    poster.sent(70);
    assert_eq!(poster.turn(us(0), || unreachable!()), SendDecision::Now, "30 are left");
    poster.sent(70);
    assert_eq!(poster.turn(us(0), || true), SendDecision::Now, "all was read: the window is whole");
    poster.sent(100);
    assert_eq!(poster.turn(us(0), || false), SendDecision::Ask);
    poster.asked();
    assert_eq!(poster.turn(us(0), || true), SendDecision::Wait(None));
    poster.grant(us(10), Grant { after: us(5), bytes: 80 });
    assert_eq!(
        (poster.turn(us(14), || true), poster.wakes_at()),
        (SendDecision::Wait(Some(us(15))), Some(us(15)))
    );
    assert_eq!(poster.turn(us(15), || true), SendDecision::Now);
    poster.sent(30);
    assert!(!poster.asks_ahead(), "50 are left of 80");
    poster.sent(20);
    assert!(poster.asks_ahead());
    poster.asked();
    poster.grant(us(20), Grant { after: us(30), bytes: 10 });
    assert_eq!(poster.turn(us(20), || false), SendDecision::Now, "of the first grant");
    poster.sent(30);
    assert_eq!(poster.turn(us(20), || false), SendDecision::Wait(Some(us(50))));
}

/// A poster that posts one message at a time asks for more and more, as long as it uses up its grants.
#[test]
fn grants_grow_while_they_are_used() {
    let (mut poster, mut asked) = (Poster::new(32), vec![]);
    poster.sent(32);
    assert_eq!(poster.turn(us(0), || false), SendDecision::Ask);
    for _ in 0..4 {
        let bytes = poster.asks_for(10).min(200);
        asked.push(bytes);
        poster.asked();
        poster.grant(us(0), Grant { after: us(0), bytes });
        while !poster.asks_ahead() {
            assert_eq!(poster.turn(us(0), || false), SendDecision::Now, "there is always something left");
            poster.sent(1);
        }
    }
    assert_eq!(asked, [32, 64, 128, 200]);
    // All its messages are read, so it begins anew.
    poster.sent(1000);
    assert_eq!((poster.turn(us(0), || true), poster.asks_for(10)), (SendDecision::Now, 32));
}

/// A grant that a poster did not use lapses after a while: the mailbox no longer counts it.
#[test]
fn grants_lapse_at_both_ends_and_first_at_the_mailbox() {
    let (grant, mut poster, mut account) =
        (Grant { after: us(5), bytes: 100 }, Poster::new(10), Account::default());
    poster.sent(10);
    for _ in 0..2 {
        poster.asked();
        poster.grant(us(7), grant);
        account.grant(us(2), 0, grant);
    }
    let (at_mailbox, at_poster) = (us(7) + LAPSE, us(12) + LAPSE * 2);
    assert!(!account.may_ask(at_mailbox - us(1), 0) && account.may_ask(at_mailbox, 0));
    account.grant(at_mailbox, 0, grant);
    assert_eq!(account.outstanding(at_mailbox, 0), 100, "of the last grant alone");
    assert_eq!(poster.clone().turn(at_poster - us(1), || false), SendDecision::Now);
    assert_eq!((poster.turn(at_poster, || false), poster.asks_for(1)), (SendDecision::Ask, 10));
    assert_eq!(
        (poster.turn(at_poster, || true), poster.goes_at_once(|| unreachable!())),
        (SendDecision::Now, true)
    );
}

#[test]
fn lies_change_little() {
    let mut poster = Poster::new(1);
    poster.grant(us(0), Grant { after: us(0), bytes: 7 });
    assert_eq!(poster, Poster::new(1), "nobody has asked");
    poster.sent(5);
    assert_eq!(poster.turn(us(0), || false), SendDecision::Ask);
    poster.asked();
    poster.grant(us(0), Grant { after: Duration::MAX, bytes: 0 });
    assert_eq!(poster.wakes_at(), Some(LONGEST), "no grant is later");
    assert_eq!(poster.turn(LONGEST, || false), SendDecision::Now);

    let mut account = Account::default();
    let grant = Grant { after: us(0), bytes: 100 };
    account.grant(us(0), 0, grant);
    assert!(account.may_ask(us(0), 0));
    account.grant(us(0), 0, grant);
    assert!(!account.may_ask(us(0), 0) && account.may_ask(us(0), 100), "it has to send what it was granted");
    assert_eq!((account.outstanding(us(0), 50), account.outstanding(LAPSE, 50)), (150, 0));
    assert_eq!(account.outstanding(us(0), u64::MAX), 0);

    // The number of grants is bounded, too, and not only their bytes.
    let (mut account, least) = (Account::default(), Grant { after: us(0), bytes: 1 });
    account.grant(us(0), 0, least);
    assert!(account.may_ask(us(0), 0));
    account.grant(us(0), 0, least);
    assert!(!account.may_ask(us(0), 0));
}

/// A postbox in virtual time: its messages by number and size, those in its queue first.
struct Post {
    poster: Poster,
    queue: VecDeque<(u64, u64)>,
    delay: u64,
    /// Messages in flight to the mailbox, with their times of arrival.
    wire: VecDeque<(u64, Sent)>,
    /// Grants in flight to the postbox, with their times of arrival.
    answers: VecDeque<(u64, Grant)>,
    unread: u64,
    is_dead: bool,
}

#[derive(Clone, Copy, Debug)]
enum Sent {
    Message(u64, u64),
    Reserve(u64),
}

/// An incast in virtual time: posters flood a mailbox. Every event has its time in microseconds.
struct Incast {
    posts: Vec<Post>,
    scheduler: Scheduler,
    accounts: Vec<Account>,
    arrived: Vec<u64>,
    /// Messages at the mailbox, in the order of each connection.
    at_mailbox: Vec<VecDeque<Sent>>,
    turn: usize,
    drained: u64,
    /// Numbers of the delivered messages, by postbox.
    given: Vec<Vec<u64>>,
    grants: Vec<(u64, usize, Grant)>,
    most_at_mailbox: u64,
}

impl Incast {
    fn new(sizes: &[Vec<u64>], delays: &[u64], window: u64, terms: Terms) -> Self {
        let post = |(sizes, &delay): (&Vec<u64>, &u64)| Post {
            poster: Poster::new(window),
            queue: sizes.iter().enumerate().map(|(nth, &size)| (nth as u64, size)).collect(),
            delay,
            wire: VecDeque::new(),
            answers: VecDeque::new(),
            unread: 0,
            is_dead: false,
        };
        let count = sizes.len();
        Self {
            posts: sizes.iter().zip(delays).map(post).collect(),
            scheduler: Scheduler::new(terms, us(0)),
            accounts: vec![Account::default(); count],
            arrived: vec![0; count],
            at_mailbox: vec![VecDeque::new(); count],
            turn: 0,
            drained: 0,
            given: vec![vec![]; count],
            grants: vec![],
            most_at_mailbox: 0,
        }
    }

    fn posters_act(&mut self, now: u64) {
        for post in self.posts.iter_mut().filter(|post| !post.is_dead) {
            while let Some(&(at, grant)) = post.answers.front()
                && at <= now
            {
                post.answers.pop_front();
                post.poster.grant(us(now), grant);
            }
            while let Some(&(number, size)) = post.queue.front() {
                let backlog = post.queue.iter().map(|(_, size)| weight(1, *size)).sum();
                let turn = post.poster.turn(us(now), || post.unread == 0);
                let asks = turn == SendDecision::Ask || turn == SendDecision::Now && post.poster.asks_ahead();
                if asks {
                    post.poster.asked();
                    post.unread += 1;
                    let asked = post.poster.asks_for(backlog);
                    post.wire.push_back((now + post.delay, Sent::Reserve(asked)));
                }
                if turn != SendDecision::Now {
                    break;
                }
                post.queue.pop_front();
                post.poster.sent(weight(1, size));
                post.unread += 1;
                post.wire.push_back((now + post.delay, Sent::Message(number, size)));
            }
        }
    }

    fn network_acts(&mut self, now: u64) {
        for (who, post) in self.posts.iter_mut().enumerate() {
            while let Some(&(at, sent)) = post.wire.front()
                && at <= now
            {
                post.wire.pop_front();
                self.at_mailbox[who].push_back(sent);
            }
        }
        let lies = |sent: &Sent| if let Sent::Message(_, size) = sent { weight(1, *size) } else { 0 };
        let all = self.at_mailbox.iter().flatten().map(lies).sum();
        self.most_at_mailbox = self.most_at_mailbox.max(all);
    }

    /// Lets the program take the next message; connections take turns. Returns how long the program works on it.
    fn mailbox_acts(&mut self, now: u64) -> Option<u64> {
        for _ in 0..self.posts.len() {
            let who = self.turn;
            self.turn = (self.turn + 1) % self.posts.len();
            while let Some(sent) = self.at_mailbox[who].pop_front() {
                self.posts[who].unread -= 1;
                match sent {
                    Sent::Reserve(bytes) => self.on_reservation(now, who, bytes),
                    Sent::Message(number, size) => {
                        self.arrived[who] += weight(1, size);
                        self.drained += weight(1, size);
                        self.given[who].push(number);
                        return Some(weight(1, size));
                    }
                }
            }
        }
        None
    }

    fn on_reservation(&mut self, now: u64, who: usize, bytes: u64) {
        assert!(self.accounts[who].may_ask(us(now), self.arrived[who]), "an honest poster");
        let outstanding = self.accounts.iter().zip(&self.arrived).zip(&self.posts);
        let outstanding = outstanding.filter(|(_, post)| !post.is_dead);
        let outstanding =
            outstanding.map(|((account, arrived), _)| account.outstanding(us(now), *arrived)).sum();
        let grant = self.scheduler.reserve(us(now), bytes, outstanding, self.drained);
        self.accounts[who].grant(us(now), self.arrived[who], grant);
        self.grants.push((now, who, grant));
        let post = &mut self.posts[who];
        post.answers.push_back((now + post.delay, grant));
    }

    /// Runs until all messages of living postboxes are delivered. `pace` is the number of bytes that the program
    /// takes in a microsecond.
    fn run(&mut self, pace: u64, deaths: &[(u64, usize)]) -> u64 {
        let (mut now, mut busy_until) = (0, 0);
        loop {
            for &(_, who) in deaths.iter().filter(|(at, _)| *at == now) {
                let post = &mut self.posts[who];
                post.is_dead = true;
                // Messages in flight arrive; those in the queue are lost with their poster.
                post.queue.clear();
            }
            self.posters_act(now);
            self.network_acts(now);
            while now >= busy_until
                && let Some(work) = self.mailbox_acts(now)
            {
                busy_until = now + work / pace;
            }
            let over = |post: &Post| post.queue.is_empty() && post.wire.is_empty();
            if self.posts.iter().all(over) && self.at_mailbox.iter().all(VecDeque::is_empty) {
                return now;
            }
            now += 1;
            assert!(now < 20_000_000, "it hangs: {:?}", self.given.iter().map(Vec::len).collect::<Vec<_>>());
        }
    }
}

#[test]
fn an_incast_is_the_same_each_time_and_its_grants_are_in_order() {
    let play = || {
        let sizes = vec![vec![936; 40]; 64];
        let mut incast = Incast::new(&sizes, &[10; 64], 4000, terms(64_000, 8000, Some(1_000_000_000)));
        let end = incast.run(1000, &[]);
        (end, incast)
    };
    let ((end, one), (_, other)) = (play(), play());
    assert_eq!(one.grants, other.grants);
    // Each of 64 postboxes sends 40 messages of 1000 bytes, a byte a nanosecond: the receiver is busy nearly all the
    // time.
    assert!((2560..=2560 * 11 / 10).contains(&end), "{end} us");
    // Grants begin one after another, in the order of the requests.
    let begins: Vec<_> = one.grants.iter().map(|(at, _, grant)| us(*at) + grant.after).collect();
    let late = begins.windows(2).filter(|pair| pair[1] + us(8) < pair[0]).count();
    assert_eq!(late, 0, "no later one begins before an earlier one");
    assert!(one.grants.iter().any(|(_, _, grant)| grant.after > us(0)), "some have to wait");
}

#[test]
fn without_a_window_the_mailbox_holds_all_and_with_it_little() {
    let sizes = vec![vec![936; 100]; 64];
    let mut free = Incast::new(&sizes, &[10; 64], u64::MAX, terms(64_000, 8000, None));
    let mut paced = Incast::new(&sizes, &[10; 64], 4000, terms(64_000, 8000, None));
    let (free_end, paced_end) = (free.run(1000, &[]), paced.run(1000, &[]));
    assert!(free.most_at_mailbox >= 6_000_000, "{}", free.most_at_mailbox);
    // The bound is made of the windows, the threshold, and the grants that overlap.
    assert!(paced.most_at_mailbox <= 64 * (4000 + 2 * 8000), "{}", paced.most_at_mailbox);
    assert!(paced_end <= free_end + free_end / 50, "{paced_end} us, {free_end} without");
}

proptest! {
    /// No message is lost or comes twice, each postbox keeps its order, and the bytes at the mailbox are bounded,
    /// whatever the sizes, delays, deaths and terms are.
    #[test]
    fn proptest_each_message_arrives_once_and_in_order(
        sizes in vec(vec(0u64..5000, 0..20), 1..20),
        delays in vec(1u64..100, 20),
        window in 1u64..10_000,
        threshold in 0u64..20_000,
        largest in 1u64..10_000,
        rate in prop::option::of(100_000u64..10_000_000_000),
        pace in 1u64..1000,
        deaths in vec((0u64..500, 0usize..20), 0..3),
    ) {
        let deaths: Vec<_> = deaths.into_iter().filter(|(_, who)| *who < sizes.len()).collect();
        let mut incast = Incast::new(&sizes, &delays, window, terms(threshold, largest, rate));
        incast.run(pace, &deaths);
        for (who, given) in incast.given.iter().enumerate() {
            let is_prefix = given.iter().copied().eq(0..given.len() as u64);
            prop_assert!(is_prefix, "postbox {} gave {:?}", who, given);
            if !incast.posts[who].is_dead {
                prop_assert_eq!(given.len(), sizes[who].len());
            }
        }
        // Each postbox may have its window, two grants, and a message beyond each.
        let bound = sizes.len() as u64 * (window + 2 * largest + 3 * weight(1, 5000));
        prop_assert!(incast.most_at_mailbox <= bound, "{} of {}", incast.most_at_mailbox, bound);
    }

    /// The mailbox takes an honest poster for honest, whatever it sends and whenever, and however late it is
    /// answered. The poster has at most two grants.
    #[test]
    fn proptest_an_honest_poster_is_never_taken_for_a_liar(
        window in 1u64..1000,
        largest in 1u64..1000,
        steps in vec((0u64..1_500_000, 0u64..400, 0u64..1_500_000, any::<bool>()), 0..200),
    ) {
        let (mut poster, mut account) = (Poster::new(window), Account::default());
        let (mut now, mut arrived, mut answer) = (0, 0, None);
        for (later, size, after, all_read) in steps {
            now += if all_read { later } else { later / 1000 };
            if let Some((at, asked, came_before)) = answer.take_if(|(at, _, _)| *at <= now) {
                prop_assert!(account.may_ask(us(at), came_before));
                let grant = Grant { after: us(after).min(LONGEST), bytes: largest.min(asked) };
                account.grant(us(at), came_before, grant);
                prop_assert!(account.outstanding(us(at), came_before) <= 2 * largest);
                poster.grant(us(now), grant);
            }
            let (at_once, before) = (poster.goes_at_once(|| us(now)), poster.clone());
            let turn = poster.turn(us(now), || all_read);
            if at_once {
                prop_assert!(turn == SendDecision::Now && !poster.asks_ahead() && poster == before);
            }
            if turn == SendDecision::Ask || turn == SendDecision::Now && poster.asks_ahead() {
                answer = Some((now + after / 10, poster.asks_for(size), arrived));
                poster.asked();
            }
            if turn == SendDecision::Now {
                poster.sent(size);
                arrived += size;
            }
        }
    }

    /// Nothing panics, and no message goes without permission, whatever answers and reports of read messages come.
    #[test]
    fn proptest_a_buyer_sends_no_more_than_windows_and_grants(
        window in 1u64..1000,
        steps in vec((0u64..2000, 0u8..4, any::<u64>(), any::<bool>()), 0..200),
    ) {
        let (mut poster, mut now, mut allowed, mut went) = (Poster::new(window), 0, window, 0u64);
        for (later, what, number, all_read) in steps {
            now += later;
            match what {
                0 => {
                    let was_asked = poster.asked;
                    poster.grant(us(now), Grant { after: us(number % 10_000_000), bytes: number % 1000 });
                    allowed += if was_asked { (number % 1000).max(1) } else { 0 };
                }
                _ => {
                    let mut refreshed = false;
                    match poster.turn(us(now), || { refreshed = all_read; all_read }) {
                        SendDecision::Now => {
                            allowed += if refreshed { window } else { 0 };
                            poster.sent(1);
                            went += 1;
                        }
                        SendDecision::Ask => poster.asked(),
                        SendDecision::Wait(Some(at)) => prop_assert!(at > us(now) && at <= us(now) + LONGEST),
                        SendDecision::Wait(None) => prop_assert!(poster.asked),
                    }
                }
            }
            prop_assert!(went <= allowed, "{} of {}", went, allowed);
        }
    }
}
