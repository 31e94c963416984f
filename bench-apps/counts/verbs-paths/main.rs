//! Runs the paths of a short message over verbs, and the same message by bare calls of the library, for `cargo xtask
//! counts`, which runs this program under callgrind.
//!
//! Both use the stand-in, whose engine works inline: the posting thread moves the data, so that the same calls take
//! the same instructions. They are part of both counts, and cancel out in the difference, which is the cost of the
//! transport above the calls that any program makes.

#![allow(unsafe_code, reason = "it calls the C library as the transport does")]

mod bare;
mod counted;
mod interfaces;

use std::path::PathBuf;

use counts::Result;

fn main() -> Result {
    let rounds = counts::rounds()?;
    let library = stand_in()?;
    // SAFETY: There is no other thread yet that could read the environment.
    unsafe {
        std::env::set_var("DECK_VERBS_LIBRARY", &library);
        std::env::set_var("STANDIN_ENGINE", "inline");
        // With channels, the NIC's helper would wake now and then, and take completions that are counted here.
        std::env::set_var("STANDIN_CHANNELS", "silent");
    }
    bare::run(&library, rounds)?;
    interfaces::run(rounds)
}

/// Path of the stand-in, which cargo builds for this program into the folder of dependencies.
fn stand_in() -> Result<PathBuf> {
    let name = "libudeck_mock_verbs.so";
    let program = std::env::current_exe()?;
    let folder = program.parent().ok_or("this program lies nowhere")?;
    let places = [folder.join("deps").join(name), folder.join(name)];
    let missing = || format!("{name} lies neither beside {} nor in deps/", program.display());
    Ok(places.into_iter().find(|place| place.exists()).ok_or_else(missing)?)
}
