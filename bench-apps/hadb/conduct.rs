//! The conductor: the first client begins the mixes, collects usage and measurements, and compares the results. The other clients
//! follow it.

use crate::drive::{Client, Measured};
use crate::failure::{HadbError, Result};
use crate::link::Link;
use crate::message::{Control, Usage};
use crate::options::{Mix, Options};
use crate::oracle::Oracle;
use crate::ranks::{SERVERS, Servers};
use crate::report::{MixReport, Report};
use crate::verdict::{Dump, Verdict};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use udeck_cli::progress;

/// The rank of the first client, which cannot be killed.
pub const LEADER: usize = SERVERS;
/// Longest wait for answers, beyond the time of a mix.
const PATIENCE: Duration = Duration::from_secs(120);

/// Runs a client other than the first one.
pub fn follow(link: Link, rank: usize, servers: Servers, options: &Options) -> Result<Link> {
    let mut client = Client::new(link, rank, servers, options);
    let until = Instant::now() + options.time * options.mixes().len() as u32 + PATIENCE;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(HadbError::Overdue {
                what: "orders of the first client".to_owned(),
                after: PATIENCE,
            });
        }
        let said = match client.receive_control(left)? {
            Some((_, Control::Begin { mix })) => {
                let mix = Mix::ALL[usize::from(mix).min(Mix::ALL.len() - 1)];
                match client.run(mix, options.time, |_| {}) {
                    Ok(measured) => Control::Measured(encode(&measured)?),
                    Err(HadbError::Check(why)) => Control::Failed(why),
                    Err(HadbError::Stopped) => return Ok(client.into_link()),
                    Err(other) => return Err(other),
                }
            }
            Some((_, Control::Recall)) => Control::Recalled(encode(&client.oracle)?),
            Some((_, Control::Quit)) => return Ok(client.into_link()),
            _ => continue,
        };
        client.send_control(LEADER, said)?;
    }
}

/// Runs the first client. At its end all other ranks have been told to quit, even after an error.
pub fn lead(link: Link, size: usize, servers: Servers, options: &Options) -> Result<(Report, Link)> {
    let mut client = Client::new(link, LEADER, servers, options);
    client.second_victim = options.second_victim();
    let mut leader = Leader { client, servers, options };
    let mut report = Report::new(options, servers, leader.client.link().description().to_owned());
    let conducted = leader.conduct(&mut report);
    let mut client = leader.client;
    for rank in (0..size).filter(|rank| *rank != LEADER) {
        client.send_control(rank, Control::Quit)?;
    }
    match conducted {
        Err(HadbError::Check(why)) => report.verdict.findings.push(why),
        Err(refused @ HadbError::Options(_)) => {
            // Nothing has failed: the other ranks read that the run is over.
            client.into_link().finish(None)?;
            return Err(refused);
        }
        other => other?,
    }
    Ok((report, client.into_link()))
}

struct Leader<'a> {
    client: Client,
    servers: Servers,
    options: &'a Options,
}

