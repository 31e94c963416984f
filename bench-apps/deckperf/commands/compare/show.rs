//! A comparison as text, CSV and JSON.

use serde_json::{Value, json};

use super::{Comparison, Row, effect, input::Source, verdict::Verdict};
use crate::{
    experiment::{
        plan::{Format, Payload},
        sizes,
    },
    named::Named,
    report::{
        aligned::{aligned, wrapped},
        table::three_digits,
    },
};

/// Renders comparisons one after the other; in JSON several are an array.
pub fn render_all(comparisons: &[Comparison], format: Format) -> String {
    let texts = || comparisons.iter().map(|comparison| render(comparison, format));
    match (format, comparisons) {
        (Format::Json, [_, _, ..]) => {
            format!("{:#}\n", Value::Array(comparisons.iter().map(document).collect()))
        }
        (Format::Csv, [_, _, ..]) => {
            let line_break = |text: &str| text.find('\n').map_or(0, |at| at + 1);
            let whole =
                |(at, text): (usize, String)| text[if at == 0 { 0 } else { line_break(&text) }..].to_owned();
            texts().enumerate().map(whole).collect()
        }
        _ => texts().collect::<Vec<_>>().join("\n"),
    }
}

/// Renders one comparison, with a line break at the end.
pub fn render(comparison: &Comparison, format: Format) -> String {
    match format {
        Format::Table => table(comparison),
        Format::Csv => csv(comparison),
        Format::Json => format!("{:#}\n", document(comparison)),
    }
}

fn table(comparison: &Comparison) -> String {
    let mut text = side("# a (base): ", &comparison.base) + &side("# b (new):  ", &comparison.new);
    for sentence in notes(comparison) {
        text += &wrapped("# Note:     ", "#           ", &sentence);
    }
    text += &wrapped("# Method:   ", "#           ", &method(comparison));
    let changed = |row: &&Row| comparison.all || matches!(row.verdict, Verdict::Slower | Verdict::Faster);
    // The mean of all figures of a test is shown in any case.
    let rows: Vec<&Row> = comparison.rows.iter().filter(|row| changed(row) || row.cell.figures > 1).collect();
    if !rows.is_empty() {
        text += "\n";
        text += &table_of(&rows);
    }
    text += "\n";
    text += &wrapped("# ", "# ", &summary(comparison));
    text
}

fn side(first: &str, sources: &[Source]) -> String {
    let of = |source: &Source| {
        let rounds = source.run.series.iter().map(|series| series.rounds.len()).max().unwrap_or(0);
        format!("{} (µDECK {}, {}, {rounds} rounds)", source.name, source.run.udeck, source.run.date)
    };
    let all = match sources {
        [first, _, .., last] => {
            format!("{} runs, from {} to {}", sources.len(), of(first), of(last))
        }
        few => few.iter().map(of).collect::<Vec<_>>().join(", "),
    };
    wrapped(first, "#           ", &all)
}

fn method(comparison: &Comparison) -> String {
    let pairs = comparison.base.len();
    let how = if pairs == comparison.new.len() && pairs >= effect::MIN_PAIRS {
        format!("{pairs} pairs of runs; how far a figure follows the limit is seen from the pairs")
    } else {
        "blocks of rounds; a change shows in absolute times and in multiples of the limit".to_owned()
    };
    format!(
        "b/a is the time of b over that of a, for rates too: over 1 is slower; bounds are 95 %; w+r: written and read. By {how}"
    )
}

/// Notes: verdicts that were overruled, runs that were left out, and the variation of the machine.
pub fn notes(comparison: &Comparison) -> impl Iterator<Item = String> {
    comparison.remarks.iter().cloned().chain(line_variation(comparison))
}

/// Sentences on the variation of the machine, if there was any.
fn line_variation(comparison: &Comparison) -> Vec<String> {
    /// Largest variation of the raw line, as a quotient, at which the machine counts as calm.
    const CALM: f64 = 1.3;
    let Some(line_variation) = &comparison.line_variation else { return Vec::new() };
    let ns = |micros: f64| format!("{:.0}", micros * 1e3);
    let mut said = Vec::new();
    let wildest =
        line_variation.runs.iter().max_by(|one, other| (one.2 / one.1).total_cmp(&(other.2 / other.1)));
    if let Some((name, low, high)) = wildest.filter(|(_, low, high)| high / low > CALM) {
        said.push(format!(
            "the raw line moved by x {} during {name}: from {} to {} ns",
            three_digits(high / low),
            ns(*low),
            ns(*high)
        ));
    }
    let between = (line_variation.new / line_variation.base).max(line_variation.base / line_variation.new);
    if between > CALM {
        said.push(format!(
            "the raw line took {} ns in a and {} ns in b: the machine itself changed by x {}",
            ns(line_variation.base),
            ns(line_variation.new),
            three_digits(between)
        ));
    }
    said
}

/// Most missing figures that the summary names.
const MISSING: usize = 4;

