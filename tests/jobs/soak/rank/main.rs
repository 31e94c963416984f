//! Program of one rank of a random job, or of all in one process: `soak-rank SEED`, with the run's folder in
//! `SOAK_FOLDER`.

#![allow(missing_docs, reason = "as in the library of this package")]

mod fork;
mod post;
mod rank_holdings;
mod read;
mod together;
mod watch;

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::param::page_size;
use rustix::process::{Resource, Signal, getpid, getrlimit, getuid, kill_process, setrlimit};
use udeck::{Error, Mailbox, World};
use udeck_jobs::soak::facts::Fact;
use udeck_jobs::soak::folder::{Folder, Log, VARIABLE};
use udeck_jobs::soak::plan::{Fault, Place, Plan, Round};

use rank_holdings::RankHoldings;
use watch::Watch;

/// Longest wait for an event that must come, on a busy machine, and with a stopped rank in the way.
pub const PATIENCE: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let seed = std::env::args().nth(1).and_then(|word| word.parse().ok());
    let (Some(seed), Some(folder)) = (seed, std::env::var_os(VARIABLE)) else {
        eprintln!("soak-rank: started by udeck-soak with a seed, and {VARIABLE}");
        return ExitCode::from(2);
    };
    let plan = Arc::new(Plan::new(seed));
    let folder = Folder::at(PathBuf::from(folder));
    let done = match plan.place {
        Place::OneProcess => udeck::run_local(plan.ranks, move |world| play(&plan, &folder, world)),
        _ => udeck::init().and_then(|world| play(&plan, &folder, world)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("soak-rank: {error}");
            ExitCode::FAILURE
        }
    }
}

/// State that all threads of a rank share.
pub struct Rank<'a> {
    pub plan: &'a Plan,
    pub folder: &'a Folder,
    pub world: &'a World,
    pub rank: usize,
    pub watch: Watch,
    log: Log,
    /// Number of messages posted and retrieved in the second round.
    messages: AtomicU64,
}

fn play(plan: &Plan, folder: &Folder, world: World) -> udeck::Result {
    let number = world.rank();
    let log = folder.log(number).expect("a folder that can be written");
    log.tell(&Fact::Pid(getpid().as_raw_nonzero().get()));
    let rank = Rank {
        plan,
        folder,
        world: &world,
        rank: number,
        watch: Watch::new(folder.log(number).expect("a folder that can be written")),
        log,
        messages: AtomicU64::new(0),
    };
    rank.round(Round::First);
    rank.watch.call("the barrier", 2 * PATIENCE, || world.barrier_timeout(PATIENCE))?;
    let before = RankHoldings::settled(plan, &world);
    rank.cramp();
    rank.log.tell(&Fact::Ready);
    rank.round(Round::Second);
    // The count takes a descriptor and memory; without them, connections may also stay half made.
    if !plan.is_cramped(number)
        && let Some(leak) = before.growth(plan, &world, PATIENCE)
    {
        rank.log.tell(&Fact::Leak(leak));
    }
    if let Some(together) = plan.together {
        // A group connects its members: no rank starts while another still counts its holdings.
        rank.watch.call("the second barrier", 2 * PATIENCE, || world.barrier_timeout(PATIENCE))?;
        together::play(&rank, together);
    }
    rank.log.tell(&Fact::Finishing);
    let Rank { watch, log, .. } = rank;
    // The launcher's answer has the limit `DECK_SETUP_TIMEOUT`.
    let finished = watch.call("finish", 2 * PATIENCE, || world.finish_timeout(PATIENCE));
    match finished {
        Err(error) if plan.victims().is_empty() && !plan.is_cramped(number) => {
            log.tell(&Fact::Wrong(format!("finish: {error}")));
        }
        Err(error) => log.tell(&Fact::Note(format!("finish: {error}"))),
        Ok(()) => {}
    }
    log.tell(&Fact::Done);
    Ok(())
}

