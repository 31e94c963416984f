mod stages;

use super::*;
use crate::{
    arbitration::Scheme,
    config::{Lanes, Queues},
    congestion::{Congestion, ecn::Ecn, lhrp::Lhrp, srp::Speculation},
    packet::Kind,
    topology::{adaptive_dragonfly, adaptive_tree, dragonfly, irregular, torus, tree},
    traffic::{Arrivals, Pattern, Stream, Traffic},
    workload::Post,
};
use proptest::prelude::*;

/// A workload that posts messages at given times, and notes the times and the order of their arrivals.
struct Script {
    posts: Vec<(u64, Post)>,
    arrived: Vec<(u64, u32)>,
}

impl Workload for Script {
    fn classes(&self) -> Vec<String> {
        vec!["all".into()]
    }

    fn begin(&mut self, actions: &mut Actions) {
        for (token, (at, _)) in (0..).zip(&self.posts) {
            actions.at(*at, token);
        }
    }

    fn timer(&mut self, _now: u64, token: u32, actions: &mut Actions) {
        actions.post(Post { token, ..self.posts[token as usize].1 });
    }

    fn delivered(&mut self, now: u64, token: u32, _actions: &mut Actions) {
        self.arrived.push((now, token));
    }
}

fn post(from: usize, to: usize, flits: u32) -> Post {
    Post { from: from as u32, to: to as u32, flits, level: 0, class: 0, token: 0 }
}

fn script(network: &Network, config: &Config, posts: Vec<(u64, Post)>) -> Script {
    let mut engine = Engine::new(network, config, Script { posts, arrived: Vec::new() }).unwrap();
    assert_eq!(engine.run_dry(u64::MAX / 2), Ok(true));
    engine.workload
}

fn networks() -> Vec<Network> {
    vec![
        tree(2, 3).unwrap(),
        torus(&[4, 3], 1).unwrap(),
        dragonfly(1, 2, 1).unwrap(),
        irregular(5, 2, 3, 1).unwrap(),
    ]
}

fn adaptive_networks() -> [Network; 2] {
    [adaptive_tree(2, 3).unwrap(), adaptive_dragonfly(2, 2, 1).unwrap()]
}

fn schemes() -> Vec<Congestion> {
    let srp = Speculation { patience: 30, window: 3 };
    let lhrp = Lhrp { threshold: 12, elsewhere: None };
    vec![
        Congestion::None,
        Congestion::Ecn(Ecn { threshold: 8, ..Ecn::default() }),
        Congestion::Srp(srp),
        Congestion::Smsrp(srp),
        Congestion::Lhrp(lhrp),
        Congestion::BySize { most: 6, lhrp, srp },
        Congestion::Lhrp(Lhrp { elsewhere: Some(srp), ..lhrp }),
    ]
}

#[test]
fn without_load_a_message_takes_its_links_its_switches_and_its_flits() {
    for network in networks() {
        for from in 0..network.hosts() {
            for to in (0..network.hosts()).filter(|to| *to != from) {
                let config = Config { link: 3, switch: 7, packet: 8, ..Config::default() };
                let found = script(&network, &config, vec![(5, post(from, to, 6))]);
                let switches = network.path(from, to).len() as u64;
                assert_eq!(
                    found.arrived,
                    [(5 + 3 * (switches + 1) + 7 * switches + 6, 0)],
                    "{}",
                    network.name
                );
            }
        }
    }
}

#[test]
fn packets_of_a_message_follow_one_another_without_a_gap() {
    let network = tree(2, 2).unwrap();
    let config = Config { buffer: 32, ..Config::default() };
    let found = script(&network, &config, vec![(1, post(0, 3, 401))]);
    assert_eq!(found.arrived, [(1 + 4 * 2 + 3 * 4 + 401, 0)]);
}

