use std::{
    io::{Read, Write},
    sync::mpsc,
    thread,
    time::Duration,
};

use super::*;
use crate::{
    Client, Event,
    local::Job,
    wire::{Call, Frames, Host, Maker, VERSION},
};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
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

#[test]
fn a_rank_that_never_reads_is_lost_and_holds_up_nobody() {
    let (job, mut streams) = Job::new(3).unwrap();
    let mut deaf = streams.pop().unwrap();
    let clients: Vec<Client> = streams.into_iter().map(|s| Client::new(s).unwrap()).collect();
    let news = lost(&clients[0]);
    clients[1].put("big", &vec![7; 64 << 10], soon()).unwrap();

    deaf.write_all(&request(0, Call::Hello { version: VERSION })).unwrap();
    let ask = request(1, Call::Get { key: "big".into(), wait: None, maker: Maker::Anyone });
    // Written until the service hangs up: that is what ends this, whatever the sockets' buffers hold.
    while deaf.write_all(&ask).is_ok() {}

    let (rank, how) = next(&news);
    assert!(rank == 2 && how.contains("stopped reading"), "{rank}: {how}");
    assert_eq!(clients[0].get("big", false, soon()).unwrap().len(), 64 << 10);
    drop(clients);
    job.join().unwrap();
}

#[test]
fn a_rank_that_speaks_nonsense_is_lost() {
    let (job, mut streams) = Job::new(2).unwrap();
    let mut mad = streams.pop().unwrap();
    let client = Client::new(streams.pop().unwrap()).unwrap();
    let news = lost(&client);
    mad.write_all(&[0xFF; 8]).unwrap();
    let (rank, how) = next(&news);
    assert!(rank == 1 && how.contains("4294967295 bytes"), "{rank}: {how}");
    drop((client, mad));
    job.join().unwrap();
}

#[test]
fn half_a_request_holds_up_nobody() {
    let (_job, mut streams) = Job::new(2).unwrap();
    let mut slow = streams.pop().unwrap();
    let client = Client::new(streams.pop().unwrap()).unwrap();
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

/// To which relayed rank what was said; `None`: the connection was closed.
type Said = (u32, Option<Vec<u8>>);

/// The outlet of the service under test.
#[derive(Debug)]
struct ToTest(mpsc::Sender<Said>);

impl Outlet for ToTest {
    fn send(&mut self, rank: u32, bytes: Vec<u8>) {
        self.0.send((rank, Some(bytes))).unwrap();
    }

    fn close(&mut self, rank: u32) {
        self.0.send((rank, None)).unwrap();
    }
}

/// Two ranks here and two relayed.
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
    // In pieces, as a network cuts them.
    for byte in request(0, Call::Hello { version: VERSION }) {
        reporter.relayed(2, vec![byte]);
    }
    let mut frames = Frames::default();
    let FromServer::Reply { reply: Reply::Welcome(welcome), .. } = answer(&mut frames, &said, 2) else {
        panic!("no welcome")
    };
    assert_eq!(
        (welcome.rank, welcome.host_of(2), welcome.secret, welcome.key, welcome.address),
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
fn streams_and_ranks_must_agree_in_number() {
    assert!(Service::new(Config::new(2).unwrap(), Vec::new()).is_err());
    assert!(Job::new(0).is_err());
    assert!(Job::new(crate::MAX_RANKS + 1).is_err());
}

#[test]
fn five_hundred_ranks_meet_at_a_fence() {
    const RANKS: u32 = 500;
    // Both ends of every connection lie in this one process, beside those of the tests that run at the same time.
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
                client.done(soon()).unwrap();
            });
        }
    });
    job.join().unwrap();
}
