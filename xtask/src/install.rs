//! `cargo xtask install`: the library for C, its headers, the compiler wrapper, the provider for uDAPL's registry, the launcher, the
//! measuring programs and the planner, in a folder.
//! The programs write their manual pages and completions themselves.
//!
//! The shared library is linked here and not by rustc, whose own list of exported symbols cannot be combined with another. The
//! list here names the interface, and the version of its symbols.

use crate::{
    child::{self, Cargo},
    workspace::Workspace,
};
use clap::Args;
use std::{
    env, fs, io,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf, absolute},
    process::{Command, Stdio},
    time::Duration,
};

#[derive(Args)]
pub struct InstallOptions {
    /// The folder that gets bin, lib, include and share
    #[arg(long, value_name = "DIR")]
    prefix: PathBuf,

    /// Build nothing: install what lies in this folder, such as target/release
    ///
    /// Files that it does not have are left out and named, but for the library and deckrun.
    #[arg(long, value_name = "FOLDER")]
    from: Option<PathBuf>,
}

const BUILD: &str = "build --release -p udeck-capi -p udeck-dat -p deckrun -p deckperf -p deckqos -p deckfabric -p nas-ft -p hadb";
const BUILD_LIMIT: Duration = Duration::from_secs(3600);
const LINK_LIMIT: Duration = Duration::from_secs(300);

const LAUNCHER: &str = "deckrun";
/// Installed programs. Users measure on their cluster, so the measuring programs are installed, too.
const PROGRAMS: [&str; 6] = [LAUNCHER, "deckperf", "deckqos", "deckfabric", "nas-ft", "hadb"];
/// Files that a program generates about itself, and the paths where they belong.
const PAGES: [(&str, &str); 4] = [
    ("man", "share/man/man1/@.1"),
    ("bash", "share/bash-completion/completions/@"),
    ("zsh", "share/zsh/site-functions/_@"),
    ("fish", "share/fish/vendor_completions.d/@.fish"),
];
const PAGE_LIMIT: Duration = Duration::from_secs(60);

/// Folder of the C interface: Rust sources, headers and other files.
const SOURCES: &str = "bindings/c";
/// Libraries that a program needs if it links the static library: `rustc --print native-static-libs`. (`tests/bindings/capi`
/// links one.)
const LIBS_PRIVATE: &str = "-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc";
const VERSION: &str = env!("CARGO_PKG_VERSION");
const URL: &str = "https://github.com/udeck/udeck";
/// Soname. It changes when programs that were linked before can no longer run with the library.
const SONAME: &str = "libudeck.so.0";

/// Cargo's file name of the provider for uDAPL's registry.
const PROVIDER: &str = "libudeck_dat.so";
/// Soname of the provider, with the same rule as `SONAME`.
const DAT_SONAME: &str = "libudeck-dat.so.0";

/// Builds and installs; prints the installed files, and what to type next.
pub fn run(options: &InstallOptions) -> Result<bool, String> {
    let workspace = Workspace::load()?;
    let install = Install {
        prefix: absolute(&options.prefix)
            .map_err(|error| format!("{}: {error}", options.prefix.display()))?,
        sources: workspace.root.join(SOURCES),
        is_whole: options.from.is_none(),
        built: options.from.clone().unwrap_or_else(|| workspace.target.join("release")),
    };
    install.check()?;
    if options.from.is_none() {
        let build = Cargo::new(BUILD);
        println!("    $ {build}");
        let ended = build.run(&workspace.root, BUILD_LIMIT, |_| {}).map_err(|error| error.to_string())?;
        if let Some(problem) = ended {
            return Err(format!("`{build}`: {problem}"));
        }
    }
    let installed = install.all()?;
    install.report(&installed);
    Ok(true)
}

struct Install {
    prefix: PathBuf,
    sources: PathBuf,
    built: PathBuf,
    /// Whether everything has been built in this folder.
    is_whole: bool,
}

/// The linking compiler, as words.
fn compiler() -> Vec<String> {
    let named = env::var("CC").unwrap_or_default();
    let words: Vec<String> = named.split_whitespace().map(str::to_owned).collect();
    if words.is_empty() { vec!["cc".into()] } else { words }
}

fn check_compiler(words: &[String]) -> Result<(), String> {
    let found = Command::new(&words[0]).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    found.map(drop).map_err(|error| {
        format!(
            "no C compiler {}: {error}. Install one (Debian: gcc), or name another one by CC; the shared library is linked with it",
            words[0]
        )
    })
}

impl Install {
    /// Checks the compiler and the prefix, so that their failures come before minutes of building.
    fn check(&self) -> Result<(), String> {
        check_compiler(&compiler())?;
        self.check_prefix()
    }

    fn check_prefix(&self) -> Result<(), String> {
        let pages = PAGES.map(|(_, path)| path.rsplit_once('/').map_or(path, |(folder, _)| folder));
        for folder in ["bin", "lib/pkgconfig", "include", "etc"].into_iter().chain(pages) {
            let path = self.prefix.join(folder);
            let probe = path.join(".udeck-probe");
            fs::create_dir_all(&path).and_then(|()| fs::write(&probe, "")).map_err(|error| {
                format!("{} cannot be written: {error}. Choose another folder by --prefix", path.display())
            })?;
            let _ = fs::remove_file(probe);
        }
        Ok(())
    }

