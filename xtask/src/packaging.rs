//! Checks of the packages that are published, by a registry's rules, without building or sending anything; and, where it is
//! installed, cargo-deny over their dependencies (`deny.toml`).
//!
//! The complete check, with every package built from its archive, is `cargo publish --workspace --dry-run`.

use crate::{
    child,
    counts::StepReport,
    workspace::{Workspace, cargo, metadata},
};
use serde_json::Value;
use std::{path::Path, process::Command, time::Duration};

/// Fields that every published package must have.
const FIELDS: [&str; 7] =
    ["description", "license", "repository", "readme", "keywords", "categories", "rust_version"];
const LICENCES: [&str; 2] = ["LICENSE-MIT", "LICENSE-APACHE"];
/// Checks of cargo-deny that need no network, and those that need it.
const DENY: [&str; 2] = ["licenses bans sources", "advisories"];
/// Message of cargo-deny if it cannot reach the list of advisories.
const NO_ADVISORIES: &str = "failed to fetch advisory database";

/// Runs all checks. Each kind counts as one.
pub fn check(workspace: &Workspace, limit: Duration) -> StepReport {
    let mut report = StepReport::default();
    match metadata() {
        Ok(metadata) => {
            let published: Vec<_> = list(&metadata, "packages").iter().filter(|p| is_published(p)).collect();
            println!("{} packages are published", published.len());
            let problems: Vec<_> =
                published.iter().flat_map(|package| problems(package, &list_names(&published))).collect();
            report.passed += u64::from(problems.is_empty());
            report.problems.extend(problems);
            match archives(workspace, &published, limit) {
                None => report.passed += 1,
                Some(problem) => report.problems.push(problem),
            }
        }
        Err(problem) => report.problems.push(problem),
    }
    for what in DENY {
        match deny(workspace, what, limit) {
            Ok(None) => report.passed += 1,
            Ok(skipped) => report.skipped = skipped,
            Err(problem) => report.problems.push(problem),
        }
    }
    report.problems.iter().for_each(|problem| println!("{problem}"));
    report
}

/// Whether the package is published. `publish` is a list of registries, or null for all; `false` in the
/// manifest is the empty list.
fn is_published(package: &Value) -> bool {
    package["publish"].as_array().is_none_or(|registries| !registries.is_empty())
}

fn list<'a>(of: &'a Value, name: &str) -> &'a [Value] {
    of[name].as_array().map_or(&[], Vec::as_slice)
}

fn list_names<'a>(packages: &[&'a Value]) -> Vec<&'a str> {
    packages.iter().filter_map(|package| package["name"].as_str()).collect()
}

/// Reasons why this package cannot be published together with these.
fn problems(package: &Value, published: &[&str]) -> Vec<String> {
    let name = package["name"].as_str().unwrap_or("?");
    let is_missing = |field: &&str| match &package[*field] {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        _ => false,
    };
    let mut found: Vec<_> =
        FIELDS.iter().filter(|field| is_missing(field)).map(|field| format!("{name}: no {field}")).collect();
    let folder = Path::new(package["manifest_path"].as_str().unwrap_or_default()).parent();
    for file in LICENCES {
        if folder.is_some_and(|folder| !folder.join(file).exists()) {
            found.push(format!("{name}: no {file} in its folder"));
        }
    }
    for used in list(package, "dependencies").iter().filter(|used| !used["path"].is_null()) {
        let (its, dev) = (used["name"].as_str().unwrap_or("?"), used["kind"] == "dev");
        let (has_version, exists) = (used["req"] != "*", published.contains(&its));
        if !(dev || has_version && exists) {
            found.push(format!("{name} -> {its}: has no version, or that package is not published"));
        }
        if dev && has_version && !exists {
            found.push(format!("{name} -> {its} (dev): has a version, but that package is not published"));
        }
    }
    found
}

/// Lists the contents of each archive: cargo checks the manifests, and the files that they name.
fn archives(workspace: &Workspace, published: &[&Value], limit: Duration) -> Option<String> {
    println!("    $ cargo package --list --allow-dirty -p ... (each that is published)");
    let mut command = Command::new(cargo());
    command.args(["package", "--list", "--allow-dirty", "--quiet"]).current_dir(&workspace.root);
    list_names(published).into_iter().for_each(|name| _ = command.args(["-p", name]));
    quietly(command, limit).err().map(|why| format!("`cargo package --list`: {why}"))
}

/// Runs cargo-deny. `Ok(Some(reason))`: it was skipped.
fn deny(workspace: &Workspace, what: &str, limit: Duration) -> Result<Option<String>, String> {
    if Command::new("cargo-deny").arg("--version").output().is_err() {
        let why = "cargo-deny is not installed (cargo install cargo-deny): licences and advisories were not looked at";
        return Ok(Some(why.into()));
    }
    println!("    $ cargo deny check {what}");
    let mut command = Command::new("cargo-deny");
    command.arg("check").args(what.split(' ')).current_dir(&workspace.root);
    match quietly(command, limit) {
        Ok(()) => Ok(None),
        Err(why) if why.contains(NO_ADVISORIES) => {
            Ok(Some("cargo-deny cannot reach the list of advisories: it was not looked at".into()))
        }
        Err(why) => Err(format!("cargo deny check {what}: {why}")),
    }
}

/// Runs a command without showing its output. If it fails, the output is the error.
fn quietly(command: Command, limit: Duration) -> Result<(), String> {
    let mut lines = Vec::new();
    match child::run(command, limit, |line| lines.push(line.to_owned())) {
        Ok(None) => Ok(()),
        Ok(Some(why)) => Err(format!("{why}\n{}", lines.join("\n"))),
        Err(error) => Err(format!("cannot run it: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn package(name: &str, dependencies: Value) -> Value {
        json!({
            "name": name, "description": "d", "license": "MIT", "repository": "r", "readme": "README.md",
            "keywords": ["k"], "categories": ["c"], "rust_version": "1.88", "publish": null,
            "manifest_path": concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"), "dependencies": dependencies,
        })
    }

    fn used(name: &str, req: &str, kind: Value) -> Value {
        json!({ "name": name, "req": req, "kind": kind, "path": "/w/x" })
    }

    #[test]
    fn a_package_that_says_everything_has_no_problem() {
        let all = json!([used("sys", "=0.2.0", Value::Null), used("mock", "*", json!("dev"))]);
        assert_eq!(problems(&package("deck", all), &["deck", "sys"]), Vec::<String>::new());
    }

    #[test]
    fn what_a_registry_would_refuse_is_named() {
        let mut bare = package("deck", json!([]));
        (bare["description"], bare["keywords"]) = (Value::Null, json!([]));
        assert_eq!(problems(&bare, &["deck"]), ["deck: no description", "deck: no keywords"]);
        for (uses, found) in [
            (used("sys", "*", Value::Null), 1),
            (used("mock", "=0.2.0", Value::Null), 1),
            (used("mock", "=0.2.0", json!("dev")), 1),
        ] {
            assert_eq!(problems(&package("deck", json!([uses])), &["deck", "sys"]).len(), found, "{uses}");
        }
    }

    #[test]
    fn only_an_empty_list_of_registries_keeps_a_package_back() {
        assert!(is_published(&json!({ "publish": null })) && is_published(&json!({ "publish": ["mine"] })));
        assert!(!is_published(&json!({ "publish": [] })));
    }
}
