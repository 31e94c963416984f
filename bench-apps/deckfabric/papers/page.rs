//! HTML page of the results, with the style, script and uPlot of `deckperf report`.

use super::{Row, Section, shown};
use serde_json::json;

/// Formats all sections as one page that needs no network.
pub fn html(sections: &[Section], extent: &str) -> String {
    let charts: Vec<_> = sections.iter().flat_map(|section| &section.charts).collect();
    let mut number = 0;
    let bodies: String = sections.iter().map(|section| body(section, &mut number)).collect();
    let series = sections.iter().flat_map(|section| section.rows.iter().map(move |row| (section, row)));
    let series = series.map(|(section, row)| {
        json!({
            "test": section.title, "library": row.what, "unit": "", "better": "",
            "labels": { "published": row.published.map(|figure| figure.to_string()).unwrap_or_default() }, "rounds": [row.ours],
        })
    });
    let data = json!({ "runs": [{ "source": "deckfabric", "command": "papers", "date": "", "series": series.collect::<Vec<_>>() }] });
    let style = [
        include_str!("../../deckperf/commands/page/vendor/uPlot.min.css"),
        include_str!("../../deckperf/commands/page/page.css"),
    ];
    let subtitle =
        format!("µDECK {}, {extent}; the same figures on every machine", env!("CARGO_PKG_VERSION"));
    let texts = [
        ("style", style.join("\n")),
        ("subtitle", escape(&subtitle)),
        ("sections", bodies),
        ("charts", script_json(&json!(charts).to_string())),
        ("data", script_json(&data.to_string())),
        ("uplot", include_str!("../../deckperf/commands/page/vendor/uPlot.iife.min.js").into()),
        ("script", include_str!("../../deckperf/commands/page/page.js").into()),
    ];
    let mut pieces = include_str!("page.html").split("{{");
    let mut page = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (name, rest) = piece.split_once("}}").unwrap_or(("", piece));
        page += texts.iter().find(|(known, _)| *known == name).map_or("", |(_, text)| text);
        page += rest;
    }
    page
}

fn body(section: &Section, number: &mut usize) -> String {
    let mut html = format!("<section><h2>{}</h2><p>{}</p>", escape(section.title), escape(&section.how));
    if let Some(why) = &section.failed {
        return html + &format!("<p><span class=\"missed\">failed</span>: {}</p></section>\n", escape(why));
    }
    html += "<div class=\"scroll\" tabindex=\"0\"><table><thead><tr><th scope=\"col\"></th><th scope=\"col\" class=\"number\">published</th>\
             <th scope=\"col\" class=\"number\">here</th><th scope=\"col\" class=\"number\">ratio</th></tr></thead><tbody>";
    for Row { what, published, ours } in &section.rows {
        let of = |figure: Option<f64>| figure.map_or_else(|| "–".into(), shown);
        let ratio = published.map(|published| ours / published);
        html += &format!(
            "<tr><th scope=\"row\">{}</th><td class=\"number\">{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td></tr>",
            escape(what),
            of(*published),
            shown(*ours),
            of(ratio)
        );
    }
    html += "</tbody></table></div><ul>";
    for (claim, holds) in &section.claims {
        let (class, word) = if *holds { ("met", "holds") } else { ("missed", "does not hold") };
        html += &format!("<li><span class=\"{class}\">{word}</span>: {}</li>", escape(claim));
    }
    html += "</ul>";
    for chart in &section.charts {
        let (title, sentence) = (escape(&chart.title), escape(&chart.sentence));
        html += &format!(
            "<figure class=\"chart\" data-chart=\"{number}\"><h4>{title}</h4><p class=\"sentence\">{sentence}</p><div class=\"legend\"></div>\
             <div class=\"plot\" tabindex=\"0\" role=\"img\" aria-label=\"{title}. {sentence} Arrow keys read the figures.\"></div>\
             <p class=\"read\" aria-live=\"polite\"></p></figure>"
        );
        *number += 1;
    }
    html + "</section>\n"
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Escapes JSON for use inside a `<script>`, so that no text in it can end the element.
fn script_json(json: &str) -> String {
    json.replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}
