use super::*;
use crate::wire::MAX_LISTED;

mod agreements;

/// A server under virtual time; each call returns what it would send.
struct Bench {
    server: Server,
    now: Instant,
    next_id: u64,
}

impl Bench {
    fn new(size: u32) -> Bench {
        Bench::with(Config::new(size).unwrap())
    }

    fn with(config: Config) -> Bench {
        let size = config.welcome.size;
        let mut bench = Bench { server: Server::new(config), now: Instant::now(), next_id: 0 };
        for rank in 0..size {
            let reply = bench.ask(rank, Call::Hello { version: VERSION });
            assert!(matches!(reply, Some(Reply::Welcome(w)) if w.rank == rank && w.size == size));
        }
        bench
    }

    /// Returns all actions of the call.
    fn call(&mut self, rank: u32, call: Call) -> Vec<Action> {
        self.next_id += 1;
        self.server.handle(self.now, rank, Request { id: self.next_id, call })
    }

    /// Returns the call's own answer, if it comes at once.
    fn ask(&mut self, rank: u32, call: Call) -> Option<Reply> {
        let actions = self.call(rank, call);
        reply_to(&actions, rank, self.next_id)
    }

    fn register(&mut self, rank: u32, name: &str) -> Option<Reply> {
        self.ask(rank, Call::Register { name: name.into(), value: vec![7] })
    }

    fn lookup(&mut self, rank: u32, name: &str, wait: Option<Duration>) -> Option<Reply> {
        self.lookup_of(rank, name, wait, Maker::Anyone)
    }

    fn lookup_of(&mut self, rank: u32, name: &str, wait: Option<Duration>, maker: Maker) -> Option<Reply> {
        self.ask(rank, Call::Lookup { name: name.into(), wait, maker })
    }

    fn fence(&mut self, rank: u32) -> Vec<Action> {
        self.call(rank, Call::Fence { wait: SECOND })
    }

    fn pass(&mut self, time: Duration) -> Vec<Action> {
        self.now += time;
        self.server.tick(self.now)
    }
}

const SECOND: Duration = Duration::from_secs(1);

fn reply_to(actions: &[Action], rank: u32, wanted: u64) -> Option<Reply> {
    actions.iter().find_map(|action| match action {
        Action::Send { to, message: FromServer::Reply { id, reply } } if *to == rank && *id == wanted => {
            Some(reply.clone())
        }
        _ => None,
    })
}

fn events(actions: &[Action]) -> Vec<(u32, Event)> {
    let event = |action: &Action| match action {
        Action::Send { to, message: FromServer::Event(event) } => Some((*to, event.clone())),
        _ => None,
    };
    actions.iter().filter_map(event).collect()
}

fn replies(actions: &[Action]) -> Vec<(u32, Reply)> {
    let reply = |action: &Action| match action {
        Action::Send { to, message: FromServer::Reply { reply, .. } } => Some((*to, reply.clone())),
        _ => None,
    };
    actions.iter().filter_map(reply).collect()
}

#[test]
fn who_serves_hears_of_ends_after_its_own_goodbye() {
    let mut bench = Bench::with(Config::new(3).unwrap().served_by(0));
    let done = |rank| Event::RankDone { rank };
    assert_eq!(events(&bench.call(0, Call::Done)), [(1, done(0)), (2, done(0))]);
    assert_eq!(events(&bench.call(1, Call::Done)), [(0, done(1)), (2, done(1))]);
    let actions = bench.server.disconnected(bench.now, 2);
    assert!(matches!(&events(&actions)[..], [(0, Event::RankLost { rank: 2, .. })]), "{actions:?}");
}

#[test]
fn a_second_registration_fails_and_names_the_owner() {
    let mut bench = Bench::new(2);
    assert_eq!(bench.register(1, "sums"), Some(Reply::Ok));
    for rank in [0, 1] {
        assert_eq!(bench.register(rank, "sums"), Some(Reply::Failed(RequestError::NameTaken { owner: 1 })));
    }
    let found = Some(Reply::Record(Record { owner: 1, value: vec![7] }.into()));
    assert_eq!(bench.lookup(0, "sums", None), found);
}

