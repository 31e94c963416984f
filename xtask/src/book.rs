//! Checks of the documents: every page is in the book, every link leads somewhere, and short documents stay
//! short.
//!
//! The book is `docs/`, for mdBook. Its checks need no mdBook; where mdBook is installed, the book is built as well,
//! into `target/book`. The step `doc` checks that the Rust samples compile (`src/book.rs`).

mod errors;
mod index;
mod markdown;

use crate::{
    child,
    counts::StepReport,
    files::{below, read, write},
    workspace::Workspace,
};
use std::{
    collections::BTreeSet,
    fs,
    path::{Component, Path, PathBuf},
    process::Command,
    time::Duration,
};

/// Documents that are read as a whole, with their largest number of lines.
const SHORT: [(&str, usize); 2] = [("README.md", 120), ("ARCHITECTURE.md", 150)];
/// Folders at the root that hold files named in documents.
const TOP: [&str; 10] = [
    "bench-apps/",
    "benches/",
    "bindings/",
    "crates/",
    "docs/",
    "examples/",
    "src/",
    "tests/",
    "transports/",
    "xtask/",
];
/// Folder of a record of findings, whose file names are those of their day.
const FINDINGS: &str = "tests/mutants";
/// File that turns samples into tests.
const SAMPLES: &str = "src/book.rs";
/// File with the list of known variables, and the page that explains them.
const KNOWN: &str = "src/settings.rs";
const SETTINGS: &str = "docs/settings.md";

/// Checks the documents and builds the book. Each kind of check counts as one.
pub fn check(workspace: &Workspace, limit: Duration) -> StepReport {
    let mut report = StepReport::default();
    let root = &workspace.root;
    for checked in [
        contents(root),
        samples(root),
        links(root),
        paths(root),
        lengths(root),
        settings(root),
        errors::check(root),
        index::check(root),
    ] {
        match checked {
            Ok(problems) if problems.is_empty() => report.passed += 1,
            Ok(problems) => report.problems.extend(problems),
            Err(problem) => report.problems.push(problem),
        }
    }
    match build(workspace, limit) {
        Ok(None) => report.passed += 1,
        Ok(reason) => report.skipped = reason,
        Err(problem) => report.problems.push(problem),
    }
    report.problems.iter().for_each(|problem| println!("{problem}"));
    report
}

/// Checks that every page in SUMMARY.md exists, and that every page is in SUMMARY.md.
fn contents(root: &Path) -> Result<Vec<String>, String> {
    let docs = root.join("docs");
    let summary = read(&docs.join("SUMMARY.md"))?;
    let listed: BTreeSet<_> =
        markdown::links(&summary).into_iter().map(|link| PathBuf::from(link.target)).collect();
    let mut pages = BTreeSet::new();
    for page in documents(&docs)? {
        pages.insert(page.strip_prefix(&docs).expect("below docs").to_path_buf());
    }
    pages.remove(Path::new("SUMMARY.md"));
    println!("{} pages in docs/", pages.len());
    let missing =
        listed.difference(&pages).map(|page| format!("docs/SUMMARY.md: there is no {}", page.display()));
    let forgotten =
        pages.difference(&listed).map(|page| format!("docs/{}: not in docs/SUMMARY.md", page.display()));
    Ok(missing.chain(forgotten).collect())
}

/// Checks that every page with Rust samples is among the tests.
fn samples(root: &Path) -> Result<Vec<String>, String> {
    let tests = read(&root.join(SAMPLES))?;
    let mut problems = Vec::new();
    for page in documents(&root.join("docs"))? {
        let shown = page.strip_prefix(root).expect("below the root").display();
        if read(&page)?.contains("```rust") && !tests.contains(&format!("\"../{shown}\"")) {
            problems.push(format!("{shown}: its samples are not tested: add it to {SAMPLES}"));
        }
    }
    Ok(problems)
}

/// Checks that every relative link of every document leads to a file, and to a heading if it names one.
fn links(root: &Path) -> Result<Vec<String>, String> {
    let (mut problems, mut count) = (Vec::new(), 0);
    for document in documents(root)? {
        let text = read(&document)?;
        for link in markdown::links(&text).iter().filter(|link| !is_foreign(link.target)) {
            count += 1;
            if let Err(why) = follow(&document, link.target) {
                let shown = document.strip_prefix(root).unwrap_or(&document).display();
                problems.push(format!("{shown}:{}: {}: {why}", link.line, link.target));
            }
        }
    }
    println!("{count} links between documents");
    Ok(problems)
}

