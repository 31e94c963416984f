//! The transport that a job would take, within this host and to others: chosen as every rank chooses, and
//! opened as it does.

use udeck_deck::{Config, SkippedTransport};
use udeck_via::Nic;

use super::{
    finding::{Finding, Question, Section},
    tree::Tree,
};
use crate::{
    init::{
        choose::{Places, Relation, Wanted, choose, why_not},
        open_all,
    },
    registry::{NicOptions, TRANSPORTS},
};

pub(super) struct Transports {
    pub findings: Vec<Finding>,
    pub can_run: bool,
}

/// Returns each transport's own findings.
pub(super) fn sections(tree: &Tree) -> Vec<Section> {
    TRANSPORTS
        .iter()
        .map(|transport| Section::new(transport.name, (transport.describe)(tree)))
        .filter(|section| !section.findings.is_empty())
        .collect()
}

pub(super) fn find(question: &Question) -> Transports {
    let config = match Config::from_env() {
        Ok(config) => config,
        Err(error) => {
            let finding = Finding::problem("settings", error.to_string(), "correct or unset that variable");
            return Transports { findings: vec![finding], can_run: false };
        }
    };
    let transports = question.transports.as_deref().or(config.transport.as_deref());
    let wanted = Wanted { transports, encrypt: question.encrypt || config.encrypt };
    let mut options = NicOptions::new([0; 32]);
    (options.arena, options.trusting, options.detect) = (config.arena, config.trusting, config.detect);
    let (within, within_works) = transport_for(Relation::SameHost, question, wanted, &options);
    let (beyond, beyond_works) = transport_for(Relation::OtherHost, question, wanted, &options);
    let mut findings = vec![within, beyond];
    if let Some(wanted) = wanted.transports {
        findings.insert(0, Finding::ok("asked for", format!("{wanted} only (--transport, DECK_TRANSPORT)")));
    }
    Transports { findings, can_run: within_works && (beyond_works || !question.several_hosts) }
}

/// Returns the finding on the transport between two ranks in this relation, and whether one leads there.
fn transport_for(
    relation: Relation,
    question: &Question,
    wanted: Wanted<'_>,
    options: &NicOptions,
) -> (Finding, bool) {
    let (subject, hosts): (_, &[u32]) = match relation {
        Relation::SameHost => ("same host", &[0, 0]),
        Relation::OtherHost => ("other hosts", &[0, 1]),
    };
    let interface = question.interface.as_ref().and_then(|address| address.as_ref().ok()).copied();
    let places = Places { rank: 0, hosts, interface };
    let openings = match choose(&places, wanted, TRANSPORTS) {
        Ok(openings) => openings,
        Err(error) => {
            let finding =
                Finding::problem(subject, error.to_string(), "correct --transport or DECK_TRANSPORT");
            return (finding, false);
        }
    };
    let (nics, unavailable) = match open_all(&openings, options.clone()) {
        Ok(opened) => opened,
        Err(error) => {
            let error = error.to_string();
            // A name with `DECK_` in the error is a variable that the user has set.
            let advice = match error.contains("DECK_") {
                true => "correct or unset that variable; --transport shm, tcp or udp takes another one",
                false => "see above for what is missing; --transport shm, tcp or udp takes another one",
            };
            return (Finding::problem(subject, error, advice), false);
        }
    };
    let unavailable: Vec<SkippedTransport> = unavailable.into_iter().map(|(_, skipped)| skipped).collect();
    // A postbox also takes the first NIC that leads there.
    let leads = |nic: &&Nic| {
        let attributes = nic.attributes();
        relation == Relation::SameHost || !attributes.host_only && (attributes.encrypted || !wanted.encrypt)
    };
    let Some(nic) = nics.iter().find(leads) else {
        let finding = Finding::problem(subject, "none of them reaches another host", "--transport shm,tcp");
        return (finding, false);
    };
    let taken = nic.attributes().name.trim_end_matches(|last: char| last.is_ascii_digit());
    let why = match wanted.transports {
        Some(_) => String::new(),
        None => reasons(relation, taken, wanted.encrypt, &unavailable),
    };
    (Finding::ok(subject, format!("{taken}{}{why}", device_of(nic, taken))), true)
}

