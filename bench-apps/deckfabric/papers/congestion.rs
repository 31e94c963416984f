//! A dragonfly with a hot spot under ECN, SRP, SMSRP and LHRP.

use super::{Axis, Chart, Dot, Extent, Line, Row, Section, falls, simulate, uniform};
use indicatif::ProgressBar;
use udeck_fabric::{
    config::Config,
    congestion::{Congestion, ecn::Ecn, lhrp::Lhrp, srp::Speculation},
    measure::{Kind, Measures},
    topology::{Network, dragonfly},
    traffic::{Arrivals, Pattern, Stream, hot_spot},
};

const SCHEMES: [&str; 5] = ["none", "ECN", "SRP", "SMSRP", "LHRP"];
/// No control, but an acknowledgement of each packet, as in all schemes but `none`.
const ACKNOWLEDGED: &str = "none, acknowledged";
pub const BUFFER: u32 = 256;
/// Cycles of the burst, and its load.
const BURST: (u64, f64) = (1000, 15.0);

fn scheme(name: &str) -> Congestion {
    match name {
        "ECN" => Congestion::Ecn(Ecn { threshold: BUFFER / 2, ..Ecn::default() }),
        "SRP" => Congestion::Srp(Speculation::default()),
        "SMSRP" => Congestion::Smsrp(Speculation::default()),
        "LHRP" => Congestion::Lhrp(Lhrp::default()),
        _ => Congestion::None,
    }
}

/// Hosts of a switch, switches of a group and links between groups of a switch.
pub fn size(extent: Extent) -> [usize; 3] {
    if extent == Extent::Quick { [2, 4, 2] } else { [4, 8, 4] }
}

/// A network and its hot spot.
pub struct Place {
    pub network: Network,
    pub senders: Vec<u32>,
    pub receivers: Vec<u32>,
    pub cycles: (u64, u64),
}

impl Place {
    pub fn new(extent: Extent) -> Result<Self, String> {
        let (senders, receivers, cycles) = match extent {
            Extent::Reduced => (60, 4, (10_000, 20_000)),
            Extent::Quick => (30, 2, (5000, 10_000)),
        };
        let [hosts, group, global] = size(extent);
        let network = dragonfly(hosts, group, global).map_err(|bad| bad.to_string())?;
        let (senders, receivers) =
            hot_spot(network.hosts(), senders, receivers, 1).ok_or("the network is too small")?;
        Ok(Self { network, senders, receivers, cycles })
    }

    /// Traffic to the hot spot, with `load` for each receiver.
    pub fn hot(&self, load: f64, flits: u32, arrivals: Arrivals) -> Stream {
        let (senders, receivers) = (self.senders.len(), self.receivers.len());
        Stream {
            from: self.senders.clone(),
            to: Pattern::Fixed((0..senders).map(|nth| self.receivers[nth % receivers]).collect()),
            arrivals,
            ..uniform(&self.network, "hot", load * receivers as f64 / senders as f64, flits)
        }
    }

    fn run(&self, name: &str, streams: Vec<Stream>, bar: &ProgressBar) -> Result<Measures, String> {
        let config = Config {
            congestion: scheme(name),
            acks: name != "none",
            buffer: BUFFER,
            link: 20,
            ..Config::default()
        };
        self.play(&config, streams, bar)
    }

    pub fn play(&self, config: &Config, streams: Vec<Stream>, bar: &ProgressBar) -> Result<Measures, String> {
        simulate(&self.network, config, streams, self.cycles, bar)
    }

    /// Description in a sentence.
    pub fn words(&self) -> String {
        format!(
            "{}, {} hosts, {} send to {}; {} cycles of warm-up and {} measured, buffers of {BUFFER} flits.",
            self.network.name,
            self.network.hosts(),
            self.senders.len(),
            self.receivers.len(),
            self.cycles.0,
            self.cycles.1
        )
    }

    /// Flits per cycle that a receiver's link carries to it: of messages, and of reservations.
    pub fn received(&self, measures: &Measures) -> (f64, f64) {
        let of = |kind| measures.taken_by(&self.receivers, kind);
        (of(Kind::Data) + of(Kind::Speculative), of(Kind::Reserve))
    }
}

fn loads(extent: Extent) -> &'static [f64] {
    if extent == Extent::Quick { &[0.5, 2.0] } else { &[0.5, 0.9, 1.2, 2.0, 3.0] }
}

