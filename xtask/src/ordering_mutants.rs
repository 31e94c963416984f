//! Proves that the loom models can fail: weakens each sync point in turn, and expects a model to notice.
//!
//! A sync point is marked by a comment `// SYNC POINT name` right before the line that makes it: an atomic access with
//! Release or Acquire, which is weakened to Relaxed, or a SeqCst fence, which is removed. Works on a copy of the tree.

use crate::child::Cargo;
use crate::workspace::Workspace;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// Folder of the sync points. The models of its package cover them.
const FOLDER: &str = "crates/sys/sync";
const MARK: &str = "// SYNC POINT ";
/// Largest distance in lines from a mark to its marked line.
const WITHIN_LINES: usize = 3;

/// One sync point: a file, and its text with the point weakened.
struct Weakened {
    file: PathBuf,
    place: String,
    text: String,
}

/// Runs the command. `Ok(false)`: a weakened point went unnoticed.
pub fn run(limit: Duration) -> Result<bool, String> {
    let workspace = Workspace::load()?;
    let copy = workspace.target.join("ordering-mutants");
    copy_tree(&workspace.root, &copy)?;
    // The target folder differs from the models' usual one: there cargo would take a weakened build for the real one,
    // which has the same name.
    let target = workspace.target.join("ordering-mutants-target");
    let models = |quiet: bool| {
        let loom = Cargo::new("test --release --lib -p udeck-sys --target-dir")
            .arg(target.to_string_lossy())
            .args(if quiet { "--quiet -- loom_" } else { "-- loom_" })
            .add_flags("RUSTFLAGS", "--cfg loom");
        loom.run(&copy, limit, |_| {}).map_err(|error| format!("running the models: {error}"))
    };
    println!("== the models as they are");
    if let Some(reason) = models(false)? {
        return Err(format!("the models fail before anything is weakened: {reason}"));
    }
    let points = sync_points(&copy)?;
    let mut unnoticed = Vec::new();
    for point in &points {
        println!("== weakened: {}", point.place);
        let original = fs::read_to_string(&point.file).map_err(|error| error.to_string())?;
        fs::write(&point.file, &point.text).map_err(|error| error.to_string())?;
        let outcome = models(true);
        fs::write(&point.file, original).map_err(|error| error.to_string())?;
        if outcome?.is_none() {
            unnoticed.push(&point.place);
        }
    }
    println!("\n{} sync points weakened, {} noticed", points.len(), points.len() - unnoticed.len());
    unnoticed.iter().for_each(|place| println!("no model noticed: {place}"));
    Ok(unnoticed.is_empty() && !points.is_empty())
}

/// Copies the files that git tracks, and those that it does not ignore, in their current state.
fn copy_tree(root: &Path, to: &Path) -> Result<(), String> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("cannot start git, which lists the files to copy: {error}"))?;
    let _ = fs::remove_dir_all(to);
    for name in String::from_utf8_lossy(&listed.stdout).split_terminator('\0') {
        let (from, to) = (root.join(name), to.join(name));
        if !from.is_file() {
            continue;
        }
        let copied = fs::create_dir_all(to.parent().unwrap_or(&to)).and_then(|()| fs::copy(&from, &to));
        copied.map_err(|error| format!("copying {name}: {error}"))?;
    }
    Ok(())
}

fn sync_points(root: &Path) -> Result<Vec<Weakened>, String> {
    let mut points = Vec::new();
    let folder = root.join(FOLDER);
    let entries = fs::read_dir(&folder).map_err(|error| format!("{FOLDER}: {error}"))?;
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    files.sort();
    for file in files {
        let text = fs::read_to_string(&file).map_err(|error| error.to_string())?;
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for (line, weakened) in weaken(&text) {
            let place = format!("{FOLDER}/{name}:{}", line + 1);
            let weakened = weakened.ok_or(format!("{place}: a sync point without an ordering below it"))?;
            points.push(Weakened { file: file.clone(), place, text: weakened });
        }
    }
    Ok(points)
}

/// Line of each mark, and the text with its point weakened (`None`: there is nothing to weaken).
fn weaken(text: &str) -> Vec<(usize, Option<String>)> {
    let lines: Vec<&str> = text.lines().collect();
    let marks = (0..lines.len()).filter(|&at| lines[at].trim_start().starts_with(MARK));
    marks
        .map(|mark| {
            let below = mark + 1..(mark + 1 + WITHIN_LINES).min(lines.len());
            let found = below.into_iter().find_map(|at| Some((at, weaken_line(lines[at])?)));
            let weakened = found.map(|(at, line)| {
                let mut lines = lines.clone();
                lines[at] = &line;
                lines.join("\n")
            });
            (mark, weakened)
        })
        .collect()
}

fn weaken_line(line: &str) -> Option<String> {
    if line.contains("fence(Ordering::SeqCst)") {
        return Some(String::new());
    }
    let strong = ["Ordering::Release", "Ordering::Acquire", "Ordering::AcqRel"];
    let strong = strong.iter().find(|strong| line.contains(*strong))?;
    Some(line.replacen(strong, "Ordering::Relaxed", 1))
}

#[cfg(test)]
mod tests {
    use super::{sync_points, weaken};
    use crate::workspace::Workspace;

    #[test]
    fn the_library_has_sync_points() {
        let root = Workspace::load().unwrap().root;
        assert!(sync_points(&root).unwrap().len() > 20);
    }

    #[test]
    fn each_mark_weakens_its_own_line() {
        let text = "a.store(1, Ordering::Release);\n// SYNC POINT x: why.\nb.store(1, Ordering::Release);\n\
                    // SYNC POINT y\nfence(Ordering::SeqCst);\nc();";
        let points = weaken(text);
        assert_eq!(points.iter().map(|point| point.0).collect::<Vec<_>>(), [1, 3]);
        let first = points[0].1.as_ref().unwrap();
        assert!(
            first.starts_with("a.store(1, Ordering::Release)")
                && first.contains("b.store(1, Ordering::Relaxed)")
        );
        assert!(!points[1].1.as_ref().unwrap().contains("fence"));
    }

    #[test]
    fn a_mark_without_an_ordering_is_told() {
        assert_eq!(weaken("// SYNC POINT x\nplain();\n\n\n"), [(0, None)]);
    }
}
