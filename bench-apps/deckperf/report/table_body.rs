//! Plain tables in a report: the same columns as aligned text, CSV and JSON.

use serde_json::{Map, Value, json};

use super::{
    Body,
    aligned::{aligned, wrapped},
    table,
};

/// One table.
pub struct Table {
    /// Title for readers, with the unit where all columns share one.
    pub title: String,
    /// Name for programs.
    pub name: String,
    /// Names of the columns, the same in every format.
    pub columns: Vec<String>,
    /// Rows, each as long as `columns`.
    pub rows: Vec<Vec<Cell>>,
}

/// Content of a cell of a table.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// A name.
    Text(String),
    /// A counted number.
    Count(u64),
    /// A measured value; `None`: it could not be measured.
    Figure(Option<f64>),
}

impl Cell {
    /// A cell with a name.
    pub fn text(text: impl ToString) -> Self {
        Cell::Text(text.to_string())
    }

    fn show(&self) -> String {
        match self {
            Cell::Text(text) => text.clone(),
            Cell::Count(count) => count.to_string(),
            Cell::Figure(figure) => table::cell(*figure),
        }
    }

    fn csv(&self) -> String {
        match self {
            Cell::Figure(figure) => figure.map_or(String::new(), |figure| format!("{figure:.4}")),
            other => other.show(),
        }
    }

    fn json(&self) -> Value {
        match self {
            Cell::Text(text) => json!(text),
            Cell::Count(count) => json!(count),
            Cell::Figure(figure) => json!(figure),
        }
    }
}

/// Names of columns that are known at compile time.
pub fn names(columns: &[&str]) -> Vec<String> {
    columns.iter().map(ToString::to_string).collect()
}

impl Body {
    /// Body of plain tables. CSV has a header line and rows for each table, and an empty line between tables.
    pub fn of_tables(tables: &[Table]) -> Self {
        let json: Map<_, _> = tables.iter().map(|table| (table.name.clone(), table.json())).collect();
        Body {
            text: tables.iter().map(Table::table).collect(),
            csv: tables.iter().map(Table::csv).collect::<Vec<_>>().join("\n"),
            json: json!({ "tables": json }),
            line: None,
        }
    }
}

impl Table {
    /// Aligns the first column to the left, the others to the right. Every block begins with the columns that name a row:
    /// the first, and the others up to the last column of words before the figures.
    fn table(&self) -> String {
        let name = |(at, name): (usize, &String)| {
            if at == 0 { format!("# {name}") } else { name.to_string() }
        };
        let head = self.columns.iter().enumerate().map(name).collect();
        let rows = self.rows.iter().map(|row| row.iter().map(Cell::show).collect());
        let lines: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
        let names = |row: &Vec<Cell>| {
            let before = row.iter().take_while(|cell| !matches!(cell, Cell::Figure(_)));
            before
                .collect::<Vec<_>>()
                .iter()
                .rposition(|cell| matches!(cell, Cell::Text(_)))
                .map_or(1, |last| last + 1)
        };
        let keys = self.rows.first().map_or(1, names);
        format!("\n{}{}", wrapped("# ", "# ", &self.title), aligned(&lines, keys, |at| at == 0))
    }

    fn csv(&self) -> String {
        let mut text = self.columns.join(",") + "\n";
        for row in &self.rows {
            text += &row.iter().map(Cell::csv).collect::<Vec<_>>().join(",");
            text.push('\n');
        }
        text
    }

    /// JSON array with an object for each row.
    pub fn json(&self) -> Value {
        let row = |row: &Vec<Cell>| -> Value {
            let cells = self.columns.iter().zip(row);
            Value::Object(cells.map(|(name, cell)| (name.clone(), cell.json())).collect())
        };
        self.rows.iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{experiment::plan::Format, report::Report};
    use udeck_cli::machine::Machine;

    fn report() -> Report {
        let machine = Machine::sample("pinned to cores 0 and 1", "shm0");
        let table = |name: &'static str| Table {
            title: "Colours (1)".to_owned(),
            name: name.into(),
            columns: names(&["colour", "number", "part"]),
            rows: vec![
                vec![Cell::text("red"), Cell::Count(12_345_678), Cell::Figure(Some(0.123))],
                vec![Cell::text("ultramarine"), Cell::Count(0), Cell::Figure(None)],
            ],
        };
        Report {
            machine,
            method: "by eye\n".to_owned(),
            noise: None,
            command: "colours",
            series: Vec::new(),
            body: Body::of_tables(&[table("one"), table("two")]),
            findings: vec![],
        }
    }

    #[test]
    fn a_table_is_aligned() {
        let expected = "
# Colours (1)
# colour       number  part
red          12345678  0.12
ultramarine         0     -
";
        assert!(report().render(Format::Table).ends_with(&expected.repeat(2)));
    }

    #[test]
    fn csv_keeps_the_tables_apart() {
        let one = "colour,number,part\nred,12345678,0.1230\nultramarine,0,\n";
        assert_eq!(report().render(Format::Csv), format!("{one}\n{one}"));
    }

    #[test]
    fn json_names_every_cell() {
        let value: Value = serde_json::from_str(&report().render(Format::Json)).expect("valid JSON");
        assert_eq!(value["machine"]["cpu"], "Some CPU");
        assert_eq!(value["tables"]["two"][0], json!({"colour": "red", "number": 12_345_678, "part": 0.123}));
        assert_eq!(value["tables"]["one"][1]["part"], Value::Null);
    }
}