/// Describes a NIC: its address, if people can read it, and the device that it uses.
fn device_of(nic: &Nic, transport: &str) -> String {
    let attributes = nic.attributes();
    match std::str::from_utf8(&attributes.address) {
        Ok(address) if !attributes.host_only => {
            let host = address.rsplit_once(':').map_or(address, |(host, _port)| host);
            let at = host.trim_matches(['[', ']']).parse();
            let row = TRANSPORTS.iter().find(|row| row.name == transport);
            let uses = row.zip(at.ok()).and_then(|(row, at)| (row.device_at)(at));
            format!(" at {host}{}", uses.map_or_else(String::new, |uses| format!(": {uses}")))
        }
        _ => String::new(),
    }
}

/// Returns why the transport is no better one.
fn reasons(relation: Relation, taken: &str, encrypt: bool, unavailable: &[SkippedTransport]) -> String {
    let better = TRANSPORTS.iter().take_while(|transport| transport.name != taken);
    let reasons: Vec<_> = better
        .filter_map(|transport| {
            let absent = unavailable.iter().find(|skipped| skipped.transport == transport.name);
            let why = why_not(transport, relation, encrypt).or(absent.map(|skipped| &skipped.why[..]))?;
            Some(format!("{}: {why}", transport.name))
        })
        .collect();
    match reasons.len() {
        0 => String::new(),
        _ => format!(" ({})", reasons.join("; ")),
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::doctor::Mark;

    fn of(transports: Option<&str>) -> Transports {
        find(&beyond(transports))
    }

    /// Makes the question for a job of several hosts.
    fn beyond(transports: Option<&str>) -> Question {
        let interface = Some(Ok(IpAddr::from([127, 0, 0, 1])));
        let transports = transports.map(str::to_owned);
        Question { interface, several_hosts: true, transports, ..Question::default() }
    }

    #[test]
    fn what_is_to_be_encrypted_is_looked_for_among_what_encrypts() {
        let encrypted = |transports| find(&Question { encrypt: true, ..beyond(transports) });
        let text = |found: &Transports| format!("{:?}", found.findings);
        let found = encrypted(None);
        assert!(found.can_run && text(&found).contains("not encrypted"), "{}", text(&found));
        assert!(!text(&of(None)).contains("not encrypted"));
        assert!(!encrypted(Some("tcp")).can_run && of(Some("tcp")).can_run);
    }

    #[test]
    fn a_job_would_take_what_ranks_take() {
        let Transports { findings, can_run } = of(None);
        assert!(can_run);
        let state: Vec<_> = findings.iter().map(|one| (one.mark, &one.subject[..], &one.state[..])).collect();
        assert_eq!(state[0], (Mark::Ok, "same host", "shm"));
        let (mark, subject, beyond) = state[1];
        assert_eq!((mark, subject), (Mark::Ok, "other hosts"));
        // A host without an RDMA device reports why verbs is not taken; a host with one takes it.
        let found =
            ["tcp at 127.0.0.1 (shm: it reaches ranks of its own host only; verbs: ", "verbs at 127.0.0.1: "];
        assert!(found.iter().any(|way| beyond.starts_with(way)), "{beyond}");
    }

    #[test]
    fn what_was_asked_for_is_what_counts() {
        let Transports { findings, can_run } = of(Some("udp"));
        assert!(can_run && findings[1].state == "udp at 127.0.0.1" && findings[2].state == findings[1].state);
        let Transports { findings, can_run } = of(Some("shm"));
        assert!(
            !can_run && findings[1].mark == Mark::Ok && findings[2].mark == Mark::Problem,
            "{findings:?}"
        );
        let Transports { findings, can_run } = of(Some("pigeon"));
        assert!(!can_run && findings[1].state.contains("there are: shm, verbs, tcp, udp"), "{findings:?}");
    }

    #[test]
    fn an_address_that_is_not_ours_is_a_problem() {
        let interface = Some(Ok(IpAddr::from([203, 0, 113, 1])));
        let question = Question { interface, ..Question::default() };
        let found = find(&question);
        assert_eq!(found.findings.iter().map(|one| one.mark).collect::<Vec<_>>(), [Mark::Ok, Mark::Problem]);
        assert!(found.can_run, "on this host");
        assert!(!find(&Question { several_hosts: true, ..question }).can_run);
    }

    #[test]
    fn every_transport_may_say_what_it_needs() {
        let titles: Vec<_> = sections(&Tree::system()).into_iter().map(|section| section.title).collect();
        assert_eq!(titles, ["shm", "verbs", "tcp", "udp"]);
    }
}
