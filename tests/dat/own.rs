//! Our own programs, for what others leave out: each is compiled against Debian's headers, and connects to itself.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use super::Case;
use super::running::Place;

const PROGRAMS: [&str; 6] = ["states", "memory", "events", "srq", "requests", "orders"];
const TRANSPORTS: &[&str] = &["shm", "tcp", "udp"];
/// Where they lie if somebody else has compiled them.
const COMPILED: &str = "UDECK_DAT_PROGRAMS";
const REGISTRY: (&str, &str) = ("/etc/dat.conf", "libdapl2");
const COMPILER: [(&str, &str); 2] = [("/usr/include/dat2/udat.h", "libdapl-dev"), ("/usr/bin/cc", "gcc")];

/// None where servers are elsewhere: these connect to themselves.
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
            let (case, compiled) = (format!("own::{name}::{transport}"), compiled.clone());
            let run = Box::new(move || run(name, &transport, compiled.as_deref()));
            cases.push(Case { name: case, needs: needs.clone(), run });
        }
    }
    cases
}

fn run(name: &str, transport: &str, compiled: Option<&Path>) {
    let place = Place::new(transport);
    let program = match compiled {
        Some(folder) => folder.join(name),
        None => compile(name, place.folder()),
    };
    let said = place.run(&program, "");
    assert_eq!(said.trim(), "well");
}

fn compile(name: &str, to: &Path) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("c");
    let program = to.join(name);
    let mut compile = Command::new("/usr/bin/cc");
    compile.arg(format!("@{}", sources.join("flags").display())).arg("-o").arg(&program);
    let output = compile.arg(sources.join(format!("{name}.c"))).arg("-ldat2").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}