#[test]
fn only_the_owner_unregisters() {
    let mut bench = Bench::new(2);
    bench.register(1, "sums");
    let unregister = || Call::Unregister { name: "sums".into() };
    assert!(
        matches!(bench.ask(0, unregister()), Some(Reply::Failed(RequestError::Refused { why })) if why.contains("rank 1"))
    );
    assert_eq!(bench.ask(1, unregister()), Some(Reply::Ok));
    assert!(matches!(bench.ask(1, unregister()), Some(Reply::Failed(RequestError::NoSuch { .. }))));
    assert_eq!(bench.register(0, "sums"), Some(Reply::Ok));
}

#[test]
fn a_waiting_lookup_is_answered_by_the_registration() {
    let mut bench = Bench::new(3);
    assert_eq!(bench.lookup(0, "late", Some(SECOND)), None);
    assert_eq!(bench.lookup(2, "other", Some(SECOND)), None);
    let actions = bench.call(1, Call::Register { name: "late".into(), value: vec![9] });
    let record = Reply::Record(Record { owner: 1, value: vec![9] }.into());
    assert_eq!(replies(&actions), [(1, Reply::Ok), (0, record)]);
}

#[test]
fn an_expired_lookup_lists_what_exists_sorted_and_bounded() {
    let mut bench = Bench::new(2);
    for i in (0..MAX_LISTED + 5).rev() {
        bench.register(1, &format!("name{i:03}"));
    }
    let listed = |reply: &Reply| match reply {
        Reply::Failed(RequestError::NoSuch { existing, total }) => {
            assert_eq!(*total, MAX_LISTED as u64 + 5);
            assert_eq!(existing.len(), MAX_LISTED);
            assert!(existing.is_sorted() && existing[0] == "name000");
        }
        other => panic!("{other:?}"),
    };
    listed(&bench.lookup(0, "x", None).unwrap());

    assert_eq!(bench.lookup(0, "x", Some(SECOND)), None);
    assert_eq!(bench.server.next_deadline(), Some(bench.now + SECOND));
    assert_eq!(bench.pass(SECOND - Duration::from_nanos(1)), []);
    let actions = bench.pass(Duration::from_nanos(1));
    listed(&replies(&actions)[0].1);
    assert_eq!(bench.server.next_deadline(), None);
}

#[test]
fn values_may_be_awaited_and_the_last_put_wins() {
    let mut bench = Bench::new(2);
    let get = |wait| Call::Get { key: "k".into(), wait, maker: Maker::Anyone };
    assert_eq!(bench.ask(0, get(Some(SECOND))), None);
    let actions = bench.call(1, Call::Put { key: "k".into(), value: vec![1] });
    assert_eq!(replies(&actions)[1], (0, Reply::Record(Record { owner: 1, value: vec![1] }.into())));
    bench.ask(0, Call::Put { key: "k".into(), value: vec![2] });
    assert_eq!(bench.ask(1, get(None)), Some(Reply::Record(Record { owner: 0, value: vec![2] }.into())));
    assert!(matches!(bench.lookup(1, "k", None), Some(Reply::Failed(RequestError::NoSuch { total: 0, .. }))));
}

#[test]
fn a_fence_opens_when_all_have_come_and_can_be_used_again() {
    let mut bench = Bench::new(3);
    for _round in 0..2 {
        assert_eq!(bench.fence(2), []);
        assert_eq!(bench.fence(0), []);
        assert_eq!(replies(&bench.fence(1)), [(2, Reply::Ok), (0, Reply::Ok), (1, Reply::Ok)]);
    }
}

#[test]
fn a_late_fence_names_the_missing_and_may_be_tried_again() {
    let mut bench = Bench::new(3);
    bench.fence(1);
    let missing = Reply::Failed(RequestError::FenceLate { missing: vec![0, 2] });
    assert_eq!(replies(&bench.pass(SECOND)), [(1, missing)]);
    bench.fence(0);
    bench.fence(2);
    assert_eq!(replies(&bench.fence(1)).len(), 3);
}

