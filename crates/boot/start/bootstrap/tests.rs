use std::os::unix::net::UnixStream;
use std::{
    collections::HashMap,
    io::{Read, Write},
    process::Command,
    sync::{Arc, Barrier, mpsc},
    thread::JoinHandle,
    time::Instant,
};

use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use udeck_auth::RankKey;

use super::*;
use crate::{
    Event, Host,
    wire::{FromServer, Reply, Welcome, encode},
};

/// Upper bound of any wait, far enough for a slow machine; no test waits for it unless it fails.
const LONG: Duration = Duration::from_secs(60);

/// A launcher's table in this process.
#[derive(Clone)]
struct Table {
    rank: u32,
    size: u32,
    values: Arc<Mutex<HashMap<(u32, String), String>>>,
    fence: Arc<Barrier>,
    /// Number of hosts, to which ranks are dealt out in turn.
    hosts: u32,
    finalized: mpsc::Sender<u32>,
}

impl Environment for Table {
    fn title(&self) -> String {
        "a table".into()
    }

    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn longest_value(&self) -> usize {
        800
    }

    fn put(&mut self, key: &str, value: &str, _: Deadline) -> Result<(), StartError> {
        assert!(value.len() <= self.longest_value() && value.chars().all(|c| c.is_ascii_alphanumeric()));
        let mut value = value.to_owned();
        if key == RANK_INFO && self.hosts > 1 {
            let mut info = rank_info::decode::<RankInfo>(&value).unwrap();
            info.host.push((self.rank % self.hosts) as u8);
            value = rank_info::encode(&info);
        }
        assert!(self.values.lock().insert((self.rank, key.into()), value).is_none(), "put once");
        Ok(())
    }

    fn fence(&mut self, _: Deadline) -> Result<(), StartError> {
        self.fence.wait();
        Ok(())
    }

    fn get(&mut self, rank: u32, key: &str, _: Deadline) -> Result<String, StartError> {
        Ok(self.values.lock()[&(rank, key.to_owned())].clone())
    }

    fn finalize(&mut self, until: Deadline) -> Result<(), StartError> {
        if until.passed() {
            let (environment, doing) = (self.title(), "saying goodbye".into());
            return Err(StartError::Late { environment, doing, waited: Duration::ZERO });
        }
        self.finalized.send(self.rank).unwrap();
        Ok(())
    }

    fn abort(&mut self, _: u8, _: &str, _: Deadline) -> Result<(), StartError> {
        Ok(())
    }
}

fn tables(size: u32, hosts: u32) -> (Vec<Table>, mpsc::Receiver<u32>) {
    let (values, fence) = (Arc::default(), Arc::new(Barrier::new(size as usize)));
    let (finalized, ends) = mpsc::channel();
    let table = |rank| Table {
        rank,
        size,
        values: Arc::clone(&values),
        fence: Arc::clone(&fence),
        hosts,
        finalized: finalized.clone(),
    };
    ((0..size).map(table).collect(), ends)
}

fn options() -> Options {
    Options { limit: LONG, detect: Duration::from_secs(10), interface: None }
}

type Meeting = JoinHandle<Result<Client, BootError>>;

fn meeting(table: &Table, options: &Options) -> Meeting {
    let (table, options) = (Box::new(table.clone()), options.clone());
    std::thread::spawn(move || bootstrap(table, &options))
}

fn met(tables: &[Table]) -> Vec<Client> {
    let meetings: Vec<_> = tables.iter().map(|table| meeting(table, &options())).collect();
    meetings.into_iter().map(|meeting| meeting.join().unwrap().unwrap()).collect()
}

/// Does the part in the meeting of a rank that does not come in the end.
fn told_and_gone(table: &Table) {
    let (mut absent, until) = (table.clone(), soon().into());
    absent.put(RANK_INFO, &rank_info::encode(&RankInfo::of_this_process(table.rank)), until).unwrap();
    absent.fence(until).unwrap();
    absent.fence(until).unwrap();
}

fn soon() -> Instant {
    Instant::now() + LONG
}

fn events(client: &Client) -> mpsc::Receiver<Event> {
    let (sender, receiver) = mpsc::channel();
    client.on_event(Box::new(move |event| _ = sender.send(event.clone())));
    receiver
}