#[test]
fn a_small_buffer_limits_a_link_by_its_round_trip() {
    // The buffer holds one packet of 4 flits: its credit is back when the packet has left the switch and has crossed
    // the link twice.
    let network = tree(2, 1).unwrap();
    let config = Config { buffer: 4, link: 10, switch: 6, ..Config::default() };
    let found = script(&network, &config, vec![(1, post(0, 1, 4)), (1, post(0, 1, 4)), (1, post(0, 1, 4))]);
    let times: Vec<_> = found.arrived.iter().map(|(at, _)| *at).collect();
    assert_eq!(times, [31, 31 + 30, 31 + 60]);
}

#[test]
fn two_senders_to_one_share_it_packet_by_packet() {
    let network = tree(3, 1).unwrap();
    let posts = (0..20).flat_map(|_| [(1, post(0, 2, 4)), (1, post(1, 2, 4))]).collect();
    let found = script(&network, &Config::default(), posts);
    let parities: Vec<_> = found.arrived.iter().map(|(_, token)| token % 2).collect();
    assert!(parities.windows(2).all(|pair| pair[0] != pair[1]), "{parities:?}");
    assert_eq!(found.arrived.last().unwrap().0, 1 + 2 * 2 + 4 + 160, "the host's link is never idle");
}

/// Max-min fairness: of three flows over one link, two are bound elsewhere, or none.
#[test]
fn a_link_is_shared_by_max_min_fairness() {
    // Hosts 0, 1, 2 send to 3 with loads of 0.1, 0.8 and 0.8. The first gets all of its load, the others half of the
    // rest.
    let network = tree(4, 1).unwrap();
    let stream = |from: u32, load| Stream {
        name: format!("{from}"),
        from: vec![from],
        to: Pattern::Fixed(vec![3]),
        level: 0,
        load,
        flits: (4, 4),
        arrivals: Arrivals::Random,
        during: (0, u64::MAX),
    };
    let traffic = Traffic::new(4, vec![stream(0, 0.1), stream(1, 0.8), stream(2, 0.8)], 3).unwrap();
    let mut engine = Engine::new(&network, &Config::default(), traffic).unwrap();
    engine.run_until(5_000).unwrap();
    engine.restart_measures();
    engine.run_until(205_000).unwrap();
    let shares = engine.measures().shares();
    for (share, fair) in shares.iter().zip([0.1, 0.45, 0.45]) {
        assert!((share - fair).abs() < 0.005, "{shares:?}");
    }
}

/// An output with random arrivals and packets of one length has the wait of an M/D/1 queue.
#[test]
fn waits_at_half_load_are_those_of_an_m_d_1_queue() {
    let network = tree(20, 1).unwrap();
    // The 19 senders send only a little each, so that hardly any packet waits at the first link.
    let stream = Stream {
        name: "all".into(),
        from: (0..19).collect(),
        to: Pattern::Fixed(vec![19; 19]),
        level: 0,
        load: 0.5 / 19.0,
        flits: (8, 8),
        arrivals: Arrivals::Random,
        during: (0, u64::MAX),
    };
    let config = Config { packet: 8, ..Config::default() };
    let mut engine = Engine::new(&network, &config, Traffic::new(20, vec![stream], 5).unwrap()).unwrap();
    engine.run_until(2_000_000).unwrap();
    let measures = engine.measures();
    let zero = 2.0 * 2.0 + 4.0 + 8.0;
    let wait = measures.classes[0].network.mean() - zero;
    // The theory says ρ / (2 (1 - ρ)) services; a sender cannot overtake itself, which makes it a little less.
    let theory = 0.5 / (2.0 * 0.5) * 8.0;
    assert!((wait / theory - 1.0).abs() < 0.08, "{wait} for {theory}");
}

fn uniform(network: &Network, load: f64, flits: (u32, u32), until: u64) -> Stream {
    Stream {
        name: "uniform".into(),
        from: (0..network.hosts() as u32).collect(),
        to: Pattern::Uniform,
        level: 0,
        load,
        flits,
        arrivals: Arrivals::Random,
        during: (0, until),
    }
}

