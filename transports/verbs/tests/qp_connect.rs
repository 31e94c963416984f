//! Queue pairs that are joined through rdma_cm: failures on the way, and uninvited peers.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use udeck_via::{Deadline, Error, Listener, NetAddress, Nic, PollBudget};

use super::{LentEnd, alone, check, nic, options, pair, unreliable};
use crate::cm::objects::{CmChannel, Depths, Id, PRIVATE, Terms};
use crate::cm::{Invitation, words};
use crate::ffi::CmLibrary;
use crate::ffi::cm::cm_event;
use crate::settings::Connect;
use crate::{Options, Settings};

fn through_cm() -> Options {
    options(Settings { connect: Connect::Cm, ..Settings::default() })
}

fn cm_nic() -> Nic {
    crate::open(through_cm()).expect("the NIC opens")
}

fn ask(end: &mut LentEnd, to: &NetAddress, patience: Duration) -> udeck_via::Result<Vec<u8>> {
    let cq = end.cq.handle();
    end.vi.connect(to, &cq, &cq, b"", Deadline::after(patience))
}

/// Returns the errors that both sides get when the requester cannot come: the requester's own, and the one by which
/// the accepting side's connection ends.
fn both_learn(patience: Duration) -> (Error, Error) {
    let (a, b) = (cm_nic(), cm_nic());
    let host = b.attributes().address.clone();
    let to = NetAddress { host, discriminator: b"door".to_vec() };
    let listener = Listener::new(&b, b"door").unwrap();
    let (mut left, mut right) = (LentEnd::new(&a), LentEnd::new(&b));
    let asked = std::thread::scope(|scope| {
        let asking = scope.spawn(|| ask(&mut left, &to, patience).unwrap_err());
        right.accept(&listener);
        asking.join().unwrap()
    });
    (asked, right.end())
}

#[test]
fn what_goes_wrong_on_the_way_names_the_step_the_device_and_the_peer() {
    const TEST: &str = "tests::qp_connect::what_goes_wrong_on_the_way_names_the_step_the_device_and_the_peer";
    const CASES: [(&str, &str); 3] = [
        ("address", "finding the way to its address: no RDMA device leads to that address: No such device"),
        ("route", "finding a route to it: there is no route to it: Connection timed out"),
        ("unreachable", "asking it for the connection: it does not answer"),
    ];
    let Ok(fate) = std::env::var("STANDIN_CM") else {
        CASES.iter().for_each(|(fate, _)| assert!(!unreliable(TEST, &[("STANDIN_CM", fate)])));
        return;
    };
    let (_, step) = CASES.iter().find(|(known, _)| *known == fate).expect("a case");
    let (here, there) = both_learn(Duration::from_secs(60));
    let here = here.to_string();
    assert!(here.contains("connecting standin0 to 127.0.0.1:") && here.contains(step), "{here}");
    assert!(there.to_string().contains(step), "the one that waits learns it too: {there}");
}

#[test]
fn who_is_not_answered_gives_up_at_its_deadline() {
    const TEST: &str = "tests::qp_connect::who_is_not_answered_gives_up_at_its_deadline";
    if !unreliable(TEST, &[("STANDIN_CM", "silent")]) {
        return;
    }
    let (here, there) = both_learn(Duration::from_millis(300));
    let Error::Timeout { what, .. } = here else { panic!("{here}") };
    assert!(what.contains("asking it for the connection"), "{what}");
    assert!(there.to_string().contains("asking it for the connection"), "{there}");
}

#[test]
fn a_library_that_is_missing_is_named_with_its_package() {
    const TEST: &str = "tests::qp_connect::a_library_that_is_missing_is_named_with_its_package";
    if !unreliable(TEST, &[("DECK_VERBS_CM_LIBRARY", "/nowhere/librdmacm.so.1")]) {
        return;
    }
    let Err(Error::InvalidParameter(what)) = crate::open(through_cm()) else { panic!("it was asked for") };
    assert!(what.contains("/nowhere/librdmacm.so.1") && what.contains("install librdmacm1"), "{what}");
    // A NIC that does not use the library does not need it.
    drop(nic());
}

#[test]
fn an_iwarp_device_without_the_library_is_passed_over_with_that_reason() {
    const TEST: &str =
        "tests::qp_connect::an_iwarp_device_without_the_library_is_passed_over_with_that_reason";
    let variables = [("DECK_VERBS_CM_LIBRARY", "/nowhere/librdmacm.so.1"), ("STANDIN_TRANSPORT", "iwarp")];
    if !unreliable(TEST, &variables) {
        return;
    }
    let Err(Error::Unavailable { why, .. }) = crate::open(options(Settings::default())) else {
        panic!("there is no other device")
    };
    assert!(why.contains("standin0: an iWARP device") && why.contains("install librdmacm1"), "{why}");
}

