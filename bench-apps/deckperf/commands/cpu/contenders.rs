//! Contenders of `deckperf cpu`, and how each of them is started on this host.

use std::{env, path::Path, process::Command};

use clap::ValueEnum;

use super::{
    CpuPlan, Kind, dat,
    order::{CpuAnswer, CpuOrder, Waiting, Way},
    schedule::CpuRunner,
    sockets::{LARGEST_DATAGRAM, SMALLEST_DATAGRAM},
};
use crate::{
    commands::peers::{
        Setting,
        job::Job,
        library::{ADVICE, Prefix, check_folder},
        mpi::{Installed, MPIS},
    },
    failure::{PerfError, Result},
    report::data::OURS,
};

/// A contender with its abilities.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Unique name.
    pub name: String,
    /// Library, in the form that all commands write, and transport of the messages.
    pub library: (String, &'static str),
    /// Loop that the contender runs.
    pub way: Way,
    /// Ways in which it can wait; none if it cannot be measured here.
    pub waitings: &'static [Waiting],
    /// Lengths of the shortest and the longest message that it can send.
    pub bytes: [usize; 2],
    /// Whether the run fails without it.
    pub is_needed: bool,
}

/// All contenders, running. Between two batches each of them blocks in a system call.
pub struct Contenders {
    /// Rows, in the order of the tables.
    pub rows: Vec<Row>,
    /// Sentences on who the contenders are, and on who is missing and why.
    pub notes: Vec<String>,
    /// Jobs, each with the indices of its rows: the two kinds of sockets are one job.
    jobs: Vec<(Vec<usize>, Option<Job>)>,
}

impl Contenders {
    /// Starts all jobs, on the two processors to which this process is restricted. Blocks for some seconds.
    ///
    /// # Errors
    /// µDECK or bare sockets do not start, or there is nothing in the folder of `--peers`.
    pub fn start_all(scratch: &Path, plan: &CpuPlan) -> Result<Self> {
        if let Some(folder) = &plan.folder {
            check_folder(folder, MPIS.iter().map(|mpi| &mpi.library))?;
        }
        let mut field = Contenders { rows: Vec::new(), notes: Vec::new(), jobs: Vec::new() };
        field.add_sockets(scratch, plan)?;
        for kind in &plan.kinds {
            if let Some((way, transport)) = kind.ours() {
                field.add_ours(scratch, way, transport)?;
            }
        }
        if plan.kinds.contains(&Kind::Mpi) {
            field.add_mpis(scratch, plan);
        }
        Ok(field)
    }

    fn add_sockets(&mut self, scratch: &Path, plan: &CpuPlan) -> Result {
        let udp = (Kind::UdpSockets, "UDP sockets", Way::Udp, [SMALLEST_DATAGRAM, LARGEST_DATAGRAM]);
        let tcp = (Kind::TcpSockets, "TCP sockets", Way::Tcp, [1, usize::MAX]);
        let asked = [udp, tcp].into_iter().filter(|(kind, ..)| plan.kinds.contains(kind));
        let rows: Vec<Row> = asked
            .map(|(_, name, way, bytes)| Row {
                name: name.to_owned(),
                library: ("sockets".to_owned(), if way == Way::Udp { "udp" } else { "tcp" }),
                way,
                waitings: Waiting::value_variants(),
                bytes,
                is_needed: true,
            })
            .collect();
        if rows.is_empty() {
            return Ok(());
        }
        let job = Job::start(scratch, "sockets", 2, ourselves(&["--sockets"])?);
        let job = job.map_err(|what| PerfError::Contender { who: "bare sockets".to_owned(), what })?;
        self.add(rows, Some(job));
        Ok(())
    }

    fn add_ours(&mut self, scratch: &Path, way: Way, transport: &'static str) -> Result {
        let (library, title, flags, largest) = match way {
            Way::Dat => (UDAPL, "uDAPL", &["--dat", "--transport", transport][..], dat::LARGEST),
            _ => (OURS, "µDECK", &["--transport", transport][..], crate::experiment::sizes::MAX_SIZE),
        };
        let name = format!("{title} {transport}");
        let is_needed = transport != "verbs";
        let row = |waitings| Row {
            name: name.clone(),
            library: (library.to_owned(), transport),
            way,
            waitings,
            bytes: [0, largest],
            is_needed,
        };
        // A stand-in says nothing about a card, so it is not measured.
        if !is_needed && let Some(library) = env::var_os("DECK_VERBS_LIBRARY") {
            let library = library.display();
            self.notes.push(format!("{name} is not measured: DECK_VERBS_LIBRARY names {library}; {COUNTED}"));
            self.add(vec![row(&[])], None);
            return Ok(());
        }
        match Job::start(scratch, &format!("{library}-{transport}"), 2, ourselves(flags)?) {
            Ok(job) => self.add(vec![row(Waiting::value_variants())], Some(job)),
            Err(what) if is_needed => return Err(PerfError::Contender { who: name, what }),
            Err(why) => {
                // The first line of `why` is the conductor's, the second the rank's.
                let why = why.lines().nth(1).unwrap_or(&why).trim();
                self.notes.push(format!("{name} is not measured: {why}; {COUNTED}"));
                self.add(vec![row(&[])], None);
            }
        }
        Ok(())
    }