/// Returns rank 0's published record.
fn root(table: &Table) -> Root {
    rank_info::decode(&table.values.lock()[&(0, ROOT.to_owned())]).unwrap()
}

#[test]
fn ranks_find_each_other_and_rank_0_stays_until_all_have_left() {
    let (tables, ends) = tables(4, 1);
    let clients = met(&tables);
    for (rank, client) in (0u32..).zip(&clients) {
        assert_eq!((client.welcome().rank, client.welcome().size), (rank, 4));
        assert_eq!(client.welcome().neighbours().collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!((client.welcome().address, client.guest_of()), (None, Some("a table")));
        client.register(&format!("box{rank}"), &[rank as u8; 60_000], soon()).unwrap();
    }
    assert_eq!(root(&tables[0]).addresses.len(), 1);
    assert!(root(&tables[0]).addresses[0].ip().is_loopback(), "on one host nobody else can connect");
    for client in &clients {
        for rank in 0..4u32 {
            let record = client.lookup(&format!("box{rank}"), true, soon()).unwrap();
            assert_eq!((record.owner, record.value), (rank, vec![rank as u8; 60_000]));
        }
    }
    let mut clients = clients.into_iter();
    let first = clients.next().unwrap();
    let leaving = std::thread::spawn(move || first.finish(soon()));
    for (rank, client) in (1u32..).zip(clients) {
        assert!(!leaving.is_finished(), "rank {rank} has not left");
        client.finish(soon()).unwrap();
    }
    leaving.join().unwrap().unwrap();
    let mut ends: Vec<_> = (0..4).map(|_| ends.recv_timeout(LONG).unwrap()).collect();
    ends.sort_unstable();
    assert_eq!(ends, [0, 1, 2, 3]);
}

/// A program may keep mailboxes beyond `finish`, and meet the others elsewhere before it drops them: in
/// `MPI_Finalize`.
#[test]
fn rank_0_waits_for_goodbyes_and_not_for_what_is_still_held() {
    let (tables, ends) = tables(2, 1);
    let mut clients = met(&tables).into_iter();
    let (first, second) = (clients.next().unwrap(), clients.next().unwrap());
    let heard = events(&second);
    let leaving = std::thread::spawn(move || first.finish(soon()));
    assert_eq!(heard.recv_timeout(LONG), Ok(Event::RankDone { rank: 0 }));
    second.finish(soon()).unwrap();
    let mut ended: Vec<_> = (0..2).map(|_| ends.recv_timeout(LONG).unwrap()).collect();
    ended.sort_unstable();
    assert_eq!(ended, [0, 1]);
    leaving.join().unwrap().unwrap();
    drop(second);
}

#[test]
fn a_job_of_one_needs_nobody() {
    let (tables, ends) = tables(1, 1);
    let client = met(&tables).remove(0);
    client.register("alone", b"", soon()).unwrap();
    client.finish(soon()).unwrap();
    assert_eq!(ends.recv_timeout(LONG), Ok(0));
}

/// The others may take much longer than rank 0's own deadline.
#[test]
fn rank_0_has_time_for_its_launcher_when_the_others_have_ended() {
    let (tables, ends) = tables(2, 1);
    let proxy = thread::spawn("test", || (), |_| {}).unwrap();
    let foreign = ForeignJob::new(Box::new(tables[0].clone()), Some(Serving::new(proxy)));
    foreign.leave(Vec::new, Instant::now()).unwrap();
    assert_eq!(ends.recv_timeout(LONG), Ok(0));
}

#[test]
fn ranks_dealt_out_to_hosts_know_where_each_is() {
    let (tables, _ends) = tables(5, 2);
    let clients = met(&tables);
    for client in &clients {
        let welcome = client.welcome();
        assert_eq!(welcome.placement.by_rank(), [0, 1, 0, 1, 0]);
        let address = welcome.address.filter(|address| !address.is_loopback());
        assert!(welcome.address.is_none() || address.is_some() || root(&tables[0]).addresses.len() == 1);
    }
}

/// Runs in a process of its own: the limit is the process's.
#[test]
fn rank_0_makes_room_for_the_descriptors_of_all_ranks() {
    const CHILD: &str = "UDECK_TEST_FEW_DESCRIPTORS";
    const NAME: &str = "start::bootstrap::tests::rank_0_makes_room_for_the_descriptors_of_all_ranks";
    if std::env::var_os(CHILD).is_none() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        let ended = child.args([NAME, "--exact", "--nocapture"]).env(CHILD, "1").output().unwrap();
        let words = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success() && words.contains("1 passed"), "{words}");
        return;
    }
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(128), ..limit }).unwrap();
    let (tables, _ends) = tables(100, 1);
    let first = meeting(&tables[0], &options());
    std::thread::scope(|threads| {
        for table in &tables[1..] {
            threads.spawn(move || told_and_gone(table));
        }
    });
    first.join().unwrap().unwrap();
}

