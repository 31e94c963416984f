//! Runs of two builds of deckperf in turns: changes of the machine that last for minutes affect both builds.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use super::input::Source;
use udeck_cli::progress;

const MEASURE: &str = "--protocol auto --sizes 8,4K,64K,1M --time 0.5";

/// Runs each of `builds` `pairs` times, and returns the runs.
///
/// # Errors
/// The build that failed, with its error text.
pub fn measure(
    builds: &[&Path; 2],
    pairs: u32,
    args: &[String],
    keep: Option<&Path>,
) -> Result<(Vec<Source>, Vec<Source>), String> {
    let default: Vec<String>;
    let args = if args.is_empty() {
        default = MEASURE.split(' ').map(str::to_owned).collect();
        &default
    } else {
        args
    };
    if let Some(folder) = keep {
        let failed = |error| format!("{}: cannot be made: {error}", folder.display());
        fs::create_dir_all(folder).map_err(failed)?;
    }
    let bar = progress::bar(2 * u64::from(pairs), "both builds in turns");
    let mut sides = [Vec::new(), Vec::new()];
    for pair in 0..pairs {
        // The builds take turns in being the first of a pair.
        let order = if pair.is_multiple_of(2) { [0, 1] } else { [1, 0] };
        for side in order {
            let name = format!("{}{}.json", ["a", "b"][side], pair + 1);
            let text = run(builds[side], args)?;
            if let Some(folder) = keep {
                let file = folder.join(&name);
                fs::write(&file, &text)
                    .map_err(|error| format!("{} cannot be written: {error}", file.display()))?;
            }
            sides[side].push(Source::parse(name, &text)?);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(sides.into())
}

/// Runs a build once. Blocks until it ends; each of its own waits has a deadline.
fn run(build: &Path, args: &[String]) -> Result<String, String> {
    let line = format!("{} {} --format json", build.display(), args.join(" "));
    let mut command = Command::new(build);
    command.args(args).args(["--format", "json"]).stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("`{line}` cannot be started: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{line}` failed ({}): {}", output.status, said.trim()));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("`{line}` printed no text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_that_fails_is_named_with_what_it_said() {
        let args = ["-c", "echo no such option >&2; exit 3"].map(str::to_owned);
        let said = run(Path::new("/bin/sh"), &args).expect_err("it fails");
        assert!(said.contains("/bin/sh -c") && said.contains("exit status: 3"), "{said}");
        assert!(said.ends_with("no such option"), "{said}");
        let said = run(Path::new("/nonexistent/deckperf"), &[]).expect_err("it does not exist");
        assert!(said.contains("cannot be started"), "{said}");
    }

    #[test]
    fn both_run_as_often_and_are_kept() {
        let folder = std::env::temp_dir().join(format!("deckperf-compare-{}", std::process::id()));
        let script = ["-c".to_owned(), format!("echo '{}'", super::super::tests::run("x", &[]))];
        let sh = Path::new("/bin/sh");
        let (a, b) = measure(&[sh, sh], 4, &script, Some(&folder)).expect("they print runs");
        let names = |side: &[Source]| side.iter().map(|source| source.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&a), ["a1.json", "a2.json", "a3.json", "a4.json"]);
        assert_eq!(names(&b), ["b1.json", "b2.json", "b3.json", "b4.json"]);
        assert!(Source::read(&folder.join("b4.json")).is_ok());
        fs::remove_dir_all(&folder).expect("the folder is there");
    }
}
