//! Goes through the paths of a short message over verbs, and through the same message by bare calls of the library, for
//! `cargo xtask counts`, which runs it under callgrind.
//!
//! Both call the stand-in, whose engine works inline: whoever posts moves the data, so that the same calls take the same
//! instructions. They are part of both, and fall out of the difference: what the transport costs above the calls that any
//! program makes.

#![allow(unsafe_code, reason = "it calls the C library as the transport does")]

mod bare;
mod counted;
mod interfaces;
mod message;
#[path = "../../../bench-apps/fast-paths/pair.rs"]
mod pair;

use std::path::PathBuf;

use crate::message::Result;

/// Each path is gone through so often: what is done once, or once per lap of a ring, is spread evenly.
const ROUNDS: usize = 4096;

/// Rounds may be given, for a test.
fn main() -> Result {
    let rounds = std::env::args().nth(1).map_or(Ok(ROUNDS), |rounds| rounds.parse())?;
    let library = stand_in()?;
    // SAFETY: There is no other thread yet that could read the environment.
    unsafe {
        std::env::set_var("DECK_VERBS_LIBRARY", &library);
        std::env::set_var("STANDIN_ENGINE", "inline");
        // Otherwise the NIC's helper would wake now and then, and take completions that are counted here.
        std::env::set_var("STANDIN_CHANNELS", "silent");
    }
    bare::run(&library, rounds)?;
    interfaces::run(rounds)
}

/// Cargo builds it for this program, into the folder of dependencies.
fn stand_in() -> Result<PathBuf> {
    let name = "libudeck_mock_verbs.so";
    let program = std::env::current_exe()?;
    let folder = program.parent().ok_or("this program lies nowhere")?;
    let places = [folder.join("deps").join(name), folder.join(name)];
    let missing = || format!("{name} lies neither beside {} nor in deps/", program.display());
    Ok(places.into_iter().find(|place| place.exists()).ok_or_else(missing)?)
}
