//! Printed results: a table, or a form for programs.

use crate::availability::{Outage, Silence, silent_times};
use crate::drive::{Measured, response_times};
use crate::message::Usage;
use crate::options::{Format, LinkKind, Links, Mix, Options};
use crate::ranks::{SERVERS, Servers};
use crate::verdict::Verdict;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use udeck_cli::machine::Machine;

/// Report of a run.
pub struct Report {
    machine: Machine,
    method: Vec<String>,
    format: Format,
    links: Links,
    pub mixes: Vec<MixReport>,
    /// Servers and spares that died, in order.
    pub killed: Vec<usize>,
    pub verdict: Verdict,
}

/// Results of one mix.
#[derive(Clone, Debug)]
pub struct MixReport {
    mix: Mix,
    transactions: u64,
    seconds: f64,
    /// Messages, counted where they were sent; those of a server that died, counted where they arrived.
    messages: u64,
    packets: u64,
    again: u64,
    /// Response times in microseconds.
    mean: f64,
    p50: f64,
    p99: f64,
    shortest: f64,
    longest: f64,
    /// Processor time in microseconds, in user and system mode, of all servers that lived to the end of the mix,
    /// and of all clients.
    servers: [u64; 2],
    clients: [u64; 2],
    /// Whether a server died during the mix.
    died: bool,
    /// Outages, and times until there were two servers again in microseconds, by client.
    outages: Vec<(usize, Outage)>,
    repairs: Vec<(usize, u64)>,
}

impl MixReport {
    /// Computes the results. `measured` is in the order of the clients; `servers` has the usage of those that
    /// lived to the end.
    pub fn new(mix: Mix, measured: &[Measured], servers: &BTreeMap<usize, Usage>) -> MixReport {
        let mut times = response_times();
        for (value, count) in measured.iter().flat_map(|client| &client.times) {
            times.saturating_record_n(*value, *count);
        }
        let answered = || measured.iter().filter(|client| client.transactions > 0);
        let all = || measured.iter().map(|client| &client.usage).chain(servers.values());
        let dead = (0..SERVERS).filter(|server| !servers.contains_key(server));
        let of_the_dead: u64 =
            dead.clone().map(|dead| all().map(|usage| usage.of_servers[dead]).sum::<u64>()).sum();
        let micros = |nanos: f64| nanos / 1e3;
        let sum = |of: fn(&Usage) -> u64| all().map(of).sum::<u64>();
        let clients = || measured.iter().zip(SERVERS..);
        let outages = clients().flat_map(|(client, rank)| client.outages.iter().map(move |one| (rank, *one)));
        let repairs = clients().flat_map(|(client, rank)| client.repairs.iter().map(move |one| (rank, *one)));
        MixReport {
            mix,
            transactions: measured.iter().map(|client| client.transactions).sum(),
            seconds: measured.iter().map(|client| client.micros).max().unwrap_or(0) as f64 / 1e6,
            messages: sum(|usage| usage.sent) + of_the_dead,
            packets: sum(|usage| usage.packets),
            again: sum(|usage| usage.again),
            mean: micros(times.mean()),
            p50: micros(times.value_at_quantile(0.5) as f64),
            p99: micros(times.value_at_quantile(0.99) as f64),
            shortest: micros(answered().map(|client| client.shortest).min().unwrap_or(0) as f64),
            longest: micros(measured.iter().map(|client| client.longest).max().unwrap_or(0) as f64),
            servers: [servers.values().map(|u| u.user).sum(), servers.values().map(|u| u.system).sum()],
            clients: [
                measured.iter().map(|client| client.usage.user).sum(),
                measured.iter().map(|client| client.usage.system).sum(),
            ],
            died: dead.count() > 0,
            outages: outages.collect(),
            repairs: repairs.collect(),
        }
    }

    /// Processor time in microseconds of all processes that lived to the end of the mix.
    fn processor(&self) -> u64 {
        self.servers.iter().chain(&self.clients).sum()
    }

