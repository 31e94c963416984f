//! Cargo's knowledge of this workspace: its root, its target folder, its packages and their dependencies.

use serde_json::Value;
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The command that [`Workspace::load`] runs.
pub const METADATA_ARGS: [&str; 4] = ["metadata", "--format-version", "1", "--no-deps"];

pub struct Workspace {
    pub root: PathBuf,
    pub target: PathBuf,
    pub packages: Vec<Package>,
}

pub struct Package {
    pub name: String,
    /// The package's folder below the root, `.` for the root's own package.
    pub folder: String,
    /// Dependencies on other packages of this workspace, by package name.
    pub uses: Vec<Use>,
    /// First files of its library and programs, below the root.
    pub roots: Vec<String>,
    /// Names of the package's test programs (`tests/*.rs`).
    pub tests: Vec<String>,
    /// Names of the package's programs that have tests of their own: their manifest does not say `test =
    /// false`.
    pub tested_bins: Vec<String>,
}

pub struct Use {
    pub name: String,
    pub dev: bool,
}

/// The cargo that runs this program, so that the user's choice of toolchain holds.
pub fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Asks cargo for its knowledge of the workspace.
pub fn metadata() -> Result<Value, String> {
    let output = Command::new(cargo())
        .args(METADATA_ARGS)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("cannot start `cargo metadata`: {e}"))?;
    if !output.status.success() {
        return Err(format!("`cargo metadata` failed ({}): its message is above", output.status));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("`cargo metadata`: {error}"))
}

impl Workspace {
    pub fn load() -> Result<Self, String> {
        Self::parse(&metadata()?)
            .map_err(|what| format!("`cargo metadata` printed something unexpected: {what}"))
    }

    fn parse(metadata: &Value) -> Result<Self, String> {
        let root = PathBuf::from(text(metadata, "workspace_root")?);
        let target = PathBuf::from(text(metadata, "target_directory")?);
        let described = list(metadata, "packages")?;
        let names = described.iter().map(|p| text(p, "name")).collect::<Result<Vec<_>, _>>()?;
        let packages =
            described.iter().map(|p| Package::parse(p, &root, &names)).collect::<Result<_, _>>()?;
        Ok(Self { root, target, packages })
    }
}

impl Package {
    fn parse(described: &Value, root: &Path, ours: &[&str]) -> Result<Self, String> {
        let name = text(described, "name")?.to_owned();
        let manifest = below(root, text(described, "manifest_path")?)?;
        let folder = manifest.strip_suffix("/Cargo.toml").unwrap_or(".").to_owned();
        let mut uses = Vec::new();
        for dependency in list(described, "dependencies")? {
            let name = text(dependency, "name")?;
            if ours.contains(&name) {
                uses.push(Use { name: name.to_owned(), dev: dependency["kind"] == "dev" });
            }
        }
        let targets = list(described, "targets")?;
        let names = |wanted: &dyn Fn(&Value) -> bool| {
            let chosen = targets.iter().filter(|target| wanted(target));
            chosen.map(|target| text(target, "name").map(str::to_owned)).collect::<Result<_, _>>()
        };
        let tests = names(&|target| target["kind"][0] == "test")?;
        const OTHERS: [&str; 4] = ["test", "example", "bench", "custom-build"];
        let shipped = targets.iter().filter(|target| OTHERS.iter().all(|kind| target["kind"][0] != *kind));
        let roots = shipped.map(|target| Ok(below(root, text(target, "src_path")?)?.to_owned()));
        let roots = roots.collect::<Result<_, String>>()?;
        let tested_bins = names(&|target| target["kind"][0] == "bin" && target["test"] == true)?;
        Ok(Self { name, folder, uses, roots, tests, tested_bins })
    }

    /// Path of the manifest, below the root.
    pub fn manifest(&self) -> String {
        if self.folder == "." { "Cargo.toml".into() } else { format!("{}/Cargo.toml", self.folder) }
    }
}

fn below<'a>(root: &Path, path: &'a str) -> Result<&'a str, String> {
    let below = Path::new(path).strip_prefix(root).ok().and_then(Path::to_str);
    below.ok_or_else(|| format!("{path} lies outside {}", root.display()))
}

fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str, String> {
    value[key].as_str().ok_or_else(|| format!("no text `{key}`"))
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>, String> {
    value[key].as_array().ok_or_else(|| format!("no list `{key}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const METADATA: &str = r#"{
        "workspace_root": "/w", "target_directory": "/w/target",
        "packages": [
            {"name": "udeck", "manifest_path": "/w/Cargo.toml", "dependencies": [
                {"name": "udeck-sys", "kind": null}, {"name": "libc", "kind": null}], "targets": [
                {"name": "udeck", "kind": ["lib"], "src_path": "/w/src/lib.rs", "test": true},
                {"name": "it", "kind": ["test"], "src_path": "/w/tests/it/main.rs", "test": true},
                {"name": "tool", "kind": ["bin"], "src_path": "/w/src/tool.rs", "test": true},
                {"name": "rank", "kind": ["bin"], "src_path": "/w/src/rank.rs", "test": false}]},
            {"name": "udeck-sys", "manifest_path": "/w/crates/sys/Cargo.toml", "dependencies": [
                {"name": "udeck", "kind": "dev"}], "targets": []}
        ]}"#;

    #[test]
    fn packages_are_placed_below_the_root_and_foreign_dependencies_left_out() {
        let workspace = Workspace::parse(&serde_json::from_str(METADATA).unwrap()).unwrap();
        let [umbrella, sys] = &workspace.packages[..] else { panic!("two packages") };
        assert_eq!((umbrella.folder.as_str(), umbrella.manifest().as_str()), (".", "Cargo.toml"));
        assert_eq!((sys.folder.as_str(), sys.manifest().as_str()), ("crates/sys", "crates/sys/Cargo.toml"));
        assert_eq!(umbrella.uses.len(), 1, "libc is not ours");
        assert!(!umbrella.uses[0].dev && sys.uses[0].dev);
        assert_eq!((&umbrella.tests[..], sys.tests.len()), (&["it".to_owned()][..], 0));
        assert_eq!(umbrella.tested_bins, ["tool"]);
        assert_eq!(umbrella.roots, ["src/lib.rs", "src/tool.rs", "src/rank.rs"]);
    }

    #[test]
    fn metadata_without_its_fields_is_an_error_that_names_the_field() {
        let problem = Workspace::parse(&Value::Null).err().expect("refused");
        assert!(problem.contains("workspace_root"), "{problem}");
    }
}