#[test]
fn a_fence_with_a_lost_rank_fails_and_names_it() {
    let mut bench = Bench::new(3);
    bench.fence(0);
    let broken = Reply::Failed(RequestError::FenceBroken { rank: 2, how: "killed by SIGSEGV".into() });
    assert_eq!(replies(&bench.server.ended(2, "killed by SIGSEGV")), [(0, broken.clone())]);
    assert_eq!(replies(&bench.fence(1)), [(1, broken)]);
}

#[test]
fn two_fences_of_one_rank_at_a_time_are_refused() {
    let mut bench = Bench::new(2);
    bench.fence(0);
    assert!(matches!(replies(&bench.fence(0))[..], [(0, Reply::Failed(RequestError::Refused { .. }))]));
}

#[test]
fn a_lost_rank_is_announced_once_and_its_names_go() {
    let mut bench = Bench::new(3);
    bench.register(1, "sums");
    let actions = bench.server.disconnected(bench.now, 1);
    let lost = Event::RankLost { rank: 1, how: "closed its connection without saying goodbye".into() };
    assert_eq!(events(&actions), [(0, lost.clone()), (2, lost)]);
    assert!(actions.contains(&Action::Close { rank: 1 }));
    let reply = bench.lookup(0, "sums", None);
    assert!(matches!(reply, Some(Reply::Failed(RequestError::MakerEnded { rank: 1, .. }))), "{reply:?}");
    assert_eq!(bench.register(2, "sums"), Some(Reply::Ok));
    assert_eq!(bench.server.ended(1, "killed by SIGKILL"), []);
    assert_eq!(bench.server.disconnected(bench.now, 1), []);
    assert_eq!(bench.call(1, Call::Done), []);
}

#[test]
fn a_done_rank_is_announced_once_and_its_names_go() {
    let mut bench = Bench::new(2);
    bench.register(1, "sums");
    let actions = bench.call(1, Call::Done);
    assert_eq!(events(&actions), [(0, Event::RankDone { rank: 1 })]);
    assert_eq!(bench.server.ended(1, "exited with code 0"), [Action::Close { rank: 1 }]);
    assert_eq!(bench.register(0, "sums"), Some(Reply::Ok));
    assert!(
        matches!(bench.register(1, "x"), Some(Reply::Failed(RequestError::Refused { why })) if why.contains("goodbye"))
    );
}

#[test]
fn a_watched_rank_that_closes_is_announced_with_the_watchers_words() {
    let config = Config { patience: SECOND, ..Config::new(3).unwrap() };
    let mut bench = Bench::with(config);
    assert_eq!(bench.server.disconnected(bench.now, 1), [Action::Close { rank: 1 }]);
    let how = "killed by SIGBUS";
    assert_eq!(events(&bench.server.ended(1, how))[0], (0, Event::RankLost { rank: 1, how: how.into() }));

    bench.server.disconnected(bench.now, 2);
    assert_eq!(bench.server.next_deadline(), Some(bench.now + SECOND));
    assert!(matches!(&events(&bench.pass(SECOND))[..], [(0, Event::RankLost { rank: 2, .. })]));
}

#[test]
fn what_waited_for_a_closed_connection_is_forgotten_and_nothing_else() {
    let config = Config { patience: SECOND, ..Config::new(3).unwrap() };
    let mut bench = Bench::with(config);
    for rank in [0, 1] {
        assert_eq!(bench.lookup(rank, "late", Some(SECOND)), None);
    }
    bench.server.disconnected(bench.now, 1);
    let answered: Vec<_> = replies(&bench.call(2, Call::Register { name: "late".into(), value: vec![9] }))
        .into_iter()
        .map(|(rank, _)| rank)
        .collect();
    assert_eq!(answered, [2, 0]);
}

#[test]
fn a_lookup_that_nobody_can_answer_fails_at_once() {
    let mut bench = Bench::new(3);
    assert_eq!(bench.lookup(0, "x", Some(SECOND)), None);
    assert_eq!(replies(&bench.call(1, Call::Done)), [(1, Reply::Ok)]);
    assert_eq!(replies(&bench.server.ended(2, "lost")), [(0, Reply::Failed(RequestError::NobodyLeft))]);
    assert_eq!(bench.lookup(0, "x", Some(SECOND)), Some(Reply::Failed(RequestError::NobodyLeft)));
}

