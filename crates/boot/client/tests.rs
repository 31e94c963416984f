use std::sync::{Weak, mpsc};
use std::thread;

use udeck_auth::RankKey;

use super::*;
use crate::{Host, Placement, local::Job, wire::RequestError};

/// Upper bound of any wait, far enough for a slow machine; no test waits for it unless it fails.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(30);

fn soon() -> Instant {
    Instant::now() + LONG
}

fn job(ranks: u32) -> (Job, Vec<Client>) {
    let (job, streams) = Job::new(ranks).unwrap();
    (job, streams.into_iter().map(|stream| Client::new(stream).unwrap()).collect())
}

/// Returns a channel of the events that a client gets.
fn events(client: &Client) -> mpsc::Receiver<Event> {
    let (sender, receiver) = mpsc::channel();
    client.on_event(Box::new(move |event| {
        let _ = sender.send(event.clone());
    }));
    receiver
}

/// Makes a client whose launcher is the test itself.
fn by_hand() -> (Client, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut frame = Vec::new();
    let hosts = vec![Host { name: "here".into(), ranks: 2 }];
    let welcome = Welcome {
        rank: 0,
        size: 2,
        secret: [0; 32],
        job: 1,
        placement: Placement::blocks(hosts),
        address: None,
        key: RankKey::BLANK,
        cpus: 0,
    };
    encode(&FromServer::Reply { id: 0, reply: Reply::Welcome(welcome) }, &mut frame).unwrap();
    assert!(send_all(&theirs, &frame, soon().into()).is_ok());
    (Client::new(ours).unwrap(), theirs)
}

