//! When a wait looks in place.

use udeck_boot::{Client, Event, local::Job};

use super::*;
use crate::{Config, ServiceLevel, World};

/// A world of rank 0 of three, and its mailbox.
fn inbox_of_three(job: &mut Vec<std::os::unix::net::UnixStream>) -> (World, Inbox) {
    let client = Client::new(job.remove(0)).unwrap();
    let options = udeck_sim::Options { keys: client.keys(), ..udeck_sim::Options::default() };
    let nic = udeck_sim::Fabric::new(1).nic("a", options).unwrap();
    let world = World::new(client, vec![nic], Config::default(), false).unwrap();
    let inbox = Inbox::open(&world.state, "in", ServiceLevel::default()).unwrap();
    (world, inbox)
}

/// A connection that is coming may be of the rank that has ended. So all look again when none is.
#[test]
fn the_end_of_a_source_is_told_when_no_connection_is_coming_any_more() {
    let (_job, mut streams) = Job::new(3).unwrap();
    let (world, mut inbox) = inbox_of_three(&mut streams);
    inbox.acceptor.pose_as_admitting(true);
    world.state.exit_log().record(&Event::RankDone { rank: 1 });
    inbox.wanted = Match::source(1);
    assert!(inbox.report_exits().is_ok());
    // Another thread waits at the mailbox, for another rank: for that one, too, there is nothing new.
    inbox.wanted = Match::source(2);
    assert!(inbox.report_exits().is_ok());
    let turns = inbox.turns().clone();
    let is_rung = turns.resting_call();
    assert!(!inbox.queues_around().1.has_changed());
    assert!(inbox.report_exits().is_ok());
    assert!(!is_rung());
    inbox.acceptor.pose_as_admitting(false);
    assert!(inbox.queues_around().1.has_changed(), "nobody looks again");
    assert!(inbox.report_exits().is_ok());
    assert!(is_rung(), "the thread that waits for rank 1 rests on");
    assert!(!inbox.queues_around().1.has_changed());
    inbox.wanted = Match::source(1);
    assert!(matches!(inbox.report_exits(), Err(Error::RankFinished { rank: 1, .. })));
}

#[test]
fn nobody_waits_in_place_who_has_a_loss_to_tell() {
    let (_job, mut streams) = Job::new(3).unwrap();
    let (world, mut inbox) = inbox_of_three(&mut streams);
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
    // Who waits for one rank hears of it each time, and waits for nobody else.
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