/// Runs of an experiment that has one for each scheme.
pub const RUNS: u64 = SCHEMES.len() as u64;

/// Loads of the traffic without congestion.
const BENIGN_LOADS: [f64; 2] = [0.2, 0.5];
/// Runs of the traffic without congestion.
pub const BENIGN_RUNS: u64 = (SCHEMES.len() as u64 + 1) * BENIGN_LOADS.len() as u64;

pub fn steady_runs(extent: Extent) -> u64 {
    RUNS * loads(extent).len() as u64
}

pub const STEADY: &str = "Messages of 4 flits to a hot spot (Jiang, Dennison, Dally)";
pub const LONG: &str = "Messages of 192 flits to a hot spot at twice its capacity (Jiang, Dennison, Dally)";
pub const BURSTS: &str = "Uniform messages beside a sudden burst to a hot spot (Jiang, Dennison, Dally)";
pub const BENIGN: &str = "Uniform messages of 4 flits without congestion (Jiang, Dennison, Dally)";

/// Short messages to a hot spot, with loads below and above its capacity.
pub fn steady(extent: Extent, bar: &ProgressBar) -> Result<Section, String> {
    let (place, loads) = (Place::new(extent)?, loads(extent));
    let mut lines = Vec::new();
    let (mut growth, mut last) = (Vec::new(), Vec::new());
    for name in SCHEMES {
        let mut points = Vec::new();
        for &load in loads {
            let measures = place.run(name, vec![place.hot(load, 4, Arrivals::Random)], bar)?;
            points.push(Dot::new(load, measures.classes[0].network.mean()));
            if Some(&load) == loads.last() {
                last.push(place.received(&measures));
            }
        }
        growth.push(points[points.len() - 1].median / points[0].median);
        lines.push(Line { name: name.into(), limit: false, points });
    }
    let most = loads[loads.len() - 1];
    let mut rows: Vec<_> = SCHEMES
        .iter()
        .zip(&growth)
        .map(|(name, growth)| {
            Row::new(format!("{name}: time in the network at load {most}, of that at 0.5"), None, *growth)
        })
        .collect();
    rows.push(Row::new(
        "SRP: reservations, percent of what arrives past saturation",
        30.0,
        100.0 * last[2].1,
    ));
    rows.push(Row::new("SMSRP: the same", None, 100.0 * last[3].1));
    rows.push(Row::new("LHRP: messages, percent of the receivers' links", None, 100.0 * last[4].0));
    rows.push(Row::new("ECN: messages, percent of the receivers' links", None, 100.0 * last[1].0));
    let [none, ecn, srp, smsrp, lhrp] = growth[..] else { return Err("a scheme is missing".into()) };
    Ok(Section {
        how: place.words(),
        claims: vec![
            ("without control, and then with ECN, packets are longest in the network past saturation".into(), falls(&[none, ecn, srp.max(smsrp).max(lhrp)])),
            ("the three protocols keep it below four times that of half the load".into(), srp.max(smsrp).max(lhrp) < 4.0),
            ("LHRP reserves nothing and fills the links of the receivers".into(), last[4].1 == 0.0 && last[4].0 > 0.97),
            ("SMSRP reserves when packets are dropped, and less than SRP".into(), last[3].1 > 0.0 && last[3].1 < last[2].1),
            ("SRP's reservations cost a fifth of the receivers' links and more than any other's".into(), (0.15..0.35).contains(&last[2].1)),
        ],
        rows,
        charts: vec![Chart {
            title: "Time of packets to a hot spot".into(),
            sentence: "From a packet's first flit on its host's link to its last flit's arrival, mean; lower is better. Load is what each receiver is sent, of what it can take.".into(),
            x: Axis::new("load", "", false),
            y: Axis::new("cycles", "cycles", true),
            lines,
        }],
        ..Section::default()
    })
}

/// Long messages to a hot spot: a reservation costs little.
pub fn long(extent: Extent, bar: &ProgressBar) -> Result<Section, String> {
    let place = Place::new(extent)?;
    let mut rows = Vec::new();
    let mut taken = Vec::new();
    for name in SCHEMES {
        let measures = place.run(name, vec![place.hot(2.0, 192, Arrivals::Random)], bar)?;
        let (data, reserve) = place.received(&measures);
        rows.push(Row::new(format!("{name}: messages, percent of the receivers' links"), None, 100.0 * data));
        taken.push((data, reserve));
    }
    Ok(Section {
        how: place.words(),
        rows,
        claims: vec![(
            "SRP's reservations cost less than a fiftieth of the links".into(),
            taken[2].1 < 0.02 && taken[2].0 > 0.9,
        )],
        ..Section::default()
    })
}

