//! A job whose ranks are started one by one, each after the death of the previous one.

use std::{
    io::{BufRead, BufReader},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::Duration,
};
use udeck_boot::{
    ENV_BOOT_FD,
    serve::{Reporter, Service},
    server::Config,
};
use udeck_sys::socket;

/// Deadline of every wait: it only ends a hang.
pub const LIMIT: Duration = Duration::from_secs(120);

/// A name service in this process, and the streams of the ranks that have not been started.
pub struct InProcessJob {
    streams: std::vec::IntoIter<UnixStream>,
    reporter: Reporter,
}

impl InProcessJob {
    pub fn new(ranks: usize) -> Self {
        let pairs: Vec<_> = (0..ranks).map(|_| UnixStream::pair().expect("a pair of sockets")).collect();
        let (ours, theirs): (_, Vec<_>) = pairs.into_iter().unzip();
        let mut config = Config::new(ranks as u32).expect("random bytes");
        // A rank is lost when its parent says so, as under a launcher. (Its peers may know earlier.)
        config.patience = LIMIT;
        let service = Service::new(config, ours).expect("a service");
        let reporter = service.reporter();
        // The service ends with the last rank's stream.
        thread::spawn(|| service.run());
        InProcessJob { streams: theirs.into_iter(), reporter }
    }

    /// Starts the next rank.
    pub fn start(&mut self, program: &str, args: &[String], fault: Option<String>) -> Rank {
        const BOOT_FD: &str = "9";
        let stream = self.streams.next().expect("a rank is left");
        // The shell gives the stream the number that it needs, so that no other child can inherit it.
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(format!("exec \"$0\" \"$@\" {BOOT_FD}<&0 0</dev/null")).arg(program).args(args);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"DECK_"))
        {
            command.env_remove(name);
        }
        command.env(ENV_BOOT_FD, BOOT_FD).envs(fault.map(|fault| ("DECK_FAULT", fault)));
        command.stdin(Stdio::from(OwnedFd::from(stream))).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a shell");
        let lines = lines(child.stdout.take().expect("piped"));
        Rank { child, lines }
    }

    /// Reports how a rank ended, as a launcher does.
    pub fn report(&self, rank: usize) {
        self.reporter.report_ended(rank as u32, "killed by SIGKILL");
    }
}

/// Process of a rank. Dropping it kills and reaps the process.
pub struct Rank {
    child: Child,
    lines: Receiver<String>,
}

impl Rank {
    /// Waits for the end of the process.
    pub fn wait(&mut self) -> Result<ExitStatus, String> {
        let pid = i32::try_from(self.child.id()).expect("a process number");
        // The process is not reaped yet, so the number is still its own.
        let death = socket::death_of(pid).map_err(|error| error.to_string())?;
        match socket::wait_readable(death.as_fd(), LIMIT) {
            Ok(true) => self.child.wait().map_err(|error| error.to_string()),
            _ => Err("did not end".into()),
        }
    }

    /// Waits for the next line of its output, which must be `expected`.
    pub fn says(&self, expected: &str) -> Result<(), String> {
        match self.lines.recv_timeout(LIMIT) {
            Ok(line) if line == expected => Ok(()),
            Ok(line) => Err(format!("said {line:?} instead of {expected:?}")),
            Err(_) => Err(format!("did not say {expected:?}")),
        }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // The process may have ended, and been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(stdout: ChildStdout) -> Receiver<String> {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if tell.send(line).is_err() {
                return;
            }
        }
    });
    told
}