/// Returns the flits that hosts have taken for each cycle, as a part of the routes' bound, when all post a part of it.
fn taken_of_bound(network: &Network, part: f64, passing_first: bool) -> f64 {
    let bound = network.uniform_bound();
    let stream = uniform(network, part * bound, (4, 4), u64::MAX);
    let traffic = Traffic::new(network.hosts(), vec![stream], 1).unwrap();
    let config = Config { passing_first, ..Config::default() };
    let mut engine = Engine::new(network, &config, traffic).unwrap();
    engine.run_until(5_000).unwrap();
    engine.restart_measures();
    engine.run_until(20_000).unwrap();
    engine.measures().throughput() / bound
}

/// Beyond that bound, injected and passing packets take turns at links: injection takes the room that passing
/// packets need, buffers fill everywhere, and the throughput falls. If passing packets go first, it stays.
#[test]
fn a_torus_takes_up_to_what_its_bisection_lets_through() {
    for network in [torus(&[16], 1).unwrap(), torus(&[8, 8], 2).unwrap(), torus(&[8, 8], 1).unwrap()] {
        let under = taken_of_bound(&network, 0.8, false);
        assert!((under - 0.8).abs() < 0.01, "{}: {under}", network.name);
        let over = taken_of_bound(&network, 2.0, false);
        assert!((0.3..0.9).contains(&over), "{}: {over}", network.name);
        let passing_first = taken_of_bound(&network, 2.0, true);
        assert!((0.9..1.0).contains(&passing_first), "{}: {passing_first}", network.name);
    }
}

/// Returns the throughput of the hosts of one switch when all post as much as links carry.
fn taken_of_a_switch(queues: Queues) -> f64 {
    let network = tree(8, 1).unwrap();
    let config = Config { queues, ..Config::default() };
    let stream = uniform(&network, 1.0, (4, 4), u64::MAX);
    let mut engine = Engine::new(&network, &config, Traffic::new(8, vec![stream], 1).unwrap()).unwrap();
    engine.run_until(5_000).unwrap();
    engine.restart_measures();
    engine.run_until(50_000).unwrap();
    engine.measures().throughput()
}

/// Karol, Hluchyj, Morgan (1987): packets that wait behind one for another output leave an eight-port switch at
/// 0.618 of its links' rate.
#[test]
fn a_switch_whose_inputs_are_one_queue_is_used_as_theory_says() {
    let fifo = taken_of_a_switch(Queues::FifoCrossbar);
    assert!((fifo - 0.618).abs() < 0.03, "{fifo}");
    let crossbar = taken_of_a_switch(Queues::Crossbar);
    let by_output = taken_of_a_switch(Queues::ByOutput);
    assert!(crossbar > 0.85 && by_output > crossbar, "{crossbar} and {by_output}");
}

#[test]
fn what_waits_behind_another_packet_waits_for_it() {
    // Hosts 1 and 0 send to 2, and then host 0 to 3, to which no other host sends.
    let network = tree(4, 1).unwrap();
    let posts = vec![(1, post(1, 2, 100)), (2, post(0, 2, 4)), (3, post(0, 3, 4))];
    let last = |queues| {
        let config = Config { queues, packet: 100, buffer: 200, ..Config::default() };
        let found = script(&network, &config, posts.clone());
        found.arrived.into_iter().find(|(_, token)| *token == 2).map(|(at, _)| at)
    };
    // The packet is on host 0's link from cycle 6 on, and at its output from 12 on.
    assert_eq!(last(Queues::ByOutput), Some(12 + 2 + 4));
    assert_eq!(last(Queues::Crossbar), Some(12 + 2 + 4));
    // The output of the packet before it is free in cycle 107.
    assert_eq!(last(Queues::Fifo), Some(107 + 2 + 4));
    assert_eq!(last(Queues::FifoCrossbar), Some(107 + 4 + 2 + 4));
}

