//! Measures how many flits a second the simulator moves over links: `cargo run --release -p deckfabric --example
//! speed`.

use std::{error::Error, time::Instant};
use udeck_fabric::{
    config::Config,
    engine::Engine,
    topology::{dragonfly, torus, tree},
    traffic::{Arrivals, Pattern, Stream, Traffic},
};

fn main() -> Result<(), Box<dyn Error>> {
    println!("{:16} {:>8} {:>14} {:>14}", "network", "taken", "Mflit-hops/s", "Mevents/s");
    for network in [tree(8, 3)?, torus(&[8, 8, 8], 1)?, dragonfly(4, 8, 4)?] {
        let stream = Stream {
            name: "uniform".into(),
            from: (0..network.hosts() as u32).collect(),
            to: Pattern::Uniform,
            level: 0,
            load: 0.4,
            flits: (4, 4),
            arrivals: Arrivals::Random,
            during: (0, u64::MAX),
        };
        let traffic = Traffic::new(network.hosts(), vec![stream], 1)?;
        let mut engine = Engine::new(&network, &Config::default(), traffic)?;
        let start = Instant::now();
        engine.run_until(30_000)?;
        let (measures, wall) = (engine.measures(), start.elapsed().as_secs_f64());
        let speed = |count: u64| count as f64 / wall / 1e6;
        let (hops, events) = (speed(measures.carried.iter().sum()), speed(measures.events));
        println!("{:16} {:8.3} {hops:14.1} {events:14.1}", network.name, measures.throughput());
    }
    Ok(())
}
