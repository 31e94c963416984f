//! Stages of a report's measurement, one after the other. Each stage is this program again, with `--format json`. So a stage that
//! fails, or hangs, is named on the page and does not end the others.

use std::{
    env,
    io::{self, IsTerminal, Read, Write},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

use super::{Measure, PageFailure, source::Source};
use crate::{experiment::plan::TRANSPORTS, parent};

/// Environment variable of a stage: the stage ends with the process that has started it, however that ends.
const STAGE: &str = "DECKPERF_STAGE";
/// Interval at which a stage is polled.
const POLL: Duration = Duration::from_millis(50);
/// Time beyond twice its own after which a stage is killed: for its start, for whole runs of peers, and for delays on a busy
/// machine.
const PATIENCE: Duration = Duration::from_secs(300);
/// The same for NAS FT: its fewest rounds, of 19 jobs of class A each, take many minutes on a slow machine.
const PATIENCE_FOR_FT: Duration = Duration::from_secs(3600);
/// Time that an ended stage has to hand over its output.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Time below which `cpu` measures only its smallest and largest sizes: its fewest rounds of all sizes take half a minute.
const ALL_LOADS: Duration = Duration::from_secs(120);

/// One stage: a run of this program.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// Name that is shown.
    name: String,
    /// Words of the command line, without time and format.
    words: Vec<String>,
    /// Settings of the library, as environment variables.
    settings: Vec<(&'static str, &'static str)>,
    /// Share of the time of all stages.
    share: u32,
    /// Time beyond twice its own after which it is killed.
    patience: Duration,
}

impl Stage {
    fn new(name: impl Into<String>, words: &[&str], share: u32) -> Self {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        Stage { name: name.into(), words, settings: Vec::new(), share, patience: PATIENCE }
    }
}

/// Runs all stages. Returns the runs of those that succeeded, and a sentence about each other one.
pub fn measure(plan: &Measure, stages: &[Stage]) -> (Vec<Source>, Vec<String>) {
    let shares: u32 = stages.iter().map(|stage| stage.share).sum();
    let progress = Progress::new(plan.time, stages.len());
    let (mut sources, mut losses) = (Vec::new(), Vec::new());
    let mut begun = Duration::ZERO;
    for (number, stage) in stages.iter().enumerate() {
        let time = plan.time * stage.share / shares.max(1);
        progress.stage(stage, number, begun);
        match run(stage, time, |passed| progress.at(stage, number, begun + passed.min(time))) {
            Ok(source) => sources.push(source),
            Err(why) => {
                progress.line(&format!("{}: {why}", stage.name));
                losses.push(format!("{}: {why}", stage.name));
            }
        }
        begun += time;
    }
    progress.end();
    (sources, losses)
}

/// Stages of the figures of the thesis on DECK over VIA, in their order.
pub fn of_the_evaluation(plan: &Measure) -> Vec<Stage> {
    let transport = plan.transport.unwrap_or(TRANSPORTS[0]);
    let is_short = plan.time < ALL_LOADS;
    let choose = |short, long| if is_short { short } else { long };
    let sizes = choose("8,1K,4K,64K", "8,64,256,1K,2K,4K,16K,64K,1M,4M");
    let mut all = vec![Stage::new("virtual interfaces", &["--layer", "vi", "--sizes", sizes], 25)];
    for (name, receive) in [("mailboxes by work queues", "wq"), ("mailboxes by completion queue", "cq")] {
        let counts = choose("10,30,40", "10,20,30,35,40");
        let sizes = choose("8,64K", "8,64,1K,8K,64K,1M");
        let words = ["clones", "--clones", counts, "--sizes", sizes, "--flooding", "0", "--stream"];
        all.push(Stage { settings: vec![("DECK_RECEIVE", receive)], ..Stage::new(name, &words, 15) });
    }
    let protocols = ["--protocol", "handshake,eager,auto", "--payload", "untouched", "--sizes", sizes];
    all.push(Stage::new("with and without a handshake", &protocols, 15));
    for stage in &mut all {
        stage.words.extend(["--transport", transport].map(str::to_owned));
        stage.words.extend((!plan.pin).then(|| "--no-pin".to_owned()));
    }
    let words: &[&str] = if is_short { &["ft", "--class", "S", "--ranks", "2,4"] } else { &["ft"] };
    let mut ft = Stage { patience: PATIENCE_FOR_FT, ..Stage::new("NAS FT", words, 50) };
    ft.words.extend(plan.transport.iter().flat_map(|only| ["--transport", *only]).map(str::to_owned));
    all.push(ft);
    all
}

