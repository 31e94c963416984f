//! Text of a comparison.

use super::report::PeersReport;
use super::{export, table};
use crate::experiment::plan::Format;

impl PeersReport {
    /// Text in the format that was asked for, with a line break at the end.
    pub fn render(&self, format: Format) -> String {
        match format {
            Format::Table => table::render(self),
            Format::Csv => export::csv(self),
            Format::Json => export::json(self),
        }
    }
}
