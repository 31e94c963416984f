//! Names of the program's spans. An event's name lives as long as its process, so each name is kept once, in a table
//! with a bound.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;
use udeck_sys::say;

/// Maximum number of different names of a process's spans. With [`MAX_SPAN_NAME`] it bounds their memory to 128 KiB.
pub const MAX_SPAN_NAMES: usize = 1024;
/// Maximum length of a span's name, in bytes of UTF-8. A longer name is cut.
pub const MAX_SPAN_NAME: usize = 128;

/// Name of all spans whose own names found no room in the table.
pub const OTHER_SPANS: &str = "other spans";
/// Name of spans with an empty name, which viewers would not show.
pub const UNNAMED_SPAN: &str = "unnamed span";

static NAMES: RwLock<BTreeSet<&'static str>> = RwLock::new(BTreeSet::new());

/// Returns the name under which the trace shows a span: `name`, cut to [`MAX_SPAN_NAME`] bytes; [`UNNAMED_SPAN`] for
/// an empty name; [`OTHER_SPANS`] if the process has [`MAX_SPAN_NAMES`] other names already. The first such name is
/// reported on standard error.
///
/// The call takes a lock that a child made by `fork()` may find held for ever.
pub fn span_name(name: &str) -> &'static str {
    let name = cut(name);
    match name {
        "" | UNNAMED_SPAN => return UNNAMED_SPAN,
        OTHER_SPANS => return OTHER_SPANS,
        _ => {}
    }
    let known = NAMES.read().get(name).copied();
    known.unwrap_or_else(|| add(name))
}

/// Cuts a name to [`MAX_SPAN_NAME`] bytes, between two characters.
fn cut(name: &str) -> &str {
    let mut end = name.len().min(MAX_SPAN_NAME);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

#[cold]
fn add(name: &str) -> &'static str {
    let mut names = NAMES.write();
    if let Some(known) = names.get(name) {
        return known;
    }
    if names.len() < MAX_SPAN_NAMES {
        let kept: &'static str = Box::leak(name.into());
        names.insert(kept);
        return kept;
    }
    drop(names);
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    if !IS_REPORTED.swap(true, Ordering::Relaxed) {
        say!(
            "the trace keeps {MAX_SPAN_NAMES} names of spans of a process; spans of further names, the first is \
             {name:?}, are shown as \"{OTHER_SPANS}\": let names say the kind of work, without numbers"
        );
    }
    OTHER_SPANS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test for all cases: they share the process's table.
    #[test]
    fn names_are_kept_once_and_have_bounds() {
        let (solve, again) = (span_name("solve"), span_name(&String::from("solve")));
        assert!(std::ptr::eq(solve, again) && solve == "solve");
        assert_eq!((span_name(""), span_name(UNNAMED_SPAN)), (UNNAMED_SPAN, UNNAMED_SPAN));
        assert_eq!(NAMES.read().len(), 1, "of an empty name nothing is kept");
        // A character of two bytes at the bound is left out whole.
        let long = format!("{}é and more", "x".repeat(MAX_SPAN_NAME - 1));
        assert_eq!(span_name(&long), "x".repeat(MAX_SPAN_NAME - 1));
        for number in 0..2 * MAX_SPAN_NAMES {
            span_name(&format!("step {number}"));
        }
        assert_eq!(NAMES.read().len(), MAX_SPAN_NAMES);
        assert_eq!((span_name("one more"), span_name("solve")), (OTHER_SPANS, "solve"));
        assert_eq!(span_name(OTHER_SPANS), OTHER_SPANS);
    }
}
