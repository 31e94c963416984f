//! C programs under valgrind's memcheck: what counts as an error, and what memcheck does not understand in the
//! library.

use std::path::Path;

/// Message memory of the program. The check for leaks walks through all memory that is mapped when the program ends: arenas of
/// the default size are gigabytes, which can take minutes. This size holds the longest messages of the tests.
const SMALL_ARENA: &str = "DECK_ARENA=512M";

/// Words before a program's command: memcheck with checks for reads of unwritten memory, accesses outside of
/// allocations, and leaks.
#[must_use]
pub fn memcheck() -> Vec<String> {
    let known = Path::new(env!("CARGO_MANIFEST_DIR")).join("valgrind.supp");
    let suppressions = format!("--suppressions={}", known.display());
    let words = ["env", SMALL_ARENA, "valgrind", "--quiet", "--error-exitcode=9", &suppressions];
    let leaks = ["--leak-check=full", "--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"];
    words.into_iter().chain(leaks).map(str::to_owned).collect()
}
