//! The project's own programs, for what others leave out: each is compiled against Debian's headers, and connects
//! to itself.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use udeck_jobs::{Bin, Job, memcheck};

use super::Case;
use super::running::Place;

const PROGRAMS: [&str; 9] =
    ["states", "memory", "events", "srq", "requests", "orders", "refusals", "limits", "stopped"];
const TRANSPORTS: &[&str] = &["shm", "tcp", "udp"];
const VALGRIND: (&str, &str) = ("/usr/bin/valgrind", "valgrind");
/// Variable with the folder of programs that were compiled elsewhere.
const COMPILED: &str = "UDECK_DAT_PROGRAMS";
const REGISTRY: (&str, &str) = ("/etc/dat.conf", "libdapl2");
const COMPILER: [(&str, &str); 2] = [("/usr/include/dat2/udat.h", "libdapl-dev"), ("/usr/bin/cc", "gcc")];

/// The cases; none if servers run on another host, because these programs connect to themselves.
pub fn cases() -> Vec<Case> {
    if Place::servers_are_elsewhere() {
        return Vec::new();
    }
    let compiled = env::var_os(COMPILED).map(PathBuf::from);
    let mut needs = vec![REGISTRY];
    needs.extend(compiled.is_none().then_some(COMPILER).into_iter().flatten());
    let mut cases = Vec::new();
    for name in PROGRAMS {
        for transport in super::transports(TRANSPORTS) {
            // A host with programs compiled elsewhere has no tools.
            if env::var_os(COMPILED).is_none() {
                cases.extend(checked(name, &transport, &needs));
            }
            let (case, compiled) = (format!("own::{name}::{transport}"), compiled.clone());
            let run = Box::new(move || run(name, &transport, compiled.as_deref()));
            cases.push(Case { name: case, needs: needs.clone(), run });
        }
    }
    if env::var_os(COMPILED).is_none() {
        for transport in super::transports(TRANSPORTS) {
            let own = transport.clone();
            cases.push(Case {
                name: format!("own::qos::{transport}"),
                needs: needs.clone(),
                run: Box::new(move || qualities(&own)),
            });
            let (talks, dies, encrypts) = (transport.clone(), transport.clone(), transport.clone());
            let mut case = |title: &str, run: Box<dyn FnOnce() + Send>| {
                let name = format!("own::{title}::{transport}");
                cases.push(Case { name, needs: needs.clone(), run });
            };
            case("job::two_ranks_talk", Box::new(move || two_ranks_talk(&talks)));
            case("job::a_rank_dies", Box::new(move || a_rank_dies(&dies)));
            case("encryption_is_kept", Box::new(move || encrypted(&encrypts)));
        }
    }
    cases
}

/// Without service levels, a program that asks for a quality of service is told so once. Over tcp there are some, if they have
/// shares.
fn qualities(transport: &str) {
    let place = Place::new(transport);
    let program = compile("qos", place.folder(), &[]);
    let said = place.run(&program, "");
    let lacks = said.lines().filter(|line| line.contains("knows no service levels")).count();
    assert!(lacks == 1 && said.lines().last() == Some("well"), "{said}");
    if transport == "tcp" {
        let with_levels = ["/usr/bin/env".into(), "DECK_LEVELS=8:30@2,2:20@4,1:30,0:15,4:5".into()];
        assert_eq!(place.run_inside(&with_levels, &program).trim(), "well");
    }
}

/// A job of two ranks under deckrun, whose name service replaces the table.
fn ranks(place: &Place, words: &[&str], arguments: &[&str]) -> Job {
    let program = compile("job", place.folder(), &[]);
    let job =
        Job::new(Bin::deckrun().path()).args(words).args(["-n", "2", "--"]).arg(program).args(arguments);
    job.env("DAT_OVERRIDE", place.folder().join("dat.conf"))
}

fn two_ranks_talk(transport: &str) {
    let place = Place::new(transport);
    let ended = ranks(&place, &[], &[]).run().ok();
    assert_eq!(ended.stdout.matches("well").count(), 2, "{ended}");
}

/// The other rank is told, and goes on; the job has failed.
fn a_rank_dies(transport: &str) {
    let place = Place::new(transport);
    let ended = ranks(&place, &["--on-failure", "continue"], &["dies"]).run().fails();
    assert_eq!(ended.stdout.matches("well").count(), 1, "{ended}");
}

/// Adapters that other hosts may reach encrypt, or do not open.
fn encrypted(transport: &str) {
    let place = Place::new(transport);
    let program = compile("events", place.folder(), &[]);
    let settings = "DECK_ENCRYPT=1 DECK_DIRECTORY_SECRET=that-of-these-tests";
    let said = place.start("alone", "/usr/bin/env", &format!("{settings} {}", program.display())).end();
    match transport {
        "shm" | "udp" => assert_well(&said),
        _ => assert!(said.contains("does not encrypt"), "{said}"),
    }
}

/// Cases of the same program under valgrind, and with AddressSanitizer.
fn checked(name: &'static str, transport: &str, needs: &[(&'static str, &'static str)]) -> Vec<Case> {
    let mut cases = Vec::new();
    let mut case = |title: &str, needs: Vec<(&'static str, &'static str)>, run: fn(&str, &str)| {
        let (name, transport, title) =
            (name, transport.to_owned(), format!("own::{name}::{title}::{transport}"));
        cases.push(Case { name: title, needs, run: Box::new(move || run(name, &transport)) });
    };
    // For valgrind, data that QUIC has encrypted are undefined, because it does not follow the instructions
    // used for that.
    if transport != "udp" {
        let with_valgrind = needs.iter().copied().chain([VALGRIND]).collect();
        case("valgrind", with_valgrind, |name, transport| {
            let place = Place::new(transport);
            let program = compile(name, place.folder(), &[]);
            assert_well(&place.run_inside(&memcheck(), &program));
        });
    }
    case("address_sanitizer", needs.to_vec(), |name, transport| {
        let place = Place::new(transport);
        let program = compile(name, place.folder(), &["-fsanitize=address"]);
        assert_well(&place.run_inside(&[], &program));
    });
    cases
}

fn run(name: &str, transport: &str, compiled: Option<&Path>) {
    let place = Place::new(transport);
    let program = match compiled {
        Some(folder) => folder.join(name),
        None => compile(name, place.folder(), &[]),
    };
    assert_well(&place.run(&program, ""));
}

/// Asserts that the program passed its own checks. Its last line says that. The library may have lines of its own before, for
/// example where a peer on a busy host gave a connect up.
fn assert_well(said: &str) {
    assert!(said.lines().any(|line| line == "well"), "{said}");
}

fn compile(name: &str, to: &Path, flags: &[&str]) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("dat/c");
    let program = to.join(name);
    let mut compile = Command::new("/usr/bin/cc");
    compile.arg(format!("@{}", sources.join("flags").display())).args(flags).arg("-o").arg(&program);
    let output = compile.arg(sources.join(format!("{name}.c"))).arg("-ldat2").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}
