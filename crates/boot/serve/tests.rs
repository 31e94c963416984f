use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    sync::mpsc,
    thread,
};

use super::*;
use crate::{
    Client, Event, Host,
    local::Job,
    wire::{Call, Frames, Maker, VERSION},
};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Returns the client of rank 0, and the stream of rank 1.
fn job_of_two() -> (Job, Client, UnixStream) {
    let (job, streams) = Job::new(2).unwrap();
    let [first, second] = streams.try_into().unwrap();
    (job, Client::new(first).unwrap(), second)
}

fn request(id: u64, call: Call) -> Vec<u8> {
    let mut frame = Vec::new();
    encode(&Request { id, call }, &mut frame).unwrap();
    frame
}

fn lost(client: &Client) -> mpsc::Receiver<(u32, String)> {
    let (sender, receiver) = mpsc::channel();
    client.on_event(Box::new(move |event| {
        if let Event::RankLost { rank, how } = event {
            let _ = sender.send((*rank, how.clone()));
        }
    }));
    receiver
}

fn next(news: &mpsc::Receiver<(u32, String)>) -> (u32, String) {
    news.recv_timeout(Duration::from_secs(60)).expect("no rank was declared lost")
}

fn get(id: u64, wait: Option<Duration>) -> Vec<u8> {
    request(id, Call::Get { key: "big".into(), wait, maker: Maker::Anyone })
}

/// Number of requests whose answers exceed the bound of unsent bytes for one rank.
const MANY: u64 = 2 * (OUT_BOUND / BIG) as u64;
const BIG: usize = 64 << 10;

fn many(wait: Option<Duration>) -> Vec<u8> {
    (1..=MANY).flat_map(|id| get(id, wait)).collect()
}