    fn add_mpis(&mut self, scratch: &Path, plan: &CpuPlan) {
        for (index, mpi) in MPIS.iter().enumerate() {
            let (found, missing) = mpi.library.find(plan.folder.as_deref());
            self.notes.extend(missing.iter().map(|why| format!("not measured: {}", first_line(why))));
            let mut built = Vec::new();
            for (number, found) in found.into_iter().enumerate() {
                let title = format!("{} {}", mpi.library.name, found.version);
                match mpi.install(found, scratch, 10 * index + number) {
                    Ok(installed) => built.push((title, installed)),
                    Err(why) => self.notes.push(format!("{title} is not measured: {}", first_line(&why))),
                }
            }
            let is_alone = built.len() == 1;
            for (title, installed) in built {
                let place = match &installed.found.prefix {
                    Prefix::System => String::new(),
                    Prefix::Folder(folder) => format!(" in {}", folder.display()),
                };
                let flags = installed.flags(Setting::Network("tcp"));
                self.notes.push(format!("{title}{place}; over TCP {flags}"));
                let name = if is_alone { mpi.library.name } else { &title };
                self.add_mpi(scratch, name, &installed, Setting::Memory);
                self.add_mpi(scratch, name, &installed, Setting::Network("tcp"));
            }
        }
        self.notes.extend(plan.folder.is_none().then(|| ADVICE.to_owned()));
    }

    fn add_mpi(&mut self, scratch: &Path, title: &str, installed: &Installed, setting: Setting) {
        let name = format!("{title} {}", setting.transport());
        let row = |waitings| Row {
            name: name.clone(),
            library: (
                format!("{} {}", installed.mpi.library.name, installed.found.version),
                setting.transport(),
            ),
            way: Way::Send,
            waitings,
            bytes: [0, 1 << 20], // as much as peers/peer.c has memory for
            is_needed: false,
        };
        let job =
            Job::start(scratch, &format!("mpi-{}", self.jobs.len()), 2, installed.command(2, 2, setting));
        match job {
            Ok(job) => self.add(vec![row(&[Waiting::Polling])], Some(job)),
            Err(why) => {
                self.notes.push(format!("{name} is not measured: {}", first_line(&why)));
                self.add(vec![row(&[])], None);
            }
        }
    }

    fn add(&mut self, rows: Vec<Row>, job: Option<Job>) {
        let indices = self.rows.len()..self.rows.len() + rows.len();
        self.rows.extend(rows);
        self.jobs.push((indices.collect(), job));
    }
}

/// Name of µDECK's uDAPL as a library, beside that of its mailboxes.
const UDAPL: &str = "udeck-dat";
const COUNTED: &str =
    "`cargo xtask counts` counts the instructions of a message over a stand-in for the library";

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

fn ourselves(arguments: &[&str]) -> Result<Command> {
    let program = env::current_exe().map_err(PerfError::system("finding this program's own file"))?;
    let mut command = Command::new(program);
    command.arg("cpu-rank").args(arguments);
    Ok(command)
}

impl CpuRunner for Contenders {
    fn rows(&self) -> &[Row] {
        &self.rows
    }

    fn run(&mut self, row: usize, order: &CpuOrder) -> Result<[CpuAnswer; 2], String> {
        let job = self.jobs.iter_mut().find(|(rows, _)| rows.contains(&row)).map(|(_, job)| job);
        let slot = job.ok_or("it has no job")?;
        let answers = slot.as_mut().ok_or("its job is gone")?.ask(order, |line| line.parse());
        match answers {
            Ok(answers) => answers.try_into().map_err(|_| "not two sides answered".to_owned()),
            Err(why) => {
                *slot = None;
                Err(why)
            }
        }
    }
}