/// Stages of messages, other libraries, and more, in the order of the page. `has` says which commands this program has.
pub fn of_everything(plan: &Measure, has: impl Fn(&str) -> bool) -> Vec<Stage> {
    let stage = |name: String, words: &[&str], share| Stage::new(name, words, share);
    let transports = plan.transport.map_or(TRANSPORTS.to_vec(), |only| vec![only]);
    let mut all = Vec::new();
    for transport in &transports {
        // Shared memory has the most protocols, and most readers look for it.
        let share = if *transport == "shm" { 30 } else { 12 };
        all.push(stage(format!("messages over {transport}"), &["--transport", transport], share));
    }
    let first = transports[0];
    all.push(stage("other libraries".into(), &["peers", "--transport", first], 36));
    if has("cpu") {
        // The contenders of `cpu` are the transports, and it binds both sides in any case.
        let mut cpu = stage("processor time".into(), &["cpu"], 20);
        if let Some(only) = plan.transport {
            cpu.words.extend(["--contenders".to_owned(), format!("udp-sockets,tcp-sockets,{only},mpi")]);
        } else {
            // The page is about messages; uDAPL would take a third of the stage's time.
            let all = "udp-sockets,tcp-sockets,shm,tcp,udp,verbs,mpi";
            cpu.words.extend(["--contenders", all].map(str::to_owned));
        }
        if plan.time < ALL_LOADS {
            cpu.words.extend(["--sizes", "100,64000", "--depths", "64"].map(str::to_owned));
        }
        all.push(cpu);
    }
    if has("matrix") {
        all.push(stage("pairs of ranks".into(), &["matrix", "--transport", first], 10));
    }
    for stage in &mut all {
        let compares = ["peers", "cpu"].contains(&stage.words[0].as_str());
        if let Some(folder) = plan.peers.as_ref().filter(|_| compares) {
            stage.words.extend(["--peers".to_owned(), folder.display().to_string()]);
        }
        if !plan.pin && !compares {
            stage.words.push("--no-pin".into());
        }
    }
    all
}

/// Makes the kernel end this process with its parent, if it is a stage or a rank of one.
pub fn end_with_the_report() {
    if env::var_os(STAGE).is_some() {
        parent::end_with_the_parent();
    }
}

/// Runs one stage to its end, or to its deadline.
fn run(stage: &Stage, time: Duration, passed: impl Fn(Duration)) -> Result<Source, String> {
    let program = env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    let seconds = format!("{:.3}", time.as_secs_f64().max(0.001));
    let mut command = Command::new(program);
    command.args(&stage.words).args(["--format", "json", "--time", &seconds]).env(STAGE, "1");
    command.envs(stage.settings.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("cannot start this program again: {error}"))?;
    let (stdout, stderr) = (read_all(child.stdout.take()), read_all(child.stderr.take()));
    let limit = time * 2 + stage.patience;
    let status = wait(&mut child, limit, passed);
    let text = |from: mpsc::Receiver<Vec<u8>>| {
        String::from_utf8_lossy(&from.recv_timeout(LAST_WORDS).unwrap_or_default()).into_owned()
    };
    let said = text(stderr);
    let last = complaint(&said);
    match status {
        None => return Err(format!("had not ended after {} s and was killed; {last}", limit.as_secs())),
        Some(status) if !status.success() => return Err(format!("failed ({status}): {last}")),
        Some(_) => {}
    }
    let object =
        serde_json::from_str(&text(stdout)).map_err(|error| format!("has written no JSON: {error}"))?;
    Source::parse(stage.name.clone(), object).map_err(|error| match error {
        PageFailure::Unusable { why, .. } => why,
        other => other.to_string(),
    })
}