/// Checks that every path in a document exists, from the root or from the document's folder. (A record of changes may
/// name files that are gone.)
fn paths(root: &Path) -> Result<Vec<String>, String> {
    let (mut problems, mut count) = (Vec::new(), 0);
    for document in documents(root)? {
        let shown = document.strip_prefix(root).unwrap_or(&document).display().to_string();
        if shown == "CHANGELOG.md" || shown.starts_with(FINDINGS) {
            continue;
        }
        for (path, line) in
            markdown::code_spans(&read(&document)?).into_iter().filter(|(span, _)| is_path(span))
        {
            count += 1;
            let names = [root.join(path), root.join(format!("{path}.rs")), resolved(&document, path)];
            if !names.iter().any(|name| name.exists()) {
                problems.push(format!("{shown}:{line}: {path}: there is no such file"));
            }
        }
    }
    println!("{count} paths named");
    Ok(problems)
}

/// Whether the span is a path from the root: it begins with one of the top folders, and contains no placeholder.
fn is_path(span: &str) -> bool {
    let plain = |char: char| char.is_ascii_alphanumeric() || "/._-".contains(char);
    TOP.iter().any(|top| span.starts_with(top)) && span.chars().all(plain)
}

fn lengths(root: &Path) -> Result<Vec<String>, String> {
    let mut problems = Vec::new();
    for (document, most) in SHORT {
        let lines = read(&root.join(document))?.lines().count();
        println!("{document}: {lines} lines of at most {most}");
        if lines > most {
            problems.push(format!("{document}: {lines} lines, at most {most}: move something into docs/"));
        }
    }
    Ok(problems)
}

/// Checks that every variable that the library knows is explained.
fn settings(root: &Path) -> Result<Vec<String>, String> {
    let (known, page) = (read(&root.join(KNOWN))?, read(&root.join(SETTINGS))?);
    let names = variables(&known);
    if names.is_empty() {
        return Err(format!("{KNOWN}: no list KNOWN of variables"));
    }
    let unexplained = names.into_iter().filter(|name| !page.contains(&format!("`{name}`")));
    Ok(unexplained.map(|name| format!("{SETTINGS}: nothing about {name}, which {KNOWN} has")).collect())
}

fn variables(source: &str) -> Vec<&str> {
    let list = source.split_once("const KNOWN").and_then(|(_, rest)| rest.split_once("];"));
    let quoted = list.map_or("", |(list, _)| list).split('"').skip(1).step_by(2);
    quoted.filter(|name| name.starts_with("DECK_")).collect()
}

/// Builds the book; `Ok(Some(reason))`: it was skipped.
///
/// A link that leaves `docs/` works in a checkout, but would lead nowhere in the built book. mdBook therefore gets a copy
/// of the pages, in which such links lead to the repository.
fn build(workspace: &Workspace, limit: Duration) -> Result<Option<String>, String> {
    if Command::new("mdbook").arg("--version").output().is_err() {
        return Ok(Some("mdbook is not installed (cargo install mdbook): the book was not built".into()));
    }
    let (docs, copy) = (workspace.root.join("docs"), workspace.target.join("book-pages"));
    let config = read(&docs.join("book.toml"))?;
    let repository = config.lines().find_map(|line| line.strip_prefix("git-repository-url = "));
    let repository = repository.ok_or("docs/book.toml: no git-repository-url")?.trim_matches('"');
    // The copy is removed, because an earlier build may have left pages that no longer exist.
    let _ = fs::remove_dir_all(&copy);
    write(&copy.join("book.toml"), &config)?;
    copy_pages(&workspace.root, &copy, repository)?;
    let book = workspace.target.join("book");
    let mut command = Command::new("mdbook");
    command.arg("build").arg(&copy).arg("--dest-dir").arg(&book);
    println!("    $ mdbook build {} --dest-dir {}", copy.display(), book.display());
    let ended = child::run(command, limit, |line| println!("{line}"));
    match ended.map_err(|error| format!("cannot run mdbook: {error}"))? {
        Some(problem) => Err(format!("mdbook build: {problem}")),
        None => Ok(None),
    }
}

/// Copies the pages and their pictures.
fn copy_pages(root: &Path, copy: &Path, repository: &str) -> Result<(), String> {
    let docs = root.join("docs");
    let place = |file: &Path| copy.join(file.strip_prefix(&docs).expect("below docs"));
    for page in documents(&docs)? {
        write(&place(&page), outward(root, &page, &read(&page)?, repository))?;
    }
    for picture in below(&docs, ".png")? {
        let bytes =
            fs::read(&picture).map_err(|error| format!("cannot read {}: {error}", picture.display()))?;
        write(&place(&picture), bytes)?;
    }
    Ok(())
}

/// The page's text, with links that leave `docs/` changed to lead to the repository.
fn outward(root: &Path, page: &Path, text: &str, repository: &str) -> String {
    let mut changed = text.to_owned();
    for link in markdown::links(text).into_iter().rev().filter(|link| !is_foreign(link.target)) {
        let (file, anchor) = parts(link.target);
        let to = resolved(page, file);
        let Ok(to) = to.strip_prefix(root) else { continue };
        if !to.starts_with("docs") {
            let anchor = anchor.map_or(String::new(), |anchor| format!("#{anchor}"));
            changed.replace_range(link.at, &format!("{repository}/blob/main/{}{anchor}", to.display()));
        }
    }
    changed
}

