//! C programs under valgrind's memcheck: what it takes as an error, and what of the library it does not understand.

use std::path::Path;

/// The words before a program: no read of what was not written, no access outside of what was allocated, nothing lost.
#[must_use]
pub fn memcheck() -> Vec<String> {
    let known = Path::new(env!("CARGO_MANIFEST_DIR")).join("valgrind.supp");
    let suppressions = format!("--suppressions={}", known.display());
    let words = ["valgrind", "--quiet", "--error-exitcode=9", &suppressions];
    let leaks = ["--leak-check=full", "--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"];
    words.into_iter().chain(leaks).map(str::to_owned).collect()
}