#[test]
fn a_ring_without_a_second_channel_comes_to_a_stop_and_says_so() {
    let network = torus(&[8], 1).unwrap();
    let run = |network: &Network| {
        let stream = Stream {
            to: Pattern::Fixed((0..8).map(|host| (host + 3) % 8).collect()),
            ..uniform(network, 1.0, (4, 4), 2_000)
        };
        let config = Config { buffer: 4, ..Config::default() };
        let traffic = Traffic::new(8, vec![stream], 1).unwrap();
        Engine::new(network, &config, traffic).unwrap().run_dry(1_000_000)
    };
    assert_eq!(run(&network), Ok(true));
    let stopped = run(&network.with_one_channel()).unwrap_err().to_string();
    assert!(stopped.contains("nothing moves at cycle"), "{stopped}");
}

/// Every host sends to every other, and a few send much to one, until a time. Then all posted messages have arrived,
/// once, and all credits are back.
fn all_arrives(network: &Network, config: &Config, seed: u64) {
    let hosts = network.hosts() as u32;
    let hot = Stream {
        name: "hot".into(),
        from: (1..hosts).collect(),
        to: Pattern::Fixed(vec![0; hosts as usize - 1]),
        load: 0.8,
        arrivals: Arrivals::Bursts(5),
        ..uniform(network, 0.3, (1, 19), 3_000)
    };
    let traffic =
        Traffic::new(network.hosts(), vec![uniform(network, 0.3, (1, 19), 3_000), hot], seed).unwrap();
    let mut engine = Engine::new(network, config, traffic).unwrap();
    assert_eq!(engine.run_dry(10_000_000), Ok(true), "{} {:?}", network.name, config.congestion);
    let measures = engine.measures();
    for class in &measures.classes {
        assert_eq!(class.posted, class.delivered, "{} {:?}", network.name, config.congestion);
        assert!(class.posted.0 > 100);
    }
    let taken = |kind: Kind| measures.taken.iter().map(|kinds| kinds[kind as usize]).sum::<u64>();
    let posted: u64 = measures.classes.iter().map(|class| class.posted.1).sum();
    assert_eq!(taken(Kind::Data) + taken(Kind::Speculative), posted);
    assert_eq!(taken(Kind::Nack), measures.dropped(), "each dropped packet is refused once");
    assert_eq!(taken(Kind::Notify), measures.marked);
    if config.congestion.lhrp().is_some_and(|lhrp| lhrp.elsewhere.is_some()) {
        assert_eq!(taken(Kind::Reserve), 0, "the last switch answers, in place of the host");
        assert!(taken(Kind::Grant) <= measures.dropped());
    } else {
        assert_eq!(taken(Kind::Reserve), taken(Kind::Grant));
    }
}

#[test]
fn all_arrives_once_whatever_is_dropped() {
    for network in networks().into_iter().chain(adaptive_networks()) {
        for congestion in schemes() {
            for acks in [false, true] {
                let config = Config { congestion, acks, buffer: 16, ..Config::default() };
                all_arrives(&network, &config, 1);
                all_arrives(&network, &Config { queues: Queues::Crossbar, ..config }, 1);
            }
        }
        for queues in [Queues::Fifo, Queues::FifoCrossbar] {
            all_arrives(&network, &Config { queues, buffer: 20, ..Config::default() }, 1);
        }
    }
}

/// Returns the flits that each sender has delivered a cycle, where each host of the map posts all that its link carries.
fn delivered(network: &Network, to: Vec<(u32, u32)>) -> f64 {
    let (from, to): (Vec<_>, Vec<_>) = to.into_iter().unzip();
    let senders = from.len();
    let stream = Stream { from, to: Pattern::Fixed(to), ..uniform(network, 1.0, (4, 4), u64::MAX) };
    let traffic = Traffic::new(network.hosts(), vec![stream], 1).unwrap();
    let mut engine = Engine::new(network, &Config::default(), traffic).unwrap();
    engine.run_until(2_000).unwrap();
    engine.restart_measures();
    engine.run_until(12_000).unwrap();
    engine.measures().throughput() * network.hosts() as f64 / senders as f64
}

