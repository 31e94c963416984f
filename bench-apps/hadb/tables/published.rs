//! The published rows (`published.csv`), and how a row is written.

use super::{Place, Version};
use std::collections::BTreeMap;

/// A row of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub transactions: u64,
    /// Throughput in transactions per second.
    pub per_s: f64,
    /// Mean response time in milliseconds.
    pub mean_ms: f64,
    /// Minimal and maximal response time in milliseconds, where the table has them.
    pub range_ms: Option<(f64, f64)>,
}

impl Row {
    /// Cells of the row, after the columns `first` and `name`.
    pub fn cells(&self, first: &str, name: &str, has_range: bool) -> Vec<String> {
        let tenths = (self.per_s * 10.0).round() as u64;
        let mut cells = vec![
            first.to_owned(),
            name.to_owned(),
            grouped(self.transactions),
            format!("{}.{} tps", grouped(tenths / 10), tenths % 10),
            milliseconds(self.mean_ms),
        ];
        if let Some((shortest, longest)) = self.range_ms.filter(|_| has_range) {
            cells.extend([milliseconds(shortest), milliseconds(longest)]);
        }
        cells
    }
}

fn milliseconds(value: f64) -> String {
    let digits = if value < 10.0 { 3 } else { 2 };
    format!("{value:.digits$} ms")
}

/// Writes a number with commas between groups of three digits.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// All published rows. A line that is none is left out; a test has all of them.
pub fn published() -> BTreeMap<Place, Row> {
    include_str!("../published.csv").lines().filter_map(row).collect()
}

fn row(line: &str) -> Option<(Place, Row)> {
    let cells: Vec<&str> = line.split(',').collect();
    let &[table, version, clients, operation, transactions, per_s, mean, shortest, longest] = &cells[..]
    else {
        return None;
    };
    let version = Version::BOTH.into_iter().find(|one| one.name() == version)?;
    let row = Row {
        transactions: transactions.parse().ok()?,
        per_s: per_s.parse().ok()?,
        mean_ms: mean.parse().ok()?,
        range_ms: shortest.parse().ok().zip(longest.parse().ok()),
    };
    Some(((table.to_owned(), operation.to_owned(), clients.parse().ok()?, version), row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas_between_their_thousands() {
        let written = [0, 12, 123, 1_234, 64_000, 1_594_824].map(grouped);
        assert_eq!(written, ["0", "12", "123", "1,234", "64,000", "1,594,824"]);
    }

    /// A client has one transaction under way, so throughput times response time is about the number of clients: a wrong digit would
    /// show. The client's own time, and rounding, take up to 6 %.
    #[test]
    fn the_published_rows_agree_with_themselves() {
        let rows = published();
        assert_eq!(rows.len(), 6 + 6 + 4 + 8 + 8);
        for ((table, operation, clients, version), row) in &rows {
            let under_way = row.per_s * row.mean_ms / 1e3 / f64::from(*clients);
            assert!(
                (0.94..1.01).contains(&under_way),
                "{table} {operation} {clients} {version:?}: {under_way}"
            );
            assert_eq!(row.range_ms.is_some(), table == "10.3" || table == "10.4");
        }
    }
}
