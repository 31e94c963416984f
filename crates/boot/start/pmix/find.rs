//! Detection of the launcher, search for its library, and advice for users who lack it.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::{fs, process};

use super::ffi::{Library, Which};

/// The variable that names the library's file. No other file is then tried.
pub(super) const VARIABLE: &str = "DECK_PMIX_LIBRARY";
const NAME: &str = "libpmix.so.2";
/// Variables in which Open MPI and PRRTE give their processes the folder of the installation.
const PREFIXES: [&str; 4] = ["PMIX_PREFIX", "PMIX_INSTALL_PREFIX", "OPAL_PREFIX", "PRTE_PREFIX"];
/// The variable in which Open MPI gives its processes the folder of libraries.
const LIBRARY_FOLDER: &str = "OMPI_LIBDIR_LOC";
/// Maximum number of ancestors among which the launcher is searched: shells and wrappers may stand between.
const ANCESTORS: usize = 8;

/// Reads an environment variable.
pub(super) type Vars<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Returns the launcher's name, as far as the variables tell.
pub(super) fn launcher(vars: Vars<'_>) -> &'static str {
    let namespace = vars("PMIX_NAMESPACE").unwrap_or_default();
    if namespace.starts_with("slurm.") {
        // Slurm's variables do not count: an mpirun inside an allocation inherits them.
        "Slurm"
    } else if vars("OMPI_COMM_WORLD_SIZE").is_some() {
        "Open MPI"
    } else if vars("PRTE_LAUNCHED").is_some() || namespace.starts_with("prte") {
        "PRRTE"
    } else {
        "a launcher with PMIx"
    }
}

/// Returns the decisive variables, with their values.
pub(super) fn found(vars: Vars<'_>) -> String {
    let said = ["PMIX_NAMESPACE", "PMIX_RANK"].map(|name| match vars(name) {
        Some(value) => format!("{name}={}", value.escape_debug()),
        None => format!("no {name}"),
    });
    said.join(", ")
}

/// Returns advice for a system without the library.
pub(super) fn advice_to_install(vars: Vars<'_>) -> String {
    format!(
        "Install libpmix2, or say by {VARIABLE} where libpmix.so.2 lies, or start the program {}",
        instead(vars)
    )
}

/// Returns advice for a process whose library finds no job.
pub(super) fn advice_to_start(vars: Vars<'_>) -> String {
    format!("Start it by its launcher as a rank, or {}", instead(vars))
}

fn instead(vars: Vars<'_>) -> &'static str {
    if launcher(vars) == "Slurm" { "by `srun --mpi=pmi2`" } else { "by deckrun" }
}

/// Loads the library: the one that [`VARIABLE`] names; or the one that is in this process, which MPI may have
/// brought; or the launcher's own; or the system's. The launcher's own comes before the system's because a
/// server of PMIx 5 understands a library of 4.2, but writes errors about it on its stderr.
///
/// # Errors
/// The files that were tried, in words.
pub(super) fn library(vars: Vars<'_>) -> Result<Library, String> {
    if let Some(named) = vars(VARIABLE).filter(|named| !named.is_empty()) {
        let opened = Library::open(&Which::File(Path::new(&named)));
        return opened
            .map_err(|why| format!("{VARIABLE}={named} cannot be used: {}", why.unwrap_or_default()));
    }
    if let Ok(loaded) = Library::open(&Which::Loaded(NAME)) {
        return Ok(loaded);
    }
    let told = places(vars).into_iter().filter(|file| file.exists());
    let mut tried = Vec::new();
    for file in told.chain(launchers_own()).chain([PathBuf::from(NAME)]) {
        match Library::open(&Which::File(&file)) {
            Ok(library) => return Ok(library),
            Err(why) => tried.extend(why),
        }
    }
    Err(format!("its library cannot be loaded ({})", tried.join("; ")))
}

/// Returns the places where the launcher's own library may lie, according to its variables.
pub(super) fn places(vars: Vars<'_>) -> Vec<PathBuf> {
    let said = |name: &&str| vars(name).filter(|value| value.starts_with('/')).map(PathBuf::from);
    let mut folders: Vec<PathBuf> = Vec::new();
    for prefix in PREFIXES.iter().filter_map(said) {
        folders.extend([prefix.join("lib"), prefix.join("lib64")]);
    }
    folders.extend(said(&LIBRARY_FOLDER));
    let mut places: Vec<PathBuf> = Vec::new();
    // Open MPI's wheel puts the libraries that it brings into a folder of their own.
    for place in folders.iter().flat_map(|folder| [folder.join(NAME), folder.join("openmpi").join(NAME)]) {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places
}

/// Returns the library that the launcher itself has loaded: the launcher is an ancestor of this process.
/// (PRRTE's `prterun` sets no variables for it.)
fn launchers_own() -> Option<PathBuf> {
    let mut processes = VecDeque::from([process::id()]);
    for _ in 0..ANCESTORS {
        let status = fs::read_to_string(format!("/proc/{}/status", processes.pop_front()?)).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()?;
        let maps = fs::read_to_string(format!("/proc/{parent}/maps")).unwrap_or_default();
        if let Some(file) = mapped(&maps) {
            return Some(file);
        }
        processes.push_back(parent);
    }
    None
}

/// Returns the library's file in a table of mappings.
pub(super) fn mapped(maps: &str) -> Option<PathBuf> {
    let files = maps.lines().filter_map(|line| Some(Path::new(&line[line.find('/')?..])));
    files
        .filter(|file| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with(NAME)))
        .map(Path::to_path_buf)
        .find(|file| file.exists())
}