/// The line of the output that names the error: after an error in the command line there are hints.
fn complaint(said: &str) -> &str {
    let mut lines = said.lines().rev().filter(|line| !line.trim().is_empty());
    let last = lines.clone().next().unwrap_or("no output");
    lines.find(|line| line.starts_with("error: ")).unwrap_or(last)
}

/// Waits for the child; `None`: it was killed at the limit, and its ranks with it.
fn wait(child: &mut Child, limit: Duration, passed: impl Fn(Duration)) -> Option<ExitStatus> {
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if start.elapsed() < limit => passed(start.elapsed()),
            Ok(None) | Err(_) => break,
        }
        thread::sleep(POLL);
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}

/// Reads all output in a thread, so that a full pipe delays nobody.
fn read_all(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
    let (done, received) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // If the read fails, the bytes so far are the output.
            let _ = pipe.read_to_end(&mut bytes);
        }
        let _ = done.send(bytes);
    });
    received
}

/// Progress of the stages: one bar on a terminal; elsewhere a line for each stage.
struct Progress {
    bar: Option<ProgressBar>,
    total: Duration,
    stages: usize,
}

impl Progress {
    fn new(total: Duration, stages: usize) -> Self {
        let style = ProgressStyle::with_template("{msg} {wide_bar} {percent} %").expect("a valid template");
        let bar =
            io::stderr().is_terminal().then(|| ProgressBar::new(total.as_millis() as u64).with_style(style));
        Self { bar, total, stages }
    }

    fn stage(&self, stage: &Stage, number: usize, begun: Duration) {
        match &self.bar {
            Some(_) => self.at(stage, number, begun),
            None => self.line(&self.words(stage, number, begun)),
        }
    }

    fn at(&self, stage: &Stage, number: usize, passed: Duration) {
        if let Some(bar) = &self.bar {
            bar.set_message(self.words(stage, number, passed));
            bar.set_position(passed.as_millis() as u64);
        }
    }

    fn words(&self, stage: &Stage, number: usize, passed: Duration) -> String {
        // Shares are rounded down, so that all of them together may be some nanoseconds less than the total.
        let left = match self.total.saturating_sub(passed) {
            none if none.as_millis() == 0 => "longer than planned".to_owned(),
            some => format!("about {} s left", some.as_secs().max(1)),
        };
        format!("{} ({} of {}), {left}", stage.name, number + 1, self.stages)
    }

