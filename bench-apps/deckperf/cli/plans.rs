//! Plans from options: fills in defaults, and refuses options that exclude each other.

use std::{path::PathBuf, time::Duration};

use clap::ValueEnum;
use udeck::Protocol;

use super::options::{Layer, Memory, Options, PayloadChoice, parse_transport};
use super::{Task, conflict};
use crate::experiment::plan::{Checks, PROTOCOLS, Pace, Payload, Plan, TRANSPORTS, Test};
use crate::{
    commands::{clones, costs, cpu, ft, jobs, overlap, page, peers, registration, vi},
    distinct::distinct,
    experiment::sizes,
    named::Named,
};

impl Options {
    pub(super) fn measurement(self, tests: Vec<Test>, overview: bool) -> Result<Task, clap::Error> {
        let task = match self.layer {
            Layer::Mailbox => return Ok(Task::Measure(self.plan(tests, overview))),
            Layer::Vi => Task::MeasureVi,
            Layer::Dat => Task::MeasureDat,
        };
        self.check_layer()?;
        Ok(task(self.plan(tests, false)))
    }

    pub(super) fn one_way(self, test: Test, memory: Memory) -> Result<Task, clap::Error> {
        if memory.off_cache && (self.layer != Layer::Mailbox || self.stats) {
            return Err(conflict("--off-cache is about messages of a mailbox, and about times"));
        }
        let task = self.measurement(vec![test], false)?;
        Ok(match task {
            Task::Measure(plan) => Task::Measure(Plan { off_cache: memory.off_cache, ..plan }),
            other => other,
        })
    }

    pub(super) fn bibandwidth(self) -> Result<Task, clap::Error> {
        if self.protocol.contains(&Protocol::Handshake) {
            return Err(conflict(
                "bibandwidth: two ranks that both wait for the other to retrieve (handshake) wait for ever",
            ));
        }
        self.measurement(vec![Test::BiBandwidth], false)
    }

    pub(super) fn percentiles(self, memory: Memory) -> Result<Task, clap::Error> {
        if self.layer != Layer::Mailbox || self.stats {
            return Err(conflict("--percentiles is about messages of a mailbox, and about times"));
        }
        Ok(Task::Measure(Plan {
            percentiles: true,
            off_cache: memory.off_cache,
            ..self.plan(vec![Test::Latency], false)
        }))
    }

    pub(super) fn jobs(self, kind: jobs::Kind) -> Result<Task, clap::Error> {
        let name = kind.name();
        let protocol = match self.protocol[..] {
            [] => Protocol::Auto,
            [protocol] => protocol,
            _ => return Err(conflict(&format!("`{name}` measures one --protocol at a time"))),
        };
        let sizes = if self.sizes.is_empty() { Vec::new() } else { self.sizes_or(&[]) };
        if matches!(kind, jobs::Kind::Incast(_)) && sizes[..] == [0] {
            return Err(conflict("`incast` cannot count empty messages: name other --sizes"));
        }
        let pace = self.pace(16);
        Ok(Task::Jobs(jobs::JobsPlan { kind, protocol, sizes, pace, format: self.format, pin: !self.no_pin }))
    }

    pub(super) fn registration(self) -> Result<registration::RegistrationPlan, clap::Error> {
        let sizes = self.sizes_or(&registration::SIZES);
        if sizes.contains(&0) {
            return Err(conflict("`registration`: there is no memory of 0 bytes to register"));
        }
        let pace = Pace { window: 1, ..self.pace(16) };
        Ok(registration::RegistrationPlan { sizes, pace, format: self.format, pin: !self.no_pin })
    }

    /// Refuses options that only the layer of mailboxes has.
    fn check_layer(&self) -> Result<(), clap::Error> {
        let layer = self.layer.name();
        if !self.protocol.is_empty() {
            let what = format!("--protocol is how mailboxes send; --layer {layer} takes every transfer");
            return Err(conflict(&what));
        }
        if self.payload == PayloadChoice::WrittenRead {
            return Err(conflict(&format!("--layer {layer} leaves the payload untouched")));
        }
        Ok(())
    }

    pub(super) fn layer_checks(self) -> Result<Checks, clap::Error> {
        self.check_layer()?;
        Ok(self.checks())
    }

    pub(super) fn peers_plan(self, folder: Option<PathBuf>) -> peers::PeersPlan {
        let setting = self.setting();
        self.comparison(setting, setting.job_sizes(), folder)
    }

    pub(super) fn collectives_plan(
        self,
        folder: Option<PathBuf>,
        ranks: Vec<usize>,
    ) -> Result<peers::PeersPlan, clap::Error> {
        if self.setting() != peers::Setting::Memory {
            return Err(conflict("`collectives` compares ranks that share memory (--transport shm)"));
        }
        let setting = peers::Setting::Groups;
        let asked = |size: &usize| ranks.is_empty() || ranks.contains(size);
        Ok(self.comparison(setting, setting.job_sizes().into_iter().filter(asked).collect(), folder))
    }

    pub(super) fn cpu_plan(
        self,
        folder: Option<PathBuf>,
        form: cpu::Form,
        depths: Vec<u64>,
        rate: u64,
        kinds: Vec<cpu::Kind>,
    ) -> Result<cpu::CpuPlan, clap::Error> {
        let mut sizes = self.sizes_or(&cpu::SIZES);
        sizes.retain(|&size| size > 0);
        if sizes.is_empty() {
            return Err(conflict("`cpu` needs messages that have bytes, such as --sizes 100,4K"));
        }
        let kinds = if kinds.is_empty() { form.kinds() } else { kinds };
        let depths = if depths.is_empty() { form.depths() } else { depths };
        let is_in = |kind: &cpu::Kind| kinds.contains(kind);
        Ok(cpu::CpuPlan {
            sizes,
            depths: distinct(depths),
            rate: form.rate(rate),
            waitings: form.waitings(),
            form,
            payload: if self.payload == PayloadChoice::Untouched {
                Payload::Untouched
            } else {
                Payload::WrittenRead
            },
            kinds: cpu::Kind::value_variants().iter().copied().filter(is_in).collect(),
            iterations: self.iterations,
            time: self.time_or(cpu::SECONDS),
            format: self.format,
            folder,
        })
    }