#[test]
fn both_processes_have_to_connect_the_same_way() {
    let _alone = alone();
    let (a, b) = (cm_nic(), nic());
    for (from, to) in [(&a, &b), (&b, &a)] {
        let host = to.attributes().address.clone();
        let listener = Listener::new(to, b"door").unwrap();
        let address = NetAddress { host, discriminator: b"door".to_vec() };
        let (mut left, mut right) = (LentEnd::new(from), LentEnd::new(to));
        let error = std::thread::scope(|scope| {
            let asking = scope.spawn(|| left.connect(&address).unwrap_err().to_string());
            let cq = right.cq.handle();
            let request = listener.wait(super::soon()).unwrap();
            request.accept(&mut right.vi, &cq, &cq, b"").unwrap_err();
            asking.join().unwrap()
        });
        assert!(error.contains("DECK_VERBS_CONNECT has to say the same to both"), "{error}");
    }
}

#[test]
fn what_rdma_cm_finds_itself_cannot_be_chosen() {
    let settings = Settings { connect: Connect::Cm, gid: Some(3), ..Settings::default() };
    let Err(Error::InvalidParameter(what)) = crate::open(options(settings)) else { panic!("refused") };
    assert!(what.contains("DECK_VERBS_GID") && what.contains("IP address"), "{what}");
}

/// Strangers send requests faster than they are rejected: one call takes a bounded round, and the rest make the
/// helper come back.
#[test]
fn a_crowd_of_strangers_does_not_keep_the_one_who_takes_events() {
    const STRANGERS: u32 = 200;
    let _alone = alone();
    let core = super::early::core_with(Settings { connect: Connect::Cm, ..Settings::default() });
    let manager = core.connect_method.manager().expect("through rdma_cm");
    let Invitation { address, port, .. } = manager.make_invitation(1).unwrap();
    let channel = CmChannel::open(CmLibrary::load().unwrap()).unwrap();
    let strangers: Vec<_> = (0..STRANGERS)
        .map(|number| {
            let id = Id::new(&channel, number).unwrap();
            id.resolve_address("127.0.0.1:0".parse().unwrap(), (address, port).into(), 1000).unwrap();
            id.resolve_route(1000).unwrap();
            id.connect(terms(), &[1; PRIVATE]).unwrap();
            id
        })
        .collect();
    // Each stranger has two events: address and route.
    (0..2 * STRANGERS).for_each(|_| assert!(channel.next().is_some()));
    let mut refused = 0;
    while refused < STRANGERS {
        let readable = PollFd::new(manager, PollFlags::IN);
        assert_eq!(
            poll(&mut [readable], Some(&Timespec::default())),
            Ok(1),
            "those that are left are not slept through"
        );
        manager.take_events(&core);
        let answered = std::iter::from_fn(|| channel.next())
            .inspect(|told| assert_eq!(told.kind, cm_event::REJECTED))
            .count() as u32;
        assert!((1..=PollBudget::ROUND).contains(&answered), "{answered} at one look");
        refused += answered;
    }
    drop(strangers);
}

fn terms() -> Terms {
    Terms { qp_num: 99, depths: Depths { served: 1, asked: 1 }, retry: 7, rnr_retry: 7, shares: false }
}

/// An uninvited requester sends any private data or none, and data that were used already.
#[test]
fn who_was_not_invited_is_refused_and_nobody_else_notices() {
    let _alone = alone();
    let (a, b) = (cm_nic(), cm_nic());
    let (mut left, mut right) = pair(&a, &b);
    // The listeners of this process's NICs have neighbouring ports, and those of the two NICs are among these.
    let channel = CmChannel::open(CmLibrary::load().unwrap()).unwrap();
    let next = |wanted: u32| {
        let deadline = super::soon();
        loop {
            match channel.next() {
                Some(told) if told.kind == wanted => return told,
                Some(told) => panic!("{:?}", words::failure(&told)),
                None => assert!(!deadline.passed(), "event {wanted} does not come"),
            }
        }
    };
    let probe = Id::new(&channel, 7).unwrap();
    probe.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut refused = 0;
    for port in probe.port() - 20..probe.port() {
        let invitation = Invitation { address: [127, 0, 0, 1].into(), port, private_data: [1; PRIVATE] };
        let id = Id::new(&channel, 8).unwrap();
        let to = (invitation.address, invitation.port).into();
        id.resolve_address("127.0.0.1:0".parse().unwrap(), to, 1000).unwrap();
        next(cm_event::ADDR_RESOLVED);
        id.resolve_route(1000).unwrap();
        next(cm_event::ROUTE_RESOLVED);
        id.connect(terms(), &invitation.private_data).unwrap();
        let told = next(cm_event::REJECTED);
        // Status 8: no listener is there; 28: the listener rejected the request.
        refused += u32::from(told.status == 28);
    }
    assert_eq!(refused, 2, "each of the two NICs refused, once");
    check(&mut left, &mut right);
}
