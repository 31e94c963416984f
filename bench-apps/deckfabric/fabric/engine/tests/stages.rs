//! Switches of stages: hierarchical ones, and ones with a single crossbar.

use super::*;
use crate::{
    deadlock,
    stages::{Allocator, Centre, Stages},
    topology::{HalfWay, trunked_torus, valiant_tree},
};

const CROSS: u32 = 5;
const STORE: u32 = 6;

fn crossbar() -> Config {
    let allocator = Allocator::AllLanes;
    let stages = Stages { speed: 3, store: STORE, output: 64, least: 8, pause: 0, allocator, centre: None };
    Config { link: 3, switch: 7, packet: 8, stages: Some(stages), ..Config::default() }
}

fn hierarchical() -> Config {
    let centre = Centre { ports: 4, links: 2, speed: 4, cross: CROSS, buffer: 64 };
    let config = crossbar();
    Config { stages: config.stages.map(|stages| Stages { centre: Some(centre), ..stages }), ..config }
}

/// The formula of §2.2.2: a switch costs its input stage and its output stage, and the central crossbar where a packet leaves its
/// MPort of four ports.
#[test]
fn without_load_a_message_takes_the_stages_of_its_ports() {
    for network in [tree(2, 3), tree(6, 2), torus(&[4, 3], 1), trunked_torus(&[3, 2], 2, 3, HalfWay::Both)]
        .map(Result::unwrap)
    {
        for (from, to) in [(0, 1), (0, network.hosts() - 1), (network.hosts() - 1, 1)] {
            let path = network.path(from, to);
            let switches = path.len() as u64;
            let one = script(&network, &crossbar(), vec![(5, post(from, to, 6))]).arrived;
            let time = 5 + 3 * (switches + 1) + u64::from(7 + STORE) * switches + 6;
            assert_eq!(one, [(time, 0)], "{}", network.name);
            let two = script(&network, &hierarchical(), vec![(5, post(from, to, 6))]).arrived;
            if network.has_choices() {
                continue;
            }
            let mut into = network.attachment(from).port;
            let mut apart = 0;
            for switch in path {
                let out = usize::from(network.route(switch, to).port);
                apart += u64::from(into / 4 != out / 4);
                into = network.peers(switch)[out].map_or(0, |peer| peer.port);
            }
            assert_eq!(two, [(time + apart * u64::from(CROSS), 0)], "{}", network.name);
            assert!((from, to) != (0, 1) || switches > 1 || apart == 0, "hosts 0 and 1 are at one MPort");
        }
    }
}

#[test]
fn packets_that_follow_one_another_leave_no_gap_and_are_not_faster_than_they_come() {
    let network = tree(2, 2).unwrap();
    for config in [crossbar(), hierarchical()] {
        let config = Config { buffer: 64, ..config };
        let first = script(&network, &config, vec![(1, post(0, 3, 8))]).arrived[0].0;
        assert_eq!(script(&network, &config, vec![(1, post(0, 3, 401))]).arrived, [(first + 393, 0)]);
    }
}

/// With an input buffer behind which a packet waits, the crossbar is faster than the links.
#[test]
fn a_crossbar_moves_what_has_waited_at_its_own_speed() {
    // Hosts 1 and 2 send to 0 at once, and then host 2 to 3: its second packet waits behind the first one.
    let network = tree(4, 1).unwrap();
    let posts = vec![(1, post(1, 0, 8)), (1, post(2, 0, 8)), (1, post(2, 3, 8))];
    let times = |speed| {
        let mut config = crossbar();
        config.stages = config.stages.map(|stages| Stages { speed, output: 8, ..stages });
        let mut arrived = script(&network, &config, posts.clone()).arrived;
        arrived.sort_unstable_by_key(|(_, token)| *token);
        arrived.into_iter().map(|(at, _)| at).collect::<Vec<_>>()
    };
    let (slow, fast) = (times(1), times(4));
    assert_eq!(slow[0], fast[0], "the first packet comes in at the speed of the link");
    assert!(fast[2] < slow[2], "{fast:?} {slow:?}");
}

