//! `deckrun --doctor`: examines the hosts of a job. `udeck::doctor` examines one host; this file asks all of
//! them, by the same agent and towards the same addresses as a job's nodes.

mod launchers;

use std::{
    ffi::OsString,
    io::{self, Read},
    net::IpAddr,
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Resource, Signal, getrlimit};
use udeck::doctor::{Question, examine};

use crate::{
    End, Job, LaunchError,
    cgroup::Cgroup,
    hosts::Share,
    ranks::{OfRank, Pipes, Setting, prepare_child},
    remote,
    signals::Mask,
    words::printable,
};

/// An address that nobody has (RFC 5737): the route to it is the route to any other network. Nothing is sent
/// there.
const ANY_NETWORK: &str = "203.0.113.1";

/// How long to read a host's last output after its agent has ended.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// Upper bound of a report, in bytes.
const MAX_REPORT: u64 = 1 << 20;

/// The findings on all hosts of a job.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// The report, for people.
    pub text: String,
    /// Whether a job could run on these hosts.
    pub can_run: bool,
}

impl Job {
    /// Examines this host, and the others that the job would have, instead of running it: it needs no program.
    /// `colour` colours the text for a terminal. Blocks until all have answered, at most for the start limit.
    ///
    /// # Errors
    /// When the hosts make no sense. A host's own faults are in the diagnosis.
    pub fn examine(&self, colour: bool) -> Result<Diagnosis, LaunchError> {
        let shares = if self.hosts.is_some() { self.shares()? } else { Vec::new() };
        let others: Vec<&Share> = shares.iter().filter(|share| !share.here).collect();
        let asked: Vec<_> = others.iter().map(|share| (share.host.as_str(), self.ask(&share.host))).collect();
        let is_here = others.is_empty() || others.len() < shares.len();
        let mut whole = Diagnosis { text: String::new(), can_run: true };
        if is_here {
            let transports = self.variable("DECK_TRANSPORT");
            let encrypt = self.is_to_encrypt();
            let interface = Some(self.interface_towards(&others));
            // A cgroup is made as for a job, and removed again.
            let cgroup = Some(Cgroup::make().map(|made| made.parent().to_owned()));
            let several_hosts = !others.is_empty();
            let mut report = examine(&Question { interface, several_hosts, transports, encrypt, cgroup });
            let (launchers, is_sound) = launchers::find(self);
            report.can_run &= is_sound;
            // The sum of all sections comes last.
            report.sections.insert(report.sections.len().saturating_sub(1), launchers);
            whole.can_run = report.can_run;
            whole.text = if colour { format!("{report:#}") } else { report.to_string() };
        }
        let deadline = Instant::now() + self.start_limit;
        for (host, asked) in asked {
            let (text, can_run) = match asked.and_then(|asked| asked.answer(deadline)) {
                Ok(answer) => answer,
                Err(why) => (format!("{host}\n  problem  {why}\n\nNo job can run on {host}.\n"), false),
            };
            let line = if whole.text.is_empty() { "" } else { "\n" };
            whole.text += &format!("{line}{text}");
            whole.can_run &= can_run;
        }
        Ok(whole)
    }

    /// Tells whether the job's ranks are told to encrypt.
    fn is_to_encrypt(&self) -> bool {
        self.variable("DECK_ENCRYPT").is_some_and(|value| value == "1")
    }

    /// Returns this host's address towards the others, chosen as for a job.
    fn interface_towards(&self, others: &[&Share]) -> Result<IpAddr, String> {
        let names: Vec<_> = others.iter().map(|share| share.host.as_str()).collect();
        let names = if names.is_empty() { vec![ANY_NETWORK] } else { names };
        let chosen = remote::choose_address(self.interface.as_deref(), &names, &self.agent, self.start_limit);
        chosen.map_err(|error| match (&self.interface, others.len()) {
            (None, 0) => "no route leads to other networks".to_owned(),
            _ => error.to_string(),
        })
    }

    fn ask(&self, host: &str) -> Result<Asked, String> {
        let mut question: Vec<OsString> = vec![self.remote_deckrun.clone().into(), "--doctor".into()];
        // The other host examines itself, not the hosts of an allocation in which it may be.
        question.push("--hosts=localhost".into());
        question.extend(self.variable("DECK_TRANSPORT").map(|list| format!("--transport={list}").into()));
        question.extend(self.is_to_encrypt().then(|| "--encrypt".into()));
        let words = self.agent.words(host, question, self.start_limit);
        let shown = words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let system = |error: io::Error| format!("asking {host}: {error}");
        let setting = Setting {
            mask: Mask::current().map_err(system)?,
            descriptors: getrlimit(Resource::Nofile),
            cgroup: None,
            pipes: Pipes::default(),
            relay_input: false,
        };
        // Without this signal, nobody would end the agent, and the command that it runs on that host, if we
        // die.
        prepare_child(&mut command, &setting, Signal::TERM, OfRank::default());
        match command.spawn() {
            Ok(child) => Ok(Asked { child, shown }),
            Err(error) => Err(format!(
                "cannot run `{shown}`: {error} (--agent sets the command that starts programs there)"
            )),
        }
    }
}

/// A host that is examining itself.
struct Asked {
    child: Child,
    shown: String,
}

impl Asked {
    /// Returns the host's report, and whether a job can run there.
    fn answer(mut self, deadline: Instant) -> Result<(String, bool), String> {
        let (said, complained) = (read(self.child.stdout.take()), read(self.child.stderr.take()));
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
                Ok(None) => {
                    let _ = self.child.kill();
                    let _ = self.child.wait();
                    return Err(format!("`{}` took too long (--start-timeout)", self.shown));
                }
                Err(error) => return Err(format!("waiting for `{}`: {error}", self.shown)),
            }
        };
        // A process that still holds the pipes is not waited for.
        let last = Instant::now() + LAST_WAIT;
        let [said, complained] = [said, complained].map(|text| {
            let text = text.recv_timeout(last.saturating_duration_since(Instant::now()));
            printable(&text.unwrap_or_default())
        });
        match status.code() {
            Some(code @ (0 | 1)) if !said.is_empty() => Ok((said, code == 0)),
            _ => {
                let words = match complained.trim() {
                    "" => "without a word".to_owned(),
                    words => words.replace('\n', " / "),
                };
                Err(format!("`{}` {}: {words}", self.shown, End::of(status)))
            }
        }
    }
}

/// Reads to the end of `pipe`, on a thread, because a full pipe would stop the writer.
fn read<R: Read + Send + 'static>(pipe: Option<R>) -> mpsc::Receiver<String> {
    let (sender, text) = mpsc::channel();
    let reading = move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            let _ = pipe.take(MAX_REPORT).read_to_end(&mut bytes);
        }
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    };
    // Without a thread the channel ends, as after a panic: the text is empty.
    let _ = udeck_sys::thread::spawn("read", reading, |_| {});
    text
}
