//! C programs under valgrind's memcheck: what counts as an error, and what memcheck does not understand in the
//! library.

use std::path::Path;

/// Words before a program's command: memcheck with checks for reads of unwritten memory, accesses outside of
/// allocations, and leaks.
#[must_use]
pub fn memcheck() -> Vec<String> {
    let known = Path::new(env!("CARGO_MANIFEST_DIR")).join("valgrind.supp");
    let suppressions = format!("--suppressions={}", known.display());
    let words = ["valgrind", "--quiet", "--error-exitcode=9", &suppressions];
    let leaks = ["--leak-check=full", "--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"];
    words.into_iter().chain(leaks).map(str::to_owned).collect()
}
