//! The doctor's question and findings, as data.

use std::{net::IpAddr, path::PathBuf};

/// Grade of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mark {
    /// The state is as it should be.
    Ok,
    /// Jobs run; the state is worth knowing.
    Note,
    /// Something does not work, or badly; the finding has a remedy.
    Problem,
}

/// One examined subject.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The grade.
    pub mark: Mark,
    /// The subject.
    pub subject: String,
    /// The state that was found.
    pub state: String,
    /// Advice for the user; every problem has one.
    pub remedy: Option<String>,
}

impl Finding {
    /// Makes a finding that is as it should be.
    pub fn ok(subject: impl Into<String>, state: impl Into<String>) -> Self {
        Finding { mark: Mark::Ok, subject: subject.into(), state: state.into(), remedy: None }
    }

    /// Makes a finding that is worth knowing.
    pub fn note(subject: impl Into<String>, state: impl Into<String>) -> Self {
        Finding { mark: Mark::Note, ..Finding::ok(subject, state) }
    }

    /// Makes a finding that something does not work; `remedy` is the advice.
    pub fn problem(subject: impl Into<String>, state: impl Into<String>, remedy: impl Into<String>) -> Self {
        Finding { mark: Mark::Problem, remedy: Some(remedy.into()), ..Finding::ok(subject, state) }
    }

    /// Adds advice that would improve the state.
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
    /// The findings, in the order in which they are worth reading.
    pub findings: Vec<Finding>,
}

impl Section {
    /// Makes the section of a topic.
    pub fn new(title: impl Into<String>, findings: Vec<Finding>) -> Self {
        Section { title: title.into(), findings }
    }
}

/// The findings on one host.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The host's name.
    pub host: String,
    /// Findings by topic.
    pub sections: Vec<Section>,
    /// Whether a job could run here: its ranks reach each other on this host and, if other hosts take part, on
    /// them.
    pub can_run: bool,
}

impl Report {
    /// Returns the number of findings with this mark.
    pub fn count(&self, mark: Mark) -> usize {
        self.sections.iter().flat_map(|section| &section.findings).filter(|one| one.mark == mark).count()
    }
}

/// Settings of the job that is examined.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// The address of this host that a job would use towards others, or the reason why there is none.
    pub interface: Option<Result<IpAddr, String>>,
    /// Whether the job would have ranks on other hosts.
    pub several_hosts: bool,
    /// The value of `DECK_TRANSPORT`, if it is not in the environment.
    pub transports: Option<String>,
    /// Whether messages may leave a host encrypted only, even if `DECK_ENCRYPT` is not in the environment.
    pub encrypt: bool,
    /// The cgroup below which the ranks get one of their own, or the reason why they get none. The ranks'
    /// cgroup ends all their processes at once.
    pub cgroup: Option<Result<PathBuf, String>>,
}
