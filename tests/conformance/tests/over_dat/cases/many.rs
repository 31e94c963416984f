//! Many connections, simultaneous and one after another.

use udeck_conformance::both::End as _;
use udeck_conformance::kit::until;
use udeck_conformance::{Case, Fabric, Options};
use udeck_dat::{Connection, EpState};

use crate::end::{Door, End, Pair};

const TOPIC: &str = "many";
pub const CASES: &[Case] = &[case!(many_ask_at_a_time), case!(connections_leave_nothing_behind)];

const MANY: usize = 40;

/// All end points request before any is answered; each gets a connection, and its own answer.
fn many_ask_at_a_time(fabric: &dyn Fabric) {
    let (here, there) = (fabric.open(&Options::default()), fabric.open(&Options::default()));
    let server = End::on(&there);
    let door = Door::at(&server, 9);
    let askers: Vec<End> = (0..MANY).map(|_| End::on(&here)).collect();
    for (number, asker) in askers.iter().enumerate() {
        asker.request_connection(&door.address(), &[number as u8]);
    }
    let mut served = Vec::new();
    for _ in 0..MANY {
        let request = door.request();
        let number = usize::from(request.private_data()[0]);
        let (pz, evd) = (&server.pz, &server.receives);
        let ep = udeck_dat::Ep::new(pz, &server.requests, evd, &server.connections, Default::default());
        let ep = ep.unwrap();
        ep.post_receive(server.lmr(&[0; 1]), number as u64).unwrap();
        ep.accept(request, b"").map_err(|(error, _)| error).unwrap();
        served.push((number, ep));
    }
    let mut askers: Vec<End> = askers;
    for (number, asker) in askers.iter_mut().enumerate() {
        assert_eq!(asker.told(), Connection::Established);
        asker.post_send(&[number as u8]);
    }
    for _ in 0..MANY {
        let over = server.receive_over();
        let (number, _) = served.iter().find(|(_, ep)| ep.id() == over.ep).expect("one of ours");
        assert_eq!((over.cookie, over.iov.into_lmr()[0]), (*number as u64, *number as u8));
    }
    assert!(served.iter().all(|(_, ep)| ep.state() == EpState::Connected));
}

/// Kernel resources of the process: open descriptors and threads.
fn holdings() -> (usize, usize) {
    let count = |folder| std::fs::read_dir(folder).expect("a mounted /proc").count();
    (count("/proc/self/fd"), count("/proc/self/task"))
}

/// Number of descriptors that may exist after many connections but not before: a queue makes its wake-up descriptor when somebody
/// first sleeps there.
const LAZY: usize = 8;

fn connections_leave_nothing_behind(fabric: &dyn Fabric) {
    let mut pair = Pair::new(fabric);
    let round = |pair: &mut Pair| {
        pair.check();
        pair.b.post_receive(&[10]);
        pair.a.ep.disconnect(true).unwrap();
        assert_eq!((pair.a.told(), pair.b.told()), (Connection::Disconnected, Connection::Disconnected));
        pair.a.drain();
        pair.b.drain();
        pair.a.ep.reset().unwrap();
        pair.b.ep.reset().unwrap();
        pair.connect();
    };
    (0..20).for_each(|_| round(&mut pair));
    let before = holdings();
    (0..200).for_each(|_| round(&mut pair));
    until("descriptors and threads are back", || {
        let now = holdings();
        (now.0 <= before.0 + LAZY && now.1 <= before.1 + LAZY).then_some(())
    });
}
