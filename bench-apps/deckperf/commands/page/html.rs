//! Text, tables and charts as HTML. All text that comes from a file is escaped here.

use std::fmt::Write;

use super::{
    charts::{Bars, Chart},
    show,
};
use crate::stats::Spread;

/// Escapes text for an element or an attribute in double quotes.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            other => escaped.push(other),
        }
    }
    escaped
}

/// Escapes JSON inside of a `<script>`: no text in it can end the element or begin a comment.
pub fn script_json(json: &str) -> String {
    json.replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

/// A table.
#[derive(Debug, Default)]
pub struct Table {
    /// Titles of the columns; those that begin with `#` have figures.
    pub heads: Vec<String>,
    /// Rows, each with as many cells as there are heads.
    pub rows: Vec<Vec<Cell>>,
}

/// A cell of a table.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    html: String,
    class: String,
    hint: String,
}

impl Cell {
    /// A cell with text, which is escaped.
    pub fn text(text: &str) -> Self {
        Self { html: escape(text), ..Self::default() }
    }

    /// A cell with HTML, whose parts must be escaped already.
    pub fn html(html: String) -> Self {
        Self { html, ..Self::default() }
    }

    /// A cell with a figure and its unit, which shows the bounds on hover.
    pub fn spread(spread: &Spread, unit: &str) -> Self {
        Self::text(&show::figure(spread.median)).hint(&hint(spread, unit))
    }

    /// Adds a text that is shown on hover.
    pub fn hint(self, hint: &str) -> Self {
        Self { hint: escape(hint), ..self }
    }

    /// Adds a class for the style sheet.
    pub fn class(self, class: &str) -> Self {
        Self { class: class.to_owned(), ..self }
    }
}

/// Text of the form `median of 70 rounds; 95 % bounds 0.08 to 0.09 µs; p10 to p90 0.07 to 0.1 µs`.
pub fn hint(spread: &Spread, unit: &str) -> String {
    let Spread { low, high, p10, p90, rounds, .. } = spread;
    let [low, high, p10, p90] = [low, high, p10, p90].map(|figure| show::figure(*figure));
    format!("median of {rounds} rounds; 95 % bounds {low} to {high} {unit}; p10 to p90 {p10} to {p90} {unit}")
}

/// HTML of a table, in a box that scrolls where the window is narrow.
pub fn table(table: &Table, class: &str) -> String {
    let figures: Vec<bool> = table.heads.iter().map(|head| head.starts_with('#')).collect();
    let mut html = format!("<div class=\"scroll\" tabindex=\"0\"><table class=\"{class}\"><thead><tr>");
    for head in &table.heads {
        let number = if head.starts_with('#') { " class=\"number\"" } else { "" };
        let _ = write!(html, "<th scope=\"col\"{number}>{}</th>", escape(head.trim_start_matches('#')));
    }
    html += "</tr></thead><tbody>";
    for row in &table.rows {
        html += "<tr>";
        for (at, cell) in row.iter().enumerate() {
            let (tag, scope) = if at == 0 { ("th", " scope=\"row\"") } else { ("td", "") };
            let number = if figures.get(at) == Some(&true) { "number " } else { "" };
            let class = format!("{number}{}", cell.class);
            let class =
                if class.is_empty() { String::new() } else { format!(" class=\"{}\"", class.trim_end()) };
            let hint = if cell.hint.is_empty() { String::new() } else { format!(" title=\"{}\"", cell.hint) };
            let _ = write!(html, "<{tag}{scope}{class}{hint}>{}</{tag}>", cell.html);
        }
        html += "</tr>";
    }
    html + "</tbody></table></div>"
}

/// HTML of a list.
pub fn list<'a>(items: impl IntoIterator<Item = &'a str>) -> String {
    let items: String =
        items.into_iter().fold(String::new(), |all, item| all + "<li>" + &escape(item) + "</li>");
    format!("<ul>{items}</ul>")
}

/// HTML of the place where `page.js` draws chart `number`, and of its figures for readers who see no curves.
pub fn chart(chart: &Chart, number: usize) -> String {
    let (title, sentence) = (escape(&chart.title), escape(&chart.sentence));
    format!(
        "<figure class=\"chart\" data-chart=\"{number}\"><h4>{title}</h4><p class=\"sentence\">{sentence}</p>\
         <div class=\"legend\"></div>\
         <div class=\"plot\" tabindex=\"0\" role=\"img\" aria-label=\"{title}. {sentence} Arrow keys read the figures.\"></div>\
         <p class=\"read\" aria-live=\"polite\"></p>\
         <details><summary>The figures</summary>{}</details></figure>",
        table(&figures(chart), "figures")
    )
}

/// Table with a row for each place on the axis, and a column for each line.
fn figures(chart: &Chart) -> Table {
    let mut xs: Vec<f64> = chart.lines.iter().flat_map(|line| &line.points).map(|point| point.x).collect();
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let place = |x: f64| if chart.x.bytes { show::bytes(x as u64) } else { show::count(x) };
    let first = if chart.x.bytes { "size".to_owned() } else { chart.x.title.clone() };
    let unit = &chart.y.unit;
    let heads = chart.lines.iter().map(|line| format!("#{}, {unit}", line.name));
    let rows = xs.iter().map(|&x| {
        let cells = chart.lines.iter().map(|line| {
            let point = line.points.iter().find(|point| point.x == x);
            point.map_or(Cell::default(), |point| Cell::spread(&point.spread, unit))
        });
        [Cell::text(&place(x))].into_iter().chain(cells).collect()
    });
    Table { heads: [first].into_iter().chain(heads).collect(), rows: rows.collect() }
}

/// HTML of bars: each is as long as its median, and has its figure in words.
pub fn bars(bars: &Bars) -> String {
    let longest = bars.bars.iter().map(|(_, spread)| spread.median).fold(0.0, f64::max);
    let rows = bars.bars.iter().map(|(name, spread)| {
        let part = if longest > 0.0 { 100.0 * spread.median / longest } else { 0.0 };
        let bar = format!("<span class=\"bar\" style=\"width:{part:.1}%\"></span>");
        vec![
            Cell::text(name),
            Cell::html(bar).class("barcell").hint(&hint(spread, &bars.unit)),
            Cell::spread(spread, &bars.unit),
            Cell::text(&show::bounds(spread)),
        ]
    });
    let heads = ["what", "", &format!("#{}", bars.unit), "#95 % bounds"].map(str::to_owned).to_vec();
    format!(
        "<figure class=\"chart bars\"><h4>{}</h4><p class=\"sentence\">{}</p>{}</figure>",
        escape(&bars.title),
        escape(&bars.sentence),
        table(&Table { heads, rows: rows.collect() }, "bars")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_ends_a_script_or_an_attribute() {
        let json = script_json(&serde_json::json!("</script><!-- \u{2028}").to_string());
        assert!(!json.contains('<') && !json.contains('\u{2028}'), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).expect("the same text"), "</script><!-- \u{2028}");
        assert_eq!(escape("<a b=\"c\">&"), "&lt;a b=&quot;c&quot;&gt;&amp;");
    }

    #[test]
    fn a_cell_has_its_class_and_its_hint() {
        let rows = vec![vec![Cell::text("a<b"), Cell::text("1").class("met").hint("\"2\"")]];
        let html = table(&Table { heads: vec!["x".into(), "#y".into()], rows }, "t");
        assert!(html.contains("<th scope=\"row\">a&lt;b</th>"), "{html}");
        assert!(html.contains("<td class=\"number met\" title=\"&quot;2&quot;\">1</td>"), "{html}");
    }
}
