use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::auth::{HostKey, Keys, SealedTicket};
use proptest::prelude::*;
use udeck_sys::closer::Endpoint;
use udeck_sys::shared_memory::{SharedMemory, SharedUse};
use udeck_sys::socket::{self, Received};

use crate::segments::handshake::{Asker, Maker, Step};
use crate::segments::wire::{Datagram, MAX_DATAGRAM};
use crate::segments::{FetchError, Purpose, Service, Shape, fetch};

/// The keys of a rank that has tickets for ranks 0 to 3.
fn keys(rank: u32) -> Keys {
    let host = HostKey::from_bytes([9; 32]);
    let keys = Keys::of_rank([7; 32], rank, host.rank(rank));
    (0..4).for_each(|to| keys.learn(to, &SealedTicket::new((rank, &host.rank(rank)), (to, &host.rank(to)))));
    keys
}

fn shape(round: u64, len: u64) -> Shape {
    let (name, kind) = ("grid".to_owned(), "f64".to_owned());
    Shape { name, round, purpose: Purpose::Elements, kind, size: 8, len, members: vec![0, 1] }
}

/// Asks rank 0 as rank `rank`, and returns its answer.
fn ask(service: &Service, rank: u32, shape: &Shape) -> Result<(), String> {
    let start = Instant::now();
    let go_on =
        || if start.elapsed() < Duration::from_secs(20) { Ok(()) } else { Err("too late".to_owned()) };
    match fetch(service.address(), keys(rank).call(Some(0)).unwrap(), shape, go_on) {
        Ok(passed) => SharedMemory::attach(passed, SharedUse::Elements, 2, 1, 64)
            .map(drop)
            .map_err(|error| error.to_string()),
        Err(FetchError::Refused(why) | FetchError::NotTheMaker(why) | FetchError::Stopped(why)) => Err(why),
        Err(other) => Err(format!("{other:?}")),
    }
}

fn offer(service: &Service, shape: Shape) -> SharedMemory {
    let (fd, memory) = SharedMemory::create(SharedUse::Elements, 2, 0, 64).unwrap();
    service.offer(shape, fd);
    memory
}

#[test]
fn a_member_gets_what_is_offered_and_what_it_wants_only() {
    let service = Service::start(keys(0)).unwrap();
    let _memory = offer(&service, shape(0, 8));
    assert_eq!(ask(&service, 1, &shape(0, 8)), Ok(()));
    let why = ask(&service, 1, &shape(0, 9)).unwrap_err();
    assert_eq!(why, "the maker offers a segment of 8 elements of f64 among ranks 0, 1");
    assert!(ask(&service, 2, &shape(0, 8)).is_err(), "no member");
    service.withdraw("grid", 7);
    assert_eq!(ask(&service, 1, &shape(0, 8)), Ok(()), "another round's");
}

#[test]
fn who_asks_too_early_waits_for_its_round() {
    let service = Service::start(keys(0)).unwrap();
    let _first = offer(&service, shape(0, 8));
    std::thread::scope(|scope| {
        let early = scope.spawn(|| ask(&service, 1, &shape(1, 8)));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!early.is_finished());
        let _second = offer(&service, shape(1, 8));
        assert_eq!(early.join().unwrap(), Ok(()));
        let why = ask(&service, 1, &shape(0, 8)).unwrap_err();
        assert_eq!(why, "the maker is at call 2 for this name, not at call 1");
    });
}

