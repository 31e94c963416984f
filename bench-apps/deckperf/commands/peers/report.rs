//! Report of a comparison: µDECK beside the limit and the peers, and the targets.

use super::{
    confidence::{Figures, MIN_FIGURES, Verdict, inverted, ratio},
    contenders::Peer,
    quinn,
    request::Method,
    schedule::{ContenderId, Outcome},
    targets::{Against, Row, Setting, Target, Unit},
};
use crate::{
    named::Named,
    report::data::{Better, Key, LIMIT, OURS, Series},
    stats::Ratio,
};
use udeck_cli::machine::Machine;

/// Everything that the report shows.
pub struct PeersReport {
    /// Machine of the run.
    pub machine: Machine,
    /// Setting of the comparison.
    pub setting: Setting,
    /// Peers, in the order of the columns.
    pub peers: Vec<Peer>,
    /// Sentences on peers that are absent or of no use, and why.
    pub missing: Vec<String>,
    /// Sentences on peers that failed during the run, and why.
    pub losses: Vec<String>,
    /// Sentences on how the figures were measured, one on a line.
    pub method: String,
    /// Lines, in the order of the table.
    pub lines: Vec<ReportLine>,
    /// All figures of all rounds.
    pub series: Vec<Series>,
}

/// One row with its figures.
pub struct ReportLine {
    /// Row of the table.
    pub row: &'static Row,
    /// Figure of µDECK, in the row's unit.
    pub ours: Option<f64>,
    /// Comparison with the limit of the machine.
    pub limit: Comparison,
    /// Comparison with the floor, the least that a message needs.
    pub floor: Comparison,
    /// Comparisons, one per peer.
    pub peers: Vec<Comparison>,
    /// Index of the peer whose figure is best.
    pub best: Option<usize>,
    /// Checks, one per target.
    pub checks: Vec<Check>,
}

/// Comparison with the figure of the limit, the floor or a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Comparison {
    /// The figure, in the row's unit.
    pub figure: Option<f64>,
    /// Rounds in which it was measured.
    pub figures: usize,
    /// µDECK's figure divided by this one.
    pub ratio: Option<Ratio>,
}

/// A target, and whether it is met.
pub struct Check {
    /// Target of the check.
    pub target: &'static Target,
    /// Denominator of the ratio, in words; the numerator is µDECK's figure.
    pub against: String,
    /// The ratio; `None`: one of the two was not measured.
    pub ratio: Option<Ratio>,
    /// Verdict on the target; inconclusive without a ratio.
    pub verdict: Verdict,
}

impl PeersReport {
    /// Makes a report, and computes all ratios and verdicts.
    pub fn new(
        machine: Machine,
        setting: Setting,
        peers: Vec<Peer>,
        missing: Vec<String>,
        outcome: &Outcome,
    ) -> Self {
        // Only rows whose numbers of ranks were asked for are shown.
        let rows = setting.rows().iter().filter(|row| outcome.has_ranks(row.column.ranks));
        let lines = rows.map(|row| ReportLine::new(row, setting, &peers, outcome)).collect();
        let losses = outcome.losses.clone();
        let method = method(outcome, setting);
        let rows = setting.rows().iter().filter(|row| outcome.has_ranks(row.column.ranks));
        let series = rows.flat_map(|row| series(row, setting, &peers, outcome)).collect();
        Self { machine, setting, peers, missing, losses, method, lines, series }
    }
}

/// Series of all contenders in a row.
fn series(row: &Row, setting: Setting, peers: &[Peer], outcome: &Outcome) -> Vec<Series> {
    let ours = (ContenderId::Ours, OURS.to_owned(), row.ours);
    let bare = [(ContenderId::Limit, LIMIT), (ContenderId::Floor, "floor")];
    let bare = bare.map(|(who, name)| (who, name.to_owned(), Method::Bare));
    let others =
        peers.iter().enumerate().map(|(number, peer)| (ContenderId::Peer(number), peer.title(), row.theirs));
    let column = &row.column;
    let series = [ours].into_iter().chain(bare).chain(others).filter_map(|(who, library, way)| {
        let key = Key {
            test: column.test.name(),
            library,
            transport: Some(setting.transport().to_owned()),
            protocol: Some(way.to_string()),
            payload: Some(column.payload.name()),
            size: Some(column.bytes as u64),
            ranks: Some(column.ranks as u64),
            labels: [("row".to_owned(), row.title.to_owned())].into(),
        };
        let better = if row.unit == Unit::Micros { Better::Lower } else { Better::Higher };
        let rounds = outcome.of(who, way, column)?.by_round(outcome.rounds, |micros| row.show(micros));
        Some(Series { key, unit: row.unit.name(), better, copied_bytes_per_message: None, rounds })
    });
    series.collect()
}

