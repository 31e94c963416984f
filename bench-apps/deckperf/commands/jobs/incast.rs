//! `deckperf incast`: many ranks send to one. Measures the rate at the receiver, the fairness between senders, and the time of a
//! short message of one of them among the floods of the others.

use std::time::{Duration, Instant};

use udeck::{Mailbox, Postbox, Received, WithTag};

use super::{Control, JobStage, JobsPlan, Measured, Placement, sizes_or};
use crate::{
    commands::percentiles::{self, Singles},
    experiment::{
        Experiment, Link, Timing,
        plan::{Quantity, Test},
        rounds::{Contend, Results, SMALL, Shape, Trial},
    },
    failure::{PerfError, Result},
    report::{
        Body, Report, data, export, scheduling,
        table_body::{Cell, Table, names},
    },
};

const SIZES: [usize; 3] = [SMALL, 4 << 10, 64 << 10];

/// Target length of a flood: long beside a time slice of senders that share cores.
const FLOOD: Duration = Duration::from_millis(20);

/// Messages of a sender between two polls for the order to stop.
const VISIT: usize = 16;

/// Tag of a sender's last message.
const LAST: u32 = 1;

const INBOX: &str = "incast";
const ANSWERS: &str = "incast.answers";

/// Kind of a batch, in a job of this many ranks, one of which receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Incast {
    /// All other ranks flood the receiver.
    Flood(usize),
    /// Rank 1 sends short messages that are answered, and the remaining ranks flood the receiver.
    Probe(usize),
}

impl Contend for Incast {
    fn quantity(&self) -> Quantity {
        match self {
            Incast::Flood(_) => Quantity::Throughput,
            Incast::Probe(_) => Quantity::Time,
        }
    }

    fn counted(&self, messages: u64) -> u64 {
        match self {
            Incast::Flood(_) => messages,
            // The figure of a probe is the time of a round trip.
            Incast::Probe(_) => 1,
        }
    }

    fn batch(&self) -> Duration {
        FLOOD
    }
}

/// Further results of a kind of batch, beside its figures.
struct Seen {
    what: Incast,
    size: usize,
    /// Messages of a flood by sender, from rank 1 on.
    delivered: Vec<u64>,
    /// Round trips of a probe.
    singles: Singles,
}

/// Rank 0's role: it receives.
struct Receiver<'l, 'w> {
    control: &'l Control<'w>,
    inbox: Mailbox<u8>,
    answers: Postbox<u8>,
    /// Current round; `None` while batches are calibrated.
    round: Option<usize>,
    seen: Vec<Seen>,
}

impl Receiver<'_, '_> {
    /// Waits until the floods of so many senders are under way.
    fn begin(&self, senders: usize) -> Result {
        for _ in 0..VISIT * senders {
            self.inbox.retrieve()?;
        }
        Ok(())
    }

    /// Stops the floods, and receives the messages under way.
    fn end(&self, senders: std::ops::Range<usize>) -> Result {
        let mut left = senders.len();
        senders.into_iter().try_for_each(|rank| self.control.send(rank, &[]))?;
        while left > 0 {
            left -= usize::from(self.inbox.retrieve()?.tag() == LAST);
        }
        Ok(())
    }

    fn flood(&self, ranks: usize, size: usize, shape: Shape) -> Result<(Duration, Vec<u64>)> {
        self.begin(ranks - 1)?;
        let mut delivered = vec![0; ranks - 1];
        for _ in 0..shape.messages * shape.warm_up {
            self.inbox.retrieve()?;
        }
        let started = Instant::now();
        for _ in 0..shape.messages * shape.iterations {
            let message = self.inbox.retrieve()?;
            check(&message, size)?;
            let sender = delivered.get_mut(message.source().wrapping_sub(1));
            *sender.ok_or_else(|| unexpected_sender(message.source()))? += 1;
        }
        let elapsed = started.elapsed();
        self.end(1..ranks)?;
        Ok((elapsed, delivered))
    }

    /// Times round trips of rank 1, whose messages are answered when they are retrieved.
    fn probe(&self, ranks: usize, shape: Shape) -> Result<Vec<u32>> {
        self.begin(ranks - 2)?;
        self.control.send(1, &[])?;
        let mut left = shape.iterations + shape.warm_up;
        while left > 0 {
            if self.inbox.retrieve()?.source() == 1 {
                self.answers.post(&[][..])?;
                left -= 1;
            }
        }
        self.end(2..ranks)?;
        let report = self.control.receive(1)?;
        if report.len() as u64 != shape.iterations {
            return Err(PerfError::BadReport(report.len()));
        }
        Ok(report.iter().map(|&nanoseconds| u32::try_from(nanoseconds).unwrap_or(u32::MAX)).collect())
    }
}

fn check(message: &Received<u8>, size: usize) -> Result {
    if message.len() == size {
        return Ok(());
    }
    Err(PerfError::WrongLength { protocol: udeck::Protocol::Auto, wanted: size, got: message.len() })
}

