//! What the doctor is asked, and what it found, as data.

use std::{net::IpAddr, path::PathBuf};

/// How good a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mark {
    /// As it should be.
    Ok,
    /// Jobs run; it is worth knowing.
    Note,
    /// Something does not work, or badly; the finding says what to do.
    Problem,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How good it is.
    pub mark: Mark,
    /// What was looked at.
    pub subject: String,
    /// What was seen.
    pub seen: String,
    /// What to do about it; every problem has one.
    pub remedy: Option<String>,
}

impl Finding {
    /// As it should be.
    pub fn ok(subject: impl Into<String>, seen: impl Into<String>) -> Self {
        Finding { mark: Mark::Ok, subject: subject.into(), seen: seen.into(), remedy: None }
    }

    /// Worth knowing.
    pub fn note(subject: impl Into<String>, seen: impl Into<String>) -> Self {
        Finding { mark: Mark::Note, ..Finding::ok(subject, seen) }
    }

    /// Something does not work; `remedy` says what to do.
    pub fn problem(subject: impl Into<String>, seen: impl Into<String>, remedy: impl Into<String>) -> Self {
        Finding { mark: Mark::Problem, remedy: Some(remedy.into()), ..Finding::ok(subject, seen) }
    }

    /// With something that would make it better.
    pub fn advise(self, remedy: impl Into<String>) -> Self {
        Finding { remedy: Some(remedy.into()), ..self }
    }
}

/// Findings about one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Section {
    /// The topic.
    pub title: String,
    /// In the order in which they are worth reading.
    pub findings: Vec<Finding>,
}

impl Section {
    /// What was found about this topic.
    pub fn new(title: impl Into<String>, findings: Vec<Finding>) -> Self {
        Section { title: title.into(), findings }
    }
}

/// What was found on one host.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Its name.
    pub host: String,
    /// By topic.
    pub sections: Vec<Section>,
    /// Whether a job could run here: its ranks reach each other on this host, and if other hosts take part, those.
    pub can_run: bool,
}

impl Report {
    /// How many findings have this mark.
    pub fn count(&self, mark: Mark) -> usize {
        self.sections.iter().flat_map(|section| &section.findings).filter(|one| one.mark == mark).count()
    }
}

/// What is asked for besides the state of this host.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// The address of this host that a job would use towards others, or why there is none.
    pub interface: Option<Result<IpAddr, String>>,
    /// Whether the job would have ranks on other hosts.
    pub several_hosts: bool,
    /// `DECK_TRANSPORT`, unless it is in the environment.
    pub transports: Option<String>,
    /// Whether messages may leave a host encrypted only, although `DECK_ENCRYPT` is not in the environment.
    pub encrypt: bool,
    /// Below which cgroup the ranks get one of their own, by which all that they start is ended at once; or why they get none.
    pub cgroup: Option<Result<PathBuf, String>>,
}