#[test]
fn messages_take_all_links_of_a_trunk_and_all_ways_up() {
    for (network, count) in
        [(trunked_torus(&[2, 2], 1, 5, HalfWay::Both).unwrap(), 5), (valiant_tree(4, 2).unwrap(), 4)]
    {
        deadlock::check(&network).unwrap();
        let to = network.hosts() - 1;
        let posts = (0..60).map(|nth| (1 + 20 * nth, post(0, to, 4))).collect();
        let script = Script { posts, arrived: Vec::new() };
        let mut engine = Engine::new(&network, &hierarchical(), script).unwrap();
        engine.run_dry(1_000_000).unwrap();
        let switch = network.attachment(0).node;
        let route = network.route(switch, to);
        let equal = network.equal_ports(switch, route.port);
        assert_eq!(equal.len(), count);
        for port in equal {
            let carried = engine.measures().carried[engine.ports.port(switch as u32, port.into()) as usize];
            assert!(carried > 0, "{}: port {port}", network.name);
        }
    }
    assert!((trunked_torus(&[8, 8], 8, 10, HalfWay::Both).unwrap().uniform_bound() - 1.0).abs() < 0.01);
    assert!((trunked_torus(&[4], 4, 1, HalfWay::Both).unwrap().uniform_bound() - 0.5).abs() < 0.1);
}

/// A ring of 8 has 10 of 16 hops upwards where packets half way round it go up: 4 hosts need 5 links.
#[test]
fn packets_half_way_that_all_go_up_fill_the_links_up() {
    let bound = |half_way| trunked_torus(&[8, 8, 4], 4, 4, half_way).unwrap().uniform_bound();
    assert!((bound(HalfWay::Both) - 1.0).abs() < 0.01);
    assert!((bound(HalfWay::Up) - 0.8).abs() < 0.01);
}

/// Uniform traffic at full load: the hierarchical switch takes more than one whose crossbar is as fast as the links, in which
/// packets wait for the first one of their line.
#[test]
fn a_faster_crossbar_takes_more() {
    let network = tree(16, 1).unwrap();
    let taken = |config: Config| {
        let stream = Stream {
            name: "all".into(),
            from: (0..16).collect(),
            to: Pattern::Uniform,
            level: 0,
            load: 1.0,
            flits: (8, 8),
            arrivals: Arrivals::Random,
            during: (0, u64::MAX),
        };
        let traffic = Traffic::new(16, vec![stream], 1).unwrap();
        let mut engine = Engine::new(&network, &config, traffic).unwrap();
        engine.run_until(5000).unwrap();
        engine.restart_measures();
        engine.run_until(25_000).unwrap();
        engine.measures().throughput()
    };
    let slow = Config { stages: crossbar().stages.map(|stages| Stages { speed: 1, ..stages }), ..crossbar() };
    let (slow, fast) = (taken(slow), taken(hierarchical()));
    assert!(slow < 0.65 && fast > 0.8, "{slow} {fast}");
}

fn lanes() -> Lanes {
    // Table 4.6, from the lowest level on.
    let sl2sc = [[8, 9], [6, 7], [4, 5], [2, 3], [0, 1]].map(Vec::from).to_vec();
    Lanes { sl2sc, sc2vl: vec![0, 1, 2, 3, 4, 5, 6, 7, 6, 7] }
}

#[test]
fn levels_may_share_lanes_but_not_channels() {
    let network = trunked_torus(&[3, 3], 2, 2, HalfWay::Both).unwrap();
    let stages = hierarchical().stages.map(|stages| Stages {
        output: 128,
        centre: stages.centre.map(|centre| Centre { buffer: 128, ..centre }),
        ..stages
    });
    let config = Config { levels: 5, lanes: Some(lanes()), buffer: 128, stages, ..hierarchical() };
    let posts = (0..200).map(|nth| {
        let post = post(nth % 18, (5 * nth + 1 + nth % 18) % 18, 1 + nth as u32 % 20);
        (1 + nth as u64 / 4, Post { level: nth as u8 % 5, ..post })
    });
    let posts: Vec<_> = posts.filter(|(_, post)| post.from != post.to).collect();
    let count = posts.len();
    for config in [config.clone(), Config { arbitration: Scheme::Priority, ..config.clone() }] {
        assert_eq!(script(&network, &config, posts.clone()).arrived.len(), count);
        assert_eq!(script(&tree(5, 2).unwrap(), &config, posts.clone()).arrived.len(), count);
    }
    let reason = |change: fn(&mut Lanes)| {
        let mut lanes = lanes();
        change(&mut lanes);
        Config { lanes: Some(lanes), ..config.clone() }.check().unwrap_err().to_string()
    };
    assert!(reason(|lanes| lanes.sl2sc.truncate(4)).contains("there are 5 levels and 4 lists"));
    assert!(reason(|lanes| lanes.sl2sc[3].clear()).contains("level 3 has no service channel"));
    assert!(reason(|lanes| lanes.sc2vl.truncate(9)).contains("a service channel has no lane"));
    assert!(reason(|lanes| lanes.sc2vl[9] = 6).contains("wait in a circle"));
    assert!(reason(|lanes| lanes.sc2vl[0] = 32).contains("lanes are 0 to 31"));
    let single = Lanes { sl2sc: vec![vec![0]; 5], sc2vl: vec![0] };
    let bad = Engine::new(
        &network,
        &Config { lanes: Some(single), ..config },
        Script { posts, arrived: Vec::new() },
    );
    assert!(bad.err().unwrap().to_string().contains("routes use 2 virtual channels"));
}

