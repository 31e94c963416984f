//! Tests of the headers, and of the libraries' exports.

use std::{collections::BTreeSet, fs, path::PathBuf, process::Command};

use super::tools::{Tool, alone, compiled, deckcc, has_said, installed, output, own, ranks, says, source};
use super::{Case, case};

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for compiler in [Tool::Cc, Tool::Clang, Tool::Gxx, Tool::Clangxx] {
        let name = format!("headers::{}", compiler.name());
        cases.push(case(name, &[compiler], move || headers_stand_alone(compiler)));
    }
    cases.push(case("exports_are_the_interface", &[Tool::Nm], exports_are_the_interface));
    cases.push(case("the_book_has_all_calls", &[], the_book_has_all_calls));
    cases.push(case("the_book_s_program_in_c_runs", &[Tool::Cc], the_book_s_program_in_c_runs));
    cases.push(case(
        "the_book_s_program_in_fortran_runs",
        &[Tool::Gfortran],
        the_book_s_program_in_fortran_runs,
    ));
    cases.push(case("the_library_has_its_soname", &[Tool::Nm], has_its_soname));
    cases.push(case("the_static_library_links", &[Tool::Cc], static_library_links));
    cases.push(case("pkg_config_links", &[Tool::Cc, Tool::PkgConfig], pkg_config_links));
    cases
}

fn headers() -> Vec<PathBuf> {
    let entries = fs::read_dir(installed("include")).expect("the headers are installed");
    let files = entries.map(|entry| entry.expect("a file").path());
    let mut headers: Vec<_> = files.filter(|path| path.extension().is_some_and(|kind| kind == "h")).collect();
    headers.sort();
    assert!(!headers.is_empty());
    headers
}

/// Checks that each header needs no other, and may be included twice and in any order.
fn headers_stand_alone(compiler: Tool) {
    let (kind, standard) = match compiler {
        Tool::Gxx | Tool::Clangxx => ("cpp", "-std=c++17"),
        _ => ("c", "-std=c99"),
    };
    let names: Vec<_> =
        headers().iter().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect();
    let each = names.iter().map(|name| vec![name.clone(), name.clone()]);
    let all = [names.clone(), names.iter().rev().cloned().collect()];
    for (nth, included) in each.chain(all).enumerate() {
        let file = output(&format!("headers-{}-{nth}.{kind}", compiler.name()));
        let lines: String = included.iter().map(|name| format!("#include <{name}>\n")).collect();
        fs::write(&file, format!("{lines}extern int nothing;\n")).expect("a folder of ours");
        let strict = ["-Wall", "-Wextra", "-Werror", "-pedantic", standard, "-fsyntax-only"];
        let _ = deckcc(compiler).args(strict).arg(file).run().ok();
    }
}

/// Functions that the headers declare, as in `int deck_init(`; no comments and macros.
fn declared() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for header in headers() {
        let text = fs::read_to_string(&header).expect("a header");
        let mut code = String::new();
        for (nth, part) in text.split("/*").enumerate() {
            code += if nth == 0 { part } else { part.split_once("*/").map_or("", |(_, code)| code) };
        }
        let lines = code.lines().filter(|line| !line.trim_start().starts_with('#'));
        for before in lines.flat_map(|line| line.match_indices('(').map(move |(at, _)| &line[..at])) {
            let name: String = before
                .trim_end()
                .chars()
                .rev()
                .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
                .collect::<Vec<_>>()
                .into_iter()
                .rev()
                .collect();
            if name.starts_with("deck_") || name.starts_with("Vip") {
                names.insert(name);
            }
        }
    }
    names
}

fn exports_are_the_interface() {
    let mut command = Command::new("nm");
    command.args(["-D", "--defined-only", "--with-symbol-versions"]).arg(installed("lib/libudeck.so"));
    let mut exported = BTreeSet::new();
    for line in says(command).lines() {
        let symbol = line.split_whitespace().last().expect("a symbol").to_owned();
        // This line is the version itself.
        if symbol.starts_with("UDECK_") {
            continue;
        }
        let (name, version) = symbol.split_once("@@").unwrap_or((&symbol, "none"));
        assert_eq!(version, "UDECK_0.2", "{line}");
        exported.insert(name.to_owned());
    }
    let declared = declared();
    assert!(declared.contains("deck_mbox_retrv") && declared.contains("deck_init"), "{declared:?}");
    let missing: Vec<_> = declared.difference(&exported).collect();
    let undeclared: Vec<_> = exported.difference(&declared).collect();
    assert!(
        missing.is_empty() && undeclared.is_empty(),
        "declared only: {missing:?}; exported only: {undeclared:?}"
    );
}

