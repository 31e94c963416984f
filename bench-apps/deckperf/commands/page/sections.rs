//! Sections of the page: each heading with its body. All runs have the same parts; some have a table of their own.

use std::collections::BTreeMap;

use super::{
    charts::{self, Along, Chart, Drawn},
    evaluation, heat,
    html::{self, Cell, Table, escape},
    key_figures::{self, good},
    processor, show,
    source::{Compared, ComparedRow, Source},
};
use crate::{
    distinct::{distinct, grouped},
    report::data::{OURS, Series},
};

/// A heading and its body.
pub struct Section {
    /// Identifier, for links.
    pub id: String,
    /// Text of the heading.
    pub title: String,
    /// HTML of the body.
    pub body: String,
}

/// Sections of the whole page, with the thesis's figures first if it is about these. The charts of the bodies are added to
/// `charts`, and named there by their index.
pub fn all(sources: &[Source], is_evaluation: bool, charts: &mut Vec<Chart>) -> Vec<Section> {
    let figures = is_evaluation.then(|| evaluation::body(sources, charts)).flatten().map(|body| Section {
        id: "evaluation".into(),
        title: "DECK's evaluation, repeated".into(),
        body,
    });
    let mut sections: Vec<Section> = figures.into_iter().chain([summary(sources)]).collect();
    // The order is that of a reader's questions: µDECK, µDECK beside others, its costs, and the machines.
    let rank = |source: &&Source| match source.run.command.as_str() {
        "messages" => 0,
        "peers" => 2,
        "collectives" => 3,
        "cpu" => 4,
        _ => 5,
    };
    let mut ordered: Vec<&Source> = sources.iter().collect();
    ordered.sort_by_key(rank);
    let messages = ordered.iter().take_while(|source| rank(source) == 0).count();
    for (number, source) in ordered.iter().enumerate() {
        if number == messages {
            sections.extend(across_transports(&ordered[..messages], charts));
        }
        sections.push(of_run(source, number, charts));
    }
    if messages == ordered.len() {
        sections.extend(across_transports(&ordered, charts));
    }
    sections.push(machines(sources));
    sections
}

fn summary(sources: &[Source]) -> Section {
    let rows = key_figures::of(sources)
        .into_iter()
        .map(|key| [key.what, key.figure, key.bounds, key.beside].map(|text| Cell::text(&text)).to_vec());
    let heads = ["what", "#figure", "#95 % bounds", "beside something else"].map(str::to_owned).to_vec();
    let table = html::table(&Table { heads, rows: rows.collect() }, "key");
    let body = format!(
        "<p>A figure is the median over many rounds. All contenders take turns in every round, so that a slow moment of the \
         machine meets all of them alike. The bounds say where the median lies with 95 % certainty. <em>Untouched</em> data are \
         neither written nor read by the ranks; <em>written and read</em> data are written whole by the sender, and summed by the \
         receiver. A ratio under 1 is a shorter time, or a lower rate.</p>{table}"
    );
    Section { id: "summary".into(), title: "Key figures".into(), body }
}

/// Section of one run, with everything that its series show.
fn of_run(source: &Source, number: usize, charts: &mut Vec<Chart>) -> Section {
    let run = &source.run;
    let (pairs, rest): (Vec<&Series>, Vec<&Series>) =
        run.series.iter().partition(|series| heat::pair(&series.key).is_some());
    let Drawn { charts: mut curves, bars } = match run.command.as_str() {
        "cpu" => Drawn { charts: processor::charts(&rest), bars: Vec::new() },
        _ => charts::draw(&rest),
    };
    // A comparison has a table with all of its rows.
    let has_rows = !source.compared.rows.is_empty();
    let mut body = format!("<p>{}</p>", escape(description(&run.command)));
    if has_rows {
        body += &compared(&source.compared);
    }
    curves.sort_by_key(|chart| !chart.x.bytes);
    body += "<div class=\"grid\">";
    for chart in curves {
        body += &html::chart(&chart, charts.len());
        charts.push(chart);
    }
    body += "</div>";
    body += &heat::tables(&pairs).concat();
    if !has_rows {
        let html = bars.iter().map(html::bars).collect::<String>();
        body += &format!("<div class=\"grid\">{html}</div>");
    }
    body += &processor::tables(&source.costs);
    body += &copies(&run.series);
    Section { id: format!("run-{number}"), title: title(source), body }
}

fn title(source: &Source) -> String {
    let run = &source.run;
    let mut transports: Vec<&str> =
        run.series.iter().filter_map(|series| series.key.transport.as_deref()).collect();
    transports.sort_unstable();
    transports.dedup();
    let over = match transports[..] {
        [only] => format!(" over {only}"),
        _ => String::new(),
    } + if source.is_off_cache() { ", off the caches" } else { "" };
    let what = match run.command.as_str() {
        "messages" => "Messages",
        "peers" => "Beside other libraries",
        "collectives" => "Collective calls beside other libraries",
        "cpu" => "Processor time of a message",
        "matrix" => "From every rank to every rank",
        "vi" => "Virtual interfaces",
        "ft" => "NAS FT",
        "dat" => "uDAPL",
        other => return format!("{}{over}", show::capitalized(&other.replace('-', " "))),
    };
    format!("{what}{over}")
}