impl ReportLine {
    fn new(row: &'static Row, setting: Setting, peers: &[Peer], outcome: &Outcome) -> Self {
        let ours = outcome.of(ContenderId::Ours, row.ours, &row.column);
        let compare = |theirs: Option<&Figures>| Comparison::new(row, ours, theirs);
        let bare = |who| compare(outcome.of(who, Method::Bare, &row.column));
        let of = |number| outcome.of(ContenderId::Peer(number), row.theirs, &row.column);
        let median = |number: &usize| of(*number).and_then(Figures::median).unwrap_or(f64::INFINITY);
        let best = (0..peers.len())
            .filter(|number| median(number).is_finite())
            .min_by(|one, other| median(one).total_cmp(&median(other)));
        let mut line = ReportLine {
            row,
            ours: ours.and_then(Figures::median).map(|micros| row.show(micros)),
            limit: bare(ContenderId::Limit),
            floor: bare(ContenderId::Floor),
            peers: (0..peers.len()).map(|number| compare(of(number))).collect(),
            best,
            checks: Vec::new(),
        };
        let check = |target| line.check(target, peers, |title| compare(named(title, setting, outcome)));
        line.checks = row.targets.iter().map(check).collect();
        line
    }

    fn quinn(&self, peers: &[Peer]) -> Option<Ratio> {
        let number = peers.iter().position(|peer| peer.name == quinn::NAME)?;
        self.peers[number].ratio
    }

    fn check(&self, target: &'static Target, peers: &[Peer], ours: impl Fn(&str) -> Comparison) -> Check {
        let (against, ratio) = match target.against {
            Against::Limit => ("the raw limit".to_owned(), self.limit.ratio),
            Against::Floor => ("the floor".to_owned(), self.floor.ratio),
            Against::Quinn => ("quinn".to_owned(), self.quinn(peers)),
            Against::Ours(title) => (format!("ours, {title}"), ours(title).ratio),
            Against::BestPeer => match self.best {
                Some(best) => (format!("best peer, {}", peers[best].title()), self.peers[best].ratio),
                None => ("best peer: there is none".to_owned(), None),
            },
        };
        let verdict = ratio.map_or(Verdict::Inconclusive, |ratio| Verdict::of(ratio, target.bound));
        Check { target, against, ratio, verdict }
    }
}

/// µDECK's figures in the row of this title.
fn named<'o>(title: &str, setting: Setting, outcome: &'o Outcome) -> Option<&'o Figures> {
    let row = setting.rows().iter().find(|row| row.title == title)?;
    outcome.of(ContenderId::Ours, row.ours, &row.column)
}

impl Comparison {
    fn new(row: &Row, ours: Option<&Figures>, theirs: Option<&Figures>) -> Self {
        let Some(theirs) = theirs else { return Self::default() };
        let ratio = ours.and_then(|ours| ratio(ours, theirs));
        Self {
            figure: theirs.median().map(|micros| row.show(micros)),
            figures: theirs.len(),
            ratio: if row.unit == Unit::Micros { ratio } else { ratio.map(inverted) },
        }
    }
}

impl Row {
    /// Converts µs per message into the row's unit.
    fn show(&self, micros: f64) -> f64 {
        match self.unit {
            Unit::Micros => micros,
            Unit::Millions => 1.0 / micros,
            Unit::Gigabytes => self.column.bytes as f64 / micros / 1e3,
        }
    }
}

