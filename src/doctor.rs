//! Examination of a host for `deckrun --doctor`: is there all that a job needs, which transport would be taken,
//! and why is it no better one?
//!
//! [`examine`] returns a [`Report`] with the findings, as data; its text is the output of `deckrun --doctor`.
//! Nothing is changed and nothing sent; the NICs that a job would use are opened, and closed again. General
//! facts come from `/proc` and `/sys`, those of a transport through the registry, the choice from the code that
//! every rank runs.

pub(crate) mod finding;
mod host;
mod limits;
pub(crate) mod memory;
pub(crate) mod network;
pub(crate) mod rdma;
mod text;
mod transports;
pub(crate) mod tree;

pub use self::finding::{Finding, Mark, Question, Report, Section};

use self::tree::Tree;

/// Examines this host. Opens the NICs that a job would use; blocks for no longer than that takes.
pub fn examine(question: &Question) -> Report {
    let tree = Tree::system();
    let interfaces = udeck_sys::interfaces().unwrap_or_default();
    let transports = transports::find(question);
    let host = tree.read("proc/sys/kernel/hostname").unwrap_or_else(|| "this host".into());
    let mut sections = vec![
        Section::new(host.as_str(), host::findings(&tree, question.cgroup.as_ref())),
        Section::new("limits", limits::findings(&tree)),
        Section::new("network", network::findings(&tree, &interfaces, question.interface.as_ref())),
    ];
    sections.extend(transports::sections(&tree));
    sections.push(Section::new("what a job would use", transports.findings));
    Report { host, sections, can_run: transports.can_run }
}
