//! Tests that the conformance suite cannot have: devices that fail, ports that go down, peers that are gone, memory
//! that cannot be pinned. They use the stand-in, which cargo builds beside this program.

mod beside;
mod choice;
mod close;
mod early;
mod failures;
mod hostile;
mod leaks;
mod panics;
mod pool;
mod qp_connect;
mod unreliable;

use std::ffi::CStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use udeck_conformance::kit::soon;
use udeck_conformance::lent::{LentEnd, check, pair};
use udeck_via::Nic;

use crate::{Options, Settings, Source};

const SECRET: [u8; 32] = [0x5a; 32];

/// Lock for one test at a time: a failure of the device hits all open NICs.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn nic() -> Nic {
    crate::open(options(Settings::default())).expect("the NIC opens")
}

fn options(settings: Settings) -> Options {
    let mut options = Options::new(SECRET).expect("no such variables here");
    options.memory = Source::Fresh(64 << 20);
    options.settings = settings;
    options
}

/// Whether this is the process that is to run `test` with the stand-in's settings in `variables`, which the stand-in
/// reads once. If not, starts such a process, and asserts that it succeeds.
fn unreliable(test: &str, variables: &[(&str, &str)]) -> bool {
    const MARK: &str = "UDECK_VERBS_TEST";
    if std::env::var(MARK).is_ok_and(|mark| mark == test) {
        return true;
    }
    let mut unreliable = std::process::Command::new(std::env::current_exe().expect("it runs"));
    unreliable.args(["--exact", test, "--nocapture"]).env(MARK, test).envs(variables.iter().copied());
    let output = unreliable.output().expect("it runs again");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && told.contains("1 passed"),
        "{told}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    false
}

/// Returns the address of one of the stand-in's own functions.
fn standin(name: &CStr) -> *mut libc::c_void {
    let library = crate::ffi::library::beside().expect("cargo has built the stand-in");
    let file = std::ffi::CString::new(library.into_os_string().into_encoded_bytes()).expect("a path");
    // SAFETY: the library is loaded already, and never unloaded.
    let found = unsafe { libc::dlsym(libc::dlopen(file.as_ptr(), libc::RTLD_NOW), name.as_ptr()) };
    assert!(!found.is_null(), "{name:?}");
    found
}

/// Makes the stand-in report an event.
fn inject(event: u32, number: u32) {
    let inject = standin(c"standin_inject");
    // SAFETY: the stand-in declares the function so.
    let inject: extern "C" fn(u32, u32) -> i32 = unsafe { std::mem::transmute(inject) };
    assert_eq!(inject(event, number), 0, "event {event} of {number}");
}
