//! Output to the terminal: lines, which begin with the name of their step while several steps run side by side.

use std::{cell::Cell, fmt::Arguments};

thread_local! {
    /// The step that this thread runs, while other steps run beside it.
    static STEP: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Prints a line, after the name of this thread's step.
pub fn line(text: Arguments<'_>) {
    match STEP.get() {
        Some(step) => println!("{step:11} | {text}"),
        None => println!("{text}"),
    }
}

/// Runs `work`, whose lines are printed after the name `step`, if it is given.
pub fn beside<T>(step: Option<&'static str>, work: impl FnOnce() -> T) -> T {
    let before = STEP.replace(step);
    let result = work();
    STEP.set(before);
    result
}

/// Prints a formatted line by [`line()`].
macro_rules! say {
    ($($words:tt)*) => { $crate::console::line(format_args!($($words)*)) };
}
pub(crate) use say;
