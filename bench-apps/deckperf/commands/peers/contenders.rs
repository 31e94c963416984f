//! Contenders of `deckperf peers`, and how each of them is run on this host.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use super::{
    bare,
    floor::Floor,
    job::Job,
    library::{ADVICE, Found, Library, Prefix, check_folder},
    mpi::{Installed, MPIS},
    quinn::{self, Quinn},
    request::{Column, Method, PeerTest, Request, WINDOW},
    schedule::{ContenderId, Mode, PeerRunner, PeerSeries},
    sockets,
    targets::Setting,
    whole::{PROGRAMS, Program},
};
use crate::{
    experiment::{
        baseline::{Baselines, MIN_COPY},
        plan::Payload,
    },
    failure::{PerfError, Result},
};

/// A peer that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Peer {
    /// Name of the library.
    pub name: &'static str,
    /// Version of the library.
    pub version: String,
    /// Prefix of the installation; `None` for the system's.
    pub prefix: Option<PathBuf>,
    /// Flags and settings with which the peer is run.
    pub flags: String,
}

impl Peer {
    fn new(library: &Library, found: &Found, flags: String) -> Self {
        let prefix = match &found.prefix {
            Prefix::System => None,
            Prefix::Folder(folder) => Some(folder.clone()),
        };
        Peer { name: library.name, version: found.version.clone(), prefix, flags }
    }

    /// Name and version. No other peer has the same, although a library may be there in several releases.
    pub fn title(&self) -> String {
        format!("{} {}", self.name, self.version)
    }
}

/// All contenders, running. Between two batches each of them blocks in a system call.
pub struct Contenders {
    /// Peers, in the order of the columns; [`ContenderId::Peer`] has the index.
    pub peers: Vec<Peer>,
    /// Sentences on peers that are absent or of no use, and what to do about it.
    pub missing: Vec<String>,
    jobs: Vec<(ContenderId, usize, Job)>,
    /// Programs that are run whole, each with its peer's number.
    programs: Vec<(usize, &'static Program, Found)>,
    /// The ends of the QUIC connection, with the peer's number.
    quinn: Option<(usize, Quinn)>,
    raw: Baselines,
    floor: Floor,
    cores: [usize; 2],
    setting: Setting,
}

impl Contenders {
    /// Starts all jobs on `cores`, to which this process is already restricted: µDECK's, and those of all libraries that are
    /// installed or lie in `folder`, each with as many ranks as `sizes` say. Blocks for some seconds.
    ///
    /// # Errors
    /// A job of µDECK's does not start, or there is nothing in `folder`. A peer that does not start is reported as missing.
    pub fn start_all(
        scratch: &Path,
        cores: [usize; 2],
        setting: Setting,
        sizes: &[usize],
        folder: Option<&Path>,
    ) -> Result<Self> {
        // These programs only send messages, and have no collective operations.
        let programs = if setting == Setting::Groups { &[] } else { &PROGRAMS[..] };
        let libraries =
            MPIS.iter().map(|mpi| &mpi.library).chain(programs.iter().map(|program| &program.library));
        if let Some(folder) = folder {
            check_folder(folder, libraries)?;
        }
        let largest = setting.rows().iter().map(|row| row.column.bytes).max().unwrap_or(0);
        let raw = Baselines::new(Some(cores), largest);
        let (peers, missing) = (Vec::new(), Vec::new());
        let mut field = Contenders {
            peers,
            missing,
            jobs: Vec::new(),
            programs: Vec::new(),
            quinn: None,
            raw,
            floor: Floor::new(),
            cores,
            setting,
        };
        for &ranks in sizes {
            let job = Job::start(scratch, &format!("ours-{ranks}"), ranks, ours(ranks, setting)?);
            let job =
                job.map_err(|what| PerfError::Contender { who: field.name(ContenderId::Ours), what })?;
            field.jobs.push((ContenderId::Ours, ranks, job));
        }
        for mpi in &MPIS {
            for found in field.find(&mpi.library, folder) {
                match mpi.install(found, scratch, field.peers.len()) {
                    Ok(installed) => field.add_mpi(scratch, sizes, &installed),
                    Err(why) => field.missing.push(format!("{}: {why}", mpi.library.name)),
                }
            }
        }
        for program in programs {
            for found in field.find(&program.library, folder) {
                field.peers.push(Peer::new(&program.library, &found, program.flags(setting).to_owned()));
                field.programs.push((field.peers.len() - 1, program, found));
            }
        }
        if setting == Setting::Network("udp") {
            field.add_quinn();
        }
        field.missing.extend(folder.is_none().then(|| ADVICE.to_owned()));
        Ok(field)
    }

