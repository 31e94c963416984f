//! A launcher whose service for its ranks is broken.

use std::{
    env,
    io::{Read, Write},
    os::{fd::AsRawFd, unix::net::UnixStream},
    process::{Command, ExitCode},
    thread,
};

use rustix::io::{FdFlags, fcntl_setfd};

/// Runs `hello` as rank 0 of 4 with such a service behind `PMI_FD`, and ends with the same code.
pub fn run_under(what: &str) -> ExitCode {
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    fcntl_setfd(&theirs, FdFlags::empty()).expect("an open descriptor");
    let number = theirs.as_raw_fd().to_string();
    let mut rank = Command::new(env::current_exe().expect("this program"))
        .arg("hello")
        .envs([("PMI_FD", number.as_str()), ("PMI_RANK", "0"), ("PMI_SIZE", "4")])
        .spawn()
        .expect("this program starts again");
    drop(theirs);
    let what = what.to_owned();
    // The service ends with this process.
    thread::spawn(move || serve(ours, &what));
    let status = rank.wait().expect("its end");
    ExitCode::from(status.code().map_or(u8::MAX, |code| code as u8))
}

fn serve(mut socket: UnixStream, what: &str) {
    let mut asked = [0; 1024];
    match what {
        "silent" => while socket.read(&mut asked).is_ok_and(|length| length > 0) {},
        "nonsense" => {
            while socket.read(&mut asked).is_ok_and(|length| length > 0) {
                let _ = socket.write_all(b"\xFF\0\n    -1\ncmd=\xC3\x28;;=;rc=\n\n");
            }
        }
        // The service dies after the first question.
        "dies" => drop(socket.read(&mut asked)),
        other => panic!("no service is {other:?}"),
    }
}