fn description(command: &str) -> &'static str {
    match command {
        "messages" => {
            "Two ranks, on a core each, by several protocols. The line is the median, the band around it has the \
             middle 80 % of the rounds. Dashed lines are what the machine itself needs. A hand-off moves no bytes: where data are \
             untouched, its bandwidth only says how many messages pass."
        }
        "peers" => {
            "The same work by other libraries, in the same rounds on the same cores. The table says for each goal whether it \
             is met: met or missed where both 95 % bounds of the ratio agree, inconclusive otherwise."
        }
        "collectives" => "Collective calls of groups of ranks, by other libraries in the same rounds.",
        "cpu" => {
            "What a message takes of the processor: at its sender and its receiver together, library threads included. Polling \
             keeps a core busy while nothing comes; blocking sleeps. An MPI only polls. Below the curves, user and system time \
             of both ends for each load, and for messages that come at a steady pace."
        }
        "matrix" => {
            "Each pair of ranks by itself. Pairs that share a core, a socket or a host are closer than others."
        }
        _ => "Everything that this run has measured.",
    }
}

/// Charts of the best protocol of each transport, where there are several transports.
fn across_transports(sources: &[&Source], charts: &mut Vec<Chart>) -> Option<Section> {
    let mut body = String::new();
    for (test, payload) in [
        ("latency", "untouched"),
        ("latency", "written+read"),
        ("bandwidth", "untouched"),
        ("bandwidth", "written+read"),
    ] {
        let cached = sources.iter().filter(|source| !source.is_off_cache());
        let series = cached.flat_map(|source| &source.run.series).filter(|series| {
            let key = &series.key;
            key.library == OURS && key.test == test && key.payload.as_deref() == Some(payload)
        });
        if let Some(chart) = best_by_transport(&series.collect::<Vec<_>>(), test, payload) {
            body += &html::chart(&chart, charts.len());
            charts.push(chart);
        }
    }
    (!body.is_empty()).then(|| Section {
        id: "transports".into(),
        title: "Transports side by side".into(),
        body: format!(
            "<p>Each line has the best protocol of its transport at each size. They were measured one after another, not in \
             the same rounds.</p><div class=\"grid\">{body}</div>"
        ),
    })
}

fn best_by_transport(series: &[&Series], test: &str, payload: &str) -> Option<Chart> {
    let measured = series.iter().filter(|one| one.key.size.is_some() && !one.figures().is_empty());
    let over = measured.filter_map(|one| Some((one.key.transport.clone()?, *one)));
    let mut lines = grouped(over);
    for (_, members) in &mut lines {
        let sizes = grouped(members.iter().map(|one| (one.key.size, *one)));
        *members = sizes.iter().filter_map(|(_, of)| of.iter().copied().min_by(|a, b| good(a, b))).collect();
    }
    let title = format!("{}, {}", show::test(test), show::payload(payload));
    charts::over(&title, &Along::Size, &lines).filter(|chart| chart.lines.len() > 1)
}

/// Table of the bytes that were copied for a message, by protocol and size.
fn copies(series: &[Series]) -> String {
    let mut sizes: Vec<u64> = Vec::new();
    let mut protocols: Vec<&str> = Vec::new();
    let mut cells: BTreeMap<(&str, u64), f64> = BTreeMap::new();
    for one in series {
        let (Some(copied), Some(protocol), Some(size)) =
            (one.copied_bytes_per_message, one.key.protocol.as_deref(), one.key.size)
        else {
            continue;
        };
        if !protocols.contains(&protocol) {
            protocols.push(protocol);
        }
        sizes.push(size);
        // The bytes are the same for both payload modes and both tests.
        cells.entry((protocol, size)).or_insert(copied);
    }
    sizes.sort_unstable();
    sizes.dedup();
    sizes.retain(|size| *size > 0);
    if cells.is_empty() || sizes.is_empty() {
        return String::new();
    }
    let rows = protocols.iter().map(|protocol| {
        let of = sizes.iter().map(|size| match cells.get(&(*protocol, *size)) {
            None => Cell::text("–"),
            Some(copied) => {
                let times = copied / *size as f64;
                let text = if times < 0.005 { "0".to_owned() } else { format!("{times:.2}") };
                let hint = format!("{} bytes copied for a message of {size}", show::figure(*copied));
                Cell::text(&text).hint(&hint)
            }
        });
        [Cell::text(protocol)].into_iter().chain(of).collect()
    });
    let heads = ["protocol".to_owned()]
        .into_iter()
        .chain(sizes.iter().map(|size| format!("#{}", show::bytes(*size))));
    let table = html::table(&Table { heads: heads.collect(), rows: rows.collect() }, "copies");
    format!(
        "<figure class=\"chart\"><h4>Copies of a message</h4><p class=\"sentence\">How often the library copies the bytes of a \
         message, on both sides together: 0 is no copy, 1 is one. Lower is better.</p>{table}</figure>"
    )
}

