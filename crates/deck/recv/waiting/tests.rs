//! Tests of when a wait polls in place, and for how long it polls the work queues.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use udeck_boot::{Client, Event, local::Job};

use super::*;
use crate::{Config, ServiceLevel, World};

/// A connection that is being accepted may be of the rank that has ended. All waits check again when none is.
#[test]
fn the_end_of_a_source_is_told_when_no_connection_is_coming_any_more() {
    let (_job, world) = one_of_three(Config::default());
    let mut inbox = Inbox::open(&world.state, "in", ServiceLevel::default()).unwrap();
    inbox.acceptor.pose_as_admitting(true);
    world.state.exit_log().record(&Event::RankDone { rank: 1 });
    inbox.wanted = Match::source(1);
    assert!(inbox.report_exits().is_ok());
    // Another thread waits at the mailbox for another rank: nothing has changed for that wait either.
    inbox.wanted = Match::source(2);
    assert!(inbox.report_exits().is_ok());
    let turns = inbox.turns().clone();
    let is_rung = turns.resting_call();
    assert!(!inbox.queues_and_conditions().1.has_changed());
    assert!(inbox.report_exits().is_ok());
    assert!(!is_rung());
    inbox.acceptor.pose_as_admitting(false);
    assert!(inbox.queues_and_conditions().1.has_changed(), "nobody looks again");
    assert!(inbox.report_exits().is_ok());
    assert!(is_rung(), "the thread that waits for rank 1 rests on");
    assert!(!inbox.queues_and_conditions().1.has_changed());
    inbox.wanted = Match::source(1);
    assert!(matches!(inbox.report_exits(), Err(Error::RankFinished { rank: 1, .. })));
}

#[test]
fn nobody_waits_in_place_who_has_a_loss_to_tell() {
    let (_job, world) = one_of_three(Config::default());
    let mut inbox = Inbox::open(&world.state, "in", ServiceLevel::default()).unwrap();
    inbox.expect([1, 2]);
    assert!(inbox.is_quiet());
    for rank in [1, 2] {
        world.state.exit_log().record(&Event::RankLost { rank, how: "killed".into() });
    }
    for lost in [1, 2] {
        assert!(!inbox.is_quiet());
        let told = inbox.report_exits();
        assert!(matches!(told, Err(Error::PeerLost { rank, .. }) if rank == lost), "{told:?}");
    }
    // A wait for one rank hears of its end each time, and waits for nobody else.
    inbox.wanted = Match::source(2);
    assert_eq!(
        (inbox.waits_for(Call::Retrieve).ranks, inbox.waits_for(Call::Retrieve).open),
        (vec![2], false)
    );
    let told = inbox.report_exits();
    assert!(matches!(told, Err(Error::PeerLost { rank: 2, .. })), "{told:?}");
    inbox.wanted = Match::ANY;
    assert!(!inbox.is_quiet(), "nobody is left");
    assert!(matches!(inbox.report_exits(), Err(Error::NobodyLeft { .. })));
}

/// Work queues have a spin history of their own: the completion queue, which learns by itself, is not polled
/// meanwhile.
#[test]
fn a_wait_that_always_sleeps_asks_the_work_queues_no_longer() {
    let (_job, world) = one_of_three(Config { receive: ReceiveModel::WorkQueues, ..Config::default() });
    let mut inbox = Inbox::open(&world.state, "in", ServiceLevel::default()).unwrap();
    let has_learned = |inbox: &Inbox| format!("{:?}", inbox.spin_history).contains("credit: 0");
    // A wait whose deadline comes first has learned nothing.
    for _ in 0..100 {
        let mut parcel = Parcel::NONE;
        let ended = inbox.wait_for_next(&mut parcel, Deadline::after(Duration::from_millis(50)));
        assert!(matches!(ended, Err(Error::Deadline { .. })), "{ended:?}");
        if has_learned(&inbox) {
            return;
        }
    }
    panic!("it spins as long as at first: {:?}", inbox.spin_history);
}

/// Makes the first rank of a job, whose other ranks have yet to join.
fn one_of_three(config: Config) -> ((Job, Vec<UnixStream>), World) {
    let (job, mut streams) = Job::new(3).unwrap();
    let client = Client::new(streams.remove(0)).unwrap();
    let options = udeck_sim::Options { keys: client.keys(), ..udeck_sim::Options::default() };
    let nic = udeck_sim::Fabric::new(1).nic("a", options).unwrap();
    ((job, streams), World::new(client, vec![nic], config, false).unwrap())
}
