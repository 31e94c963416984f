//! What a user of a cluster would check before a job: is there everything on this host that a job needs, which transport
//! would be taken, and why is it no better one?
//!
//! [`examine`] looks, and [`Report`] is what it found, as data; as text it is what `deckrun --doctor` prints. Nothing is
//! changed and nothing sent; the NICs that a job would use are opened, and closed again. General facts come from `/proc`
//! and `/sys`, those of a transport's own through the registry, the choice from the code that every rank runs.

mod host;
mod limits;
pub(crate) mod memory;
pub(crate) mod network;
pub(crate) mod rdma;
mod text;
mod tree;
mod ways;

use std::net::IpAddr;

pub(crate) use self::tree::Tree;

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
    pub(crate) fn ok(subject: impl Into<String>, seen: impl Into<String>) -> Self {
        Finding { mark: Mark::Ok, subject: subject.into(), seen: seen.into(), remedy: None }
    }

    pub(crate) fn note(subject: impl Into<String>, seen: impl Into<String>) -> Self {
        Finding { mark: Mark::Note, ..Finding::ok(subject, seen) }
    }

    pub(crate) fn problem(
        subject: impl Into<String>,
        seen: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Finding { mark: Mark::Problem, remedy: Some(remedy.into()), ..Finding::ok(subject, seen) }
    }

    /// With something that would make it better.
    pub(crate) fn advise(self, remedy: impl Into<String>) -> Self {
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
    fn new(title: impl Into<String>, findings: Vec<Finding>) -> Self {
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

/// What is asked for besides the state of this host.
#[derive(Clone, Debug, Default)]
pub struct Question {
    /// The address of this host that a job would use towards others, or why there is none.
    pub interface: Option<Result<IpAddr, String>>,
    /// Whether the job would have ranks on other hosts.
    pub several_hosts: bool,
    /// `DECK_TRANSPORT`, unless it is in the environment.
    pub transports: Option<String>,
}

/// Looks at this host. Opens the NICs that a job would use; blocks for no longer than that takes.
pub fn examine(question: &Question) -> Report {
    let tree = Tree::system();
    let interfaces = udeck_sys::interfaces().unwrap_or_default();
    let ways = ways::find(question);
    let host = tree.read("proc/sys/kernel/hostname").unwrap_or_else(|| "this host".into());
    let mut sections = vec![
        Section::new(host.as_str(), host::findings(&tree)),
        Section::new("limits", limits::findings(&tree)),
        Section::new("network", network::findings(&tree, &interfaces, question.interface.as_ref())),
    ];
    sections.extend(ways::sections(&tree));
    sections.push(Section::new("what a job would use", ways.findings));
    Report { host, sections, can_run: ways.can_run }
}

impl Report {
    /// How many findings have this mark.
    pub fn count(&self, mark: Mark) -> usize {
        self.sections.iter().flat_map(|section| &section.findings).filter(|one| one.mark == mark).count()
    }
}