/// Checks that the book's table has each call in code of its own, and no other.
fn the_book_has_all_calls() {
    let page = fs::read_to_string(source("docs/c.md")).expect("the page");
    let rest = page.split_once("\n## All calls\n").expect("the table").1;
    let (table, _) = rest.split_once("\n## ").expect("a section after the table");
    let listed: BTreeSet<_> =
        table.split('`').filter(|code| code.starts_with("deck_")).map(str::to_owned).collect();
    let declared: BTreeSet<_> = declared().into_iter().filter(|name| name.starts_with("deck_")).collect();
    assert_eq!(listed, declared);
}

/// Compiles the first block of this language in the page.
fn of_the_book(language: &str, file: &str, compiler: Tool) -> PathBuf {
    let page = fs::read_to_string(source("docs/c.md")).expect("the page");
    let block = page.split_once(&format!("```{language}\n")).and_then(|(_, rest)| rest.split_once("```"));
    let (file, program) = (output(file), output(&format!("{file}.out")));
    fs::write(&file, block.expect("a block").0).expect("a folder of ours");
    let modules: &[&str] = if compiler == Tool::Gfortran { &["-J"] } else { &["-I"] };
    let _ = deckcc(compiler)
        .args(modules)
        .arg(output(""))
        .args(["-Wall", "-Wextra"])
        .arg(&file)
        .arg("-o")
        .arg(&program)
        .run()
        .ok();
    program
}

fn the_book_s_program_in_c_runs() {
    has_said(ranks(&of_the_book("c", "book.c", Tool::Cc), 2, "shm").run(), "rank 1 sent 7");
}

fn the_book_s_program_in_fortran_runs() {
    let ended = ranks(&of_the_book("fortran", "book.f90", Tool::Gfortran), 2, "shm").run().ok();
    assert_eq!(ended.stdout.matches("of").count(), 2, "{ended}");
}

fn has_its_soname() {
    let mut command = Command::new("readelf");
    command.arg("-d").arg(installed("lib/libudeck.so"));
    let said = says(command);
    assert!(said.contains("Library soname: [libudeck.so.0]"), "{said}");
    let link = fs::read_link(installed("lib/libudeck.so.0")).expect("a link");
    assert_eq!(link.to_str(), Some(concat!("libudeck.so.", env!("CARGO_PKG_VERSION"))));
}

/// Checks that the static library links: `deckcc` and `udeck.pc` must name all other libraries.
fn static_library_links() {
    let name = own("pack-static");
    let program = compiled(Tool::Cc, "examples/c/pack.c", &["-static-udeck"], &name);
    let mut command = Command::new("ldd");
    let needed = says({
        command.arg(&program);
        command
    });
    assert!(!needed.contains("libudeck"), "{needed}");
    has_said(alone(&program).run(), "rank 0: a 0 0.0..0.9 \"greetings from rank 0\"");
}

fn pkg_config_links() {
    let mut command = Command::new("pkg-config");
    command.env("PKG_CONFIG_PATH", installed("lib/pkgconfig")).args(["--cflags", "--libs", "udeck"]);
    let flags = says(command);
    let program = output("pack-pkg-config");
    let job = udeck_jobs::Job::new("cc".as_ref()).arg(source("examples/c/pack.c"));
    let _ = job.arg("-o").arg(&program).args(flags.split_whitespace()).run().ok();
    let ended = alone(&program).env("LD_LIBRARY_PATH", installed("lib")).run();
    has_said(ended, "rank 0: a 0 0.0..0.9 \"greetings from rank 0\"");
    let mut command = Command::new("pkg-config");
    command.args(["--define-variable=prefix=/with space", "--cflags", "--libs"]);
    let flags = says({
        command.arg(installed("lib/pkgconfig/udeck.pc"));
        command
    });
    assert_eq!(flags.trim_end(), r"-I/with\ space/include -L/with\ space/lib -ludeck", "as a shell reads it");
}