#[test]
fn in_a_job_of_one_a_lookup_waits_for_another_thread() {
    let mut alone = Bench::new(1);
    assert_eq!(alone.lookup(0, "x", Some(SECOND)), None);
    let registered = alone.call(0, Call::Register { name: "x".into(), value: vec![1] });
    assert!(
        matches!(&replies(&registered)[..], [.., (0, Reply::Record(record))] if record.value == [1]),
        "{registered:?}"
    );
    assert_eq!(alone.lookup(0, "y", Some(SECOND)), None);
    let late = replies(&alone.pass(SECOND));
    assert!(matches!(&late[..], [(0, Reply::Failed(RequestError::NoSuch { .. }))]), "{late:?}");
}

const KILLED: &str = "killed by SIGKILL";

fn lost(rank: u32) -> Reply {
    Reply::Failed(RequestError::MakerEnded { rank, how: Some(KILLED.into()) })
}

fn done(rank: u32) -> Reply {
    Reply::Failed(RequestError::MakerEnded { rank, how: None })
}

#[test]
fn who_waits_for_a_rank_hears_of_its_end() {
    let mut bench = Bench::new(4);
    assert_eq!(bench.lookup_of(0, "x", Some(SECOND), Maker::Rank(2)), None);
    let get = Call::Get { key: "k".into(), wait: Some(SECOND), maker: Maker::Rank(2) };
    assert_eq!(bench.ask(1, get.clone()), None);
    assert_eq!(bench.lookup_of(0, "x", Some(SECOND), Maker::Rank(1)), None, "of another rank");
    assert_eq!(replies(&bench.server.ended(2, KILLED)), [(0, lost(2)), (1, lost(2))]);
    assert_eq!(bench.ask(1, get), Some(lost(2)), "also who asks later");
    assert_eq!(replies(&bench.call(1, Call::Done)), [(1, Reply::Ok), (0, done(1))]);
    assert_eq!(bench.lookup_of(0, "x", Some(SECOND), Maker::Rank(1)), Some(done(1)));
}

#[test]
fn who_asks_what_became_of_a_rank_hears_its_end_first() {
    let config = Config { patience: SECOND, ..Config::new(4).unwrap() };
    let mut bench = Bench::with(config);
    let await_exit = |rank| Call::AwaitExit { rank, wait: SECOND / 10 };
    // Rank 1 is there.
    assert_eq!(bench.ask(0, await_exit(1)), None);
    assert_eq!(replies(&bench.pass(SECOND / 10)), [(0, Reply::Ok)]);
    // The end of a rank is awaited if its connection closes during the wait, or has closed before.
    assert_eq!(bench.ask(0, await_exit(1)), None);
    bench.server.disconnected(bench.now, 1);
    assert_eq!(bench.ask(2, await_exit(1)), None);
    assert_eq!(bench.pass(SECOND / 2), []);
    let told = bench.server.ended(1, KILLED);
    assert_eq!(events(&told).len(), 3);
    assert_eq!(replies(&told), [(0, Reply::Ok), (2, Reply::Ok)]);
    assert!(
        matches!(told[0], Action::Close { .. })
            && matches!(&told[1], Action::Send { message: FromServer::Event(_), .. })
    );
    // Rank 2 closes its connection, and nobody reports its end.
    bench.server.disconnected(bench.now, 2);
    assert_eq!(bench.ask(0, await_exit(2)), None);
    assert_eq!(replies(&bench.pass(SECOND)), [(0, Reply::Ok)]);
    // Ranks that have ended, the asking rank itself, and a rank that does not exist.
    bench.call(3, Call::Done);
    for rank in [0, 1, 2, 3, 4] {
        assert_eq!(bench.ask(0, await_exit(rank)), Some(Reply::Ok));
    }
}