    fn line(&self, what: &str) {
        let line = format!("deckperf report: {what}");
        match &self.bar {
            Some(bar) => bar.println(line),
            None => _ = io::stderr().write_all(format!("{line}\n").as_bytes()),
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::Cli;

    fn plan() -> Measure {
        Measure { time: Duration::from_secs(100), transport: None, peers: None, pin: true }
    }

    fn names(stages: &[Stage]) -> Vec<&str> {
        stages.iter().map(|stage| stage.name.as_str()).collect()
    }

    #[test]
    fn every_transport_and_the_peers_have_a_stage() {
        let all = of_everything(&plan(), |_| false);
        assert_eq!(
            names(&all),
            ["messages over shm", "messages over tcp", "messages over udp", "other libraries"]
        );
    }

    #[test]
    fn commands_that_this_program_has_are_stages_too() {
        let all = of_everything(&plan(), |command| command == "matrix");
        assert_eq!(names(&all).last(), Some(&"pairs of ranks"));
        assert_eq!(all.last().map(|stage| stage.words[0].as_str()), Some("matrix"));
    }

    #[test]
    fn a_transport_and_a_folder_are_passed_on() {
        let plan = Measure { transport: Some("tcp"), peers: Some("/there".into()), pin: false, ..plan() };
        let all = of_everything(&plan, |_| false);
        assert_eq!(all[0].words, ["--transport", "tcp", "--no-pin"]);
        assert_eq!(all[1].words, ["peers", "--transport", "tcp", "--peers", "/there"]);
    }

    #[test]
    fn an_evaluation_plays_each_figure_and_both_ways_to_look_for_messages() {
        let settings = |plan: &Measure| {
            let all = of_the_evaluation(plan);
            assert_eq!(all.last().map(|stage| stage.words[0].as_str()), Some("ft"));
            all.iter().flat_map(|stage| stage.settings.clone()).collect::<Vec<_>>()
        };
        assert_eq!(settings(&plan()), [("DECK_RECEIVE", "wq"), ("DECK_RECEIVE", "cq")]);
        let words = |seconds| {
            let time = Duration::from_secs(seconds);
            of_the_evaluation(&Measure { time, transport: Some("tcp"), pin: false, ..plan() })
        };
        let (short, long) = (words(40), words(360));
        assert_eq!(short.len(), long.len());
        assert!(short.iter().chain(&long).all(|stage| stage.words.join(" ").contains("--transport tcp")));
        assert_eq!(long[4].words, ["ft", "--transport", "tcp"]);
        assert!(short[4].words.starts_with(&["ft", "--class", "S"].map(str::to_owned)));
        assert!(!long[4].words.contains(&"--no-pin".to_owned()), "deckrun places its ranks");
    }

    #[test]
    fn ft_may_take_much_longer_than_planned_and_is_said_to() {
        let all = of_the_evaluation(&plan());
        let (ft, others) = all.split_last().expect("stages");
        assert_eq!((ft.words[0].as_str(), ft.patience), ("ft", PATIENCE_FOR_FT));
        assert!(others.iter().all(|stage| stage.patience == PATIENCE));
        let progress = Progress { bar: None, total: Duration::from_secs(100), stages: all.len() };
        let said = |passed| progress.words(ft, 4, passed);
        assert_eq!(said(Duration::from_secs(40)), "NAS FT (5 of 5), about 60 s left");
        assert_eq!(said(Duration::from_millis(99_500)), "NAS FT (5 of 5), about 1 s left");
        for passed in [Duration::from_secs(100) - Duration::from_nanos(3), Duration::from_secs(101)] {
            assert_eq!(said(passed), "NAS FT (5 of 5), longer than planned");
        }
    }

    /// The words of each stage are a command line that this program accepts.
    #[test]
    fn every_stage_is_understood() {
        for transport in [None, Some("tcp")] {
            for (pin, seconds) in [(true, 200), (false, 2)] {
                let time = Duration::from_secs(seconds);
                let plan = Measure { transport, pin, time, peers: Some("/there".into()) };
                for stage in of_everything(&plan, |_| true).into_iter().chain(of_the_evaluation(&plan)) {
                    let words = stage.words.iter().map(String::as_str);
                    let line =
                        ["deckperf"].into_iter().chain(words).chain(["--format", "json", "--time", "1"]);
                    let parsed = Cli::try_parse_from(line)
                        .map_err(|error| error.to_string())
                        .and_then(|cli| cli.task().map_err(|error| error.to_string()));
                    assert!(parsed.is_ok(), "{:?}: {}", stage.words, parsed.expect_err("a mistake"));
                }
            }
        }
    }

    #[test]
    fn a_stage_that_fails_says_why() {
        // The program is this test, which has no such option.
        let stage = Stage::new("x", &["--no-such-option"], 1);
        let why = run(&stage, Duration::from_millis(1), |_| {}).expect_err("it fails");
        assert!(why.starts_with("failed (exit status: ") && why.contains("error: "), "{why}");
    }
}