/// Whether the target lies outside of the repository.
fn is_foreign(target: &str) -> bool {
    target.contains("://") || target.starts_with("mailto:")
}

fn follow(document: &Path, target: &str) -> Result<(), String> {
    let (file, anchor) = parts(target);
    let to = if file.is_empty() { document.to_path_buf() } else { resolved(document, file) };
    if !to.exists() {
        return Err("there is no such file".into());
    }
    let Some(anchor) = anchor else { return Ok(()) };
    match markdown::anchors(&read(&to)?).iter().any(|one| one == anchor) {
        true => Ok(()),
        false => Err("the file has no such heading".into()),
    }
}

fn parts(target: &str) -> (&str, Option<&str>) {
    target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)))
}

/// Path to which a relative link in this document leads, without `.` and `..`.
fn resolved(document: &Path, file: &str) -> PathBuf {
    let mut to = document.parent().unwrap_or(document).to_path_buf();
    for part in Path::new(file).components() {
        match part {
            Component::ParentDir => _ = to.pop(),
            Component::CurDir => {}
            part => to.push(part),
        }
    }
    to
}

/// All Markdown files below a folder.
fn documents(folder: &Path) -> Result<Vec<PathBuf>, String> {
    below(folder, ".md")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a folder of its own for a test, with these files.
    fn folder(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("udeck-book-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        files.iter().for_each(|(path, text)| write(&folder.join(path), text).unwrap());
        folder
    }

    #[test]
    fn pages_and_summary_have_to_agree() {
        let root = folder(
            "contents",
            &[("docs/SUMMARY.md", "- [a](a.md)\n- [b](in/b.md)\n"), ("docs/a.md", ""), ("docs/in/c.md", "")],
        );
        let problems = contents(&root).unwrap();
        assert_eq!(
            problems,
            ["docs/SUMMARY.md: there is no in/b.md", "docs/in/c.md: not in docs/SUMMARY.md"]
        );
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn samples_that_nobody_tests_are_found() {
        let (page, tests) = ("```rust\nfn main() {}\n```\n", "include_str!(\"../docs/a.md\")");
        let root = folder("samples", &[("docs/a.md", page), ("docs/b.md", page), (SAMPLES, tests)]);
        assert_eq!(samples(&root).unwrap(), ["docs/b.md: its samples are not tested: add it to src/book.rs"]);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_link_to_no_file_or_no_heading_is_found() {
        let page = "[a](../a.md#one) [b](../a.md#two) [c](c.md) [d](#here) [e](https://x.y/z.md)\n# Here\n";
        let root = folder("links", &[("a.md", "# One\n"), ("docs/p.md", page)]);
        let problems = links(&root).unwrap();
        assert_eq!(
            problems,
            [
                "docs/p.md:1: ../a.md#two: the file has no such heading",
                "docs/p.md:1: c.md: there is no such file",
            ]
        );
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_path_to_nothing_is_found() {
        let page = "`src/a.rs`, `src/b`, `src/gone.rs`, `src/{a,c}.rs`, `elsewhere/x`\n";
        let root = folder("paths", &[("src/a.rs", ""), ("src/b.rs", ""), ("P.md", page)]);
        assert_eq!(paths(&root).unwrap(), ["P.md:1: src/gone.rs: there is no such file"]);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn links_out_of_the_book_lead_to_the_repository() {
        let text = "[a](../../SAFETY.md#x), [b](../b.md), [c](../../src/lib.rs)";
        let page = Path::new("/r/docs/in/p.md");
        let expected =
            "[a](https://h/u/blob/main/SAFETY.md#x), [b](../b.md), [c](https://h/u/blob/main/src/lib.rs)";
        assert_eq!(outward(Path::new("/r"), page, text, "https://h/u"), expected);
    }

    #[test]
    fn the_copy_for_mdbook_has_the_pictures_of_the_pages() {
        let root =
            folder("pictures", &[("docs/a.md", "![p](in/p.png) [s](../S.md)"), ("docs/in/p.png", "p")]);
        let copy = root.join("copy");
        copy_pages(&root, &copy, "https://h/u").unwrap();
        assert_eq!(read(&copy.join("a.md")).unwrap(), "![p](in/p.png) [s](https://h/u/blob/main/S.md)");
        assert_eq!(read(&copy.join("in/p.png")).unwrap(), "p");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_variable_without_explanation_is_found() {
        let source = "const KNOWN: &[&str] = &[\n    \"DECK_A\",\n    \"DECK_B\",\n];\nconst OTHER: &str = \"DECK_C\";";
        assert_eq!(variables(source), ["DECK_A", "DECK_B"]);
        let root = folder("settings", &[(KNOWN, source), (SETTINGS, "| `DECK_B` | 1 |")]);
        assert_eq!(
            settings(&root).unwrap(),
            ["docs/settings.md: nothing about DECK_A, which src/settings.rs has"]
        );
        fs::remove_dir_all(root).unwrap();
    }
}
