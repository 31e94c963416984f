//! How far a run is.

use indicatif::{ProgressBar, ProgressStyle};

/// On standard error, and only if that is a terminal.
pub fn bar(length: u64, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {percent} % {eta}").expect("a valid template");
    ProgressBar::new(length).with_style(style).with_message(what)
}