fn unexpected_sender(rank: usize) -> PerfError {
    PerfError::Internal(format!("a message came from rank {rank}, which sends nothing now"))
}

impl Experiment for Receiver<'_, '_> {
    type Contender = Incast;

    const COPIES: bool = false;

    fn begin_round(&mut self, number: usize) {
        self.round = Some(number);
    }

    fn followers(&self, trial: &Trial<Incast>) -> Vec<usize> {
        let (Incast::Flood(ranks) | Incast::Probe(ranks)) = trial.contender;
        (1..ranks).collect()
    }

    fn perform(&mut self, &Trial { contender, size, shape }: &Trial<Incast>) -> Result<Timing> {
        let (timing, delivered, singles) = match contender {
            Incast::Flood(ranks) => {
                let (elapsed, delivered) = self.flood(ranks, size, shape)?;
                (elapsed.into(), delivered, Vec::new())
            }
            Incast::Probe(ranks) => {
                let started = Instant::now();
                let singles = self.probe(ranks, shape)?;
                let (lasted, elapsed) = (started.elapsed(), singles.iter().copied().map(u64::from).sum());
                let rested = lasted.saturating_sub(Duration::from_nanos(elapsed));
                (Timing { lasted, rested }, Vec::new(), singles)
            }
        };
        let of = |seen: &&mut Seen| (seen.what, seen.size) == (contender, size);
        if let (Some(round), Some(seen)) = (self.round, self.seen.iter_mut().find(of)) {
            seen.delivered.iter_mut().zip(delivered).for_each(|(sum, more)| *sum += more);
            seen.singles.add(round, &singles);
        }
        Ok(timing)
    }
}

/// The role of the ranks from 1 on: each sends.
struct Sender<'l, 'w> {
    control: &'l Control<'w>,
    outlet: Postbox<u8>,
    answers: Mailbox<u8>,
}

impl Experiment for Sender<'_, '_> {
    type Contender = Incast;

    fn perform(&mut self, &Trial { contender, size, shape }: &Trial<Incast>) -> Result<Timing> {
        match contender {
            Incast::Probe(_) if self.control.world().rank() == 1 => self.probe(shape)?,
            Incast::Flood(_) | Incast::Probe(_) => self.flood(size)?,
        }
        Ok(Timing::default())
    }
}

impl Sender<'_, '_> {
    fn probe(&self, Shape { warm_up, iterations, .. }: Shape) -> Result {
        self.control.receive(0)?; // the floods are under way
        let mut singles = Vec::with_capacity(iterations as usize);
        for turn in 0..warm_up + iterations {
            let started = Instant::now();
            self.outlet.post(&[0_u8; SMALL])?;
            self.answers.retrieve()?;
            if turn >= warm_up {
                singles.push(started.elapsed().as_nanos() as u64);
            }
        }
        self.control.send(0, &singles)
    }

    /// Posts until rank 0 sends a word.
    fn flood(&self, size: usize) -> Result {
        let short = [0_u8; SMALL];
        while self.control.try_receive()?.is_none() {
            for _ in 0..VISIT {
                match short.get(..size) {
                    Some(short) => self.outlet.post(short)?,
                    None => self.outlet.post(self.control.world().buf_reused::<u8>(size)?)?,
                }
            }
        }
        Ok(self.outlet.post([].with_tag(LAST))?)
    }
}

/// Plays one rank's part.
pub fn play(stage: &JobStage<'_, '_>, jobs: &[usize]) -> Result<Option<Report>> {
    let (control, world, plan) = (stage.control, stage.world(), stage.plan);
    let sizes: Vec<usize> = sizes_or(plan, &SIZES).into_iter().filter(|&size| size > 0).collect();
    let jobs: Vec<usize> = jobs.iter().copied().filter(|&ranks| ranks <= world.size()).collect();
    let both = |&ranks: &usize| [Incast::Flood(ranks), Incast::Probe(ranks)];
    let cells: Vec<(Incast, usize)> =
        sizes.iter().flat_map(|&size| jobs.iter().flat_map(both).map(move |what| (what, size))).collect();
    let seen = |&(what, size): &(Incast, usize)| {
        let senders = if let Incast::Flood(ranks) = what { ranks - 1 } else { 0 };
        Seen { what, size, delivered: vec![0; senders], singles: Singles::new() }
    };
    let seen = cells.iter().map(seen).collect();
    let wanted = Results::empty(&sizes, cells);
    if world.rank() != 0 {
        let (outlet, answers) = (world.postbox(INBOX)?, world.mailboxes(ANSWERS)?);
        stage.run(wanted, &mut Sender { control, outlet, answers })?;
        return Ok(None);
    }
    // The queue is empty, so that the receiver holds the floods up; otherwise the figures would show how much can wait.
    let (inbox, answers) = (world.mailbox_with_queue(INBOX, 0)?, world.postbox_of(ANSWERS, 1)?);
    let mut receiver = Receiver { control, inbox, answers, round: None, seen };
    let Some(measured) = stage.run(wanted, &mut receiver)? else { return Ok(None) };
    let Measured { placement, results, machine } = measured;
    Ok(Some(Report {
        method: method(plan, placement, &results),
        noise: placement.noise(&results),
        command: "incast",
        series: series(machine.network(), &results),
        body: Body::of_tables(&[floods(&receiver.seen, &results), probes(&receiver.seen, &results)]),
        findings: Vec::new(),
        machine,
    }))
}