/// Three hosts of a switch send to hosts with the same last digit, to which fixed routes take one way up.
#[test]
fn adaptive_trees_use_all_ways_up() {
    let to = vec![(0, 4), (1, 8), (2, 12)];
    let fixed = delivered(&tree(4, 2).unwrap(), to.clone());
    assert!((fixed - 1.0 / 3.0).abs() < 0.01, "{fixed}");
    let adaptive = delivered(&adaptive_tree(4, 2).unwrap(), to);
    assert!(adaptive > 0.95, "{adaptive}");
}

/// All hosts of a group send to the next group, to which there is one link for the group's eight hosts.
#[test]
fn adaptive_dragonflies_pass_other_groups() {
    let to: Vec<_> = (0..72).map(|host| (host, (host + 8) % 72)).collect();
    let fixed = delivered(&dragonfly(2, 4, 2).unwrap(), to.clone());
    assert!((fixed - 1.0 / 8.0).abs() < 0.01, "{fixed}");
    let adaptive = delivered(&adaptive_dragonfly(2, 4, 2).unwrap(), to);
    assert!(adaptive > 0.25, "{adaptive}");
}

#[test]
fn each_scheme_does_what_it_is_called_for() {
    let network = tree(3, 2).unwrap();
    let counts = |congestion| {
        let config = Config { congestion, buffer: 16, ..Config::default() };
        let stream = Stream {
            to: Pattern::Among(vec![0, 1]),
            from: (2..9).collect(),
            ..uniform(&network, 0.9, (4, 12), 20_000)
        };
        let mut engine = Engine::new(&network, &config, Traffic::new(9, vec![stream], 1).unwrap()).unwrap();
        assert_eq!(engine.run_dry(10_000_000), Ok(true));
        let measures = engine.measures();
        let taken = |kind: Kind| measures.taken.iter().map(|kinds| kinds[kind as usize]).sum::<u64>() > 0;
        (measures.marked > 0, measures.dropped() > 0, taken(Kind::Reserve), taken(Kind::Speculative))
    };
    let found: Vec<_> = schemes().into_iter().map(counts).collect();
    let expected = [
        (false, false, false, false),
        (true, false, false, false),
        (false, true, true, true),
        (false, true, true, true),
        (false, true, false, true),
        (false, true, true, true),
        (false, true, false, true),
    ];
    assert_eq!(found, expected);
}

/// Ten hosts post more to one than it can take. Returns what it takes of messages and of reservations, and packets'
/// mean time in the network.
fn hot(congestion: Congestion, load: f64) -> (f64, f64, f64) {
    let network = tree(4, 2).unwrap();
    let stream = Stream {
        from: (4..14).collect(),
        to: Pattern::Fixed(vec![0; 10]),
        ..uniform(&network, load / 10.0, (4, 4), u64::MAX)
    };
    let config = Config { congestion, buffer: 256, link: 20, acks: true, ..Config::default() };
    let traffic = Traffic::new(network.hosts(), vec![stream], 1).unwrap();
    let mut engine = Engine::new(&network, &config, traffic).unwrap();
    engine.run_until(10_000).unwrap();
    engine.restart_measures();
    engine.run_until(50_000).unwrap();
    let measures = engine.measures();
    let of = |kind| measures.taken_by(&[0], kind);
    (of(Kind::Data) + of(Kind::Speculative), of(Kind::Reserve), measures.classes[0].network.mean())
}

