//! Records the compiler: a figure without the compiler that produced it cannot be compared.

use std::{env, process::Command};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let version = env::var_os("RUSTC")
        .and_then(|rustc| Command::new(rustc).arg("--version").output().ok())
        .and_then(|output| String::from_utf8(output.stdout).ok());
    if let Some(version) = version {
        println!("cargo:rustc-env=UDECK_CLI_RUSTC={}", version.trim());
    }
}