fn with_allocator(config: Config, allocator: Allocator) -> Config {
    Config { stages: config.stages.map(|stages| Stages { allocator, ..stages }), ..config }
}

/// A head waits for the next allocation: one cycle at each, where they come in each cycle.
#[test]
fn without_load_an_input_that_offers_one_lane_waits_for_the_next_allocation() {
    let network = tree(2, 3).unwrap();
    let arrives = |allocator| {
        let config = with_allocator(crossbar(), allocator);
        script(&network, &config, vec![(5, post(0, 7, 6))]).arrived[0].0
    };
    let switches = network.path(0, 7).len() as u64;
    let [all, one, eight] =
        [Allocator::AllLanes, Allocator::OneLane { every: 1 }, Allocator::OneLane { every: 8 }].map(arrives);
    assert_eq!(one, all + switches);
    assert!(eight > all && eight <= all + 8 * switches, "{all} {eight}");
}

/// Packets take 8 cycles over the crossbar. An input that is free again in the cycle of an allocation takes part in it.
#[test]
fn an_input_sends_a_packet_in_each_allocation() {
    let network = tree(4, 1).unwrap();
    let arrives = |pause, allocator| {
        let stages = crossbar().stages.map(|stages| Stages { speed: 1, pause, allocator, ..stages });
        script(&network, &Config { stages, ..crossbar() }, vec![(1, post(0, 2, 400))]).arrived[0].0
    };
    for (pause, every) in [(0, 8), (4, 12), (0, 4)] {
        let [all, one] = [Allocator::AllLanes, Allocator::OneLane { every }].map(|of| arrives(pause, of));
        assert!(one <= all + u64::from(every), "{one} in place of {all}, every {every} cycles");
    }
}

/// Host 0 has packets of level 0 to host 2 and of level 1 to host 3. Where hosts 1 and 3 send to host 2, too, it loses turns of
/// level 0, and level 1 has no more turns for it.
#[test]
fn a_lane_that_is_not_granted_loses_its_turn() {
    let network = tree(4, 1).unwrap();
    let carried = |others: &[usize]| {
        let allocator = Allocator::OneLane { every: 12 };
        let stages = crossbar().stages.map(|stages| Stages { speed: 1, least: 32, allocator, ..stages });
        let config = Config { levels: 2, stages, ..crossbar() };
        let to = |from: usize, to: usize, level: u8| (1, Post { level, ..post(from, to, 4000) });
        let mut posts = vec![to(0, 2, 0), to(0, 3, 1)];
        posts.extend(others.iter().map(|other| to(*other, 2, 0)));
        let mut engine = Engine::new(&network, &config, Script { posts, arrived: Vec::new() }).unwrap();
        engine.run_until(4000).unwrap();
        let carried = &engine.measures().carried;
        let of = |node: usize, port: usize| carried[engine.ports.port(node as u32, port) as usize];
        let link_to = |host| of(network.attachment(host).node, network.attachment(host).port);
        (of(network.host_node(0), 0), link_to(2), link_to(3))
    };
    let (alone, contested) = (carried(&[]), carried(&[1, 3]));
    // Level 1 has every second allocation, whatever level 0 gets. A packet has 8 flits, and an allocation comes every 12 cycles.
    assert!(
        alone.1.abs_diff(4000 * 8 / 24) < 50 && contested.1 > 2 * alone.1 - 50,
        "{alone:?} {contested:?}"
    );
    assert!(alone.2.abs_diff(contested.2) <= 8, "{alone:?} {contested:?}");
    assert!(4 * contested.0 < 3 * alone.0, "{alone:?} {contested:?}");
}