    /// Installs everything, and returns the paths below the prefix.
    fn all(&self) -> Result<Vec<String>, String> {
        let mut installed = Vec::new();
        let archive = self.built.join("libudeck_capi.a");
        let full = format!("lib/libudeck.so.{VERSION}");
        self.put(&full, |to| link_shared(&archive, &self.sources.join("udeck.map"), to))?;
        self.link(&format!("lib/{SONAME}"), &full)?;
        self.link("lib/libudeck.so", SONAME)?;
        self.put("lib/libudeck.a", |to| copy(&archive, to).and_then(|()| strip(to)))?;
        installed.extend([&full, "lib/libudeck.a"].map(|path| path.to_string()));
        if self.is_wanted(PROVIDER) {
            installed.extend(self.provider()?);
        }
        for program in PROGRAMS.into_iter().filter(|program| *program == LAUNCHER || self.is_wanted(program))
        {
            installed.extend(self.program(program)?);
        }
        for (template, path, mode) in
            [("deckcc", "bin/deckcc", 0o755), ("udeck.pc", "lib/pkgconfig/udeck.pc", 0o644)]
        {
            let text = self.filled(&self.sources.join("install").join(template))?;
            self.put(path, |to| {
                written(fs::write(to, &text), to)?;
                written(fs::set_permissions(to, fs::Permissions::from_mode(mode)), to)
            })?;
            installed.push(path.into());
        }
        for header in self.headers()? {
            let name = header.file_name().unwrap_or_default().to_string_lossy();
            let path = format!("include/{name}");
            self.put(&path, |to| copy(&header, to))?;
            installed.push(path);
        }
        Ok(installed)
    }

    /// Whether the file was built, or should have been.
    fn is_wanted(&self, name: &str) -> bool {
        let is_wanted = self.is_whole || self.built.join(name).exists();
        if !is_wanted {
            println!("not in {}: {name}", self.built.display());
        }
        is_wanted
    }

    /// Installs the library that uDAPL's registry loads, and a dat.conf that names it.
    fn provider(&self) -> Result<[String; 2], String> {
        let built = self.built.join(PROVIDER);
        let library = format!("lib/{DAT_SONAME}");
        self.put(&library, |to| copy(&built, to).and_then(|()| strip(to)))?;
        let conf = "etc/dat.conf".to_owned();
        let text = dat_conf(&self.prefix.join(&library));
        self.put(&conf, |to| written(fs::write(to, &text), to))?;
        Ok([library, conf])
    }

    /// Installs a program, and the files that it generates about itself.
    fn program(&self, name: &str) -> Result<Vec<String>, String> {
        let built = self.built.join(name);
        let mut installed = vec![format!("bin/{name}")];
        self.put(&installed[0], |to| copy(&built, to).and_then(|()| strip(to)))?;
        for (what, place) in PAGES {
            let path = place.replace('@', name);
            self.put(&path, |to| written(fs::write(to, page(&built, what)?), to))?;
            installed.push(path);
        }
        Ok(installed)
    }

    /// Makes a file under another name, and moves it to its place: a program that has the old file open keeps it.
    fn put(&self, path: &str, make: impl FnOnce(&Path) -> Result<(), String>) -> Result<(), String> {
        let to = self.prefix.join(path);
        let new = to.with_file_name(format!(".{}.new", to.file_name().unwrap_or_default().to_string_lossy()));
        make(&new)?;
        written(fs::rename(&new, &to), &to)
    }

    /// Makes a link to a file of the same folder.
    fn link(&self, path: &str, to: &str) -> Result<(), String> {
        let name = Path::new(to).file_name().unwrap_or_default();
        self.put(path, |link| {
            let _ = fs::remove_file(link);
            written(symlink(name, link), link)
        })
    }

    fn filled(&self, template: &Path) -> Result<String, String> {
        let text =
            fs::read_to_string(template).map_err(|error| format!("{}: {error}", template.display()))?;
        let prefix = self.prefix.display().to_string();
        let values =
            [("PREFIX", prefix.as_str()), ("VERSION", VERSION), ("URL", URL), ("LIBS_PRIVATE", LIBS_PRIVATE)];
        Ok(values.into_iter().fold(text, |text, (name, value)| text.replace(&format!("@{name}@"), value)))
    }

    /// All files in the folder of headers; for Fortran, too.
    fn headers(&self) -> Result<Vec<PathBuf>, String> {
        let folder = self.sources.join("include");
        let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let mut headers: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        headers.sort();
        Ok(headers)
    }