/// Summary of the comparison, in a few sentences.
fn summary(comparison: &Comparison) -> String {
    let single = || comparison.rows.iter().filter(|row| row.cell.figures == 1);
    let count = |verdict| single().filter(|row| row.verdict == verdict).count();
    let all = single().count();
    let (slower, noisy) = (count(Verdict::Slower), count(Verdict::TooNoisy));
    let mut text = format!(
        "Of {all} figures {slower} got slower, {} got faster, {} are the same within {}, {noisy} are too noisy to tell.",
        count(Verdict::Faster),
        count(Verdict::Same),
        percent(comparison.threshold),
    );
    if let missing @ [_, ..] = &comparison.missing[..] {
        let (named, others) = missing.split_at(missing.len().min(MISSING));
        let more = if others.is_empty() { "" } else { "; with --format json all of them" };
        text += &format!(" {} more are not in all runs: {}{more}.", missing.len(), named.join("; "));
    }
    if 2 * noisy > all {
        text += if comparison.base.len() >= effect::MIN_PAIRS {
            " More --pairs, or longer runs, tell more."
        } else {
            " `deckperf compare --run-a OLD --run-b NEW` runs both builds in turns, and tells more."
        };
    }
    text
}

fn percent(share: f64) -> String {
    format!("{} %", (share * 1e4).round() / 1e2)
}

const HEAD: [&str; 7] = ["# size", "figure", "a", "b", "b/a", "95 % bounds", "verdict"];

fn table_of(rows: &[&Row]) -> String {
    let head = HEAD.map(str::to_owned).to_vec();
    let lines: Vec<Vec<String>> = std::iter::once(head).chain(rows.iter().map(|row| shown(row))).collect();
    aligned(&lines, 2, |at| [0, 1, 6].contains(&at))
}

fn shown(row: &Row) -> Vec<String> {
    let key = &row.cell.key;
    let several = row.cell.figures > 1;
    let size = match key.size {
        _ if several => format!("all {}", row.cell.figures),
        Some(size) => usize::try_from(size).map_or(size.to_string(), sizes::show),
        None => "-".to_owned(),
    };
    let payload =
        key.payload.as_deref().filter(|payload| *payload == Payload::WrittenRead.name()).map(|_| "w+r");
    let figure = [Some(key.named()), key.protocol.clone(), payload.map(str::to_owned)];
    let median = |value: Option<f64>| {
        value.map_or("-".to_owned(), |value| format!("{} {}", three_digits(value), row.cell.unit))
    };
    let effect = row.effect.as_ref();
    vec![
        size,
        figure.into_iter().flatten().collect::<Vec<_>>().join(" "),
        median(row.cell.base_median),
        median(row.cell.new_median),
        effect.map_or("-".to_owned(), |effect| format!("{:.3}", effect.ratio)),
        effect.map_or("-".to_owned(), |effect| format!("{:.3} to {:.3}", effect.low, effect.high)),
        effect.map_or("too few".to_owned(), |_| row.verdict.name()),
    ]
}

/// Columns of the CSV behind the row's key: members of the row's JSON.
const FIGURES: [&str; 11] =
    ["unit", "a", "b", "ratio", "low_95", "high_95", "chance", "absolute", "relative", "limit", "verdict"];

/// CSV of every row, whatever its verdict.
fn csv(comparison: &Comparison) -> String {
    let mut text = format!("size,figures,test,protocol,payload,{}\n", FIGURES.join(","));
    for row in &comparison.rows {
        let (key, json) = (&row.cell.key, row_json(row));
        let figure = |name: &str| match &json[name] {
            Value::Number(number) => format!("{:.6}", number.as_f64().unwrap_or_default()),
            value => value.as_str().unwrap_or_default().to_owned(),
        };
        let names = [
            key.size.map_or(String::new(), |size| size.to_string()),
            row.cell.figures.to_string(),
            key.named(),
            key.protocol.clone().unwrap_or_default(),
            key.payload.clone().unwrap_or_default(),
        ];
        text += &[&names[..], &FIGURES.map(figure)].concat().join(",");
        text.push('\n');
    }
    text
}

fn document(comparison: &Comparison) -> Value {
    let names = |side: &[Source]| side.iter().map(|source| source.name.clone()).collect::<Vec<_>>();
    let rows: Vec<Value> = comparison.rows.iter().map(row_json).collect();
    let count = |verdict| comparison.rows.iter().filter(|row| row.verdict == verdict).count();
    json!({
        "a": names(&comparison.base),
        "b": names(&comparison.new),
        "threshold": comparison.threshold,
        "notes": notes(comparison).collect::<Vec<_>>(),
        "summary": summary(comparison),
        "slower": count(Verdict::Slower),
        "faster": count(Verdict::Faster),
        "same": count(Verdict::Same),
        "too_noisy": count(Verdict::TooNoisy),
        "not_in_all_runs": comparison.missing.len(),
        "left_out": comparison.missing,
        "rows": rows,
    })
}

fn row_json(row: &Row) -> Value {
    let effect = row.effect.as_ref();
    json!({
        "key": row.cell.key,
        "figures": row.cell.figures,
        "unit": row.cell.unit,
        "a": row.cell.base_median,
        "b": row.cell.new_median,
        "ratio": effect.map(|effect| effect.ratio),
        "low_95": effect.map(|effect| effect.low),
        "high_95": effect.map(|effect| effect.high),
        "chance": effect.map(|effect| effect.p_value),
        "absolute": effect.map(|effect| effect.absolute),
        "relative": effect.and_then(|effect| effect.relative),
        "limit": effect.and_then(|effect| effect.limit),
        "verdict": row.verdict.name(),
    })
}
