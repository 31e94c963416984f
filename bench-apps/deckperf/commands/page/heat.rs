//! Heat maps: a figure for each pair of ranks, as a table with coloured cells.

use std::collections::BTreeMap;

use super::{
    html::{self, Cell, Table, escape},
    show,
};
use crate::{
    report::data::{Key, Series},
    stats::{Spread, spread},
};

/// Statistics by source rank and destination rank.
type Cells = BTreeMap<(u64, u64), Spread>;

/// Number of shades in the style sheet.
const SHADES: f64 = 6.0;

/// Both ranks of a series that is about a pair: labels `from` and `to`, or a label `pair` such as `0-1`.
pub fn pair(key: &Key) -> Option<(u64, u64)> {
    let number = |name: &str| key.labels.get(name)?.trim().parse().ok();
    if let (Some(from), Some(to)) = (number("from"), number("to")) {
        return Some((from, to));
    }
    let words = key.labels.get("pair")?;
    let mut ranks = words.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty());
    let both = (ranks.next()?.parse().ok()?, ranks.next()?.parse().ok()?);
    ranks.next().is_none().then_some(both)
}

/// Makes a table for each group of series that differ in their pairs only.
pub fn tables(all: &[&Series]) -> Vec<String> {
    let mut groups: Vec<(Key, &Series, Cells)> = Vec::new();
    for series in all {
        let (Some(pair), Some(spread)) = (pair(&series.key), spread(&series.figures())) else { continue };
        let mut key = series.key.clone();
        ["from", "to", "pair"].iter().for_each(|label| _ = key.labels.remove(*label));
        match groups.iter_mut().find(|(known, ..)| *known == key) {
            Some((.., cells)) => _ = cells.insert(pair, spread),
            None => groups.push((key, series, [(pair, spread)].into())),
        }
    }
    groups.iter().map(|(key, series, cells)| heat(key, series, cells)).collect()
}

fn heat(key: &Key, series: &Series, cells: &Cells) -> String {
    let unit = show::unit(&series.unit);
    let mut ranks: Vec<u64> = cells.keys().flat_map(|&(from, to)| [from, to]).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let medians = || cells.values().map(|spread| spread.median);
    let (low, high) = medians().fold((f64::INFINITY, 0.0_f64), |(low, high), at| (low.min(at), high.max(at)));
    let rows = ranks.iter().map(|from| {
        let of = ranks.iter().map(|to| match cells.get(&(*from, *to)) {
            None => Cell::text("–").class("none"),
            Some(spread) => {
                let part = if high > low { (spread.median - low) / (high - low) } else { 0.0 };
                let shade = (part * SHADES).floor().min(SHADES - 1.0);
                let hint = format!("rank {from} to rank {to}: {}", html::hint(spread, &unit));
                Cell::text(&show::figure(spread.median)).class(&format!("heat{shade}")).hint(&hint)
            }
        });
        [Cell::text(&format!("from {from}"))].into_iter().chain(of).collect()
    });
    let heads = ["".to_owned()].into_iter().chain(ranks.iter().map(|to| format!("#to {to}")));
    let table = Table { heads: heads.collect(), rows: rows.collect() };
    let mut title = show::test(&key.test);
    let payload = key.payload.as_deref().map(|payload| show::payload(payload).to_owned());
    let extra = [key.transport.clone(), key.protocol.clone(), key.size.map(show::bytes), payload];
    title += &extra.into_iter().flatten().map(|word| format!(", {word}")).collect::<String>();
    let sentence = format!(
        "{} pairs, from {} to {} {unit}. Dark cells have the highest figures. {}",
        cells.len(),
        show::figure(low),
        show::figure(high),
        show::direction(series.better),
    );
    format!(
        "<figure class=\"chart heatmap\"><h4>{}</h4><p class=\"sentence\">{}</p>{}</figure>",
        escape(&title),
        escape(&sentence),
        html::table(&table, "heat")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::data::{Better, OURS};

    fn series(labels: &[(&str, &str)], figure: f64) -> Series {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let key = Key { test: "latency".into(), library: OURS.into(), labels, ..Key::default() };
        let rounds = vec![Some(figure)];
        Series { key, unit: "us".into(), better: Better::Lower, copied_bytes_per_message: None, rounds }
    }

    #[test]
    fn pairs_are_written_in_two_ways() {
        let of = |labels: &[(&str, &str)]| pair(&series(labels, 1.0).key);
        assert_eq!(of(&[("from", "1"), ("to", "0")]), Some((1, 0)));
        assert_eq!(of(&[("pair", "0-3")]), Some((0, 3)));
        assert_eq!(of(&[("pair", "2 → 1")]), Some((2, 1)));
        assert_eq!((of(&[("pair", "all")]), of(&[("from", "1")]), of(&[])), (None, None, None));
    }

    #[test]
    fn a_matrix_has_a_cell_for_each_pair_and_shades_by_rank() {
        let all = [
            series(&[("from", "0"), ("to", "1")], 1.0),
            series(&[("from", "1"), ("to", "0")], 3.0),
            series(&[("from", "1"), ("to", "2")], 2.0),
        ];
        let [html] = &tables(&all.iter().collect::<Vec<_>>())[..] else { panic!("one table") };
        for cell in [
            "heat0\"",
            "heat3\"",
            "heat5\"",
            ">1.00</td>",
            "rank 1 to rank 0: median of 1 rounds",
            ">to 2</th>",
        ] {
            assert!(html.contains(cell), "{cell} is missing in {html}");
        }
        assert_eq!(html.matches("class=\"number none\"").count(), 6);
    }
}
