//! The running agent of a node: `ssh`, or another command that runs a command on another host.

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

/// Maximum part of an agent's output that is kept for an error text, in bytes.
const TAIL: usize = 2048;

/// A running agent. Dropping it does nothing: the launcher ends its remaining children.
pub(crate) struct Agent {
    words: Vec<OsString>,
    child: Child,
    status: Option<ExitStatus>,
    /// Pipe of the agent's and the node's output; `None` after its end.
    output: Option<OwnedFd>,
    /// The agent's standard input, as long as there is something to write: the node's secret and spec.
    input: Option<(ChildStdin, VecDeque<u8>)>,
    tail: Vec<u8>,
}

impl Agent {
    /// Starts a node on `host` with `argument`. Its standard input gets `secret` and `spec` (an encoded one) as
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
        // SIGTERM and not SIGKILL: a node that is asked to end also ends the processes of its ranks.
        prepare_child(&mut command, setting, Signal::TERM, OfRank::default());
        let mut child = command.spawn()?;
        let stdin = child.stdin.take();
        stdin.as_ref().map(|stdin| rustix::io::ioctl_fionbio(stdin, true)).transpose()?;
        let input = stdin.map(|stdin| (stdin, input.into()));
        let mut agent = Agent { words, child, status: None, output: Some(output), input, tail: Vec::new() };
        agent.feed();
        Ok(agent)
    }

    /// Returns the descriptor to poll until the agent takes more of its input.
    pub(crate) fn input(&self) -> Option<BorrowedFd<'_>> {
        self.input.as_ref().map(|(stdin, _)| stdin.as_fd())
    }

    /// Writes as much of the input as the agent takes, and closes it at the end.
    pub(crate) fn feed(&mut self) {
        while let Some((stdin, left)) = &mut self.input {
            match stdin.write(left.as_slices().0) {
                Ok(written) => drop(left.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // An agent that reads no more is noticed by its end, or because its node does not connect.
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

    /// Returns the descriptor to poll for more output.
    pub(crate) fn output(&self) -> Option<BorrowedFd<'_>> {
        self.output.as_ref().map(AsFd::as_fd)
    }

    /// Reads the output that has come.
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

    /// Returns the status of an agent that has ended, and reaps it.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            // Fails only for a child that other code has reaped.
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    /// Asks the agent to end, with the processes that it has started in its process group.
    fn ask_to_end(&self) {
        if let Some(pid) = self.pid() {
            // The agent is not reaped, and so its number is still its own.
            let _ = kill_process_group(pid, Signal::TERM);
        }
    }

    /// Returns the end of the agent's output, for the end of a sentence; empty if there was none.
    pub(crate) fn last_words(&self) -> String {
        // A terminal may treat a carriage return in any way; here it ends a line.
        let text = String::from_utf8_lossy(&self.tail).replace('\r', "\n");
        let text = printable(&text);
        let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        match &lines[lines.len().saturating_sub(4)..] {
            [] => String::new(),
            last => format!(": {}", last.join(" / ")),
        }
    }

    /// Returns the command as a user could type it.
    pub(crate) fn command(&self) -> String {
        show(&self.words)
    }
}

/// Waits until all agents have ended: first for `patience`, and then, after asking them to end, for a second at
/// most. The launcher ends the remaining ones, as it does with all its children.
pub(crate) fn wait_for_all<'a>(agents: impl Iterator<Item = &'a mut Agent>, patience: Duration) {
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
