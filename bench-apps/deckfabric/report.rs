//! Reports of a scenario's runs.

use crate::{
    input::Scenario,
    options::Format,
    run::{ClassPoint, Outcome, Point},
};
use serde_json::{Value, json};
use udeck_cli::columns::{lines, row};

/// Formats the outcome in the requested format.
pub fn print(scenario: &Scenario, outcome: &Outcome, format: Format) -> String {
    match format {
        Format::Text => text(scenario, outcome),
        Format::Json => format!("{:#}\n", to_json(scenario, outcome)),
        Format::Csv => csv(outcome),
    }
}

/// Formats the outcome as text: times in cycles, throughput in flits per cycle and sender.
fn text(scenario: &Scenario, outcome: &Outcome) -> String {
    let mut text = format!(
        "{}, {} hosts; seed {}; {} cycles of warm-up, {} measured\noffered and accepted in flits a cycle of each sender; times in cycles\n\n",
        outcome.network,
        outcome.hosts,
        scenario.seed,
        scenario.warm_up.get_ref(),
        scenario.measured.get_ref(),
    );
    let mut rows = vec![row([
        "class", "scheme", "load", "offered", "accepted", "mean", "median", "99 %", "network", "max/min",
        "dropped", "control",
    ])];
    for point in &outcome.points {
        for (nth, class) in point.classes.iter().enumerate() {
            let first = |cell: String| if nth == 0 { cell } else { String::new() };
            rows.push(vec![
                class.name.clone(),
                point.scheme.name().into(),
                format!("{:.2}", point.load),
                format!("{:.4}", class.offered),
                format!("{:.4}", class.accepted),
                or_dash(class, format!("{:.1}", class.mean)),
                or_dash(class, class.median.to_string()),
                or_dash(class, class.p99.to_string()),
                or_dash(class, format!("{:.1}", class.network)),
                if class.fairness.is_finite() { format!("{:.2}", class.fairness) } else { "-".into() },
                first(point.dropped.to_string()),
                first(format!("{:.1} %", 100.0 * point.control)),
            ]);
        }
    }
    text += &lines(&rows);
    text
}

fn or_dash(class: &ClassPoint, cell: String) -> String {
    if class.messages > 0 { cell } else { "-".into() }
}

fn to_json(scenario: &Scenario, outcome: &Outcome) -> Value {
    let points = outcome.points.iter().map(|point| {
        let classes = point.classes.iter().map(|class| {
            json!({
                "name": class.name, "offered_flits_per_cycle": class.offered, "accepted_flits_per_cycle": class.accepted,
                "messages": class.messages, "mean_cycles": class.mean, "median_cycles": class.median, "p99_cycles": class.p99,
                "network_mean_cycles": class.network,
                // JSON has no infinity: the value is infinite if nothing was delivered for some sender.
                "max_over_min": if class.fairness.is_finite() { json!(class.fairness) } else { Value::Null },
            })
        });
        json!({
            "scheme": point.scheme.name(), "load": point.load, "dropped_packets": point.dropped, "marked_packets": point.marked,
            "control_share": point.control, "classes": classes.collect::<Value>(),
        })
    });
    json!({
        "network": outcome.network, "hosts": outcome.hosts, "seed": scenario.seed, "warm_up_cycles": scenario.warm_up.get_ref(),
        "measured_cycles": scenario.measured.get_ref(), "points": points.collect::<Value>(),
    })
}

fn csv(outcome: &Outcome) -> String {
    let heads = "scheme,load,class,offered,accepted,messages,mean,median,p99,network,max_over_min,dropped,marked,control\n";
    let of_point = |point: &Point| {
        let line = |class: &ClassPoint| {
            let ClassPoint { offered, accepted, messages, mean, median, p99, network, fairness, .. } = class;
            let name = format!("\"{}\"", class.name.replace('"', "\"\""));
            let (scheme, load) = (point.scheme.name(), point.load);
            let Point { dropped, marked, control, .. } = point;
            format!(
                "{scheme},{load},{name},{offered},{accepted},{messages},{mean},{median},{p99},{network},{fairness},{dropped},{marked},{control}\n"
            )
        };
        point.classes.iter().map(line).collect::<String>()
    };
    heads.to_owned() + &outcome.points.iter().map(of_point).collect::<String>()
}