    fn report(&self, installed: &[String]) {
        let prefix = self.prefix.display();
        println!("installed in {prefix}:");
        installed.iter().for_each(|path| println!("    {path}"));
        println!(
            "\nA program in C, and three ranks of it:\n    {prefix}/bin/deckcc examples/c/pack.c -o pack\n    {prefix}/bin/deckrun -n 3 -- \
             ./pack\nWith your own build: PKG_CONFIG_PATH={prefix}/lib/pkgconfig pkg-config --cflags --libs udeck\n\
             How fast it is here: {prefix}/bin/deckperf. Manual pages: man -M {prefix}/share/man deckrun. bash and fish complete\n\
             options where {prefix}/share is among XDG_DATA_DIRS, zsh where {prefix}/share/zsh/site-functions is in fpath."
        );
    }
}

/// Text of dat.conf: a line for each transport.
fn dat_conf(library: &Path) -> String {
    let line = |name: &str, device: &str| {
        format!("{name} u2.0 nonthreadsafe default {} udeck.2.0 \"{device}\" \"\"\n", library.display())
    };
    let mut text = String::from(
        "# Interface adapters of uDAPL over µDECK. Programs find this file by DAT_OVERRIDE, or its lines in /etc/dat.conf.\n",
    );
    text += &line("udeck", "shm");
    for device in ["shm", "tcp", "udp", "verbs"] {
        text += &line(&format!("udeck-{device}"), device);
    }
    text
}

/// Links the archive's objects into a shared library, of which only the interface is visible from outside.
fn link_shared(archive: &Path, map: &Path, to: &Path) -> Result<(), String> {
    let words = compiler();
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).arg("-shared").arg("-o").arg(to);
    command.arg("-Wl,--whole-archive").arg(archive).arg("-Wl,--no-whole-archive");
    command.arg(format!("-Wl,--version-script={}", map.display())).arg(format!("-Wl,-soname,{SONAME}"));
    command.args(["-Wl,--gc-sections", "-Wl,--strip-debug", "-Wl,-z,relro,-z,now", "-Wl,-z,defs"]);
    command.args(LIBS_PRIVATE.split_whitespace());
    child::run_quoted(command, LINK_LIMIT, |_| false).map_err(|why| format!("linking {SONAME}: {why}"))
}

/// Output of a program for `--generate WHAT`.
fn page(program: &Path, what: &str) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(["--generate", what]);
    let shown = format!("{} --generate {what}", program.display());
    let mut text = String::new();
    match child::run(command, PAGE_LIMIT, |line| text += &format!("{line}\n")) {
        Ok(None) if !text.is_empty() => Ok(text),
        Ok(None) => Err(format!("{shown}: it wrote nothing")),
        Ok(Some(how)) => Err(format!("{shown}: {how}")),
        Err(error) => Err(format!("{shown}: {error}")),
    }
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to).map(drop).map_err(|error| format!("{} to {}: {error}", from.display(), to.display()))
}

fn written(result: io::Result<()>, to: &Path) -> Result<(), String> {
    result.map_err(|error| format!("{} cannot be written: {error}", to.display()))
}

/// Removes debugging information: the standard library's, as long as ours is not built. A system without
/// `strip` keeps it.
fn strip(path: &Path) -> Result<(), String> {
    let mut command = Command::new("strip");
    command.arg("--strip-debug").arg(path);
    match child::run(command, LINK_LIMIT, |_| {}) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(format!("strip {}: {error}", path.display())),
        Ok(None) => Ok(()),
        Ok(Some(how)) => Err(format!("strip {}: {how}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn install(prefix: &str) -> Install {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        Install {
            prefix: prefix.into(),
            sources: root.join(SOURCES),
            built: root.join("target/release"),
            is_whole: true,
        }
    }

    #[test]
    fn a_prefix_that_cannot_be_written_is_an_error_that_says_what_to_do() {
        let problem = install("/dev/null/udeck").check_prefix().expect_err("no folder");
        assert!(problem.starts_with("/dev/null/udeck/bin cannot be written: "), "{problem}");
        assert!(problem.ends_with("Choose another folder by --prefix"), "{problem}");
    }

    #[test]
    fn a_compiler_that_is_missing_is_an_error_that_says_what_to_do() {
        let problem = check_compiler(&["no-such-compiler".into()]).expect_err("there is none");
        assert!(problem.starts_with("no C compiler no-such-compiler: "), "{problem}");
        assert!(problem.contains("Debian: gcc") && problem.contains("CC"), "{problem}");
        assert_eq!(check_compiler(&["cargo".into()]), Ok(()));
    }

    #[test]
    fn dat_conf_has_a_line_for_each_transport() {
        let text = dat_conf(Path::new("/opt/udeck/lib/libudeck-dat.so.0"));
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            lines[2],
            "udeck-tcp u2.0 nonthreadsafe default /opt/udeck/lib/libudeck-dat.so.0 udeck.2.0 \"tcp\" \"\""
        );
        assert_eq!(lines.len(), 5);
    }

    #[test]
    fn templates_are_filled_wholly() {
        for template in ["deckcc", "udeck.pc"] {
            let install = install("/opt/udeck");
            let text = install.filled(&install.sources.join("install").join(template)).unwrap();
            let is_place = |word: &&str| word.len() > 2 && word.starts_with('@') && word.ends_with('@');
            assert_eq!(text.split_whitespace().find(is_place), None, "{template}");
            assert!(text.contains(LIBS_PRIVATE), "{template}");
        }
    }
}
