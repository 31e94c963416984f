//! `deckqos admit`: connections over a network, one after another, and the answer to each.

use crate::options::AdmitFormat;
use serde_json::{Value, json};
use std::{path::Path, time::Duration};
use udeck_cli::{
    Problem,
    columns::{lines, row},
};
use udeck_fabric::admission::{self, Answer, Answers, Plan};
use udeck_qos::{
    planner::Bits,
    route::{Hop, Offer, Refused},
    table::ENTRIES,
};

/// Admits the connections of a file, and formats the answers.
pub fn admit(text: &str, folder: &Path, format: AdmitFormat) -> Result<String, Problem> {
    let plan = admission::read(text, folder)?;
    let answers = plan.admit();
    Ok(match format {
        AdmitFormat::Text => report(&plan, &answers),
        AdmitFormat::Json => format!("{:#}\n", to_json(&plan, &answers)),
        AdmitFormat::Toml => plan.admitted_file(&answers),
    })
}

/// Name of a port: its node, and the node at the other end.
fn port(plan: &Plan, (node, port): (usize, usize)) -> String {
    let peer =
        plan.network.peers(node)[port].map_or_else(String::new, |peer| plan.network.node_name(peer.node));
    format!("{} → {peer}", plan.network.node_name(node))
}

/// Table entries of an admitted connection at a hop: how many, the first one, and their distance.
fn entries(answers: &Answers, answer: &Answer, at: usize) -> Vec<usize> {
    let id = answer.result.as_ref().ok().map(|admitted| admitted.ids[at]);
    let planner = answers.admission.planner(answer.route[at].port);
    planner.zip(id).map(|(planner, id)| planner.entries(id)).unwrap_or_default()
}

/// Formats the upper bound of a time with one decimal, rounded up.
fn up_to(bound: Duration) -> String {
    let step = match bound.as_nanos() {
        0..1000 => 1,
        1000..1_000_000 => 100,
        1_000_000..1_000_000_000 => 100_000,
        _ => 100_000_000,
    };
    let nanos = bound.as_nanos().next_multiple_of(step);
    format!("{:.1?}", Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
}

fn report(plan: &Plan, answers: &Answers) -> String {
    let link = plan.file.link.port();
    let admitted = answers.admitted().count();
    let mut text = format!(
        "{}, {} hosts; links of {}, MTU {}, up to {} % promised\n{admitted} of {} connections are admitted{}\n\n",
        plan.network.name,
        plan.network.hosts(),
        Bits(link.rate),
        link.mtu,
        link.cap,
        answers.answers.len(),
        if plan.file.fill.is_some() { "; refused random ones are not counted" } else { "" },
    );
    for (nth, answer) in (1..).zip(&answers.answers) {
        text += &connection(plan, answers, nth, answer);
    }
    text
}

/// Formats an answer: a line for the connection, and one for each hop or for the refusal.
fn connection(plan: &Plan, answers: &Answers, nth: usize, answer: &Answer) -> String {
    let request = &answer.request;
    let (from, to) = (plan.host_name(request.from), plan.host_name(request.to));
    let deadline = request.demand.deadline.map_or_else(String::new, |asked| format!(" within {asked:?}"));
    let head = format!("{nth}: {from} to {to}, {}{deadline}", Bits(request.demand.bandwidth));
    match &answer.result {
        Ok(admitted) => {
            let hop = |(at, hop): (usize, &Hop)| {
                let entries = entries(answers, answer, at);
                let first = entries.first().copied().unwrap_or(0);
                let distance = admitted.distances[at];
                let apart = ENTRIES / entries.len().max(1);
                let all = format!("{} entries from {first}, {apart} apart", entries.len());
                row([
                    "",
                    &port(plan, hop.port),
                    &all,
                    &up_to(hop.node.longest(plan.file.link.port(), distance)),
                ])
            };
            let rows: Vec<_> = answer.route.iter().enumerate().map(hop).collect();
            let bound = up_to(admitted.delay);
            format!(
                "{head}: level {}, at most {bound} from its host's buffer on\n{}",
                admitted.vl,
                lines(&rows)
            )
        }
        Err((refused, offer)) => {
            let at = port(plan, answer.route[refused.hop].port);
            format!("{head}: REFUSED at {at}: {}\n  {}\n", refused.reason, offered(*offer))
        }
    }
}

fn offered(offer: Offer) -> String {
    // Bits are shown in three decimals, which must not be more than what is offered.
    let shown = |bits: u64| {
        Bits(match bits {
            1_000_000_000.. => bits / 1_000_000 * 1_000_000,
            1_000_000.. => bits / 1000 * 1000,
            _ => bits,
        })
    };
    let bandwidth = offer.bandwidth.map(|bits| format!("up to {}", shown(bits)));
    let deadline = offer.deadline.map(|deadline| format!("within {deadline:?} or more"));
    match [bandwidth, deadline].into_iter().flatten().collect::<Vec<_>>().join(", or ") {
        none if none.is_empty() => "nothing would be admitted before another connection ends".into(),
        some => format!("would be admitted: {some}"),
    }
}

fn to_json(plan: &Plan, answers: &Answers) -> Value {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let connections = answers.answers.iter().map(|answer| {
        let request = &answer.request;
        let mut value = json!({
            "from": plan.host_name(request.from), "to": plan.host_name(request.to),
            "bandwidth_bits_per_s": request.demand.bandwidth, "deadline_ns": request.demand.deadline.map(nanos),
            "admitted": answer.result.is_ok(),
        });
        match &answer.result {
            Ok(admitted) => {
                value["sl"] = admitted.vl.into();
                value["delay_ns"] = nanos(admitted.delay).into();
                let hops = answer.route.iter().enumerate().map(|(at, hop)| {
                    let distance = admitted.distances[at];
                    json!({
                        "port": port(plan, hop.port), "entries": entries(answers, answer, at), "distance": distance,
                        "longest_ns": nanos(hop.node.longest(plan.file.link.port(), distance)),
                    })
                });
                value["hops"] = hops.collect();
            }
            Err((Refused { hop, reason }, offer)) => {
                value["refused_at"] = port(plan, answer.route[*hop].port).into();
                value["reason"] = reason.to_string().into();
                value["offer_bandwidth_bits_per_s"] = offer.bandwidth.into();
                value["offer_deadline_ns"] = offer.deadline.map(nanos).into();
            }
        }
        value
    });
    let tables = answers.admission.planners().map(|(at, planner)| {
        let entries = planner.table();
        let entries = entries.iter().map(|entry| json!([entry.vl, entry.weight]));
        json!({
            "port": port(plan, at), "promised_bits_per_s": planner.promised(), "free_entries": planner.free(),
            "high": entries.collect::<Value>(),
        })
    });
    json!({
        "network": plan.network.name, "connections": connections.collect::<Value>(), "tables": tables.collect::<Value>(),
    })
}
