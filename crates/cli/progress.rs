//! Progress bar of runs.

use indicatif::{ProgressBar, ProgressStyle};

/// Makes a progress bar. It is shown on standard error, and only if that is a terminal.
pub fn bar(length: u64, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {percent} % {eta}").expect("a valid template");
    ProgressBar::new(length).with_style(style).with_message(what)
}