#[test]
fn in_a_collective_step_any_lost_rank_is_one_too_many() {
    let mut bench = Bench::new(4);
    assert_eq!(bench.lookup_of(0, "x", Some(SECOND), Maker::Collective(1)), None);
    assert_eq!(replies(&bench.call(2, Call::Done)), [(2, Reply::Ok)], "perhaps it needs no more of this");
    assert_eq!(replies(&bench.server.ended(3, KILLED)), [(0, lost(3))]);
    assert_eq!(bench.lookup_of(0, "x", Some(SECOND), Maker::Collective(1)), Some(lost(3)));
    // Rank 2 may have finished because of the loss.
    assert_eq!(bench.lookup_of(0, "x", Some(SECOND), Maker::Collective(2)), Some(lost(3)));
}

#[test]
fn the_name_of_a_rank_that_has_ended_is_not_waited_for() {
    let mut bench = Bench::new(4);
    bench.register(1, "lost");
    bench.register(2, "done");
    bench.server.ended(1, KILLED);
    bench.call(2, Call::Done);
    for wait in [None, Some(SECOND)] {
        assert_eq!(bench.lookup(0, "lost", wait), Some(lost(1)));
        assert_eq!(bench.lookup(0, "done", wait), Some(done(2)));
    }
    // A rank that registers the name again is found.
    assert_eq!(bench.register(3, "lost"), Some(Reply::Ok));
    assert!(matches!(bench.lookup(0, "lost", None), Some(Reply::Record(record)) if record.owner == 3));
    // A rank that has given the name up may register it again, until it ends.
    bench.call(3, Call::Unregister { name: "lost".into() });
    assert_eq!(bench.lookup(0, "lost", Some(SECOND)), None);
    assert_eq!(bench.lookup(0, "other", Some(SECOND)), None);
    assert!(replies(&bench.server.ended(3, KILLED)).contains(&(0, lost(3))));
    assert_eq!(bench.lookup(0, "lost", None), Some(lost(3)));
}

#[test]
fn of_names_given_up_only_the_last_are_remembered() {
    let mut bench = Bench::new(3);
    let name = |number| format!("n{number}");
    for number in (0..40).chain([8, 8]) {
        bench.register(1, &name(number));
        bench.call(1, Call::Unregister { name: name(number) });
    }
    bench.register(2, &name(39));
    bench.server.ended(1, KILLED);
    let known: Vec<u32> =
        (0..40).filter(|number| bench.lookup(0, &name(*number), None) == Some(lost(1))).collect();
    assert_eq!(known, (8..39).collect::<Vec<_>>());
}

#[test]
fn a_rank_that_joins_late_hears_the_news_and_one_that_never_joins_is_sent_nothing() {
    let mut server = Server::new(Config::new(3).unwrap());
    assert_eq!(events(&server.ended(2, "killed by SIGKILL")), []);
    let hello = Request { id: 1, call: Call::Hello { version: VERSION } };
    let actions = server.handle(Instant::now(), 0, hello);
    assert!(matches!(replies(&actions)[..], [(0, Reply::Welcome(_))]));
    assert_eq!(events(&actions), [(0, Event::RankLost { rank: 2, how: "killed by SIGKILL".into() })]);
}

#[test]
fn the_protocol_has_an_order() {
    let mut server = Server::new(Config::new(1).unwrap());
    let refusal = |actions: Vec<Action>| match &replies(&actions)[..] {
        [(0, Reply::Failed(RequestError::Refused { why }))] => why.clone(),
        other => panic!("{other:?}"),
    };
    let now = Instant::now();
    assert!(refusal(server.handle(now, 0, Request { id: 1, call: Call::Done })).contains("hello"));
    let other = Request { id: 2, call: Call::Hello { version: VERSION + 1 } };
    assert!(refusal(server.handle(now, 0, other)).contains("version"));
    let hello = Request { id: 3, call: Call::Hello { version: VERSION } };
    server.handle(now, 0, hello.clone());
    assert!(refusal(server.handle(now, 0, hello.clone())).contains("already"));
    assert_eq!(server.handle(now, 1, hello), [], "a rank that the job does not have");
}