/// A message of four flits and its reservation of one share the link. Grants are for what the link can carry, so
/// queues stay short.
#[test]
fn past_saturation_reservations_have_a_fifth_of_the_link_and_queues_are_short() {
    let idle = hot(Congestion::Srp(Speculation::default()), 0.1).2;
    for load in [1.5, 3.0] {
        // The window is so large that it alone does not keep queues short. Packets that queued in the beginning
        // stay, since all of the link is reserved.
        let large = Speculation { window: 64, ..Speculation::default() };
        let (data, reserve, time) = hot(Congestion::Srp(large), load);
        assert!((data - 0.8).abs() < 0.01 && (reserve - 0.2).abs() < 0.01, "{load}: {data} and {reserve}");
        assert!(time < 8.0 * idle, "{load}: {time}, and {idle} without load");
        // No packet is dropped if the patience is longer than ten windows of packets fill.
        let short = Speculation { patience: 60, ..Speculation::default() };
        let (data, reserve, time) = hot(Congestion::Smsrp(short), load);
        assert!((0.8..0.95).contains(&data) && data + reserve > 0.95, "{load}: {data} and {reserve}");
        assert!(time < 3.0 * idle, "{load}: {time}, and {idle} without load");
    }
}

/// The tree has one way to the host, as fast as the host's link, so LHRP's last switch never has a queue to drop from: packets
/// queue before it.
#[test]
fn with_a_patience_packets_leave_the_queues_before_the_last_switch() {
    let lhrp = |elsewhere| hot(Congestion::Lhrp(Lhrp { elsewhere, ..Lhrp::default() }), 3.0);
    let idle = hot(Congestion::Lhrp(Lhrp::default()), 0.1).2;
    let (data, _, time) = lhrp(None);
    assert!(data > 0.99 && time > 20.0 * idle, "{data}, {time}, and {idle} without load");
    let (_, _, window_alone) = lhrp(Some(Speculation { patience: 1 << 20, window: 8 }));
    let (data, reserve, time) = lhrp(Some(Speculation { patience: 60, window: 8 }));
    assert!(data > 0.75 && time < 1.5 * idle, "{data}, {time}, and {idle} without load");
    assert!(time < window_alone / 1.5, "{time}, and {window_alone} with the window alone");
    assert_eq!(reserve, 0.0, "the last switch answers");
    // Without a window the way is full of requests: one flit for each four that are posted.
    let (data, _, time) = lhrp(Some(Speculation { patience: 60, window: 1 << 20 }));
    assert!((data - 0.25).abs() < 0.02 && time > 20.0 * idle, "{data}, {time}");
}

#[test]
fn gaps_leave_most_of_a_hot_link_in_use() {
    let ecn = Congestion::Ecn(Ecn { threshold: 128, ..Ecn::default() });
    let (data, _, _) = hot(ecn, 0.8);
    assert!((data - 0.8).abs() < 0.02, "{data}");
    let (data, _, time) = hot(ecn, 2.0);
    let (_, _, uncontrolled) = hot(Congestion::None, 2.0);
    assert!(data > 0.75 && time < uncontrolled / 2.0, "{data}, {time} and not {uncontrolled}");
}