#[test]
fn who_goes_without_goodbye_is_lost_to_the_others() {
    let (tables, _ends) = tables(3, 1);
    let mut clients = met(&tables);
    let heard: Vec<_> = clients[..2].iter().map(events).collect();
    drop(clients.remove(2));
    for heard in heard {
        let how = "closed its connection without saying goodbye".into();
        assert_eq!(heard.recv_timeout(LONG), Ok(Event::RankLost { rank: 2, how }));
    }
}

/// A rank 0 that is lost may drop its world, and end its process later.
#[test]
fn rank_0_is_lost_once() {
    let (tables, _ends) = tables(2, 1);
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let welcome = Welcome {
        rank: 1,
        size: 2,
        secret: [0; 32],
        job: 1,
        placement: Placement::blocks(vec![Host { name: "here".into(), ranks: 2 }]),
        address: None,
        key: RankKey::BLANK,
        cpus: 0,
    };
    let lost = Event::RankLost { rank: 0, how: "closed its connection".into() };
    let mut said = Vec::new();
    encode(&FromServer::Reply { id: 0, reply: Reply::Welcome(welcome) }, &mut said).unwrap();
    encode(&FromServer::Event(lost.clone()), &mut said).unwrap();
    theirs.write_all(&said).unwrap();
    let client =
        Client::of_foreign_job(ours, ForeignJob::new(Box::new(tables[1].clone()), None), None).unwrap();
    let heard = events(&client);
    assert_eq!(heard.recv_timeout(LONG), Ok(lost));
    drop(theirs);
    assert_eq!(heard.recv_timeout(LONG), Ok(Event::LauncherGone));
}

#[test]
fn who_aborts_is_lost_with_its_words() {
    let (tables, _ends) = tables(2, 1);
    let clients = met(&tables);
    let heard = events(&clients[0]);
    let call = crate::wire::Call::Abort { code: 3, why: "no\nmore".into() };
    let _ = clients[1].request(call, soon());
    let how = "aborted the job with code 3: no\\nmore".into();
    assert_eq!(heard.recv_timeout(LONG), Ok(Event::RankLost { rank: 1, how }));
}

#[test]
fn who_has_told_where_it_is_and_does_not_come_is_lost() {
    let (tables, _ends) = tables(3, 1);
    let short = Options { limit: Duration::from_secs(2), ..options() };
    let meetings = [meeting(&tables[0], &short), meeting(&tables[1], &options())];
    told_and_gone(&tables[2]);
    let clients = meetings.map(|meeting| meeting.join().unwrap().unwrap());
    for client in &clients {
        let how = "never joined the job".into();
        assert_eq!(events(client).recv_timeout(LONG), Ok(Event::RankLost { rank: 2, how }));
    }
}