fn method(plan: &JobsPlan, placement: &Placement, results: &Results<Incast>) -> String {
    scheduling(plan.pace.iterations, results)
        + &format!(
            "flood: all ranks but rank 0 post to one mailbox of rank 0's as fast as they are let (its queue is 0 bytes); rank 0 \
             retrieves and counts; nobody writes or reads the data, so over shared memory, where messages are handed over, MB/s \
             only says how many come\n\
             Jain's index is 1 if all senders are served alike, and 1/n if one of n has everything; least and most are shares \
             of what each would have if all were served alike; all over the whole run\n\
             short message: rank 1 posts {SMALL} bytes to the same mailbox, rank 0 answers when it retrieves them, while all \
             other ranks flood it with messages of the size; the figures are whole round trips in ns (hdrhistogram, three \
             digits). With 2 ranks nobody floods\n"
        )
        + &percentiles::clock_sentence()
        + &placement.raw_sentences(results)
}

/// Fairness index (Jain, Chiu, Hawe 1984): 1 if all shares are equal, 1/n if one sender has everything.
fn jain(shares: &[u64]) -> Option<f64> {
    let sum: f64 = shares.iter().map(|&share| share as f64).sum();
    let squares: f64 = shares.iter().map(|&share| (share as f64).powi(2)).sum();
    (squares > 0.0).then(|| sum * sum / (shares.len() as f64 * squares))
}

/// The smallest and the largest share, as multiples of the mean.
fn extremes(shares: &[u64]) -> Option<[f64; 2]> {
    let mean = shares.iter().sum::<u64>() as f64 / shares.len() as f64;
    let [least, most] = [*shares.iter().min()?, *shares.iter().max()?];
    (mean > 0.0).then(|| [least as f64 / mean, most as f64 / mean])
}

fn floods(seen: &[Seen], results: &Results<Incast>) -> Table {
    let row = |seen: &Seen| {
        let Incast::Flood(ranks) = seen.what else { return None };
        let figure = results.of(seen.what, seen.size)?.figure();
        let rate = figure.map(|figure| figure.p50);
        let extremes = extremes(&seen.delivered);
        Some(vec![
            Cell::Count(seen.size as u64),
            Cell::Count(ranks as u64 - 1),
            Cell::Figure(rate),
            Cell::Figure(figure.map(|figure| figure.p99)),
            Cell::Figure(rate.map(|rate| rate / seen.size as f64)),
            Cell::Figure(jain(&seen.delivered)),
            Cell::Figure(extremes.map(|[least, _]| least)),
            Cell::Figure(extremes.map(|[_, most]| most)),
        ])
    };
    Table {
        title: "Incast: MB/s at the receiver (median, and what 99 % of the batches reach), million messages per second; \
                fairness between senders"
            .to_owned(),
        name: "flood".into(),
        columns: names(&["size", "senders", "MB/s", "p99", "M/s", "jain", "least", "most"]),
        rows: seen.iter().filter_map(row).collect(),
    }
}

fn probes(seen: &[Seen], results: &Results<Incast>) -> Table {
    let row = |seen: &Seen| {
        let Incast::Probe(ranks) = seen.what else { return None };
        let histogram = seen.singles.settled(results.warm_up.dropped);
        let head = [seen.size as u64, ranks as u64 - 2, histogram.len()].map(Cell::Count);
        Some([&head[..], &percentiles::cells(&histogram, 1)].concat())
    };
    let mut columns = names(&["size", "flooding", "messages"]);
    columns.extend(percentiles::columns().map(str::to_owned));
    Table {
        title: format!("Round trip of {SMALL} bytes among floods of the size (ns)"),
        name: "short_message".into(),
        columns,
        rows: seen.iter().filter_map(row).collect(),
    }
}

fn series(network: &str, results: &Results<Incast>) -> Vec<data::Series> {
    export::series_of(results, |contender, size| {
        let (ranks, what) = match contender {
            Incast::Flood(ranks) => (ranks, "flood"),
            Incast::Probe(ranks) => (ranks, "short-message"),
        };
        let (test, ranks) = (format!("incast-{what}"), Some(ranks as u64));
        data::Key { test, ranks, ..export::key(Test::Bandwidth, network, size) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_is_jains() {
        assert_eq!(jain(&[7, 7, 7]), Some(1.0));
        assert_eq!(jain(&[9, 0, 0]), Some(1.0 / 3.0));
        assert_eq!((jain(&[0, 0]), jain(&[])), (None, None));
        assert_eq!(extremes(&[5, 10, 15]), Some([0.5, 1.5]));
        assert_eq!(extremes(&[]), None);
    }
}