fn compared(compared: &Compared) -> String {
    let others = compared.rows.iter().flat_map(|row| &row.others).filter(|other| other.figure.is_some());
    let libraries = distinct(others.map(|other| other.name.as_str()));
    let heads = ["what".to_owned(), "#unit".into(), "#µDECK".into()]
        .into_iter()
        .chain(libraries.iter().map(|name| format!("#{name}")))
        .chain(["ours ÷ best peer".into(), "goals".into()]);
    let rows = compared.rows.iter().map(|row| {
        let unit = show::unit(&row.unit);
        let figures = libraries.iter().map(|name| {
            let other = row.others.iter().find(|other| other.name == *name);
            let figure = other.and_then(|other| other.figure);
            let best = row.best_peer.as_deref() == Some(*name);
            let cell = Cell::text(&show::maybe(figure));
            if best { cell.class("best").hint("the best peer in this row") } else { cell }
        });
        [Cell::text(&row.title), Cell::text(&unit), Cell::text(&show::maybe(row.ours)).class("ours")]
            .into_iter()
            .chain(figures)
            .chain([best_ratio(row), goals(row)])
            .collect()
    });
    let table = html::table(&Table { heads: heads.collect(), rows: rows.collect() }, "compared");
    let absent: Vec<&str> = compared.missing.iter().chain(&compared.failed).map(String::as_str).collect();
    let absent =
        if absent.is_empty() { String::new() } else { format!("<p>Not measured:</p>{}", html::list(absent)) };
    format!(
        "<figure class=\"chart\"><h4>Goals</h4><p class=\"sentence\">Times in µs: lower is better. Rates in M/s and GB/s: higher is \
         better. The best peer of each row is underlined.</p>{table}</figure>{absent}"
    )
}

fn best_ratio(row: &ComparedRow) -> Cell {
    let best = row.others.iter().find(|other| Some(&other.name) == row.best_peer.as_ref());
    match best.and_then(|best| best.ours_ratio) {
        None => Cell::text("–"),
        Some(ratio) => {
            let [value, low, high] = [ratio.value, ratio.low_95, ratio.high_95].map(show::figure);
            Cell::text(&format!("{value} ({low} to {high})")).class("number")
        }
    }
}

/// Cell with a verdict for each goal, in words and not by colour alone.
fn goals(row: &ComparedRow) -> Cell {
    let words = row.targets.iter().map(|target| {
        let wanted = target.wanted.replace("<=", "≤ ").replace(">=", "≥ ");
        let ratio = target.ratio.map_or(String::new(), |ratio| {
            let [value, low, high] = [ratio.value, ratio.low_95, ratio.high_95].map(show::figure);
            format!("{value} ({low} to {high}); ")
        });
        let sign = match target.verdict.as_str() {
            "met" => "✓",
            "missed" => "✗",
            _ => "?",
        };
        format!(
            "<span class=\"verdict {verdict}\" title=\"{ratio}goal {goal}\">{sign} {wanted} × {against}: {verdict}</span>",
            verdict = escape(&target.verdict),
            goal = escape(&target.goal),
            wanted = escape(&wanted),
            against = escape(&target.against),
        )
    });
    Cell::html(words.collect::<Vec<_>>().join("<br>"))
}

/// Section on the machine and the method of each run.
fn machines(sources: &[Source]) -> Section {
    let body = sources.iter().map(|source| {
        let run = &source.run;
        let text = |name: &str| match run.machine.get(name) {
            Some(serde_json::Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
            None => "unknown".to_owned(),
        };
        let rounds = run.series.iter().map(|series| series.rounds.len()).max().unwrap_or(0);
        let facts = [
            ("measured", run.date.clone()),
            ("processor", format!("{}, {} cores", text("cpu"), text("cores"))),
            ("system", text("kernel")),
            ("ranks", text("pinning")),
            ("transport", text("transport")),
            ("program", format!("µDECK {}, {}", run.udeck, text("build"))),
            ("figures", format!("{} series of up to {rounds} rounds", run.series.len())),
            ("from", source.name.clone()),
        ];
        let facts = facts.iter().map(|(name, fact)| format!("<dt>{name}</dt><dd>{}</dd>", escape(fact)));
        let method = html::list(run.method.iter().map(String::as_str));
        format!(
            "<article><h4>{}</h4><dl>{}</dl>{method}</article>",
            escape(&title(source)),
            facts.collect::<String>()
        )
    });
    let body = body.collect::<String>();
    Section {
        id: "method".into(),
        title: "Machine and method".into(),
        body: format!("<div class=\"grid\">{body}</div>"),
    }
}