    /// Plan of `ft`. `variable`: value of `DECK_TRANSPORT`, which decides where no option does.
    pub(super) fn ft_plan(
        self,
        class: ft::Class,
        ranks: Vec<usize>,
        variable: Option<String>,
    ) -> Result<ft::FtPlan, clap::Error> {
        let only = match (self.transport, variable) {
            (None, Some(name)) => Some(parse_transport(&name).map_err(|why| {
                conflict(&format!(
                    "DECK_TRANSPORT={name}: `ft` takes one name there ({why}); unset it to play several"
                ))
            })?),
            (option, _) => option,
        };
        Ok(ft::FtPlan {
            class,
            ranks: ranks.into_iter().map(|ranks| ranks as u32).collect(),
            transports: only.map_or(TRANSPORTS.to_vec(), |only| vec![only]),
            protocols: self.protocols_or(&ft::PROTOCOLS),
            time: self.time_or(ft::SECONDS),
            format: self.format,
        })
    }

    pub(super) fn comparison(
        &self,
        setting: peers::Setting,
        sizes: Vec<usize>,
        folder: Option<PathBuf>,
    ) -> peers::PeersPlan {
        let time = self.time_or(peers::SECONDS);
        peers::PeersPlan { time, format: self.format, setting, sizes, folder }
    }

    pub(super) fn page_plan(
        self,
        quick: bool,
        is_evaluation: bool,
        peers: Option<PathBuf>,
        files: Vec<PathBuf>,
    ) -> Result<page::PagePlan, clap::Error> {
        let only_measured = self.time.is_some() || self.transport.is_some();
        if only_measured && !files.is_empty() {
            return Err(conflict("--time and --transport are for measuring now; files have been measured"));
        }
        if quick && self.time.is_some() {
            return Err(conflict("--quick is a --time: name one of them"));
        }
        let time = self.time_or(match (quick, is_evaluation) {
            (true, _) => page::QUICK,
            (false, true) => page::EVALUATION,
            (false, false) => page::SECONDS,
        });
        let measure = page::Measure { time, transport: self.transport, peers, pin: !self.no_pin };
        Ok(page::PagePlan { output: PathBuf::new(), json: None, files, is_evaluation, measure })
    }

    /// Time, or so many seconds, and portions of the measurement.
    fn pace(&self, seconds: u64) -> Pace {
        Pace { iterations: self.iterations, time: self.time_or(seconds), window: self.window }
    }

    pub(super) fn plan(self, tests: Vec<Test>, overview: bool) -> Plan {
        let offset = isize::from(self.perturb.unwrap_or(0));
        let has_counts = self.layer == Layer::Vi && tests.contains(&Test::Latency);
        Plan {
            tests,
            protocols: self.protocols_or(if self.stats { &PROTOCOLS } else { &PROTOCOLS[..4] }),
            sizes: sizes::perturbed(self.sizes_or_default(), [-offset, 0, offset].into_iter()),
            payloads: match self.payload {
                PayloadChoice::Untouched => vec![Payload::Untouched],
                PayloadChoice::WrittenRead => vec![Payload::WrittenRead],
                PayloadChoice::Both if self.stats => vec![Payload::Untouched],
                PayloadChoice::Both => vec![Payload::Untouched, Payload::WrittenRead],
            },
            vi_counts: if has_counts { vi::COUNTS.to_vec() } else { Vec::new() },
            pace: self.pace(if self.stats { 4 } else { 24 }),
            format: self.format,
            pin: !self.no_pin,
            stats: self.stats,
            overview: overview && !self.stats,
            handicap: self.handicap,
            percentiles: false,
            off_cache: false,
        }
    }

    pub(super) fn overlap(self, compute: Option<u64>) -> overlap::OverlapPlan {
        overlap::OverlapPlan {
            protocols: self.protocols_or(&PROTOCOLS),
            sizes: self.sizes_or(&overlap::SIZES),
            compute: compute.map(Duration::from_micros),
            iterations: self.iterations,
            time: self.time_or(24),
            format: self.format,
            pin: !self.no_pin,
        }
    }

    pub(super) fn clones(self, flooding: usize, counts: Vec<usize>, stream: bool) -> clones::ClonesPlan {
        clones::ClonesPlan {
            counts,
            busy_sizes: self.sizes_or(&clones::BUSY_SIZES),
            stream,
            pace: self.pace(16),
            flooding,
            each: clones::EACH,
            sizes: self.sizes_or(&clones::SIZES),
            format: self.format,
            pin: !self.no_pin,
        }
    }

    pub(super) fn costs(self, ranks: u32, connections: usize) -> costs::CostsPlan {
        costs::CostsPlan {
            batch: costs::BATCH,
            connections,
            blocked: self.time_or(10),
            ranks,
            format: self.format,
            pin: !self.no_pin,
        }
    }

    pub(super) fn checks(self) -> Checks {
        let offset = isize::from(self.perturb.unwrap_or(3));
        Checks {
            protocols: self.protocols_or(&PROTOCOLS),
            sizes: sizes::perturbed(self.sizes_or_default(), -offset..=offset),
            pin: !self.no_pin,
        }
    }
}