fn ended(client: Client) {
    let shared: Weak<Shared> = Arc::downgrade(&client.shared);
    drop(client);
    let limit = soon();
    while shared.upgrade().is_some() {
        assert!(Instant::now() < limit, "the client's thread lives on");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn is_send_and_sync() {
    fn check<T: Send + Sync>() {}
    check::<Client>();
}

#[test]
fn ranks_of_a_job_know_themselves_and_share_a_secret() {
    let (_job, clients) = job(3);
    let secret = clients[0].welcome().secret;
    assert_ne!(secret, [0; 32]);
    for (rank, client) in (0u32..).zip(&clients) {
        let Welcome { rank: own, size, secret: own_secret, job, .. } = *client.welcome();
        assert_eq!((own, size, own_secret, job), (rank, 3, secret, clients[0].welcome().job));
    }
    let (_other, strangers) = job_of_one();
    assert_ne!(strangers[0].welcome().secret, secret);
}

fn job_of_one() -> (Job, Vec<Client>) {
    job(1)
}

/// Events of before a question come before its answer.
#[test]
fn who_has_caught_up_knows_who_has_left() {
    for _ in 0..100 {
        let (_job, clients) = job(2);
        let heard = events(&clients[0]);
        clients[1].finish(soon()).unwrap();
        clients[0].wait_for_exit_report(1, Duration::ZERO, soon()).unwrap();
        assert_eq!(heard.try_recv(), Ok(Event::RankDone { rank: 1 }));
    }
}

#[test]
fn a_listener_that_panics_costs_nobody_else_anything() {
    let (_job, clients) = job(3);
    clients[0].on_event(Box::new(|_| panic!("a listener")));
    let heard = events(&clients[0]);
    for rank in [1, 2] {
        clients[rank as usize].finish(soon()).unwrap();
        clients[0].wait_for_exit_report(1, Duration::ZERO, soon()).expect("the launcher is heard");
        assert_eq!(heard.try_recv(), Ok(Event::RankDone { rank }));
    }
    clients[0].on_event(Box::new(|_| panic!("one that comes later")));
}

#[test]
fn names_and_values_travel() {
    let (_job, clients) = job(2);
    let (a, b) = (&clients[0], &clients[1]);
    thread::scope(|scope| {
        let found = scope.spawn(|| a.lookup("sums", true, soon()));
        b.register("sums", b"where", soon()).unwrap();
        assert_eq!(found.join().unwrap().unwrap(), Record { owner: 1, value: b"where".to_vec() });
    });
    assert!(matches!(a.register("sums", b"", soon()), Err(BootError::NameTaken { owner: 1, .. })));
    let Err(BootError::NoSuchName { existing, total: 1, waited, .. }) = a.lookup("x", false, soon()) else {
        panic!()
    };
    assert_eq!((existing, waited), (vec!["sums".to_string()], Duration::ZERO));
    b.unregister("sums", soon()).unwrap();

    a.put("k", &[1, 2], soon()).unwrap();
    assert_eq!(b.get("k", true, soon()).unwrap(), [1, 2]);
    assert!(
        matches!(b.get("j", false, soon()), Err(BootError::NoSuchKey { existing, .. }) if existing == ["k"])
    );
}

#[test]
fn a_deadline_that_passes_says_what_exists_or_who_is_missing() {
    let (_job, clients) = job(3);
    clients[1].register("here", b"", soon()).unwrap();
    let late = clients[0].lookup("there", true, Instant::now() + SHORT);
    let Err(BootError::NoSuchName { existing, waited, .. }) = late else { panic!("{late:?}") };
    assert_eq!(existing, ["here"]);
    assert!(waited >= SHORT);
    let late = clients[0].fence(Instant::now() + SHORT);
    assert!(matches!(&late, Err(BootError::Deadline { missing, .. }) if missing == &[1, 2]), "{late:?}");
}

#[test]
fn bounds_are_errors_that_say_the_bound() {
    let (_job, clients) = job(1);
    let long = "n".repeat(256);
    let error = clients[0].register(&long, b"", soon()).unwrap_err();
    assert!(matches!(error, BootError::TooBig { limit: 255, got: 256, .. }), "{error}");
    let error = clients[0].put("k", &vec![0; 2 << 20], soon()).unwrap_err();
    assert!(error.to_string().contains("at most"), "{error}");
}

/// A rank may have 256 requests that wait.
#[test]
fn an_interrupted_wait_counts_no_more() {
    let (_job, clients) = job(2);
    let interrupted = || {
        let over = clients[0].lookup_of("never", Maker::Anyone, soon(), Some(&|| true));
        assert!(matches!(over, Err(BootError::Interrupted { .. })), "{over:?}");
    };
    for _ in 0..3 {
        thread::scope(|scope| (0..100).for_each(|_| drop(scope.spawn(interrupted))));
    }
}

#[test]
fn a_rank_that_goes_without_goodbye_fails_the_others_waits() {
    let (_job, mut clients) = job(2);
    let gone = clients.pop().unwrap();
    let news = events(&clients[0]);
    thread::scope(|scope| {
        let stuck = scope.spawn(|| clients[0].fence(soon()));
        ended(gone);
        assert!(matches!(stuck.join().unwrap(), Err(BootError::PeerLost { rank: 1, .. })));
    });
    assert!(matches!(news.recv_timeout(LONG), Ok(Event::RankLost { rank: 1, .. })));
    assert!(matches!(clients[0].lookup("x", true, soon()), Err(BootError::NobodyLeft { .. })));
}

#[test]
fn goodbye_is_an_event_and_is_replayed_to_a_late_listener() {
    let (job, clients) = job(2);
    let news = events(&clients[0]);
    clients[1].finish(soon()).unwrap();
    assert_eq!(news.recv_timeout(LONG), Ok(Event::RankDone { rank: 1 }));
    assert_eq!(
        events(&clients[0]).try_recv(),
        Ok(Event::RankDone { rank: 1 }),
        "replayed before on_event returns"
    );
    assert!(matches!(clients[1].fence(soon()), Err(BootError::Refused { .. })));
    drop(clients);
    job.join().unwrap();
}

#[test]
fn a_rank_alone_may_be_declared_lost() {
    let (job, clients) = job(2);
    let news = events(&clients[0]);
    job.reporter().report_ended(1, "killed by SIGSEGV");
    let lost = Event::RankLost { rank: 1, how: "killed by SIGSEGV".into() };
    assert_eq!(news.recv_timeout(LONG), Ok(lost));
}

#[test]
fn the_launchers_end_fails_calls_and_is_an_event() {
    let (client, launcher) = by_hand();
    let news = events(&client);
    thread::scope(|scope| {
        let stuck = scope.spawn(|| client.fence(soon()));
        drop(launcher);
        assert!(matches!(stuck.join().unwrap(), Err(BootError::LauncherGone { .. })));
    });
    assert_eq!(news.recv_timeout(LONG), Ok(Event::LauncherGone));
    assert_eq!(events(&client).try_recv(), Ok(Event::LauncherGone));
    assert!(matches!(client.put("k", b"", soon()), Err(BootError::LauncherGone { .. })));
}

#[test]
fn a_launcher_that_never_answers_is_a_deadline() {
    let (client, _launcher) = by_hand();
    assert!(matches!(client.put("k", b"", Instant::now() + SHORT), Err(BootError::Deadline { .. })));
    assert!(client.shared.calls.lock().open.is_empty(), "a call that was given up is forgotten");
}

/// A launcher that was suspended reads the vote, and the same rank's next vote, at once.
#[test]
fn a_vote_that_was_given_up_is_taken_back() {
    let (client, launcher) = by_hand();
    let vote = crate::wire::Vote { question: crate::wire::Question::Agree, value: 1 };
    let late = client.agree(vote, Instant::now(), None);
    assert!(matches!(late, Err(BootError::Deadline { .. })), "{late:?}");
    drop(client);
    let mut frames = Frames::default();
    while receive(&launcher, &mut frames, Some(soon().into())).is_ok() {}
    let calls = std::iter::from_fn(|| frames.decode::<Request>().unwrap());
    let votes = calls.skip_while(|request| !matches!(request.call, Call::Agree { .. }));
    let [voted, back] = <[_; 2]>::try_from(votes.collect::<Vec<_>>()).unwrap();
    assert_eq!(back.call, Call::Cancel { id: voted.id });
}

#[test]
fn a_launcher_that_does_not_read_is_a_deadline_too() {
    let (client, _launcher) = by_hand();
    let value = vec![0; 512 << 10];
    let deadline = Instant::now() + SHORT;
    for _ in 0..64 {
        match client.put("k", &value, deadline).unwrap_err() {
            BootError::Deadline { .. } => {}
            BootError::LauncherGone { .. } => return,
            other => panic!("{other}"),
        }
    }
    panic!("half a frame was written and the connection is still in use");
}

#[test]
fn nonsense_from_the_launcher_ends_the_connection() {
    let (client, launcher) = by_hand();
    assert!(send_all(&launcher, &[0xFF; 64], soon().into()).is_ok());
    let error = client.fence(soon()).unwrap_err();
    assert!(matches!(&error, BootError::LauncherGone { why, .. } if why.contains("at most")), "{error}");
}

#[test]
fn a_refused_hello_says_why() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut frame = Vec::new();
    let refused = Reply::Failed(RequestError::Refused { why: "protocol version 9".into() });
    encode(&FromServer::Reply { id: 0, reply: refused }, &mut frame).unwrap();
    assert!(send_all(&theirs, &frame, soon().into()).is_ok());
    assert!(matches!(Client::new(ours), Err(BootError::Refused { why, .. }) if why == "protocol version 9"));
}

#[test]
fn dropping_the_client_ends_its_thread_quietly() {
    let (job, mut clients) = job(1);
    let news = events(&clients[0]);
    ended(clients.pop().unwrap());
    job.join().unwrap();
    assert_eq!(news.recv_timeout(LONG), Err(mpsc::RecvTimeoutError::Disconnected));
}

#[test]
fn many_threads_share_a_client() {
    let (_job, clients) = job(2);
    thread::scope(|scope| {
        for t in 0..8 {
            let clients = &clients;
            scope.spawn(move || {
                for i in 0..50 {
                    let name = format!("{t}.{i}");
                    clients[0].register(&name, name.as_bytes(), soon()).unwrap();
                    assert_eq!(clients[1].lookup(&name, true, soon()).unwrap().value, name.as_bytes());
                }
            });
        }
    });
}

#[test]
fn a_question_is_answered_behind_the_events_that_came_before() {
    let (_job, clients) = job(2);
    let [asker, leaver] = <[_; 2]>::try_from(clients).unwrap();
    let events = events(&asker);
    leaver.finish(soon()).unwrap();
    let question = asker.ask(1, Duration::ZERO).expect("the launcher reads");
    let limit = soon();
    while !question.is_answered() {
        assert!(Instant::now() < limit, "no answer");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(events.try_recv(), Ok(Event::RankDone { rank: 1 }));
    drop(question);
    assert!(asker.shared.calls.lock().open.is_empty());
}

#[test]
fn a_question_to_nobody_is_answered() {
    let (client, launcher) = by_hand();
    let question = client.ask(1, Duration::ZERO).expect("there is room");
    assert!(!question.is_answered());
    drop(launcher);
    let limit = soon();
    while !question.is_answered() {
        assert!(Instant::now() < limit, "it is waited for in vain");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn who_has_looked_up_a_name_can_prove_to_its_owner_who_it_is() {
    let (_job, clients) = job(3);
    clients[2].register("in", b"", soon()).unwrap();
    let keys: Vec<_> = clients.iter().map(Client::keys).collect();
    assert!(keys[0].call(Some(2)).is_err(), "nothing was looked up");
    for caller in [0, 1] {
        clients[caller].lookup("in", false, soon()).unwrap();
        let asked = keys[caller].call(Some(2)).unwrap();
        let answered = keys[2].answer(asked.claim()).unwrap();
        assert_eq!(answered.caller(), Some(caller as u32));
        assert!(answered.check(&asked.prove(b"", b"", &[]), b"", b"", &[]));
    }
}
