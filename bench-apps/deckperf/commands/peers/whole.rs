//! Programs that cannot be conducted: they are run whole, one size at a time, between rounds, and report their own
//! figure.

use std::{
    io::Read,
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::{
    job::{ends, last_lines},
    library::{Found, Library},
    request::{Column, PeerTest},
    targets::Setting,
};
use crate::experiment::plan::Payload;

/// A benchmark that comes with a library; it runs as a server and a client.
#[derive(Debug)]
pub struct Program {
    /// Library that the program belongs to.
    pub library: Library,
    /// Its flags, for the report: over memory, over TCP, beside UDP.
    flags: [&'static str; 3],
    /// Its settings: over memory, over TCP, beside UDP.
    settings: [&'static [(&'static str, &'static str)]; 3],
    server: fn(&Column, &str, Setting) -> Vec<String>,
    client: fn(&Column, &str, Setting) -> Vec<String>,
    /// Parses the client's output into µs per message.
    figure: fn(&Column, &str) -> Option<f64>,
    streams: bool,
}

/// All programs, in the order of the columns.
pub const PROGRAMS: [Program; 2] = [
    Program {
        library: Library {
            name: "UCX",
            folder: "ucx",
            packages: "ucx-utils",
            is_fetched: true,
            program: "ucx_perftest",
            aliases: &[],
            version: ["ucx_info", "-v"],
            mark: "",
        },
        flags: [
            "UCX_TLS=shm,self ucx_perftest -t tag_lat (median), tag_bw -O 64",
            UCX_TCP_FLAGS,
            UCX_TCP_FLAGS,
        ],
        settings: [&[("UCX_TLS", "shm,self")], UCX_TCP, UCX_TCP],
        server: |_, port, _| words(&format!("-p {port}")),
        client: ucx_client,
        figure: ucx_figure,
        streams: true,
    },
    Program {
        library: Library {
            name: "libfabric",
            folder: "libfabric",
            packages: "libfabric-bin",
            is_fetched: false,
            program: "fi_pingpong",
            aliases: &[],
            version: ["fi_info", "--version"],
            mark: "",
        },
        flags: [
            "fi_pingpong -p shm -e rdm",
            "FI_TCP_IFACE=lo fi_pingpong -p tcp;ofi_rxm -e rdm",
            "FI_UDP_IFACE=lo fi_pingpong -p udp;ofi_rxd -e rdm",
        ],
        settings: [&[], &[("FI_TCP_IFACE", "lo")], &[("FI_UDP_IFACE", "lo")]],
        server: |column, port, setting| {
            words(&format!("-p {} -e rdm {} -B {port}", provider(setting), fabric_size(column, setting)))
        },
        client: |column, port, setting| {
            words(&format!(
                "-p {} -e rdm {} -P {port} 127.0.0.1",
                provider(setting),
                fabric_size(column, setting)
            ))
        },
        figure: fabric_figure,
        streams: false,
    },
];

/// Settings of UCX over TCP, and beside UDP, which UCX does not have.
const UCX_TCP: &[(&str, &str)] = &[("UCX_TLS", "tcp,self"), ("UCX_NET_DEVICES", "lo")];
const UCX_TCP_FLAGS: &str =
    "UCX_TLS=tcp,self UCX_NET_DEVICES=lo ucx_perftest -t tag_lat (median), tag_bw -O 64";

/// Time limit of one run of server and client.
const RUN_LIMIT: Duration = Duration::from_secs(20);
/// Most runs of a client: the server does not report when it listens, so a client that came too early is run again.
const ATTEMPTS: u32 = 40;
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(25);

impl Program {
    /// Flags and settings with which the program is run.
    pub fn flags(&self, setting: Setting) -> &'static str {
        self.flags[number(setting)]
    }

    /// Whether the program can run this column.
    pub fn does(&self, column: &Column) -> bool {
        let test = column.test == PeerTest::Latency || column.test == PeerTest::Stream && self.streams;
        test && column.ranks == 2 && column.payload == Payload::Untouched
    }

    /// Time per message in µs, as the program itself measures it; server and client run on one core each.
    ///
    /// # Errors
    /// The program did not start, did not end in time, or printed no figure; its output is quoted.
    pub fn measure(
        &self,
        found: &Found,
        column: &Column,
        cores: [usize; 2],
        setting: Setting,
    ) -> Result<f64, String> {
        let port =
            udeck_sys::free_port().map_err(|error| format!("finding a free port: {error}"))?.to_string();
        let mut server = self.spawn(found, (self.server)(column, &port, setting), cores[1], setting)?;
        let deadline = Instant::now() + RUN_LIMIT;
        let mut why = String::new();
        for _ in 0..ATTEMPTS {
            let client = self.spawn(found, (self.client)(column, &port, setting), cores[0], setting)?;
            let [printed, complaints] = client.output(deadline.saturating_duration_since(Instant::now()))?;
            if let Some(micros) = (self.figure)(column, &printed).filter(|micros| *micros > 0.0) {
                return Ok(micros);
            }
            why = format!("{} printed no figure{}", found.name, last_lines(&(printed + &complaints)));
            if ends(&server.0, BETWEEN_ATTEMPTS) || Instant::now() > deadline {
                break;
            }
        }
        server.stop();
        Err(why)
    }

    /// Starts the program on a core, which it inherits from the thread that starts it.
    fn spawn(
        &self,
        found: &Found,
        arguments: Vec<String>,
        core: usize,
        setting: Setting,
    ) -> Result<Running, String> {
        let settings = self.settings[number(setting)];
        let mut command = found.prefix.command(found.name);
        let start = || {
            udeck::sys::pin_to_cpu(core)?;
            command
                .args(arguments)
                .envs(settings.iter().copied())
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
        };
        let started = thread::scope(|scope| scope.spawn(start).join());
        let child = started.map_err(|_| "the thread that starts it failed".to_owned())?;
        child.map(Running).map_err(|error| format!("{}: {error}", command.get_program().display()))
    }
}

/// A running program, which is killed when dropped.
struct Running(Child);

impl Running {
    /// Output and error output, after the program has ended by itself. Both are a few lines, which fit into the pipes.
    fn output(mut self, limit: Duration) -> Result<[String; 2], String> {
        if !ends(&self.0, limit) {
            return Err(format!("did not end within {} s, killed", RUN_LIMIT.as_secs()));
        }
        let read = |pipe: Option<&mut dyn Read>| {
            let mut bytes = Vec::new();
            let read = pipe.map(|pipe| pipe.read_to_end(&mut bytes));
            read.transpose().map_err(|error| format!("reading what it printed: {error}"))?;
            Ok::<_, String>(String::from_utf8_lossy(&bytes).into_owned())
        };
        let Child { stdout, stderr, .. } = &mut self.0;
        Ok([
            read(stdout.as_mut().map(|pipe| pipe as &mut dyn Read))?,
            read(stderr.as_mut().map(|pipe| pipe as &mut dyn Read))?,
        ])
    }

    fn stop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// Number of iterations: long enough to reach the steady state, short enough for many runs.
fn iterations(bytes: usize) -> usize {
    (32 << 20).min(20_000 * bytes.max(1)) / bytes.max(1)
}

fn ucx_client(column: &Column, port: &str, _: Setting) -> Vec<String> {
    let bytes = column.bytes;
    let iterations = iterations(bytes).max(100);
    let test = match column.test {
        PeerTest::Stream => format!("tag_bw -O 64 -n {}", 4 * iterations),
        _ => format!("tag_lat -n {iterations}"),
    };
    words(&format!("127.0.0.1 -p {port} -s {bytes} -w {} -f -v -t {test}", iterations / 10))
}

/// Parses the last line of comma-separated figures: iterations; median, average and overall latency; average and overall
/// bandwidth; average and overall rate.
fn ucx_figure(column: &Column, printed: &str) -> Option<f64> {
    let line =
        printed.lines().rev().map(str::trim).find(|line| line.starts_with(|c: char| c.is_ascii_digit()))?;
    let figures: Vec<f64> = line.split(',').filter_map(|figure| figure.trim().parse().ok()).collect();
    match (column.test, &figures[..]) {
        (PeerTest::Stream, &[.., rate]) if figures.len() == 8 => Some(1e6 / rate),
        (PeerTest::Latency, &[_, median, ..]) if figures.len() == 8 => Some(median),
        _ => None,
    }
}

fn provider(setting: Setting) -> &'static str {
    ["shm", "tcp;ofi_rxm", "udp;ofi_rxd"][number(setting)]
}

/// Index of the setting's flags and settings.
fn number(setting: Setting) -> usize {
    match setting {
        Setting::Memory | Setting::Groups => 0,
        Setting::Network("udp") => 2,
        Setting::Network(_) => 1,
    }
}

fn fabric_size(column: &Column, setting: Setting) -> String {
    let iterations = iterations(column.bytes);
    // Over UDP a message sometimes takes milliseconds.
    let iterations =
        if setting == Setting::Network("udp") { iterations.clamp(20, 500) } else { iterations.max(100) };
    format!("-S {} -I {iterations}", column.bytes)
}

/// Parses the line under `bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec`.
fn fabric_figure(_: &Column, printed: &str) -> Option<f64> {
    let mut lines = printed.lines().skip_while(|line| !line.starts_with("bytes"));
    let at = lines.next()?.split_whitespace().position(|title| title == "usec/xfer")?;
    lines.next()?.split_whitespace().nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::peers::library::Prefix;

    fn column(test: PeerTest, bytes: usize) -> Column {
        Column { test, ranks: 2, payload: Payload::Untouched, bytes }
    }

    #[test]
    fn what_ucx_prints_is_understood() {
        let head = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n";
        let printed = format!("{head}   512,0.315,0.400,0.410,0.02,0.06,2475000,2000000\n");
        assert_eq!(ucx_figure(&column(PeerTest::Latency, 8), &printed), Some(0.315));
        assert_eq!(ucx_figure(&column(PeerTest::Stream, 8), &printed), Some(0.5));
        assert_eq!(ucx_figure(&column(PeerTest::Latency, 8), head), None);
        assert_eq!(ucx_figure(&column(PeerTest::Latency, 8), "1,2\n"), None);
    }

    #[test]
    fn what_fi_pingpong_prints_is_understood() {
        let printed = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                       4k      1k      =1k      7.8m        0.00s   4819.28       0.85       1.18\n";
        assert_eq!(fabric_figure(&column(PeerTest::Latency, 4096), printed), Some(0.85));
        assert_eq!(fabric_figure(&column(PeerTest::Latency, 4096), "fi_getinfo: -61\n"), None);
    }

    #[test]
    fn only_what_a_program_can_do_is_asked_of_it() {
        let [ucx, fabric] = &PROGRAMS;
        assert!(ucx.does(&column(PeerTest::Stream, 8)) && !fabric.does(&column(PeerTest::Stream, 8)));
        assert!(!ucx.does(&column(PeerTest::Barrier, 0)));
        assert!(!ucx.does(&Column { payload: Payload::WrittenRead, ..column(PeerTest::Latency, 8) }));
        assert!(!fabric.does(&Column { ranks: 4, ..column(PeerTest::Latency, 8) }));
    }

    #[test]
    fn a_program_that_is_not_there_is_named_with_its_place() {
        let found = |prefix| Found { version: "1.0".to_owned(), prefix, name: "deckperf-has-no-such-peer" };
        let measure = |prefix| {
            let (found, column) = (found(prefix), column(PeerTest::Latency, 8));
            PROGRAMS[0].measure(&found, &column, [0, 1], Setting::Memory).expect_err("is not there")
        };
        let why = measure(Prefix::System);
        assert!(why.starts_with("deckperf-has-no-such-peer: "), "{why}");
        let why = measure(Prefix::Folder("/p/ucx".into()));
        assert!(why.starts_with("/p/ucx/bin/deckperf-has-no-such-peer: "), "{why}");
    }

    #[test]
    fn a_client_that_fails_is_quoted_with_its_complaint() {
        let [ucx, _] = PROGRAMS;
        let program = Program {
            server: |_, _, _| words("-c true"),
            client: |_, _, _| vec!["-c".to_owned(), "echo no libucx.so >&2; exit 127".to_owned()],
            ..ucx
        };
        let found = Found { version: String::new(), prefix: Prefix::System, name: "sh" };
        let cpu = udeck::sys::usable_cpus()[0];
        let why = program.measure(&found, &column(PeerTest::Latency, 8), [cpu, cpu], Setting::Memory);
        assert_eq!(why.expect_err("fails"), "sh printed no figure\n    no libucx.so");
    }
}