    fn find(&mut self, library: &Library, folder: Option<&Path>) -> Vec<Found> {
        let (found, missing) = library.find(folder);
        self.missing.extend(missing);
        found
    }

    fn add_mpi(&mut self, scratch: &Path, sizes: &[usize], installed: &Installed) {
        let number = self.peers.len();
        let peer = Peer::new(&installed.mpi.library, &installed.found, installed.flags(self.setting));
        let title = peer.title();
        self.peers.push(peer);
        for &ranks in sizes {
            let command = installed.command(ranks, self.cores.len(), self.setting);
            match Job::start(scratch, &format!("peer-{number}-{ranks}"), ranks, command) {
                Ok(job) => self.jobs.push((ContenderId::Peer(number), ranks, job)),
                Err(why) => self.missing.push(format!("{title}, {ranks} ranks: {why}")),
            }
        }
    }

    fn add_quinn(&mut self) {
        let (name, version, flags) = (quinn::NAME, quinn::VERSION.to_owned(), quinn::FLAGS.to_owned());
        match Quinn::connect() {
            Ok(ends) => {
                self.quinn = Some((self.peers.len(), ends));
                self.peers.push(Peer { name, version, prefix: None, flags });
            }
            Err(error) => self.missing.push(format!("{name}: {error}")),
        }
    }

    /// Empty series for everything that the contenders can do.
    pub fn series(&self) -> Vec<PeerSeries> {
        let mut all: Vec<PeerSeries> = Vec::new();
        let mut add = |who, way, column: &Column, mode| {
            let known = |series: &PeerSeries| (series.who, series.way, &series.column) == (who, way, column);
            if !all.iter().any(known) {
                all.push(PeerSeries::new(who, way, *column, mode));
            }
        };
        for row in self.setting.rows() {
            let column = &row.column;
            for (who, _, _) in self.jobs.iter().filter(|(_, ranks, _)| *ranks == column.ranks) {
                let way = if *who == ContenderId::Ours { row.ours } else { row.theirs };
                add(*who, way, column, Mode::Conducted);
            }
            for (number, program, _) in &self.programs {
                if row.theirs == Method::Send && program.does(column) {
                    add(ContenderId::Peer(*number), Method::Send, column, Mode::Whole);
                }
            }
            if let Some((number, _)) = self.quinn.as_ref().filter(|_| quinn::does(column)) {
                add(ContenderId::Peer(*number), Method::Send, column, Mode::Itself);
            }
            match limit(column, self.setting) {
                Some(Mode::Conducted) if self.bare_job(column.ranks).is_none() => {}
                Some(mode) => add(ContenderId::Limit, Method::Bare, column, mode),
                None => {}
            }
            if has_floor(column, self.setting) {
                add(ContenderId::Floor, Method::Bare, column, Mode::Itself);
            }
        }
        all
    }

    /// Measures without any library but quinn, by two threads, of which this is one: µs for a message.
    fn bare_figure(&mut self, who: ContenderId, column: &Column) -> Result<f64, String> {
        let cores = self.cores;
        if let Some((number, ends)) = &mut self.quinn
            && who == ContenderId::Peer(*number)
        {
            return ends.micros(column, cores).map_err(|error| error.to_string());
        }
        if who == ContenderId::Floor {
            let floor = match column.test {
                PeerTest::Stream => self.floor.stream(WINDOW, cores),
                _ => self.floor.ping_pong(cores),
            };
            return floor.map_err(|error| format!("the floor: {error}"));
        }
        if self.setting.is_network() {
            let micros = sockets::connection().and_then(|ends| bare::micros(column, ends, cores));
            return micros.map_err(|error| format!("raw sockets: {error}"));
        }
        let sample = self.raw.measure(column.bytes).map_err(|error| error.to_string())?;
        Ok(sample.copies.map_or(sample.line, |copies| copies.out))
    }