    fn each(&self, whole: u64) -> f64 {
        whole as f64 / self.transactions.max(1) as f64
    }

    fn rate(&self, whole: u64) -> f64 {
        whole as f64 / self.seconds.max(1e-9)
    }

    /// Name and value of every figure, in the order of the columns.
    fn figures(&self) -> [(&'static str, f64); 14] {
        [
            ("transactions_per_s", self.rate(self.transactions)),
            ("messages_per_s", self.rate(self.messages)),
            ("messages_per_transaction", self.each(self.messages)),
            ("mean_us", self.mean),
            ("p50_us", self.p50),
            ("p99_us", self.p99),
            ("min_us", self.shortest),
            ("max_us", self.longest),
            ("server_user_us", self.each(self.servers[0])),
            ("server_system_us", self.each(self.servers[1])),
            ("client_user_us", self.each(self.clients[0])),
            ("client_system_us", self.each(self.clients[1])),
            ("packets_per_transaction", self.each(self.packets)),
            ("cpu_per_message_us", self.processor() as f64 / self.messages.max(1) as f64),
        ]
    }
}

impl Report {
    /// Report of a run that begins.
    pub fn new(options: &Options, servers: Servers, transport: String) -> Report {
        let processors = udeck::sys::usable_cpus().len();
        let (clients, spares) = (servers.clients().len(), servers.spares().len());
        let ranks = SERVERS + clients + spares;
        let pinning = format!("{ranks} processes; this one may use {processors} processors");
        let percent = 100.0 * options.remote;
        let mut method = vec![
            format!("2 servers and {clients} clients; each client has one transaction under way at a time"),
            format!(
                "{} s for each mix; {percent} % of the rows are on the other server",
                options.time.as_secs_f64()
            ),
            "every answer is checked when it comes, and all tables when the run is over".to_owned(),
            "messages are counted where they are sent; a BLOB counts with its message".to_owned(),
            "processor time is that of whole processes, waiting included, for each transaction and each message".to_owned(),
        ];
        if let Some(kill) = options.kill {
            method.push(format!("server {} is killed after {} s", options.victim, kill.as_secs_f64()));
        }
        if spares > 0 {
            method.push(format!(
                "{spares} spare nodes: one copies the data after a death, and takes the dead server's place"
            ));
        }
        if let Some(second) = options.second_victim() {
            method.push(format!("server {second} is killed when the spare has the first one's place"));
        }
        Report {
            machine: Machine::describe(pinning, transport),
            method,
            format: options.format,
            links: options.links(),
            mixes: Vec::new(),
            killed: Vec::new(),
            verdict: Verdict::default(),
        }
    }

    pub fn is_good(&self) -> bool {
        self.verdict.findings.is_empty()
    }

    pub fn render(&self) -> String {
        match self.format {
            Format::Table => self.table(),
            Format::Csv => self.csv(),
            Format::Json => format!("{:#}\n", self.json()),
        }
    }

    fn table(&self) -> String {
        let machine = &self.machine;
        let mut text = format!(
            "# hadb {}, {}\n# {}, {} cores, {}\n# {}\n# {}\n# {}\n",
            machine.version,
            machine.date,
            machine.cpu,
            machine.cores,
            machine.kernel,
            machine.build,
            machine.pinning,
            machine.transport
        );
        for line in &self.method {
            let _ = writeln!(text, "# {line}");
        }
        text += "#\n#            trans-   messages          response time (us)           \
                 processor time (us each)\n\
                 # mix      actions/s     each       mean       50%       99%        max  servers: user system  clients: user system\n";
        for mix in &self.mixes {
            let [rate, _, each, mean, p50, p99, _, max, su, ss, cu, cs, _, _] =
                mix.figures().map(|(_, value)| value);
            let _ = writeln!(
                text,
                "{:<11} {rate:>8.0} {each:>9.2} {mean:>10.1} {p50:>9.1} {p99:>9.1} {max:>10.1} {su:>14.1} {ss:>6.1} {cu:>14.1} {cs:>6.1}",
                mix.mix.name()
            );
        }
        text += "#\n";
        for mix in &self.mixes {
            self.notes(&mut text, mix);
        }
        self.availability(&mut text);
        text += &self.sentence();
        text
    }

