//! A job under the conductor: it is started, gets orders, and is ended, whatever it does.
//!
//! Each of its ranks holds one end of a Unix socket. A job that answers late, wrongly or not at all is killed: its process
//! group, and each rank by its process number, because launchers put ranks into groups of their own.

use std::{
    fmt::Display,
    fs::{self, File},
    io::{self, BufRead, BufReader, Write},
    os::{
        fd::AsFd,
        unix::{
            net::{UnixListener, UnixStream},
            process::CommandExt,
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::sockopt::socket_peercred,
    process::{Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open},
};

use super::request::{CONDUCTOR, Request, parse_answer};

/// Time limit from the job's start until every rank has said who it is.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Time limit of a batch, which lasts milliseconds on a machine that does nothing else.
const BATCH_LIMIT: Duration = Duration::from_secs(30);
/// Time limit of an orderly end, and again of the end after the request to end.
const END_LIMIT: Duration = Duration::from_secs(3);
/// Lines of a failed program's output that are shown.
const SHOWN_LINES: usize = 6;

/// A job: processes that measure when they get an order.
pub struct Job {
    child: Child,
    ranks: Vec<Rank>,
    log: PathBuf,
}

/// One rank; ranks are in the order in which they connected.
struct Rank {
    number: usize,
    pid: Pid,
    answers: BufReader<UnixStream>,
}

impl Job {
    /// Starts `command`, whose ranks connect to a socket in `scratch`. Blocks until all of them have, at most a minute.
    ///
    /// # Errors
    /// The reason why it did not start, and its output.
    pub fn start(scratch: &Path, name: &str, ranks: usize, mut command: Command) -> Result<Self, String> {
        let (socket, log) = (scratch.join(name), scratch.join(format!("{name}.log")));
        let listener =
            UnixListener::bind(&socket).map_err(|error| format!("{}: {error}", socket.display()))?;
        let said = File::create(&log).and_then(|log| Ok((log.try_clone()?, log)));
        let (stdout, stderr) = said.map_err(|error| format!("{}: {error}", log.display()))?;
        command.env(CONDUCTOR, &socket).stdin(Stdio::null()).stdout(stdout).stderr(stderr).process_group(0);
        let child =
            command.spawn().map_err(|error| format!("{}: {error}", command.get_program().display()))?;
        let mut job = Job { child, ranks: Vec::new(), log };
        job.accept_ranks(&listener, ranks).map_err(|why| why + &log_tail(&job.log))?;
        Ok(job)
    }

    fn accept_ranks(&mut self, listener: &UnixListener, ranks: usize) -> Result<(), String> {
        let deadline = Instant::now() + START_LIMIT;
        let launcher = death_of(&self.child).map_err(|error| format!("watching the launcher: {error}"))?;
        while self.ranks.len() < ranks {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(&launcher, PollFlags::IN)];
            wait(&mut fds, left).map_err(|error| format!("waiting for the ranks: {error}"))?;
            if fds[0].revents().contains(PollFlags::IN) {
                let came = listener.accept().and_then(|(stream, _)| Rank::handshake(stream, ranks));
                self.ranks.push(came.map_err(|error| format!("greeting of a rank: {error}"))?);
            } else if fds[1].revents().is_empty() {
                let (came, limit) = (self.ranks.len(), START_LIMIT.as_secs());
                return Err(format!("{came} of {ranks} ranks connected within {limit} s"));
            } else {
                return Err("it ended before its ranks connected".to_owned());
            }
        }
        Ok(())
    }

    /// Runs one batch, and returns its time on rank 0's clock. Blocks until every rank has answered and so is silent again.
    ///
    /// # Errors
    /// A description of what went wrong; the job cannot be used any more.
    pub fn run(&mut self, request: &Request) -> Result<Duration, String> {
        Ok(self.ask(request, parse_answer)?.swap_remove(0))
    }

    /// Sends any order, and returns the ranks' answers, by rank number.
    ///
    /// # Errors
    /// The same as [`Job::run`]'s.
    pub fn ask<T>(
        &mut self,
        order: &impl Display,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Vec<T>, String> {
        self.exchange(order, parse).map_err(|why| format!("{why}, at `{order}`{}", log_tail(&self.log)))
    }

    fn exchange<T>(
        &mut self,
        order: &impl Display,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Vec<T>, String> {
        let line = format!("{order}\n");
        for rank in &mut self.ranks {
            let told = rank.answers.get_mut().write_all(line.as_bytes());
            told.map_err(|error| format!("sending to rank {}: {error}", rank.number))?;
        }
        let deadline = Instant::now() + BATCH_LIMIT;
        let mut answers = Vec::with_capacity(self.ranks.len());
        for rank in &mut self.ranks {
            let answer = rank.receive(deadline).and_then(|line| parse(&line));
            answers.push((rank.number, answer.map_err(|why| format!("rank {}: {why}", rank.number))?));
        }
        answers.sort_unstable_by_key(|(number, _)| *number);
        Ok(answers.into_iter().map(|(_, answer)| answer).collect())
    }
}

impl Rank {
    fn handshake(stream: UnixStream, ranks: usize) -> io::Result<Self> {
        let pid = socket_peercred(&stream)?.pid;
        let mut rank = Rank { number: 0, pid, answers: BufReader::new(stream) };
        let greeting = rank.receive(Instant::now() + BATCH_LIMIT).map_err(io::Error::other)?;
        rank.number = parse_greeting(&greeting, ranks)
            .ok_or_else(|| io::Error::other(format!("{greeting:?} is no rank of {ranks}")))?;
        Ok(rank)
    }

    /// Reads a line, without its end.
    fn receive(&mut self, deadline: Instant) -> Result<String, String> {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let mut line = String::new();
        let limited = self.answers.get_ref().set_read_timeout(Some(left));
        match limited.and_then(|()| self.answers.read_line(&mut line)) {
            Ok(0) => Err("hung up".to_owned()),
            Ok(_) => Ok(line.trim_end().to_owned()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(format!("no answer within {} s, killed", BATCH_LIMIT.as_secs()))
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Parses `rank R of N`.
fn parse_greeting(line: &str, ranks: usize) -> Option<usize> {
    let (number, of) = line.strip_prefix("rank ")?.split_once(" of ")?;
    let number = number.parse().ok().filter(|&number| number < ranks)?;
    (of.parse() == Ok(ranks)).then_some(number)
}

impl Drop for Job {
    /// Blocks for at most twice [`END_LIMIT`], and then until the killed launcher has been collected.
    fn drop(&mut self) {
        let pids: Vec<Pid> = self.ranks.iter().map(|rank| rank.pid).collect();
        self.ranks.clear(); // the ranks see the end of their input
        let group = Pid::from_child(&self.child);
        if ends(&self.child, END_LIMIT) {
            let _ = self.child.wait();
            return;
        }
        let _ = kill_process_group(group, Signal::TERM);
        if !ends(&self.child, END_LIMIT) {
            // The launcher is not collected yet, so its number is still its own. The numbers of its ranks might belong to
            // other processes only if the ranks had ended before their launcher, which then would have ended, too.
            for pid in pids {
                let _ = kill_process(pid, Signal::KILL);
            }
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// Whether the child ends in time. It still has to be collected.
pub fn ends(child: &Child, limit: Duration) -> bool {
    let Ok(death) = death_of(child) else { return false };
    let mut fds = [PollFd::new(&death, PollFlags::IN)];
    wait(&mut fds, limit).is_ok() && !fds[0].revents().is_empty()
}

fn death_of(child: &Child) -> io::Result<impl AsFd + use<>> {
    Ok(pidfd_open(Pid::from_child(child), PidfdFlags::empty())?)
}

/// Waits until one of the descriptors is ready, or the time is over.
fn wait(fds: &mut [PollFd<'_>], limit: Duration) -> io::Result<()> {
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(fds, Some(&left)) {
            Err(rustix::io::Errno::INTR) => {}
            done => return Ok(done.map(|_| ())?),
        }
    }
}

/// The last lines of a program's output; empty without output.
fn log_tail(log: &Path) -> String {
    // A log may contain any bytes.
    let text = fs::read(log).unwrap_or_default();
    last_lines(&String::from_utf8_lossy(&text))
}

/// The last lines, each on a line of its own and indented; empty for an empty text.
pub fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let skipped = lines.len().saturating_sub(SHOWN_LINES);
    lines[skipped..].iter().map(|line| format!("\n    {line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::peers::scratch::Scratch;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_job_that_ends_early_is_reported_with_what_it_said() {
        let scratch = Scratch::new().expect("a folder");
        let result = Job::start(scratch.path(), "early", 2, shell("echo no license >&2; exit 3"));
        let why = result.err().expect("ended early");
        assert_eq!(why, "it ended before its ranks connected\n    no license");
    }

    #[test]
    fn a_program_that_does_not_exist_is_named() {
        let scratch = Scratch::new().expect("a folder");
        let why = Job::start(scratch.path(), "none", 2, Command::new("deckperf-has-no-such-peer")).err();
        assert!(why.is_some_and(|why| why.starts_with("deckperf-has-no-such-peer: ")));
    }

    #[test]
    fn greetings_name_a_rank_of_the_job() {
        assert_eq!(parse_greeting("rank 1 of 2", 2), Some(1));
        for nonsense in ["", "rank 2 of 2", "rank 0 of 4", "rank -1 of 2", "hello", "rank 1"] {
            assert_eq!(parse_greeting(nonsense, 2), None, "{nonsense}");
        }
    }

    #[test]
    fn what_a_program_said_is_shown_from_its_end() {
        let said: String = (0..20).map(|line| format!("line {line}\n\n")).collect();
        assert_eq!(last_lines(&said).lines().count(), 1 + SHOWN_LINES);
        assert!(last_lines(&said).ends_with("\n    line 19"));
        assert_eq!(last_lines("\n\n"), "");
    }
}
