//! What starts a node: `ssh`, or another command that runs a command somewhere else.

use std::{
    collections::VecDeque,
    ffi::OsString,
    io::{self, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::Path,
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    pipe::{PipeFlags, pipe_with},
    process::{Pid, Signal, kill_process_group},
};

use super::agent_command::AgentCommand;
use crate::{
    node::Argument,
    ranks::{OfRank, Setting, prepare_child},
    words::printable,
};

/// How much of an agent's output is kept for the case that something goes wrong, in bytes.
const TAIL: usize = 2048;

/// An agent at work. Dropped, it is left alone: the launcher ends what is left of its children.
pub(crate) struct Agent {
    words: Vec<OsString>,
    child: Child,
    status: Option<ExitStatus>,
    /// What it and the node say; `None` at its end.
    output: Option<OwnedFd>,
    /// Its standard input, as long as there is something to write: the node's secret and spec.
    input: Option<(ChildStdin, VecDeque<u8>)>,
    tail: Vec<u8>,
}

impl Agent {
    /// Starts a node on `host` as `argument` says, which gets `secret` and `spec` (an encoded one) on its standard input as
    /// it reads them: [`feed`](Agent::feed).
    pub(crate) fn start(
        command: &AgentCommand,
        host: &str,
        deckrun: &Path,
        argument: &Argument,
        secret: &[u8; 32],
        spec: &[u8],
        setting: &Setting,
    ) -> Result<Agent, (String, io::Error)> {
        let node = vec![deckrun.into(), crate::node::FLAG.into(), argument.to_string().into()];
        let words = command.words(host, node, argument.limit);
        let shown = show(&words);
        let line = secret.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n";
        let started = Agent::spawn(words, [line.as_bytes(), spec].concat(), setting);
        started.map_err(|error| (shown, error))
    }

    fn spawn(words: Vec<OsString>, input: Vec<u8>, setting: &Setting) -> io::Result<Agent> {
        let (output, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&output, true)?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).process_group(0);
        command.stdin(Stdio::piped()).stdout(theirs.try_clone()?).stderr(theirs);
        // Not killed: a node that is asked to end also ends what its ranks have started.
        prepare_child(&mut command, setting, Signal::TERM, OfRank::default());
        let mut child = command.spawn()?;
        let stdin = child.stdin.take();
        stdin.as_ref().map(|stdin| rustix::io::ioctl_fionbio(stdin, true)).transpose()?;
        let input = stdin.map(|stdin| (stdin, input.into()));
        let mut agent = Agent { words, child, status: None, output: Some(output), input, tail: Vec::new() };
        agent.feed();
        Ok(agent)
    }

    /// What to poll until it takes more of its input.
    pub(crate) fn input(&self) -> Option<BorrowedFd<'_>> {
        self.input.as_ref().map(|(stdin, _)| stdin.as_fd())
    }

    /// Writes of its input what it takes, and closes it at the end.
    pub(crate) fn feed(&mut self) {
        while let Some((stdin, left)) = &mut self.input {
            match stdin.write(left.as_slices().0) {
                Ok(written) => drop(left.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // An agent that reads no more is noticed by its end, or by the node's not coming.
                Err(_) => left.clear(),
            }
            if left.is_empty() {
                self.input = None;
            }
        }
    }

    pub(crate) fn pid(&self) -> Option<Pid> {
        self.status.is_none().then(|| Pid::from_child(&self.child))
    }

    /// What to poll for more of its output.
    pub(crate) fn output(&self) -> Option<BorrowedFd<'_>> {
        self.output.as_ref().map(AsFd::as_fd)
    }

    /// Takes what it has said.
    pub(crate) fn listen(&mut self) {
        let mut scratch = [0; TAIL];
        while let Some(output) = &self.output {
            match rustix::io::read(output, &mut scratch) {
                Ok(length @ 1..) => self.tail.extend_from_slice(&scratch[..length]),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => break,
                Ok(0) | Err(_) => self.output = None,
            }
            let too_much = self.tail.len().saturating_sub(TAIL);
            self.tail.drain(..too_much);
        }
    }

    /// Whether it has ended; it is reaped then.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            // Fails only for a child that somebody else has reaped.
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    /// Asks it to end, with what it has started in its process group.
    fn ask_to_end(&self) {
        if let Some(pid) = self.pid() {
            // Not reaped, so the number is still its own.
            let _ = kill_process_group(pid, Signal::TERM);
        }
    }

    /// What it said last, for the end of a sentence; nothing if it said nothing.
    pub(crate) fn last_words(&self) -> String {
        // Whatever a terminal did with a carriage return, here it ends a line.
        let text = String::from_utf8_lossy(&self.tail).replace('\r', "\n");
        let text = printable(&text);
        let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        match &lines[lines.len().saturating_sub(4)..] {
            [] => String::new(),
            last => format!(": {}", last.join(" / ")),
        }
    }

    /// The command, as it could be typed.
    pub(crate) fn command(&self) -> String {
        show(&self.words)
    }
}

/// Waits until all of them have ended: so long by themselves, and then, asked to, for a second at most. What is left of
/// them, the launcher ends as it does all its children.
pub(crate) fn part<'a>(agents: impl Iterator<Item = &'a mut Agent>, patience: Duration) {
    let mut left: Vec<_> = agents.collect();
    let ask_at = Instant::now() + patience;
    let give_up_at = ask_at + Duration::from_secs(1);
    let mut asked = false;
    loop {
        left.retain_mut(|agent| agent.ended().is_none());
        let now = Instant::now();
        if left.is_empty() || now >= give_up_at {
            return;
        }
        if now >= ask_at && !asked {
            left.iter().for_each(|agent| agent.ask_to_end());
            asked = true;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn show(words: &[OsString]) -> String {
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    format!("`{}`", words.join(" "))
}