#[test]
fn who_does_not_prove_its_rank_gets_nothing_and_no_other_passes_for_the_maker() {
    let service = Service::start(keys(0)).unwrap();
    let _memory = offer(&service, shape(0, 8));
    // Rank 3 says that it is rank 1, with the ticket that it has itself.
    let host = HostKey::from_bytes([9; 32]);
    let posing = Keys::of_rank([7; 32], 1, host.rank(3));
    posing.learn(0, &SealedTicket::new((3, &host.rank(3)), (0, &host.rank(0))));
    let fetched = fetch(service.address(), posing.call(Some(0)).unwrap(), &shape(0, 8), || Ok::<_, ()>(()));
    assert!(matches!(fetched, Err(FetchError::NotTheMaker(_))), "it cannot read the maker's proof");
    // Rank 3 listens at the address.
    let other = Service::start(keys(3)).unwrap();
    let why = ask(&other, 1, &shape(0, 8)).unwrap_err();
    assert_eq!(why, "the call was for another process");
    let listening = Service::start(Keys::of_rank([7; 32], 0, host.rank(3))).unwrap();
    let why = ask(&listening, 1, &shape(0, 8)).unwrap_err();
    assert_eq!(why, "it does not prove to be rank 0 of this job");
}

#[test]
fn strangers_keep_nobody_out() {
    let service = Service::start(keys(0)).unwrap();
    let _memory = offer(&service, shape(0, 8));
    let strangers: Vec<_> = (0..100).map(|_| socket::connect_to(service.address()).unwrap()).collect();
    assert_eq!(ask(&service, 1, &shape(0, 8)), Ok(()));
    // Bytes that are no datagram, and a descriptor that nobody wants, end the connection.
    let last = &strangers[99];
    socket::send(last.as_fd(), b"\xff\xff", &[]).unwrap();
    let passing = socket::connect_to(service.address()).unwrap();
    socket::send(passing.as_fd(), b"x", &[last.as_fd()]).unwrap();
    assert_eq!(ask(&service, 1, &shape(0, 8)), Ok(()));
}

#[test]
fn who_proves_nothing_in_time_is_sent_away_and_may_ask_again() {
    let service = Service::start(keys(0)).unwrap();
    let silent = socket::connect_to(service.address()).unwrap();
    assert_eq!(hear(&silent), Some(Datagram::Busy), "nobody else calls");
    assert_eq!(hear(&silent), None);
    // Asked at any step, and with the caller's last datagram unread.
    let address = format!("udeck-segments-test-{}", std::process::id()).into_bytes();
    let listener = socket::listen_at(&address).unwrap();
    for step in 0..2 {
        let fetched = std::thread::scope(|scope| {
            let pair = keys(1).call(Some(0)).unwrap();
            let asking = scope.spawn(|| fetch(&address, pair, &shape(0, 8), || Ok::<_, ()>(())));
            assert!(socket::wait_readable(listener.as_fd(), Duration::from_secs(60)).unwrap());
            let caller = socket::accept_from(listener.as_fd()).unwrap().unwrap();
            if step == 1 {
                let meet = hear(&caller).unwrap();
                let Ok(Step::Say(answer)) = Maker::Meets(keys(0), [5; 32]).input(meet) else { panic!() };
                socket::send(caller.as_fd(), &answer.encode(), &[]).unwrap();
            }
            assert!(socket::wait_readable(caller.as_fd(), Duration::from_secs(60)).unwrap());
            socket::send(caller.as_fd(), &Datagram::Busy.encode(), &[]).unwrap();
            drop(caller);
            asking.join().unwrap()
        });
        assert!(matches!(fetched, Err(FetchError::Busy)), "at step {step}: {fetched:?}");
    }
}

/// Rank `rank` asks rank 0, and keeps its connection.
fn ask_and_stay(service: &Service, rank: u32, shape: &Shape) -> Endpoint {
    let socket = loop {
        match socket::connect_to(service.address()) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => std::thread::yield_now(),
            connected => break connected.unwrap(),
        }
    };
    let (asker, meet) = Asker::new(keys(rank).call(Some(0)).unwrap(), [rank as u8; 32]);
    socket::send(socket.as_fd(), &meet.encode(), &[]).unwrap();
    let ask = asker.ask(hear(&socket).unwrap(), shape).unwrap();
    socket::send(socket.as_fd(), &ask.encode(), &[]).unwrap();
    socket
}