/// A switch's own answers go in a lane of the control level, and not in lane 0, which is that of the traffic.
#[test]
fn a_switch_answers_in_a_lane_of_the_control_level() {
    let lanes = Lanes { sl2sc: vec![vec![0], vec![1], vec![2, 3]], sc2vl: vec![0, 1, 2, 3] };
    let congestion = Congestion::Lhrp(Lhrp::default());
    let config = Config { congestion, lanes: Some(lanes), ..Config::default() };
    let network = tree(4, 1).unwrap();
    let idle = Script { posts: Vec::new(), arrived: Vec::new() };
    let mut engine = Engine::new(&network, &config, idle).unwrap();
    engine.post_now(post(1, 2, 4)).unwrap();
    let level = config.control_level();
    let request =
        Packet { from: 1, to: 2, flits: 1, level, kind: Kind::Reserve, about: 4, ..Packet::default() };
    let at = engine.make(request);
    let came_by = network.attachment(1);
    engine.packets[at].input_port = engine.ports.port(came_by.node as u32, came_by.port);
    assert!(engine.grants_here(engine.now(), at));
    // The answer has the place of the request.
    let Packet { kind, out_lane, .. } = engine.packets[at];
    assert_eq!((kind, out_lane), (Kind::Grant, 2));
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let network = dragonfly(2, 4, 2).unwrap();
    for congestion in schemes() {
        let run = |seed| {
            let config = Config { congestion, ..Config::default() };
            let traffic =
                Traffic::new(network.hosts(), vec![uniform(&network, 0.9, (1, 9), u64::MAX)], seed).unwrap();
            let mut engine = Engine::new(&network, &config, traffic).unwrap();
            engine.run_until(3_000).unwrap();
            format!("{:?}", engine.measures())
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }
}

#[test]
fn what_must_not_be_posted_ends_the_run() {
    let network = tree(2, 1).unwrap();
    for bad in [
        post(0, 0, 1),
        post(0, 2, 1),
        post(0, 1, 0),
        Post { level: 1, ..post(0, 1, 1) },
        Post { class: 1, ..post(0, 1, 1) },
    ] {
        let script = Script { posts: vec![(1, bad)], arrived: vec![] };
        let mut engine = Engine::new(&network, &Config::default(), script).unwrap();
        assert!(matches!(engine.run_dry(100), Err(Stopped::BadPost(_))));
    }
    let nobody = Script { posts: vec![], arrived: vec![] };
    let config = Config { levels: 15, ..Config::default() };
    assert!(Engine::new(&torus(&[2], 1).unwrap(), &config, nobody).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Single packets of a pair of hosts and a level arrive in their order, where none may be dropped; and all arrive.
    #[test]
    fn proptest_flows_keep_their_order(
        which in 0usize..4,
        link in 1u32..5,
        switch in 0u32..5,
        buffer in 4u32..40,
        ecn: bool,
        queues in prop::sample::select(vec![Queues::ByOutput, Queues::Crossbar, Queues::Fifo, Queues::FifoCrossbar]),
        posts in prop::collection::vec((1u64..200, 0usize..6, 1usize..6, 1u32..=4, 0u8..3), 1..300),
    ) {
        let network = networks().swap_remove(which);
        let hosts = network.hosts().min(6);
        let congestion = if ecn && !queues.is_fifo() { Congestion::Ecn(Ecn { threshold: 4, ..Ecn::default() }) } else { Congestion::None };
        let config = Config { levels: 3, link, switch, buffer, queues, congestion, arbitration: Scheme::RoundRobin, ..Config::default() };
        let mut posts: Vec<_> = posts.into_iter().map(|(at, from, by, flits, level)| {
            let from = from % hosts;
            (at, Post { level, ..post(from, (from + 1 + by % (hosts - 1)) % hosts, flits) })
        }).collect();
        posts.sort_by_key(|(at, _)| *at);
        let found = script(&network, &config, posts.clone());
        prop_assert_eq!(found.arrived.len(), posts.len());
        let flow = |token: u32| { let post = posts[token as usize].1; (post.from, post.to, post.level) };
        let mut last = std::collections::BTreeMap::new();
        for (_, token) in found.arrived {
            if let Some(before) = last.insert(flow(token), token) {
                prop_assert!(before < token);
            }
        }
    }

    /// No packet is lost or duplicated with any scheme, buffers and seeds.
    #[test]
    fn proptest_all_arrives_once(which in 0usize..4, scheme in 0usize..7, buffer in 4u32..64, patience in 1u32..300, window in 1u32..20, seed: u64) {
        let network = networks().swap_remove(which);
        let congestion = match schemes().swap_remove(scheme) {
            Congestion::Srp(_) => Congestion::Srp(Speculation { patience, window }),
            Congestion::Smsrp(_) => Congestion::Smsrp(Speculation { patience, window }),
            Congestion::Lhrp(Lhrp { elsewhere, .. }) => Congestion::Lhrp(Lhrp {
                threshold: patience,
                elsewhere: elsewhere.map(|_| Speculation { patience, window }),
            }),
            other => other,
        };
        all_arrives(&network, &Config { congestion, buffer, ..Config::default() }, seed);
    }
}