#[test]
fn strangers_and_second_comers_are_refused_and_disturb_nobody() {
    let (tables, _ends) = tables(3, 1);
    let meetings = [0, 1].map(|rank| meeting(&tables[rank], &options()));
    told_and_gone(&tables[2]);
    let root = root(&tables[0]);
    let mut stranger = TcpStream::connect(root.addresses[0]).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(stranger.read(&mut [0; 10]).unwrap_or(0), 0, "it is told nothing");
    let mut other_release = TcpStream::connect(root.addresses[0]).unwrap();
    other_release.write_all(&[&b"udeckstp"[..], &9u32.to_le_bytes(), &[0; 36]].concat()).unwrap();
    let mut answer = [0; 48];
    other_release.read_exact(&mut answer).expect("it is told which version this is");
    assert_eq!(answer[8..12], 2u32.to_le_bytes());
    let wrong = reach_at(root.addresses[0], [9; 32], 2, soon().into()).err().unwrap().why;
    assert!(wrong.contains("does not know the secret") || wrong.contains("closed"), "{wrong}");
    let clients = meetings.map(|meeting| meeting.join().unwrap().unwrap());
    // Rank 1 is there; a second one is sent away. The proxy still accepts rank 2.
    let (mut second, _) = reach_at(root.addresses[0], root.secret, 1, soon().into()).unwrap();
    second.set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(second.read(&mut [0; 10]).unwrap(), 0);
    assert!(reach_at(root.addresses[0], root.secret, 2, soon().into()).is_ok());
    clients[1].register("x", b"", soon()).unwrap();
    clients[0].lookup("x", true, soon()).unwrap();
}

/// Each stranger has a second. It would have a minute, if nobody else came.
#[test]
fn strangers_that_say_nothing_make_place() {
    let (tables, _ends) = tables(2, 1);
    let first = meeting(&tables[0], &options());
    told_and_gone(&tables[1]);
    let root = root(&tables[0]);
    let strangers: Vec<_> = (0..64).map(|_| TcpStream::connect(root.addresses[0]).unwrap()).collect();
    let (_rank, _) = reach(&root, 1, soon().into()).unwrap();
    let is_open = |stranger: &TcpStream| {
        stranger.set_nonblocking(true).unwrap();
        matches!((&*stranger).read(&mut [0; 1]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    };
    assert!(!is_open(&strangers[0]), "the first one makes place");
    assert!(is_open(&strangers[63]), "as many as have to");
    first.join().unwrap().unwrap();
}

#[test]
fn what_cannot_be_is_said() {
    let (tables, _ends) = tables(2, 1);
    let nowhere = Options { interface: Some("no-such-if".into()), ..options() };
    let meetings: Vec<_> = tables.iter().map(|table| meeting(table, &nowhere)).collect();
    for meeting in meetings {
        let error = meeting.join().unwrap().unwrap_err().to_string();
        assert!(error.starts_with("DECK_IFACE=no-such-if: there is no such interface"), "{error}");
        assert!(error.contains("lo 127.0.0.1"), "{error}");
    }
    let closed = (Ipv4Addr::LOCALHOST, udeck_test_kit::free_port()).into();
    let root = Root { secret: [0; 32], addresses: vec![closed] };
    let error = reach(&root, 3, soon().into()).err().unwrap().to_string();
    assert!(error.contains("rank 3 cannot reach rank 0") && error.contains("refused"), "{error}");
    assert!(error.contains(ENV_INTERFACE), "{error}");
}

#[test]
fn a_rank_tries_again_where_rank_0_has_not_answered_yet() {
    let busy = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let root = Root { secret: [7; 32], addresses: vec![busy.local_addr().unwrap()] };
    let secret = root.secret;
    let rank = std::thread::spawn(move || reach(&root, 1, soon().into()).map(drop));
    std::thread::spawn(move || {
        let (mut first, _) = busy.accept().unwrap();
        first.read_to_end(&mut Vec::new()).unwrap();
        let (mut second, _) = busy.accept().unwrap();
        secure::root(2, secret).unwrap().handshake(&mut second).unwrap().unwrap();
    });
    rank.join().unwrap().unwrap();
}

#[test]
fn another_release_in_the_same_job_is_noticed() {
    let (tables, _ends) = tables(2, 1);
    let first = meeting(&tables[0], &options());
    let mut other = tables[1].clone();
    other.put(RANK_INFO, "1234", soon().into()).unwrap();
    other.fence(soon().into()).unwrap();
    let error = first.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("rank 1") && error.contains("use one release in a job"), "{error}");
}

#[test]
fn a_job_that_is_too_large_is_refused_at_once() {
    let (mut tables, _ends) = tables(1, 1);
    tables[0].size = MAX_RANKS + 1;
    let error = meeting(&tables[0], &options()).join().unwrap().unwrap_err().to_string();
    assert!(error.contains("4097 ranks") && error.contains("at most"), "{error}");
}