#[test]
fn every_bound_says_itself() {
    let limits = Limits { entries: 2, name_len: 4, value_len: 3, waiting: 1, ..Limits::default() };
    let mut bench = Bench::with(Config { limits, ..Config::new(2).unwrap() });
    let mut bound = |call| match bench.ask(0, call) {
        Some(Reply::Failed(RequestError::TooBig { what, limit, got })) => (what, limit, got),
        other => panic!("{other:?}"),
    };
    let put = |key: &str, len| Call::Put { key: key.into(), value: vec![0; len] };
    assert_eq!(bound(put("12345", 0)), ("a name (bytes)".into(), 4, 5));
    assert_eq!(bound(put("1", 4)), ("a value (bytes)".into(), 3, 4));

    for key in ["a", "b", "a"] {
        assert_eq!(bench.ask(0, put(key, 3)), Some(Reply::Ok));
    }
    let full = |reply| matches!(reply, Some(Reply::Failed(RequestError::TooBig { limit: 2, got: 3, .. })));
    assert!(full(bench.ask(0, put("c", 0))));
    bench.register(0, "a");
    bench.register(0, "b");
    assert!(full(bench.register(1, "c")));

    assert_eq!(bench.lookup(0, "x", Some(SECOND)), None);
    assert!(matches!(
        bench.lookup(0, "x", Some(SECOND)),
        Some(Reply::Failed(RequestError::TooBig { limit: 1, got: 2, .. }))
    ));
    let id = bench.next_id - 1;
    for (rank, is_cancelled) in [(1, false), (0, true)] {
        assert_eq!(bench.call(rank, Call::Cancel { id }), []);
        assert_eq!(
            bench.lookup(0, "x", Some(SECOND)).is_none(),
            is_cancelled,
            "only its own rank cancels it"
        );
    }
    assert!(matches!(bench.register(1, ""), Some(Reply::Failed(RequestError::Refused { .. }))));
}