    /// Index of the job whose shared window serves bare measurements. The last job is taken: the ranks of MPICH, whose
    /// job comes first, may be in scheduling groups of their own, where yielding yields to nobody.
    fn bare_job(&self, ranks: usize) -> Option<usize> {
        self.jobs.iter().rposition(|(who, size, _)| *who != ContenderId::Ours && *size == ranks)
    }
}

/// Mode in which a limit of the machine is measured: by an MPI's ranks, or by threads of this process, which need no MPI.
fn limit(column: &Column, setting: Setting) -> Option<Mode> {
    if setting.is_network() {
        let untouched = column.payload == Payload::Untouched;
        return (column.test != PeerTest::Barrier && untouched).then_some(Mode::Itself);
    }
    let (small, untouched) = (column.bytes < MIN_COPY, column.payload == Payload::Untouched);
    match column.test {
        PeerTest::Latency => (column.ranks == 2 && (small || untouched)).then_some(Mode::Itself),
        PeerTest::Stream if small => Some(Mode::Conducted),
        PeerTest::Stream => untouched.then_some(Mode::Itself),
        // The limit of a barrier is measured in `deckperf peers` only.
        PeerTest::Barrier => (setting == Setting::Memory).then_some(Mode::Conducted),
        PeerTest::AllReduce | PeerTest::Broadcast | PeerTest::AllToAll => None,
    }
}

/// Whether a column has a floor: only short messages between two ranks that share memory.
fn has_floor(column: &Column, setting: Setting) -> bool {
    let message = matches!(column.test, PeerTest::Latency | PeerTest::Stream) && column.bytes == 8;
    setting == Setting::Memory && column.ranks == 2 && message
}

fn ours(ranks: usize, setting: Setting) -> Result<Command> {
    let program = env::current_exe().map_err(PerfError::system("finding this program's own file"))?;
    let mut command = Command::new(program);
    command.args(["peer-rank", "--ranks", &ranks.to_string(), "--transport", setting.transport()]);
    command.args((setting == Setting::Groups).then_some("--groups"));
    Ok(command)
}

impl PeerRunner for Contenders {
    fn time(&mut self, who: ContenderId, column: &Column, request: &Request) -> Result<Duration, String> {
        let index = match who {
            ContenderId::Limit => self.bare_job(column.ranks),
            who => self.jobs.iter().position(|(known, ranks, _)| (*known, *ranks) == (who, column.ranks)),
        };
        let index = index.ok_or("its job is gone")?;
        let done = self.jobs[index].2.run(request);
        if done.is_err() {
            self.jobs.remove(index);
        }
        done
    }

    fn figure(&mut self, who: ContenderId, column: &Column) -> Result<f64, String> {
        let own = |program: &&(usize, _, _)| who == ContenderId::Peer(program.0);
        if let Some((_, program, found)) = self.programs.iter().find(own) {
            return program.measure(found, column, self.cores, self.setting);
        }
        // The measurement needs a thread of its own, because its near side stays pinned; processes that this thread starts
        // must not be.
        let measured = thread::scope(|scope| scope.spawn(|| self.bare_figure(who, column)).join());
        measured.map_err(|_| "the thread that measures it failed")?
    }

    fn name(&self, who: ContenderId) -> String {
        match who {
            ContenderId::Ours => "µDECK".to_owned(),
            ContenderId::Limit => "the machine's limit".to_owned(),
            ContenderId::Floor => "the floor".to_owned(),
            ContenderId::Peer(number) => self.peers[number].title(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::peers::targets::Against;

    #[test]
    fn every_target_against_a_limit_or_the_floor_has_one() {
        for setting in [Setting::Memory, Setting::Network("tcp"), Setting::Network("udp"), Setting::Groups] {
            for row in setting.rows() {
                let wants = |against| row.targets.iter().any(|target| target.against == against);
                assert!(!wants(Against::Limit) || limit(&row.column, setting).is_some(), "{}", row.title);
                assert!(!wants(Against::Floor) || has_floor(&row.column, setting), "{}", row.title);
            }
        }
    }
}