impl Leader<'_> {
    fn conduct(&mut self, report: &mut Report) -> Result {
        let whole = self.options.time * self.options.mixes().len() as u32;
        let bar = progress::bar(whole.as_millis() as u64, "running");
        for (nth, mix) in self.options.mixes().into_iter().enumerate() {
            let passed = self.options.time * nth as u32;
            bar.set_message(mix.name());
            let measured = self.mix(nth == 0, mix, |now| {
                bar.set_position((passed + now).as_millis() as u64);
            });
            report.mixes.push(measured?);
        }
        bar.finish_and_clear();
        self.check_kills(report)?;
        report.killed.clone_from(&self.client.dead);
        let mut oracles = vec![self.client.oracle.clone()];
        for (rank, said) in self.ask(self.other_clients(), Control::Recall, PATIENCE)? {
            let Control::Recalled(bytes) = said else { return Err(HadbError::BadMessage { from: rank }) };
            oracles.push(decode::<Oracle>(rank, &bytes)?);
        }
        let mut dumps = Vec::new();
        for (rank, said) in self.ask(self.servers.all().collect(), Control::Show, PATIENCE)? {
            let Control::Shown(dump) = said else { return Err(HadbError::BadMessage { from: rank }) };
            if let Some(bytes) = dump {
                dumps.push((rank, decode::<Dump>(rank, &bytes)?));
            }
        }
        report.verdict = Verdict::of(&oracles, &dumps);
        let victims = self.options.victims();
        for dead in report.killed.iter().filter(|dead| !victims.contains(dead)) {
            report.verdict.findings.push(format!("server {dead} has died unexpectedly"));
        }
        Ok(())
    }

    fn mix(&mut self, first: bool, mix: Mix, progress: impl FnMut(Duration)) -> Result<MixReport> {
        let before = self.usages()?;
        let number = mix as u8;
        for rank in self.other_clients() {
            self.client.send_control(rank, Control::Begin { mix: number })?;
        }
        if let Some(kill) = self.options.kill.filter(|_| first) {
            let after = kill.as_millis() as u64;
            self.client.send_control(usize::from(self.options.victim), Control::Die { after })?;
        }
        let mut measured = vec![self.client.run(mix, self.options.time, progress)?];
        let limit = self.options.time + PATIENCE;
        for (rank, said) in self.collect_answers(self.other_clients(), limit)? {
            let Control::Measured(bytes) = said else { return Err(HadbError::BadMessage { from: rank }) };
            measured.push(decode::<Measured>(rank, &bytes)?);
        }
        let after = self.usages()?;
        let used = after.iter().filter_map(|(rank, after)| Some((*rank, after.since(before.get(rank)?))));
        Ok(MixReport::new(mix, &measured, &used.collect()))
    }

    fn other_clients(&self) -> Vec<usize> {
        self.servers.clients().filter(|rank| *rank != LEADER).collect()
    }

    /// Usage of each living server and spare.
    fn usages(&mut self) -> Result<BTreeMap<usize, Usage>> {
        let mut usages = BTreeMap::new();
        for (rank, said) in self.ask(self.servers.all().collect(), Control::Ask, PATIENCE)? {
            let Control::Usage(usage) = said else { return Err(HadbError::BadMessage { from: rank }) };
            usages.insert(rank, usage);
        }
        Ok(usages)
    }

    fn ask(
        &mut self,
        ranks: Vec<usize>,
        control: Control,
        limit: Duration,
    ) -> Result<BTreeMap<usize, Control>> {
        for rank in &ranks {
            if !self.client.dead.contains(rank) {
                self.client.send_control(*rank, control.clone())?;
            }
        }
        self.collect_answers(ranks, limit)
    }

    /// Receives one answer from each living rank in `ranks`.
    fn collect_answers(&mut self, ranks: Vec<usize>, limit: Duration) -> Result<BTreeMap<usize, Control>> {
        let (mut heard, until) = (BTreeMap::new(), Instant::now() + limit);
        loop {
            let mut missing =
                ranks.iter().filter(|rank| !self.client.dead.contains(rank) && !heard.contains_key(*rank));
            let Some(first) = missing.next() else { return Ok(heard) };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(HadbError::Overdue { what: format!("an answer of rank {first}"), after: limit });
            }
            match self.client.receive_control(left)? {
                Some((rank, Control::Failed(why))) => {
                    return Err(HadbError::Check(format!("client {rank}: {why}")));
                }
                Some((rank, control)) => drop(heard.insert(rank, control)),
                None => {}
            }
        }
    }

    /// Refuses a run in which a server was not killed, or only when all transactions had ended: nothing shows that its death is
    /// survived.
    fn check_kills(&self, report: &Report) -> Result {
        if self.client.second_victim.is_some() && report.deaths_noticed() > 0 {
            let what =
                "--kill-again: no spare had the dead server's place when the run ended; say a longer --time";
            return Err(HadbError::Options(what.to_owned()));
        }
        self.options.check_kills(report.deaths_noticed()).map_err(HadbError::Options)
    }
}

fn encode<T: serde::Serialize>(value: &T) -> Result<Vec<u8>> {
    postcard::to_allocvec(value).map_err(|_| HadbError::BadMessage { from: LEADER })
}

fn decode<T: DeserializeOwned>(from: usize, bytes: &[u8]) -> Result<T> {
    postcard::from_bytes(bytes).map_err(|_| HadbError::BadMessage { from })
}
