//! Tests of `deckcc` itself.

use std::fs;
use std::os::unix::fs::symlink;

use udeck_jobs::Job;

use super::tools::{Tool, deckcc, installed, output, source};
use super::{Case, case};

pub fn cases() -> Vec<Case> {
    vec![
        case("deckcc_shows_what_it_would_run", &[], shows_what_it_would_run),
        case("deckcc_says_which_compiler_is_missing", &[], says_which_compiler_is_missing),
        case("deckcc_is_found_through_a_link", &[Tool::Cc], is_found_through_a_link),
        case("deckcc_compiles_without_linking", &[Tool::Cc], compiles_without_linking),
        case("deckcc_lies_in_a_folder_with_a_space", &[Tool::Cc], lies_in_a_folder_with_a_space),
        case("deckcc_explains_itself", &[], explains_itself),
    ]
}

fn show() -> Job {
    Job::new(&installed("bin/deckcc")).arg("--show")
}

fn shows_what_it_would_run() {
    let include = format!("-I{}", installed("include").display());
    let of_cxx = ["a.cpp", "a.c++", "a.C"].map(|file| (file, "c++"));
    let of_fortran = ["a.f90", "a.F", "a.for", "a.F03"].map(|file| (file, "gfortran"));
    for (file, compiler) in [("a.c", "cc")].into_iter().chain(of_cxx).chain(of_fortran) {
        let ended = show().args(["-O2", file]).run().ok();
        let words: Vec<_> = ended.stdout.split_whitespace().collect();
        assert_eq!(words.first(), Some(&compiler), "{ended}");
        assert!(words.contains(&include.as_str()) && words.contains(&"-ludeck"), "{ended}");
        assert!(words.contains(&"-O2") && words.contains(&file), "{ended}");
    }
    let ended = show().env("CC", "cc -m64").arg("a.c").run().ok();
    assert!(ended.stdout.starts_with("cc -m64 "), "{ended}");
}

fn says_which_compiler_is_missing() {
    let ended = Job::new(&installed("bin/deckcc")).arg("a.c").env("CC", "no-such-compiler").run().fails();
    assert!(ended.stderr.contains("no compiler no-such-compiler"), "{ended}");
}

fn is_found_through_a_link() {
    let link = output("linked-deckcc");
    symlink(installed("bin/deckcc"), &link).expect("a folder of ours");
    let program = output("ring-linked");
    let _ = Job::new(&link).arg(source("examples/c/ring.c")).arg("-o").arg(&program).run().ok();
    assert!(fs::exists(program).expect("a folder of ours"));
}

fn compiles_without_linking() {
    let object = output("ring.o");
    let _ = deckcc(Tool::Cc).arg("-c").arg(source("examples/c/ring.c")).arg("-o").arg(&object).run().ok();
    assert!(fs::exists(object).expect("a folder of ours"));
    let ended = show().args(["-c", "a.c"]).run().ok();
    assert!(!ended.stdout.contains("-ludeck"), "{ended}");
}

/// The installation may be moved to a folder with a space. Its output is quoted for a shell.
fn lies_in_a_folder_with_a_space() {
    let prefix = output("moved to");
    fs::create_dir_all(prefix.join("bin")).expect("a folder of ours");
    fs::copy(installed("bin/deckcc"), prefix.join("bin/deckcc")).expect("a folder of ours");
    for folder in ["include", "lib"] {
        symlink(installed(folder), prefix.join(folder)).expect("a folder of ours");
    }
    let source = output("pack with a space.c");
    fs::copy(self::source("examples/c/pack.c"), &source).expect("a folder of ours");
    let script = r#"set -e
        "$0" "$1" -o "$2-1"
        eval "cc $("$0" --cflags) '$1' -o '$2-2' $("$0" --libs)"
        eval "$(CC=cc "$0" --show "$1" -o "$2-3")"
        for nth in 1 2 3; do "$2-$nth"; done"#;
    let job = Job::new("sh".as_ref()).args(["-c", script]).arg(prefix.join("bin/deckcc")).arg(&source);
    let ended = job.arg(output("pack with a space")).run().ok();
    assert_eq!(ended.stdout.matches("greetings from rank 0").count(), 3, "{ended}");
}

fn explains_itself() {
    let ended = Job::new(&installed("bin/deckcc")).arg("--help").run().ok();
    let _ = ended.line_with("usage: deckcc");
}