/// Returns the result of a put or a register: success, or the bound that it would have exceeded.
fn fits(reply: Option<Reply>) -> Result<(), (String, u64)> {
    match reply {
        Some(Reply::Ok) => Ok(()),
        Some(Reply::Failed(RequestError::TooBig { what, got, .. })) => Err((what, got)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_rank_and_a_job_keep_is_bounded_in_bytes() {
    let limits = Limits { rank_bytes: 1000, job_bytes: 1500, ..Limits::default() };
    let mut bench = Bench::with(Config { limits, ..Config::new(4).unwrap() });
    let put = |bench: &mut Bench, rank, key: &str, len| {
        fits(bench.ask(rank, Call::Put { key: key.into(), value: vec![0; len] }))
    };
    let of_a_rank = |got| Err(("what a rank keeps with the launcher (bytes)".to_owned(), got));
    let of_the_job = |got| Err(("what the ranks of a job keep with the launcher (bytes)".to_owned(), got));
    assert_eq!(put(&mut bench, 0, "a", 435), Ok(())); // and 65 more
    assert_eq!(put(&mut bench, 0, "b", 436), of_a_rank(1001));
    assert_eq!(put(&mut bench, 0, "b", 435), Ok(()));
    assert_eq!(put(&mut bench, 0, "a", 436), of_a_rank(1001));
    assert_eq!(put(&mut bench, 1, "c", 436), of_the_job(1501));
    assert_eq!(put(&mut bench, 1, "c", 335), Ok(()));
    // A value that replaces another one counts for its new owner.
    assert_eq!(put(&mut bench, 1, "a", 435), Ok(()));
    assert_eq!(put(&mut bench, 0, "a", 35), Ok(()));
    assert_eq!(put(&mut bench, 0, "d", 335), Ok(()));
    assert_eq!(put(&mut bench, 0, "e", 0), of_a_rank(1065));

    // Names count, too, and so do the kept names of a rank that has ended.
    let register = |len| Call::Register { name: "n".into(), value: vec![0; len] };
    assert_eq!(fits(bench.ask(2, register(36))), of_the_job(1501));
    assert_eq!(fits(bench.ask(2, register(35))), Ok(()));
    bench.server.ended(2, KILLED);
    assert_eq!(put(&mut bench, 3, "f", 0), of_the_job(1530));
    assert_eq!(fits(bench.ask(3, register(35))), Ok(()));
    bench.call(3, Call::Unregister { name: "n".into() });
    assert_eq!(put(&mut bench, 3, "f", 35), Ok(()));
}

#[test]
fn a_name_that_cannot_be_is_not_waited_for() {
    let mut bench = Bench::new(2);
    let long = "n".repeat(256);
    let reply = bench.lookup(0, &long, Some(SECOND));
    assert!(
        matches!(reply, Some(Reply::Failed(RequestError::TooBig { limit: 255, got: 256, .. }))),
        "{reply:?}"
    );
}

#[test]
fn an_endless_wait_does_not_overflow() {
    let mut bench = Bench::new(2);
    assert_eq!(bench.lookup(0, "x", Some(Duration::MAX)), None);
    assert_eq!(bench.server.next_deadline(), Some(bench.now + LONGEST_WAIT));
}

#[test]
fn many_ranks_find_each_other() {
    const RANKS: u32 = 500;
    let mut bench = Bench::new(RANKS);
    for rank in 0..RANKS {
        assert_eq!(bench.lookup(rank, &format!("box{}", (rank + 1) % RANKS), Some(SECOND)), None);
    }
    for rank in 0..RANKS {
        let actions = bench.call(rank, Call::Register { name: format!("box{rank}"), value: vec![] });
        let asker = (rank + RANKS - 1) % RANKS;
        assert_eq!(
            replies(&actions)[1],
            (asker, Reply::Record(Record { owner: rank, value: vec![] }.into()))
        );
    }
    for rank in 0..RANKS - 1 {
        assert_eq!(bench.fence(rank), []);
    }
    assert_eq!(bench.fence(RANKS - 1).len(), RANKS as usize);
}

/// Returns the tickets among these actions: the rank that gets one, and the rank that it is for.
fn tickets(actions: &[Action]) -> Vec<(u32, u32)> {
    let ticket = |action: &Action| match action {
        Action::Send { to, message: FromServer::Ticket { callee, .. } } => Some((*to, *callee)),
        _ => None,
    };
    actions.iter().filter_map(ticket).collect()
}

#[test]
fn who_finds_a_name_gets_a_ticket_for_its_owner_before_the_answer_and_nobody_else_does() {
    let mut bench = Bench::new(3);
    let lookup = |wait| Call::Lookup { name: "in".into(), wait, maker: Maker::Anyone };
    let waiting = bench.call(2, lookup(Some(Duration::from_secs(9))));
    assert_eq!(tickets(&waiting), []);
    let registered = bench.call(1, Call::Register { name: "in".into(), value: vec![] });
    assert_eq!(tickets(&registered), [(2, 1)]);
    let found = bench.call(0, lookup(None));
    assert_eq!(tickets(&found), [(0, 1)]);
    assert!(matches!(found[0], Action::Send { message: FromServer::Ticket { .. }, .. }), "{found:?}");
    // A key's value leads to no connection, and needs no ticket.
    bench.call(1, Call::Put { key: "key".into(), value: vec![] });
    assert_eq!(
        tickets(&bench.call(0, Call::Get { key: "key".into(), wait: None, maker: Maker::Anyone })),
        []
    );
    // A rank that has ended gets no ticket either.
    bench.call(0, Call::Done);
    assert_eq!(tickets(&bench.call(0, lookup(None))), []);
    bench.server.ended(2, "killed");
    assert_eq!(tickets(&bench.call(2, lookup(None))), []);
}

#[test]
fn each_rank_gets_its_own_key_which_its_host_can_make_too() {
    let hosts = vec![Host { name: "a".into(), ranks: 1 }, Host { name: "b".into(), ranks: 2 }];
    let config = Config::new(3).unwrap().on(hosts, None);
    let (a, b) = (config.host_key(0), config.host_key(1));
    let expected = [a.rank(0), b.rank(1), b.rank(2)];
    let mut server = Server::new(config);
    let keys = [0, 1, 2].map(|rank| {
        let hello = Request { id: 0, call: Call::Hello { version: VERSION } };
        match &replies(&server.handle(Instant::now(), rank, hello))[..] {
            [(_, Reply::Welcome(welcome))] => welcome.key,
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(keys, expected);
    assert!(keys[0] != keys[1] && keys[1] != keys[2]);
}
