//! Description of the machine and the build of a run, without which a figure says nothing.

use std::{
    fs,
    time::{SystemTime, UNIX_EPOCH},
};

use crate::load::{self, Load};

/// The head of every report.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Version of µDECK.
    pub version: &'static str,
    /// Date and time, in UTC.
    pub date: String,
    /// Name of the processor, as it reports itself.
    pub cpu: String,
    /// Cores of this host.
    pub cores: usize,
    /// Version of the running kernel.
    pub kernel: String,
    /// Compiler and optimisation level.
    pub build: String,
    /// Ranks in the job.
    pub ranks: usize,
    /// Cores on which the ranks ran, in words.
    pub pinning: String,
    /// Transport of the messages.
    pub transport: String,
    /// Whether messages come from memory that no cache holds (`--off-cache`).
    pub off_cache: bool,
    /// Use of this host by other programs during the run, if the system reports it.
    pub load: Option<Load>,
}

impl Machine {
    /// Describes this host for a job of two ranks. Asks the system; a value that it does not report is "unknown".
    pub fn describe(pinning: String, transport: String) -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let cores = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
        let optimised = if cfg!(debug_assertions) { "NOT optimised: use --release" } else { "optimised" };
        Self {
            version: env!("CARGO_PKG_VERSION"),
            date: utc(since_epoch.as_secs()),
            cpu: cpu_model(&cpuinfo).unwrap_or("unknown processor").to_owned(),
            cores,
            kernel: format!("Linux {}", if release.is_empty() { "unknown" } else { release.trim() }),
            build: format!("{}, {optimised}", option_env!("UDECK_CLI_RUSTC").unwrap_or("unknown compiler")),
            ranks: 2,
            pinning,
            transport,
            off_cache: false,
            load: load::since_begin(cores),
        }
    }
}

impl Machine {
    /// Name of the transport; a device of verbs counts as "verbs", because devices have other names on other machines.
    pub fn network(&self) -> &str {
        let device = self.transport.split(';').next().unwrap_or_default();
        let name = device.trim_end_matches(|c: char| c.is_ascii_digit());
        if ["shm", "tcp", "udp", "sim"].contains(&name) { name } else { "verbs" }
    }
}

/// Name of the processor. x86 reports "model name"; others report less, under other names.
fn cpu_model(cpuinfo: &str) -> Option<&str> {
    ["model name", "Model", "CPU part"].iter().find_map(|key| {
        let mut fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(name, _)| name.trim() == *key).map(|(_, value)| value.trim())
    })
}

/// Formats seconds since 1970 as `2026-11-21 01:50 UTC` (Hinnant: chrono-compatible low-level date algorithms,
/// `civil_from_days`).
fn utc(seconds: u64) -> String {
    let (days, in_day) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + 400 * era + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", in_day / 3_600, in_day / 60 % 60)
}

impl Machine {
    /// A sample machine for tests of reports.
    #[doc(hidden)]
    pub fn sample(pinning: &str, transport: &str) -> Self {
        Machine {
            version: "1.2.3",
            date: "2026-01-02 03:04 UTC".to_owned(),
            cpu: "Some CPU".to_owned(),
            cores: 2,
            kernel: "Linux 6.1".to_owned(),
            build: "rustc 1.95.0, optimised".to_owned(),
            ranks: 2,
            pinning: pinning.to_owned(),
            transport: transport.to_owned(),
            off_cache: false,
            load: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_civil() {
        assert_eq!(utc(0), "1970-01-01 00:00 UTC");
        assert_eq!(utc(951_782_399), "2000-02-28 23:59 UTC");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(utc(1_709_251_199), "2024-02-29 23:59 UTC");
        assert_eq!(utc(1_735_689_600), "2025-01-01 00:00 UTC");
    }

    #[test]
    fn a_device_that_is_not_ours_is_of_verbs() {
        let network = |transport| Machine::sample("", transport).network().to_owned();
        assert_eq!(network("shm0; copy has 2 fragments"), "shm");
        assert_eq!(network("tcp"), "tcp");
        assert_eq!(network("mlx5_0; copy has 2 fragments"), "verbs");
    }

    #[test]
    fn the_model_is_read_from_what_processors_say() {
        let x86 =
            "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel\t\t: 167\nmodel name\t: Some CPU @ 2 GHz\n";
        assert_eq!(cpu_model(x86), Some("Some CPU @ 2 GHz"));
        assert_eq!(cpu_model("processor\t: 0\nCPU part\t: 0xd0c\n"), Some("0xd0c"));
        assert_eq!(cpu_model(""), None);
    }
}
