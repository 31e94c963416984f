//! Pairs of programs: `ui/NAME.rs` misuses the library and does not compile, with the words of `ui/NAME.stderr`;
//! `ui/NAME.ok.rs` compiles, and differs in the one line that is the misuse.
//!
//! The twin makes the first program a proof: without it, a misspelt name would do as a reason not to compile. When the
//! compiler's words change, update them by `TRYBUILD=overwrite cargo test -p PACKAGE --test ui`, and read them before the
//! commit.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Makes a test per pair, in a module whose name chooses the step of `cargo xtask test`. The twins are modules, which
/// compile with the test program. Building each as a program doubled the time of the step.
#[macro_export]
macro_rules! pairs {
    ($($name:ident,)*) => {
        #[allow(warnings, unsafe_code, clippy::undocumented_unsafe_blocks, reason = "nobody runs these programs")]
        mod ok {
            $(
                mod $name {
                    include!(concat!("ui/", stringify!($name), ".ok.rs"));
                }
            )*
        }

        mod compile_fail {
            $(
                #[test]
                fn $name() {
                    $crate::pairs::check(stringify!($name));
                }
            )*

            #[test]
            fn every_file_belongs_to_a_pair() {
                $crate::pairs::check_files(&[$(stringify!($name)),*]);
            }
        }
    };
}

const FOLDER: &str = "tests/ui";
const PARTS: [&str; 3] = [".rs", ".ok.rs", ".stderr"];

/// Checks a pair, from the folder of the package that is tested.
///
/// # Panics
/// When the misuse compiles, fails in other words, or its twin differs in more than one line.
pub fn check(name: &str) {
    let [bad, good, words] = PARTS.map(|part| format!("{FOLDER}/{name}{part}"));
    assert_one_line_differs(&bad, &good);
    let overwriting = std::env::var_os("TRYBUILD").is_some_and(|how| how == "overwrite");
    assert!(
        overwriting || Path::new(&words).exists(),
        "{words} is missing: there is nothing to compare with"
    );
    trybuild::TestCases::new().compile_fail(bad);
}

/// Checks that the folder holds the files of these pairs, and no others.
///
/// # Panics
/// When it does not.
pub fn check_files(names: &[&str]) {
    let expected: BTreeSet<String> =
        names.iter().flat_map(|name| PARTS.map(|part| format!("{name}{part}"))).collect();
    let found: BTreeSet<String> = fs::read_dir(FOLDER)
        .expect("the pairs' folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect();
    let odd: Vec<_> = found.symmetric_difference(&expected).collect();
    assert!(odd.is_empty(), "listed and not there, or there and not listed: {odd:?}");
}

/// Asserts that the two programs differ at one place: a line replaced, added or left out.
fn assert_one_line_differs(bad: &str, good: &str) {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let (bad_text, good_text) = (read(bad), read(good));
    let (bad_lines, good_lines): (Vec<_>, Vec<_>) = (bad_text.lines().collect(), good_text.lines().collect());
    let same = |pairs: &mut dyn Iterator<Item = (&&str, &&str)>| pairs.take_while(|(a, b)| a == b).count();
    let shorter = bad_lines.len().min(good_lines.len());
    let head = same(&mut bad_lines.iter().zip(&good_lines));
    let tail = same(&mut bad_lines.iter().rev().zip(good_lines.iter().rev())).min(shorter - head);
    let differing = [&bad_lines, &good_lines].map(|lines| lines.len() - head - tail);
    assert!(differing.iter().max() == Some(&1), "{bad} and {good} differ in {differing:?} lines, not in one");
}