/// Configuration B of table 2.2: level 0 has two channels, and levels 1 and 2 have one each, with one lane.
#[test]
fn levels_may_have_different_numbers_of_channels() {
    let lanes = Lanes { sl2sc: vec![vec![0, 1], vec![2], vec![3]], sc2vl: vec![0, 1, 2, 2] };
    let config = Config { levels: 3, lanes: Some(lanes), ..crossbar() };
    let posts = (0..120).map(|nth| {
        let post = post(nth % 8, (nth + 1 + nth % 7) % 8, 1 + nth as u32 % 20);
        (1 + nth as u64 / 4, Post { level: nth as u8 % 3, ..post })
    });
    let posts: Vec<_> = posts.filter(|(_, post)| post.from != post.to).collect();
    let network = tree(8, 1).unwrap();
    for config in [config.clone(), Config { arbitration: Scheme::Priority, ..config.clone() }] {
        assert_eq!(script(&network, &config, posts.clone()).arrived.len(), posts.len());
    }
    // Messages of a level with two channels can overtake one another, those of a level with one cannot.
    let overtakes = |level| {
        let posts = (0..20).map(|_| (1, Post { level, ..post(0, 1, 8) })).collect();
        script(&network, &config, posts).arrived.windows(2).any(|pair| pair[0].1 > pair[1].1)
    };
    assert_eq!([overtakes(0), overtakes(1), overtakes(2)], [true, false, false]);
    let posts = Script { posts, arrived: Vec::new() };
    let bad = Engine::new(&torus(&[4, 2], 1).unwrap(), &config, posts).err().unwrap().to_string();
    assert!(bad.contains("2 virtual channels, and level 1 has 1 of the service channels"), "{bad}");
}

/// Three channels of a level, all of which have packets, send in turn.
#[test]
fn all_channels_of_a_level_take_turns() {
    let lanes = Lanes { sl2sc: vec![vec![0, 1, 2]], sc2vl: vec![0, 1, 2] };
    let network = tree(4, 1).unwrap();
    let script = Script { posts: Vec::new(), arrived: Vec::new() };
    let config = Config { lanes: Some(lanes), ..Config::default() };
    let mut engine = Engine::new(&network, &config, script).unwrap();
    let (out, input) = (engine.ports.port(network.host_node(0) as u32, 0), engine.ports.own_input());
    for nth in 0..30 {
        let at = engine.make(Packet { to: 1, flits: 1, out, out_lane: nth % 3, input, ..Packet::default() });
        engine.ports.enqueue(&mut engine.packets, at);
    }
    let sent = (0..15).map(|_| {
        let at = engine.ports.choose(&engine.packets, out).expect("all have packets");
        engine.ports.remove(&mut engine.packets, at);
        engine.packets[at].out_lane
    });
    assert_eq!(sent.collect::<Vec<_>>(), [0, 1, 2].repeat(5));
}

#[test]
fn stages_that_cannot_be_are_refused() {
    let network = tree(31, 1).unwrap();
    let reason = |config: Config| {
        Engine::new(&network, &config, Script { posts: Vec::new(), arrived: Vec::new() })
            .err()
            .unwrap()
            .to_string()
    };
    let with = |change: fn(&mut Stages)| {
        let mut config = hierarchical();
        config.stages.as_mut().into_iter().for_each(change);
        reason(config)
    };
    assert_eq!(with(|stages| stages.speed = 0), "switches of stages: speed is 0: take 1 to 1024");
    assert!(
        with(|stages| stages.allocator = Allocator::OneLane { every: 0 })
            .contains("cycles between allocations is 0: take 1 to 1024")
    );
    assert!(with(|stages| stages.least = 7).contains("least is 7: take 8"));
    assert!(with(|stages| stages.least = 65).contains("a buffer for all lanes is 64: take 65"));
    assert!(
        with(|stages| stages.centre.as_mut().unwrap().links = 8)
            .contains("inputs of an output buffer is 132")
    );
    assert!(
        reason(Config { passing_first: true, ..hierarchical() }).contains("neither congestion control nor")
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Every message arrives once, and all credits come back.
    #[test]
    fn proptest_all_arrives_through_stages(
        seed: u64, speed in 1u16..5, central in 1u16..5, ports in 1u8..6, links in 1u8..4, pause in 0u32..9, every in 0u32..9, buffer in 16u32..80, is_hierarchical: bool,
    ) {
        let centre = Centre { ports, links, speed: central, cross: 2, buffer };
        let allocator = if every == 0 { Allocator::AllLanes } else { Allocator::OneLane { every } };
        let centre = is_hierarchical.then_some(centre);
        let stages = Stages { speed, store: 3, output: buffer, least: 8, pause, allocator, centre };
        let config = Config { packet: 8, buffer, stages: Some(stages), ..Config::default() };
        for network in [trunked_torus(&[3, 2], 2, 2, HalfWay::Both).unwrap(), valiant_tree(3, 2).unwrap(), irregular(5, 2, 3, seed).unwrap()] {
            all_arrives(&network, &config, seed);
        }
    }
}
