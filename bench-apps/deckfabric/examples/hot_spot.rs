//! 60 hosts of a dragonfly of 1,056 send to 4, under each scheme: `cargo run --release -p deckfabric --example
//! hot_spot`.
//!
//! The load is what each of the 4 is sent, as a part of what it can take. `network` is the mean time of a packet
//! from its first flit on a link to its last flit's arrival, `data` the part of the 4 hosts' links that messages
//! take, `reserve` the part that reservations take.

use std::{error::Error, time::Instant};
use udeck_fabric::{
    config::Config,
    congestion::{Congestion, ecn::Ecn, lhrp::Lhrp, srp::Speculation},
    engine::Engine,
    measure::Kind,
    topology::dragonfly,
    traffic::{Arrivals, Pattern, Stream, Traffic, hot_spot},
};

fn main() -> Result<(), Box<dyn Error>> {
    let network = dragonfly(4, 8, 4)?;
    let (senders, receivers) = hot_spot(network.hosts(), 60, 4, 1).ok_or("the network is too small")?;
    let schemes = [
        ("none", Congestion::None),
        ("ecn", Congestion::Ecn(Ecn { threshold: 128, ..Ecn::default() })),
        ("srp", Congestion::Srp(Speculation::default())),
        ("smsrp", Congestion::Smsrp(Speculation::default())),
        ("lhrp", Congestion::Lhrp(Lhrp::default())),
    ];
    println!(
        "{:6} {:>5} {:>8} {:>6} {:>8} {:>8} {:>17}",
        "scheme", "load", "network", "data", "reserve", "dropped", "Mflit-hops/s"
    );
    for (name, congestion) in schemes {
        for load in [0.5, 0.9, 1.5, 2.0, 3.0] {
            let stream = Stream {
                name: "hot".into(),
                from: senders.clone(),
                to: Pattern::Fixed((0..60).map(|nth| receivers[nth % 4]).collect()),
                level: 0,
                load: load * 4.0 / 60.0,
                flits: (4, 4),
                arrivals: Arrivals::Random,
                during: (0, u64::MAX),
            };
            let config = Config { congestion, acks: true, buffer: 256, link: 20, ..Config::default() };
            let traffic = Traffic::new(network.hosts(), vec![stream], 1)?;
            let mut engine = Engine::new(&network, &config, traffic)?;
            engine.run_until(20_000)?;
            engine.restart_measures();
            let start = Instant::now();
            engine.run_until(100_000)?;
            let (measures, wall) = (engine.measures(), start.elapsed());
            println!(
                "{name:6} {load:5.1} {:8.1} {:6.3} {:8.3} {:8} {:17.1}",
                measures.classes[0].network.mean(),
                measures.taken_by(&receivers, Kind::Data) + measures.taken_by(&receivers, Kind::Speculative),
                measures.taken_by(&receivers, Kind::Reserve),
                measures.dropped(),
                measures.carried.iter().sum::<u64>() as f64 / wall.as_secs_f64() / 1e6,
            );
        }
    }
    Ok(())
}
