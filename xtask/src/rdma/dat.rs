//! uDAPL in the guests: Debian's registry, its providers and its programs, our provider, and our programs in C.

use super::{TRANSPORT, image::Image, root::Root};
use crate::child;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

/// Stock programs. `stdbuf` is for the program that runs the others: it gets their lines as soon as they are written.
const PROGRAMS: [&str; 6] = ["dapltest", "dtest", "dtestcm", "dtestsrq", "dtestx", "stdbuf"];
const STDBUF: &str = "libexec/coreutils/libstdbuf.so";
/// Debian's providers: by librdmacm, and by verbs alone with sockets for connections.
const PROVIDERS: [&str; 2] = ["libdaplofa.so.2", "libdaploscm.so.2"];
/// Places in the guest of the files that are built here.
const LIBRARY: &str = "usr/lib/x86_64-linux-gnu/libudeck-dat.so.0";
const OWN: &str = "test/dat-own";
/// Adapters: ours, and Debian's over the same device. (`dummy0` is the device's interface in a guest that is alone.)
const ADAPTERS: &str = "\
udeck u2.0 nonthreadsafe default /usr/lib/x86_64-linux-gnu/libudeck-dat.so.0 udeck.2.0 \"verbs\" \"\"
stock-cm u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 \"dummy0 0\" \"\"
stock-scm u2.0 nonthreadsafe default libdaploscm.so.2 dapl.2.0 \"rxe0 1\" \"\"
";
/// Programs that ask the device for nothing that others do not ask for, but with more threads or endpoints, or about objects that no
/// device has. The step `dat` runs them over other transports, a night here.
const LONG: [&str; 23] = [
    "dapltest::T::threads_polling",
    "dapltest::T::end_points",
    "dapltest::T::threads_and_end_points",
    "dapltest::T::reap_on_receive",
    "dapltest::P::write_polling",
    "dapltest::P::read_polling",
    "dtest::pair::polling",
    "dtest::pair::write_one_way",
    "dtest::pair::write_all_sizes",
    "dtest::pair::times",
    "dtest::pair::verbose",
    "dtestcm::pair::waiting",
    "dtestcm::pair::many_service_points",
    "dtestsrq::pair::bursts",
    "dtestsrq::pair::without_a_shared_queue",
    "dapltest::L::limit_ia",
    "dapltest::L::limit_pz",
    "dapltest::L::limit_cno",
    "dapltest::L::limit_evd",
    "dapltest::L::limit_rsp",
    "dapltest::L::limit_psp",
    "dapltest::L::limit_size_lmr",
    "dapltest::F::queryinfo",
];
/// Programs in no guest: they only repeat more often what others do.
const OFTEN: [&str; 2] = ["dapltest::T::many_iterations", "dtestcm::pair::thousand_connections"];

/// Time limit for compiling one of our programs.
const LIMIT: Duration = Duration::from_secs(120);

/// Command line of the program that runs the others in a guest. `dat-long` runs the programs that `dat` leaves out.
pub fn words(guest: &str) -> Vec<String> {
    let full = |name: &str| format!("{name}::{TRANSPORT}");
    match guest {
        "dat" => LONG.iter().chain(&OFTEN).flat_map(|name| ["--skip".into(), full(name)]).collect(),
        "dat-long" => LONG.map(full).into(),
        _ => Vec::new(),
    }
}

/// Compiles our programs against the packages' headers, to this folder, and puts everything into the guests' files.
pub fn pack(
    image: &mut Image,
    root: &Root,
    provider: &Path,
    sources: &Path,
    folder: &Path,
) -> Result<(), String> {
    for program in PROGRAMS {
        image.program(root, &format!("usr/bin/{program}"), &root.find(&format!("bin/{program}"))?)?;
    }
    image.copy(&format!("usr/{STDBUF}"), root.find(STDBUF)?);
    for library in PROVIDERS {
        let at = format!("lib/x86_64-linux-gnu/{library}");
        image.program(root, &format!("usr/{at}"), &root.find(&at)?)?;
    }
    image.program(root, LIBRARY, provider)?;
    image.text("etc/dat.conf", ADAPTERS);
    image.text("etc/hosts", "127.0.0.1 localhost\n");
    for (name, program) in compile(root, sources, folder)? {
        image.program(root, &format!("{OWN}/{name}"), &program)?;
    }
    Ok(())
}

/// Compiles all programs in C of the folder.
fn compile(root: &Root, sources: &Path, folder: &Path) -> Result<Vec<(String, PathBuf)>, String> {
    let problem = |what: &Path, error| format!("{}: {error}", what.display());
    fs::create_dir_all(folder).map_err(|error| problem(folder, error))?;
    let mut programs = Vec::new();
    for entry in sources.read_dir().map_err(|error| problem(sources, error))?.flatten() {
        let source = entry.path();
        if source.extension().is_none_or(|extension| extension != "c") {
            continue;
        }
        let name = source.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let program = folder.join(&name);
        let mut cc = Command::new("cc");
        cc.arg(format!("@{}", sources.join("flags").display()));
        cc.arg("-I").arg(root.find("include")?).arg("-o").arg(&program).arg(&source);
        // The linker of this machine does not look there for the registry's own libraries.
        cc.arg(root.find("lib/x86_64-linux-gnu/libdat2.so.2")?);
        child::run_quoted(cc, LIMIT, |_| true)?;
        programs.push((name, program));
    }
    if programs.is_empty() {
        return Err(format!("{} has no program in C", sources.display()));
    }
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name that fits nothing would leave out nothing, and a night would run nothing for it.
    #[test]
    fn what_is_left_out_is_in_the_list_of_programs() {
        let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/bindings/dat/programs.rs");
        let list = fs::read_to_string(list).unwrap();
        for name in LONG.iter().chain(&OFTEN) {
            let last = name.rsplit("::").next().unwrap();
            assert!(list.contains(&format!("{last:?}")), "{name}");
        }
    }

    #[test]
    fn a_night_runs_what_is_left_out() {
        let (most, long) = (words("dat"), words("dat-long"));
        assert!(long.iter().all(|name| most.contains(name) && name.ends_with("::verbs")));
        assert_eq!(most.len(), 2 * (long.len() + OFTEN.len()));
    }
}
