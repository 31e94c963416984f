//! Relay of the terminal's input to rank 0.
//!
//! Each rank has its own process group, so the terminal would stop rank 0 for reading (SIGTTIN). A thread reads
//! in its place, while this process is in the terminal's foreground. A standard input that is no terminal is
//! inherited by rank 0, unless rank 0 is on another host.

use std::{
    fs::File,
    io::{self, IsTerminal, Write},
    os::fd::OwnedFd,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::{Errno, read},
    process::getpgrp,
    termios::tcgetpgrp,
};
use udeck_sys::{EventFd, thread::spawn};

/// How often a process in the background checks whether it has come to the foreground, while there is input.
const BACKGROUND: Duration = Duration::from_millis(200);

/// The thread that reads the terminal. It ends when this is dropped, at the input's end, or when rank 0 has
/// gone.
pub(crate) struct TerminalInput {
    thread: Option<JoinHandle<Result<(), String>>>,
    end: Arc<EventFd>,
}

/// Tells whether standard input has to be relayed.
pub(crate) fn is_needed() -> bool {
    io::stdin().is_terminal()
}

impl TerminalInput {
    pub(crate) fn start(to: OwnedFd) -> io::Result<TerminalInput> {
        let to = File::from(to);
        rustix::io::ioctl_fionbio(&to, true)?;
        let end = Arc::new(EventFd::new()?);
        let own_end = Arc::clone(&end);
        // `to` is closed in every case, also by a panic: rank 0 sees the end of its input.
        let thread = spawn("input", move || drop(relay(to, &own_end)), |_| {})?;
        Ok(TerminalInput { thread: Some(thread), end })
    }
}

impl Drop for TerminalInput {
    fn drop(&mut self) {
        self.end.signal();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn relay(mut to: File, end: &EventFd) -> io::Result<()> {
    let terminal = io::stdin();
    let mut buffer = [0; 4096];
    while ready(&terminal, PollFlags::IN, end)? {
        // A terminal that is not our controlling one has no foreground.
        if tcgetpgrp(&terminal).is_ok_and(|foreground| foreground != getpgrp()) {
            thread::sleep(BACKGROUND);
            continue;
        }
        let mut typed = match read(&terminal, &mut buffer)? {
            0 => return Ok(()),
            length => &buffer[..length],
        };
        while !typed.is_empty() {
            match to.write(typed) {
                Ok(written) => typed = &typed[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !ready(&to, PollFlags::OUT, end)? {
                        return Ok(());
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Sleeps until `fd` is ready (`true`), or `end` is signalled (`false`).
fn ready(fd: &impl std::os::fd::AsFd, what: PollFlags, end: &EventFd) -> Result<bool, Errno> {
    let mut fds = [PollFd::new(end, PollFlags::IN), PollFd::new(fd, what)];
    loop {
        match poll(&mut fds, None) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
            Ok(_) => return Ok(fds[0].revents().is_empty()),
        }
    }
}