    /// Adds facts that the table's row does not show.
    fn notes(&self, text: &mut String, mix: &MixReport) {
        let name = mix.mix.name();
        let _ = writeln!(
            text,
            "# {name}: {} transactions and {} messages in {:.2} s, {:.0} messages/s, {:.2} us of processor time each",
            mix.transactions,
            mix.messages,
            mix.seconds,
            mix.rate(mix.messages),
            mix.processor() as f64 / mix.messages.max(1) as f64
        );
        let packets = mix.each(mix.packets);
        let what = match (self.links.clients, self.links.nodes) {
            (LinkKind::Bare, LinkKind::Dat) => Some("datagrams, sends and RDMA writes"),
            (LinkKind::Bare, _) => Some("datagrams"),
            (_, LinkKind::Dat) => Some("sends and RDMA writes"),
            _ => None,
        };
        if let Some(what) = what {
            let _ = write!(text, "# {name}: {packets:.2} {what} for each transaction");
            let _ = match self.links.clients {
                LinkKind::Bare => {
                    writeln!(text, ", with acknowledgements; {} datagrams were sent again", mix.again)
                }
                _ => writeln!(text),
            };
        }
        if mix.died {
            let _ = writeln!(text, "# {name}: the dead server's processor time is not in it");
        }
        for (client, outage) in &mix.outages {
            let whose = if outage.own { "lost its server" } else { "kept its server" };
            let _ =
                writeln!(text, "client {client} {whose}: resumed after {:.1} ms", outage.micros as f64 / 1e3);
        }
        for (client, micros) in &mix.repairs {
            let _ = writeln!(text, "client {client}: two servers again after {:.1} ms", *micros as f64 / 1e3);
        }
    }

    /// Number of servers' deaths after which transactions were answered.
    pub fn deaths_noticed(&self) -> u32 {
        let outages = self.mixes.iter().flat_map(|mix| &mix.outages);
        outages.map(|(_, outage)| outage.death).max().unwrap_or(0)
    }

    /// Time in which each half did not answer, and the time of all mixes in seconds. `None`: no server died.
    fn silence(&self) -> Option<([Silence; 2], f64)> {
        let outages = self.mixes.iter().flat_map(|mix| &mix.outages);
        let outages: Vec<Outage> = outages.map(|(_, outage)| *outage).collect();
        let seconds = self.mixes.iter().map(|mix| mix.seconds).sum();
        (!outages.is_empty()).then(|| (silent_times(&outages), seconds))
    }

    /// Adds the availability of each half.
    fn availability(&self, text: &mut String) {
        let Some((silent, seconds)) = self.silence() else { return };
        for (half, silence) in silent.into_iter().enumerate() {
            let Silence { micros, known, deaths } = silence;
            let _ = write!(text, "half {half}: ");
            if let Some(percent) = silence.availability(seconds) {
                let _ = write!(text, "available for {percent:.3} % of {seconds:.2} s; ");
            }
            let silent =
                format!("{:.1} ms without an answer at {known} of {deaths} deaths", micros as f64 / 1e3);
            let _ = match known {
                0 => writeln!(text, "nobody asked for its rows when a server died"),
                _ if known < deaths => writeln!(text, "{silent}; nobody asked for its rows at the others"),
                _ => writeln!(text, "{silent}"),
            };
        }
    }