impl Rank<'_> {
    /// Makes, uses and drops all mailboxes and postboxes of the rank.
    fn round(&self, round: Round) {
        let mut readers: BTreeMap<usize, Vec<(usize, Mailbox<u8>)>> = BTreeMap::new();
        for (at, plan) in self.plan.mailboxes.iter().enumerate().filter(|(_, plan)| plan.owner == self.rank) {
            let name = mailbox_name(round, at);
            match self.watch.call("mailbox", PATIENCE, || self.world.mailbox(&name)) {
                Ok(mailbox) => readers.entry(plan.thread).or_default().push((at, mailbox)),
                Err(error) => self.unexpected(&format!("making mailbox {name}"), &error),
            }
        }
        let mut posters: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (at, plan) in self.plan.streams.iter().enumerate().filter(|(_, plan)| plan.from == self.rank) {
            posters.entry(plan.thread).or_default().push(at);
        }
        thread::scope(|scope| {
            for mailboxes in readers.into_values() {
                scope.spawn(move || read::all(self, round, mailboxes));
            }
            for streams in posters.values() {
                scope.spawn(move || post::all(self, round, streams));
            }
            if round == Round::Second && self.plan.forks.contains(&self.rank) {
                scope.spawn(|| self.start_programs());
            }
            if self.plan.children.contains(&self.rank) {
                scope.spawn(move || fork::children(self, round));
            }
            if round == Round::Second {
                // The limit is set now that the rank's own threads have their stacks.
                self.starve();
            }
        });
    }

    /// Starts other processes, in both ways of the standard library, beside the threads that communicate.
    fn start_programs(&self) {
        for number in 0..6 {
            let mut program = Command::new("sh");
            program.args(["-c", "sleep 0.02; exit 7"]);
            if number % 2 == 0 {
                // Setting the user makes the standard library fork instead of spawn.
                program.uid(getuid().as_raw());
            }
            match program.status() {
                Ok(status) if status.code() == Some(7) => {}
                Ok(status) => self.wrong(format!("a program that was to exit with 7 ended with {status}")),
                Err(_) if self.plan.is_cramped(self.rank) => {}
                Err(error) => self.wrong(format!("starting a program: {error}")),
            }
        }
    }

    /// Limits the descriptors that this process may open.
    fn cramp(&self) {
        for fault in &self.plan.faults {
            if let Fault::Cramp { rank, spare } = fault
                && *rank == self.rank
            {
                let mut limit = getrlimit(Resource::Nofile);
                limit.current = limit_that_leaves(*spare);
                let done = setrlimit(Resource::Nofile, limit);
                self.log.tell(&Fact::Note(format!("descriptors: {limit:?} {done:?}")));
            }
        }
    }

    /// Limits the memory that this process may map.
    fn starve(&self) {
        for fault in &self.plan.faults {
            if let Fault::Famine { rank, spare } = fault
                && *rank == self.rank
            {
                let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
                let pages = pages.split(' ').next().and_then(|pages| pages.parse::<u64>().ok());
                let Some(pages) = pages else { return };
                let mut limit = getrlimit(Resource::As);
                limit.current = Some(pages * page_size() as u64 + (spare << 20));
                let done = setrlimit(Resource::As, limit);
                self.log.tell(&Fact::Note(format!("memory: {limit:?} {done:?}")));
            }
        }
    }

    /// Counts a message of the second round, at which the plan may make this rank kill itself.
    pub fn moved(&self, round: Round) {
        if round == Round::First {
            return;
        }
        let count = self.messages.fetch_add(1, Ordering::Relaxed) + 1;
        for fault in &self.plan.faults {
            if let Fault::Suicide { rank, messages } = fault
                && (*rank, *messages) == (self.rank, count)
            {
                self.folder.bury(self.rank);
                let _ = kill_process(getpid(), Signal::KILL);
            }
        }
    }

    /// Reports an error that only a lack of descriptors or a rank's end would explain.
    pub fn unexpected(&self, what: &str, error: &Error) {
        if self.plan.victims().is_empty() && !self.plan.is_cramped(self.rank) {
            self.wrong(format!("{what}: {error}"));
        } else {
            self.note(format!("{what}: {error}"));
        }
    }

    pub fn wrong(&self, what: String) {
        self.log.tell(&Fact::Wrong(what));
    }

    pub fn note(&self, what: String) {
        self.log.tell(&Fact::Note(what));
    }

    pub fn tell(&self, round: Round, fact: &Fact) {
        if round == Round::Second {
            self.log.tell(fact);
        }
    }
}

/// Limit of descriptors under which `spare` are free. Inherited ones may have high numbers, so the highest is no measure.
fn limit_that_leaves(spare: u64) -> Option<u64> {
    let is_free = |number: &u64| !PathBuf::from(format!("/proc/self/fd/{number}")).is_symlink();
    (0..).filter(is_free).nth(usize::try_from(spare).ok()?)
}

pub fn mailbox_name(round: Round, mailbox: usize) -> String {
    format!("{mailbox} of round {}", round as usize + 1)
}
