//! When a wait looks in place.

use udeck_boot::{Client, Event, local::Job};

use super::*;
use crate::{Config, ServiceLevel, World};

#[test]
fn nobody_waits_in_place_who_has_a_loss_to_tell() {
    let (_job, mut streams) = Job::new(3).unwrap();
    let client = Client::new(streams.remove(0)).unwrap();
    let options = udeck_sim::Options { keys: client.keys(), ..udeck_sim::Options::default() };
    let nic = udeck_sim::Fabric::new(1).nic("a", options).unwrap();
    let world = World::new(client, vec![nic], Config::default(), false).unwrap();
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