/// Uniform traffic with a sudden burst to a hot spot: the effect on the uniform traffic.
pub fn bursts(extent: Extent, bar: &ProgressBar) -> Result<Section, String> {
    let place = Place::new(extent)?;
    let begin = place.cycles.0;
    let (mut rows, mut means, mut highest) = (Vec::new(), Vec::new(), Vec::new());
    let (mut hot_times, mut hot_messages) = (Vec::new(), Vec::new());
    for name in SCHEMES {
        let background = uniform(&place.network, "background", 0.1, 4);
        let hot = Stream { during: (begin, begin + BURST.0), ..place.hot(BURST.1, 4, Arrivals::Random) };
        let measures = place.run(name, vec![background, hot], bar)?;
        means.push(measures.classes[0].latency.mean());
        highest.push(measures.classes[0].latency.value_at_quantile(0.99) as f64);
        hot_times.push(measures.classes[1].network.mean());
        hot_messages.push(measures.classes[1].latency.mean());
    }
    for (what, times) in [
        ("uniform messages, mean", &means),
        ("uniform messages, 99 %", &highest),
        ("packets of the burst, in the network", &hot_times),
        ("messages of the burst, from the post on", &hot_messages),
    ] {
        for (name, time) in SCHEMES.iter().zip(times).skip(1) {
            rows.push(Row::new(format!("{name}: {what}, of that without control"), None, time / times[0]));
        }
    }
    let worst = |times: &[f64]| times[3].max(times[4]);
    Ok(Section {
        how: format!(
            "{} Uniform load 0.1; {} times what the receivers can take, for {} cycles. Published, without figures: SMSRP and LHRP are \
             far below no control and ECN, and LHRP is slightly below SMSRP.",
            place.words(),
            BURST.1,
            BURST.0
        ),
        rows,
        claims: vec![(
            "SMSRP and LHRP keep the burst's packets out of the network, and ECN and no control do not"
                .into(),
            hot_times[0].min(hot_times[1]) > 2.0 * worst(&hot_times),
        )],
        ..Section::default()
    })
}

/// Uniform traffic: the cost of control where there is no congestion, beside no control with and without acknowledgements.
pub fn benign(extent: Extent, bar: &ProgressBar) -> Result<Section, String> {
    let cycles = if extent == Extent::Quick { (1000, 3000) } else { (1000, 1500) };
    let place = Place { cycles, ..Place::new(extent)? };
    let (mut rows, mut costs) = (Vec::new(), Vec::new());
    for load in BENIGN_LOADS {
        let time = |name| -> Result<f64, String> {
            let measures = place.run(name, vec![uniform(&place.network, "all", load, 4)], bar)?;
            Ok(measures.classes[0].latency.mean())
        };
        let (none, acknowledged) = (time("none")?, time(ACKNOWLEDGED)?);
        let what = format!("acknowledgements alone at {load}: time, of that without them");
        rows.push(Row::new(what, None, acknowledged / none));
        costs.clear();
        for name in &SCHEMES[1..] {
            let time = time(name)?;
            costs.push(time / acknowledged);
            rows.push(Row::new(
                format!("{name} at {load}: time, of that without control"),
                None,
                time / none,
            ));
            rows.push(Row::new(
                format!("{name} at {load}: time, of that with acknowledgements alone"),
                None,
                time / acknowledged,
            ));
        }
    }
    let [_, srp, smsrp, lhrp] = costs[..] else { return Err("a scheme is missing".into()) };
    Ok(Section {
        how: format!(
            "{} cycles of warm-up and {} measured. All schemes acknowledge each packet; without control nothing does, unless it is \
             said.",
            cycles.0, cycles.1
        ),
        rows,
        claims: vec![(
            "beside acknowledgements alone, SMSRP and LHRP cost less than SRP, and less than a tenth".into(),
            smsrp.max(lhrp) < srp && smsrp.max(lhrp) < 1.1,
        )],
        ..Section::default()
    })
}