/// Receives the next datagram; `None`: the other side has closed.
fn hear(socket: &Endpoint) -> Option<Datagram> {
    assert!(socket::wait_readable(socket.as_fd(), Duration::from_secs(60)).unwrap(), "nothing is said");
    let mut buffer = vec![0; MAX_DATAGRAM];
    match socket::receive(socket.as_fd(), &mut buffer).unwrap() {
        Received::Datagram { len, .. } => Some(Datagram::decode(&buffer[..len]).unwrap()),
        _ => None,
    }
}

#[test]
fn a_rank_has_so_many_connections_whatever_it_was_answered() {
    let service = Service::start(keys(0)).unwrap();
    let _first = offer(&service, shape(0, 8));
    // These requests are granted, refused, or kept waiting until they are answered.
    let mut held: Vec<_> = (0..20).map(|_| ask_and_stay(&service, 1, &shape(0, 8))).collect();
    held.extend((20..40).map(|_| ask_and_stay(&service, 1, &shape(0, 9))));
    assert!(
        held.iter().all(|socket| matches!(hear(socket), Some(Datagram::Given | Datagram::Refused { .. })))
    );
    let waiting: Vec<_> = (40..64).map(|_| ask_and_stay(&service, 1, &shape(1, 8))).collect();
    let too_many = ask_and_stay(&service, 1, &shape(0, 8));
    assert_eq!(hear(&too_many), Some(Datagram::Busy));
    assert_eq!(hear(&too_many), None);
    let _second = offer(&service, shape(1, 8));
    assert!(waiting.iter().all(|socket| hear(socket) == Some(Datagram::Given)));
    assert_eq!(ask(&service, 1, &shape(1, 8)), Err("Busy".into()), "they are answered, and not closed");
    let other = ask(&service, 2, &shape(1, 8)).unwrap_err();
    assert!(other.starts_with("the maker offers"), "another rank has places of its own: {other}");
    // The maker notices sooner or later that the connections are closed.
    drop((held, waiting));
    let start = Instant::now();
    while let Err(why) = ask(&service, 1, &shape(1, 8)) {
        assert!(start.elapsed() < Duration::from_secs(60), "{why}");
    }
}

#[test]
fn when_the_maker_is_gone_the_caller_is_told_so() {
    let service = Service::start(keys(0)).unwrap();
    std::thread::scope(|scope| {
        let (address, wanted) = (service.address().to_owned(), shape(0, 8));
        let pair = || keys(1).call(Some(0)).unwrap();
        let waiting =
            scope.spawn(move || fetch(&address, keys(1).call(Some(0)).unwrap(), &wanted, || Ok::<_, ()>(())));
        std::thread::sleep(Duration::from_millis(50));
        let address = service.address().to_owned();
        drop(service);
        assert!(matches!(waiting.join().unwrap(), Err(FetchError::Gone)));
        let fetched = fetch(&address, pair(), &shape(0, 8), || Ok::<_, ()>(()));
        assert!(matches!(fetched, Err(FetchError::Gone)));
    });
}

proptest! {
    #[test]
    fn prop_any_bytes_decode_or_not(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        if let Some(datagram) = Datagram::decode(&bytes) {
            prop_assert_eq!(Datagram::decode(&datagram.encode()), Some(datagram));
        }
    }

    #[test]
    fn prop_an_ask_of_any_shape_round_trips_and_fits(
        name in "\\PC{0,60}", round: u64, len: u64, size: u32, members in prop::collection::vec(any::<u32>(), 0..4096)
    ) {
        let shape = Shape { name, round, purpose: Purpose::Locked, kind: "[f64; 3]".into(), size, len, members };
        let ask = Datagram::Ask { proof: [1; 32], shape };
        let bytes = ask.encode();
        prop_assert!(bytes.len() <= MAX_DATAGRAM);
        prop_assert_eq!(Datagram::decode(&bytes), Some(ask));
    }
}