    /// The verdict as a sentence.
    pub fn sentence(&self) -> String {
        let Verdict { rows, servers, changes, findings } = &self.verdict;
        let answers: u64 = self.mixes.iter().map(|mix| mix.transactions).sum();
        if findings.is_empty() {
            let on: Vec<String> = servers.iter().map(|server| format!("server {server}")).collect();
            let on = on.join(" and ");
            let alike = if servers.len() == 2 { ", alike on both," } else { "" };
            let gone: String = self.killed.iter().map(|dead| format!("; server {dead} was killed")).collect();
            return format!(
                "CHECKED {answers} answers; the {rows} rows and BLOBs on {on}{alike} are what was acknowledged by \
                 {changes} changes{gone}\n"
            );
        }
        let mut text = format!("FAILED {} checks:\n", findings.len());
        for finding in findings {
            let _ = writeln!(text, "  {finding}");
        }
        text
    }

    fn csv(&self) -> String {
        let mut text = String::from("mix,transactions,messages,seconds");
        for (name, _) in self.mixes.first().map(MixReport::figures).into_iter().flatten() {
            let _ = write!(text, ",{name}");
        }
        text += ",resumed_ms,repaired_ms,checked\n";
        for mix in &self.mixes {
            let _ = write!(text, "{},{},{},{}", mix.mix.name(), mix.transactions, mix.messages, mix.seconds);
            for (_, value) in mix.figures() {
                let _ = write!(text, ",{value}");
            }
            let longest = mix.outages.iter().map(|(_, outage)| outage.micros).max();
            let resumed = longest.map_or(String::new(), |micros| (micros as f64 / 1e3).to_string());
            let longest = mix.repairs.iter().map(|(_, micros)| micros).max();
            let repaired = longest.map_or(String::new(), |micros| (*micros as f64 / 1e3).to_string());
            let _ = writeln!(text, ",{resumed},{repaired},{}", if self.is_good() { "ok" } else { "FAILED" });
        }
        text
    }

