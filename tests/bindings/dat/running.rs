//! Processes of a test: each has its output in a file, and a time limit.

use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

use udeck_test_kit::free_port;

/// Time limit of a process: it only ends a hang.
const LIMIT: Duration = Duration::from_secs(100);
const LOOK: Duration = Duration::from_millis(5);

/// Environment of the processes of one test: a folder with a dat.conf, and a table of names of their own.
pub struct Place {
    folder: PathBuf,
    names: u16,
    elsewhere: Option<Elsewhere>,
}

/// Another host, on which servers run: its /etc/dat.conf has the adapter.
#[derive(Clone)]
struct Elsewhere {
    /// Agent: `AGENT HOST COMMAND...` runs a command on the host, with its output here.
    agent: String,
    host: String,
}

impl Elsewhere {
    fn asked_for() -> Option<Elsewhere> {
        let agent = env::var("UDECK_DAT_AGENT").ok()?;
        let host = env::var("UDECK_DAT_PEER").expect("UDECK_DAT_AGENT needs UDECK_DAT_PEER, the host");
        Some(Elsewhere { agent, host })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.agent);
        command.arg(&self.host);
        command
    }
}

impl Place {
    /// Makes a dat.conf whose adapter `udeck` uses this transport.
    pub fn new(transport: &str) -> Place {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // The name differs from those of jobs' leftovers, which other tests of this program look for.
        let folder = env::temp_dir().join(format!("dat-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let library = env::var("UDECK_DAT_LIBRARY")
            .expect("UDECK_DAT_LIBRARY names the provider: cargo xtask test --only dat builds it");
        let line = format!("udeck u2.0 nonthreadsafe default {library} udeck.2.0 \"{transport}\" \"\"\n");
        fs::write(folder.join("dat.conf"), line).unwrap();
        Place { folder, names: free_port(), elsewhere: Elsewhere::asked_for() }
    }

    pub fn servers_are_elsewhere() -> bool {
        Elsewhere::asked_for().is_some()
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Host of the servers.
    pub fn server(&self) -> &str {
        self.elsewhere.as_ref().map_or("localhost", |elsewhere| &elsewhere.host)
    }

    /// Starts a server with these arguments.
    pub fn serve(&self, program: &str, words: &str) -> Running {
        let Some(elsewhere) = &self.elsewhere else { return self.start("server", program, words) };
        let mut command = elsewhere.command();
        command.args(["env", "DAT_OVERRIDE=/etc/dat.conf", &format!("DECK_DIRECTORY_PORT={}", self.names)]);
        let secret = env::var("DECK_DIRECTORY_SECRET").expect("hosts need DECK_DIRECTORY_SECRET");
        command.arg(format!("DECK_DIRECTORY_SECRET={secret}"));
        command.args(["stdbuf", "-oL", program]).args(words.split_whitespace());
        self.spawn("server", command, format!("{program} {words}"))
    }

    /// Starts a program with these arguments.
    pub fn start(&self, name: &str, program: impl AsRef<Path>, words: &str) -> Running {
        // Lines appear in the file as soon as they are printed.
        let mut command = Command::new("stdbuf");
        command.arg("-oL").arg(program.as_ref()).args(words.split_whitespace());
        self.spawn(name, self.here(command), format!("{} {words}", program.as_ref().display()))
    }

    /// Adds the settings of this place to a command.
    fn here(&self, mut command: Command) -> Command {
        command
            .current_dir(&self.folder)
            .env("DAT_OVERRIDE", self.folder.join("dat.conf"))
            .env("DECK_DIRECTORY_PORT", self.names.to_string());
        command
    }

    fn spawn(&self, name: &str, mut command: Command, shown: String) -> Running {
        let log = self.folder.join(name);
        let output = fs::File::create(&log).unwrap();
        command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
        let child = command.spawn().unwrap_or_else(|error| panic!("{shown}: {error}"));
        let elsewhere = self.elsewhere.clone();
        Running { child, shown, log, until: Instant::now() + LIMIT, elsewhere }
    }

    /// Runs a program to its end, and returns its output.
    pub fn run(&self, program: impl AsRef<Path>, words: &str) -> String {
        self.start("alone", program, words).succeed()
    }

    /// Runs a program inside of another command, with nothing preloaded: AddressSanitizer must be the first.
    pub fn run_inside(&self, words: &[String], program: &Path) -> String {
        let words: Vec<&OsStr> = words.iter().map(OsStr::new).chain([program.as_os_str()]).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        self.spawn("alone", self.here(command), program.display().to_string()).succeed()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// A process that ends with the test.
pub struct Running {
    child: Child,
    shown: String,
    log: PathBuf,
    until: Instant,
    /// The host on which it listens, if it is another one.
    elsewhere: Option<Elsewhere>,
}

impl Running {
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn fail(&mut self, how: &str) -> ! {
        let _ = self.child.kill();
        let _ = self.child.wait();
        panic!("{}: {how}. It said:\n{}", self.shown, self.said());
    }

    /// Waits until its output contains these words.
    pub fn say(&mut self, words: &str) {
        while !self.said().contains(words) {
            if self.child.try_wait().unwrap().is_some() {
                self.fail(&format!("it ended, and never said {words:?}"));
            }
            if Instant::now() > self.until {
                self.fail(&format!("it has not said {words:?} in time"));
            }
            sleep(LOOK);
        }
    }

    /// Waits until a process listens at this TCP port. Nothing connects for that: a server may serve one connection only.
    pub fn listens(&mut self, port: u16) {
        // The fields after the number are the own address with the port, the peer's address, and the state,
        // which is LISTEN.
        let at = format!(":{port:04X}");
        let is_it = |line: &str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            fields.get(1).is_some_and(|own| own.ends_with(&at)) && fields.get(3) == Some(&"0A")
        };
        let elsewhere = self.elsewhere.clone();
        let table = |name: &str| match &elsewhere {
            None => fs::read_to_string(name).unwrap_or_default(),
            Some(there) => {
                let said = there.command().args(["cat", name]).stdin(Stdio::null()).output().unwrap();
                String::from_utf8_lossy(&said.stdout).into_owned()
            }
        };
        while !["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|name| table(name).lines().any(is_it)) {
            if Instant::now() > self.until {
                self.fail(&format!("nobody listens at port {port}"));
            }
            sleep(LOOK);
        }
    }

    /// Waits for the successful end of the process, and returns its output.
    pub fn succeed(mut self) -> String {
        loop {
            match self.child.try_wait().unwrap() {
                Some(status) if status.success() => return self.said(),
                Some(status) => self.fail(&status.to_string()),
                None if Instant::now() > self.until => self.fail("it has not ended in time"),
                None => sleep(LOOK),
            }
        }
    }

    /// Waits for the end of the process, successful or not, and returns its output.
    pub fn end(mut self) -> String {
        while self.child.try_wait().unwrap().is_none() {
            if Instant::now() > self.until {
                self.fail("it has not ended in time");
            }
            sleep(LOOK);
        }
        self.said()
    }

    /// Kills the process unexpectedly.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
