//! Our own programs, for what others leave out: each is compiled against Debian's headers, and connects to itself.

use std::{path::Path, process::Command};

use super::Case;
use super::running::Place;

const PROGRAMS: [&str; 6] = ["states", "memory", "events", "srq", "requests", "orders"];
const TRANSPORTS: [&str; 3] = ["shm", "tcp", "udp"];
const NEEDS: [(&str, &str); 3] =
    [("/usr/include/dat2/udat.h", "libdapl-dev"), ("/etc/dat.conf", "libdapl2"), ("/usr/bin/cc", "gcc")];

pub fn cases() -> Vec<Case> {
    let each = |name: &'static str| {
        TRANSPORTS.map(move |transport| Case {
            name: format!("own::{name}::{transport}"),
            needs: NEEDS.to_vec(),
            run: Box::new(move || run(name, transport)),
        })
    };
    PROGRAMS.into_iter().flat_map(each).collect()
}

fn run(name: &str, transport: &str) {
    let place = Place::new(transport);
    let program = place.folder().join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(format!("{name}.c"));
    let mut compile = Command::new("/usr/bin/cc");
    // The header has objects that not each program uses.
    compile.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-unused", "-pthread", "-o"]);
    let output = compile.arg(&program).arg(source).arg("-ldat2").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = place.run(&program, "");
    assert_eq!(said.trim(), "well");
}