    fn json(&self) -> Value {
        let mixes: Vec<Value> = self
            .mixes
            .iter()
            .map(|mix| {
                let figures = mix.figures().map(|(name, value)| (name.to_owned(), json!(value)));
                let outages = mix.outages.iter().map(|(client, outage)| {
                    json!({"client": client, "own_server": outage.own, "resumed_ms": outage.micros as f64 / 1e3})
                });
                let repairs = mix.repairs.iter();
                let repairs =
                    repairs.map(|(client, micros)| json!({"client": client, "repaired_ms": *micros as f64 / 1e3}));
                json!({
                    "mix": mix.mix.name(),
                    "transactions": mix.transactions,
                    "messages": mix.messages,
                    "seconds": mix.seconds,
                    "datagrams_sent_again": mix.again,
                    "figures": serde_json::Map::from_iter(figures),
                    "outages": outages.collect::<Vec<_>>(),
                    "repairs": repairs.collect::<Vec<_>>(),
                })
            })
            .collect();
        let machine = &self.machine;
        let silence = self.silence();
        let availability =
            silence.map(|(silent, seconds)| silent.map(|silence| silence.availability(seconds)));
        json!({
            "udeck": machine.version,
            "date": machine.date,
            "machine": {
                "cpu": machine.cpu,
                "cores": machine.cores,
                "kernel": machine.kernel,
                "build": machine.build,
                "pinning": machine.pinning,
                "transport": machine.transport,
            },
            "method": self.method,
            "mixes": mixes,
            "killed": self.killed,
            "availability_percent": availability,
            "checked": self.verdict,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn client(transactions: u64, outages: Vec<Outage>, repairs: Vec<u64>) -> Measured {
        Measured {
            transactions,
            micros: 2_000_000,
            times: vec![(1_000_000, transactions)],
            shortest: 500_000,
            longest: 5_000_000,
            usage: Usage {
                user: 300,
                system: 100,
                sent: transactions,
                of_servers: [7, 20],
                ..Usage::default()
            },
            outages,
            repairs,
        }
    }

    fn report(format: &str) -> Report {
        let options = Options::parse_from(["hadb", "--format", format]);
        let outage = Outage { death: 1, own: true, micros: 2_500, halves: [true, false] };
        // Server 1 has died: its messages are counted where the others received them.
        let server = Usage { user: 1_000, system: 200, sent: 80, of_servers: [0, 40], ..Usage::default() };
        let measured = [client(150, vec![outage], vec![40_000]), client(50, Vec::new(), Vec::new())];
        let mix = MixReport::new(Mix::TpcB, &measured, &BTreeMap::from([(0, server)]));
        let mut report = Report::new(&options, Servers::of_job(4, 0), "pigeons".to_owned());
        report.machine = Machine::sample("anywhere", "pigeons");
        report.mixes.push(mix);
        report.killed = vec![1];
        report.verdict = Verdict { rows: 9, servers: vec![0], changes: 77, findings: Vec::new() };
        report
    }

    #[test]
    fn the_table_has_rates_counts_and_the_outage() {
        let text = report("table").render();
        let row: Vec<&str> =
            text.lines().find(|line| line.starts_with("tpcb")).expect("a row").split_whitespace().collect();
        // The figures are 200 transactions in 2 s; 80 + 150 + 50 messages sent by the living, 40 + 20 + 20
        // received from the dead server.
        assert_eq!(row[..3], ["tpcb", "100", "1.80"]);
        assert!(row[3].starts_with("1000.") && row[6] == "5000.0", "{text}");
        assert_eq!(row[7..], ["5.0", "1.0", "3.0", "1.0"]);
        for line in [
            "client 2 lost its server: resumed after 2.5 ms",
            "client 2: two servers again after 40.0 ms",
            "half 0: available for 99.875 % of 2.00 s; 2.5 ms without an answer at 1 of 1 deaths",
            "half 1: nobody asked for its rows when a server died",
            "CHECKED 200 answers; the 9 rows and BLOBs on server 0 are what was acknowledged by 77 changes; server 1 was killed",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line:?} in {text}");
        }
    }

    #[test]
    fn a_half_of_which_not_each_death_is_known_has_no_percentage() {
        let mut report = report("table");
        let outage = Outage { death: 2, own: false, micros: 1_500, halves: [false, true] };
        report.mixes[0].outages.push((3, outage));
        assert_eq!(report.deaths_noticed(), 2);
        let text = report.render();
        for line in [
            "half 0: 2.5 ms without an answer at 1 of 2 deaths; nobody asked for its rows at the others",
            "half 1: 1.5 ms without an answer at 1 of 2 deaths; nobody asked for its rows at the others",
        ] {
            assert!(text.lines().any(|found| found == line), "no {line:?} in {text}");
        }
    }

    #[test]
    fn programs_get_the_same() {
        let json: Value = serde_json::from_str(&report("json").render()).expect("JSON");
        let mix = &json["mixes"][0];
        assert_eq!(mix["figures"]["messages_per_transaction"], 1.8);
        assert_eq!(mix["figures"]["min_us"], 500.0);
        assert_eq!((&mix["outages"][0]["resumed_ms"], &json["killed"]), (&json!(2.5), &json!([1])));
        assert_eq!(json["availability_percent"], json!([99.875, null]));
        let csv = report("csv").render();
        let rows: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
        assert_eq!(rows[0].len(), rows[1].len(), "{csv}");
        assert_eq!((rows[1][0], rows[1].last()), ("tpcb", Some(&"ok")));
    }

    #[test]
    fn a_finding_is_a_failure_in_every_format() {
        let mut failed = report("table");
        failed.verdict.findings.push("something is lost".to_owned());
        assert!(!failed.is_good());
        assert!(failed.render().contains("FAILED 1 checks:\n  something is lost"));
        failed.format = Format::Csv;
        assert!(failed.render().ends_with(",FAILED\n"));
    }
}
