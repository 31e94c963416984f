//! A report as text.

use crate::experiment::plan::Format;
use crate::report::Report;
use crate::report::{export, table};

impl Report {
    /// Text in the format that was asked for, with a line break at the end.
    pub fn render(&self) -> String {
        match self.plan.format {
            Format::Table => table::render(self),
            Format::Csv => export::csv(self),
            Format::Json => export::json(self),
        }
    }
}