fn method(outcome: &Outcome, setting: Setting) -> String {
    let rounds = format!(
        "interleaved: all jobs live all the time, and all but one of them block; in each of {} rounds ({:.0} s in \
         all) each contender runs one batch of 2 ms (10 ms with 4 or 8 ranks), column by column in random order; \
         no rank leaves its library before all are through; programs that run whole take turns, one in a round\n\
         a figure is the median over rounds; a ratio is the median of the rounds' ratios, in brackets its 95 % bounds \
         (bootstrap over rounds); a target is met or missed if both bounds say so and there are {MIN_FIGURES} rounds\n",
        outcome.rounds,
        outcome.elapsed.as_secs_f64(),
    );
    rounds
        + &match setting {
            Setting::Groups => GROUPS.to_owned(),
            Setting::Memory => format!("{MESSAGES}{LIMITS}"),
            Setting::Network(_) => format!("{MESSAGES}{SOCKETS}"),
        }
}

const MESSAGES: &str = "one-way latency is half a round trip, with 4 and 8 ranks of all pairs at once; rate and stream are windows \
                        of 64, each acknowledged; w+r: the sender writes every word, the receiver sums and checks them all, \
                        otherwise nobody looks; MPI window: data and a flag in memory of MPI_Win_allocate_shared\n";
const SOCKETS: &str = "all over the loopback device; limit: two threads that spin on the two ends of a TCP connection, with the \
                       same sizes and windows\n";
const LIMITS: &str = "limit: latency a cache line's hand-over or, from 4 KiB, a memcpy out of the other core's dirty lines; \
                      rate a bare ring in the same windows; barrier a yielding counter (both between an MPI's ranks); floor: \
                      the same turns by a ring that checks length, tag and state, gives credit every 16th message, and fences \
                      and looks whether to wake the receiver, without a library around it\n";

const GROUPS: &str = "the time of one operation, of a batch of them between two barriers; each rank is the root of a broadcast in its \
                      turn, so that no root runs ahead, and nothing else lies between two operations; all-reduce sums \
                      doubles in place, at 4 MiB 524,288 of them; all-to-all has so many bytes from each rank to each, oneself \
                      included; w+r: whoever gives a block writes all of it, whoever gets it sums and checks it all, otherwise \
                      the first and the last word (and of the first operation of each batch, which is not timed, all of it); \
                      hand-off: ours gives buffers away (broadcast_buf, all_to_all_buf), which are beside the same MPI_Bcast \
                      and MPI_Alltoall\n";

/// A small run for the tests of the formats: µDECK takes 1 µs, the limit 0.8, the peers 4 and 3 µs.
#[cfg(test)]
pub fn sample() -> PeersReport {
    sample_of(Setting::Memory)
}