/// Takes the welcome, and the answers to [`many`].
fn take_all(mut next: impl FnMut() -> FromServer) {
    assert!(matches!(next(), FromServer::Reply { id: 0, reply: Reply::Welcome(_) }));
    for asked in 1..=MANY {
        match next() {
            FromServer::Reply { id, reply: Reply::Record(record) } => {
                assert_eq!((id, record.value.len()), (asked, BIG));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_rank_that_asks_for_more_than_it_reads_waits_and_holds_up_nobody() {
    let (job, mut streams) = Job::new(3).unwrap();
    let mut slow = streams.pop().unwrap();
    let clients: Vec<Client> = streams.into_iter().map(|s| Client::new(s).unwrap()).collect();
    let news = lost(&clients[0]);
    clients[1].put("big", &vec![7; BIG], soon()).unwrap();

    slow.write_all(&request(0, Call::Hello { version: VERSION })).unwrap();
    slow.write_all(&many(None)).unwrap();
    // Unserved requests fill the socket's buffer: the service itself keeps a bounded number of bytes.
    slow.set_nonblocking(true).unwrap();
    let mut more = 0;
    loop {
        // After a round trip the service has checked all sockets.
        assert_eq!(clients[0].get("big", false, soon()).unwrap().len(), BIG);
        match slow.write(&get(u64::MAX, None)) {
            Ok(written) => more += written,
            Err(error) => break assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        assert!(more < 64 << 20, "all of it is taken");
        if let Ok(news) = news.try_recv() {
            panic!("{news:?}");
        }
    }
    slow.set_nonblocking(false).unwrap();
    let mut frames = Frames::default();
    let mut scratch = vec![0; BIG];
    take_all(|| {
        loop {
            if let Some(message) = frames.decode().unwrap() {
                return message;
            }
            let read = slow.read(&mut scratch).unwrap();
            assert!(read > 0, "closed");
            frames.push(&scratch[..read]);
        }
    });
    assert!(news.try_recv().is_err());
    drop((clients, slow));
    job.join().unwrap();
}

#[test]
fn what_a_rank_said_last_is_heard_although_it_does_not_read() {
    let (job, client, mut deaf) = job_of_two();
    client.put("big", &vec![7; BIG], soon()).unwrap();
    let (sender, events) = mpsc::channel();
    client.on_event(Box::new(move |event| sender.send(event.clone()).unwrap()));
    deaf.write_all(&request(0, Call::Hello { version: VERSION })).unwrap();
    deaf.write_all(&many(None)).unwrap();
    deaf.write_all(&request(MANY + 1, Call::Done)).unwrap();
    // The rank hangs up. Its unsent answers must not hide its last request.
    drop(deaf);
    assert_eq!(events.recv_timeout(Duration::from_secs(60)), Ok(Event::RankDone { rank: 1 }));
    drop(client);
    job.join().unwrap();
}

#[test]
fn a_rank_that_does_not_read_what_it_has_waited_for_is_lost_and_holds_up_nobody() {
    let (job, mut streams) = Job::new(3).unwrap();
    let mut deaf = streams.pop().unwrap();
    let clients: Vec<Client> = streams.into_iter().map(|s| Client::new(s).unwrap()).collect();
    let news = lost(&clients[0]);

    deaf.write_all(&request(0, Call::Hello { version: VERSION })).unwrap();
    deaf.write_all(&many(Some(Duration::from_secs(600)))).unwrap();
    // Behind all requests in the server comes one that registers the rank's name.
    deaf.write_all(&request(MANY + 1, Call::Register { name: "deaf".into(), value: Vec::new() })).unwrap();
    clients[0].lookup("deaf", true, soon()).unwrap();
    clients[1].put("big", &vec![7; BIG], soon()).unwrap();

    let (rank, how) = next(&news);
    assert!(rank == 2 && how.contains("stopped reading"), "{rank}: {how}");
    assert_eq!(clients[0].get("big", false, soon()).unwrap().len(), 64 << 10);
    drop(clients);
    job.join().unwrap();
}

#[test]
fn a_rank_that_speaks_nonsense_is_lost() {
    let (job, client, mut mad) = job_of_two();
    let news = lost(&client);
    mad.write_all(&[0xFF; 8]).unwrap();
    let (rank, how) = next(&news);
    assert!(rank == 1 && how.contains("4294967295 bytes"), "{rank}: {how}");
    drop((client, mad));
    job.join().unwrap();
}

#[test]
fn half_a_request_holds_up_nobody() {
    let (_job, client, mut slow) = job_of_two();
    let hello = request(0, Call::Hello { version: VERSION });
    let (first, second) = hello.split_at(5);
    slow.write_all(first).unwrap();
    client.put("k", b"v", soon()).unwrap();
    slow.write_all(second).unwrap();
    let mut answer = [0; 256];
    let read = slow.read(&mut answer).unwrap();
    let mut frames = Frames::default();
    frames.push(&answer[..read]);
    assert!(
        matches!(frames.decode(), Ok(Some(FromServer::Reply { reply: Reply::Welcome(w), .. })) if w.rank == 1)
    );
}

#[test]
fn what_a_rank_said_before_its_end_was_reported_counts() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let (others, client) = UnixStream::pair().unwrap();
    let service = Service::new(Config::new(2).unwrap(), vec![others, ours]).unwrap();
    theirs.write_all(&request(0, Call::Hello { version: VERSION })).unwrap();
    theirs.write_all(&request(1, Call::Done)).unwrap();
    service.reporter().report_ended(1, "exited with code 0");
    let serving = thread::spawn(|| service.run());
    let client = Client::new(client).unwrap();
    let (sender, events) = mpsc::channel();
    client.on_event(Box::new(move |event| sender.send(event.clone()).unwrap()));
    assert_eq!(events.recv_timeout(Duration::from_secs(60)), Ok(Event::RankDone { rank: 1 }));
    drop(client);
    serving.join().unwrap().unwrap();
}

/// Bytes for a relayed rank; `None` when the connection was closed.
type Said = (u32, Option<Vec<u8>>);

/// The outlet of the service under test.
#[derive(Debug)]
struct ToTest(mpsc::Sender<Said>);

impl Outlet for ToTest {
    fn send(&mut self, rank: u32, bytes: Vec<u8>) {
        self.0.send((rank, Some(bytes))).unwrap();
    }

    fn consumed(&mut self, _: u32, _: usize) {}

    fn close(&mut self, rank: u32) {
        self.0.send((rank, None)).unwrap();
    }
}

/// Starts a service for two ranks here and two relayed ones.
fn partly_relayed() -> (Vec<Client>, Reporter, mpsc::Receiver<Said>, thread::JoinHandle<()>) {
    let (ours, theirs): (Vec<_>, Vec<_>) = (0..2).map(|_| UnixStream::pair().unwrap()).unzip();
    let relayed = (0..2).map(|_| Connection::Relayed);
    let connections = ours.into_iter().map(Connection::Socket).chain(relayed).collect();
    let (sender, said) = mpsc::channel();
    let hosts = vec![Host { name: "a".into(), ranks: 2 }, Host { name: "b".into(), ranks: 2 }];
    let config = Config::new(4).unwrap().on(hosts, Some([10, 0, 0, 1].into()));
    let service = Service::over(config, connections, Box::new(ToTest(sender))).unwrap();
    let reporter = service.reporter();
    let serving = thread::spawn(|| service.run().unwrap());
    let clients = theirs.into_iter().map(|stream| Client::new(stream).unwrap()).collect();
    (clients, reporter, said, serving)
}

fn answer(frames: &mut Frames, said: &mpsc::Receiver<Said>, from: u32) -> FromServer {
    loop {
        if let Some(message) = frames.decode().unwrap() {
            return message;
        }
        let (rank, bytes) = said.recv_timeout(Duration::from_secs(60)).expect("no answer");
        assert_eq!(rank, from);
        frames.push(&bytes.expect("closed"));
    }
}

#[test]
fn a_relayed_rank_is_a_rank_whose_secret_stays_here() {
    let (clients, reporter, said, serving) = partly_relayed();
    assert_eq!(clients[0].welcome().address, Some([10, 0, 0, 1].into()));
    // The request comes in pieces, as a network cuts it.
    for byte in request(0, Call::Hello { version: VERSION }) {
        reporter.relayed(2, vec![byte]);
    }
    let mut frames = Frames::default();
    let FromServer::Reply { reply: Reply::Welcome(welcome), .. } = answer(&mut frames, &said, 2) else {
        panic!("no welcome")
    };
    assert_eq!(
        (welcome.rank, welcome.placement.host_of(2), welcome.secret, welcome.key, welcome.address),
        (2, Some(1), [0; 32], RankKey::BLANK, None)
    );
    clients[0].put("k", b"v", soon()).unwrap();
    reporter.relayed(2, request(1, Call::Get { key: "k".into(), wait: None, maker: Maker::Anyone }));
    let FromServer::Reply { id: 1, reply: Reply::Record(record) } = answer(&mut frames, &said, 2) else {
        panic!("no record")
    };
    assert_eq!(record.value, b"v");

    let news = lost(&clients[1]);
    reporter.hung_up(2);
    assert_eq!(next(&news), (2, "closed its connection without saying goodbye".into()));
    reporter.relayed(3, vec![0xFF; 8]);
    let (rank, how) = next(&news);
    assert!(rank == 3 && how.contains("4294967295 bytes"), "{rank}: {how}");
    let closed: Vec<_> = said.try_iter().filter(|(_, bytes)| bytes.is_none()).map(|(rank, _)| rank).collect();
    assert_eq!(closed, [2, 3]);
    drop(clients);
    serving.join().unwrap();
}

#[test]
fn to_a_relayed_rank_no_more_is_under_way_than_its_window() {
    let (clients, reporter, said, serving) = partly_relayed();
    clients[0].put("big", &vec![7; BIG], soon()).unwrap();
    reporter.relayed(2, request(0, Call::Hello { version: VERSION }));
    reporter.relayed(2, many(None));
    // Each answer to another rank comes after the service has handled this one.
    for _ in 0..MANY {
        assert_eq!(clients[0].get("big", false, soon()).unwrap().len(), BIG);
    }
    let untaken: Vec<u8> = said.try_iter().flat_map(|(_, bytes)| bytes.expect("closed")).collect();
    assert_eq!(untaken.len(), WINDOW);
    let mut frames = Frames::default();
    frames.push(&untaken);
    reporter.taken(2, untaken.len());
    take_all(|| {
        loop {
            if let Some(message) = frames.decode().unwrap() {
                return message;
            }
            let (rank, bytes) = said.recv_timeout(Duration::from_secs(60)).expect("no answer");
            assert_eq!(rank, 2);
            let bytes = bytes.expect("closed");
            frames.push(&bytes);
            reporter.taken(2, bytes.len());
        }
    });
    reporter.hung_up(2);
    reporter.hung_up(3);
    drop(clients);
    serving.join().unwrap();
}

/// The service sends to one rank after the other. Bytes for a rank whose turn is over are sent all the same.
#[test]
fn a_relayed_rank_hears_at_once_what_a_higher_one_said_last() {
    let (ours, mut deaf) = UnixStream::pair().unwrap();
    let (sender, said) = mpsc::channel();
    let connections = vec![Connection::Relayed, Connection::Socket(ours)];
    let service = Service::over(Config::new(2).unwrap(), connections, Box::new(ToTest(sender))).unwrap();
    let reporter = service.reporter();
    let serving = thread::spawn(|| service.run().unwrap());
    let mut frames = Frames::default();
    reporter.relayed(0, request(0, Call::Hello { version: VERSION }));
    assert!(matches!(answer(&mut frames, &said, 0), FromServer::Reply { id: 0, .. }));
    reporter.relayed(0, request(1, Call::Put { key: "big".into(), value: vec![7; BIG] }));
    assert!(matches!(answer(&mut frames, &said, 0), FromServer::Reply { id: 1, .. }));

    // There are more answers than the rank's socket takes: its last request is found when the service fails to
    // send the rest.
    deaf.write_all(&request(0, Call::Hello { version: VERSION })).unwrap();
    deaf.write_all(&many(None)).unwrap();
    deaf.write_all(&request(MANY + 1, Call::Done)).unwrap();
    drop(deaf);
    // Nothing else wakes the service.
    assert!(matches!(answer(&mut frames, &said, 0), FromServer::Event(Event::RankDone { rank: 1 })));
    reporter.hung_up(0);
    serving.join().unwrap();
}

/// An outlet that reports, with each message of the service, the number of checks of a rank's connection so
/// far.
#[derive(Debug)]
struct Counting(mpsc::Sender<usize>);

impl Outlet for Counting {
    fn send(&mut self, _: u32, _: Vec<u8>) {
        self.0.send(peer::LOOKS.get()).unwrap();
    }

    fn consumed(&mut self, _: u32, _: usize) {}

    fn close(&mut self, _: u32) {}
}

/// One rank sends, the others are silent. The cost does not depend on the number of ranks.
#[test]
fn a_frame_costs_no_look_at_those_that_it_does_not_concern() {
    const RANKS: u32 = crate::MAX_RANKS;
    const FRAMES: u64 = 50;
    let (ours, theirs) = UnixStream::pair().unwrap();
    let relayed = (1..RANKS).map(|_| Connection::Relayed);
    let connections = std::iter::once(Connection::Socket(ours)).chain(relayed).collect();
    let hosts = vec![Host { name: "a".into(), ranks: 1 }, Host { name: "b".into(), ranks: RANKS - 1 }];
    let config = Config::new(RANKS).unwrap().on(hosts, None);
    let (sender, answers) = mpsc::channel();
    let service = Service::over(config, connections, Box::new(Counting(sender))).unwrap();
    let reporter = service.reporter();
    let serving = thread::spawn(|| service.run().unwrap());
    let answer = || answers.recv_timeout(Duration::from_secs(60)).expect("an answer");
    reporter.relayed(7, request(0, Call::Hello { version: VERSION }));
    let before = answer();
    let mut now = before;
    for id in 1..=FRAMES {
        reporter.relayed(7, get(id, None));
        now = answer();
    }
    let each = (now - before) / FRAMES as usize;
    assert!(each <= 16, "{each} looks for each frame");
    (1..RANKS).for_each(|rank| reporter.hung_up(rank));
    drop(theirs);
    serving.join().unwrap();
}

#[test]
fn streams_and_ranks_must_agree_in_number() {
    assert!(Service::new(Config::new(2).unwrap(), Vec::new()).is_err());
    assert!(Job::new(0).is_err());
    assert!(Job::new(crate::MAX_RANKS + 1).is_err());
}

#[test]
fn five_hundred_ranks_meet_at_a_fence() {
    const RANKS: u32 = 500;
    // Both ends of every connection lie in this one process, beside those of the tests that run at the same
    // time.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();

    let (job, streams) = Job::new(RANKS).unwrap();
    thread::scope(|scope| {
        for stream in streams {
            scope.spawn(move || {
                let client = Client::new(stream).unwrap();
                let rank = client.welcome().rank;
                client.register(&format!("box{rank}"), &rank.to_le_bytes(), soon()).unwrap();
                client.fence(soon()).unwrap();
                let next = (rank + 1) % RANKS;
                assert_eq!(client.lookup(&format!("box{next}"), false, soon()).unwrap().owner, next);
                client.fence(soon()).unwrap();
                client.finish(soon()).unwrap();
            });
        }
    });
    job.join().unwrap();
}