/// The same small run, with the table of another setting.
#[cfg(test)]
pub fn sample_of(setting: Setting) -> PeersReport {
    use super::schedule::{Mode, PeerSeries};

    let mut series = Vec::new();
    for row in setting.rows() {
        let who = [
            (ContenderId::Ours, row.ours, 1.0),
            (ContenderId::Limit, Method::Bare, 0.8),
            (ContenderId::Floor, Method::Bare, 0.9),
            (ContenderId::Peer(0), row.theirs, 4.0),
            (ContenderId::Peer(1), row.theirs, 3.0),
        ];
        for (who, way, micros) in who {
            let (small, crowded) = (row.column.bytes == 8, row.column.ranks > 2);
            if crowded && matches!(who, ContenderId::Peer(1) | ContenderId::Floor)
                || !small && who == ContenderId::Floor
            {
                continue;
            }
            let mut one = PeerSeries::new(who, way, row.column, Mode::Conducted);
            let weather = [1.0, 1.5, 1.0, 2.0, 1.0, 1.25];
            weather.iter().enumerate().for_each(|(round, weather)| one.figures.push(round, micros * weather));
            series.push(one);
        }
    }
    let outcome = Outcome {
        series,
        rounds: 6,
        elapsed: std::time::Duration::from_secs(5),
        losses: vec!["UCX, 2 ranks: did not end within 20 s, killed".to_owned()],
    };
    let machine = Machine::sample("one on core 0, one on core 1", "shm");
    let peer = |name, version: &str, prefix: Option<&str>| Peer {
        name,
        version: version.to_owned(),
        prefix: prefix.map(Into::into),
        flags: "no flags".to_owned(),
    };
    let missing = vec!["libfabric: not installed (apt install libfabric-bin)".to_owned()];
    let peers = vec![peer("MPICH", "5.0.2", Some("/peers/mpich")), peer("UCX", "1.13.1", None)];
    PeersReport::new(machine, setting, peers, missing, &outcome)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::peers::schedule::{Mode, PeerSeries};

    fn line<'r>(report: &'r PeersReport, title: &str) -> &'r ReportLine {
        report.lines.iter().find(|line| line.row.title == title).expect(title)
    }

    fn close(value: Option<f64>, to: f64) -> bool {
        value.is_some_and(|value| (value / to - 1.0).abs() < 1e-9)
    }

    #[test]
    fn the_best_peer_is_the_fastest_that_took_part() {
        let report = sample();
        assert_eq!(line(&report, "8 B").best, Some(1));
        assert_eq!(line(&report, "barrier, 8 ranks").best, Some(0));
        assert!(close(line(&report, "8 B").peers[1].ratio.map(|ratio| ratio.median), 1.0 / 3.0));
        assert_eq!(line(&report, "barrier, 8 ranks").peers[1], Comparison::default());
    }

    #[test]
    fn rates_are_shown_and_compared_as_rates() {
        let report = sample();
        let (rate, stream) = (line(&report, "8 B rate"), line(&report, "1 MiB stream"));
        let median = 1.125; // of the factors in `weather`
        assert!(close(rate.ours, 1.0 / median));
        assert!(close(rate.limit.ratio.map(|ratio| ratio.median), 0.8));
        assert!(close(stream.ours, 1048.576 / median));
        assert!(close(stream.peers[0].ratio.map(|ratio| ratio.median), 4.0));
    }

    #[test]
    fn verdicts_follow_from_ratios_and_targets() {
        let report = sample();
        let verdicts =
            |title| line(&report, title).checks.iter().map(|check| check.verdict).collect::<Vec<_>>();
        // The figure is 1.25 × the limit, and a third of the best peer's.
        assert_eq!(verdicts("8 B"), [Verdict::Met, Verdict::Met]);
        assert_eq!(verdicts("8 B rate"), [Verdict::Met, Verdict::Met]);
        // The figure equals that of the 8-byte message, and that of one copy.
        assert_eq!(verdicts("1 MiB, hand-off"), [Verdict::Met]);
        assert_eq!(verdicts("1 MiB w+r, hand-off"), [Verdict::Met, Verdict::Met]);
    }

    #[test]
    fn rows_of_other_numbers_of_ranks_are_left_out() {
        let PeersReport { machine, .. } = sample();
        let row = &Setting::Groups.rows()[0];
        let series = PeerSeries::new(ContenderId::Ours, row.ours, row.column, Mode::Conducted);
        let outcome =
            Outcome { series: vec![series], rounds: 0, elapsed: Default::default(), losses: Vec::new() };
        let report = PeersReport::new(machine, Setting::Groups, Vec::new(), Vec::new(), &outcome);
        let ranks: Vec<usize> = report.lines.iter().map(|line| line.row.column.ranks).collect();
        assert!(!ranks.is_empty() && ranks.iter().all(|&ranks| ranks == row.column.ranks), "{ranks:?}");
    }

    #[test]
    fn without_peers_their_targets_are_open() {
        let PeersReport { machine, .. } = sample();
        let alone = |row: &Row| PeerSeries::new(ContenderId::Ours, row.ours, row.column, Mode::Conducted);
        let series = Setting::Memory.rows().iter().map(alone).collect();
        let outcome = Outcome { series, rounds: 0, elapsed: Default::default(), losses: Vec::new() };
        let report = PeersReport::new(machine, Setting::Memory, Vec::new(), Vec::new(), &outcome);
        for check in report.lines.iter().flat_map(|line| &line.checks) {
            assert!(check.ratio.is_none() && check.verdict == Verdict::Inconclusive);
        }
    }
}
